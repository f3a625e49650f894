"""Micro batches for the replicas of IPUs: each says what it weighs in its step."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official.data.pipeline import TrainingOrder
from official.distribution.batch_plan import make_batch_plan
from official.graphcore import program, run
from official.graphcore.devices import Instances
from official.modeling import objectives

pytestmark = pytest.mark.nightly

REPLICAS, TURNS, ROWS = 2, 3, 12


def step_of(config):
    """Returns the rows of a step, no two of the same weights; its micro batches, of loss scale 8; the plan;
    and the dataset of the micro batches."""
    plan = make_batch_plan(config, REPLICAS)
    task = run.RecordsTask(config)
    task.find_data()
    rows = task.train_dataset(ROWS, ROWS, TrainingOrder(1)).map(_ragged)
    parts = program.micro_batches(config, task, rows, 4, plan, lambda step: tf.constant(8.0))
    return next(iter(rows)), next(iter(parts)), plan, parts


def _ragged(batch):
    weights = tf.cast(tf.range(tf.size(batch["masked_lm_weights"])) % 5 > 1, tf.float32)
    return {**batch, "masked_lm_weights": tf.reshape(weights, batch["masked_lm_weights"].shape)}


@pytest.fixture(name="config")
def fixture_config(make_config):
    pipeline = dict(pipeline_stages="2", device_mapping="0,0", pipeline_schedule="sequential")
    sizes = dict(replicas=REPLICAS, num_accumulation_steps=TURNS, train_batch_size=ROWS)
    return make_config(distribution_strategy="ipu", **pipeline, **sizes)


def test_each_micro_batch_says_what_it_weighs_in_its_step(config):
    rows, parts, _, _ = step_of(config)
    found = parts["input_ids"].numpy().reshape(TURNS, REPLICAS, 2, -1)
    expected = rows["input_ids"].numpy().reshape(REPLICAS, TURNS, 2, -1).swapaxes(0, 1)
    np.testing.assert_array_equal(found, expected)  # a replica has rows that follow each other
    # (seed, step, replica, micro batch), as a replica of another back end draws them.
    seeds = parts["dropout_seed"].numpy()[:3].tolist()
    assert seeds == [[config.seed, 4, 0, 0], [config.seed, 4, 1, 0], [config.seed, 4, 0, 1]]
    losses = objectives.PRETRAINING_LOSSES["mlm_nsp"]
    weights = objectives.pretraining_weights(rows, "pertoken", losses)
    factors = [8.0 / float(weights[name]) for name in losses]
    np.testing.assert_allclose(parts["loss_factors"], [factors] * REPLICAS * TURNS, rtol=1e-6)
    _, parts, _, _ = step_of(dataclasses.replace(config, loss_normalization="local", scale_loss=True))
    for number in range(REPLICAS * TURNS):
        one = {name: value[number] for name, value in parts.items()}
        weights = objectives.pretraining_weights(one, "pertoken", losses)
        factors = [4.0 / (float(weights["mlm_loss"]) + 1e-5), 4.0 / float(weights["nsp_loss"])]
        np.testing.assert_allclose(one["loss_factors"], factors, rtol=1e-6)


def test_instances_share_the_micro_batches_and_count_the_whole_step(config):
    rows, parts, plan, dataset = step_of(config)
    names = ("input_ids", "step_counts")
    taken = []
    for index in range(2):
        own = program.of_instance(dataset, plan, Instances(REPLICAS, 1, index, 2, 2), names)
        taken.append(list(own.take(TURNS).as_numpy_iterator()))
        assert sum(counts for _, counts in taken[-1]) == pytest.approx(
            [ROWS, rows["input_mask"].numpy().sum()]
        )
    found = np.array([[ids for ids, _ in of_instance] for of_instance in taken])
    expected = parts["input_ids"].numpy().reshape(TURNS, REPLICAS, 2, -1).swapaxes(0, 1)
    np.testing.assert_array_equal(found, expected)
