"""Damaged command lines, settings, data and checkpoints end in order, whatever command reads them."""

import json
import pathlib

import pytest
from hypothesis import strategies as st

from tests import programs
from tests.fuzz import campaign, processes
from tests.fuzz.commands import COMMANDS
from tests.fuzz.processes import Ended

PLAIN = [name for name, command in COMMANDS.items() if command.plain]


def fuzz(cases: int, *flags: str) -> str:
    done = programs.run("scripts/fuzz.py", f"--cases={cases}", *flags, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_some_random_damage_ends_in_order():
    said = fuzz(len(PLAIN), "--seed=5", f"--commands={','.join(PLAIN)}")
    assert said.endswith(f"{len(PLAIN)} cases, 0 failures.\n")
    assert not [name for name in PLAIN if f"\n{name} " not in said]


@pytest.mark.slow
def test_much_random_damage_to_every_command_ends_in_order(tmp_path):
    fuzz(8 * len(COMMANDS), "--seed=1", f"--output={tmp_path}/fuzz.json")
    report = json.loads((tmp_path / "fuzz.json").read_text())
    assert set(report["by_command"]) == set(COMMANDS) and report["environment"]["python"]


def test_every_command_that_takes_files_is_there():
    """A script that is not damaged fetches from the network, or is no command."""
    left_out = "download_glue_data fuzz kill_runs kill_workers measured_page ratchet".split()
    scripts = {path.rpartition("/")[2] for path in programs.SCRIPTS}
    damaged = {command.script.rpartition("/")[2] for command in COMMANDS.values()}
    assert scripts - {f"{name}.py" for name in left_out} <= damaged and "train.py" in damaged


def test_a_fault_is_made_simple_and_runs_again(monkeypatch):
    smallest = 10

    def run_case(draw, *_) -> dict:
        number = draw(st.integers(0, 1000))
        wrong = "traceback" if number >= smallest else None
        return {"kind": "flags", "what": number, "code": 1, "secs": 0.0, "wrong": wrong}

    monkeypatch.setattr(campaign, "_run_case", run_case)
    given_besides = (1, "", pathlib.Path("base"), None)
    result = campaign.explore("ask", 50, *given_besides)
    failure = result["failure"]
    assert (failure["command"], failure["what"], failure["wrong"]) == ("ask", 10, "traceback")
    assert result["outcomes"][-1] == ["flags", "traceback"]
    assert campaign.explore("ask", 50, *given_besides) == result
    again = (1, failure["replay"], pathlib.Path("base"), None)
    assert campaign.explore("ask", 50, *again)["failure"] == failure
    smallest = 11
    assert campaign.explore("ask", 50, *again)["failure"] is None


LINE = "ask.py: --context=x: No such file or directory.\n"
NOISE = "WARNING: All log messages before absl::\n"
JUDGED = (  # exit code, what is expected, stdout, stderr -> what is wrong
    (0, "any", "done\n", "", None),
    (2, "refused", "", LINE, None),
    (None, "any", "", "", "hang"),
    (-11, "any", "", "", "exit code -11"),
    (0, "any", "", "\n", "nothing said"),
    (1, "any", "", "Traceback (most recent call last):\n", "traceback"),
    (2, "any", "", NOISE + LINE, "noise: All log messages before absl"),
    (0, "refused", "done\n", "", "silent acceptance"),
    (0, "named", "done\n", "", "silent acceptance"),
    (0, "named", "2 damaged lines\n", "", None),
    (3, "refused", "failed: loss\n", "", None),
    (2, "any", "", LINE + LINE, "2 error lines"),
    (2, "any", "", LINE + "bar 3/9", "the error is not the last line"),
    (2, "any", "", "bar 3/9\r       \r" + LINE, None),
    (2, "any", "", f"bar longer than {'all ' * 20}of the error\r{LINE}", "a bar is left behind the error"),
    (2, "any", "", f"ask.py: {'x' * 300}\n", "an error of 308 characters"),
)


def test_judgement():
    for code, expected, output, errors, wrong in JUDGED:
        ended = Ended(code, 0.1, output, errors)
        found = processes.judge("scripts/ask.py", ended, (0, 3), expected)
        assert found == wrong, ended
