"""--config=FILE.py: a function that returns an ml_collections ConfigDict, and --config.NAME over it."""

import os
import shutil
import sys

import pytest

from official.cli import flags
from tests.fixtures import ROOT


@pytest.fixture(autouse=True, name="folder")
def fixture_folder(tmp_path, monkeypatch):
    """The files of python_configs, in the current folder."""
    for path in (ROOT / "tests" / "cli" / "python_configs").iterdir():
        shutil.copy(path, tmp_path / path.stem)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # as PYTHONPATH does
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    return tmp_path


def read(*words: str):
    return flags.parse([*words, "--plan"])


def test_defaults_then_the_file_then_its_fields_then_flags():
    cases = [
        (["--config=mine.py"], (64, 128, 1.0, 2)),
        (["--config=mine.py:frozen"], (64, 128, 1.0, 2)),
        (["--config=mine.py:any:thing"], (64, 128, 1.0, 2)),
        # What refers to a field follows it; a number may be another kind of number.
        (["--config=mine.py:frozen", "--config.train_batch_size=32"], (32, 64, 1.0, 2)),
        (["--config=mine.py", "--config.learning-rate", "0.5"], (64, 128, 0.5, 2)),
        (["--config=mine.py", "--config.model.num_hidden_layers=3"], (64, 128, 1.0, 3)),
        (["--config.train_batch_size=32", "--config=mine.py", "--train_batch_size=16"], (16, 64, 1.0, 2)),
        # A setting that the file leaves alone, and the last of two values.
        (["--config=mine.py", "--config.warmup_steps=9", "--config.warmup_steps=3"], (64, 128, 1.0, 2)),
    ]
    for words, expected in cases:
        found = read(*words)
        shown = (found.train_batch_size, found.eval_batch_size, found.learning_rate)
        assert (*shown, found.model.num_hidden_layers) == expected, words
    assert found.warmup_steps == 3
    assert read("--config=mine.py", "--config.do_eval").do_eval


def test_fields_are_set_in_a_flagfile(folder):
    (folder / "some.flags").write_text("--config=mine.py\n--config.train_batch_size=32\n")
    assert read("--flagfile=some.flags").train_batch_size == 32


def test_the_shipped_file_is_the_shipped_flagfile(folder):
    os.makedirs("data/quickstart")
    words = "".join(f"word{number}\n" for number in range(4091))
    (folder / "data/quickstart/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + words)
    expected = flags.parse(["--config=quickstart"])
    assert flags.parse(["--config=configs/quickstart.py"]) == expected
    assert flags.parse([f"--config={ROOT}/configs/quickstart.py:1500"]) == expected
    assert flags.parse(["--config=configs/quickstart.py:300"]).num_steps_per_epoch == 300
