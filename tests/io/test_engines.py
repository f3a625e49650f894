"""Tasks in this process and in processes of this machine: what they do to the end, and what happens to them
when the process that began them is killed."""

import argparse
import os
import signal
import subprocess
import sys
import time

import pytest

from official.io import engines
from official.io.errors import ConfigError
from tests import programs, worker_tasks
from tests.fixtures import ROOT

JOB = """
import sys
from official.io import engines
from tests import worker_tasks
jobs = [(worker_tasks.write_late, sys.argv[1], number) for number in range(4)]
engines.Local(2).run(engines.Round(jobs, 4, 1, "Writing", "files", "official.io.engines"))
"""


def run(num_workers: int, tasks: list[tuple]) -> None:
    engines.Local(num_workers).run(engines.Round(tasks, len(tasks), 1, "Writing", "files", "official.io"))


def state_of(process: int) -> list[str]:
    """Returns what the kernel says of a process: its state, its parent, ..; Z where there is none."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()
    except OSError:
        return ["Z"]


def is_alive(process: int) -> bool:
    return state_of(process)[0] != "Z"


def wait_for(condition, secs: float = 20) -> bool:
    deadline = time.monotonic() + secs
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_a_long_path_of_temporary_files_leaves_room_for_sockets(tmp_path):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    done = programs.run("-c", JOB.replace("write_late", "write"), tmp_path, TMPDIR=str(folder))
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("done-*"))) == 4 and list(folder.iterdir()) == []


def test_busy_processes_do_not_outlive_a_killed_parent(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", JOB, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL)
    assert wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 2)
    at_work = [int(path.read_text()) for path in tmp_path.glob("began-*")]
    servers = [int(state_of(process)[1]) for process in at_work]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert parent.pid not in at_work + servers
    assert wait_for(lambda: not any(map(is_alive, at_work + servers)))
    assert not list(tmp_path.glob("late-*"))  # each would be there five seconds after its task began


def test_all_tasks_are_done_by_two_processes_and_a_killed_one_is_one_line(tmp_path):
    run(2, [(worker_tasks.write, str(tmp_path), number) for number in range(5)])
    assert sorted(os.listdir(tmp_path)) == [f"done-{number}" for number in range(5)]
    with pytest.raises(ConfigError, match="a worker process was killed.* Lower --num_workers=2"):
        run(2, [(worker_tasks.kill_itself, str(tmp_path), number) for number in range(2)])


def test_other_processes_work_for_large_jobs_and_where_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(engines, "cores", lambda: 4)
    for num_workers, engine, total_bytes, expected in (
        (None, "local", None, True),  # nobody knows yet how much there is to do
        (None, "local", 1000, False),
        (None, "local", 1 << 30, True),
        (2, "local", 1000, True),
        (1, "local", None, False),
        (None, "ray", 1000, True),
    ):
        choice = argparse.Namespace(num_workers=num_workers, engine=engine, ray_address=None)
        assert engines.has_others(choice, total_bytes) == expected, (choice, total_bytes)
