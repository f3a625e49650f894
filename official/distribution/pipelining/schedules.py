"""Schedules of a pipeline: the order in which each device works, and how long it waits.

Each schedule is a formula for the time of a work. `gpipe` and `1f1b` are those of a pipeline whose works all
take as long; a device begins a work as soon as its inputs are there. In Graphcore's `grouped`, `interleaved`
and `sequential` all devices move in step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from official.distribution.pipelining.plan import PipelinePlan

IN_STEP = ("grouped", "interleaved", "sequential")
FORWARD, BACKWARD = 1.0, 2.0  # of a stage; a backward pass that computes it again takes 3


class Work(NamedTuple):
    """The pass of one micro batch through one stage of the pipeline.

    Attributes:
      stage: of the pipeline, from 0.
      micro_batch: of the step, from 0.
      backward: the backward pass, which computes again what was not kept; else the forward pass.
    """

    stage: int
    micro_batch: int
    backward: bool


class Timeline(NamedTuple):
    """A step of a pipeline.

    Attributes:
      works: (work, start, end) of each device, in order, of one round of micro batches.
      length: of the step, without the update; a stage's forward pass takes 1 where all are alike.
      bubble: share of the devices' time in which they wait.
    """

    works: list[list[tuple[Work, float, float]]]
    length: float
    bubble: float


def orders_of(
    num_stages: int, devices: Sequence[int], schedule: str, micro_batches: int, trains: bool = True
) -> list[list[Work]]:
    """Returns the works of each device in a step, in order.

    Every device can do its works in this order, waiting for what it needs of others: the time of a work is
    after those of what it needs, so no two wait for each other. A stage takes its micro batches in their
    order, backward too.

    Args:
      num_stages: of the pipeline.
      devices: of each stage, from 0 without gaps.
      schedule: gpipe, 1f1b, grouped, interleaved or sequential.
      micro_batches: of a step, 1 or more.
      trains: False for forward passes alone.
    """
    found: list[list[Work]] = [[] for _ in range(max(devices) + 1)]
    for _, works in _by_time(num_stages, schedule, micro_batches, trains):
        for work in works:
            found[devices[work.stage]].append(work)
    return found


def time_of(
    work: Work, num_stages: int, schedule: str, micro_batches: int, trains: bool = True
) -> tuple[int, int]:
    """Returns the time of a work in a schedule, as numbers that sort.

    gpipe: all forward passes, then all backward passes. Source: Huang et al., GPipe, arXiv:1811.06965.
    1f1b: backward passes first; stage s of S keeps at most S - s micro batches. Source: Narayanan et al.,
    PipeDream-Flush, arXiv:2006.09503.

    The others are `PipelineSchedule` of Graphcore's TensorFlow. Works of one time are done side by side, and
    what follows waits for the slowest of them.
    grouped: a micro batch moves on by a stage a step; in a step all devices run forward passes, then all run
    backward passes. interleaved: half of the devices run forward passes while the others run backward passes.
    sequential: one device works at a time.
    """
    stage, number, backward = work
    place = 2 * num_stages - 1 - stage if backward else stage  # among the passes of its micro batch
    if schedule == "gpipe":
        return (number + place + (micro_batches - 1 if backward else 0), 0)
    if schedule == "grouped":
        return (number + place, int(backward))
    if schedule == "sequential":
        return (number * (2 if trains else 1) * num_stages + place, 0)
    fills = schedule == "1f1b" and not backward and number < num_stages - stage
    return (number * (2 if trains and not fills else 1) + place, 0)


def _by_time(
    num_stages: int, schedule: str, micro_batches: int, trains: bool
) -> Iterator[tuple[tuple[int, int], Iterator[Work]]]:
    """Yields (time, the works of it, those of the oldest micro batch first)."""
    works = (
        Work(stage, number, backward)
        for backward in ((False, True) if trains else (False,))
        for number in range(micro_batches)
        for stage in range(num_stages)
    )
    time = lambda work: time_of(work, num_stages, schedule, micro_batches, trains)
    return itertools.groupby(sorted(works, key=lambda work: (time(work), work.micro_batch)), key=time)


def in_flight(plan: PipelinePlan, trains: bool = True) -> list[int]:
    """Returns the most micro batches whose activations each stage keeps at once, the one in work among
    them."""
    count, left = plan.round_size, range(len(plan.stages), 0, -1)  # stages from each one on
    if plan.schedule == "gpipe" or not trains:
        return [count for _ in left]
    if plan.schedule == "sequential":
        return [1 for _ in left]
    return [min(count, each * (2 if plan.schedule == "grouped" else 1)) for each in left]


def before(work: Work, num_stages: int) -> list[Work]:
    """Returns the works whose results a work needs."""
    stage, micro_batch, backward = work
    if not backward:
        return [Work(stage - 1, micro_batch, False)] if stage else []
    later = [Work(stage + 1, micro_batch, True)] if stage < num_stages - 1 else []
    return [Work(stage, micro_batch, False), *later]


def usual_secs(work: Work) -> float:
    """Returns the time of a work where all stages are alike: a backward pass takes two of a forward pass."""
    return BACKWARD if work.backward else FORWARD


def make_timeline(
    plan: PipelinePlan, secs: Callable[[Work], float] = usual_secs, trains: bool = True
) -> Timeline:
    """Returns the timeline of a plan: the start and end of each work. Sending takes no time.

    Args:
      plan: the plan.
      secs: work -> how long it takes, in any unit.
      trains: False for forward passes alone.
    """
    num_stages = len(plan.stages)
    ends: dict[Work, float] = {}
    free = [0.0] * plan.num_devices  # when each device is done with all before
    found: list[list[tuple[Work, float, float]]] = [[] for _ in free]
    for _, works in _by_time(num_stages, plan.schedule, plan.round_size, trains):
        for work in works:
            device = plan.devices[work.stage]
            start = max([free[device], *(ends[each] for each in before(work, num_stages))])
            free[device] = ends[work] = start + secs(work)
            found[device].append((work, start, ends[work]))
        if plan.schedule in IN_STEP:
            free = [max(free)] * len(free)
    busy = sum(end - start for device in found for _, start, end in device)
    rounds = plan.micro_batches // plan.round_size
    return Timeline(found, rounds * max(free), 1 - busy / (max(free) * len(free)))
