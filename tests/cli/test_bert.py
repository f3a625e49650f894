"""The command `bert`: its table, shipped configurations, and completion."""

import os
import re
import sys

from official.cli import completion, configs, flags, table
from tests import programs
from tests.cli.test_refusals import ended
from tests.fixtures import ROOT


def test_help_names_every_command(monkeypatch, capsys):
    def typed(*words: str) -> tuple:
        return ended(["/somewhere/bert", *words], monkeypatch, capsys)

    for name in table.COMMANDS:
        code, out, err = typed(*name.split(), "--help")
        assert (code or 0, err) == (0, "") and f"bert {name} " in out and len(out) > 100, name
    code, out, _ = typed("--help")
    names = {each.group or each.name for each in table.COMMANDS.values()}
    assert not code and all(re.search(rf"^  {name} ", out, re.MULTILINE) for name in names)
    code, out, _ = typed("data", "--help")
    assert not code and "data inspect" in out and "Without NAME: create." in out
    code, out, err = typed("--version")
    assert (code or 0, err) == (0, "")
    assert re.fullmatch(r"bert \S+ \(TensorFlow [\d.]+, Python [\d.]+\)\n", out)


def test_a_command_is_found():
    for words, name, rest in (
        ("fill_mask", "fill-mask", []),
        ("data eval_set x", "data eval-set", ["x"]),
        ("data --input_files=x", "data create", ["--input_files=x"]),
        ("benchmark step --rounds=2", "benchmark step", ["--rounds=2"]),
    ):
        command, found = table.find(words.split())
        assert (command.name, found) == (name, rest)


def test_a_package_that_is_missing_ends_in_one_line(tmp_path):
    """Without any package, as in a Python outside of the environment; and without those of an extra."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules |= dict(onnx=None, tornado=None)\n")
    ends, bert = r".*pip install '\.\[{}\]' in the source folder\.\n", ["-m", "official.cli"]
    export = "export --checkpoint=x --export_dir=x --format=onnx".split()
    for arguments, message in (
        (["-S", ROOT / "train.py", "--plan"], r"train\.py: the package absl is not installed in .*setup_env"),
        ([*bert, *export], r"bert export: .*package onnx, " + ends.format("onnx")),
        ([*bert, "serve", "--export_dir=x"], r"bert serve: .*package tornado, " + ends.format("serve")),
    ):
        done = programs.run(*arguments, cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
        assert (done.returncode, done.stdout) == (2, ""), (arguments, done.stderr)
        assert done.stderr.count("\n") == 1 and re.match(message, done.stderr), (arguments, done.stderr)


# ---------------------------------------------------------------------------------------------------------
# Configurations


def test_a_name_is_the_flagfile_underneath_the_flags(monkeypatch, tmp_path):
    """From another folder, too: the model that a shipped flagfile names is found with it."""
    monkeypatch.chdir(tmp_path)
    given = ["--learning_rate=0.5", "--vocab_file="]
    by_name = flags.parse(["--config=quickstart", *given])
    by_path = flags.parse(["--flagfile=configs/quickstart.flags", *given])
    assert by_name == by_path and by_name.learning_rate == 0.5 and by_name.train_batch_size == 128
    assert by_name.bert_config_file == os.path.join(ROOT, "configs", "models", "bert_quickstart.json")
    monkeypatch.chdir(ROOT)
    here = flags.parse(["--config=quickstart", *given])
    assert here.bert_config_file == "configs/models/bert_quickstart.json"


def test_what_lies_in_the_current_folder_goes_first(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    assert configs.find("configs/quickstart.flags") == os.path.join(ROOT, "configs/quickstart.flags")
    (tmp_path / "configs" / "quickstart.flags").touch()
    for path in ("configs/quickstart.flags", "configs/nowhere", "nowhere", "configs/../setup.py"):
        assert configs.find(path) == path


# ---------------------------------------------------------------------------------------------------------
# Completion

COMPLETE = """
source /dev/stdin <<< "$SCRIPT"
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
_bert 2>/dev/null
echo "${COMPREPLY[*]}"
"""


def test_shells_complete(monkeypatch, capsys):
    scripts = {}
    for shell in ("bash", "zsh"):
        monkeypatch.setattr(sys, "argv", ["bert completion", shell])
        completion.main()
        scripts[shell] = capsys.readouterr().out
    for words, expected in (
        (["tr"], "train"),
        (["data", "cre"], "create"),
        (["benchmark", "step", "--sh"], "--shapes"),
        (["train", "--steps_between"], "--steps_between_eval"),
        (["train", "--config", "=", "quick"], "quickstart"),
        (["train", "--config", "quick"], "quickstart"),
        (["train", "--config", "=", "graphcore/packed/pod64"], "graphcore/packed/pod64-closed"),
        (["plan", "--optimizer_type", "=", "ada"], "adamw"),
        (["convert", "--precision", "="], "16 32"),
        (["data", "create", "--record_format"], "--record_format"),
    ):
        done = programs.call("bash", "-c", COMPLETE, "bash", "bert", *words, SCRIPT=scripts["bash"])
        assert expected in done.stdout.split("\n")[0] and len(done.stdout.split()) <= 3, (words, done.stdout)
    for command in table.COMMANDS.values():
        parser = command.parser()
        for name in parser.options() if parser else ("--config", "--learning_rate"):
            assert name in scripts["bash"] and name in scripts["zsh"], (command.name, name)
