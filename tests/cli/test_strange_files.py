"""What cannot be read as a file: one line says what it is, whatever reads it, and nothing waits."""

import codecs
import io
import os
import socket
import tempfile

import pytest

from official.cli import ask, flags
from official.cli import text as text_lib
from official.data.glue import files as files_lib
from official.data.glue import tasks
from official.data.squad import squad_files
from official.data.text import documents
from official.inference import methods
from official.io import files, json_files, record_paths, vocabulary_files
from official.io.errors import ConfigError
from tests.config.test_configs import GOOD
from tests.refusals import assert_refused

POINTER = files.POINTER_START + b"\noid sha256:" + b"7" * 64 + b"\nsize 440000000\n"


@pytest.fixture(name="strange")
def _strange(tmp_path, monkeypatch):
    """Returns {name of a path here: what a message says of it}."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    os.symlink("loop", "loop")
    os.symlink("/dev/zero", "device")
    (tmp_path / "pointer").write_bytes(POINTER)
    found = {
        "fifo": "it is a named pipe (FIFO), not a file",
        "device": "it is a device, not a file",
        "/dev/zero": "it is a device, not a file",
        "loop": "Too many levels of symbolic links",
        "pointer": "Git LFS pointer (440,000,000 bytes in the store), not the file: git lfs pull",
    }
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        found["socket"] = "it is a socket, not a file"
    if os.path.exists("/proc/cpuinfo"):
        found["/proc/cpuinfo"] = "it has no size and yet holds something"
    return found


def read_parts(path):
    with files.naming(path), files.reading_parts(path) as read:
        read(0, 1)


def read_documents(path):
    return list(documents.read_documents(files.find_files(path, "input_files"), documents.ReadCounts()))


def read_split(path):
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.abspath(path), f"{folder}/train.tsv")
        return files_lib.read_split(tasks.TASKS["cola"], "train", folder)


READERS = {
    "JSON": lambda path: json_files.read_json(path, "flag"),
    "YAML": lambda path: json_files.read_yaml(path, "spec"),
    "vocabulary": vocabulary_files.read,
    "SQuAD": lambda path: squad_files.read_squad(path, "train_file", True, False),
    "context": ask.read_context,
    "calibration": methods.calibration_texts,
    "parts": read_parts,
    "text": read_documents,
    "records": lambda path: record_paths.find_files(path, "input_files"),
    "flagfile": lambda path: flags.parse([f"--flagfile={path}"]),
    "GLUE": read_split,
}


def test_every_reader_says_what_a_path_is_that_is_no_file(strange):
    os.mkdir("folder")
    of_folders = ("JSON", "YAML", "SQuAD", "context", "calibration", "parts", "flagfile")
    cases = [(name, "folder", "Is a directory") for name in of_folders]
    for path, expected in strange.items():
        cases += [(name, path, message) for name in READERS.keys() - {"GLUE"} for message in (path, expected)]
        if path in ("pointer", "/proc/cpuinfo"):  # a task of GLUE has none of the other files
            cases.append(("GLUE", path, expected))
    assert_refused(lambda name, path: READERS[name](path), cases)


def test_what_a_shell_hands_over_is_read(tmp_path):
    """--context=<(command) is a pipe that is open already."""
    reader, writer = os.pipe()
    os.write(writer, b"A text.")
    os.close(writer)
    assert ask.read_context(f"/dev/fd/{reader}") == "A text."
    os.close(reader)


def test_links_that_lead_back_are_entered_once(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.txt").write_text("text")
    for number in range(3):
        (tmp_path / "a" / f"up{number}").symlink_to(tmp_path)
        (tmp_path / "a" / "b" / f"up{number}").symlink_to(tmp_path / "a")
    assert files.find_files(f"{tmp_path}/**/*.txt", "") == [str(tmp_path / "a" / "b" / "x.txt")]


def test_text_of_no_byte_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "empty").write_text("")
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary_files.SPECIAL_TOKENS) + "\n")
    words = ["bert", f"--input_files={tmp_path}/empty", f"--output_dir={tmp_path}/out"]
    vocabulary = [f"--vocab_file={tmp_path}/vocab.txt"]
    for command, own in ((text_lib.run_create, vocabulary), (text_lib.run_prepare, [])):
        monkeypatch.setattr("sys.argv", [*words, *own])
        with pytest.raises(ConfigError, match=r"empty is empty \(0 bytes\)"):
            command()


# ------------------------------------------------------------------------------------------------------------
# Byte order marks

MARK = "\ufeff"


def test_a_byte_order_mark_is_no_part_of_what_is_read(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(MARK + text, encoding="utf-8")
        return str(tmp_path / name)

    words = [*vocabulary_files.SPECIAL_TOKENS, "the"]
    assert vocabulary_files.read(write("vocab.txt", "\n".join(words) + "\n")).words == tuple(words)
    assert json_files.read_json(write("a.json", '{"a": 1}')) == {"a": 1}
    assert json_files.read_yaml(write("a.yml", "a: 1\n"), "spec") == {"a": 1}
    assert ask.read_context(write("context.txt", "A text.\r\nIt ends.")) == "A text.\nIt ends."
    read = methods.calibration_texts(write("lines.txt", "one\r\n\ntwo\n"))
    assert read == ["one", "two"]
    assert read_documents(write("text", "A text.\n")) == [["A text."]]


def test_a_byte_order_mark_is_no_part_of_the_first_line_of_stdin(monkeypatch):
    mark = codecs.BOM_UTF8
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(mark + b"one\n" + mark + b"two\n"), "utf-8"))
    assert list(ask.lines("")) == [(1, b"one"), (2, mark + b"two")]


def test_a_byte_order_mark_is_no_part_of_a_flagfile(tmp_path):
    def parse(first: str):
        for name, text in (("a.flags", MARK + first), ("b.flags", MARK + "--seed=7\n")):
            (tmp_path / name).write_text(text, encoding="utf-8")
        return flags.parse([*GOOD, f"--flagfile={tmp_path}/a.flags"])

    lines = ("--seed=7\n", "# a comment\n--seed=7\n", "\n--seed=7\n", f"--flagfile={tmp_path}/b.flags\n")
    assert [line for line in lines if parse(line).seed != 7] == []
