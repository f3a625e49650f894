"""Runs on made-up data: read like files, held on the devices, or only compiled."""

import os

import numpy as np
import pytest

from official.config import read_json
from official.data.pipeline import TrainingOrder
from official.reporting.metrics import read_metrics
from official.tasks import TASKS
from official.training import run as runner
from official.training.strategy_loop import Loop
from tests.run_folders import run, untimed_metrics
from tests.training.test_training import make_loop, replicas

SMALL = dict(num_steps_per_epoch=10)


@pytest.mark.slow
def test_generated_records_go_through_the_input_pipeline(make_config):
    given = dict(SMALL, generated_data=True, use_synthetic_data=False, input_files="/not/there")
    config = make_config(**given, vocab_file="/not/there", do_eval=True, num_eval_samples=16)
    assert (config.input_files, config.vocab_file) == (None, None)
    result = run(config)
    assert (result.status, result.step, result.data["train"]["files"]) == ("finished", 10, 32)
    train, *_, last = read_metrics(config.model_dir)
    assert last["split"] == "eval" and "host_wait_share" not in train  # of Graphcore's style only
    saved = read_json(os.path.join(config.model_dir, "config.json"))
    assert saved["generated_data"] and saved["input_files"] is None  # what was asked for


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [dict(task="glue", glue_task="stsb"), dict(task="squad", max_query_length=8, doc_stride=8)]
)
def test_generated_files_of_fine_tuning(make, settings):
    config = make(**settings, generated_data=True, vocab_file=None)
    task = TASKS[config.task](config)
    files = task.find_data()
    assert len(files) == 2 and task.train_samples >= 1000
    batch = next(iter(task.train_dataset(8, 8, TrainingOrder(seed=1))))
    tokens = batch["input_ids"].numpy()
    assert tokens.shape == (8, 48) and tokens.max() < config.model.vocab_size
    assert not (tokens == 1).any()  # no word is unknown
    again = TASKS[config.task](make(**settings, generated_data=True))  # of the words of a vocabulary
    assert again.find_data() != files


def test_a_held_batch_needs_no_pipeline(make_config, monkeypatch):
    config = make_config(
        **SMALL, synthetic_input=True, use_synthetic_data=False, log_style="graphcore", learning_rate=0.05
    )
    assert config.use_synthetic_data

    def fail(*_):
        raise AssertionError("no dataset of training is asked for")

    monkeypatch.setattr(TASKS["pretrain"], "train_dataset", fail)
    run(config)
    first, last = read_metrics(config.model_dir)
    assert last["loss"] < first["loss"]  # the same batch again and again
    assert first["host_wait_share"] < 0.05


def test_a_held_batch_stays_the_same_and_is_shared_out(make_config):
    config = make_config(**SMALL, synthetic_input=True, **replicas(2))
    loop = make_loop(config)
    iterator = loop._train_iterator()
    parts = [loop.strategy.experimental_local_results(next(iterator)["input_ids"]) for _ in range(2)]
    assert [np.array_equal(*pair) for pair in zip(*parts)] == [True, True]
    assert parts[0][0].shape == (4, 16) and not np.array_equal(*parts[0])


@pytest.mark.slow
def test_how_a_run_is_told_changes_no_bit_of_it(make_config, tmp_path):
    lines = []
    for style in ("plain", "graphcore"):
        config = make_config(**SMALL, log_style=style, model_dir=str(tmp_path / style))
        run(config)
        lines.append(untimed_metrics(config.model_dir))
    for line in lines[1]:
        del line["host_wait_share"]  # which only Graphcore's has
    assert lines[0] == lines[1] and len(lines[0]) == 2


@pytest.mark.slow
def test_an_evaluation_alone_compiles_no_training(make_config, record_files):
    """The batches of a training need not even fit."""
    files = dict(input_files=record_files(), log_style="graphcore")
    run(make_config(**SMALL, **files))
    evaluates = dict(do_train=False, do_eval=True, num_eval_samples=16, num_accumulation_steps=7)
    assert run(make_config(**SMALL, **files, **evaluates)).status == "finished"


def test_what_is_only_compiled_leaves_nothing_behind(make_config, tmp_path, monkeypatch):
    monkeypatch.setattr(Loop, "run", None)
    config = make_config(**SMALL, compile_only=True, use_synthetic_data=False, do_eval=True)
    assert config.generated_data
    files = dict(SMALL, compile_only=True, use_synthetic_data=False)
    assert make_config(**files, input_files=__file__).input_files == __file__  # those that are there count
    assert make_config(**files, input_files="/not/there/*").input_files is None
    text = runner.compile_only(config, TASKS["pretrain"])
    assert "Compiled the training and evaluation step in " in text and "Memory of this process: " in text
    assert "Memory of a replica" in text and "optimizer slots" in text
    assert not os.path.exists(config.model_dir) and list(tmp_path.iterdir()) == []
