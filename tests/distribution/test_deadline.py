"""A limit of time that holds while no code of Python's can run."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

CODE = """
import ctypes, sys, time
from official.distribution import heartbeat

secs, pause = map(float, sys.argv[1:])
with heartbeat.ending(secs, 4, "a peer was lost: 100% of them"):
    ctypes.PyDLL(None).usleep(int(pause * 1e6))  # with Python's lock
time.sleep(0.4)
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="timers of Linux")
@pytest.mark.parametrize(
    "secs,pause,code,output", [(0.05, 0.5, 4, ""), (0.1, 0.001, 0, "done\n")], ids=["too long", "in time"]
)
def test_who_takes_too_long_ends_with_a_line_and_a_code(secs, pause, code, output):
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(secs), str(pause)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, output), done.stderr
    assert done.stderr.rstrip().endswith("a peer was lost: 100% of them") == (code == 4)
