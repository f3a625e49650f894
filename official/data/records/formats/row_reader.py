"""Readers of rows of several sequences, wherever in a row their tokens stand: as the examples in them, or as
whole rows.

A row is known by the features of a packed row: which sequence a token belongs to and its place in that
sequence say all, so that one reader does for every layout. Everything is TensorFlow: the same checks fail in
a graph and say eagerly what is wrong.

Shapes: B rows, L tokens of a row, K slots for predicted tokens, P sequences of a row at most, M predicted
tokens of a sequence at most, N sequences in all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

from official.data.pretraining.examples import Examples
from official.data.records import encoding, wire
from official.data.records.formats import compact
from official.data.records.formats.plain import Plain
from official.data.records.schema import INTEGER_LIMIT, Feature, describe_range, in_range, read_example

if TYPE_CHECKING:
    Row = dict[str, tf.Tensor]
else:
    Row = dict  # Python 3.8 cannot make the other one

# -----------------------------------------------------------------------------------------------------------
# Rows


class Shape(NamedTuple):
    """L, K and P of rows; K and P may be tensors."""

    length: int
    slots: int | tf.Tensor
    depth: int | tf.Tensor


class _Members(NamedTuple):
    """Sequences of rows, as their tokens tell them.

    Attributes:
      seen_BPL: int32, how often each place of each sequence is in the row.
      lengths_BP: int32, the last place and 1; 0 where there is no sequence.
      firsts_BP: int32, tokens of the first segment.
    """

    seen_BPL: tf.Tensor
    lengths_BP: tf.Tensor
    firsts_BP: tf.Tensor


def features(row: Row) -> Row:
    """Returns a row with what follows from the rest: `input_mask`, `masked_lm_weights`, and types."""
    row = {name: tf.cast(value, tf.int32) for name, value in row.items()}
    return {
        **row,
        "input_mask": tf.cast(row["sequence_ids"] > 0, tf.int32),
        "masked_lm_weights": tf.cast(row["masked_lm_sequences"] > 0, tf.float32),
        "example_weights": tf.cast(row["example_weights"], tf.float32),
    }


def _put(row: Row, values_BL: tf.Tensor) -> tf.Tensor:
    """Returns the values of tokens by sequence and place, [B, P, L]; those of one place are added up, those
    out of range left out."""
    length, depth = row["input_ids"].shape[1], tf.shape(row["example_weights"])[1]
    number_BL, place_BL = row["sequence_ids"] - 1, row["position_ids"]
    return _scatter(number_BL, place_BL, values_BL, (depth, length))


def _scatter(
    number_BX: tf.Tensor, place_BX: tf.Tensor, values_BX: tf.Tensor, shape: tuple[tf.Tensor | int, int]
) -> tf.Tensor:
    is_in = (number_BX >= 0) & (number_BX < shape[0]) & (place_BX >= 0) & (place_BX < shape[1])
    where = tf.where(is_in)
    to = tf.stack(
        [where[:, 0], *(tf.cast(tf.gather_nd(part, where), tf.int64) for part in (number_BX, place_BX))], 1
    )
    sizes = tf.stack([tf.shape(values_BX)[0], shape[0], shape[1]])
    return tf.scatter_nd(to, tf.gather_nd(values_BX, where), tf.cast(sizes, tf.int64))


def _members(row: Row) -> _Members:
    column_L = tf.range(1, row["input_ids"].shape[1] + 1)
    seen_BPL = _put(row, tf.ones_like(row["sequence_ids"]))
    firsts_BPL = _put(row, tf.cast(row["segment_ids"] == 0, tf.int32))
    return _Members(
        seen_BPL,
        tf.reduce_max(tf.where(seen_BPL > 0, column_L, 0), axis=2),
        tf.reduce_max(tf.where(firsts_BPL > 0, column_L, 0), axis=2),
    )


def _at(values_BX: tf.Tensor, places_BY: tf.Tensor) -> tf.Tensor:
    """Returns values at places, [B, Y]; at a place out of range, that of the nearest."""
    return tf.gather(values_BX, tf.clip_by_value(places_BY, 0, tf.shape(values_BX)[1] - 1), batch_dims=1)


def faults(row: Row, most: int | None = None, may_skip: bool = False) -> dict[str, tf.Tensor]:
    """Returns {what may be wrong with a row: whether it is, bool [B, ..]}, the first of them first.

    Args:
      row: of `features`.
      most: M; None: any.
      may_skip: whether a token may be missing between two that are there.
    """
    members, depth = _members(row), tf.shape(row["example_weights"])[1]
    length, numbers_BL = row["input_ids"].shape[1], row["sequence_ids"]
    slots_BK, is_there_BP = row["masked_lm_sequences"], members.lengths_BP > 0
    counts_BP = tf.reduce_sum(tf.cast(slots_BK[:, :, None] == tf.range(1, depth + 1), tf.int32), axis=1)
    ordered_BK = tf.where(slots_BK == 0, depth + 1, slots_BK)
    labels_BP = row["next_sentence_labels"]
    return {
        "the number of an example is not 0 to its examples at most": (numbers_BL < 0)
        | (numbers_BL > depth)
        | _any((slots_BK < 0) | (slots_BK > depth)),
        "it holds no example 1": ~is_there_BP[:, :1],
        "the numbers of its examples have a gap": is_there_BP[:, 1:] & ~is_there_BP[:, :-1],
        f"positions exceed the row of {length} tokens": (row["position_ids"] < 0)
        | (row["position_ids"] >= length),
        "examples overlap: a place of one is there twice": members.seen_BPL > 1,
        "positions leave their example: places between them are missing": _missing(members, may_skip),
        "next_sentence_weights do not name the examples of the row": row["example_weights"]
        != tf.cast(is_there_BP, tf.float32),
        "next_sentence_positions leave their example": is_there_BP
        & _are_elsewhere(row, row["cls_positions"], tf.range(1, depth + 1)[None])
        | is_there_BP & (_at(row["position_ids"], row["cls_positions"]) != 0),
        "segment_ids of an example are not zeros and then ones": _wrong_segments(row, members),
        "masked_lm_weights are not ones, twos, .. and zeros": ordered_BK[:, 1:] < ordered_BK[:, :-1],
        f"an example has more than {most} predicted tokens": counts_BP
        > (INTEGER_LIMIT - 1 if most is None else most),
        "masked_lm_positions leave their example": (slots_BK > 0)
        & _are_elsewhere(row, row["masked_lm_positions"], slots_BK),
        "next_sentence_labels are not 0 or 1": (labels_BP < 0) | (labels_BP > 1),
    }


def _any(is_wrong_BX: tf.Tensor) -> tf.Tensor:
    return tf.reduce_any(is_wrong_BX, axis=1, keepdims=True)


def _are_elsewhere(row: Row, places_BX: tf.Tensor, numbers_BX: tf.Tensor) -> tf.Tensor:
    """Tells of places whether they are outside of the row or of the sequences of these numbers."""
    is_outside_BX = (places_BX < 0) | (places_BX >= row["input_ids"].shape[1])
    return is_outside_BX | (_at(row["sequence_ids"], places_BX) != numbers_BX)


def _missing(members: _Members, may_skip: bool) -> tf.Tensor:
    column_L = tf.range(members.seen_BPL.shape[2])
    missing_BPL = (members.seen_BPL == 0) & (column_L < members.lengths_BP[:, :, None])
    if not may_skip:
        return missing_BPL
    return missing_BPL & tf.concat([missing_BPL[:, :, :1], missing_BPL[:, :, :-1]], axis=2)


def _wrong_segments(row: Row, members: _Members) -> tf.Tensor:
    segments_BL = row["segment_ids"]
    is_second_BL = row["position_ids"] >= _at(members.firsts_BP, row["sequence_ids"] - 1)
    return (row["sequence_ids"] > 0) & (segments_BL != tf.cast(is_second_BL, tf.int32))


def checked(row: Row, most: int | None = None, may_skip: bool = False) -> Row:
    """Returns the row; fails with InvalidArgumentError where one of `faults` is found."""
    is_wrong = [tf.reduce_any(is_wrong) for is_wrong in faults(row, most, may_skip).values()]
    with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(is_wrong), ["not all rows are right"])]):
        return {name: tf.identity(value) for name, value in row.items()}


def describe(row: Row, most: int | None = None, may_skip: bool = False) -> str | None:
    """Says what is wrong with rows, eagerly; None where nothing is."""
    found = faults(row, most, may_skip).items()
    return next((what for what, is_wrong in found if bool(tf.reduce_any(is_wrong))), None)


def examples_of(row: Row, most: int) -> tf.Tensor:
    """Returns the sequences of right rows in the words of compact records, int32 [N, W], those of a row in
    the order of their numbers; a token that is missing is a 0, [PAD]."""
    members = _members(row)
    slots_BK, depth = row["masked_lm_sequences"], tf.shape(row["example_weights"])[1]
    counts_BP = tf.reduce_sum(tf.cast(slots_BK[:, :, None] == tf.range(1, depth + 1), tf.int32), axis=1)
    starts_BK = _at(tf.cumsum(counts_BP, axis=1, exclusive=True), slots_BK - 1)
    index_BK = tf.range(tf.shape(slots_BK)[1]) - starts_BK

    def put(values_BK: tf.Tensor) -> tf.Tensor:
        return _scatter(slots_BK - 1, index_BK, values_BK, (depth, most))

    head_BP5 = tf.stack(
        [
            members.lengths_BP,
            members.firsts_BP,
            counts_BP,
            row["next_sentence_labels"],
            tf.zeros_like(counts_BP),
        ],
        axis=2,
    )
    positions_BPM = put(_at(row["position_ids"], row["masked_lm_positions"]))
    ids_BPL = _put(row, row["input_ids"])
    words_BPW = tf.concat([head_BP5, positions_BPM, put(row["masked_lm_ids"]), ids_BPL], axis=2)
    return tf.boolean_mask(words_BPW, members.lengths_BP > 0)


# -----------------------------------------------------------------------------------------------------------
# Layouts


@dataclasses.dataclass(frozen=True)
class Layout:
    """Layout of the rows in the records of a format; its functions read nothing but their arguments.

    Attributes:
      read: (serialized_B, Shape) -> a row as of `features`; fails with InvalidArgumentError
        for records that are not of this shape.
      shape: (serialized_B, L, M) -> Shape, whose K and P are tensors; anything for wrong records.
      shape_of: (record, L or None, M or None) -> Shape, as far as possible without a look at its values where
        L and M are given. Raises ValueError for a record that has none.
      count: (serialized_B) -> int32 [B], the sequences of each record.
      spare: values that K - M - P may have, the likeliest first.
      may_skip: whether tokens may be missing.
    """

    read: Callable[[tf.Tensor, Shape], Row]
    shape: Callable[[tf.Tensor, int, int], Shape]
    shape_of: Callable[[bytes, int | None, int | None], Shape]
    count: Callable[[tf.Tensor], tf.Tensor]
    spare: tuple[int, ...]
    may_skip: bool = False
    rows_per_record: int = 3  # as published; rows may hold more

    def sizes(self, shape: Shape) -> tuple[int, int]:
        """Returns L and the likeliest M of rows of a shape."""
        return shape.length, shape.slots - shape.depth - self.spare[0]

    def row(self, record: bytes, shape: Shape) -> Row:
        """Returns the one row of a record. Raises ValueError where it is not of this shape."""
        try:
            return self.read(tf.constant([record]), shape)
        except (tf.errors.OpError, UnicodeDecodeError):
            raise ValueError(f"it is no row of {shape.length} tokens") from None

    def describe(self, record: bytes, shape: Shape, most: int | None) -> str | None:
        """Says what is wrong with a record of a shape."""
        try:
            return describe(self.row(record, shape), most, self.may_skip)
        except ValueError as error:
            return str(error)


class Features(NamedTuple):
    """Rows as tf.train.Examples.

    Attributes:
      groups: names of the features of L, of K and of P values.
      floats: names of those that are floats, whole numbers all the same.
      row_of: (fields, int32) -> a row as of `features`.
      weights: name of the feature that is above 0 where there is a sequence.
    """

    groups: tuple[tuple[str, ...], ...]
    floats: tuple[str, ...]
    row_of: Callable[[dict[str, tf.Tensor]], Row]
    weights: str

    def layout(self, spare: int) -> Layout:
        """Returns the layout of rows whose K is M + P + `spare`."""
        return Layout(self._read, self._shape, self._shape_of, self._count, spare=(spare,))

    def _read(self, serialized_B: tf.Tensor, shape: Shape) -> Row:
        sizes = {name: size for names, size in zip(self.groups, shape) for name in names}
        found = self._parse(serialized_B, tuple(sizes))
        is_good = [
            tf.reduce_all(tf.cast(found[name].row_lengths(), tf.int32) == size)
            for name, size in sizes.items()
        ]
        with tf.control_dependencies(
            [tf.debugging.Assert(tf.reduce_all(is_good), ["not all rows are packed"])]
        ):
            return self.row_of(
                {
                    name: tf.reshape(_whole_numbers(found[name].values), tf.stack([-1, size]))
                    for name, size in sizes.items()
                }
            )

    def _parse(self, serialized_B: tf.Tensor, names: tuple[str, ...]) -> dict[str, tf.RaggedTensor]:
        spec = {name: tf.io.RaggedFeature(tf.float32 if name in self.floats else tf.int64) for name in names}
        return tf.io.parse_example(serialized_B, spec)

    def _shape(self, serialized_B: tf.Tensor, length: int, most: int) -> Shape:  # pylint: disable=unused-argument
        _, (slot, *_), (label, *_) = self.groups
        found = self._parse(serialized_B, (slot, label))
        return Shape(length, *(tf.cast(found[name].row_lengths()[0], tf.int32) for name in (slot, label)))

    def _shape_of(self, record: bytes, length: int | None, most: int | None) -> Shape:  # pylint: disable=unused-argument
        features = read_example(record) or {}
        sizes = []
        for names in self.groups:
            lengths = {name: self._length(features, name) for name in names}
            for name, found in lengths.items():
                if found != lengths[names[0]] or not found:
                    raise ValueError(f"feature {name} has {found} values, {names[0]} {lengths[names[0]]}")
            sizes.append(lengths[names[0]])
        return Shape(*sizes)

    def _length(self, features: dict[str, tf.train.Feature], name: str) -> int:
        """Returns the number of values of a feature. Raises ValueError for one missing or of another type."""
        if name not in features:
            raise ValueError(f"feature {name} is missing (it has {', '.join(sorted(features)) or 'none'})")
        kind, found = "float_list" if name in self.floats else "int64_list", features[name].WhichOneof("kind")
        if found != kind:
            raise ValueError(f"feature {name} is a {found}, expected a {kind}")
        return len(getattr(features[name], kind).value)

    def _count(self, serialized_B: tf.Tensor) -> tf.Tensor:
        found = self._parse(serialized_B, (self.weights,))[self.weights]
        return tf.cast(tf.reduce_sum(tf.cast(found > 0, tf.int32), axis=1), tf.int32)


def _whole_numbers(values: tf.Tensor) -> tf.Tensor:
    """Returns int32; -1, which is wrong everywhere, for a number that is none."""
    numbers = tf.cast(values, tf.int64)
    is_one = (numbers >= 0) & (numbers < INTEGER_LIMIT) & (tf.cast(numbers, values.dtype) == values)
    return tf.cast(tf.where(is_one, numbers, -1), tf.int32)


# -----------------------------------------------------------------------------------------------------------
# Readers


@dataclasses.dataclass(frozen=True)
class AsExamples(Plain):
    """Reader of the examples of rows, in the order of their numbers."""

    layout: Layout
    VOCABULARY_LIMIT: int = wire.LIMIT

    @property
    def rows_per_record(self) -> int:
        return self.layout.rows_per_record

    def count_rows(self, serialized_B: tf.Tensor) -> tf.Tensor:
        return self.layout.count(serialized_B)

    def unpack(self, serialized_B: tf.Tensor, schema: dict[str, Feature]) -> tf.Tensor:
        """Returns the examples of the rows, int32 [N, W], in the words of compact records.

        Fails with InvalidArgumentError where a record is not a row of these lengths, or an example of one is
        not where it belongs.
        """
        length, most = schema["input_ids"].length, schema["masked_lm_ids"].length
        shape = self.layout.shape(serialized_B, length, most)
        spare = shape.slots - most - shape.depth
        is_good = tf.reduce_any(spare == tf.constant(self.layout.spare)) & tf.reduce_all(shape.depth > 0)
        with tf.control_dependencies([tf.debugging.Assert(is_good, ["rows have other slots than", most])]):
            row = self.layout.read(tf.identity(serialized_B), shape)
        row = checked(row, most, self.layout.may_skip)
        return tf.ensure_shape(examples_of(row, most), [None, encoding.width(length, most)])

    def parse_rows(self, rows_N: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        return compact.READER.parse_rows(rows_N, schema)

    def examples_of(self, record: bytes) -> Examples:
        """Returns the examples of a record. Raises ValueError where it is wrong."""
        shape = self.layout.shape_of(record, None, None)
        _, most = self.layout.sizes(shape)
        problem = self.layout.describe(record, shape, most)
        if problem:
            raise ValueError(problem)
        words = examples_of(self.layout.row(record, shape), most)
        parts: list[np.ndarray] = [part.numpy() for part in compact.columns(words, shape.length, most)]
        tokens, first, predictions, random, _, positions, labels, ids = parts
        return Examples(ids, tokens, first, positions, labels, predictions, random > 0)

    def split(self, record: bytes) -> list[bytes]:
        """Returns a plain record for each example. Raises ValueError for a record that is wrong."""
        return encoding.encode_plain(self.examples_of(record))

    def row_sizes(self, record: bytes) -> tuple[int, int]:
        """Returns K and P of a record. Raises ValueError where it is no row."""
        shape = self.layout.shape_of(record, None, None)
        return shape.slots, shape.depth

    def sizes_of(self, record: bytes) -> tuple[int, int]:
        try:
            return self.layout.sizes(self.layout.shape_of(record, None, None))
        except ValueError:
            return 0, 0

    def describe_mismatch(self, record: bytes, schema: dict[str, Feature]) -> str | None:
        length, most = schema["input_ids"].length, schema["masked_lm_ids"].length
        try:
            shape = self.layout.shape_of(record, length, most)
        except ValueError as error:
            return str(error)
        found = [shape.slots - shape.depth - spare for spare in self.layout.spare]
        if shape.length != length or most not in found:
            return _describe_sizes((shape.length, found[0]), (length, most))
        problem = self.layout.describe(record, shape, most)
        if problem and self.sizes_of(record) not in ((0, 0), (length, most)):
            return _describe_sizes(self.sizes_of(record), (length, most))
        if problem:
            return problem
        # Those of empty slots and padding, too: a step looks them up.
        row, looked_up = self.layout.row(record, shape), ("input_ids", "masked_lm_ids", "masked_lm_positions")
        problems = (describe_range(name, row[name].numpy().ravel(), schema[name]) for name in looked_up)
        return next(filter(None, problems), None)


def _describe_sizes(found: tuple[int, int], expected: tuple[int, int]) -> str:
    return (
        f"it is a row of {found[0]} tokens with up to {found[1]} predicted ones an example, expected"
        f" {expected[0]} and {expected[1]}"
    )


class AsRows(AsExamples):
    """Reader of whole rows, with the features of `schema.packed_schema`."""

    @property
    def rows_per_record(self) -> int:
        return 1

    def count_rows(self, serialized_B: tf.Tensor) -> tf.Tensor:
        return Plain.count_rows(self, serialized_B)

    def unpack(self, serialized_B: tf.Tensor, schema: dict[str, Feature]) -> tf.Tensor:
        return Plain.unpack(self, serialized_B, schema)

    def parse_rows(self, rows_N: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        """Fails with InvalidArgumentError where a record has other lengths than the schema, or its sequences
        are not where they belong."""
        shape = Shape(*(schema[name].length for name in ("input_ids", "masked_lm_ids", "cls_positions")))
        row = checked(self.layout.read(rows_N, shape), None, self.layout.may_skip)
        row = {name: tf.ensure_shape(row[name], [rows_N.shape[0], schema[name].length]) for name in schema}
        return in_range(row, schema)
