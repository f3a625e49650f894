"""Command lines of refused_commands.txt: each ends with code 2 and one line that says what is wrong."""

import importlib
import json
import os
import pathlib
import re
import shlex
import sys

import pytest

from official.cli import command_line, main
from official.io.vocabulary_files import SPECIAL_TOKENS
from tests import programs
from tests.cli.test_fine_tuning_scripts import MODELS
from tests.cli.test_python_config import fixture_folder  # noqa: F401
from tests.fixtures import ROOT, TINY

PATH = ROOT / "tests" / "cli" / "refused_commands.txt"
GROUPS = re.findall(r"^\[(.*)\]\n((?:.+\n)+)", PATH.read_text(encoding="utf-8"), re.MULTILINE)
OF_OTHERS = re.compile("DATASETS_DIR|INIT_CHECKPOINT|PARTITION|PHASE|VIPU|IPUOF|OMPI_|PMI")


@pytest.fixture(autouse=True)
def _folder(folder, monkeypatch):
    """A folder with a few files that commands name, and an environment without what scripts look for."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in filter(OF_OTHERS.search, list(os.environ)):
        monkeypatch.delenv(name)
    for name, text in (
        ("bert.json", json.dumps(TINY)),
        ("benchmarks.yml", "good_gen: {cmd: echo}"),
        ("sample.txt", "A text.\n"),
        ("vocab.txt", "\n".join([*SPECIAL_TOKENS, *(f"w{number}" for number in range(45))]) + "\n"),
    ):
        (folder / name).write_text(text)


def ended(words: list[str], monkeypatch, capsys) -> tuple:
    """Returns exit code, stdout and stderr of a command, of one in Python in this process."""
    if words[0].endswith(".sh"):
        done = programs.call(*words)
        return done.returncode, done.stdout, done.stderr
    monkeypatch.setattr(main.signals, "watch", lambda: None)
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        if os.path.basename(words[0]) == "bert":
            main.main()
        command_line.run(importlib.import_module(pathlib.Path(words[0]).stem).main)
    return end.value.code, *capsys.readouterr()


@pytest.mark.parametrize("title, cases", GROUPS, ids=[title[:60] for title, _ in GROUPS])
def test_a_command_line_is_refused_in_one_line(title, cases, tmp_path, monkeypatch, capsys):
    variables, command = re.fullmatch(r"((?:[A-Z_]+=\S+ )*)(.*)", title).groups()
    for variable in variables.split():
        monkeypatch.setenv(*variable.replace("HERE", str(tmp_path)).split("=", 1))
    before, wrong = sorted(os.listdir()), []
    for case in cases.splitlines():
        given, message = case.rsplit(" => ", 1)
        typed = command if "{}" in command else f"{command} {{}}"
        if "FILE" in command:
            (tmp_path / "FILE").write_text(given)
            before, given = ["FILE", *before], ""
        words = shlex.split(typed.replace("{}", given.encode().decode("unicode_escape")))
        found = ended(words, monkeypatch, capsys)
        message = message.replace("MODELS", ", ".join(MODELS))
        if found[:2] != (2, "") or found[2].count("\n") != 1 or message not in found[2]:
            wrong.append((given, message, found))
    assert not wrong
    assert set(os.listdir()) - {"__pycache__"} == set(before)
