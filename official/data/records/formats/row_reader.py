"""Readers of other people's rows, each for a layout: as the examples in them, or as whole rows.

They have what the modules of formats have; nobody writes these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from official.data.pretraining.examples import Examples
from official.data.records.encoding import plain as plain_encoding
from official.data.records.encoding import wire
from official.data.records.encoding.compact import width
from official.data.records.formats import compact, plain, sequences_in_rows
from official.data.records.formats.sequences_in_rows import Row, Shape
from official.data.records.schema import Feature, describe_range, in_range


@dataclasses.dataclass(frozen=True)
class Layout:
    """Layout of the rows in the records of a format; its functions read nothing but their arguments.

    Attributes:
      read: (serialized_B, Shape) -> a row as of `sequences_in_rows.features`; fails with InvalidArgumentError
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
            return sequences_in_rows.describe(self.row(record, shape), most, self.may_skip)
        except ValueError as error:
            return str(error)


def _describe_values(row: Row, schema: dict[str, Feature]) -> str | None:
    """Says which token or label is out of the schema's range."""
    values = ((name, row[name].numpy().ravel()) for name in ("input_ids", "masked_lm_ids"))
    return next(filter(None, (describe_range(name, found, schema[name]) for name, found in values)), None)


@dataclasses.dataclass(frozen=True)
class AsExamples:
    """Reads the examples of rows, in the order of their numbers, one a row: see `record_formats`."""

    layout: Layout
    VOCABULARY_LIMIT: int = wire.LIMIT

    @property
    def ROWS_PER_RECORD(self) -> int:
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
        row = sequences_in_rows.checked(row, most, self.layout.may_skip)
        return tf.ensure_shape(sequences_in_rows.examples_of(row, most), [None, width(length, most)])

    def parse_rows(self, words_NW: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        return compact.parse_rows(words_NW, schema)

    def split(self, record: bytes) -> list[bytes]:
        """Returns a plain record for each example. Raises ValueError for a record that is wrong."""
        shape = self.layout.shape_of(record, None, None)
        _, most = self.layout.sizes(shape)
        problem = self.layout.describe(record, shape, most)
        if problem:
            raise ValueError(problem)
        words = sequences_in_rows.examples_of(self.layout.row(record, shape), most)
        return plain_encoding.encode(_examples(compact.columns(words, shape.length, most)))

    def join(self, records: list[bytes]) -> list[bytes]:
        """Returns the plain records as they are."""
        return records

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
        return problem or _describe_values(self.layout.row(record, shape), schema)


def _describe_sizes(found: tuple[int, int], expected: tuple[int, int]) -> str:
    return (
        f"it is a row of {found[0]} tokens with up to {found[1]} predicted ones an example, expected"
        f" {expected[0]} and {expected[1]}"
    )


def _examples(columns: compact.Columns) -> Examples:
    parts: list[np.ndarray] = [part.numpy() for part in columns]
    tokens, first, predictions, random, _, positions, labels, ids = parts
    return Examples(ids, tokens, first, positions, labels, predictions, random > 0)


@dataclasses.dataclass(frozen=True)
class AsRows:
    """Reads whole rows, with the features of `schema.packed_schema`."""

    layout: Layout
    ROWS_PER_RECORD: int = 1

    def count_rows(self, serialized_B: tf.Tensor) -> tf.Tensor:
        return plain.count_rows(serialized_B)

    def unpack(self, serialized_B: tf.Tensor, schema: dict[str, Feature]) -> tf.Tensor:
        return plain.unpack(serialized_B, schema)

    def row_sizes(self, record: bytes) -> tuple[int, int]:
        """Returns the places of a record for predicted tokens, K, and for sequences, P. Raises ValueError
        where it is no row."""
        shape = self.layout.shape_of(record, None, None)
        return shape.slots, shape.depth

    def parse_rows(self, serialized_B: tf.Tensor, schema: dict[str, Feature]) -> dict[str, tf.Tensor]:
        """Fails with InvalidArgumentError where a record has other lengths than the schema, or its sequences
        are not where they belong."""
        row = self.layout.read(serialized_B, _shape_of(schema))
        row = sequences_in_rows.checked(row, None, self.layout.may_skip)
        row = {name: tf.ensure_shape(row[name], [None, schema[name].length]) for name in schema}
        return in_range(row, schema)


def _shape_of(schema: dict[str, Feature]) -> Shape:
    return Shape(*(schema[name].length for name in ("input_ids", "masked_lm_ids", "cls_positions")))
