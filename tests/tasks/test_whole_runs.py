"""GroupBERT end to end: pre-trained, fine-tuned on packed rows of SQuAD from that, and asked; runs that
export their best weights when they have ended."""

import json

import pytest
import tensorflow as tf

from official import config as config_lib
from official import inference
from official.cli import train
from official.inference import load
from official.io.errors import ConfigError
from official.reporting.result import TrainResult
from tests.fixtures import TINY
from tests.run_folders import run

MODEL = dict(TINY, num_hidden_layers=1, max_position_embeddings=48, layer_norm_eps=1e-3)
MODEL |= dict(block_type="groupbert", groupbert_conv_group_size=8)


@pytest.mark.slow
def test_squad_is_learned_from_a_pretrained_groupbert(make_config, squad, tmp_path):
    pretrained = str(tmp_path / "pretrained")
    settings = dict(model=MODEL, model_dir=pretrained, num_eval_samples=8)
    result = run(make_config(**settings, num_steps_per_epoch=10))
    assert result.status == "finished" and result.step == 10
    assert "convolution" in (tmp_path / "pretrained" / "report.html").read_text()
    settings = dict(num_train_epochs=12, steps_per_loop=48, do_predict=True, learning_rate=2e-3)
    config = squad(model=MODEL, pack=True, init_checkpoint=pretrained, **settings)
    result = run(config)
    assert result.status == "finished" and 0.5 < result.scores["f1"] <= 1  # by chance: 0.33
    assert (tmp_path / "run" / "predictions.json").exists()
    answer = load(str(tmp_path / "run")).answer("what is the box ?", "the red box . the blue sky")
    assert isinstance(answer.text, str)


# ------------------------------------------------------------------------------------------------------------
# Exports


@pytest.mark.slow
def test_a_run_is_exported_as_it_predicts(squad, tmp_path):
    config = squad(impossible=True, num_train_epochs=2, do_predict=True, export_dir=str(tmp_path / "1"))
    result = run(config)
    train._export(result, config)
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    train._check_export(config)  # the same command again
    with pytest.raises(ConfigError, match="exists, and exports never overwrite"):
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
    result = TrainResult("interrupted", "", 8, 64)
    train._export(result, squad(export_dir=str(tmp_path / "1")))  # looks for no weights, or would find none


def test_what_cannot_be_exported_is_said_before_the_run(vocab_file, tmp_path, capsys):
    (tmp_path / "1").mkdir()
    (tmp_path / "bert.json").write_text(json.dumps(TINY))
    flags = dict(bert_config_file=tmp_path / "bert.json", vocab_file=vocab_file, use_synthetic_data="true")
    flags |= dict(model_dir=tmp_path / "run", export_dir=tmp_path / "1", max_seq_length=32)
    assert train.main([f"--{name}={value}" for name, value in flags.items()]) == 2
    assert f"--export_dir={tmp_path}/1 exists, and exports never overwrite" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
