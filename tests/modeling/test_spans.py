"""Logits of spans: a sequence has its own tokens only, wherever in a row they stand."""

import numpy as np
import tensorflow as tf

from official.modeling import objectives

LENGTHS = [(3, 4, 0), (8, 0, 0), (2, 2, 3)]  # of the sequences of three rows
ROW = 8
LOWEST = np.finfo(np.float32).min


def packed():
    """Returns (features of rows, their logits, {(row, place): logits of the sequence})."""
    logits = np.random.default_rng(0).normal(size=(len(LENGTHS), ROW)).astype(np.float32)
    features = {
        "sequence_ids": np.zeros((len(LENGTHS), ROW), np.int32),
        "cls_positions": np.zeros((len(LENGTHS), 3), np.int32),
    }
    own = {}
    for row, lengths in enumerate(LENGTHS):
        begin = 0
        for place, length in enumerate(lengths):
            features["sequence_ids"][row, begin : begin + length] = place + 1
            features["cls_positions"][row, place] = begin if length else 0
            own[row, place] = logits[row, begin : begin + length]
            begin += length
    return {name: tf.constant(values) for name, values in features.items()}, tf.constant(logits), own


def test_of_rows_of_one_sequence():
    logits = tf.constant([[1.0, 2.0, 3.0]])
    features = {"input_mask": tf.constant([[1, 1, 0]])}
    np.testing.assert_array_equal(objectives.of_sequences(logits, features), [[1.0, 2.0, LOWEST]])
    np.testing.assert_array_equal(objectives.in_row(tf.constant([1]), features), [1])


def test_sequences_have_their_own_tokens_where_they_stand():
    features, logits, own = packed()
    found = objectives.of_sequences(logits, features).numpy()
    for (row, place), expected in own.items():
        begin = int(features["cls_positions"][row, place])
        positions = objectives.in_row(tf.zeros([len(LENGTHS), 3], tf.int32) + 1, features).numpy()
        assert positions[row, place] == begin + 1
        alone = np.full(ROW, LOWEST)
        alone[begin : begin + len(expected)] = expected
        np.testing.assert_array_equal(found[row, place], alone)


def test_sequences_are_cut_out():
    features, logits, own = packed()
    found = objectives.cut_out(logits, features).numpy()
    for (row, place), expected in own.items():
        np.testing.assert_array_equal(found[row, place], np.pad(expected, (0, ROW - len(expected))))


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
