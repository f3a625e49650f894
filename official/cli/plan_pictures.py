"""Pictures of plans: the schedule of a pipeline, or the scaling efficiency by number of hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from official.cli import outputs
from official.distribution.pipeline_plan import PipelinePlan, Timeline, in_flight, make_timeline
from official.planning.description import device_label
from official.reporting import palette, plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_picture(path: str, plan: dict) -> None:
    """Draws the curves of --plan_hosts if the plan has them, else its pipeline.

    Args:
      path: of the file, .png, .svg or .pdf.
      plan: what `official.planning.plan.make_plan` returns.
    """
    outputs.write_picture(path, plot_scaling(plan) if plan["scaling"] else plot_schedule(plan))


# -----------------------------------------------------------------------------------------------------------
# Scaling


_CURVES = {
    "same_share": ("each host with its own batch", palette.BLUE),
    "same_batch": ("all hosts share the batch of the run", palette.VERMILION),
}
_MAX_TICKS = 13


def curves_of(plan: dict) -> dict[str, tuple[str, list[tuple[int, float]]]]:
    """Returns the curves of a plan's `scaling`, {name: (colour, [(hosts, efficiency)])}."""
    rows, curves = plan["scaling"]["hosts"], {}
    for key, (name, color) in _CURVES.items():
        curves[name] = color, [(row["hosts"], row[key]["efficiency"]) for row in rows if row[key]]
    return {name: curve for name, curve in curves.items() if curve[1]}


def plot_scaling(plan: dict) -> Figure:
    """Returns a picture of a plan's scaling efficiency over the number of hosts."""
    scaling, curves = plan["scaling"], curves_of(plan)
    title = f"{plan['parameters'] / 1e6:.0f} M parameters, {scaling['gbps']:g} GB/s between hosts"
    with plots.style():
        figure = plots.new_figure(6.4, 3.5)
        axes = figure.add_axes((0.09, 0.55 / 3.5, 0.88, 2.25 / 3.5))
        for name, (color, points) in curves.items():
            axes.plot(*zip(*points), color=color, label=name)
        plots.write_head(axes, title, "predicted sequences a second, share of as many single hosts")
        every = sorted({count for _, points in curves.values() for count, _ in points})
        ticks = every[:: -(-len(every) // _MAX_TICKS)]
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{count:,}" for count in ticks], fontsize=8)
        axes.minorticks_off()
        highest = max(share for _, points in curves.values() for _, share in points)
        axes.set_ylim(0, max(1.05, 1.05 * highest))
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        axes.set_xlabel(f"hosts of {scaling['replicas_per_host']:,} replicas")
        axes.legend(loc="lower left", fontsize=8.5)
    return figure


# -----------------------------------------------------------------------------------------------------------
# Schedules of pipelines
#
# Time to the right, one row per device, passes in two colours.


_WIDTH, _ROW, _ABOVE, _LEGEND = 4.6, 0.17, 0.5, 0.35  # inches: readable at the width of a phone
_FORWARD, _BACKWARD = palette.BLUE, palette.ORANGE
_LATER = 0.45  # opacity of a device's later stages
_NUMBER, _SMALL = 6.2, 7.2  # points
_NARROWEST = 0.0205  # minimum width of a bar with a number, as a share of the picture's


def schedule_of(plan: dict) -> tuple[PipelinePlan, Timeline, str]:
    """Returns (pipeline, its timeline, a note about its waits) of a plan with a pipeline, as
    `official.planning.plan.make_plan` returns it."""
    pipeline = plan["pipeline"]
    stages = tuple(map(tuple, pipeline["stages"]))
    shown = min(pipeline["micro_batches"], max(2 * len(stages), 8))  # more could not be told apart
    known = PipelinePlan(stages, tuple(pipeline["devices"]), pipeline["schedule"], shown)
    flops, trains = pipeline["stage_flops"], plan["train_steps"] != 0
    unit = sum(map(sum, flops)) / (3 * len(flops))  # the forward pass of a stage, were all alike
    timeline = make_timeline(known, lambda work: flops[work.stage][work.backward] / unit, trains)
    if shown < pipeline["micro_batches"]:
        part, wait = f"{shown} of {pipeline['micro_batches']:,} micro batches", f"{pipeline['bubble']:.1%}"
        note = f"{part}; in all, devices wait {wait}"
    else:
        most = max(in_flight(known, trains))
        kept = f"a stage keeps up to {most} micro batch{'es' * (most > 1)}"
        note = f"devices wait {timeline.bubble:.1%}, {kept}"
    return known, timeline, note


def plot_schedule(plan: dict) -> Figure:
    """Returns a picture of a plan's schedule."""
    from matplotlib.patches import Patch

    pipeline, timeline, note = schedule_of(plan)
    rows = _ROW * pipeline.num_devices
    total = _ABOVE + rows + _LEGEND
    handles = [Patch(color=_FORWARD, label="forward"), Patch(color=_BACKWARD, label="backward")]
    handles.append(Patch(facecolor="white", edgecolor="#b6bcc4", label="bubble: waits"))
    if len(pipeline.stages) > pipeline.num_devices:
        handles.append(Patch(color=_FORWARD, alpha=_LATER, label="later stage"))
    with plots.style():
        figure = plots.new_figure(_WIDTH, total)
        axes = figure.add_axes((0.13, (_LEGEND + 0.08) / total, 0.85, rows / total))
        plots.write(axes, pipeline.schedule, (0, 1), (-28, 14), fontweight="bold", color=palette.INK)
        plots.write(axes, note, (0, 1), (-28, 4), fontsize=_SMALL)
        _draw(axes, pipeline, timeline, device_label(plan["strategy"]))
        figure.legend(handles=handles, loc="lower center", ncols=4, fontsize=_SMALL, handlelength=1)
    return figure


def _draw(axes: Axes, pipeline: PipelinePlan, timeline: Timeline, label: str) -> None:
    count, until = pipeline.num_devices, max(end for works in timeline.works for _, _, end in works)
    axes.set(xlim=(0, until), ylim=(count - 0.5, -0.5), xticks=[])
    axes.grid(False)
    axes.set_yticks(range(count), [f"{label} {device}" for device in range(count)], fontsize=_SMALL)
    axes.spines["bottom"].set_visible(False)
    for device, works in enumerate(timeline.works):
        for work, start, end in works:
            # The device of a paler pass also has an earlier stage.
            width, is_later = end - start, work.stage != pipeline.devices.index(device)
            color, alpha = _BACKWARD if work.backward else _FORWARD, _LATER if is_later else 1
            look: dict[str, Any] = {"color": color, "alpha": alpha, "edgecolor": "white", "linewidth": 0.4}
            axes.barh(device, width, left=start, height=0.84, **look)
            digits = str(work.micro_batch)
            if width / until >= _NARROWEST * len(digits):
                color = palette.INK if work.backward or is_later else "white"
                look = {"ha": "center", "va": "center_baseline", "fontsize": _NUMBER, "color": color}
                axes.text(start + width / 2, device, digits, **look)
