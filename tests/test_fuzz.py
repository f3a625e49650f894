"""Damaged command lines, flagfiles, records, checkpoints and settings end in order."""

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT


def fuzz(tmp_path, cases, seed) -> dict:
    done = subprocess.run([sys.executable, "scripts/fuzz.py", f"--cases={cases}", f"--seed={seed}", f"--output={tmp_path}/fuzz.json"],
                          cwd=ROOT, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((tmp_path / "fuzz.json").read_text())


def test_some_random_damage_ends_in_order(tmp_path):
    report = fuzz(tmp_path, cases=15, seed=3)
    assert sum(count for codes in report["counts"].values() for count in codes.values()) == 15


@pytest.mark.slow
def test_much_random_damage_ends_in_order(tmp_path):
    assert fuzz(tmp_path, cases=500, seed=1)["failures"] == []
