"""Ctrl-C, SIGTERM and SIGHUP at any moment: what the process says, how it ends, and what it cleans up.
Nothing here loads TensorFlow."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT, TINY

NUMBERS = [
    (signal.SIGINT, 130, "interrupted"),
    (signal.SIGTERM, 143, "terminated"),
    (signal.SIGHUP, 129, "hung up"),
]
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
    done = subprocess.run(
        [sys.executable, "-c", head + code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


# Program -> (does a line tell of the signal, what it prints). The number stands for NUMBER.
MOMENTS = {
    "hit(NUMBER)": ("", True),
    # While the interpreter ends: with Python's lock held the thread that listens comes too late.
    """
import atexit, ctypes
def late():
    os.kill(os.getpid(), NUMBER)
    ctypes.PyDLL(None).usleep(300000)
atexit.register(late)
""": ("", True),
    # After the last deed of the interpreter. `atexit` calls first what was registered last, and this before
    # anything else of the program.
    """
import atexit
atexit.unregister(signals._end_late)
atexit.register(lambda: os.kill(os.getpid(), NUMBER))
atexit.register(signals._end_late)
""": ("", False),
    """
try:
    with signals.raising():
        try:
            hit(NUMBER)
        finally:
            print("cleaned up")
except KeyboardInterrupt as error:
    sys.exit(signals.report(error))
""": ("cleaned up\n", True),
}


@pytest.mark.parametrize("number,code,word", NUMBERS)
def test_at_any_moment_a_signal_ends_the_process_with_one_line(number, code, word):
    for program, (printed, is_told) in MOMENTS.items():
        ended = (code, printed, f"tool.py: {word}.\n") if is_told else (-int(number), printed, "")
        assert run(program.replace("NUMBER", str(int(number)))) == ended, program


# Program -> (exit code, what it prints, its last words; None: any).
SECTIONS = {
    "os.close(2)\nhit(signal.SIGHUP)": (129, "", ""),  # a stderr that is gone
    # What other code makes of the exception is a signal again; and it stays asked to end.
    """
try:
    with signals.raising():
        try:
            hit()
        except signals.Interrupted:
            raise ImportError("a C extension could not be loaded")
except signals.Interrupted as error:
    print(error.signal)
    time.sleep(0.2)  # the thread notes it, too
try:
    with signals.raising():
        pass
except signals.Interrupted:
    print("still asked to end")
""": (0, "15\nstill asked to end\n", None),
    # One that a destructor drops is raised at the end of the block.
    """
class Dropping:
    def __del__(self):
        hit()
try:
    with signals.raising():
        Dropping()
        print("goes on")
except signals.Interrupted as error:
    print(error.signal)
""": (0, "goes on\n15\n", None),
    # One that is noted after the last look is not forgotten.
    """
with signals.noting(lambda number: None):
    hit()
signals.check()
""": (1, "", "Interrupted: SIGTERM\n"),
    "with signals.raising():\n    raise ValueError('mine')": (1, "", "ValueError: mine\n"),
    # One that gets lost, in a callback for example, ends the process all the same.
    """
import threading
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
signals.GRACE_SECS = 0.1
with signals.raising():
    while True:
        try:
            time.sleep(10)
        except signals.Interrupted:
            pass
        else:
            break
        time.sleep(10)
""": (143, "", "tool.py: terminated.\n"),
    # Noted once, and at once the second time.
    """
noted = []
with signals.noting(noted.append):
    hit(signal.SIGINT)
    print(noted, flush=True)
    hit(signal.SIGTERM)
""": (143, "[2]\n", ""),
    # What can be lost is not waited for; what a thread writes is.
    """
signals.GRACE_SECS = 0.05
with signals.noting(lambda number: print("noted", flush=True)), signals.expendable():
    hit()
""": (143, "noted\n", "tool.py: terminated.\n"),
    """
import threading
signals.GRACE_SECS = 0.05
over = threading.Event()
def write():
    with signals.waited_for(over.wait):
        time.sleep(0.5)
        print("written", flush=True)
        over.set()
threading.Thread(target=write, daemon=True).start()
with signals.noting(lambda number: None), signals.expendable():
    hit()
""": (143, "written\n", "tool.py: terminated.\n"),
    # A forked process has signals of its own: its parent does not take them over the pipe that both have.
    """
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
print(os.waitpid(child, 0)[1])
time.sleep(0.2)
print("here still")
""": (0, "15\nhere still\n", None),
}


def test_a_section_decides_what_a_signal_does():
    wrong = []
    for program, (code, printed, last) in SECTIONS.items():
        found = run(program)
        is_last = last is None or (found[2].endswith(last) if last else found[2] == "")
        if found[:2] != (code, printed) or not is_last:
            wrong.append((program, found))
    assert wrong == []


def test_under_nohup_the_end_of_the_terminal_is_ignored():
    ignored = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + HEAD
    hits = "hit(signal.SIGHUP)\nwith signals.raising():\n    hit(signal.SIGHUP)\nprint('here still')"
    assert run(hits, ignored) == (0, "here still\n", "")


@pytest.fixture(name="start")
def _start(tmp_path):
    """Returns a function that starts a command which loads a TensorFlow that says so and takes for ever."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "tensorflow.py").write_text(
        "import time\nprint('loading', flush=True)\ntime.sleep(60)\n"
    )
    (tmp_path / "bert.json").write_text(json.dumps(TINY))
    (tmp_path / "text.txt").write_text("a text")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps({"task": "squad", "vocab_file": "vocab.txt"}))
    lengths = ["--max_seq_length=16", "--max_predictions_per_seq=3"]
    model = [f"--bert_config_file={tmp_path}/bert.json", f"--model_dir={tmp_path}/new"]
    commands = {
        "train.py": ["--use_synthetic_data", *model, *lengths],
        "scripts/ask.py": [f"--checkpoint={tmp_path}/run", f"--context={tmp_path}/text.txt"],
        "checkpoints_tools/convert_ckpt.py": ["google2keras", str(tmp_path / "run")],
    }

    def start(script: str, stderr=subprocess.PIPE) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, script, *commands[script]],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{tmp_path / 'modules'}:{ROOT}"},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        assert process.stdout.readline() == "loading\n"
        return process

    return start


@pytest.mark.parametrize("script", ["train.py", "scripts/ask.py", "checkpoints_tools/convert_ckpt.py"])
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
