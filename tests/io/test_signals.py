"""Ctrl-C, SIGTERM and SIGHUP at any moment: what the process says, how it ends, and what it cleans up.
Nothing here loads TensorFlow."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest
import yaml

from tests import programs
from tests.fixtures import ROOT

NUMBERS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
NUMBERS += [(signal.SIGHUP, 129, "hung up")]
HEAD = """
import os, signal, sys, time
sys.argv[0] = "/somewhere/tool.py"
from official.io import signals
signals.watch()
def hit(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
    for _ in range(200):
        time.sleep(0.01)
"""


def run(code: str, head: str = HEAD) -> tuple[int, str, str]:
    """Runs a program that starts as `HEAD` does. Returns (exit code, stdout, stderr)."""
    done = programs.run("-c", head + code, timeout=60)
    return done.returncode, done.stdout, done.stderr


PROGRAMS = yaml.safe_load((pathlib.Path(__file__).parent / "data" / "signal_programs.yml").read_text())


@pytest.mark.parametrize("number,code,word", NUMBERS)
def test_at_any_moment_a_signal_ends_the_process_with_one_line(number, code, word):
    for moment in PROGRAMS["moments"]:
        ended = (code, f"tool.py: {word}.\n") if moment["told"] else (-int(number), "")
        found = run(moment["program"].replace("NUMBER", str(int(number))))
        assert found == (ended[0], moment["printed"], ended[1]), moment["program"]


@pytest.mark.slow
def test_a_section_decides_what_a_signal_does():
    wrong = []
    for section in PROGRAMS["sections"]:
        code, printed, errors = run(section["program"])
        last = errors if section["last"] is None else section["last"]
        is_last = errors.endswith(last) if last else errors == ""
        if (code, printed) != (section["code"], section["printed"]) or not is_last:
            wrong.append((section["program"], code, printed, errors))
    assert wrong == []


@pytest.mark.slow
def test_under_nohup_the_end_of_the_terminal_is_ignored():
    ignored = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + HEAD
    hits = "hit(signal.SIGHUP)\nwith signals.raising():\n    hit(signal.SIGHUP)\nprint('here still')"
    assert run(hits, ignored) == (0, "here still\n", "")


@pytest.fixture(name="start")
def _start(tmp_path):
    """Returns a function that starts a command which loads a TensorFlow that says so and takes for ever."""
    (tmp_path / "modules").mkdir()
    slow = "import time\nprint('loading', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "modules" / "tensorflow.py").write_text(slow)
    sizes = ["--bert_config_file=configs/models/bert_tiny.json", "--max_seq_length=16"]
    train = ["--use_synthetic_data", *sizes, "--max_predictions_per_seq=3", f"--model_dir={tmp_path}/new"]
    commands = {"train.py": train, "checkpoints_tools/convert_ckpt.py": ["google2keras", str(tmp_path)]}

    def start(script: str, stderr=subprocess.PIPE) -> subprocess.Popen:
        command = [sys.executable, script, *commands[script]]
        pipes = dict(stdout=subprocess.PIPE, stderr=stderr)
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'modules'}:{ROOT}"}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)
        assert process.stdout.readline() == "loading\n"
        return process

    return start


@pytest.mark.slow
@pytest.mark.parametrize("script", ["train.py", "checkpoints_tools/convert_ckpt.py"])
def test_commands_that_load_tensorflow_end_in_one_line(start, script):
    for number, code, word in NUMBERS:
        process = start(script)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (code, f"{os.path.basename(script)}: {word}.\n")


def test_on_a_terminal_something_is_said_before_tensorflow_is_loaded(start):
    ours, theirs = os.openpty()
    process = start("train.py", theirs)
    os.close(theirs)
    assert b"task pretrain" in os.read(ours, 1000)
    process.kill()
    process.communicate()
    os.close(ours)
