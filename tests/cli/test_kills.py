"""The scripts that kill and interrupt runs, and workers of jobs: their counts, and a few of their kills."""

import json

import pytest

import kill_runs
import kill_workers
from tests import programs


def hits(name: str, *outcomes: tuple[int, float]) -> dict:
    base = {"moment": "training", "signal": name}
    return {"hits": [{**base, "exit_code": code, "secs": secs} for code, secs in outcomes], "runs": [[]]}


def test_what_is_not_as_it_must_be_of_runs_is_counted():
    fine = {"kills": hits("SIGKILL", (137, 0.1)), "signals": hits("SIGTERM", (143, 3.0))}
    summary = kill_runs.summarize({"squad": fine, "glue": fine})
    assert (summary["kills"], summary["signals"], summary["moments"]["training"]) == (2, 2, 4)
    assert summary["longest_secs"] == 3.0
    assert not (summary["wrong_exit_codes"] or summary["late"] or summary["runs_that_differ"])
    kills = {**hits("SIGKILL", (0, 0.1)), "runs": [["metrics.jsonl"]]}
    bad = {"kills": kills, "signals": hits("SIGINT", (143, 16.0))}
    summary = kill_runs.summarize({"squad": fine, "glue": bad})
    assert (summary["wrong_exit_codes"], summary["late"], summary["runs_that_differ"]) == (2, 1, 1)


@pytest.mark.slow
def test_some_kills_and_signals_of_runs(tmp_path):
    given = ("--kills=1", "--signals=2", f"--output={tmp_path}/kills.json")
    done = programs.run("scripts/kill_runs.py", *given, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "kills.json").read_text())
    assert (report["kills"], report["signals"]) == (2, 2)


def test_what_is_not_as_it_must_be_of_workers_is_counted():
    fine = {"rank": 1, "after_secs": 3.0, "at_step": 40, "exit_code": 0, "differs": []}
    summary = kill_workers.summarize([fine, {**fine, "rank": 0, "at_step": 0}])
    assert (summary["runs"], summary["killed_chief"], summary["killed_before_the_first_line"]) == (2, 1, 1)
    assert (summary["wrong_exit_codes"], summary["runs_that_differ"]) == (0, 0)
    summary = kill_workers.summarize([fine, {**fine, "exit_code": 4, "differs": ["exit 4: lost"]}])
    assert (summary["wrong_exit_codes"], summary["runs_that_differ"]) == (1, 1)


@pytest.mark.slow
def test_a_kill_of_each_worker(tmp_path):
    given = ("--runs=2", "--seed=38", f"--output={tmp_path}/kills.json")  # late in the training
    done = programs.run("scripts/kill_workers.py", *given, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "kills.json").read_text())
    assert {each["rank"]: each["differs"] for each in report["kills"]} == {0: [], 1: []}
