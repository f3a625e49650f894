"""Where an interleaved reading of files stands after some records: found by arithmetic, not by reading.

A reading goes through `cycle` places in turns and takes a block of `part` records of the file there; the
last block of a file is what is left. A place whose file gives nothing more stays empty for that turn and
takes the next file at its next one. That is how tf.data's interleave works on files that are read in batches
of `part`; so a reading that goes on is a new one of the files in the order in which their turns come, each
without its first records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """Where a reading stands."""

    files: list[
        tuple[int, int]
    ]  # (number, records that are passed) of those not read to the end, in the order of their turns
    cut: int  # records that are passed, too, of the first block that comes


def find_place(records: Sequence[int], cycle: int, part: int, passed: int) -> Place:
    """Returns where the reading stands after its first `passed` records.

    Args:
      records: of each file, in the order in which they are opened.
      cycle: places.
      part: records of a block.
      passed: fewer than all records.
    """
    places: list[list[int] | None] = [None] * cycle
    turn, opened = 0, 0
    while True:
        if turn == 0:
            passed -= _whole_rounds(places, records, part, passed)
        if places[turn] is None and opened < len(records):
            places[turn], opened = [opened, 0], opened + 1
        open_file = places[turn]
        if open_file is not None:
            number, read = open_file
            block = min(part, records[number] - read)
            if block > passed:
                return Place(_turns(places[turn:] + places[:turn], opened, len(records)), passed)
            places[turn] = [number, read + block] if block else None
            passed -= block
        turn = (turn + 1) % cycle


def _whole_rounds(places: list, records: Sequence[int], part: int, passed: int) -> int:
    """Takes as many rounds of full blocks from all places as can be taken; returns their records."""
    if None in places:
        return 0
    rounds = min(
        passed // (part * len(places)), *((records[number] - read) // part for number, read in places)
    )
    for place in places:
        place[1] += rounds * part
    return rounds * part * len(places)


def _turns(places: list, opened: int, count: int) -> list[tuple[int, int]]:
    """Returns the files in the order of their turns: an empty place opens the next file when its turn
    comes."""
    following = iter(range(opened, count))
    turns = []
    for place in places:
        if place is not None:
            turns.append(tuple(place))
        elif (number := next(following, None)) is not None:
            turns.append((number, 0))
    return turns + [(number, 0) for number in following]
