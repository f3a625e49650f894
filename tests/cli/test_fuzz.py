"""Damaged command lines, settings, data and checkpoints end in order, whatever command reads them."""

import contextlib
import json
import random

import pytest
from fuzzing import commands, damage, processes  # pylint: disable=wrong-import-position

from tests import programs

# Commands that need no run: the workspace is there at once.
NEED_RUNS = ("runs", "formats", "records", "cache", "unfinished")
QUICK = [
    name
    for name, command in commands.COMMANDS.items()
    if not any(part.startswith(NEED_RUNS) for part in command.parts) and command.script != "train.py"
]


def fuzz(tmp_path, cases: int, seed: int, *flags: str) -> dict:
    output = tmp_path / "fuzz.json"
    given = (f"--cases={cases}", f"--seed={seed}", f"--output={output}", *flags)
    done = programs.run("scripts/fuzz.py", *given, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(output.read_text())


def test_some_random_damage_ends_in_order(tmp_path):
    report = fuzz(tmp_path, 2 * len(QUICK), 5, f"--commands={','.join(QUICK)}")
    assert sum(count for counts in report["by_command"].values() for count in counts.values()) == 2 * len(
        QUICK
    )
    assert set(report["by_command"]) == set(QUICK) and not report["failures"]


@pytest.mark.slow
def test_much_random_damage_to_every_command_ends_in_order(tmp_path):
    report = fuzz(tmp_path, 8 * len(commands.COMMANDS), 1)
    assert set(report["by_command"]) == set(commands.COMMANDS)


def test_every_command_that_takes_files_is_there():
    """A script that is not damaged fetches from the network, or is no command."""
    left_out = "download_glue_data fuzz kill_runs kill_workers measured_page ratchet".split()
    scripts = {path.rpartition("/")[2] for path in programs.SCRIPTS}
    damaged = {command.script.rpartition("/")[2] for command in commands.COMMANDS.values()}
    assert scripts - {f"{name}.py" for name in left_out} <= damaged and "train.py" in damaged


LINE = "ask.py: --context=x: No such file or directory.\n"


NOISE = "WARNING: All log messages before absl::\n"
JUDGED = (  # exit code, what is expected, stdout, stderr -> what is wrong
    (0, "any", "done\n", "", None),
    (2, "refused", "", LINE, None),
    (2, "any", "", "12:00:00 a log line\n" + LINE, None),
    (None, "any", "", "", "hang"),
    (-11, "any", "", "", "exit code -11"),
    (1, "any", "", "x\n", "exit code 1"),
    (0, "any", "", "\n", "nothing said"),
    (1, "any", "", "Traceback (most recent call last):\n", "traceback"),
    (2, "any", "", NOISE + LINE, "noise: All log messages before absl"),
    (0, "refused", "done\n", "", "silent acceptance"),
    (0, "named", "done\n", "", "silent acceptance"),
    (0, "named", "2 damaged lines\n", "", None),
    (3, "refused", "failed: loss\n", "", None),
    (2, "any", "", LINE + "bar 3/9", "the error is not the last line"),
    (2, "any", "", "bar 3/9\r       \r" + LINE, None),
    (2, "any", "", f"bar longer than {'all ' * 20}of the error\r{LINE}", "a bar is left behind the error"),
    (2, "any", "", f"ask.py: {'x' * 300}\n", "an error of 308 characters"),
)


def test_judgement():
    for code, expected, output, errors, wrong in JUDGED:
        found = processes.judge("scripts/ask.py", code, (0, 3), expected, output, errors)
        assert found == wrong, (code, output, errors)
    assert "error lines" in processes.judge("scripts/ask.py", 2, (0, 3), "any", "", LINE + LINE)


def test_damaged_json_is_never_what_it_was(tmp_path):
    values = {"a": 1, "b": {"c": [1.5, 2.5]}, "d": "text"}
    path, checked = tmp_path / "x.json", [("a",), ("b", "c", "*"), ("d",)]
    for seed in range(12):
        path.write_text(json.dumps(values))
        what, expected = damage.damage_json(
            random.Random(seed), str(path), checked=checked, required=[("d",)], ranges={("a",): (-1,)}
        )
        assert expected == damage.REFUSED and what.startswith("JSON ")
        with contextlib.suppress(ValueError, RecursionError, ZeroDivisionError):
            assert json.loads(path.read_bytes().decode(), parse_constant=lambda name: 1 / 0) != values, seed
