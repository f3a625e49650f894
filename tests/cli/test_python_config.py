"""--config=FILE.py: a function that returns an ml_collections ConfigDict, and --config.NAME over it."""

import os
import sys

import pytest

from official.cli import flags
from official.config import ConfigError, to_json
from tests.conftest import ROOT

FILE = """import beside
from ml_collections import ConfigDict, FrozenConfigDict
def get_config(kind="plain"):
    config = ConfigDict(dict(train_batch_size=64, model_dir="run", use_synthetic_data=True))
    config.eval_batch_size = config.get_ref("train_batch_size") * 2
    config.model, config.num_steps_per_epoch = ConfigDict(dict(beside.SIZES)), 10
    config.learning_rate = undefined if kind == "undefined" else 1  # an integer for a setting that is none
    if kind == "beside":
        beside.fail()
    if kind == "ends":
        raise SystemExit(0)
    if kind == "typo":
        config.lerning_rate = 1.0
    frozen = FrozenConfigDict(config)
    return {"dict": config.to_dict(), "frozen": frozen}.get(kind, config)
"""
BESIDE = """SIZES = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2)
SIZES |= dict(intermediate_size=8, vocab_size=120)
def fail():
    raise ValueError("no such corpus")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "broken.py").write_text("import os\nx = (\n")
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "needs.py").write_text("def get_config(size):\n    return size\n")
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


def test_fields_of_other_configurations(folder):
    (folder / "ours.json").write_text(to_json(read("--config=mine.py")))
    found = read("--config=ours.json", "--config.train_batch_size=32", "--config.model.hidden_size=4")
    assert (found.train_batch_size, found.eval_batch_size, found.model.hidden_size) == (32, 128, 4)
    (folder / "some.flags").write_text(
        "--config=mine.py\n--config.train_batch_size=32\n--eval_batch_size=8\n"
    )
    assert read("--flagfile=some.flags").train_batch_size == 32


def test_what_is_wrong_is_one_line_with_the_line_of_the_file():
    cases = [
        (["--config=mine.py:undefined"], "--config=mine.py, line 7: NameError: name 'undefined' is not"),
        (["--config=mine.py:beside"], "mine.py, line 9 (in beside.py, line 4): ValueError: no such corpus."),
        (["--config=mine.py:ends"], "mine.py, line 11: SystemExit: 0."),
        (["--config=broken.py"], "--config=broken.py, line 2: SyntaxError: '(' was never closed."),
        (["--config=empty.py"], "--config=empty.py has no function get_config"),
        (["--config=needs.py"], "--config=needs.py: TypeError: get_config() missing 1 required"),
        (
            ["--config=needs.py:7"],
            "needs.py: get_config returns a str, expected an ml_collections.ConfigDict.",
        ),
        (["--config=mine.py:dict"], "get_config returns a dict, expected an ml_collections.ConfigDict."),
        (["--config=nowhere.py"], "--config=nowhere.py: No such file"),
        (["--config=mine.py:typo"], "unknown setting 'lerning_rate' (did you mean learning_rate?)"),
        (["--config=mine.py", "--config.lerning_rate=1"], "--config.lerning_rate (did you mean --config.lea"),
        (["--config=mine.py", "--config.learning_rate=x"], "--config.learning_rate=x, expected a number."),
        (["--config=mine.py", "--config.learning_rate"], "Missing value for flag --config.learning_rate."),
        (["--config=mine.py", "--config.model.hiden_size=4"], "'hiden_size' (did you mean hidden_size?)"),
        (["--config.learning_rate=1"], "and there is no --config. Give --learning_rate."),
        (["--config=graphcore/tf1/squad_base", "--config.seed=1"], "is another program's. Give --seed."),
    ]
    for words, message in cases:
        with pytest.raises(ConfigError) as error:
            read(*words)
        assert message in str(error.value) and "\n" not in str(error.value), (words, str(error.value))


def test_the_shipped_file_is_the_shipped_flagfile(folder):
    os.makedirs("data/quickstart")
    words = "".join(f"word{number}\n" for number in range(4091))
    (folder / "data/quickstart/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + words)
    expected = flags.parse(["--config=quickstart"])
    assert flags.parse(["--config=configs/quickstart.py"]) == expected
    assert flags.parse([f"--config={ROOT}/configs/quickstart.py:1500"]) == expected
    assert flags.parse(["--config=configs/quickstart.py:300"]).num_steps_per_epoch == 300
