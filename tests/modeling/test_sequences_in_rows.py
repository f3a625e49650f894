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
from tests.modeling.models import (
    LENGTHS,
    OPERATIONS,
    RATES,
    STARTS,
    assert_same,
    check_without_known_sizes,
    features,
    outputs_and_gradients,
    packed,
    randomised,
    separate,
)


@OPERATIONS
def test_packed_sequences_are_the_separate_ones(kernels):
    """Outputs agree to 2e-6, and gradients to 2e-6 of the largest number of their tensor."""
    model = randomised(BertPretrainer(BertConfig(**TINY), kernels))
    (masked, relation), gradients = outputs_and_gradients(model, packed())
    (masked_alone, relation_alone), expected = outputs_and_gradients(model, separate())
    assert relation.shape == (1, len(LENGTHS), 2) and relation_alone.shape == (len(LENGTHS), 2)
    found = [tf.reshape(masked, masked_alone.shape), relation[0]]
    assert_same((found, gradients), ([masked_alone, relation_alone], expected), 2e-6)


@OPERATIONS
def test_packed_spans_and_classes_are_the_separate_ones(kernels):
    spans = randomised(SpanModel(BertConfig(**TINY), kernels))
    for together, alone in zip(spans(packed()), spans(separate())):
        for row, start, length in zip(alone, STARTS, LENGTHS):
            np.testing.assert_allclose(together[0, start : start + length], row[:length], atol=2e-6)
    classes = randomised(SequenceModel(BertConfig(**TINY), 3, kernels))
    np.testing.assert_allclose(classes(packed())[0], classes(separate()), atol=2e-6)


def test_a_sequence_does_not_depend_on_its_neighbours():
    model, batch = randomised(BertPretrainer(BertConfig(**TINY), kernels="fused")), packed()
    other = {**batch, "input_ids": batch["input_ids"].copy()}
    other["input_ids"][0, STARTS[1] : STARTS[1] + LENGTHS[1]] = 7
    (masked, relation), (masked_other, relation_other) = model(batch), model(other)
    np.testing.assert_array_equal(np.delete(relation, 1, axis=1), np.delete(relation_other, 1, axis=1))
    np.testing.assert_array_equal(np.delete(masked, (2, 3), axis=1), np.delete(masked_other, (2, 3), axis=1))
    assert not np.allclose(relation[0, 1], relation_other[0, 1])


@OPERATIONS
def test_what_a_batch_may_say_is_what_is_taken_without(kernels):
    """Positions 0..L-1, one sequence a row and its [CLS] in front: said or not, the same bits."""
    model, batch = randomised(BertPretrainer(BertConfig(**TINY), kernels)), features()
    said = {
        "position_ids": np.tile(np.arange(16, dtype=np.int32), (3, 1)),
        "cls_positions": np.zeros([3, 1], np.int32),
    }
    (masked, relation), (masked_said, relation_said) = model(batch), model({**batch, **said})
    np.testing.assert_array_equal(masked, masked_said)
    np.testing.assert_array_equal(relation, relation_said[:, 0])
    tokens, spans = batch["input_mask"] > 0, randomised(SpanModel(BertConfig(**TINY), kernels))
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
        (BertPretrainer, {"kernels": "fused"}, separate()),
        (BertPretrainer, {"kernels": "fused", "shared": True}, packed()),
        (SpanModel, {}, separate()),
        (functools.partial(SequenceModel, outputs=3), {"kernels": "fused"}, packed()),
    ],
    ids=["plain packed", "fused separate", "shared packed", "plain spans", "fused classes"],
)
def test_no_size_of_a_batch_need_be_known_to_a_graph(make, options, batch):
    model = randomised(make(BertConfig(**{**TINY, **RATES}), **options))
    batch = {name: value for name, value in batch.items() if value.dtype == np.int32}
    check_without_known_sizes(model, batch)
