"""Input files that change while a job of data reads them: an error names them, and nothing is published."""

import os
import pathlib
import shutil
from functools import partial

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
from tests.data.pretraining.test_creation import WORDS, create, make_text, write
from tests.records import encode, short_examples


def shorten(path):
    os.truncate(path, os.path.getsize(path) - 100)


def append(path):
    with open(path, "ab") as file:
        file.write(b"\n\nOne more document. It has two sentences.\n")


def overwrite(path):
    """Writes other bytes of the same number in their place."""
    with open(path, "r+b") as file:
        file.write(b"the cat sat.")


def replace(path):
    """Puts another file of the same size and time in its place."""
    other = pathlib.Path(path + "~")
    other.write_bytes(pathlib.Path(path).read_bytes().replace(b"the", b"sat"))
    shutil.copystat(path, other)
    os.replace(other, path)


def put_again(path):
    """Puts a copy in its place, as a tool does that has written the same once more."""
    os.replace(shutil.copyfile(path, path + "~"), path)


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


@pytest.mark.parametrize("job", ["create", "prepare", "vocab", "pack", "eval-set", "inspect"])
def test_inputs_that_change_while_they_are_read_are_refused(job, tmp_path, monkeypatch):
    vocab_file = write(tmp_path / "vocab.txt", "\n".join(WORDS) + "\n")
    reads_text, wrong = job in ("create", "prepare", "vocab"), []
    for change in CHANGES if reads_text else (append, put_again):
        folder = tmp_path / change.__name__
        folder.mkdir()
        first, last = (str(folder / f"{name}.x") for name in "ab")
        for number, path in enumerate(map(pathlib.Path, (first, last))):
            if reads_text:
                make_text(path, 30)
            else:
                write_records(path, encode(short_examples(40, seed=number), "plain"))
        given, out = f"{folder}/*.x", folder / "out"
        flags = {"vocab": "--vocab_size=60", "eval-set": "--num_samples=10"}.get(job, "")
        monkeypatch.setattr("sys.argv", [job, f"--input_files={given}", f"--output_file={out}", flags])
        text, checked = (documents.sentences, "split_documents"), (inspection, "read_checked")
        # The first file of records is read already when it is changed: only a comparison with the plan tells.
        run, (module, name), at = {
            "create": (partial(create, given, vocab_file, out), text, ""),
            "prepare": (partial(preparation.prepare, preparation.Job(given, str(out), 0.1)), text, ""),
            "vocab": (text_lib.run_vocab, text, ""),
            "pack": (partial(packing.pack_records, packing.Job(given, str(out))), checked, last),
            "eval-set": (records.run_eval_set, (record_files, "read_rows"), last),
            "inspect": (partial(inspection.summarize, [first, last], None), checked, last),
        }[job]
        found = refusal_of(run, module, name, first, change, monkeypatch, at)
        told = "cannot be read: No such file" if change is os.remove else "was changed while it was read"
        is_published = out.is_file() or (out / jobs.MANIFEST).exists() or list(out.glob("*.tfrecord"))
        if f"a.x {told}" not in found or is_published or not os.path.exists(last):
            wrong.append((change.__name__, found, is_published))
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
