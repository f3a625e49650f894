"""The time of the clock, divided among the operations of a CPU that run at once."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from official.reporting.profiles.trace import Operation


def divide(operations: Sequence[Operation]) -> list[float]:
    """Returns the picoseconds of the clock that each operation has: of a moment at which n threads run an
    operation, each of the n has 1 / n.

    So the times add up to those in which any of them ran, where the plain durations, in which an operation
    also waits for cores that others have, add up to more. A thread runs the innermost of its operations.
    """
    shares = [0.0] * len(operations)
    stacks: dict[str, list[int]] = collections.defaultdict(list)  # of each thread, the innermost one last
    last = 0
    for at, begins, number in _moments(operations):
        running = [stack[-1] for stack in stacks.values() if stack]
        for each in running:
            shares[each] += (at - last) / len(running)
        last = at
        stack = stacks[operations[number].thread]
        if begins:
            stack.append(number)
        else:
            stack.remove(number)
    return shares


def _moments(operations: Sequence[Operation]) -> list[tuple[int, bool, int]]:
    """Returns (when, whether it begins, number of the operation) in order; of what begins at once, the outer
    one first."""
    found = []
    for number, each in enumerate(operations):
        if each.end > each.begin:
            found += [(each.begin, True, -each.end, number), (each.end, False, 0, number)]
    return [(at, begins, number) for at, begins, _, number in sorted(found)]
