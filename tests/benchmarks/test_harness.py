"""The harness: programs of other systems, their environments, watched processes."""

import argparse
import os
import sys

import pytest

import harness
from official.cli.benchmark.inference import Program
from official.io.errors import ConfigError

ECHO = """
import json, sys
print("what a library prints", file=sys.stderr)
for line in sys.stdin:
    print(json.dumps({"asked": json.loads(line)}), flush=True)
"""


@pytest.fixture(name="start")
def fixture_start(tmp_path):
    """Returns (source) -> a program that is it."""
    given = (str(tmp_path / "work"), harness.variables(None), ": ask for fewer --peers")
    return lambda source: Program("--peers: fake", [sys.executable, "-c", source], *given)


def test_a_program_answers_in_turns_and_its_end_is_named(start):
    with start(ECHO) as program:
        for number in range(3):
            program.ask({"n": number})
            assert program.answer() == {"asked": {"n": number}}
        program.process.kill()
        program.process.wait()
        message = "fake ended with code -9.*because memory ran out: ask for fewer --peers"
        with pytest.raises(ConfigError, match=message):
            program.ask({})
            program.answer()
    with start("raise ModuleNotFoundError('no torch here')") as program:
        with pytest.raises(ConfigError, match="fake ended with code 1: ModuleNotFoundError: no torch here"):
            program.answer()


def test_an_environment_that_lacks_a_package(tmp_path):
    flags = argparse.Namespace(environments=str(tmp_path), make_environments=False)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "made").write_text("numpy\n")
    harness.prepare([("peer", harness.Environment("x", ("numpy",))), ("ours", None)], flags)
    wanted = harness.Environment("x", ("accelerate==1.12.0", "numpy"))
    with pytest.raises(ConfigError, match=r"peer has no accelerate==1.12.0 in .*--make_environments"):
        harness.prepare([("peer", wanted)], flags)
    with pytest.raises(ConfigError, match="peer has no environment in .*Make it with --make_environments"):
        harness.prepare([("peer", harness.Environment("y", ("numpy",)))], flags)


def test_a_tree_of_processes_is_watched(tmp_path):
    child = "import time; x = bytearray(60_000_000); time.sleep(1)"
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"open({str(tmp_path / 'made')!r}, 'wb').write(bytes(5000)); sum(range(10**7)); child.wait()\n"
    )
    found = harness.watch([sys.executable, "-c", code], str(tmp_path), period_secs=0.05)
    assert found["peak_memory_bytes"] > 60e6 and found["peak_disk_bytes"] == 5000
    assert 0 < found["core_secs"] < found["secs"] * os.cpu_count() + 1 and found["peak_open_files"] > 0
    assert harness.resident_bytes(os.getpid()) > 1e6 and harness.cpu_secs(os.getpid()) > 0
    with pytest.raises(RuntimeError, match="it broke"):
        harness.watch([sys.executable, "-c", "raise SystemExit('it broke')"], str(tmp_path))
