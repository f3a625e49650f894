"""The pipeline of a plan as lines of text."""

from __future__ import annotations

from official.config.backends import BACKENDS


def device_label(strategy: str) -> str:
    """Returns what one device of a pipeline is called."""
    return "IPU" if BACKENDS[strategy].graphcore_rules else "device"


def pipeline_lines(pipeline: dict, strategy: str) -> list[tuple[str, str]]:
    """Returns (name, text) of the stages, the schedule, and what each device holds.

    Args:
      pipeline: of the plan.
      strategy: the value of --distribution_strategy.
    """
    label = device_label(strategy)
    others = [
        f"{name} {bubble:.1%}" for name, bubble in pipeline["bubbles"].items() if name != pipeline["schedule"]
    ]
    devices = ",".join(map(str, pipeline["devices"]))
    lines = [
        ("stages", pipeline["notation"]),
        ("on", f"{label} {devices}"),
        (
            "schedule",
            f"{pipeline['schedule']}, {pipeline['micro_batches']:,} micro batches: devices wait"
            f" {pipeline['bubble']:.1%}" + (f" ({', '.join(others)})" if others else ""),
        ),
        ("in flight", f"{', '.join(map(str, pipeline['in_flight']))} micro batches, in the stages"),
    ]
    for device, held in enumerate(pipeline["bytes_per_device"]):
        lines.append((f"{label} {device}", _held(held, pipeline["offloaded_bytes"][device])))
    return lines


def _held(held: dict[str, int], offloaded: int) -> str:
    parts = [
        f"{name.replace('_', ' ')} {size(count).strip()}"
        for name, count in held.items()
        if count and name != "total"
    ]
    beside = f"; optimizer slots {size(offloaded).strip()} beside it" if offloaded else ""
    return f"{size(held['total']).strip()} = {' + '.join(parts)}{beside}"


def allocation_lines(pipeline: dict, strategy: str) -> list[tuple[str, str]]:
    """Returns (part of the model, device), as Graphcore's logs have it."""
    return [(part, f"--> {device_label(strategy)} {device}") for part, device in pipeline["allocation"]]


def size(count: int) -> str:
    """Returns bytes as megabytes or gigabytes."""
    return f"{count / 1e9:9,.3f} GB" if count >= 1e8 else f"{count / 1e6:9,.3f} MB"
