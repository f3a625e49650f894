"""The stages of a replica's step, each alone, on a model of one weight."""

import numpy as np
import pytest
import tensorflow as tf

from official.optimization import gradients as gradients_lib
from official.optimization import replica_step
from official.optimization.replica_step import Gradients, LaidOut, Shared
from official.optimization.train_state import GROWTH_STEPS, LossScale


class Linear:
    """The loss of an example is w x, so that a gradient is the sum of the inputs."""

    losses = {"line_loss": 1.0}
    metrics = ("line_loss",)
    local_epsilon = {"line_loss": 0.0}
    compared = ()

    def weights(self, batch):
        return {"line_loss": tf.reduce_sum(batch["example_weights"])}

    def terms(self, outputs, batch):
        total = tf.reduce_sum(outputs * batch["example_weights"])
        return {"line_loss": (total, self.weights(batch)["line_loss"])}


class Line:
    """y = slope * x, that notes the seeds it is called with."""

    def __init__(self):
        self.trainable_variables, self.seeds = [tf.Variable(2.0)], []

    def __call__(self, batch, dropout_seed):
        self.seeds.append(dropout_seed.numpy().tolist() if tf.executing_eagerly() else dropout_seed)
        return self.trainable_variables[0] * batch["x"]


def batch(*inputs: float) -> dict:
    return {"x": tf.constant(inputs), "example_weights": tf.ones([len(inputs)])}


LOCAL = dict(loss_normalization="local", clip_scope="micro_batch")


SUMS = dict(loss_normalization="local_sum")


@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize(
    "settings,expected",
    [
        ({}, 10 / 4),  # of the step's mean
        (dict(loss_normalization="local", clip_scope="none"), (4 / 2 + 6 / 2) / 2),  # mean of the means
        (dict(LOCAL, clip_norm=0.5), 0.5),  # each is clipped
        (dict(SUMS, clip_scope="none"), 4 / 2 + 6 / 2),
        (dict(LOCAL, clip_norm=0.5) | SUMS, 2 * 0.5),
    ],
)
def test_the_gradient_of_two_micro_batches(make_config, settings, expected, scale):
    """Each has a seed of its own; nothing is divided before the update."""
    config, line, rows = make_config(**settings), Line(), batch(1.0, 3.0, 2.0, 4.0)
    factors = replica_step.loss_factors(config, Linear(), rows, LaidOut(1, 2))
    seeds = [[7, 0, 0, 0], [7, 0, 0, 1]]
    given = Shared(factors, tf.constant(seeds), tf.constant(scale))
    tensors, terms = replica_step.sum_micro_batches(config, Linear(), line, 2, rows, given)
    gradients = replica_step.unscale(config, tensors, tf.constant(scale), 2)
    assert float(gradients.tensors[0] / gradients.divisor) == pytest.approx(expected)
    assert gradients.tensors[0] is tensors[0]
    assert terms.numpy().tolist() == [20.0, 4.0] and line.seeds == seeds


@pytest.mark.parametrize("scope,factor", [("global", 0.5 / 5 / 2), ("none", 1 / 2)])
def test_clipping_takes_the_norm_of_the_true_gradient(make_config, scope, factor):
    gradients = Gradients([tf.constant([6.0, 0.0]), tf.constant(8.0)], tf.constant(2.0))  # 3, 4: a norm of 5
    config = make_config(clip_scope=scope, **({} if scope == "none" else {"clip_norm": 0.5}))
    norm = replica_step.true_norm(config, gradients, tf.linalg.global_norm)
    ours = replica_step.clip(config, gradients, norm, 1)
    assert norm.numpy() == 5.0 and float(ours) == pytest.approx(factor)


@pytest.mark.parametrize("scope,factor", [("none", 1.0), ("global", 1.0 / 40), ("replicas", 2.0 / 40)])
def test_clipping_to_one_or_to_the_number_of_replicas(make_config, scope, factor):
    config, strategy = make_config(clip_scope=scope), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found: list = []
    gradients = Gradients([tf.constant([40.0])], 1.0)
    strategy.run(lambda: found.append(float(replica_step.clip(config, gradients, tf.constant(40.0), 2))))
    assert found and found == pytest.approx([factor] * len(found))


def test_a_norm_that_is_not_finite_is_not_clipped_away(make_config):
    gradients = Gradients([tf.constant(np.inf)], 1.0)
    norm = replica_step.true_norm(make_config(), gradients, tf.linalg.global_norm)
    assert np.isinf(norm) and np.isnan(replica_step.clip(make_config(), gradients, norm, 1))


def test_dynamic_loss_scale():
    scale = LossScale(8.0, dynamic=True)
    scale.update(tf.constant(False), 1)
    assert scale.scale.numpy() == 4.0
    for _ in range(3):
        scale.update(tf.constant(False), 1)
    assert scale.scale.numpy() == 1.0  # not below 1
    scale.good_steps.assign(GROWTH_STEPS - 2)
    scale.update(tf.constant(True), 1)
    assert (scale.scale.numpy(), scale.good_steps.numpy()) == (1.0, GROWTH_STEPS - 1)
    scale.update(tf.constant(True), 1)
    assert (scale.scale.numpy(), scale.good_steps.numpy()) == (2.0, 0)


def test_accumulate_traces_its_body_once():
    traces = []

    @tf.function
    def total(batch):
        def micro_step(index, micro_batch):
            traces.append(index)
            return tf.reduce_sum(micro_batch["x"], axis=0), tf.cast(index, tf.float32)

        return gradients_lib.accumulate(batch, 4, micro_step, (tf.zeros([3]), tf.zeros([])))

    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    value, indices = total({"x": tf.constant(x)})
    np.testing.assert_allclose(value, x.sum(0))
    assert indices == 6.0 and len(traces) == 1
