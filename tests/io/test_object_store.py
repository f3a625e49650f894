"""Jobs whose files lie in an object store, a server of the S3 protocol on this machine."""

import os
import pathlib
import subprocess
import sys

import pytest

from official.io import files, jobs, writing
from official.io.errors import ConfigError
from tests import programs

pytest.importorskip("s3fs", reason="pip install '.[s3]'")
pytest.importorskip("moto.server", reason="pip install '.[dev]'")


# A server of the S3 protocol, which writes its address in a line, and ends when stdin does.
SERVER = """
import os, sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.fixture(scope="module", name="bucket")
def _bucket():
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    server = subprocess.Popen([sys.executable, "-c", SERVER], text=True, **pipes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.stdout.readline().strip())
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import s3fs

        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket"
    server.stdin.close()
    server.wait()


def test_objects_are_written_found_read_and_removed(bucket):
    folder = f"{bucket}/files"
    names = ["a/b/x.txt", "a/y.txt", "a/z.bin", ".hidden/w.txt"]
    for name in names:
        writing.replace_file(f"{folder}/{name}", name)
    text = [f"{folder}/a/b/x.txt", f"{folder}/a/y.txt"]
    assert files.find_files(f"{folder}/**/*.txt", "") == text
    assert files.find_files(f"{folder}/.*/*.txt", "") == [f"{folder}/.hidden/w.txt"]
    assert files.find_files(folder, "") == [*text, f"{folder}/a/z.bin"]
    assert files.find_files(f"{folder}/a/*", "") == [text[1], f"{folder}/a/z.bin"]
    assert files.sizes([f"{folder}/{name}" for name in names]) == list(map(len, names))
    store = files.store_of(folder)
    assert store.read_range(text[0], 2, 4) == b"b/x." and store.read_range(text[0], 7, 9) == b"xt"
    with pytest.raises(ConfigError, match="none cannot be read: No such file"):
        files.sizes([text[0], f"{folder}/none"])
    store.remove_folder(f"{folder}/a")
    assert not files.is_folder(f"{folder}/a") and files.is_folder(folder)


def test_what_fails_in_its_block_is_not_written(bucket):
    path = f"{bucket}/whole/x"
    with pytest.raises(KeyError), writing.replacing(path) as temporary:
        pathlib.Path(temporary).write_text("half", encoding="utf-8")
        raise KeyError
    assert not files.is_file(path)
    with writing.replacing(path) as temporary:
        pathlib.Path(temporary).write_text("whole", encoding="utf-8")
    assert files.store_of(path).read_range(path, 0, 9) == b"whole" and not os.path.exists(temporary)


def test_a_second_job_is_refused_and_a_dead_one_is_not_waited_for(bucket, monkeypatch):
    monkeypatch.setattr(jobs, "_LOOK_AGAIN_SECS", 0.0)
    path = f"{bucket}/out/lock"
    with jobs.held(path, "out"):
        with pytest.raises(ConfigError, match="is being written to by another process"):
            with jobs.held(path, "out"):
                pass
    assert not files.is_file(path)
    jobs._write(path, f"{files.host()}-{2**22 + 1}-dead")
    with jobs.held(path, "out"):
        assert files.is_file(path)


@pytest.mark.slow  # commands that load TensorFlow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_records_are_made_packed_and_inspected_in_a_store_as_on_disk(bucket, tmp_path, engine):
    if engine == "ray":
        pytest.importorskip("ray", reason="pip install '.[ray]'")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(60))]
    documents = [
        "\n".join(" ".join(f"w{(row * row + each + line) % 60}" for each in range(9)) for line in range(5))
        for row in range(60)
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    remote = f"{bucket}/{engine}"
    writing.replace_file(f"{remote}/text.txt", (tmp_path / "text.txt").read_bytes())
    for folder, flags in ((str(tmp_path), []), (remote, [f"--engine={engine}", "--num_workers=2"])):
        text, shape = f"--input_files={folder}/text.txt", "--max_seq_length=32"
        run("data", "prepare", text, f"--output_dir={folder}/text", "--eval_share=0.2", *flags)
        words = f"--vocab_file={tmp_path}/vocab.txt"
        run("data", "create", text, words, shape, f"--output_dir={folder}/records", *flags)
        run("pack", f"--input_files={folder}/records", f"--output_dir={folder}/packed", *flags)
    store = files.store_of(remote)
    for below, ending in (("records", ".tfrecord"), ("packed", ".tfrecord"), ("text/train", ".txt")):
        names = sorted(filter(lambda name: name.endswith(ending), store.names_in(f"{remote}/{below}")))
        assert names == sorted(name for name in os.listdir(tmp_path / below) if name.endswith(ending))
        for name in names:
            with store.open(f"{remote}/{below}/{name}") as file:
                assert file.read() == (tmp_path / below / name).read_bytes(), name
    told = run("data", "inspect", f"{remote}/packed")
    assert told == run("data", "inspect", str(tmp_path / "packed"))


def run(*words: str) -> str:
    done = programs.run("-m", "official.cli", *words)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
