"""Plans as pictures: the schedule of a pipeline, or the efficiency of several numbers of hosts."""

from __future__ import annotations

from official.cli import outputs, schedules
from official.reporting import palette, plots
from official.reporting.scaling_picture import Curve, Panel, plot_scaling

_COLORS = {"same_share": palette.BLUE, "same_batch": palette.VERMILION}
_NAMES = {"same_share": "each host with its own batch", "same_batch": "all hosts share the batch of the run"}


def write_picture(path: str, plan: dict) -> None:
    """Draws the curves of --plan_hosts where the plan has them, else its pipeline.

    Args:
      path: of the file, .png, .svg or .pdf.
      plan: what `official.planning.plan.make_plan` returns.
    """
    if not plan["scaling"]:
        schedules.write_picture(path, plan)
        return
    figure = plot_scaling([panel_of(plan)])
    outputs.write_file(path, plots.render(figure, outputs.picture_format(path)))


def panel_of(plan: dict) -> Panel:
    """Returns the panel of a plan's `scaling`."""
    scaling = plan["scaling"]
    curves = tuple(
        Curve(name, _points(scaling, key), False, _COLORS[key])
        for key, name in _NAMES.items()
        if _points(scaling, key)
    )
    title = f"{plan['parameters'] / 1e6:.0f} M parameters, {scaling['gbps']:g} GB/s between hosts"
    unit = "predicted sequences a second, share of as many single hosts"
    return Panel(title, unit, f"hosts of {scaling['replicas_per_host']:,} replicas", curves)


def _points(scaling: dict, key: str) -> tuple[tuple[int, float], ...]:
    return tuple((row["hosts"], row[key]["efficiency"]) for row in scaling["hosts"] if row[key])
