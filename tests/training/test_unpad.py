"""--unpad in pre-training: losses, gradients and weights of padded rows; exact where a run goes on."""

import numpy as np
import pytest
import tensorflow as tf

from official import config as config_lib
from official.data.records import encoding
from official.io.errors import ConfigError
from official.modeling import varlen
from official.planning import plan as plan_lib
from official.tasks.pretraining import PretrainingTask
from tests.conftest import write_records
from tests.data.records.test_records import LENGTH, MOST, static_mask_examples
from tests.records import short_examples
from tests.run_folders import assert_resumes
from tests.training.test_packed_rows import (
    assert_same_terms_and_gradients,
    fixture_packed_files,  # noqa: F401
    terms_and_gradients,
)
from tests.training.test_training import DROPOUT, assert_close, make_loop, replicas, run_steps, values

FILES, EACH = 4, 24


def slow(*settings):
    return [pytest.param(each, marks=pytest.mark.slow) for each in settings]


@pytest.fixture
def make_config(make_config):
    """One layer is enough here, and traced in half the time."""
    return lambda model=None, **settings: make_config({"num_hidden_layers": 1, **(model or {})}, **settings)


@pytest.fixture
def short_files(tmp_path):
    """Returns the glob of files of sequences of 5 to 16 tokens in rows of 16."""
    for number in range(FILES):
        some = short_examples(EACH, number, longest=16)
        write_records(tmp_path / f"short-{number}", encoding.encode(some, "compact"))
    return str(tmp_path / "short-*")


@pytest.fixture
def static_file(tmp_path):
    examples = static_mask_examples(FILES * EACH)
    return write_records(tmp_path / "static", encoding.encode(examples, "remask"))


# ------------------------------------------------------------------------------------------------------------
# The same as with padding


@pytest.mark.parametrize(
    "settings",
    [
        dict(kernels="plain"),
        dict(loss_averaging_basis="persequence"),
        dict(static_mask=True, max_seq_length=LENGTH, max_predictions_per_seq=MOST),
        dict(recompute="attention"),
        *slow(dict(recompute="block"), dict(model=dict(block_type="groupbert", groupbert_conv_group_size=8))),
    ],
    ids=str,
)
def test_terms_and_gradients_are_those_of_padded_rows(make_config, short_files, static_file, settings):
    files = static_file if "static_mask" in settings else short_files
    every = dict(do_eval=True, num_eval_samples=FILES * EACH)
    task = PretrainingTask(make_config(input_files=files, unpad=True, **every, **settings))
    task.find_data()
    # Of the last row nothing counts: it only fills up the batch.
    batch = next(iter(task.eval_dataset(FILES * EACH + 1)))
    model = task.build_model()
    found = []
    for unpad in (True, False):
        model.encoder.unpad = unpad
        found.append(terms_and_gradients(task, model, batch))
    assert_same_terms_and_gradients(model, *found)


def test_only_tokens_and_predictions_that_count_are_computed(make_config, short_files):
    """Logits are made of as many predicted tokens as have a weight, up to what fills them up."""
    task = PretrainingTask(make_config(input_files=short_files, unpad=True))
    task.find_data()
    batch = next(iter(task.train_dataset(64, 64, make_loop(task._config).order())))
    logits_QV, relation_B2 = task.build_model()(batch)
    predicted = int(tf.reduce_sum(batch["masked_lm_weights"]))
    assert predicted <= logits_QV.shape[0] < predicted + 8 <= 64 * 3 and relation_B2.shape == (64, 2)


def test_sizes_are_few_and_hold_what_they_are_for():
    sizes = [int(varlen.size_for(tf.constant(count), 6144)) for count in range(6145)]
    assert all(count <= size < count + 96 for count, size in enumerate(sizes[1:], 1))
    assert len(set(sizes)) == 64 and max(sizes) == 6144
    weights = tf.constant([[1.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    numbers = varlen.find_predicted(weights)
    assert numbers.numpy().tolist() == [0, 2] + 6 * [6]
    assert varlen.pick_predicted(weights, numbers).numpy().tolist() == [1.0, 0.5] + 6 * [0.0]
    assert varlen.find_predicted(0 * weights).shape == (8,)


def test_evaluations_with_and_without_padding_agree(make_config, short_files, tmp_path):
    found = []
    for unpad in (False, True):
        own = dict(unpad=unpad, model_dir=str(tmp_path / str(unpad)), do_eval=True, num_eval_samples=90)
        loop = make_loop(make_config(input_files=short_files, **own))
        (*sums, sequences), _ = loop._evaluated(loop.task.eval_dataset)
        assert sequences == 90
        found.append((sums, loop.task.example_outputs(loop.state.model, example_batch(loop.task))))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
    for name, value in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], value, rtol=1e-4, err_msg=name)


def example_batch(task):
    return next(iter(task.example_dataset(8)))


# ------------------------------------------------------------------------------------------------------------
# Steps and runs


@pytest.mark.parametrize(
    "settings",
    [
        dict(count=2, num_accumulation_steps=2),
        *slow(
            dict(count=1, num_accumulation_steps=4),
            dict(count=2, optimizer_type="adamw", kernels="plain"),
            dict(count=4, num_accumulation_steps=2, clip_scope="micro_batch", loss_normalization="local"),
        ),
    ],
    ids=str,
)
def test_replicas_and_accumulation_do_not_change_the_weights(make_config, short_files, settings):
    """Nor does padding, laid out in the same way."""
    laid_out = replicas(settings["count"])
    laid_out["num_accumulation_steps"] = settings.get("num_accumulation_steps", 1)
    others = {name: value for name, value in settings.items() if name not in ("count", *laid_out)}
    local = "clip_scope" in settings  # depends on how a step is laid out

    def trained(**own):
        loop = make_loop(make_config(input_files=short_files, learning_rate=1e-3, **others, **own))
        run_steps(loop, loop._train_iterator(), 4)
        return values(loop.state)

    assert_close(trained(unpad=True, **laid_out), trained(**(laid_out if local else {})))


def test_a_resumed_run_is_bit_identical(make_config, short_files, deterministic):
    shared = dict(model=DROPOUT, **deterministic, input_files=short_files, unpad=True, do_eval=True)
    shared |= dict(num_accumulation_steps=2, steps_between_eval=5, num_eval_samples=20)
    assert_resumes(make_config, 10, 20, **shared, checkpoint_every_steps=5)


@pytest.mark.parametrize(
    "settings", [dict(dtype="bf16"), *slow(dict(dtype="fp16", loss_scale="128"))], ids=str
)
def test_other_precisions(make_config, short_files, settings):
    def losses(**own):
        loop = make_loop(make_config(input_files=short_files, learning_rate=1e-3, **settings, **own))
        return run_steps(loop, loop._train_iterator(), 2)["sums"].numpy()

    np.testing.assert_allclose(losses(unpad=True), losses(), rtol=2e-2)


# ------------------------------------------------------------------------------------------------------------
# Settings


def test_a_plan_says_what_full_rows_cost(make_config):
    plans = [plan_lib.make_plan(make_config(unpad=unpad), PretrainingTask) for unpad in (False, True)]
    assert plans[0]["flops_per_step"] == plans[1]["flops_per_step"] > 0
    assert plans[0]["bytes"] == plans[1]["bytes"]


def test_rows_that_are_packed_already_are_refused(make_config, packed_files):
    config = make_config(input_files=packed_files, unpad=True)
    with pytest.raises(ConfigError, match="rows of --input_files hold up to 2 sequences"):
        PretrainingTask(config).find_data()
    PretrainingTask(config_lib.replaced(config, unpad=False)).find_data()
