"""Packing by putting one length after the other, long ones first, into packs that are still open.

All sequences of a length are placed at once and packs of the same lengths are one kind: the work depends on
the number of lengths and kinds, not on the number of sequences. Source: Krell et al. 2021, arXiv 2107.02027.
"""

from __future__ import annotations

from collections.abc import Callable

from official.data.packing.plan import Histogram, PackingPlan, make_plan

_Kind = tuple  # (tuple of lengths, int): the lengths in a pack, and how many packs have them


def shortest_pack_first(histogram: Histogram, depth: int | None = None) -> PackingPlan:
    """SPFHP: a sequence goes into the open pack with the most room.

    Args:
      histogram: of the lengths.
      depth: sequences of a pack, at most; None: any number.
    """
    return _pack(histogram, depth, _roomiest, repeats=False)


def longest_pack_first(histogram: Histogram, depth: int | None = None) -> PackingPlan:
    """LPFHP: a sequence goes into the fullest open pack that it fits into; where it fits into none, a new
    pack takes as many of its length as it can.

    Args: as of `shortest_pack_first`.
    """
    return _pack(histogram, depth, _tightest, repeats=True)


class _OpenPacks:
    """Packs that still take sequences, by the tokens that are free in them."""

    def __init__(self, row_length: int):
        self.by_room: list[list[_Kind]] = [[] for _ in range(row_length + 1)]

    def add(self, kind: _Kind, room: int) -> None:
        self.by_room[room].append(kind)


def _roomiest(packs: _OpenPacks, length: int, largest: int) -> int | None:
    """Returns the most room that an open pack has, at least `length`; None where there is none."""
    return next((room for room in range(largest, length - 1, -1) if packs.by_room[room]), None)


def _tightest(packs: _OpenPacks, length: int, largest: int) -> int | None:
    """Returns the least room, at least `length`, that an open pack has; None where there is none."""
    return next((room for room in range(length, largest + 1) if packs.by_room[room]), None)


def _pack(
    histogram: Histogram,
    depth: int | None,
    choose: Callable[[_OpenPacks, int, int], int | None],
    repeats: bool,
) -> PackingPlan:
    row_length = histogram.max_length
    limit = depth or row_length
    packs, full = _OpenPacks(row_length), []

    def put(lengths: tuple[int, ...], count: int) -> None:
        room = row_length - sum(lengths)
        if len(lengths) < limit and room:
            packs.add((lengths, count), room)
        else:
            full.append((lengths, count))

    for length in range(row_length, 0, -1):
        left = int(histogram.counts[length])
        while left:
            room = choose(packs, length, row_length)
            if room is None:
                left -= _open_new(length, left, min(row_length // length, limit) if repeats else 1, put)
                continue
            lengths, count = packs.by_room[room].pop()
            taken = min(count, left)
            if count > taken:
                packs.add((lengths, count - taken), room)
            put((*lengths, length), taken)
            left -= taken
    return make_plan(row_length, [*full, *(kind for kinds in packs.by_room for kind in kinds)])


def _open_new(length: int, left: int, most: int, put: Callable[[tuple[int, ...], int], None]) -> int:
    """Opens packs of one length, with `most` sequences each where there are so many; returns the sequences
    placed.
    """
    repeated = min(most, left)
    count = left // repeated
    put((length,) * repeated, count)
    return count * repeated
