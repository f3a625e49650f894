"""Pipeline of a plan: bytes per device, and bubbles of the schedules."""

from __future__ import annotations

import contextlib
import dataclasses

from official.config import Config, ConfigError
from official.config.backends import BACKENDS
from official.config.settings.devices import PIPELINED, SCHEDULES
from official.distribution import pipeline_plan as plan_lib
from official.distribution.batch_plan import BatchPlan
from official.distribution.pipeline_plan import PipelinePlan
from official.planning.graph_cost import PlannedTask, StageCost, stage_costs


def describe_pipeline(config: Config, task: PlannedTask, batches: BatchPlan, slots: float) -> dict | None:
    """Returns the plan's `pipeline`, JSON-serializable; None without a pipeline.

    Args:
      config: the configuration; the mixed-precision policy must be that of its dtype.
      task: the task.
      batches: batch plan of the run.
      slots: bytes of optimizer slots per byte of parameters.

    Returns:
      stages (names of the model's stages in each), notation, devices, schedule, micro_batches, bubble,
      bubbles ({schedule: bubble} of all possible schedules), in_flight (maximum number of micro batches that
      each stage keeps), bytes_per_device, offloaded_bytes (optimizer state in host memory, per device),
      stage_flops ([forward, backward] of each stage and micro batch) and allocation ([part, device]). A
      bubble is the share of time that devices wait, if only matrix products take time.

    Raises:
      ConfigError: for a contradiction between stages, devices and micro batches.
    """
    if config.distribution_strategy not in PIPELINED:
        return None
    rows = batches.micro_batch_size if config.do_train else batches.replica_eval_batch_size
    costs = stage_costs(task, rows, config.do_train)
    plan = plan_lib.make_plan(config, list(costs))
    flops = [
        [sum(costs[name].flops for name in names), sum(costs[name].backward_flops for name in names)]
        for names in plan.stages
    ]
    bubbles = {}  # per possible schedule, that of the plan first
    for schedule in dict.fromkeys((plan.schedule, *SCHEDULES[config.distribution_strategy])):
        with contextlib.suppress(ConfigError):
            plan_lib.check_micro_batches(plan.devices, schedule, plan.micro_batches, config.do_train)
            other = dataclasses.replace(plan, schedule=schedule)
            timeline = plan_lib.make_timeline(
                other, lambda work: float(flops[work.stage][work.backward]), config.do_train
            )
            bubbles[schedule] = timeline.bubble
    kept = plan_lib.in_flight(plan, config.do_train)
    offloads = BACKENDS[config.distribution_strategy].graphcore_rules and config.ipu.optimizer_state_offchip
    held, offloaded = [], []
    for device in range(plan.num_devices):
        parameters, optimizer_slots, activations = _held(plan, device, costs, kept)
        own = {
            "parameters": parameters,
            "gradients": parameters if config.do_train else 0,
            "optimizer_slots": round(slots * optimizer_slots) if config.do_train else 0,
            "activations": activations,
        }
        offloaded.append(own["optimizer_slots"] if offloads else 0)
        own["optimizer_slots"] -= offloaded[-1]
        held.append({**own, "total": sum(own.values())})
    return {
        **dataclasses.asdict(plan),
        "notation": plan.notation,
        "bubble": bubbles[plan.schedule],
        "bubbles": bubbles,
        "in_flight": kept,
        "bytes_per_device": held,
        "offloaded_bytes": offloaded,
        "stage_flops": flops,
        "allocation": [list(each) for each in plan_lib.allocation(plan)],
    }


def _held(
    plan: PipelinePlan, device: int, costs: dict[str, StageCost], in_flight: list[int]
) -> tuple[int, int, int]:
    """Returns the bytes of a device: parameters, those of them whose slots it holds, and activations at their
    maximum. An embedding table shared by stages on two devices is on both, its slots only on the first."""
    stages = [stage for stage, owner in enumerate(plan.devices) if owner == device]
    names = [name for stage in stages for name in plan.stages[stage]]
    before = [name for part in plan.stages[: stages[0]] for name in part]
    variables = {name: size for stage in names for name, size in costs[stage].variables.items()}
    earlier = {name for stage in before for name in costs[stage].variables}
    kept = sum(in_flight[stage] * costs[name].kept_bytes for stage in stages for name in plan.stages[stage])
    passing = max(costs[name].passing_bytes for name in names)
    with_slots = sum(size for name, size in variables.items() if name not in earlier)
    return sum(variables.values()), with_slots, kept + passing
