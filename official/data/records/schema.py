"""The schema of a pre-training example, by which records are written, parsed and generated.

Source: the TFRecord contract of Google's BERT (`create_pretraining_data.py`) and of the MLPerf v0.7
reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import tensorflow as tf

from official.config import UNKNOWN_WORD, Config
from official.data.word_pieces.vocabulary import load_vocabulary

INTEGER_LIMIT = 1 << 31  # end of the integers in memory, which have 32 bits


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature of a record: its length, its type in memory (integers are int64 on disk), and the range of
    its values, 0 to `limit` - 1."""

    length: int
    dtype: tf.DType
    limit: int | None = None

    @property
    def end(self) -> int:
        """The end of the range of values, exclusive."""
        return INTEGER_LIMIT if self.limit is None else self.limit

    @property
    def disk_dtype(self) -> tf.DType:
        return tf.int64 if self.dtype.is_integer else tf.float32


def pretraining_schema(length: int, predictions: int, vocab_size: int | None = None) -> dict[str, Feature]:
    """Returns the features of a pre-training record with `length` tokens and `predictions` prediction slots.

    `next_sentence_labels` is 1 for a random second segment.
    """
    return {
        "input_ids": Feature(length, tf.int32, vocab_size),
        "input_mask": Feature(length, tf.int32, 2),
        "segment_ids": Feature(length, tf.int32, 2),
        "masked_lm_positions": Feature(predictions, tf.int32, length),
        "masked_lm_ids": Feature(predictions, tf.int32, vocab_size),
        "masked_lm_weights": Feature(predictions, tf.float32),
        "next_sentence_labels": Feature(1, tf.int32, 2),
    }


def static_schema(length: int, predictions: int, vocab_size: int | None = None) -> dict[str, Feature]:
    """Returns the features of a row with the predicted tokens first, followed by the others, from [CLS] on.

    There is no `masked_lm_positions`, by which models recognize such rows. `position_ids` are positions in
    the text; `input_mask` is 0 for empty slots, wherever they are.
    """
    plain = pretraining_schema(length, predictions, vocab_size)
    del plain["masked_lm_positions"]
    return {**plain, "position_ids": Feature(length, tf.int32, length)}


def packed_schema(length: int, slots: int, depth: int, vocab_size: int | None = None) -> dict[str, Feature]:
    """Returns the features of a row of several sequences, L = length, K = slots for predicted tokens,
    P = depth, the maximum number of sequences in a row.

    `sequence_ids` and `masked_lm_sequences` are the number, from 1, of the sequence of a token or a predicted
    token; 0 for padding and empty slots. `position_ids` are positions in the sequence, `masked_lm_positions`
    and `cls_positions` positions in the row. `example_weights` is 1 for a sequence, 0 for an empty slot.
    """
    return {
        **pretraining_schema(length, slots, vocab_size),
        "sequence_ids": Feature(length, tf.int32, depth + 1),
        "position_ids": Feature(length, tf.int32, length),
        "masked_lm_sequences": Feature(slots, tf.int32, depth + 1),
        "cls_positions": Feature(depth, tf.int32, length),
        "next_sentence_labels": Feature(depth, tf.int32, 2),
        "example_weights": Feature(depth, tf.float32),
    }


def is_static(schema: dict[str, Feature]) -> bool:
    """Tells whether the predicted tokens of a schema's rows come first, see `static_schema`."""
    return "masked_lm_positions" not in schema


def is_packed(schema: dict[str, Feature]) -> bool:
    """Tells whether rows of a schema hold several sequences."""
    return "cls_positions" in schema


def parse_examples(serialized_B: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
    """Parses serialized tf.train.Examples, string [B], into {name: [B, length]}.

    Parsing whole batches is about four times as fast as parsing one by one.
    """
    spec = {name: tf.io.FixedLenFeature([own.length], own.disk_dtype) for name, own in schema.items()}
    parsed = in_range(tf.io.parse_example(serialized_B, spec), schema)
    return {name: tf.cast(parsed[name], feature.dtype) for name, feature in schema.items()}


def in_range(values: dict[str, tf.Tensor], schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
    """Returns the values {name: [B, length]} of the schema; fails with InvalidArgumentError if one of them is
    out of range.

    A training step does not always fail on such a value: segment 9 gives a row of zeros, and so does any id
    out of range on a GPU.
    """

    def is_good(value: tf.Tensor, feature: Feature) -> tf.Tensor:
        if feature.dtype.is_integer:
            return (value >= 0) & (value <= tf.cast(feature.end - 1, value.dtype))
        return tf.math.is_finite(value) & (value >= 0)

    good = [is_good(value, schema[name]) for name, value in values.items()]
    return where_all(good, values, "values are out of range")


def where_all(conditions: Iterable[tf.Tensor], values, problem: str):
    """Returns tensors, or a structure of them, that fail with InvalidArgumentError unless all elements of all
    conditions are true."""
    is_good = tf.reduce_all([tf.reduce_all(condition) for condition in conditions])
    with tf.control_dependencies([tf.debugging.Assert(is_good, [problem])]):
        return tf.nest.map_structure(tf.identity, values)


def fitted(batches: tf.data.Dataset, config: Config) -> tf.data.Dataset:
    """Returns batches of pre-training rows; with --fit_vocabulary, ids beyond the model's vocabulary are
    replaced by [UNK]."""
    if not config.fit_vocabulary:
        return batches
    unknown = load_vocabulary(config.vocab_file).special_ids.unk if config.vocab_file else UNKNOWN_WORD

    def with_known_words(batch):
        words = {name: batch[name] for name in ("input_ids", "masked_lm_ids")}
        known = {name: tf.where(ids < config.model.vocab_size, ids, unknown) for name, ids in words.items()}
        return {**batch, **known}

    return batches.map(with_known_words)


def describe_example(record: bytes, schema: dict[str, Feature], has_ranges: bool = True) -> str | None:
    """Describes how a serialized tf.Example violates the schema; None if it conforms. Without `has_ranges`,
    values are not checked."""
    if (features := read_example(record)) is None:
        return "it is not a tf.train.Example"
    for name, feature in schema.items():
        if (found := features.get(name)) is None:
            return f"feature {name} is missing (it has {', '.join(sorted(features)) or 'none'})"
        kind = "int64_list" if feature.dtype.is_integer else "float_list"
        if found.WhichOneof("kind") != kind:
            return f"feature {name} is a {found.WhichOneof('kind')}, expected a {kind}"
        values = getattr(found, kind).value
        if len(values) != feature.length:
            return f"feature {name} has {len(values)} values, expected {feature.length}"
        if has_ranges and (problem := describe_values({name: values}, schema)):
            return problem
    return None


def describe_values(values: Mapping, schema: dict[str, Feature]) -> str | None:
    """Describes the first feature of {name: [N]} whose values are out of range; numbers are 0 or more, and
    finite."""
    for name, own in values.items():
        if not schema[name].dtype.is_integer:
            wrong = next((value for value in own if not 0 <= value < float("inf")), None)
            if wrong is not None:
                return f"feature {name} has the value {wrong}, expected a number from 0 on"
        elif len(own):
            lowest, highest, limit = min(own), max(own), schema[name].end
            if lowest < 0 or highest >= limit:
                return f"feature {name} has values from {lowest} to {highest}, expected 0 to {limit - 1}"
    return None


def read_example(record: bytes) -> dict[str, tf.train.Feature] | None:
    """Returns the features of a serialized tf.Example; None if it is not one."""
    example = tf.train.Example()
    try:
        example.ParseFromString(record)
    except Exception:  # protobuf's DecodeError has no stable import path across its back ends
        return None
    return dict(example.features.feature)
