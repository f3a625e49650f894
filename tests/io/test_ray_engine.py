"""Tasks on Ray: what they raise, and that nothing is left running. That they make the same files as on other
engines, whatever is killed meanwhile, is in test_engines_and_kills.py."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.fixtures import ROOT
from tests.io.test_engines import is_alive, wait_for

psutil = pytest.importorskip("psutil")
pytest.importorskip("ray", reason="pip install '.[ray]'")
pytestmark = pytest.mark.slow  # a cluster takes seconds to start

JOB = """
import argparse, sys
from absl import logging
from official.io import engines
from official.io.errors import ConfigError
from tests import worker_tasks
logging.set_verbosity(logging.INFO)
function, folder, number, address = sys.argv[1:]
number, num_workers = int(number), None if address else 2
tasks = ((getattr(worker_tasks, function), folder, each) for each in range(number))
choice = argparse.Namespace(num_workers=num_workers, engine="ray", ray_address=address or None)
try:
    with engines.opened(choice) as engine:
        engine.run(engines.Round(tasks, number, 100.0 * number, "Writing", "files", "tests"))
except ConfigError as error:
    sys.exit(f"ConfigError: {error}")
"""


def start(function: str, folder: pathlib.Path, number: int, address: str = "") -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", JOB, function, str(folder), str(number), address]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def two_nodes():
    command = [sys.executable, "-m", "tests.ray_nodes"]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    keeper = subprocess.Popen(command, cwd=ROOT, text=True, env=environment, **pipes)
    try:
        yield keeper.stdout.readline().strip(), int(keeper.stdout.readline())
    finally:
        keeper.stdin.close()
        keeper.wait()


def test_what_a_task_raises_comes_through_and_stops_the_others(tmp_path):
    job = start("fail", tmp_path / "made", 400)
    _, told = job.communicate(timeout=120)
    assert job.returncode == 1
    assert told.splitlines()[-1] == f"ConfigError: {tmp_path}/made holds nothing for task 2."
    assert len(list((tmp_path / "made").glob("done-*"))) < 100


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_cluster_does_not_outlive_the_job(tmp_path, number):
    job = start("write_late", tmp_path / "made", 4)
    assert wait_for(lambda: len(list((tmp_path / "made").glob("began-*[0-9]"))) == 2, 60)
    begun = [process.pid for process in psutil.Process(job.pid).children(recursive=True)]
    assert len(begun) > 5  # of Ray's own
    job.send_signal(number)
    job.wait()
    job.stderr.close()
    assert wait_for(lambda: not any(map(is_alive, begun)))
    assert not list((tmp_path / "made").glob("late-*"))


def test_a_process_that_is_killed_each_time_and_an_address_without_a_cluster_are_one_line(tmp_path):
    for function, address, message in (
        ("kill_itself", "", "a task of --engine=ray was lost, and 5 retries failed"),
        ("write", "127.0.0.1:1", "ConfigError: --ray_address=127.0.0.1:1"),
    ):
        job = start(function, tmp_path / "made", 1, address)
        _, told = job.communicate(timeout=240)
        assert job.returncode == 1 and message in told
