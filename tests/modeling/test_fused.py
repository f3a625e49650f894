"""The fused and the native blocks against the plain ones: outputs, gradients, dropout's masks, types, lengths
and places."""

import numpy as np
import pytest
import tensorflow as tf

from official.config import BertConfig
from official.modeling import layers as dropout_lib
from official.modeling.models import BertPretrainer
from official.modeling.operations import choose, plain
from tests.conftest import TINY
from tests.modeling.models import (
    RATES,
    assert_near,
    assert_same,
    copy_weights,
    features,
    outputs_and_gradients,
    randomised,
)

SEEDS = {"no dropout": None, "dropout": [3, 4]}
SIZES = {**TINY, **RATES}
SETS = pytest.mark.parametrize("kind", ["fused", "native"])


def pair(kind="fused", shared=False, **changes):
    """Returns the same model with blocks of a set and with plain ones."""
    sizes = BertConfig(**{**SIZES, **changes})
    plain_model = randomised(BertPretrainer(sizes))
    return copy_weights(plain_model, BertPretrainer(sizes, kind, shared)), plain_model


@SETS
@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
@pytest.mark.parametrize("shared,activation", [(False, "gelu_tanh"), (True, "gelu_erf")])
def test_fused_model_is_the_plain_one(shared, activation, seed, kind):
    seed = None if seed is None else tf.constant(seed)
    models = pair(kind, shared, hidden_act=activation)
    ours, expected = (outputs_and_gradients(model, features(), seed) for model in models)
    assert_same(ours, expected, 1e-5, 1e-4)


@SETS
@pytest.mark.parametrize("policy,tolerance", [("mixed_bfloat16", 0.1), ("mixed_float16", 0.02)])
@pytest.mark.parametrize("shared", [False, True])
def test_fused_model_in_mixed_precision(shared, policy, tolerance, kind):
    model, seed = pair()[1], tf.constant([3, 4])
    reference = outputs_and_gradients(model, features(), seed)
    tf.keras.mixed_precision.set_global_policy(policy)
    ours = copy_weights(model, pair(kind, shared)[0])
    assert_near(outputs_and_gradients(ours, features(), seed), reference, tolerance)


def test_fused_model_inside_a_compiled_step():
    """--enable_xla, GPUs and TPUs compile the whole step; the masks must stay the same there."""
    (ours, expected), seed = pair(), tf.constant([3, 4])
    compiled = outputs_and_gradients(ours, features(), seed, jit_compile=True)
    assert_same(compiled, outputs_and_gradients(expected, features(), seed), 1e-5, 1e-4)


@SETS
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_cross_entropy_is_the_plain_one(scale, kind):
    generator = np.random.default_rng(0)
    logits = tf.constant(scale * generator.normal(size=[3, 4, 50]), tf.float32)
    labels = tf.constant(generator.integers(0, 50, [3, 4]), tf.int32)
    weights = tf.constant(generator.random([3, 4]), tf.float32)
    found = {}
    for name, ops in (("fused", choose(kind)), ("plain", plain)):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            values = ops.cross_entropy(logits, labels)
            objective = tf.reduce_sum(values * weights)
        found[name] = values, tape.gradient(objective, logits)
    np.testing.assert_allclose(found["fused"][0], found["plain"][0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["fused"][1], found["plain"][1], atol=1e-6)


@SETS
def test_lengths_share_one_trace(kind):
    (model, other), seed = pair(kind), tf.constant([1, 2])
    names = ("input_ids", "input_mask", "segment_ids")
    signature = [tf.TensorSpec([None, None], tf.int32)] * len(names)
    encode = tf.function(
        lambda *batch: model.encoder(*batch, dropout_seed=seed)[0], input_signature=signature
    )
    for length in (8, 16, 12):
        batch = [tf.constant(features(length=length)[name]) for name in names]
        np.testing.assert_allclose(encode(*batch), other.encoder(*batch, dropout_seed=seed)[0], atol=1e-5)


@pytest.mark.parametrize("rate", [0.1, 0.5, 1e-4])
def test_masks_are_fair_coins(rate):
    seeds = [tf.constant([seed, 7]) for seed in range(4)]
    x = tf.zeros([500, 20, 100])
    masks = np.stack([dropout_lib.keep_mask(x, rate, seed).numpy().reshape(-1) for seed in seeds])
    count = masks.shape[1]
    deviation = (rate * (1 - rate) / count) ** 0.5
    assert (abs((~masks).mean(axis=1) - rate) < 5 * deviation).all()
    assert abs((~masks).mean(axis=0).mean() - rate) < 5 * deviation
    dropped = (~masks - rate) / (rate * (1 - rate)) ** 0.5  # of mean 0 and variance 1
    apart = [1, 2, 3, 16, 100, 2000]  # neighbours, columns, rows and pages
    assert all(abs((dropped[0, gap:] * dropped[0, :-gap]).mean()) < 5 / count**0.5 for gap in apart)
    assert all(abs((dropped[0] * dropped[other]).mean()) < 5 / count**0.5 for other in (1, 2, 3))


@pytest.mark.parametrize("other", [[5, 4], [6, 3], [-5, 3], [5, 123456789]])
def test_masks_of_near_seeds_have_nothing_in_common(other):
    first, second = (
        dropout_lib.keep_mask(tf.zeros([2**16]), 0.5, tf.constant(seed)).numpy() for seed in ([5, 3], other)
    )
    if other[1] == 3:  # the same stride: found again elsewhere, which 2^32 possible strides make rare
        first, second = first[: 2**15], second[2**15 :]
    for shift in range(-3, 4):
        assert abs((first == np.roll(second, shift)).mean() - 0.5) < 5 * 0.5 / first.size**0.5
