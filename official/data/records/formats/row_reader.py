"""Readers of rows of several sequences, in any layout of a row: as separate examples, or as whole rows.

A row is described by the features of a packed row: the sequence of each token and its position in that
sequence are enough, so one reader handles every layout. All checks are TensorFlow operations: in a graph
they fail, and eagerly they also name the fault.

Shapes: B rows, L tokens of a row, K slots for predicted tokens, P = maximum number of sequences in a row,
M = maximum number of predicted tokens in a sequence, N sequences in all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.data.pretraining.examples import Examples
from official.data.records import encoding
from official.data.records import schema as schema_lib
from official.data.records.formats import compact
from official.data.records.formats.plain import Plain
from official.data.records.schema import INTEGER_LIMIT, Feature, in_range, where_all

Row = dict  # {name: tensor}

# -----------------------------------------------------------------------------------------------------------
# Rows


class Shape(NamedTuple):
    """L, K and P of rows; K and P may be tensors."""

    length: int
    slots: int | tf.Tensor
    depth: int | tf.Tensor


def features(row: Row) -> Row:
    """Returns a row completed with derived features: `input_mask`, `masked_lm_weights`, and types."""
    row = {name: tf.cast(value, tf.int32) for name, value in row.items()}
    return {
        **row,
        "input_mask": tf.cast(row["sequence_ids"] > 0, tf.int32),
        "masked_lm_weights": tf.cast(row["masked_lm_sequences"] > 0, tf.float32),
        "example_weights": tf.cast(row["example_weights"], tf.float32),
    }


class _Members:
    """Sequences of rows, derived from their tokens.

    Attributes:
      seen_BPL: int32, number of occurrences of each position of each sequence in the row.
      lengths_BP: int32, last position plus 1; 0 for an empty slot.
      firsts_BP: int32, number of tokens in the first segment.
      predictions_BP: int32, number of predicted tokens.
    """

    def __init__(self, row: Row):
        self._row, self._depth = row, tf.shape(row["example_weights"])[1]
        self._length = row["input_ids"].shape[1]
        end_L = tf.range(1, self._length + 1)
        self.seen_BPL = self.by_place(tf.ones_like(row["sequence_ids"]))
        firsts_BPL = self.by_place(tf.cast(row["segment_ids"] == 0, tf.int32))
        self.lengths_BP = tf.reduce_max(tf.where(self.seen_BPL > 0, end_L, 0), axis=2)
        self.firsts_BP = tf.reduce_max(tf.where(firsts_BPL > 0, end_L, 0), axis=2)
        is_own_BKP = row["masked_lm_sequences"][:, :, None] == tf.range(1, self._depth + 1)
        self.predictions_BP = tf.reduce_sum(tf.cast(is_own_BKP, tf.int32), axis=1)

    def by_place(self, values_BL: tf.Tensor) -> tf.Tensor:
        """Returns the values of tokens by sequence and position, [B, P, L]; values of the same position are
        added up, those out of range left out."""
        return self._added(self._row["sequence_ids"], self._row["position_ids"], values_BL, self._length)

    def by_slot(self, values_BK: tf.Tensor, most: int) -> tf.Tensor:
        """Returns the values of predicted tokens by sequence and number in the sequence, [B, P, M]."""
        slots_BK = self._row["masked_lm_sequences"]
        starts_BK = _at(tf.cumsum(self.predictions_BP, axis=1, exclusive=True), slots_BK - 1)
        return self._added(slots_BK, tf.range(tf.shape(slots_BK)[1]) - starts_BK, values_BK, most)

    def _added(self, numbers_BX, places_BX, values_BX: tf.Tensor, size: int) -> tf.Tensor:
        is_in = (numbers_BX > 0) & (numbers_BX <= self._depth) & (places_BX >= 0) & (places_BX < size)
        rows = tf.shape(values_BX)[0]
        sequence_BX = tf.range(rows)[:, None] * self._depth + numbers_BX - 1
        index_BX = tf.where(is_in, sequence_BX * size + places_BX, -1)
        added = tf.math.unsorted_segment_sum(values_BX, index_BX, rows * self._depth * size)
        return tf.reshape(added, tf.stack([rows, self._depth, size]))


def _at(values_BX: tf.Tensor, places_BY: tf.Tensor) -> tf.Tensor:
    """Returns values at positions, [B, Y]; a position out of range is clipped."""
    return tf.gather(values_BX, tf.clip_by_value(places_BY, 0, tf.shape(values_BX)[1] - 1), batch_dims=1)


def faults(row: Row, most: int | None = None, may_skip: bool = False) -> dict[str, tf.Tensor]:
    """Returns {possible fault of a row: whether it occurs, bool [B, ..]}, the most basic fault first.

    Args:
      row: a row as of `features`.
      most: M; None: any number.
      may_skip: whether tokens may be missing inside a sequence.
    """
    members, depth = _Members(row), tf.shape(row["example_weights"])[1]
    length, numbers_BL, places_BL = row["input_ids"].shape[1], row["sequence_ids"], row["position_ids"]
    slots_BK, is_there_BP = row["masked_lm_sequences"], members.lengths_BP > 0
    ordered_BK = tf.where(slots_BK == 0, depth + 1, slots_BK)
    heads_BP, labels_BP = row["cls_positions"], row["next_sentence_labels"]
    missing_BPL = (members.seen_BPL == 0) & (tf.range(length) < members.lengths_BP[:, :, None])
    if may_skip:
        missing_BPL &= tf.concat([missing_BPL[:, :, :1], missing_BPL[:, :, :-1]], axis=2)
    is_second_BL = places_BL >= _at(members.firsts_BP, numbers_BL - 1)

    def are_elsewhere(places_BX: tf.Tensor, numbers_BX: tf.Tensor) -> tf.Tensor:
        """Tells whether positions are outside the row, or in a sequence of another number."""
        return (places_BX < 0) | (places_BX >= length) | (_at(numbers_BL, places_BX) != numbers_BX)

    return {
        "the number of an example is out of range": tf.concat(
            [(numbers < 0) | (numbers > depth) for numbers in (numbers_BL, slots_BK)], axis=1
        ),
        "it holds no example 1": ~is_there_BP[:, :1],
        "the numbers of its examples have a gap": is_there_BP[:, 1:] & ~is_there_BP[:, :-1],
        f"positions exceed the row of {length} tokens": (places_BL < 0) | (places_BL >= length),
        "examples overlap: a position of one occurs twice": members.seen_BPL > 1,
        "positions leave their example: some between them are missing": missing_BPL,
        "next_sentence_weights do not name the examples of the row": row["example_weights"]
        != tf.cast(is_there_BP, tf.float32),
        "next_sentence_positions leave their example": is_there_BP
        & (are_elsewhere(heads_BP, tf.range(1, depth + 1)) | (_at(places_BL, heads_BP) != 0)),
        "segment_ids of an example are not zeros and then ones": (numbers_BL > 0)
        & (row["segment_ids"] != tf.cast(is_second_BL, tf.int32)),
        "masked_lm_weights are not ones, twos, .. and zeros": ordered_BK[:, 1:] < ordered_BK[:, :-1],
        f"an example has more than {most} predicted tokens": members.predictions_BP
        > (INTEGER_LIMIT - 1 if most is None else most),
        "masked_lm_positions leave their example": (slots_BK > 0)
        & are_elsewhere(row["masked_lm_positions"], slots_BK),
        "next_sentence_labels are not 0 or 1": (labels_BP < 0) | (labels_BP > 1),
    }


def examples_of(row: Row, most: int) -> tf.Tensor:
    """Returns the sequences of valid rows in the words of compact records, int32 [N, W], in the order of rows
    and numbers; a missing token is 0, [PAD]."""
    members, random_BP = _Members(row), row["next_sentence_labels"]
    head = [members.lengths_BP, members.firsts_BP, members.predictions_BP, random_BP, 0 * random_BP]
    words = [
        tf.stack(head, axis=2),
        members.by_slot(_at(row["position_ids"], row["masked_lm_positions"]), most),
        members.by_slot(row["masked_lm_ids"], most),
        members.by_place(row["input_ids"]),
    ]
    return tf.boolean_mask(tf.concat(words, axis=2), members.lengths_BP > 0)


# -----------------------------------------------------------------------------------------------------------
# Layouts


@dataclasses.dataclass(frozen=True)
class Layout:
    """Layout of the rows in the records of a format, as pure functions.

    Attributes:
      read: (serialized_B, Shape) -> a row as of `features`; fails with InvalidArgumentError for records of
        another shape.
      shape: (serialized_B, L, M) -> Shape, whose K and P are tensors; arbitrary for invalid records.
      shape_of: (record, L or None, M or None) -> Shape; with L and M, as far as possible without reading the
        values. Raises ValueError for a record without a shape.
      count: (serialized_B) -> int32 [B], the number of sequences in each record.
      spare: possible values of K - M - P, the likeliest first.
      may_skip: whether tokens may be missing inside a sequence.
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

    def read_right(self, serialized_B: tf.Tensor, shape: Shape, most: int | None) -> Row:
        """Returns a row, as `read` does; fails with InvalidArgumentError if it has one of `faults`."""
        row = self.read(serialized_B, shape)
        are_right = [~is_wrong for is_wrong in faults(row, most, self.may_skip).values()]
        return where_all(are_right, row, "not all rows are valid")

    def row(self, record: bytes, shape: Shape) -> Row:
        """Returns the only row of a record. Raises ValueError if it has another shape."""
        try:
            return self.read(tf.constant([record]), shape)
        except (tf.errors.OpError, UnicodeDecodeError):
            raise ValueError(f"it is not a row of {shape.length} tokens") from None

    def describe(self, record: bytes, shape: Shape, most: int | None) -> str | None:
        """Describes the fault of a record of a shape, eagerly; None if it is valid."""
        try:
            found = faults(self.row(record, shape), most, self.may_skip)
        except ValueError as error:
            return str(error)
        return next((what for what, is_wrong in found.items() if bool(tf.reduce_any(is_wrong))), None)


class Features(NamedTuple):
    """Rows as tf.train.Examples.

    Attributes:
      groups: names of the features of L, of K and of P values.
      floats: names of the features of type float, whose values are whole numbers, too.
      row_of: (fields, int32) -> a row as of `features`.
      weights: name of the feature that is above 0 for a sequence and 0 for an empty slot.
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
        found = self._parse(serialized_B, sizes)
        are_good = [tf.cast(found[name].row_lengths(), tf.int32) == size for name, size in sizes.items()]
        values = {name: _whole_numbers(found[name].values) for name in sizes}
        values = where_all(are_good, values, "not all rows are packed")
        return self.row_of({name: tf.reshape(values[name], tf.stack([-1, sizes[name]])) for name in sizes})

    def _parse(self, serialized_B: tf.Tensor, names: Iterable[str]) -> dict[str, tf.RaggedTensor]:
        spec = {name: tf.io.RaggedFeature(tf.float32 if name in self.floats else tf.int64) for name in names}
        return tf.io.parse_example(serialized_B, spec)

    def _shape(self, serialized_B: tf.Tensor, length: int, most: int) -> Shape:  # pylint: disable=unused-argument
        names = [names[0] for names in self.groups[1:]]
        found = self._parse(serialized_B, names)
        return Shape(length, *(tf.cast(found[name].row_lengths()[0], tf.int32) for name in names))

    def _shape_of(self, record: bytes, length: int | None, most: int | None) -> Shape:  # pylint: disable=unused-argument
        features, schema = schema_lib.read_example(record) or {}, {}
        for names in self.groups:
            first = features.get(names[0])
            size = len(getattr(first, first.WhichOneof("kind") or "int64_list").value) if first else 0
            if first and not size:
                raise ValueError(f"feature {names[0]} has no values")
            for name in names:
                schema[name] = Feature(size, tf.float32 if name in self.floats else tf.int32)
        if problem := schema_lib.describe_example(record, schema, has_ranges=False):
            raise ValueError(problem)
        return Shape(*(schema[names[0]].length for names in self.groups))

    def _count(self, serialized_B: tf.Tensor) -> tf.Tensor:
        found = self._parse(serialized_B, (self.weights,))[self.weights]
        return tf.cast(tf.reduce_sum(tf.cast(found > 0, tf.int32), axis=1), tf.int32)


def _whole_numbers(values: tf.Tensor) -> tf.Tensor:
    """Converts to int32; fractions become -1, which is invalid in every feature."""
    numbers = tf.cast(values, tf.int64)
    is_one = (numbers >= 0) & (numbers < INTEGER_LIMIT) & (tf.cast(numbers, values.dtype) == values)
    return tf.cast(tf.where(is_one, numbers, -1), tf.int32)


# -----------------------------------------------------------------------------------------------------------
# Readers


@dataclasses.dataclass(frozen=True)
class AsExamples(Plain):
    """Reader of the examples of rows, in the order of their numbers."""

    layout: Layout
    VOCABULARY_LIMIT = encoding.LIMIT

    @property
    def rows_per_record(self) -> int:  # type: ignore[override]
        return self.layout.rows_per_record

    def count_rows(self, serialized_B: tf.Tensor) -> tf.Tensor:
        return self.layout.count(serialized_B)

    def unpack(self, serialized_B: tf.Tensor, schema: dict[str, Feature]) -> tf.Tensor:
        """Returns the examples of the rows, int32 [N, W], in the words of compact records.

        Fails with InvalidArgumentError if a record is not a row of these lengths, or a row is invalid.
        """
        length, most = schema["input_ids"].length, schema["masked_lm_ids"].length
        shape = self.layout.shape(serialized_B, length, most)
        spare = shape.slots - most - shape.depth
        are_good = [tf.reduce_any(spare == tf.constant(self.layout.spare)), shape.depth > 0]
        serialized_B = where_all(are_good, serialized_B, f"rows do not have {most} slots")
        row = self.layout.read_right(serialized_B, shape, most)
        return tf.ensure_shape(examples_of(row, most), [None, encoding.HEAD + 2 * most + length])

    def parse_rows(self, rows_N: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        return compact.READER.parse_rows(rows_N, schema)

    def examples_of(self, record: bytes) -> Examples:
        """Returns the examples of a record. Raises ValueError if it is invalid."""
        shape = self.layout.shape_of(record, None, None)
        _, most = self.layout.sizes(shape)
        if problem := self.layout.describe(record, shape, most):
            raise ValueError(problem)
        words = examples_of(self.layout.row(record, shape), most)
        parts: list[np.ndarray] = [part.numpy() for part in compact.columns(words, shape.length, most)]
        tokens, first, predictions, random, _, positions, labels, ids = parts
        return Examples(ids, tokens, first, positions, labels, predictions, random > 0)

    def split(self, record: bytes) -> list[bytes]:
        return encoding.encode(self.examples_of(record), "plain")

    def row_sizes(self, record: bytes) -> tuple[int, int]:
        """Returns K and P of a record. Raises ValueError if it is not a row."""
        shape = self.layout.shape_of(record, None, None)
        return shape.slots, shape.depth

    def sizes_of(self, record: bytes) -> tuple[int, int]:
        try:
            return self.layout.sizes(self.layout.shape_of(record, None, None))
        except ValueError:
            return 0, 0

    def describe_mismatch(self, record: bytes, schema: dict[str, Feature]) -> str | None:
        expected = schema["input_ids"].length, schema["masked_lm_ids"].length
        shape = self.layout.shape_of(record, *expected)
        sizes = [(shape.length, shape.slots - shape.depth - spare) for spare in self.layout.spare]
        problem = self.layout.describe(record, shape, expected[1]) if expected in sizes else None
        found = self.sizes_of(record) if problem else sizes[0]
        if expected not in sizes or problem and found not in ((0, 0), expected):
            actual = f"it is a row of {found[0]} tokens with up to {found[1]} predicted ones per example"
            return f"{actual}, expected {expected[0]} and {expected[1]}"
        if problem:
            return problem
        # Empty slots and padding are checked, too, since a step looks up their values.
        row, looked_up = self.layout.row(record, shape), ("input_ids", "masked_lm_ids", "masked_lm_positions")
        return schema_lib.describe_values({name: row[name].numpy().ravel() for name in looked_up}, schema)


class AsRows(AsExamples):
    """Reader of whole rows, with the features of `schema.packed_schema`."""

    rows_per_record, count_rows, unpack = 1, Plain.count_rows, Plain.unpack

    def parse_rows(self, rows_N: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        """Fails with InvalidArgumentError if a record has other lengths than the schema, or is invalid."""
        shape = Shape(*(schema[name].length for name in ("input_ids", "masked_lm_ids", "cls_positions")))
        row = self.layout.read_right(rows_N, shape, None)
        row = {name: tf.ensure_shape(row[name], [rows_N.shape[0], schema[name].length]) for name in schema}
        return in_range(row, schema)
