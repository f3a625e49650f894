"""Rows of several sequences: who sees whom, positions and pooled vectors that come with the batch."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from official.config import BertConfig
from official.modeling import attention
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel
from official.modeling.operations import fused, plain
from tests.conftest import TINY
from tests.modeling.test_modeling import features, randomised

LENGTHS, ROW = (6, 9, 4), 24  # of three sequences in one row, and of that row
STARTS = np.cumsum((0, *LENGTHS[:-1]))
OPERATIONS = pytest.mark.parametrize("fused_ops", [False, True], ids=["plain", "fused"])


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
    row["masked_lm_positions"] = (
        (batch["masked_lm_positions"] + STARTS[:, None]).reshape(1, -1).astype(np.int32)
    )
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


def check_without_known_sizes(model, batch: dict) -> None:
    """Checks that a graph need know no size of a batch, of integers, to compute the same."""
    signature = [{name: tf.TensorSpec([None, None], tf.int32) for name in batch}]
    seed = tf.constant([1, 2])
    outputs, gradients = outputs_and_gradients(model, batch, seed, input_signature=signature)
    expected, expected_gradients = outputs_and_gradients(model, batch, seed)
    for output, other in zip(outputs, expected):
        np.testing.assert_allclose(output, other, atol=1e-5)
    for name, other in expected_gradients.items():
        largest = max(1.0, np.abs(other).max())
        np.testing.assert_allclose(gradients[name], other, atol=1e-5 * largest, err_msg=name)


@OPERATIONS
def test_packed_sequences_are_the_separate_ones(fused_ops):
    """Outputs agree to 2e-6, and gradients to 2e-6 of the largest number of their tensor."""
    model = randomised(BertPretrainer(BertConfig(**TINY), fused_ops))
    (masked, relation), gradients = outputs_and_gradients(model, packed())
    (masked_alone, relation_alone), expected = outputs_and_gradients(model, separate())
    assert relation.shape == (1, len(LENGTHS), 2) and relation_alone.shape == (len(LENGTHS), 2)
    np.testing.assert_allclose(relation[0], relation_alone, atol=2e-6)
    np.testing.assert_allclose(tf.reshape(masked, masked_alone.shape), masked_alone, atol=2e-6, rtol=2e-6)
    for name, gradient in expected.items():
        # The true gradient of a key's bias is zero: rounding is all that is there.
        scale = 1.0 if "key/bias" in name else np.abs(gradient).max()
        np.testing.assert_allclose(gradients[name], gradient, atol=2e-6 * scale, rtol=0, err_msg=name)


@OPERATIONS
def test_packed_spans_and_classes_are_the_separate_ones(fused_ops):
    spans = randomised(SpanModel(BertConfig(**TINY), fused_ops))
    for together, alone in zip(spans(packed()), spans(separate())):
        for row, start, length in zip(alone, STARTS, LENGTHS):
            np.testing.assert_allclose(together[0, start : start + length], row[:length], atol=2e-6)
    classes = randomised(SequenceModel(BertConfig(**TINY), 3, fused_ops))
    np.testing.assert_allclose(classes(packed())[0], classes(separate()), atol=2e-6)


def test_a_sequence_does_not_depend_on_its_neighbours():
    model, batch = randomised(BertPretrainer(BertConfig(**TINY), fused=True)), packed()
    other = {**batch, "input_ids": batch["input_ids"].copy()}
    other["input_ids"][0, STARTS[1] : STARTS[1] + LENGTHS[1]] = 7
    (masked, relation), (masked_other, relation_other) = model(batch), model(other)
    np.testing.assert_array_equal(np.delete(relation, 1, axis=1), np.delete(relation_other, 1, axis=1))
    np.testing.assert_array_equal(np.delete(masked, (2, 3), axis=1), np.delete(masked_other, (2, 3), axis=1))
    assert not np.allclose(relation[0, 1], relation_other[0, 1])


@OPERATIONS
def test_what_a_batch_may_say_is_what_is_taken_without(fused_ops):
    """Positions 0..L-1, one sequence a row and its [CLS] in front: said or not, the same bits."""
    model, batch = randomised(BertPretrainer(BertConfig(**TINY), fused_ops)), features()
    said = {
        "position_ids": np.tile(np.arange(16, dtype=np.int32), (3, 1)),
        "cls_positions": np.zeros([3, 1], np.int32),
    }
    (masked, relation), (masked_said, relation_said) = model(batch), model({**batch, **said})
    np.testing.assert_array_equal(masked, masked_said)
    np.testing.assert_array_equal(relation, relation_said[:, 0])
    tokens, spans = batch["input_mask"] > 0, randomised(SpanModel(BertConfig(**TINY), fused_ops))
    for plainly, by_number in zip(spans(batch), spans({**batch, "sequence_ids": batch["input_mask"]})):
        np.testing.assert_allclose(plainly.numpy()[tokens], by_number.numpy()[tokens], atol=2e-6)


@pytest.mark.parametrize("dtype,tolerance", [(tf.float32, 1e-5), (tf.bfloat16, 0.05)])
@pytest.mark.parametrize("seed", [None, [3, 4]], ids=["no dropout", "dropout"])
def test_scores_of_pairs_are_those_of_columns_and_fused_is_plain(seed, dtype, tolerance):
    """[B, 1, L, M] that says for every query what [B, 1, 1, M] says for all; forward and backward."""
    generator = np.random.default_rng(0)
    parts = [tf.cast(tf.constant(generator.normal(size=[2, 3, 5, 4])), dtype) for _ in range(3)]
    columns = attention.padding_scores(np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))
    pairs = attention.sequence_scores(tf.constant([[1, 1, 2, 2, 2], [1, 1, 1, 1, 0]]))
    seed = None if seed is None else tf.constant(seed)

    def run(ops, scores):
        with tf.GradientTape() as tape:
            tape.watch(parts)
            output = ops.attend(*parts, scores, 0.3, seed)
            loss = tf.reduce_sum(tf.sin(tf.cast(output, tf.float32)))
        return [tf.cast(value, tf.float32) for value in (output, *tape.gradient(loss, parts))]

    for ops in (plain, fused):
        for one, other in zip(run(ops, columns), run(ops, tf.repeat(columns, 5, axis=2))):
            np.testing.assert_array_equal(one, other)
    for one, other in zip(run(fused, pairs), run(plain, pairs)):
        np.testing.assert_allclose(one, other, atol=tolerance * np.abs(other).max())
    assert not np.allclose(run(plain, pairs)[0], run(plain, columns)[0])


def test_scores_say_who_sees_whom():
    found = attention.scores({"sequence_ids": tf.constant([[1, 1, 2, 0]])})
    seen = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    np.testing.assert_array_equal(found, (1 - seen)[None, None] * attention.MASKED_SCORE)
    padded = attention.scores({"input_mask": tf.constant([[1, 0]])})
    np.testing.assert_array_equal(padded, [[[[0, attention.MASKED_SCORE]]]])


@pytest.mark.parametrize(
    "make,options,batch",
    [
        (BertPretrainer, {}, packed()),
        (BertPretrainer, {"fused": True}, separate()),
        (BertPretrainer, {"fused": True, "shared": True}, packed()),
        (SpanModel, {}, separate()),
        (functools.partial(SequenceModel, outputs=3), {"fused": True}, packed()),
    ],
    ids=["plain packed", "fused separate", "shared packed", "plain spans", "fused classes"],
)
def test_no_size_of_a_batch_need_be_known_to_a_graph(make, options, batch):
    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
    model = randomised(make(BertConfig(**{**TINY, **rates}), **options))
    batch = {name: value for name, value in batch.items() if value.dtype == np.int32}
    check_without_known_sizes(model, batch)
