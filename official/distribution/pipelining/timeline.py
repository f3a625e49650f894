"""When each work of a pipeline is done, how long devices wait, and how many micro batches they keep."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from official.distribution.pipelining.plan import PipelinePlan
from official.distribution.pipelining.schedules import IN_STEP, Work, all_works, orders, time_of

FORWARD, BACKWARD = 1.0, 2.0  # of a stage; a backward pass that computes it again takes 3


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A step of a pipeline.

    Attributes:
      works: (work, start, end) of each device, in order, of one round of micro batches; a stage's forward
        pass takes 1 where all are alike.
      length: of the step, without the update.
      bubble: share of the devices' time in which they wait.
      in_flight: most micro batches whose activations each stage keeps at once.
    """

    works: list[list[tuple[Work, float, float]]]
    length: float
    bubble: float
    in_flight: list[int]


def usual_secs(work: Work) -> float:
    """Returns the time of a work where all stages are alike: a backward pass takes two of a forward pass."""
    return BACKWARD if work.backward else FORWARD


def make_timeline(
    plan: PipelinePlan, secs: Callable[[Work], float] = usual_secs, trains: bool = True
) -> Timeline:
    """Returns when each work of a plan is done.

    Sending takes no time. In Graphcore's schedules all devices begin a pass together.

    Args:
      plan: the plan.
      secs: work -> how long it takes, in any unit.
      trains: False for forward passes alone.
    """
    rounds = plan.micro_batches // plan.round_size
    plan = dataclasses.replace(plan, micro_batches=plan.round_size)
    found = _in_step(plan, secs, trains) if plan.schedule in IN_STEP else _at_once(plan, secs, trains)
    length = max(end for device in found for _, _, end in device)
    busy = sum(end - start for device in found for _, start, end in device)
    kept = [_most_kept(stage, found[device]) for stage, device in enumerate(plan.devices)]
    return Timeline(found, rounds * length, 1 - busy / (length * len(found)), kept)


def _at_once(
    plan: PipelinePlan, secs: Callable[[Work], float], trains: bool
) -> list[list[tuple[Work, float, float]]]:
    """Every device does its works in order, each as soon as its inputs are there."""
    ends: dict[Work, float] = {}
    left = [list(reversed(order)) for order in orders(plan, trains)]
    found: list[list[tuple[Work, float, float]]] = [[] for _ in left]
    while any(left):
        for device, order in enumerate(left):
            while order and all(each in ends for each in before(order[-1], len(plan.stages))):
                work = order.pop()
                own = [found[device][-1][2]] if found[device] else []
                start = max([0.0, *own, *(ends[each] for each in before(work, len(plan.stages)))])
                ends[work] = start + secs(work)
                found[device].append((work, start, ends[work]))
    return found


def before(work: Work, num_stages: int) -> list[Work]:
    """Returns the works whose results a work needs."""
    stage, micro_batch, backward = work
    if not backward:
        return [Work(stage - 1, micro_batch, False)] if stage else []
    later = [Work(stage + 1, micro_batch, True)] if stage < num_stages - 1 else []
    return [Work(stage, micro_batch, False), *later]


def _in_step(
    plan: PipelinePlan, secs: Callable[[Work], float], trains: bool
) -> list[list[tuple[Work, float, float]]]:
    """Works of one time are done side by side, what follows waits for the slowest device."""
    num_stages = len(plan.stages)
    found: list[list[tuple[Work, float, float]]] = [[] for _ in range(plan.num_devices)]
    now = 0.0
    when = lambda work: time_of(work, num_stages, plan.schedule, trains)
    works = sorted(
        all_works(num_stages, plan.micro_batches, trains), key=lambda work: (when(work), work.stage)
    )
    for _, group in itertools.groupby(works, key=when):
        ends = dict.fromkeys(range(plan.num_devices), now)
        for work in group:
            device = plan.devices[work.stage]
            start, ends[device] = ends[device], ends[device] + secs(work)
            found[device].append((work, start, ends[device]))
        now = max(ends.values())
    return found


def _most_kept(stage: int, works: Sequence[tuple[Work, float, float]]) -> int:
    """Returns the most micro batches between the forward and the backward pass of a stage, those in work
    among them."""
    kept = most = 0
    for work, _, _ in works:
        if work.stage == stage:
            kept += -1 if work.backward else 1
            most = max(most, kept)
    return most
