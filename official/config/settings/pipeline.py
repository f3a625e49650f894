"""Settings: which parts of a model are on which device."""

from __future__ import annotations

import dataclasses

from official.config.setting import Section, setting

PIPELINED = ("pipeline", "ipu")
SCHEDULES = {"pipeline": ("1f1b", "gpipe"), "ipu": ("grouped", "interleaved", "sequential")}


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Settings of the placement of a model's parts on devices."""

    pipeline_stages: str | None = setting(
        None,
        "Number of stages, which are then balanced, or what each holds: emb+pos / hid*12 / hid*12 / mlm+nsp.",
        backends=PIPELINED,
    )
    device_mapping: str | None = setting(
        None,
        "Device of each stage, from 0 within a replica: 0,1,2,3,0. Unset: one a stage; on IPUs the heads are "
        "with the embeddings.",
        backends=PIPELINED,
    )
    pipeline_schedule: str | None = setting(
        None,
        "What a device does next: 1f1b or gpipe; on IPUs grouped, interleaved or sequential. Unset: the "
        "first of them.",
        choices=tuple(name for names in SCHEDULES.values() for name in names),
        backends=PIPELINED,
    )


SECTION = Section("Pipeline", Pipeline, evaluation=False)
