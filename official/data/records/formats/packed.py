"""Packed rows: several examples in one tf.train.Example, with the feature names of Graphcore's PyTorch
records.

Features, S = tokens of a row, P = examples of a row at most, M = predicted tokens of an example at most,
K = M + P - 1. Example k = 1, 2, .. P of a row:
  packed_input_ids, packed_segment_ids [S]  its tokens but [CLS] follow those of example k - 1, the first
    one's begin at 0; its [CLS] stands at S - k. The rest is 0.
  packed_input_mask [S]  k where a token is its own; 0 is padding
  packed_position_ids [S]  0 for its [CLS], then 1, 2, ..
  packed_masked_lm_positions, packed_masked_lm_ids [K]  places in the row, and the tokens before masking; the
    slots of example k follow those of example k - 1
  packed_masked_lm_mask [K]  float: k where a slot is its own; 0 is an empty slot
  packed_next_sentence_labels [P]  its label is at P - k, as its [CLS] is at S - k; 1 for a random
    second segment
  packed_next_sentence_mask [P]  float: 1 at P - k where there is an example k

Why K = M + P - 1: lengths of a row add up to S at most, whose share of predicted tokens is M, and rounding
adds less than 1 for each of P examples: at most P - 1 more. For S = 512, M = 76 (0.15 x 512 = 76.8, cut) and
P = 3 that is 78. It does not always do: three examples that all round up can have 79. Graphcore drops such a
row, Habana has M + P = 79 slots under other names. Here `pack_rows` refuses it and the packer gives the last
example a row of its own, so that none is lost. A reader takes K and P from the record: 79 slots are M = 77.

Rows are read as the examples in them, in the order of k: whoever reads plain records reads these.
Source: the packed records of Graphcore's examples for PyTorch; Krell et al. 2021, arXiv 2107.02027.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from official.data.pretraining.examples import Examples
from official.data.records.encoding import wire
from official.data.records.encoding.compact import width, words
from official.data.records.formats import compact, packed_record, packed_rows
from official.data.records.formats.packed_record import LOOKED_UP
from official.data.records.schema import Feature

ROWS_PER_RECORD = 3  # as published; rows may hold more
VOCABULARY_LIMIT = wire.LIMIT
IDS = packed_record.IDS
read, sizes_of = packed_record.read, packed_record.sizes_of
describe_mismatch = packed_record.describe_mismatch


def encode_rows(examples: Examples, members_RP: np.ndarray) -> list[bytes]:
    """Returns R records.

    Args:
      examples: N of them.
      members_RP: int [R, P], the examples of a row, -1 behind the last one.

    Raises:
      ValueError: as `packed_rows.pack_rows` does.
    """
    values = packed_rows.pack_rows(examples, members_RP)
    return wire.examples(
        [
            (wire.floats if name in packed_rows.FLOATS else wire.integers)(name, values[name])
            for name in sorted(values)
        ]
    )


def split(record: bytes) -> list[bytes]:
    """Returns a row for each example, with as many slots. Raises ValueError for a record that is wrong."""
    row = read(record)
    examples = packed_rows.members_of(row)
    members_NP = np.full((len(examples), row["packed_next_sentence_labels"].shape[1]), -1)
    members_NP[:, 0] = np.arange(len(examples))
    return encode_rows(examples, members_NP)


def join(records: list[bytes]) -> list[bytes]:
    """Returns the records as they are: which examples share a row is the packer's work."""
    return records


# ------------------------------------------------------------------------------------------------------------
# Batches of records


def count_rows(serialized_B: tf.Tensor) -> tf.Tensor:
    name = "packed_next_sentence_mask"
    found_BP = tf.io.parse_example(serialized_B, {name: tf.io.RaggedFeature(tf.float32)})[name]
    return tf.reduce_sum(tf.cast(found_BP > 0, tf.int32), axis=1)


def unpack(serialized_B: tf.Tensor, schema: dict[str, Feature]) -> tf.Tensor:
    """Returns the examples of the rows, int32 [N, W], in the words of compact records.

    Fails with InvalidArgumentError where a record is not a packed row of these lengths, or an example of one
    is not where it belongs.
    """
    length, most = schema["input_ids"].length, schema["masked_lm_ids"].length
    spec = {
        name: tf.io.RaggedFeature(tf.float32 if name in packed_rows.FLOATS else tf.int64)
        for name in packed_rows.NAMES
    }
    found = tf.io.parse_example(serialized_B, spec)
    is_even = tf.reduce_all(
        [tf.reduce_min(value.row_lengths()) == tf.reduce_max(value.row_lengths()) for value in found.values()]
    )
    with tf.control_dependencies([tf.debugging.Assert(is_even, ["not all rows have one shape"])]):
        arrays = [found[name].to_tensor() for name in packed_rows.NAMES]

    def to_words(*values: np.ndarray) -> tuple[np.ndarray, str]:
        try:
            return _words(dict(zip(packed_rows.NAMES, values)), (length, most)), ""
        except ValueError as error:
            return np.zeros((0, width(length, most)), np.int32), str(error)

    words_NW, problem = tf.numpy_function(to_words, arrays, (tf.int32, tf.string))
    with tf.control_dependencies([tf.debugging.Assert(problem == "", [problem])]):
        return tf.ensure_shape(words_NW, [None, width(length, most)])


def _words(rows: packed_rows.Rows, sizes: tuple[int, int]) -> np.ndarray:
    packed_rows.check_sizes(rows)
    found = packed_rows.sizes_of(rows)
    if found != sizes:
        raise ValueError(f"rows are of {found} tokens and predicted ones, expected {sizes}")
    examples = packed_rows.members_of(rows)
    for name, limit in LOOKED_UP.items():
        values = rows[f"packed_{name}"]
        if values.min() < 0 or values.max() >= limit:
            raise ValueError(f"values from {values.min()} to {values.max()}, expected 0 to {limit - 1}")
    return words(examples, np.int32)


parse_rows = compact.parse_rows
