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


def run(code: str) -> tuple[int, str, str]:
    """Runs a program that starts as `HEAD` does. Returns (exit code, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("number,code,word", NUMBERS)
def test_before_anything_else_a_signal_ends_the_process_with_one_line(number, code, word):
    assert run(f"hit({int(number)})") == (code, "", f"tool.py: {word}.\n")


@pytest.mark.parametrize("number,code,word", NUMBERS)
def test_while_the_interpreter_ends_a_signal_still_counts(number, code, word):
    """With Python's lock held the thread that listens comes too late."""
    program = f"""
import atexit, ctypes
def late():
    os.kill(os.getpid(), {int(number)})
    ctypes.PyDLL(None).usleep(300000)
atexit.register(late)
"""
    assert run(program) == (code, "", f"tool.py: {word}.\n")


@pytest.mark.parametrize("number,code,word", NUMBERS)
def test_after_the_last_deed_of_the_interpreter_a_signal_kills_by_itself(number, code, word):
    """`atexit` calls first what was registered last, and this before anything else of the program."""
    program = f"""
import atexit
atexit.unregister(signals._end_late)
atexit.register(lambda: os.kill(os.getpid(), {int(number)}))
atexit.register(signals._end_late)
"""
    assert run(program) == (-int(number), "", "")


def test_under_nohup_the_end_of_the_terminal_is_ignored():
    ignored = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    hits = "hit(signal.SIGHUP)\nwith signals.raising():\n    hit(signal.SIGHUP)\nprint('here still')"
    code = ignored + HEAD + hits
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "here still\n", "")


def test_a_stderr_that_is_gone_keeps_no_process_from_its_end():
    assert run("os.close(2)\nhit(signal.SIGHUP)") == (129, "", "")


@pytest.mark.parametrize("number,code,word", NUMBERS)
def test_files_are_cleaned_up(number, code, word):
    program = f"""
try:
    with signals.raising():
        try:
            hit({int(number)})
        finally:
            print("cleaned up")
except KeyboardInterrupt as error:
    sys.exit(signals.report(error))
"""
    assert run(program) == (code, "cleaned up\n", f"tool.py: {word}.\n")


def test_what_other_code_makes_of_the_exception_is_a_signal_again():
    program = """
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
"""
    assert run(program)[1] == f"{int(signal.SIGTERM)}\nstill asked to end\n"


def test_a_signal_that_a_destructor_drops_is_raised_at_the_end_of_the_block():
    program = """
class Dropping:
    def __del__(self):
        hit()
try:
    with signals.raising():
        Dropping()
        print("goes on")
except signals.Interrupted as error:
    print(error.signal)
"""
    assert run(program)[1] == f"goes on\n{int(signal.SIGTERM)}\n"


def test_a_signal_noted_after_the_last_look_is_not_forgotten():
    program = """
with signals.noting(lambda number: None):
    hit()
signals.check()
"""
    assert "Interrupted: SIGTERM" in run(program)[2]


def test_an_error_of_its_own_stays_what_it_is():
    assert "ValueError: mine" in run("with signals.raising():\n    raise ValueError('mine')")[2]


def test_a_signal_that_gets_lost_ends_the_process_all_the_same():
    program = """
signals.GRACE_SECS = 0.1
with signals.raising():
    while True:
        try:
            time.sleep(10)
        except signals.Interrupted:
            pass  # in a callback, for example
        else:
            break
        time.sleep(10)
"""
    code = (
        HEAD
        + "import threading\nthreading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()"
        + program
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (143, "tool.py: terminated.\n")


def test_noted_once_and_at_once_the_second_time():
    program = """
noted = []
with signals.noting(noted.append):
    hit(signal.SIGINT)
    print(noted, flush=True)
    hit(signal.SIGTERM)
"""
    assert run(program) == (143, "[2]\n", "")


def test_what_can_be_lost_is_not_waited_for():
    program = """
signals.GRACE_SECS = 0.05
with signals.noting(lambda number: print("noted", flush=True)), signals.expendable():
    hit()
"""
    assert run(program) == (143, "noted\n", "tool.py: terminated.\n")


def test_what_a_thread_writes_is_waited_for():
    program = """
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
"""
    assert run(program) == (143, "written\n", "tool.py: terminated.\n")


def test_a_forked_process_has_signals_of_its_own():
    """Its parent is not to take them for its own, as it would over the pipe that both have."""
    program = """
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
print(os.waitpid(child, 0)[1])
time.sleep(0.2)
print("here still")
"""
    assert run(program)[:2] == (0, f"{int(signal.SIGTERM)}\nhere still\n")


@pytest.fixture(name="slow_tensorflow")
def _slow_tensorflow(tmp_path):
    """Returns the environment in which loading TensorFlow says so and takes for ever."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "tensorflow.py").write_text(
        "import time\nprint('loading', flush=True)\ntime.sleep(60)\n"
    )
    return {**os.environ, "PYTHONPATH": f"{tmp_path / 'modules'}:{ROOT}"}


@pytest.fixture(name="commands")
def _commands(tmp_path):
    """Returns {script: arguments} that load TensorFlow."""
    (tmp_path / "bert.json").write_text(json.dumps(TINY))
    (tmp_path / "text.txt").write_text("a text")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps({"task": "squad", "vocab_file": "vocab.txt"}))
    return {
        "train.py": [
            f"--bert_config_file={tmp_path}/bert.json",
            "--use_synthetic_data",
            f"--model_dir={tmp_path}/new",
            "--max_seq_length=16",
            "--max_predictions_per_seq=3",
        ],
        "scripts/ask.py": [f"--checkpoint={tmp_path}/run", f"--context={tmp_path}/text.txt"],
        "checkpoints_tools/convert_ckpt.py": ["google2keras", str(tmp_path / "run")],
    }


@pytest.mark.parametrize("script", ["train.py", "scripts/ask.py", "checkpoints_tools/convert_ckpt.py"])
@pytest.mark.parametrize("number,code,word", NUMBERS)
def test_commands_that_load_tensorflow_end_in_one_line(slow_tensorflow, commands, script, number, code, word):
    process = subprocess.Popen(
        [sys.executable, script, *commands[script]],
        cwd=ROOT,
        env=slow_tensorflow,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "loading\n", process.communicate()[1]
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (code, f"{os.path.basename(script)}: {word}.\n")


def test_on_a_terminal_something_is_said_before_tensorflow_is_loaded(slow_tensorflow, commands):
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "train.py", *commands["train.py"]],
        cwd=ROOT,
        env=slow_tensorflow,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    process.stdout.readline()  # it loads
    assert b"task pretrain" in os.read(ours, 1000)
    process.kill()
    process.communicate()
    os.close(ours)
