"""Schedules of pipelines as something to draw."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

from official.cli import outputs
from official.config.settings.devices import SCHEDULES
from official.distribution.pipeline_plan import PipelinePlan, Work, in_flight, make_timeline, usual_secs
from official.planning.description import device_label
from official.reporting import plots
from official.reporting.schedule_picture import Bar, Schedule, plot_schedules

_MOST_SHOWN = 16  # micro batches: more could not be told apart


def write_picture(path: str, plan: dict) -> None:
    """Draws the schedule of a plan.

    Args:
      path: of the file, .png, .svg or .pdf.
      plan: what `official.planning.plan.make_plan` returns, with a pipeline.
    """
    pipeline = plan["pipeline"]
    stages = tuple(map(tuple, pipeline["stages"]))
    shown = _shown(len(stages), pipeline["micro_batches"])
    known = PipelinePlan(stages, tuple(pipeline["devices"]), pipeline["schedule"], shown)
    flops, trains = pipeline["stage_flops"], plan["train_steps"] != 0
    unit = sum(map(sum, flops)) / (3 * len(flops))  # the forward pass of a stage, were all alike
    label = device_label(plan["strategy"])
    panel = schedule_of(known, label, lambda work: flops[work.stage][work.backward] / unit, trains)
    if shown < pipeline["micro_batches"]:
        note = (
            f"{shown} of {pipeline['micro_batches']:,} micro batches; in all, devices wait"
            f" {pipeline['bubble']:.1%}"
        )
        panel = dataclasses.replace(panel, note=note)
    outputs.write_file(path, plots.render(plot_schedules([panel]), outputs.picture_format(path)))


def write_all(path: str) -> None:
    """Draws all schedules of 4 stages and 8 micro batches below each other."""
    stages = tuple((f"layer_{stage}",) for stage in range(4))
    panels = [
        schedule_of(PipelinePlan(stages, tuple(range(4)), name, 8), label)
        for label, names in (("device", ("gpipe", "1f1b")), ("IPU", SCHEDULES["ipu"]))
        for name in names
    ]
    outputs.write_file(path, plots.render(plot_schedules(panels, until=41), outputs.picture_format(path)))


def _shown(num_stages: int, micro_batches: int) -> int:
    return min(micro_batches, max(2 * num_stages, _MOST_SHOWN // 2))


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
