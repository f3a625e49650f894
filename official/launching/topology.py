"""The table of hosts, instances and replicas that poprun prints.

Source: the logs of poprun in Graphcore's guide and in the published tutorial for Kubernetes. Each row shares
out the replicas below it; a replica's cell is its number. Names that have no room are numbers in brackets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

_NAME_COLUMNS = 9  # of a row's name


@dataclasses.dataclass(frozen=True)
class Topology:
    """Hosts and instances that share out the replicas of a job.

    Attributes:
      hosts: names of the machines.
      instances: processes of the job, as many on each host.
      replicas: of the whole job, as many in each instance.
      link_domains: IPU-Link domains; None: the job has no IPUs.
    """

    hosts: tuple[str, ...]
    instances: int
    replicas: int
    link_domains: int | None = None


def draw(topology: Topology) -> str:
    """Returns the table. Every number of cells of a row divides the number of replicas, or has no cell of its
    own width; then cells are shared out as evenly as they can be."""
    digits = len(str(topology.replicas - 1))
    columns = [f" {number:<{digits}} " for number in range(topology.replicas)]
    rows: list[tuple[str, Sequence[object]]] = [("hosts", topology.hosts)]
    if topology.link_domains is not None:
        rows.append(("ILDs", range(topology.link_domains)))
    rows += [("instances", range(topology.instances)), ("replicas", columns)]
    cells = [_cells(list(map(str, values)), columns) for _, values in rows]
    width = sum(map(len, columns)) + len(columns) - 1
    inside = width + _NAME_COLUMNS + 3
    title = "poprun topology" if topology.link_domains is not None else "topology"
    lines = [f" {'=' * inside}", f"|{_centred(title, inside)}|", f"|{'=' * inside}|"]
    rule = f"|{'-' * (_NAME_COLUMNS + 2)}|{'-' * width}|"
    for number, ((name, _), row) in enumerate(zip(rows, cells)):
        lines += [rule] * (number > 0) + [f"| {name:<{_NAME_COLUMNS}} |{'|'.join(row)}|"]
    return "\n".join([*lines, f" {'-' * inside}", *_legend(topology.hosts, cells[0])])


def _cells(values: list[str], columns: list[str]) -> list[str]:
    """Returns the cells of a row: values, each over its share of the columns."""
    if values == columns:
        return values
    cells = []
    for number, value in enumerate(values):
        first, end = (len(columns) * each // len(values) for each in (number, number + 1))
        room = sum(map(len, columns[first:end])) + end - first - 1
        cells.append(_centred(value if len(value) + 2 <= room else f"[{number}]", room))
    return cells


def _centred(text: str, room: int) -> str:
    """Returns a text in the middle; where that is not possible, further left."""
    left = (room - len(text)) // 2
    return " " * left + text + " " * (room - len(text) - left)


def _legend(hosts: Sequence[str], cells: list[str]) -> list[str]:
    return [f"[{number}] {name}" for number, name in enumerate(hosts) if f"[{number}]" in cells[number]]
