"""How an error is shown: one line below 300 characters, the last one, with nothing drawn over it."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

from official.io import errors
from official.io.errors import ConfigError


def test_an_error_is_one_short_line_with_its_end(capsys):
    long = ("x" * 5_000, "many words " * 100, "\udce9" * 400, "٣" * 400)
    for message in ("short.", "line\nbreak\r\x1b[2J\udce9", *long, "wrong " * 100 + "Change --model_dir."):
        errors.report_error("train.py", message)
        shown = capsys.readouterr().err
        assert shown.startswith("train.py: ") and shown[:-1].isprintable(), message
        assert shown.count("\n") == 1 and shown.endswith("\n") and len(shown) <= 300, message
    assert shown.endswith("Change --model_dir.\n")


def test_numbers_and_many_names():
    found = [errors.counted(number, "process") for number in (0, 1, 1200)]
    assert found == ["0 processes", "1 process", "1,200 processes"] and errors.counted(2, "node") == "2 nodes"
    names = [f"bert/encoder/layer_{number}/output/dense/kernel" for number in range(24)]
    assert errors.shortened(names[:1]) == names[0] and errors.shortened(["a", "b"]) == "a, b"
    text = errors.describe_names({"missing": names, "unexpected": ["x"], "No layer": []})
    assert text == f"missing: {names[0]} and 23 more. unexpected: x. No layer"
    assert ConfigError(text, {"missing": names}).is_shortened
    assert not ConfigError(text, {"unexpected": ["x"]}).is_shortened


BAR = """
import sys
import tqdm
from official.cli import command_line
from official.io.errors import ConfigError
from official.io.bars import Bar

def read():
    yield from tqdm.tqdm(range(9), "reading", mininterval=0)

def main():
    left_open = read()
    next(left_open)
    with Bar(total=9, desc="working", mininterval=0) as bar:
        bar.update(3)
        raise ConfigError("x.json: not a JSON file.")

sys.argv = ["tool.py"]
command_line.run(main)
"""


def test_bars_go_before_the_error():
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    done = subprocess.run([sys.executable, "-c", BAR], stderr=theirs, check=False)
    os.close(theirs)
    output = b""
    try:
        while data := os.read(ours, 1 << 16):
            output += data
    except OSError:  # the end of a terminal
        pass
    os.close(ours)
    text = output.decode().replace("\r\n", "\n")
    assert done.returncode == 2 and "working" in text
    *_, bars, error = text.rstrip("\n").rpartition("\r")
    assert error == "tool.py: x.json: not a JSON file." and text.endswith(error + "\n")
    # The last that was drawn is blank.
    assert bars and not text.rpartition("\r")[0].rpartition("\r")[2].strip()
