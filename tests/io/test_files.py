"""Files of this machine and of stores: the same operations, the same errors; and
folders for working files, of which a killed process leaves none for long."""

import errno
import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import pytest

from official.io import files, jobs, writing
from official.io.errors import ConfigError
from tests import programs
from tests.fixtures import ROOT

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
    pytest.importorskip("s3fs", reason="pip install '.[s3]'")
    pytest.importorskip("moto.server", reason="pip install '.[dev]'")
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


@pytest.fixture(params=["local", "ram", "s3"], name="folder")
def _folder(request, tmp_path):
    """A folder of this machine, of a store that TensorFlow reaches, and of one that fsspec does."""
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"
    folder = str(tmp_path) if request.param == "local" else f"ram://{tmp_path.name}"
    files.store_of(folder).make_folder(f"{folder}/a/b")
    return folder


def test_files_are_written_found_and_taken_away(folder):
    store = files.store_of(folder)
    writing.replace_file(f"{folder}/a/b/x.txt", "one\ntwo")
    writing.replace_file(f"{folder}/a/y.txt", b"three")
    found = files.find_files(f"{folder}/**/*.txt", "input_files")
    assert found == [f"{folder}/a/b/x.txt", f"{folder}/a/y.txt"] == files.find_files(folder, "")
    assert files.sizes(found) == [7, 5] and writing.read_lines(found[0]) == [b"one\n", b"two"]
    assert files.is_file(found[0]) and files.is_folder(f"{folder}/a") and not files.is_file(f"{folder}/a")
    with files.open_binary(found[1]) as file:
        assert file.seek(-2, 2) == 3 and file.read() == b"ee"
    assert store.read_range(found[0], 2, 4) == b"e\ntw" and store.read_range(found[0], 5, 9) == b"wo"
    store.make_folder(f"{folder}/.hidden")
    for name in (".hidden/w.txt", "a/z.bin", "a/z.txt"):
        writing.replace_file(f"{folder}/{name}", name)
    assert files.find_files(f"{folder}/.*/*.txt", "") == [f"{folder}/.hidden/w.txt"]
    every = [*found, f"{folder}/a/z.bin", f"{folder}/a/z.txt"]
    assert files.find_files(f"{folder}/a/*", "") == every[1:]
    assert files.find_files(folder, "") == every and files.sizes(every) == [7, 5, 7, 7]
    writing.set_aside(found[1])
    assert not store.exists(found[1])
    assert sorted(store.names_in(f"{folder}/a")) == ["b", "y-1.txt", "z.bin", "z.txt"]
    with pytest.raises(FileNotFoundError):
        files.open_binary(f"{folder}/none")
    with pytest.raises(ConfigError, match="none cannot be read: No such file"):
        files.sizes([found[0], f"{folder}/none"])
    assert writing.read_lines(f"{folder}/none") == [] and not files.is_file(f"{folder}/none")
    store.remove_folder(f"{folder}/a")
    assert not files.is_folder(f"{folder}/a") and files.is_folder(folder)


def test_a_file_is_replaced_whole_or_not_at_all(folder):
    path, store = f"{folder}/a/x", files.store_of(folder)
    for before in (None, "old"):
        with pytest.raises(ZeroDivisionError), writing.replacing(path) as temporary:
            pathlib.Path(temporary).write_text("half")
            raise ZeroDivisionError
        assert writing.read_lines(path) == ([before.encode()] if before else [])
        assert not os.path.exists(temporary)
        writing.replace_file(path, before or "old")
    writing.replace_file(path, "half a pair: \ud83d, \u00e9")
    assert writing.read_lines(path) == [b"half a pair: \\ud83d, \xc3\xa9"]
    writing.replace_file(path, "new")
    assert writing.read_lines(path) == [b"new"]
    assert [name for name in store.names_in(f"{folder}/a") if name != "b"] == ["x"]


def test_the_digest_is_of_names_sizes_and_beginnings(folder):
    digests = []
    for content in (b"a" * 70_000 + b"b", b"a" * 70_000 + b"c", b"b" + b"a" * 70_000):
        writing.replace_file(f"{folder}/a/x", content)
        digests.append(files.digest([f"{folder}/a/x"]))
    assert (digests[0]["files"], digests[0]["bytes"]) == (1, 70_001)
    assert digests[0] == digests[1] != digests[2]


def test_an_error_of_a_library_s_own_kind_is_an_os_error_that_names_the_file():
    class Unreachable(OSError):  # as aiohttp's: with other arguments than OSError
        def __init__(self, one, other):
            super().__init__(f"{one} {other}")

    with pytest.raises(OSError, match="no way") as found, files._os_errors("gs://a/b"):
        raise Unreachable("no", "way")
    assert found.value.filename == "gs://a/b"
    with pytest.raises(PermissionError), files._os_errors("s3://a/b"):
        raise PermissionError("Forbidden")


def test_what_a_finished_job_has_left_of_its_work_folder_is_removed(tmp_path):
    with jobs.unfinished_folder(str(tmp_path), {"a": 1}, False) as folder:
        jobs.remove_left(str(tmp_path))
        assert files.is_folder(folder)  # somebody is at work there
    assert not any(tmp_path.iterdir())
    (tmp_path / ".unfinished" / "level-0").mkdir(parents=True)
    (tmp_path / ".unfinished" / "lock").touch()
    jobs.remove_left(str(tmp_path))
    assert not any(tmp_path.iterdir())


def test_a_file_system_without_locks_is_said_and_its_other_errors_are_raised(tmp_path, monkeypatch, caplog):
    for number in (errno.ENOSYS, errno.ENOLCK, errno.EIO):
        error = OSError(number, os.strerror(number))
        monkeypatch.setattr(writing.fcntl, "flock", mock.Mock(side_effect=error))
        caplog.clear()
        try:
            with writing.locked(str(tmp_path / "lock")):
                told = f"The file system of {tmp_path} has no locks ({error.strerror}): make sure"
                assert told in caplog.text and number != errno.EIO
        except OSError as raised:
            assert raised.errno == number == errno.EIO


# ------------------------------------------------------------------------------------------------------------
# Jobs whose files lie in an object store


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


# ------------------------------------------------------------------------------------------------------------
# Folders for a while, and locks

HOLD = """
import sys
from official.io import writing
with writing.new_folder(sys.argv[1]) as folder:
    open(folder + "/file", "w").close()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _as_new_process():
    writing._remove_left.cache_clear()
    yield
    writing._remove_left.cache_clear()


def start(folder) -> tuple[subprocess.Popen, str]:
    """Starts a process that holds a folder; returns it and the folder."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def test_what_a_killed_process_left_is_removed_and_a_living_one_keeps_its_own(tmp_path):
    killed, left = start(tmp_path)
    living, kept = start(tmp_path)
    killed.kill()
    killed.wait()
    others = [tmp_path / name for name in ("bert-large", "bert-work-another.host-1234")]
    for other in others:
        other.mkdir()
    (tmp_path / f"bert-work-{files.host()}-link").symlink_to(others[0])
    assert os.listdir(left) == ["file"]
    with writing.new_folder(str(tmp_path)) as own:
        assert not os.path.exists(left) and os.listdir(kept) == ["file"] and os.listdir(own) == []
        writing._remove_left.cache_clear()
        with writing.new_folder(str(tmp_path)) as another:
            assert os.path.isdir(own) and another != own
    assert not os.path.exists(own) and all(other.is_dir() for other in others)
    living.stdin.close()
    living.wait()
    assert not os.path.exists(kept)


def test_one_that_is_taken_for_left_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    taken, kept = tempfile.mkdtemp(dir=tmp_path), tempfile.mkdtemp(dir=tmp_path)
    os.rmdir(taken)
    monkeypatch.setattr(tempfile, "mkdtemp", mock.Mock(side_effect=[taken, kept]))
    with writing.new_folder(str(tmp_path)) as folder:
        assert folder == kept and os.path.isdir(folder)


def test_a_lock_file_is_opened_as_it_is_and_never_through_a_link(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("precious")
    (tmp_path / "link").symlink_to(kept)
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for name in ("link", "dangling"):
        with pytest.raises(OSError, match="symbolic links"), writing.locked(str(tmp_path / name)):
            pass
    with writing.locked(str(kept)), writing.locked(str(tmp_path / "new"), mode=0o600) as new:
        assert new.name == str(tmp_path / "new")
    assert kept.read_text() == "precious" and not (tmp_path / "none").exists()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
