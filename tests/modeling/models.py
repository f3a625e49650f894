"""Batches and models of the tests here, and how two models are compared."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import TINY
from tests.numpy_bert import NumpyBert

RATES = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
LENGTHS, ROW = (6, 9, 4), 24  # of three sequences in one row, and of that row
STARTS = np.cumsum((0, *LENGTHS[:-1]))
OPERATIONS = pytest.mark.parametrize("kernels", ["plain", "fused"])


def features(batch=3, length=16, predictions=3, seed=0) -> dict:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(4, length + 1, batch)
    return {
        "input_ids": generator.integers(0, TINY["vocab_size"], (batch, length)).astype(np.int32),
        "input_mask": (np.arange(length) < lengths[:, None]).astype(np.int32),
        "segment_ids": generator.integers(0, 2, (batch, length)).astype(np.int32),
        "masked_lm_positions": generator.integers(0, 4, (batch, predictions)).astype(np.int32),
        "masked_lm_ids": generator.integers(0, TINY["vocab_size"], (batch, predictions)).astype(np.int32),
        "masked_lm_weights": generator.random((batch, predictions)).astype(np.float32),
    }


def randomised(model):
    """Indices every weight away from its initial value, so that a forgotten bias or gamma shows."""
    generator = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(variable + generator.normal(0, 0.1, variable.shape).astype(np.float32))
    return model


def copy_weights(source, target):
    """Gives a model the weights of another one, and returns it."""
    for variable, other in zip(target.variables, source.variables):
        variable.assign(other)
    return target


def named(variables) -> dict[str, tf.Variable]:
    return {variable.name.split(":")[0]: variable for variable in variables}


def weights_of(model) -> dict:
    return {name: variable.numpy() for name, variable in named(model.variables).items()}


def oracle(model, **settings) -> NumpyBert:
    return NumpyBert(weights_of(model), TINY["num_hidden_layers"], TINY["num_attention_heads"], **settings)


def separate() -> dict:
    """Returns the sequences in a row each."""
    batch = features(batch=len(LENGTHS), length=max(LENGTHS), predictions=2)
    batch["input_mask"] = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int32)
    return batch


def packed() -> dict:
    """Returns the same sequences in one row, with padding at its end."""
    batch, row = separate(), {}
    for name in ("input_ids", "segment_ids"):
        parts = [values[:length] for values, length in zip(batch[name], LENGTHS)]
        row[name] = filled(parts)
    row["position_ids"] = filled([np.arange(length, dtype=np.int32) for length in LENGTHS])
    row["sequence_ids"] = filled([np.full(length, 1 + n, np.int32) for n, length in enumerate(LENGTHS)])
    row["input_mask"] = np.minimum(row["sequence_ids"], 1)
    row["cls_positions"] = STARTS[None].astype(np.int32)
    moved = batch["masked_lm_positions"] + STARTS[:, None]
    row["masked_lm_positions"] = moved.reshape(1, -1).astype(np.int32)
    return row


def filled(parts: list) -> np.ndarray:
    joined = np.concatenate(parts)
    return np.pad(joined, (0, ROW - len(joined)))[None]


def outputs_and_gradients(model, batch: dict, seed=None, **options):
    """Returns (outputs, gradients), computed as in a step; `options` are those of `tf.function`."""

    @tf.function(autograph=False, **options)
    def run(batch):
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(batch, dropout_seed=seed))
            loss = tf.add_n([tf.reduce_sum(tf.sin(output)) for output in outputs])
        return outputs, tape.gradient(loss, model.trainable_variables)

    outputs, gradients = run({name: tf.constant(value) for name, value in batch.items()})
    return outputs, {
        variable.name: tf.convert_to_tensor(gradient).numpy()
        for variable, gradient in zip(model.trainable_variables, gradients)
    }


def assert_same(ours, expected, tolerance: float, of_gradients: float | None = None) -> None:
    """Compares (outputs, gradients); the latter in parts of the largest number of their tensor."""
    for output, other in zip(ours[0], expected[0]):
        assert output.shape == other.shape
        np.testing.assert_allclose(output, other, atol=tolerance, rtol=tolerance)
    for name, gradient in expected[1].items():
        # The true gradient of a key's bias is zero: rounding is all that is there.
        scale = (of_gradients or tolerance) * (1.0 if "key/bias" in name else np.abs(gradient).max())
        np.testing.assert_allclose(ours[1][name], gradient, atol=scale, rtol=0, err_msg=name)


def assert_near(ours, expected, tolerance: float) -> None:
    """Compares (outputs, gradients) of which one is computed in a narrow type: all numbers together."""
    difference = [ours[1][name].ravel() - other.ravel() for name, other in expected[1].items()]
    whole = np.concatenate([other.ravel() for other in expected[1].values()])
    assert all(gradient.dtype == np.float32 for gradient in ours[1].values())
    assert 0 < np.linalg.norm(np.concatenate(difference)) < tolerance * np.linalg.norm(whole)
    assert 0 < np.abs(ours[0][0] - expected[0][0]).max() < tolerance * np.abs(expected[0][0]).max()
