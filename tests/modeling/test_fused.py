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
from tests.modeling.test_modeling import features, randomised

SEEDS = {"no dropout": None, "dropout": [3, 4]}
SETS = pytest.mark.parametrize("kind", [True, "native"], ids=["fused", "native"])


def pair(shared=False, kind=True, **changes):
    """Returns the same model with blocks of a set and with plain ones."""
    sizes = BertConfig(**{**TINY, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, **changes})
    ours, expected = BertPretrainer(sizes, fused=kind, shared=shared), randomised(BertPretrainer(sizes))
    for variable, other in zip(ours.variables, expected.variables):
        variable.assign(other)
    return ours, expected


def outputs_and_gradients(model, batch, seed, compiled=False):
    @tf.function(jit_compile=compiled)
    def run(seed):
        with tf.GradientTape() as tape:
            masked, relation = model(batch, dropout_seed=seed)
            objective = tf.reduce_sum(tf.sin(masked)) + tf.reduce_sum(relation**2)
        return [masked, relation], tape.gradient(objective, model.trainable_variables)

    outputs, gradients = run(
        None if seed is None else tf.constant(seed)
    )  # an argument: nothing of it is known before it runs
    return [output.numpy() for output in outputs], {
        variable.name: tf.convert_to_tensor(gradient).numpy()
        for variable, gradient in zip(model.trainable_variables, gradients)
    }


@SETS
@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
@pytest.mark.parametrize("shared,activation", [(False, "gelu_tanh"), (True, "gelu_erf")])
def test_fused_model_is_the_plain_one(shared, activation, seed, kind):
    ours, expected = (
        outputs_and_gradients(model, features(), seed) for model in pair(shared, kind, hidden_act=activation)
    )
    for output, other in zip(ours[0], expected[0]):
        np.testing.assert_allclose(output, other, atol=1e-5, rtol=1e-5)
    for name, gradient in expected[1].items():
        # The true gradient of a key's bias is zero: rounding is all that is there.
        scale = 1.0 if "key/bias" in name else np.abs(gradient).max()
        np.testing.assert_allclose(ours[1][name], gradient, atol=1e-4 * scale, rtol=0, err_msg=name)


@SETS
@pytest.mark.parametrize("policy,tolerance", [("mixed_bfloat16", 0.1), ("mixed_float16", 0.02)])
@pytest.mark.parametrize("shared", [False, True])
def test_fused_model_in_mixed_precision(shared, policy, tolerance, kind):
    model = pair()[1]
    reference = outputs_and_gradients(model, features(), [3, 4])
    tf.keras.mixed_precision.set_global_policy(policy)
    ours = pair(shared, kind)[0]
    for variable, other in zip(ours.variables, model.variables):
        variable.assign(other)
    found = outputs_and_gradients(ours, features(), [3, 4])
    expected = np.concatenate([reference[1][name].ravel() for name in found[1]])
    difference = np.concatenate([gradient.ravel() for gradient in found[1].values()]) - expected
    assert all(gradient.dtype == np.float32 for gradient in found[1].values())
    assert 0 < np.linalg.norm(difference) < tolerance * np.linalg.norm(expected)
    assert 0 < np.abs(found[0][0] - reference[0][0]).max() < tolerance * np.abs(reference[0][0]).max()


def test_fused_model_inside_a_compiled_step():
    """--enable_xla, GPUs and TPUs compile the whole step; the masks must stay the same there."""
    ours, expected = pair()
    compiled, plainly = (
        outputs_and_gradients(ours, features(), [3, 4], compiled=True),
        outputs_and_gradients(expected, features(), [3, 4]),
    )
    np.testing.assert_allclose(compiled[0][0], plainly[0][0], atol=1e-5, rtol=1e-5)
    for name, gradient in plainly[1].items():
        scale = 1.0 if "key/bias" in name else np.abs(gradient).max()
        np.testing.assert_allclose(compiled[1][name], gradient, atol=1e-4 * scale, rtol=0, err_msg=name)


@SETS
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_cross_entropy_is_the_plain_one(scale, kind):
    generator = np.random.default_rng(0)
    logits = tf.constant(scale * generator.normal(size=[3, 4, 50]), tf.float32)
    labels, weights = (
        tf.constant(generator.integers(0, 50, [3, 4]), tf.int32),
        tf.constant(generator.random([3, 4]), tf.float32),
    )
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
    model, other = pair(kind=kind)

    @tf.function(
        input_signature=[
            {
                name: tf.TensorSpec([None, None], tf.int32)
                for name in ("input_ids", "input_mask", "segment_ids")
            }
        ]
    )
    def encode(batch):
        return model.encoder(
            **{f"{name}_BL": value for name, value in batch.items()}, dropout_seed=tf.constant([1, 2])
        )[0]

    for length in (8, 16, 12):
        batch = {
            name: tf.constant(features(length=length)[name])
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        expected = other.encoder(*batch.values(), dropout_seed=tf.constant([1, 2]))[0]
        np.testing.assert_allclose(encode(batch), expected, atol=1e-5)


@pytest.mark.parametrize("rate", [0.1, 0.5, 1e-4])
def test_masks_are_fair_coins(rate):
    seeds = [tf.constant([seed, 7]) for seed in range(4)]
    masks = np.stack(
        [dropout_lib.keep_mask(tf.zeros([500, 20, 100]), rate, seed).numpy().reshape(-1) for seed in seeds]
    )
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


@SETS
def test_attention_does_not_see_padding(kind):
    ops = choose(kind)
    generator = np.random.default_rng(0)
    query, key, value = (tf.constant(generator.normal(size=[2, 3, 5, 4]), tf.float32) for _ in range(3))
    scores = tf.constant([[0, 0, 0, -10000, -10000], [0, 0, 0, 0, 0]], tf.float32)[:, None, None, :]
    found = ops.attend(query, key, value, scores, 0.0, None)
    np.testing.assert_allclose(found, plain.attend(query, key, value, scores, 0.0, None), atol=1e-6)
    other = tf.concat([value[:, :, :3], value[:, :, 3:] + 100.0], axis=2)
    np.testing.assert_allclose(found[0], ops.attend(query, key, other, scores, 0.0, None)[0], atol=1e-6)
