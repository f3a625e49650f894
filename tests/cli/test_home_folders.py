"""~ in paths that no shell has expanded: flags, flagfiles, configurations, and the paths of the library."""

import json
import os
import pathlib
import pwd

import pytest

from official.cli import command_line, flags
from official.inference import source
from official.io import files
from official.io.errors import ConfigError
from tests.fixtures import TINY
from tests.refusals import assert_refused


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home folder, beside the working directory."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


def test_a_path_begins_with_the_home_folder(home):
    root = pwd.getpwuid(0)
    expected = {
        "~/x": f"{home}/x",
        "~": str(home),
        f"~{root.pw_name}/x": f"{root.pw_dir}/x",
        "a,~/b,~/c/*.txt, ~/d": f"a,{home}/b,{home}/c/*.txt, {home}/d",
    }
    same = "gs://bucket/~/x s3://~/x ./~ a/~/b a~/b /~ ~no-such-user/x x".split()
    expected |= {text: text for text in [*same, ""]}
    assert {text: files.expanded(text) for text in expected} == expected
    assert files.expanded(pathlib.Path("~", "x")) == f"{home}/x"


def test_settings_of_flags_files_and_configurations(home):
    (home / "vocab.txt").write_text("".join(f"{number}\n" for number in range(TINY["vocab_size"])))
    (home / "bert.json").write_text(json.dumps(TINY))
    (home / "run.json").write_text(json.dumps({"vocab_file": "~/vocab.txt", "init_checkpoint": "gs://b/~/x"}))
    (home / "train.flags").write_text("--bert_config_file=~/bert.json\n--mllog_file=~/log.txt\n")
    words = "--config=~/run.json --flagfile=~/train.flags --model_dir=~/run --input_files=~/a/*,b,~/c"
    words += " --max_seq_length=16 --max_predictions_per_seq=3 --num_steps_per_epoch=4"
    config = flags.parse(words.split())
    assert config.vocab_file == f"{home}/vocab.txt" and config.init_checkpoint == "gs://b/~/x"
    assert config.bert_config_file == f"{home}/bert.json" and config.mllog_file == f"{home}/log.txt"
    assert config.model_dir == f"{home}/run"
    assert config.input_files == f"{home}/a/*,b,{home}/c" and config.model.hidden_size == TINY["hidden_size"]
    assert os.listdir() == []


def test_variables_that_no_shell_has_expanded_are_refused(home):
    (home / "train.flags").write_text("--model_dir=$HOME/run\n")
    cases = [
        ("--flagfile=~/train.flags", "model_dir=$HOME/run: the environment variable HOME is expanded"),
        ("--vocab_file=${HOME}/a.txt", "HOME is expanded only by shells. Give --vocab_file=PATH"),
        ("--model_dir=$NOT_SET/run", "NOT_SET is not set. Set it, or give --model_dir=PATH"),
    ]
    assert_refused(lambda word: flags.parse([word]), cases)


class Things(command_line.Flags):
    """Does a thing.

    Attributes:
      checkpoint: A path.
      also: More paths.
      files: Still more.
    """

    POSITIONAL = ("files",)
    checkpoint: str | None = None
    also: list[str] = []
    files: list[str] = []


def test_flags_and_words_of_other_commands(home):
    found = Things.parse(["--checkpoint=~/m", "--also=~/a", "--also=b", "~/f", "gs://~/g", "--", "--x"])
    assert (found.checkpoint, found.also) == (f"{home}/m", [f"{home}/a", "b"])
    assert found.files == [f"{home}/f", "gs://~/g", "--x"]
    with pytest.raises(ConfigError, match=f"{home}/none"):
        source.find("~/none")


def test_a_user_without_a_home_is_told_so(home, monkeypatch):
    def nobody(_):
        raise KeyError("no such user")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for value in (None, "", "relative", "/no/such/folder"):
        monkeypatch.setenv("HOME", value) if value is not None else monkeypatch.delenv("HOME")
        with pytest.raises(ConfigError, match="~/run: this user has no home folder for ~"):
            flags.parse(["--model_dir=~/run", "--num_steps_per_epoch=4"])
