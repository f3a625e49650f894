"""Settings: what is measured of a run while it trains."""

from __future__ import annotations

import dataclasses

from official.config.setting import Section, setting

# IPUs have a profiler of their own; that of TPUs is on another machine, and was never run.
_PROFILED = ("one_device", "mirrored", "multi_worker_mirrored", "pipeline")


@dataclasses.dataclass(frozen=True)
class Profiling:
    """Settings of the profile of a run that trains."""

    profile_steps: str | None = setting(
        None,
        "Profile from one step to another, such as 10,20, as the run counts them: a trace for TensorBoard, "
        "and a table of the operations by time, in --model_dir and in the report.",
        backends=_PROFILED,
    )
    profile_memory: bool = setting(
        False,
        "Measure which layers hold the memory at its peak, and the peak of each, in the steps of "
        "--profile_steps, or in the second step of the process: in --model_dir and in the report.",
        backends=_PROFILED,
    )


SECTION = Section("Profile", Profiling, evaluation=False)
