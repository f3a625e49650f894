"""Examples <-> the arrays of packed rows, whose layout `packed` describes. No TensorFlow.

Shapes: R rows, N examples, S tokens of a row, P examples of a row at most, M predicted tokens of an example
at most, K = M + P - 1 slots for predicted tokens.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from official.data.pretraining.examples import Examples

FLOATS = ("packed_masked_lm_mask", "packed_next_sentence_mask")
_TOKENS = ("packed_input_ids", "packed_input_mask", "packed_segment_ids", "packed_position_ids")
_SLOTS = ("packed_masked_lm_positions", "packed_masked_lm_ids", "packed_masked_lm_mask")
_LABELS = ("packed_next_sentence_labels", "packed_next_sentence_mask")
GROUPS = {"tokens": _TOKENS, "slots": _SLOTS, "labels": _LABELS}  # of one length each
NAMES = (*_TOKENS, *_SLOTS, *_LABELS)
if TYPE_CHECKING:  # alone in annotations: Python 3.8 could not make it
    Rows = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Places of the T parts of N examples in rows: part i of example n."""

    example: np.ndarray  # int [T]: n of each part
    index: np.ndarray  # int [T]: i of each part
    row: np.ndarray  # int [T]
    place: np.ndarray  # int [T]: in the row


def _parts(counts_N: np.ndarray, rows_N: np.ndarray) -> _Layout:
    """Lays out parts one after the other, from 0 in each row; the examples of a row follow each other."""
    example = np.repeat(np.arange(len(counts_N)), counts_N)
    ends_N = np.cumsum(counts_N)
    number = np.arange(len(example))
    row = rows_N[example]
    is_first_N = np.diff(rows_N, prepend=-1) > 0
    row_starts_N = np.maximum.accumulate(np.where(is_first_N, ends_N - counts_N, 0))
    return _Layout(example, number - (ends_N - counts_N)[example], row, number - row_starts_N[example])


def sizes_of(rows: Rows) -> tuple[int, int]:
    """Returns S and M."""
    depth = rows["packed_next_sentence_labels"].shape[-1]
    return rows["packed_input_ids"].shape[-1], rows["packed_masked_lm_ids"].shape[-1] - depth + 1


def check_sizes(rows: Rows) -> None:
    """Raises ValueError where features of one size have another length than each other, or a row has no
    room.
    """
    for names in GROUPS.values():
        for name in names:
            found, expected = rows[name].shape[-1], rows[names[0]].shape[-1]
            if found != expected or not found:
                raise ValueError(f"feature {name} has {found} values, {names[0]} {expected}")
    if sizes_of(rows)[1] < 1:
        slots, depth = (rows[names[0]].shape[-1] for names in (_SLOTS, _LABELS))
        raise ValueError(
            f"it has {slots} slots for predicted tokens, expected at least {depth}: one an example"
        )


def pack_rows(examples: Examples, members_RP: np.ndarray) -> Rows:
    """Returns the features of R rows, {name: [R, S], [R, K] or [R, P]}.

    Args:
      examples: N of them, of S tokens and M predicted ones at most.
      members_RP: int [R, P], the examples of a row, -1 behind the last one.

    Raises:
      ValueError: where the examples of a row have more tokens than S, or more predicted ones than K.
    """
    (rows, depth), length = members_RP.shape, examples.input_ids.shape[1]
    row_N, slot_N = np.nonzero(members_RP >= 0)
    chosen_N = members_RP[row_N, slot_N]
    slots = examples.positions.shape[1] + depth - 1
    for counts_N, most, what in (
        (examples.lengths, length, "tokens"),
        (examples.predictions, slots, "predicted tokens"),
    ):
        found = np.bincount(row_N, counts_N[chosen_N], minlength=rows)
        if (found > most).any():
            raise ValueError(f"row {found.argmax()} has {found.max():.0f} {what}, expected at most {most}")
    packed = {
        name: np.zeros((rows, width), np.float32 if name in FLOATS else np.int32)
        for names, width in ((_TOKENS, length), (_SLOTS, slots), (_LABELS, depth))
        for name in names
    }
    _put_tokens(packed, examples, (row_N, slot_N, chosen_N))
    _put_predictions(packed, examples, (row_N, slot_N, chosen_N))
    packed["packed_next_sentence_labels"][row_N, depth - 1 - slot_N] = examples.is_random[chosen_N]
    packed["packed_next_sentence_mask"][row_N, depth - 1 - slot_N] = 1
    return packed


if TYPE_CHECKING:
    # int [N] each: row, place among those of the row, example
    _Members = tuple[np.ndarray, np.ndarray, np.ndarray]


def _put_tokens(packed: Rows, examples: Examples, members: _Members) -> None:
    row_N, slot_N, chosen_N = members
    body = _parts(examples.lengths[chosen_N] - 1, row_N)
    heads_at = examples.input_ids.shape[1] - 1 - slot_N
    packed["packed_input_ids"][row_N, heads_at] = examples.input_ids[chosen_N, 0]
    packed["packed_input_mask"][row_N, heads_at] = slot_N + 1
    example, index = chosen_N[body.example], body.index + 1
    packed["packed_input_ids"][body.row, body.place] = examples.input_ids[example, index]
    packed["packed_input_mask"][body.row, body.place] = slot_N[body.example] + 1
    packed["packed_segment_ids"][body.row, body.place] = index >= examples.first_lengths[example]
    packed["packed_position_ids"][body.row, body.place] = index


def _put_predictions(packed: Rows, examples: Examples, members: _Members) -> None:
    row_N, slot_N, chosen_N = members
    body_N = examples.lengths[chosen_N] - 1
    starts_N = np.cumsum(body_N) - body_N
    starts_N -= np.maximum.accumulate(np.where(np.diff(row_N, prepend=-1) > 0, starts_N, 0))
    found = _parts(examples.predictions[chosen_N], row_N)
    example = chosen_N[found.example]
    position = examples.positions[example, found.index].astype(np.int64)
    heads_at = examples.input_ids.shape[1] - 1 - slot_N
    packed["packed_masked_lm_positions"][found.row, found.place] = np.where(
        position > 0, starts_N[found.example] + position - 1, heads_at[found.example]
    )
    packed["packed_masked_lm_ids"][found.row, found.place] = examples.labels[example, found.index]
    packed["packed_masked_lm_mask"][found.row, found.place] = slot_N[found.example] + 1


# ------------------------------------------------------------------------------------------------------------
# Reading


def members_of(rows: Rows) -> Examples:
    """Returns the examples of some rows, those of a row in their order.

    Args:
      rows: {name: [R, S], [R, K] or [R, P]}.

    Raises:
      ValueError: for rows without examples, and where examples overlap, leave gaps, exceed the row, or
        something of one stands in another.
    """
    check_sizes(rows)
    length, most = sizes_of(rows)
    tokens_RP = _counts(rows, "packed_input_mask")
    predictions_RP = _counts(rows, "packed_masked_lm_mask")
    is_there_RP = tokens_RP > 0
    _check(~is_there_RP[:, :1], "it holds no example 1")
    _check(
        is_there_RP[:, 1:] & ~is_there_RP[:, :-1],
        "the numbers of its examples in packed_input_mask have a gap",
    )
    told_RP = rows["packed_next_sentence_mask"][:, ::-1]
    _check(
        told_RP != is_there_RP, "packed_next_sentence_mask does not name the examples of packed_input_mask"
    )
    _check(predictions_RP > most, f"an example has more than {most} predicted tokens")
    _check((predictions_RP > 0) & ~is_there_RP, "packed_masked_lm_mask names an example that is not there")
    row_N, slot_N = np.nonzero(is_there_RP)
    lengths_N, predictions_N = tokens_RP[row_N, slot_N], predictions_RP[row_N, slot_N]
    ids_NL, first_N, start_N = _take_tokens(rows, (row_N, slot_N, lengths_N))
    positions_NM, labels_NM = _take_predictions(rows, (row_N, slot_N, start_N), predictions_N)
    return Examples(
        ids_NL,
        lengths_N,
        first_N,
        positions_NM,
        labels_NM,
        predictions_N,
        rows["packed_next_sentence_labels"][:, ::-1][row_N, slot_N] > 0,
    )


def _counts(rows: Rows, name: str) -> np.ndarray:
    """Returns how often each number 1 to P stands in a row, int [R, P]. Raises ValueError for another
    number.
    """
    depth, numbers = rows["packed_next_sentence_labels"].shape[1], rows[name]
    _check(~np.isin(numbers, np.arange(depth + 1)), f"{name} has a number that is not 0 to {depth}")
    keys = numbers.astype(np.int64) + np.arange(len(numbers))[:, None] * (depth + 1)
    return np.bincount(keys.ravel(), minlength=len(numbers) * (depth + 1)).reshape(-1, depth + 1)[:, 1:]


def _check(is_wrong: np.ndarray, problem: str) -> None:
    if is_wrong.any():
        raise ValueError(problem)


def _check_equal(found: np.ndarray, expected: np.ndarray, problem: str) -> None:
    wrong = np.argwhere(found != expected)
    if len(wrong):
        row, place = wrong[0]
        raise ValueError(
            f"{problem}: place {place} has {found[row, place]:g}, expected {expected[row, place]}"
        )


def _take_tokens(rows: Rows, members: _Members) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids [N, S], the tokens whose segment is 0 [N], and where in the row token 1 stands [N]."""
    row_N, slot_N, lengths_N = members
    shape, body = rows["packed_input_ids"].shape, _parts(lengths_N - 1, row_N)
    heads_at = shape[1] - 1 - slot_N
    mask, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    mask[row_N, heads_at], mask[body.row, body.place] = slot_N + 1, slot_N[body.example] + 1
    positions[body.row, body.place] = body.index + 1
    _check_equal(rows["packed_input_mask"], mask, "packed_input_mask: examples overlap or stand apart")
    _check_equal(rows["packed_position_ids"], positions, "packed_position_ids leave their example")
    is_stray = (rows["packed_input_mask"] == 0) & (rows["packed_segment_ids"] != 0)
    _check(is_stray, "packed_segment_ids are not 0 in the padding")
    segments = np.zeros((len(row_N), shape[1]), np.int64)
    segments[body.example, body.index + 1] = rows["packed_segment_ids"][body.row, body.place]
    segments[:, 0] = rows["packed_segment_ids"][row_N, heads_at]
    first_N = np.maximum(lengths_N - (segments > 0).sum(axis=1), 1)  # [CLS] is of the first segment
    column_L = np.arange(shape[1])
    expected = (column_L >= first_N[:, None]) & (column_L < lengths_N[:, None])
    _check(segments != expected, "packed_segment_ids of an example are not zeros and then ones")
    ids = np.zeros((len(row_N), shape[1]), rows["packed_input_ids"].dtype)
    ids[:, 0] = rows["packed_input_ids"][row_N, heads_at]
    ids[body.example, body.index + 1] = rows["packed_input_ids"][body.row, body.place]
    starts_N = np.cumsum(lengths_N - 1) - (lengths_N - 1)
    starts_N -= np.maximum.accumulate(np.where(np.diff(row_N, prepend=-1) > 0, starts_N, 0))
    return ids, first_N, starts_N


def _take_predictions(
    rows: Rows, members: _Members, predictions_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns positions in the example and labels, [N, M] each; `members` has where token 1 stands."""
    row_N, slot_N, start_N = members
    length, most = sizes_of(rows)
    found = _parts(predictions_N, row_N)
    mask = np.zeros(rows["packed_masked_lm_mask"].shape, np.int64)
    mask[found.row, found.place] = slot_N[found.example] + 1
    _check_equal(rows["packed_masked_lm_mask"], mask, "packed_masked_lm_mask is not ones, twos, .. and zeros")
    places = rows["packed_masked_lm_positions"]
    is_outside = (places < 0) | (places >= length)  # of empty slots, too: a step looks them up
    _check(is_outside, f"packed_masked_lm_positions exceed the row of {length} tokens")
    place = places[found.row, found.place]
    owner = rows["packed_input_mask"][found.row, place]
    _check(owner != slot_N[found.example] + 1, "packed_masked_lm_positions leave their example")
    positions = np.zeros((len(row_N), most), np.int64)
    labels = np.zeros((len(row_N), most), rows["packed_masked_lm_ids"].dtype)
    is_head = place == length - 1 - slot_N[found.example]
    positions[found.example, found.index] = np.where(is_head, 0, place - start_N[found.example] + 1)
    labels[found.example, found.index] = rows["packed_masked_lm_ids"][found.row, found.place]
    return positions, labels
