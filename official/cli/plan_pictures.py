"""Pictures of plans: the schedule of a pipeline, or the scaling efficiency by number of hosts."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

from official.cli import outputs
from official.config.settings.devices import SCHEDULES
from official.distribution.pipeline_plan import PipelinePlan, Work, in_flight, make_timeline, usual_secs
from official.planning.description import device_label
from official.reporting import palette
from official.reporting.plan_figures import Bar, Schedule, plot_scaling, plot_schedules

_CURVES = {
    "same_share": ("each host with its own batch", palette.BLUE),
    "same_batch": ("all hosts share the batch of the run", palette.VERMILION),
}


def write_picture(path: str, plan: dict) -> None:
    """Draws the curves of --plan_hosts if the plan has them, else its pipeline.

    Args:
      path: of the file, .png, .svg or .pdf.
      plan: what `official.planning.plan.make_plan` returns.
    """
    scaling = plan["scaling"]
    if not scaling:
        write_schedule(path, plan)
        return
    title = f"{plan['parameters'] / 1e6:.0f} M parameters, {scaling['gbps']:g} GB/s between hosts"
    unit = "predicted sequences a second, share of as many single hosts"
    hosts = f"hosts of {scaling['replicas_per_host']:,} replicas"
    outputs.write_picture(path, plot_scaling(title, unit, hosts, curves_of(plan)))


def curves_of(plan: dict) -> dict[str, tuple[str, list[tuple[int, float]]]]:
    """Returns the curves of a plan's `scaling`, {name: (colour, [(hosts, efficiency)])}."""
    rows, curves = plan["scaling"]["hosts"], {}
    for key, (name, color) in _CURVES.items():
        curves[name] = color, [(row["hosts"], row[key]["efficiency"]) for row in rows if row[key]]
    return {name: curve for name, curve in curves.items() if curve[1]}


# -----------------------------------------------------------------------------------------------------------
# Schedules of pipelines


def write_schedule(path: str, plan: dict) -> None:
    """Draws the schedule of a plan.

    Args:
      path: of the file, .png, .svg or .pdf.
      plan: what `official.planning.plan.make_plan` returns, with a pipeline.
    """
    pipeline = plan["pipeline"]
    stages = tuple(map(tuple, pipeline["stages"]))
    shown = min(pipeline["micro_batches"], max(2 * len(stages), 8))  # more could not be told apart
    known = PipelinePlan(stages, tuple(pipeline["devices"]), pipeline["schedule"], shown)
    flops, trains = pipeline["stage_flops"], plan["train_steps"] != 0
    unit = sum(map(sum, flops)) / (3 * len(flops))  # the forward pass of a stage, were all alike
    label = device_label(plan["strategy"])
    panel = schedule_of(known, label, lambda work: flops[work.stage][work.backward] / unit, trains)
    if shown < pipeline["micro_batches"]:
        part, wait = f"{shown} of {pipeline['micro_batches']:,} micro batches", f"{pipeline['bubble']:.1%}"
        panel = dataclasses.replace(panel, note=f"{part}; in all, devices wait {wait}")
    outputs.write_picture(path, plot_schedules([panel]))


def write_all(path: str) -> None:
    """Draws all schedules of 4 stages and 8 micro batches below each other."""
    stages = tuple((f"layer_{stage}",) for stage in range(4))
    panels = [
        schedule_of(PipelinePlan(stages, tuple(range(4)), name, 8), label)
        for label, names in (("device", ("gpipe", "1f1b")), ("IPU", SCHEDULES["ipu"]))
        for name in names
    ]
    outputs.write_picture(path, plot_schedules(panels, until=41))


def schedule_of(
    plan: PipelinePlan, label: str, secs: Callable[[Work], float] = usual_secs, trains: bool = True
) -> Schedule:
    """Returns a plan's schedule with its bubble.

    Args:
      plan: the plan.
      label: of a device.
      secs: work -> how long it takes.
      trains: False for forward passes alone.
    """
    timeline = make_timeline(plan, secs, trains)
    first = [plan.devices.index(device) for device in range(plan.num_devices)]
    bars = tuple(
        Bar(device, start, end, work.micro_batch, work.backward, work.stage != first[device])
        for device, works in enumerate(timeline.works)
        for work, start, end in works
    )
    rows = tuple(f"{label} {device}" for device in range(plan.num_devices))
    most = max(in_flight(plan, trains))
    note = f"devices wait {timeline.bubble:.1%}, a stage keeps up to {most} micro batch{'es' * (most > 1)}"
    return Schedule(plan.schedule, note, rows, bars)


if __name__ == "__main__":
    write_all(sys.argv[1])
