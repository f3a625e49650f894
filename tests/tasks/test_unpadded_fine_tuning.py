"""--unpad in fine-tuning: losses, gradients, outputs and predictions as of padded rows."""

import shutil

import pytest
import tensorflow as tf

from official.data.pipeline import TrainingOrder
from official.distribution.strategy import with_length_buckets
from official.tasks import TASKS
from tests.run_folders import run
from tests.tasks.test_packed_fine_tuning import (
    MIRRORED,
    TRAIN,
    ZERO,
    assert_same_gradients,
    assert_same_outputs,
    first_losses,
    fixture_glue,  # noqa: F401
    fixture_squad,  # noqa: F401
    loss_and_gradients,
    outputs_of,
    whole_set,
)


@pytest.mark.parametrize(
    "name,settings",
    [
        ("squad", dict(length_buckets="never")),
        ("rte", dict(length_buckets="always")),
        ("stsb", dict(kernels="plain")),
    ],
)
def test_losses_gradients_and_outputs_are_those_of_padded_rows(squad, glue, name, settings):
    make = squad if name == "squad" else lambda **own: glue(name, **own)
    task, batch = whole_set(make(unpad=True, **settings), TRAIN)
    model = task.build_model()
    model.encoder.unpad = False
    expected, gradients_padded = loss_and_gradients(task, model, batch)
    outputs = outputs_of(task, model, batch)
    model.encoder.unpad = True
    found, gradients = loss_and_gradients(task, model, batch)
    assert found == pytest.approx(expected, rel=1e-5)
    assert_same_gradients(model, gradients, gradients_padded, ZERO[name == "squad"])
    assert_same_outputs(outputs_of(task, model, batch), outputs)


@pytest.mark.parametrize("name", ["squad", pytest.param("rte", marks=pytest.mark.slow)])
def test_predictions_are_those_of_padded_rows(squad, glue, tmp_path, name):
    """The last batch is filled up."""
    make = squad if name == "squad" else glue
    run(make(unpad=True))
    settings = dict(do_train=False, do_predict=True)
    unpadded = run(make(unpad=True, **settings))
    shutil.copytree(tmp_path / "run", tmp_path / "padded")
    padded = run(make(model_dir="padded", **settings))
    assert padded.scores == unpadded.scores
    file = "predictions.json" if name == "squad" else "RTE.tsv"
    assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "padded" / file).read_bytes()


@pytest.mark.parametrize("name", ["squad", pytest.param("rte", marks=pytest.mark.slow)])
def test_training_does_not_depend_on_padding_replicas_and_accumulation(squad, glue, tmp_path, name):
    make = squad if name == "squad" else glue
    settings = dict(learning_rate=1e-4, steps_per_loop=1, stop_steps=3, do_eval=False, length_buckets="never")
    run(make(model_dir="padded", **settings))
    run(make(model_dir="two", unpad=True, num_accumulation_steps=2, **MIRRORED, **settings))
    expected = first_losses(tmp_path / "padded")
    assert len(expected) == 3
    assert first_losses(tmp_path / "two") == pytest.approx(expected, rel=1e-5)


def test_rows_that_fill_up_a_batch_are_one_token(squad):
    task = TASKS["squad"](squad(unpad=True))
    task.find_data()
    batch = next(iter(task.train_dataset(64, 64, TrainingOrder(0))))
    outputs = task.build_model()(batch)[0].numpy()
    is_filling = batch["rows"].numpy() < 0
    assert is_filling.sum() == 64 - TRAIN and not outputs[is_filling, 1:].any()
    assert (outputs[~is_filling] != 0).sum() == batch["input_mask"].numpy()[~is_filling].sum()


@pytest.mark.parametrize("settings,expected", [({}, "never"), (dict(length_buckets="always"), "always")])
def test_batches_are_of_all_lengths_unless_others_are_asked_for(squad, settings, expected):
    config = squad(unpad=True, **settings)
    assert with_length_buckets(config, tf.distribute.OneDeviceStrategy("/cpu:0")).length_buckets == expected
