"""The script that kills workers of jobs: its counts, and one of its kills."""

import json
import sys

import kill_workers
import pytest

from official.io.errors import ConfigError
from tests import programs


def test_what_is_not_as_it_must_be_is_counted():
    fine = {"rank": 1, "after_secs": 3.0, "at_step": 40, "exit_code": 0, "differs": []}
    summary = kill_workers.summarize([fine, {**fine, "rank": 0, "at_step": 0}])
    assert (summary["runs"], summary["killed_chief"], summary["killed_before_the_first_line"]) == (2, 1, 1)
    assert (summary["wrong_exit_codes"], summary["runs_that_differ"]) == (0, 0)
    summary = kill_workers.summarize([fine, {**fine, "exit_code": 4, "differs": ["exit 4: lost"]}])
    assert (summary["wrong_exit_codes"], summary["runs_that_differ"]) == (1, 1)


def test_files_are_shared_evenly(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["kill_workers.py", "--workers=3"])
    with pytest.raises(ConfigError, match="--workers=3, expected 2 or 4"):
        kill_workers.parse_flags()


@pytest.mark.slow
def test_a_kill(tmp_path):
    given = ("--runs=1", f"--output={tmp_path}/kills.json")
    done = programs.run("scripts/kill_workers.py", *given, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "kills.json").read_text())
    assert report["runs"] == 1 and report["kills"][0]["differs"] == []
