"""PopART's binaries of Graphcore: records of a fixed size without framing, of little-endian 32-bit
integers.

Four layouts, S = max_seq_length, M = max_predictions_per_seq, P = maximum number of sequences per row. Their
fields in order, with their numbers of integers:

popart_static, `wiki_*_tokenised`, one sequence each; predicted tokens first as in `formats.remask`, and its
[CLS] at M:
  ids, positions, segments S each; predicted tokens 1; M and the other tokens 1; labels M; next sentence 1.
popart_plain, `record_to_binary` of MLPerf, one sequence each, the features of `formats.plain`:
  ids, mask, segments S; masked positions, labels, weights M; next sentence 1.
popart_packed, `strategy_*` and `duplication_*` of MLPerf, K = M + P - 1:
  ids, number of the sequence (0 is padding), segments, positions S; labels, number of the sequence (0 is an
  empty slot) K; next sentence labels and weights P.
  All predicted tokens come first, in the order of the slots; then the other tokens; then, at the end of the
  row, the [CLS], whose labels are at the end of the labels in the same order: backwards (k-th from the end)
  or forwards, depending on the packer. 76 predictions and three sequences make 78 slots; files of a packer
  with M + P = 79 are read, too.
popart_in_place, `strategy_*` of the later examples, K = M + P; [CLS] first in each sequence, as in
`formats.packed`'s of Habana:
  ids, number, segments, positions S; masked positions in the row, labels, number K; positions of the [CLS],
  next sentence labels and weights P.

If a mask was drawn to be [PAD], id 0, Graphcore's scripts drop the token. One that is missing between two
others is read as a [PAD] that is not predicted; a whole row is one token shorter.

A file does not store its layout or shape. `shapes` derives both from the values of a record, `shape_of_all`
from those of several, since a row of few sequences is also valid in shapes with less space for them.
Source: the pre-training data of Graphcore's BERT for PopART and of their MLPerf submissions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.data.records.formats import packed, row_reader
from official.data.records.formats.row_reader import AsExamples, AsRows, Layout, Row, Shape

# -----------------------------------------------------------------------------------------------------------
# Rows of each layout
#
# Shapes: B records, S tokens per row, K slots for predicted tokens, at most P sequences per row.


Sizes = dict[str, int | tf.Tensor]


def static_sizes(shape: Shape) -> Sizes:
    tokens = dict.fromkeys(("input_ids", "positions", "segment_ids"), shape.length)
    return {**tokens, "predicted": 1, "end": 1, "masked_lm_ids": shape.slots, "next_sentence_labels": 1}


def plain_sizes(shape: Shape) -> Sizes:
    tokens = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), shape.length)
    slots = dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), shape.slots)
    return {**tokens, **slots, "next_sentence_labels": 1}


def packed_sizes(shape: Shape) -> Sizes:
    tokens = dict.fromkeys(("input_ids", "input_mask", "segment_ids", "positions"), shape.length)
    slots = dict.fromkeys(("masked_lm_ids", "masked_lm_weights"), shape.slots)
    labels = dict.fromkeys(("next_sentence_labels", "next_sentence_weights"), shape.depth)
    return {**tokens, **slots, **labels}


def in_place_sizes(shape: Shape) -> Sizes:
    return {name: size for names, size in zip(packed.HABANA_GROUPS, shape) for name in names}


def _fields(serialized_B: tf.Tensor, sizes: Sizes) -> dict[str, tf.Tensor]:
    """Returns int32 {name: [B, size]}; fails with InvalidArgumentError for records of another size."""
    words_BW = tf.io.decode_raw(serialized_B, tf.int32, little_endian=True)
    parts = tf.split(words_BW, tf.stack(list(sizes.values())), axis=1, num=len(sizes))
    return {
        name: tf.ensure_shape(part, [None, size if isinstance(size, int) else None])
        for (name, size), part in zip(sizes.items(), parts)
    }


# ------------------------------------------------------------------------------------------------------------
# Rows


def _row(found: dict[str, tf.Tensor], **others: tf.Tensor) -> Row:
    """Returns a row from fields with the same meaning in every layout, and the others."""
    names = ("input_ids", "segment_ids", "masked_lm_ids", "next_sentence_labels")
    shared = {name: found[name] for name in names}
    shared["example_weights"] = tf.ones_like(found["next_sentence_labels"])
    return row_reader.features({**shared, **others})


def read_static(serialized_B: tf.Tensor, shape: Shape) -> Row:
    found = _fields(serialized_B, static_sizes(shape))
    column_S, column_M = tf.range(shape.length), tf.range(shape.slots)
    is_token_BS = ((column_S < found["predicted"]) | (column_S >= shape.slots)) & (column_S < found["end"])
    is_good_B1 = (found["predicted"] <= shape.slots) & (found["end"] <= shape.length)
    numbers_BS = tf.where(is_good_B1, tf.cast(is_token_BS, tf.int32), -1)
    is_head_BS = is_token_BS & (found["positions"] == 0)
    zeros_BM = tf.zeros_like(found["masked_lm_ids"])
    return _row(
        found,
        sequence_ids=numbers_BS,
        position_ids=found["positions"] * numbers_BS,
        masked_lm_positions=column_M + zeros_BM,
        masked_lm_sequences=tf.cast(column_M < found["predicted"], tf.int32) + zeros_BM,
        cls_positions=tf.argmax(is_head_BS, axis=1, output_type=tf.int32)[:, None],
    )


def read_plain(serialized_B: tf.Tensor, shape: Shape) -> Row:
    found = _fields(serialized_B, plain_sizes(shape))
    return _row(
        found,
        sequence_ids=found["input_mask"],
        position_ids=tf.range(shape.length) * found["input_mask"],
        masked_lm_positions=found["masked_lm_positions"],
        masked_lm_sequences=found["masked_lm_weights"],
        cls_positions=tf.zeros_like(found["next_sentence_labels"]),
    )


def read_packed(serialized_B: tf.Tensor, shape: Shape) -> Row:
    found = _fields(serialized_B, packed_sizes(shape))
    places_P = tf.range(shape.length - shape.depth, shape.length)
    weights_BP = found["next_sentence_weights"]
    owners_BP = tf.gather(found["input_mask"], places_P, axis=1) * tf.cast(weights_BP > 0, tf.int32)
    # For each sequence, by its number, the index of its [CLS] among the last tokens.
    is_own_BPP = tf.cast(owners_BP[:, None] == tf.range(1, shape.depth + 1)[:, None], tf.int32)

    def of_sequences(values_BP: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(is_own_BPP * values_BP[:, None], axis=2)

    slots_BK = found["masked_lm_weights"]
    return _row(
        found,
        sequence_ids=found["input_mask"],
        position_ids=found["positions"],
        masked_lm_positions=tf.range(shape.slots) * tf.cast(slots_BK > 0, tf.int32),
        masked_lm_sequences=slots_BK,
        cls_positions=of_sequences(places_P[None]),
        next_sentence_labels=of_sequences(found["next_sentence_labels"]),
        example_weights=of_sequences(weights_BP),
    )


def read_in_place(serialized_B: tf.Tensor, shape: Shape) -> Row:
    return packed.habana_row_of(_fields(serialized_B, in_place_sizes(shape)))


# -----------------------------------------------------------------------------------------------------------
# Formats


_WORD_BYTES = 4


class _Binary(NamedTuple):
    """Functions of a layout that recognise and read its records.

    Attributes:
      sizes: function (Shape) -> number of integers of each field.
      by_words: function (integers of a record, S, M) -> its Shape.
      find: function (integers of a record, possible S) -> its likely Shapes.
      read: see `Layout`.
    """

    sizes: Callable[[Shape], Sizes]
    by_words: Callable[[int | tf.Tensor, int, int], Shape]
    find: Callable[[np.ndarray, np.ndarray], Iterator[Shape]]
    read: Callable[[tf.Tensor, Shape], Row]

    def num_bytes(self, shape: Shape) -> int:
        """Returns the bytes of a record."""
        return _WORD_BYTES * sum(self.sizes(shape).values())


# ----------------------------------------------------------------------------------------------------------
# Shapes


def _one_sequence(words: int | tf.Tensor, length: int, most: int) -> Shape:  # pylint: disable=unused-argument
    return Shape(length, most, 1)


def _packed_shape(words: int | tf.Tensor, length: int, most: int) -> Shape:
    depth = (words - 4 * length - 2 * most + 2) // 4  # 4 P integers, or 4 P - 2
    return Shape(length, (words - 4 * length - 2 * depth) // 2, depth)


def _in_place_shape(words: int | tf.Tensor, length: int, most: int) -> Shape:
    depth = (words - 4 * length - 3 * most) // 6
    return Shape(length, (words - 4 * length - 3 * depth) // 3, depth)


def _static_shapes(words_W: np.ndarray, lengths_S: np.ndarray) -> Iterator[Shape]:
    slots_S = len(words_W) - 3 * lengths_S - 3
    fits = (slots_S >= 1) & (slots_S < lengths_S)
    lengths_S, slots_S = lengths_S[fits], slots_S[fits]
    tokens_S = np.cumsum(words_W != 0)[lengths_S - 1]
    predicted_S, end_S = words_W[3 * lengths_S], words_W[3 * lengths_S + 1]
    for place in np.flatnonzero(predicted_S + end_S - tokens_S == slots_S):
        yield Shape(int(lengths_S[place]), int(slots_S[place]), 1)


def _plain_shapes(words_W: np.ndarray, lengths_S: np.ndarray) -> Iterator[Shape]:
    slots_S, rest_S = np.divmod(len(words_W) - 3 * lengths_S - 1, 3)
    fits = (rest_S == 0) & (slots_S >= 1) & (slots_S <= lengths_S)
    lengths_S, slots_S = lengths_S[fits], slots_S[fits]
    fits = (words_W[lengths_S] == 1) & (words_W[3 * lengths_S + 2 * slots_S] == 1)
    for length, slots in zip(lengths_S[fits], slots_S[fits]):
        yield Shape(int(length), int(slots), 1)


def _row_shapes(words_W: np.ndarray, lengths_S: np.ndarray, is_in_place: bool) -> Iterator[Shape]:
    """Yields the likely shapes of rows: the first slot belongs to the first sequence, and the [CLS] that has
    a label at one end of the labels is a first token at that end of the row."""
    fields = 3 if is_in_place else 2  # of K values, the last one the number of the sequence, and of P
    for depth in range(1, 17):  # sequences of a row
        slots_S, rest_S = np.divmod(len(words_W) - 4 * lengths_S - fields * depth, fields)
        fits = (rest_S == 0) & (slots_S >= depth) & (slots_S <= lengths_S)
        own_S, slots_S = lengths_S[fits], slots_S[fits]
        fits = words_W[4 * own_S + (fields - 1) * slots_S] == 1
        head_S = own_S if is_in_place else 2 * own_S - 1
        fits &= (words_W[head_S] > 0) & (words_W[own_S] == 1)
        fits &= (words_W[head_S + own_S] == 0) & (words_W[head_S + 2 * own_S] == 0)
        fits &= words_W[-depth if is_in_place else -1] == 1
        for length, slots in zip(own_S[fits], slots_S[fits]):
            yield Shape(int(length), int(slots), depth)


_BINARIES = {
    "popart_static": _Binary(static_sizes, _one_sequence, _static_shapes, read_static),
    "popart_plain": _Binary(plain_sizes, _one_sequence, _plain_shapes, read_plain),
    "popart_packed": _Binary(
        packed_sizes, _packed_shape, functools.partial(_row_shapes, is_in_place=False), read_packed
    ),
    "popart_in_place": _Binary(
        in_place_sizes, _in_place_shape, functools.partial(_row_shapes, is_in_place=True), read_in_place
    ),
}


def shapes(record: bytes, name: str) -> Iterator[Shape]:
    """Yields the shapes in which a record of any length is valid in a layout, shorter rows first.

    Args:
      record: bytes of a record.
      name: name in EXAMPLES.
    """
    words_W = np.frombuffer(record, "<i4") if len(record) % _WORD_BYTES == 0 else np.zeros(0, np.int32)
    if not len(words_W) or words_W.min() < 0 or words_W.max() >= EXAMPLES[name].VOCABULARY_LIMIT:
        return
    for shape in _BINARIES[name].find(words_W, np.arange(8, len(words_W) // 3)):  # tokens of a row
        if describe(record, name, shape) is None:
            yield shape


def shapes_by_fit(records: Sequence[bytes], name: str) -> list[tuple[int, Shape]]:
    """Returns (number of valid records, shape) for the shapes of the first record that is valid in any:
    sorted by the number of valid records, then by the space for sequences."""
    possible = next(filter(None, (list(shapes(record, name)) for record in records)), [])
    found = [(sum(describe(record, name, shape) is None for record in records), shape) for shape in possible]
    return sorted(found, key=lambda each: (-each[0], -each[1].depth))


def shape_of_all(records: Sequence[bytes], name: str) -> Shape | None:
    """Returns the shape in which most of the given records of a file are valid; None if none is."""
    return next((shape for _, shape in shapes_by_fit(records, name)), None)


def shape_of_sizes(name: str, num_bytes: int, length: int, most: int) -> Shape:
    """Returns the shape of records of a layout with so many bytes, and tokens and predicted tokens per
    example."""
    return _BINARIES[name].by_words(num_bytes // _WORD_BYTES, length, most)


def describe(record: bytes, name: str, shape: Shape) -> str | None:
    """Describes the fault of a record of a layout and a shape; None if it is valid."""
    layout = EXAMPLES[name].layout
    return layout.describe(record, shape, layout.sizes(shape)[1])


def record_bytes(name: str, length: int, most: int, depth: int) -> int:
    """Returns the bytes of a record of a layout with the minimum number of slots."""
    shape = Shape(length, most + depth + EXAMPLES[name].layout.spare[0], depth)
    return _BINARIES[name].num_bytes(shape)


def _shape_of(record: bytes, length: int | None, most: int | None, name: str) -> Shape:
    words = len(record) // _WORD_BYTES
    if length is None or most is None:
        shape = shape_of_all([record], name)
        if shape is None:
            raise ValueError(f"it is not a valid {name} record")
        return shape
    shape = _BINARIES[name].by_words(words, length, most)
    if shape.depth < 1 or _BINARIES[name].num_bytes(shape) != len(record):
        expected = record_bytes(name, length, most, 1)
        raise ValueError(
            f"it has {len(record):,} bytes, which no {name} record of {length} tokens and {most} predicted"
            f" ones an example has: {expected:,}"
            + (", and more for several sequences" if name in ROWS else "")
        )
    return shape


def _count(serialized_B: tf.Tensor, name: str) -> tf.Tensor:
    """Fails with InvalidArgumentError if no record is valid."""

    def count(records: np.ndarray) -> np.ndarray:
        places = np.linspace(0, len(records) - 1, min(len(records), 16)).astype(int)  # samples of a batch
        shape = shape_of_all(list(records[places]), name)
        shape = shape or next((found for record in records for found in shapes(record, name)), None)
        if shape is None:
            raise ValueError(f"no record is a valid {name} record")
        weights = [np.frombuffer(record, "<i4")[-shape.depth :] for record in records]
        return (np.array(weights) > 0).sum(axis=1).astype(np.int32)

    return tf.ensure_shape(tf.numpy_function(count, [serialized_B], tf.int32), serialized_B.shape)


def _layout(name: str, *spare: int, **others) -> Layout:
    binary = _BINARIES[name]

    def shape(serialized_B: tf.Tensor, length: int, most: int) -> Shape:
        return binary.by_words(tf.strings.length(serialized_B)[0] // _WORD_BYTES, length, most)

    count = functools.partial(_count, name=name)
    if others.get("rows_per_record") == 1:
        count = functools.partial(tf.ones_like, dtype=tf.int32)
    return Layout(
        binary.read, shape, functools.partial(_shape_of, name=name), spare=spare, count=count, **others
    )


_LAYOUTS = {
    "popart_static": _layout("popart_static", -1, rows_per_record=1, may_skip=True),
    "popart_plain": _layout("popart_plain", -1, rows_per_record=1),
    "popart_packed": _layout("popart_packed", -1, 0, may_skip=True),
    "popart_in_place": _layout("popart_in_place", 0),
}
EXAMPLES = {name: AsExamples(layout) for name, layout in _LAYOUTS.items()}
ROWS = {name: AsRows(_LAYOUTS[name]) for name in ("popart_packed", "popart_in_place")}
