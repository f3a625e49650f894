"""Schedules of a pipeline: what each device does, in order.

`gpipe`, `1f1b` and `virtual` are found by a simulation in which all works take as long.
`grouped`, `interleaved` and `sequential` are Graphcore's: all devices move in step, and the time of a work is
a formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from official.distribution.pipelining.simulation import RULES, simulate
from official.distribution.pipelining.work import Work

if TYPE_CHECKING:
    from official.distribution.pipelining.plan import PipelinePlan

__all__ = ["IN_STEP", "Work", "all_works", "orders", "orders_of", "time_of"]
IN_STEP = ("grouped", "interleaved", "sequential")


def orders(plan: PipelinePlan, trains: bool = True) -> list[list[Work]]:
    """Returns what each device of a plan does in a step, in order; see `orders_of`."""
    return orders_of(len(plan.stages), plan.devices, plan.schedule, plan.micro_batches, trains)


def orders_of(
    num_stages: int, devices: Sequence[int], schedule: str, micro_batches: int, trains: bool = True
) -> list[list[Work]]:
    """Returns what each device does in a step, in order.

    Every device can do its works in this order, waiting for what it needs of others: no two wait for each
    other. A stage takes its micro batches in their order, backward too.

    Args:
      num_stages: of the pipeline.
      devices: of each stage, from 0 without gaps.
      schedule: gpipe, 1f1b, virtual, grouped, interleaved or sequential.
      micro_batches: of a step, 1 or more.
      trains: False for forward passes alone.
    """
    if schedule not in IN_STEP:
        return simulate(num_stages, devices, micro_batches, trains, RULES[schedule])
    found: list[list[Work]] = [[] for _ in range(max(devices) + 1)]
    for work in all_works(num_stages, micro_batches, trains):
        found[devices[work.stage]].append(work)
    for order in found:
        order.sort(key=lambda work: (time_of(work, num_stages, schedule, trains), work.micro_batch))
    return found


def all_works(num_stages: int, micro_batches: int, trains: bool = True) -> Iterator[Work]:
    """Yields all works of a step, in no order that means anything."""
    for backward in (False, True) if trains else (False,):
        for micro_batch in range(micro_batches):
            for stage in range(num_stages):
                yield Work(stage, micro_batch, backward)


def time_of(work: Work, num_stages: int, schedule: str, trains: bool = True) -> tuple[int, ...]:
    """Returns when a work is done in one of Graphcore's schedules, as numbers that sort.

    Works of one time are done side by side, and what follows waits for the slowest of them.
    grouped: a micro batch moves on by a stage a step; in a step all devices run forward passes, then all run
    backward passes. interleaved: half of the devices run forward passes while the others run backward passes.
    sequential: one device works at a time.

    Source: `PipelineSchedule` of Graphcore's TensorFlow.
    """
    stage, micro_batch, backward = work
    passes = 2 * num_stages if trains else num_stages
    place = 2 * num_stages - 1 - stage if backward else stage  # among the passes of its micro batch
    if schedule == "grouped":
        return (micro_batch + place, int(backward))
    between = passes if schedule == "sequential" else 2 if trains else 1
    return (between * micro_batch + place, 0)
