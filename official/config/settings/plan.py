"""Settings: what --plan prints."""

from __future__ import annotations

import dataclasses

from official.config.device_memory import DEVICE_BYTES
from official.config.setting import Section, setting
from official.config.settings.pipeline import PIPELINED


@dataclasses.dataclass(frozen=True)
class Plan:
    """What --plan prints."""

    plan: bool = setting(
        False,
        "Print what the run would be (sizes, memory, steps, evaluations, time) and stop. Needs no data "
        "and no devices.",
    )
    plan_file: str | None = setting(None, "With --plan: also write it as JSON.")
    plan_config_file: str | None = setting(
        None,
        "With --plan: also write the whole configuration as JSON, for python -m official.training.ipu FILE.",
    )
    plan_picture: str | None = setting(
        None,
        "With --plan of a pipeline: also draw its schedule, time by device, as .png, .svg or .pdf.",
        backends=PIPELINED,
    )
    plan_tflops: float | None = setting(
        None,
        "With --plan: expected TFLOP/s of one replica's matrix products, for the expected time.",
        minimum=0,
    )
    plan_gbps: float | None = setting(
        None,
        "With --plan: expected GB/s of one replica's all-reduce traffic, for the expected time.",
        minimum=0,
    )
    machine_file: str | None = setting(
        None,
        "What this machine reaches, measured with bert benchmark machine, for predicted times. Unset: the "
        "file in the user's cache, where there is one.",
    )
    plan_device: str | None = setting(
        None,
        f"With --plan: what a device can hold, to say whether the run fits: {', '.join(DEVICE_BYTES)}, or "
        "bytes, such as 16e9 or 16GB.",
    )


SECTION = Section("Plan", Plan, evaluation=False)
