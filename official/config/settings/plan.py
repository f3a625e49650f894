"""Settings: what --plan prints."""

from __future__ import annotations

import dataclasses

from official.config.device_memory import DEVICE_BYTES
from official.config.setting import Section, setting


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of --plan."""

    plan: bool = setting(
        False,
        "Print what the run would be (sizes, memory, steps, evaluations, time) and stop. Needs no data "
        "and no devices.",
    )
    measure: bool = setting(
        False,
        "With --plan: also run three steps on generated data, on the devices of the run, for its hours and "
        "its sequences a second. Saves nothing.",
    )
    plan_file: str | None = setting(None, "With --plan: also write it as JSON.")
    plan_config_file: str | None = setting(
        None,
        "With --plan: also write the whole configuration as JSON, for python -m official.training.ipu FILE.",
    )
    plan_picture: str | None = setting(
        None,
        "With --plan of a pipeline: also draw its schedule, time by device, as .png, .svg or .pdf; with "
        "--plan_hosts the curves of efficiency instead.",
    )
    plan_tflops: float | None = setting(
        None,
        "With --plan: expected TFLOP/s of one replica's matrix products, for the expected time.",
        minimum=0,
    )
    plan_gbps: float | None = setting(
        None,
        "With --plan: expected GB/s of one replica's all-reduce traffic, for the expected time; with "
        "--plan_hosts those of a host's link to the others, each way.",
        minimum=0,
    )
    plan_hosts: str | None = setting(
        None,
        "With --plan: also predict a step on other numbers of hosts, each like the one that is planned: "
        "1..4096 is 1, 2, 4 and so on; also 1,3,6. Needs --plan_gbps, and the time of a step: --measure or "
        "--plan_tflops.",
    )
    plan_local_gbps: float | None = setting(
        None,
        "With --plan_hosts: GB/s of a replica's link to the others of its host. Unset: as --plan_gbps.",
        minimum=0,
    )
    plan_latency_usecs: float | None = setting(
        None,
        "With --plan_hosts: microseconds of a message between hosts; inside a host a tenth. Unset: 10, which "
        "is an assumption.",
        minimum=0,
    )
    plan_overlap: float | None = setting(
        None,
        "With --plan_hosts: share of the last micro batch's backward pass behind which the all-reduce hides. "
        "Unset: 0, it begins when that has ended.",
        minimum=0,
        maximum=1,
    )
    plan_update_secs: float | None = setting(
        None,
        "With --plan_hosts: seconds that a step costs beside its micro batches and the all-reduce, such as "
        "the optimizer. Unset: 0.",
        minimum=0,
    )
    plan_rows_per_sec: float | None = setting(
        None,
        "With --plan_hosts: rows that the input of a host makes a second. Unset: as many as are wanted.",
        minimum=0,
    )
    plan_device: str | None = setting(
        None,
        f"With --plan: what a device can hold, to say whether the run fits: {', '.join(DEVICE_BYTES)}, or "
        "bytes, such as 16e9 or 16GB.",
    )


SECTION = Section("Plan", Plan, evaluation=False)
