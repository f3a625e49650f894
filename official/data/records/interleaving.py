"""Position of an interleaved reading of files after some records: found by arithmetic, not by reading.

Files are read in groups, one group after the other. The files of a group are read in turns, a block of `part`
records of each; the last block of a file is what is left of it. That is how tf.data's interleave works on
files that are read in batches of `part`. So a reading that goes on is a new one of the group's files in the
order in which their turns come, each without its first records, and then of the groups behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """Position of a reading.

    Attributes:
      files: (number, records that are passed) of those not read to the end: those of the group in the order
        of their turns, then those of the groups behind it.
      group: how many of them are of the group.
      cut: records that are passed, too, of the first block that comes.
    """

    files: list[tuple[int, int]]
    group: int
    cut: int


def find_place(records: Sequence[int], cycle: int, part: int, passed: int) -> Place:
    """Returns the position of the reading after its first `passed` records.

    Args:
      records: of each file, in the order in which they are opened.
      cycle: files of a group.
      part: records of a block.
      passed: fewer than all records.
    """
    first = 0
    while passed >= (whole := sum(records[first : first + cycle])):
        first, passed = first + cycle, passed - whole
    numbers = range(first, min(first + cycle, len(records)))
    behind = [(number, 0) for number in range(numbers.stop, len(records))]

    def read(rounds: int) -> list[int]:
        return [min(records[number], rounds * part) for number in numbers]

    rounds, too_many = 0, max(records) // part + 2
    while too_many - rounds > 1:  # halving: there may be very many rounds
        middle = (rounds + too_many) // 2
        rounds, too_many = (middle, too_many) if sum(read(middle)) <= passed else (rounds, middle)
    left = passed - sum(read(rounds))
    done, next_round = ([*zip(numbers, read(count))] for count in (rounds, rounds + 1))
    for turn, (before, after) in enumerate(zip(done, next_round)):
        if after[1] - before[1] > left:
            turns = [
                (number, own) for number, own in done[turn:] + next_round[:turn] if own < records[number]
            ]
            return Place(turns + behind, len(turns), left)
        left -= after[1] - before[1]
    raise AssertionError("a round that is not whole ends inside one of its blocks")
