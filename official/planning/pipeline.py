"""The pipeline of a plan: bytes of each device, bubbles of its schedules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from official.config import Config, ConfigError
from official.config.backends import BACKENDS
from official.config.settings.devices import PIPELINED, SCHEDULES
from official.distribution import pipeline_plan as plan_lib
from official.distribution.batch_plan import BatchPlan
from official.distribution.pipeline_plan import (
    PipelinePlan,
    Work,
    allocation,
    in_flight,
    make_plan,
    make_timeline,
)
from official.planning.graph_cost import PlannedTask, StageCost, stage_costs


def describe_pipeline(config: Config, task: PlannedTask, batches: BatchPlan, slots: float) -> dict | None:
    """Returns the plan's `pipeline`, ready for JSON; None where the devices make none.

    Args:
      config: the configuration; the mixed-precision policy must be that of its dtype.
      task: the task.
      batches: of the run.
      slots: bytes of optimizer slots for a byte of parameters.

    Returns:
      stages (names of the model's stages in each), notation, devices, schedule, micro_batches, bubble,
      bubbles ({schedule: bubble} of all that the stages and micro batches allow), in_flight (most micro
      batches that each stage keeps), bytes_per_device, offloaded_bytes (of the optimizer's state, beside each
      device), stage_flops ([forward, backward] of each stage and micro batch) and allocation ([part,
      device]). A bubble is the share of the devices' time in which they wait, when nothing but matrix
      products takes time.

    Raises:
      ConfigError: for stages, devices or micro batches that do not go together.
    """
    if config.distribution_strategy not in PIPELINED:
        return None
    rows = batches.micro_batch_size if config.do_train else batches.replica_eval_batch_size
    costs = stage_costs(task, rows, config.do_train)
    plan = make_plan(config, list(costs))
    bubbles, kept = _bubbles(plan, costs, config), in_flight(plan, config.do_train)
    offloads = BACKENDS[config.distribution_strategy].graphcore_rules and config.optimizer_state_offchip
    held = [
        _held(plan, device, costs, kept, slots if config.do_train else 0)
        for device in range(plan.num_devices)
    ]
    return {
        **dataclasses.asdict(plan),
        "notation": plan.notation,
        "bubble": bubbles[plan.schedule],
        "bubbles": bubbles,
        "in_flight": kept,
        "bytes_per_device": [_on_chip(each, config.do_train, offloads) for each in held],
        "offloaded_bytes": [each["optimizer_slots"] if offloads else 0 for each in held],
        "stage_flops": [
            [sum(costs[name].flops for name in names), sum(costs[name].backward_flops for name in names)]
            for names in plan.stages
        ],
        "allocation": [list(each) for each in allocation(plan)],
    }


def _bubbles(plan: PipelinePlan, costs: dict[str, StageCost], config: Config) -> dict[str, float]:
    """Returns the bubble of each schedule that the devices and micro batches of a plan allow, its own
    first."""
    found = {}
    for schedule in dict.fromkeys((plan.schedule, *SCHEDULES[config.distribution_strategy])):
        try:
            plan_lib.check_devices(plan.devices, len(plan.devices))
            plan_lib.check_micro_batches(plan.devices, schedule, plan.micro_batches, config.do_train)
        except ConfigError:
            continue
        other = dataclasses.replace(plan, schedule=schedule)
        found[schedule] = make_timeline(other, _secs(plan, costs), config.do_train).bubble
    return found


def _secs(plan: PipelinePlan, costs: dict[str, StageCost]) -> Callable[[Work], float]:
    """Returns work -> FLOPs of its matrix products."""
    flops = [
        (sum(costs[name].flops for name in names), sum(costs[name].backward_flops for name in names))
        for names in plan.stages
    ]
    return lambda work: float(flops[work.stage][work.backward])


def _held(
    plan: PipelinePlan, device: int, costs: dict[str, StageCost], in_flight: list[int], slots: float
) -> dict[str, int]:
    """Returns the bytes that a device holds at most. A table that stages on two devices share is on both, its
    slots are with the first."""
    stages = [stage for stage, owner in enumerate(plan.devices) if owner == device]
    names = [name for stage in stages for name in plan.stages[stage]]
    variables = {name: size for stage in names for name, size in costs[stage].variables.items()}
    earlier = {
        name
        for stage, owner in enumerate(plan.devices[: stages[0]])
        for part in plan.stages[stage]
        for name in costs[part].variables
    }
    kept = sum(in_flight[stage] * costs[name].kept_bytes for stage in stages for name in plan.stages[stage])
    return {
        "parameters": sum(variables.values()),
        "optimizer_slots": round(
            slots * sum(size for name, size in variables.items() if name not in earlier)
        ),
        "activations": kept + max(costs[name].passing_bytes for name in names),
    }


def _on_chip(held: dict[str, int], trains: bool, offloads: bool) -> dict[str, int]:
    gradients = held["parameters"] if trains else 0
    slots = 0 if offloads else held["optimizer_slots"]
    found = {
        "parameters": held["parameters"],
        "gradients": gradients,
        "optimizer_slots": slots,
        "activations": held["activations"],
    }
    return {**found, "total": sum(found.values())}
