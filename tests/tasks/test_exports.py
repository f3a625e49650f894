"""A run exports its best weights when it has ended, and says so."""

import dataclasses
import json

import pytest
import tensorflow as tf

from official import config as config_lib
from official import inference
from official.cli import train
from official.io.errors import ConfigError
from tests.conftest import TINY
from tests.tasks.test_fine_tuning import run


def test_a_run_is_exported_as_it_predicts(squad, tmp_path):
    config = squad(impossible=True, num_train_epochs=2, do_predict=True, export_dir=str(tmp_path / "1"))
    result = run(config)
    train._export(result, config)
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    train._check_export(config)  # the same command again
    with pytest.raises(ConfigError, match="is there, and nothing is replaced"):
        train._check_export(config_lib.replaced(config, overwrite=True))
    assert written["export"] == str(tmp_path / "1") and written["f1"] == result.scores["f1"]
    predicted = json.loads((tmp_path / "run" / "predictions.json").read_text())
    paragraphs = json.loads((tmp_path / "dev.json").read_text())["data"][0]["paragraphs"]
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    found = loaded.answer(
        tf.constant([paragraph["qas"][0]["question"] for paragraph in paragraphs]),
        tf.constant([paragraph["context"] for paragraph in paragraphs]),
    )
    texts = [text.decode() for text in found["text"].numpy()]
    assert texts == [predicted[paragraph["qas"][0]["id"]] for paragraph in paragraphs]
    again = inference.load(str(tmp_path / "1"))
    assert again.source.run.max_seq_length == 48 and again.source.run.version_2_with_negative
    assert [again.answer(p["qas"][0]["question"], p["context"]).text for p in paragraphs] == texts


def test_a_run_that_was_cut_is_not_exported(squad, tmp_path):
    config = squad(num_train_epochs=1, export_dir=str(tmp_path / "1"))
    result = dataclasses.replace(run(config), status="interrupted")
    train._export(result, config)
    assert not (tmp_path / "1").exists()


def test_what_cannot_be_exported_is_said_before_the_run(squad, make_config, vocab_file, tmp_path, capsys):
    with pytest.raises(ConfigError, match="export_dir excludes num_runs"):
        squad(num_runs=2, export_dir="x")
    with pytest.raises(ConfigError, match="export_dir needs the vocabulary"):
        make_config(export_dir="x")
    (tmp_path / "1").mkdir()
    (tmp_path / "bert.json").write_text(json.dumps(TINY))
    flags = {
        "bert_config_file": tmp_path / "bert.json",
        "vocab_file": vocab_file,
        "use_synthetic_data": "true",
    }
    flags |= {"model_dir": tmp_path / "run", "export_dir": tmp_path / "1", "max_seq_length": 32}
    assert train.main([f"--{name}={value}" for name, value in flags.items()]) == 2
    assert f"--export_dir={tmp_path}/1 is there, and nothing is replaced" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
