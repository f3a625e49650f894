"""What all commands have in common: help, misspelt flags, pictures, and no lines of libraries."""

import os
import signal
import subprocess
import sys

from official.cli import outputs
from official.reporting import plots
from tests import programs
from tests.fixtures import ROOT

COMMANDS = ["train.py", *programs.SCRIPTS]
# Asks all for help in one process, and says which loads TensorFlow for it or has a flag without a word.
ASK_FOR_HELP = """
import argparse, contextlib, io, os, runpy, sys
add_argument = argparse._ActionsContainer.add_argument
def checked(self, *names, **settings):
    assert settings.get("help"), (sys.argv[0], names)
    return add_argument(self, *names, **settings)
argparse._ActionsContainer.add_argument = checked
for script in sys.argv[1:]:
    sys.argv, text = [script, "--help"], io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            assert not end.code, (script, end.code)
    assert len(text.getvalue()) > 100 and "None" not in text.getvalue(), (script, text.getvalue())
    assert not {"tensorflow", "matplotlib"} & set(sys.modules), script
"""


def test_help_is_there_without_tensorflow():
    assert len(COMMANDS) > 25
    done = programs.run("-c", ASK_FOR_HELP, *COMMANDS, PYTHONPATH=f"{ROOT}:{ROOT}/scripts")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_ending_of_a_picture_is_its_format(tmp_path):
    for name, start in (("a/x.png", b"\x89PNG"), (".svg", b"<?xml"), ("x.y.PDF", b"%PDF")):
        outputs.check_picture_file(str(tmp_path / name), "picture", False)
        outputs.write_picture(str(tmp_path / name), plots.new_figure(1, 1))
        assert (tmp_path / name).read_bytes().startswith(start)


def test_a_reader_that_has_gone_is_no_error():
    for command in ("train.py", "scripts/inspect_data.py"):
        reader, writer = os.pipe()
        os.close(reader)
        words = [sys.executable, "-u", command, "--help"]
        done = subprocess.run(words, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writer)
        assert done.stderr == "" and done.returncode in (0, 128 + signal.SIGPIPE)
