"""A step as a list of work, each with what comes before it: what is left of a graph to tell its time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from official.planning.flat_graph import FlatGraph
from official.planning.kernels import BATCHED, NOTHING, PRODUCT, Work

PRODUCTS, ATTENTION, COMPILED, OPTIMIZER, REST = (
    "matrix products",
    "attention's products",
    "compiled blocks",
    "optimizer",
    "everything else",
)


class Timed(NamedTuple):
    """An operation of a step.

    Attributes:
      work: of one run.
      runs: of a step.
      part: what its time counts as: one of the names of this module.
      after: numbers of the operations before it, each smaller than its own.
    """

    work: Work
    runs: int
    part: str
    after: tuple[int, ...]


def timeline(flat: FlatGraph, order: Sequence[int], update: int | None = None) -> tuple[Timed, ...]:
    """Returns the operations of a step.

    Args:
      flat: the graph.
      order: the nodes that are needed, in the order in which they run.
      update: the first node of the optimizer's update; None where nothing is updated.
    """
    places = {index: place for place, index in enumerate(order)}
    producers = {number: places[index] for index in order for number in flat.nodes[index].outputs}
    found = []
    for index in order:
        node = flat.nodes[index]
        before = {producers[number] for number in node.inputs if number in producers}
        before |= {places[first] for first in node.after if first in places}
        is_update = update is not None and index >= update
        part = OPTIMIZER if is_update else part_of(node.work)
        found.append(Timed(node.work, node.runs, part, tuple(sorted(before))))
    return tuple(found)


def alone(operations: Sequence[Timed], part: str) -> list[Timed]:
    """Returns the operations as if all that is not of a part took no time."""
    return [each if each.part == part else each._replace(work=NOTHING) for each in operations]


def part_of(work: Work) -> str:
    """Returns the part of a step that work counts as, outside of the update."""
    if work.kernel.startswith("compiled "):
        return COMPILED
    return {PRODUCT: PRODUCTS, BATCHED: ATTENTION}.get(work.kernel, REST)
