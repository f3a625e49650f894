"""Sequences that share a row, wherever in it their tokens stand: checks, and conversion to examples.

A row is known by the features of a packed row: which sequence a token belongs to and its place in that
sequence say all, so that one reader does for every layout. Everything is TensorFlow: the same checks fail in
a graph and say eagerly what is wrong.

Shapes: B rows, L tokens of a row, K slots for predicted tokens, P sequences of a row at most, M predicted
tokens of a sequence at most, N sequences in all.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official.data.records.schema import INTEGER_LIMIT

Row = dict[str, tf.Tensor]


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
