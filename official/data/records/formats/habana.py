"""Habana's packed TFRecords: rows of up to three sequences, end to end.

Features of a tf.train.Example, S = tokens of a row, P = sequences of a row at most, M = predicted tokens of a
sequence at most, K = M + P:
  input_ids, segment_ids [S]  the sequences one after the other, each with its [CLS] first; then zeros
  input_mask [S]  the number of the sequence, 1 to P; 0 is padding
  positions [S]  from 0 in each sequence
  masked_lm_positions, masked_lm_ids [K]  places in the row, and the tokens before masking
  masked_lm_weights [K]  float: the number of the sequence; 0 is an empty slot
  next_sentence_positions, next_sentence_labels [P]  where the [CLS] of sequence k stands, and whether its
    second segment is a random one, at k - 1
  next_sentence_weights [P]  float: 1 where there is a sequence

Against the packed records of `formats.packed`: [CLS] stays first, where those have it k-th from the end of
the row; labels go forwards, not backwards; there are M + P slots, not M + P - 1, so that 76 predictions and
three sequences make 79 slots here and 78 there; the weights of slots and of labels have those records'
`_mask` for a name.

Files are named `strategy_<l1>_<l2>[_<l3>]_part_<n>`, by the lengths in a row. Beside their folder lies
`<folder>_metadata.json` with numbers of the whole set.
Source: the packed pre-training data of Habana's BERT for TensorFlow.
"""

from __future__ import annotations

import os

import tensorflow as tf

from official.data.records.formats import sequences_in_rows
from official.data.records.formats.row_reader import AsExamples, AsRows, Layout
from official.data.records.formats.sequences_in_rows import Row, Shape
from official.data.records.schema import INTEGER_LIMIT, read_example
from official.io import json_files

MARK = "next_sentence_positions"  # no other format has this feature
_TOKENS = ("input_ids", "input_mask", "segment_ids", "positions")
_SLOTS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
_LABELS = ("next_sentence_positions", "next_sentence_labels", "next_sentence_weights")
_FLOATS = ("masked_lm_weights", "next_sentence_weights")
GROUPS = (_TOKENS, _SLOTS, _LABELS)
FIELDS = (*_TOKENS, *_SLOTS, *_LABELS)


def row_of(fields: dict[str, tf.Tensor]) -> Row:
    """Returns the row of features with these names, numbers of any type."""
    return sequences_in_rows.features(
        {
            "input_ids": fields["input_ids"],
            "segment_ids": fields["segment_ids"],
            "sequence_ids": fields["input_mask"],
            "position_ids": fields["positions"],
            "masked_lm_positions": fields["masked_lm_positions"],
            "masked_lm_ids": fields["masked_lm_ids"],
            "masked_lm_sequences": fields["masked_lm_weights"],
            "cls_positions": fields["next_sentence_positions"],
            "next_sentence_labels": fields["next_sentence_labels"],
            "example_weights": fields["next_sentence_weights"],
        }
    )


def _read(serialized_B: tf.Tensor, shape: Shape) -> Row:
    found = _parse(serialized_B, FIELDS)
    sizes = [size for size, names in zip(shape, GROUPS) for _ in names]
    is_good = [
        tf.reduce_all(tf.cast(found[name].row_lengths(), tf.int32) == size)
        for name, size in zip(FIELDS, sizes)
    ]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(is_good), ["not all rows are packed"])]):
        return row_of(
            {
                name: tf.reshape(_whole_numbers(found[name].values), tf.stack([-1, size]))
                for name, size in zip(FIELDS, sizes)
            }
        )


def _parse(serialized_B: tf.Tensor, names: tuple[str, ...]) -> dict[str, tf.RaggedTensor]:
    spec = {name: tf.io.RaggedFeature(tf.float32 if name in _FLOATS else tf.int64) for name in names}
    return tf.io.parse_example(serialized_B, spec)


def _whole_numbers(values: tf.Tensor) -> tf.Tensor:
    """Returns int32; -1, which is wrong everywhere, for a number that is none."""
    numbers = tf.cast(tf.cast(values, tf.float64), tf.int64)
    is_one = (numbers >= 0) & (numbers < INTEGER_LIMIT) & (tf.cast(numbers, values.dtype) == values)
    return tf.cast(tf.where(is_one, numbers, -1), tf.int32)


def _shape(serialized_B: tf.Tensor, length: int, most: int) -> Shape:  # pylint: disable=unused-argument
    found = _parse(serialized_B, ("masked_lm_ids", MARK))
    slots, depth = (tf.cast(value.row_lengths()[0], tf.int32) for value in found.values())
    return Shape(length, slots, depth)


def _shape_of(record: bytes, length: int | None, most: int | None) -> Shape:  # pylint: disable=unused-argument
    sizes = []
    found = _lengths(record)
    for names in GROUPS:
        for name in names:
            if found[name] != found[names[0]] or not found[name]:
                raise ValueError(f"feature {name} has {found[name]} values, {names[0]} {found[names[0]]}")
        sizes.append(found[names[0]])
    return Shape(*sizes)


def _lengths(record: bytes) -> dict[str, int]:
    """Returns the number of values of each feature. Raises ValueError for one missing or of another type."""
    features = read_example(record) or {}
    lengths = {}
    for name in FIELDS:
        if name not in features:
            raise ValueError(f"feature {name} is missing (it has {', '.join(sorted(features)) or 'none'})")
        kind, found = "float_list" if name in _FLOATS else "int64_list", features[name].WhichOneof("kind")
        if found != kind:
            raise ValueError(f"feature {name} is a {found}, expected a {kind}")
        lengths[name] = len(getattr(features[name], kind).value)
    return lengths


def _count(serialized_B: tf.Tensor) -> tf.Tensor:
    found = _parse(serialized_B, ("next_sentence_weights",))["next_sentence_weights"]
    return tf.cast(tf.reduce_sum(tf.cast(found > 0, tf.int32), axis=1), tf.int32)


_LAYOUT = Layout(_read, _shape, _shape_of, _count, spare=(0,))
EXAMPLES, ROWS = AsExamples(_LAYOUT), AsRows(_LAYOUT)


def average_sequences(files: list[str]) -> float | None:
    """Returns how many sequences a row of some files holds on average, as the metadata beside their folders
    say; None where a folder has none, or it does not say.

    Args:
      files: packed TFRecords; the folders count by their files.
    """
    folders = [os.path.dirname(path) or os.getcwd() for path in files]
    told = {folder: _told(f"{folder}_metadata.json") for folder in set(folders)}
    numbers = [number for folder in folders if (number := told[folder])]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(files) else None


def _told(path: str) -> float | None:
    number = json_files.read_json_or_empty(path).get("avg_seq_per_sample")
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return float(number) if 1 <= number < float("inf") else None
