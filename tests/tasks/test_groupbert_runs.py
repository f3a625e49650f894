"""GroupBERT end to end: pre-trained, fine-tuned on SQuAD and RTE from that, packed too, and asked."""

import pytest

from official.data.glue import tasks as glue_tasks
from official.inference import load
from tests.conftest import TINY
from tests.data.glue.test_glue_data import write_split
from tests.run_folders import run

MODEL = {
    **TINY,
    "num_hidden_layers": 1,
    "max_position_embeddings": 48,
    "block_type": "groupbert",
    "groupbert_conv_group_size": 8,
    "layer_norm_eps": 1e-3,
}


@pytest.fixture(name="pretrained")
def fixture_pretrained(make_config, tmp_path):
    """Returns the folder of a short pre-training, of packed rows too."""
    folder = str(tmp_path / "pretrained")
    settings = dict(model=MODEL, model_dir=folder, eval_batch_size=8, num_eval_samples=8)
    result = run(make_config(**settings, num_steps_per_epoch=10))
    assert result.status == "finished" and result.step == 10
    assert "convolution" in open(f"{folder}/report.html").read()
    return folder


@pytest.mark.slow
def test_squad_is_learned_from_a_pretrained_groupbert(squad, pretrained, tmp_path):
    config = squad(
        model=MODEL,
        pack=True,
        init_checkpoint=pretrained,
        num_train_epochs=12,
        steps_per_loop=48,
        do_predict=True,
        learning_rate=2e-3,
    )
    result = run(config)
    assert result.status == "finished" and 0.5 < result.scores["f1"] <= 1  # by chance: 0.33
    assert (tmp_path / "run" / "predictions.json").exists()
    answer = load(str(tmp_path / "run")).answer("what is the box ?", "the red box . the blue sky")
    assert isinstance(answer.text, str)


@pytest.mark.slow
def test_rte_runs_from_a_pretrained_groupbert_to_predictions(make, pretrained, tmp_path):
    task = glue_tasks.find_task("rte")
    for split in ("train", "dev", "test"):
        write_split(tmp_path / "glue", task, split)
    settings = dict(glue_task="rte", data_dir=str(tmp_path / "glue"), num_train_epochs=2, do_predict=True)
    result = run(make("glue", model=MODEL, init_checkpoint=pretrained, **settings))
    assert result.status == "finished" and 0 <= result.scores["accuracy"] <= 1
    assert (tmp_path / "run" / "RTE.tsv").read_text().startswith("index\tprediction\n")
    assert load(str(tmp_path / "run")).classify("the red ball", "the ball is red").label


def test_packed_synthetic_rows_train(make_config):
    result = run(make_config(model=MODEL, pack_on_the_fly=True, max_sequences_per_pack=3, do_eval=False))
    assert result.status == "finished" and result.step == 20
