"""Input files that change while a job of data reads them: an error names them, and nothing is published."""

import functools
import os

import pytest

from official.cli import records
from official.cli import text as text_lib
from official.data.packing import creation as packing
from official.data.pretraining import inspection
from official.data.records import files as record_files
from official.data.text import documents, preparation
from official.io import files, jobs, writing
from official.io.errors import ConfigError
from tests.conftest import write_records
from tests.data.pretraining.test_creation import WORDS, creation, make_job, make_text, write
from tests.records import encode, short_examples


def shorten(path):
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 100)


def append(path):
    with open(path, "ab") as file:
        file.write(b"\n\nOne more document. It has two sentences.\n")


def overwrite(path):
    """Writes other bytes of the same number in their place."""
    with open(path, "r+b") as file:
        file.write(b"the cat sat.")


def replace(path):
    """Puts another file of the same size and time in its place."""
    before = os.stat(path)
    other = path + "~"
    with open(path, "rb") as source, open(other, "wb") as target:
        target.write(source.read().replace(b"the", b"sat"))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)


def put_again(path):
    """Puts a copy in its place, as a tool does that has written the same once more."""
    with open(path, "rb") as source, open(path + "~", "wb") as target:
        target.write(source.read())
    os.replace(path + "~", path)


CHANGES = (shorten, append, overwrite, replace, os.remove)


def refusal_of(run, module, name, path, change, monkeypatch, last="") -> str:
    """Returns how a job ends while which a file is changed; '' without an error.

    Args:
      module, name: of the generator function that reads; the change comes behind its first value.
      last: the call of it that has this first argument; '' for any.
    """
    original, left = getattr(module, name), [change]

    def changing(*arguments, **options):
        for value in original(*arguments, **options):
            if left and last in ("", arguments[0]):
                left.pop()(path)
            yield value

    with monkeypatch.context() as patch:
        patch.setattr(module, name, changing)
        try:
            run()
        except ConfigError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("job", ["create", "prepare", "vocab"])
def test_text_that_changes_while_it_is_read_is_refused(job, tmp_path, monkeypatch):
    vocab_file = write(tmp_path / "vocab.txt", "\n".join(WORDS) + "\n")
    wrong = []
    for change in CHANGES:
        folder = tmp_path / change.__name__
        folder.mkdir()
        first, last = (make_text(folder / f"{name}.txt", 30) for name in "ab")
        out = folder / "out"
        text = f"{folder}/*.txt"
        runs = {
            "create": functools.partial(creation.create_pretraining_data, make_job(text, vocab_file, out)),
            "prepare": functools.partial(preparation.prepare, preparation.Job(text, str(out), 0.1)),
            "vocab": text_lib.run_vocab,
        }
        flags = [f"--input_files={text}", f"--output_file={out}", "--vocab_size=60"]
        monkeypatch.setattr("sys.argv", ["bert vocab", *flags])
        found = refusal_of(runs[job], documents.sentences, "split_documents", first, change, monkeypatch)
        if "a.txt was changed while it was read" not in found and change is not os.remove:
            wrong.append((change.__name__, found))
        if change is os.remove and "a.txt cannot be read: No such file" not in found:
            wrong.append((change.__name__, found))
        if out.is_file() or (out / jobs.MANIFEST).exists() or list(out.glob("*.tfrecord")):
            wrong.append((change.__name__, "something is published"))
        assert os.path.exists(last)
    assert not wrong


@pytest.mark.parametrize("job", ["pack", "eval-set", "inspect"])
def test_records_that_change_while_they_are_read_are_refused(job, tmp_path, monkeypatch):
    wrong = []
    for change in (append, put_again):
        folder = tmp_path / change.__name__
        folder.mkdir()
        paths = [str(folder / f"{name}.tfrecord") for name in "ab"]
        for number, path in enumerate(paths):
            write_records(path, encode(short_examples(40, seed=number), "plain"))
        out = folder / "out"
        flags = [f"--input_files={folder}/*.tfrecord", f"--output_file={out}", "--num_samples=10"]
        monkeypatch.setattr("sys.argv", ["bert data eval-set", *flags])
        job_of_pack = packing.Job(str(folder), str(out))
        run, module, name = {
            "pack": (functools.partial(packing.pack_records, job_of_pack), inspection, "read_checked"),
            "eval-set": (records.run_eval_set, record_files, "read_rows"),
            "inspect": (functools.partial(inspection.summarize, paths, None), inspection, "read_checked"),
        }[job]
        # The first file is read already: only a comparison with the plan shows that it is another one.
        found = refusal_of(run, module, name, paths[0], change, monkeypatch, paths[1])
        if "a.tfrecord was changed while it was read" not in found:
            wrong.append((change.__name__, found))
        if (out / jobs.MANIFEST).exists():
            wrong.append((change.__name__, "something is published"))
        if job == "eval-set" and out.exists():
            wrong.append((change.__name__, "something is published"))
    assert not wrong


def test_a_file_of_a_store_is_another_one_when_it_was_written_again():
    pytest.importorskip("fsspec")
    names = [f"memory://changed/{number}" for number in range(4)]
    for name in names:
        writing.replace_file(name, "text")
    before = files.states(names)
    files.check_unchanged(before)
    writing.replace_file(names[2], "TEXT")
    with pytest.raises(ConfigError, match="changed/2 was changed while it was read"):
        files.check_unchanged(before)
