"""Rows of several sequences: who sees whom, positions and pooled vectors that come with the batch, spans."""

import numpy as np
import pytest
import tensorflow as tf

from official.config import BertConfig
from official.modeling import attention, objectives
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel
from official.modeling.operations import fused, plain
from tests.conftest import TINY
from tests.modeling import models


@models.OPERATIONS
def test_packed_spans_and_classes_are_the_separate_ones(kernels):
    spans = models.randomised(SpanModel(BertConfig(**TINY), kernels))
    for together, alone in zip(spans(models.packed()), spans(models.separate())):
        for row, start, length in zip(alone, models.STARTS, models.LENGTHS):
            np.testing.assert_allclose(together[0, start : start + length], row[:length], atol=2e-6)
    classes = models.randomised(SequenceModel(BertConfig(**TINY), 3, kernels))
    np.testing.assert_allclose(classes(models.packed())[0], classes(models.separate()), atol=2e-6)


@models.OPERATIONS
def test_what_a_batch_may_say_is_what_is_taken_without(kernels):
    """Positions 0..L-1, one sequence a row and its [CLS] in front: said or not, the same bits."""
    model, batch = models.randomised(BertPretrainer(BertConfig(**TINY), kernels)), models.features()
    said = {
        "position_ids": np.tile(np.arange(16, dtype=np.int32), (3, 1)),
        "cls_positions": np.zeros([3, 1], np.int32),
    }
    (masked, relation), (masked_said, relation_said) = model(batch), model({**batch, **said})
    np.testing.assert_array_equal(masked, masked_said)
    np.testing.assert_array_equal(relation, relation_said[:, 0])
    tokens, spans = batch["input_mask"] > 0, models.randomised(SpanModel(BertConfig(**TINY), kernels))
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


ROW = 8
LOWEST = np.finfo(np.float32).min


def test_of_rows_of_one_sequence():
    logits = tf.constant([[1.0, 2.0, 3.0]])
    features = {"input_mask": tf.constant([[1, 1, 0]])}
    np.testing.assert_array_equal(objectives.of_sequences(logits, features), [[1.0, 2.0, LOWEST]])
    np.testing.assert_array_equal(objectives.in_row(tf.constant([1]), features), [1])


def test_sequences_have_their_own_tokens_where_they_stand_and_are_cut_out():
    lengths = np.array([(3, 4, 0), (8, 0, 0), (2, 2, 3)])  # of the sequences of three rows
    ids = [np.pad(np.repeat([1, 2, 3], row), (0, ROW - row.sum())) for row in lengths]
    begins = np.where(lengths, np.cumsum(lengths, axis=1) - lengths, 0)
    batch = {"sequence_ids": tf.constant(ids, tf.int32), "cls_positions": tf.constant(begins, tf.int32)}
    logits = np.random.default_rng(0).normal(size=(3, ROW)).astype(np.float32)
    found, cut = (each(tf.constant(logits), batch) for each in (objectives.of_sequences, objectives.cut_out))
    positions = objectives.in_row(tf.ones([3, 3], tf.int32), batch)
    np.testing.assert_array_equal(positions, begins + 1)
    for (row, place), length in np.ndenumerate(lengths):
        begin = begins[row, place]
        alone, own = np.full(ROW, LOWEST), logits[row, begin : begin + length]
        alone[begin : begin + length] = own
        np.testing.assert_array_equal(found[row, place], alone)
        np.testing.assert_array_equal(cut[row, place], np.pad(own, (0, ROW - length)))


def test_the_loss_counts_padding_where_it_counts_whole_rows():
    rng = np.random.default_rng(1)
    start, end = rng.normal(size=(2, 3, ROW)).astype(np.float32)
    lengths = np.array([3, 8, 5])
    batch = {
        "input_mask": tf.constant(np.arange(ROW) < lengths[:, None], tf.int32),
        "start_positions": tf.constant([1, 2, 0]),
        "end_positions": tf.constant([2, 7, 4]),
        "example_weights": tf.constant([1.0, 1.0, 0.0]),
    }
    for whole_rows in (False, True):
        costs = [
            np.log(np.exp(logits[row, : None if whole_rows else lengths[row]]).sum()) - logits[row, place]
            for logits, places in ((start, [1, 2]), (end, [2, 7]))
            for row, place in enumerate(places)
        ]
        terms = objectives.span_terms((tf.constant(start), tf.constant(end)), batch, whole_rows)
        total, weight = map(float, terms["span_loss"])
        np.testing.assert_allclose((total, weight), (sum(costs) / 2, 2.0), rtol=1e-5)
