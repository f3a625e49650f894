"""Settings: which parts of a model are on which device."""

from __future__ import annotations

import dataclasses

from official.config.setting import Section, setting


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the pipelines of a back end are.

    Attributes:
      label: of one device.
      schedules: that it takes, its own choice first.
      is_graphcores: whether stages that share a variable share a device, devices are given out in powers of
        two, and schedules are Graphcore's.
    """

    label: str
    schedules: tuple[str, ...]
    is_graphcores: bool = False


# Value of --distribution_strategy -> what its pipelines are.
KINDS = {
    "pipeline": Kind("device", ("1f1b", "gpipe", "virtual")),
    "ipu": Kind("IPU", ("grouped", "interleaved", "sequential"), is_graphcores=True),
}
PIPELINED = tuple(KINDS)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Which parts of a model are on which device."""

    pipeline_stages: str | None = setting(
        None,
        "Number of stages, which are then balanced, or what each holds: emb+pos / hid*12 / hid*12 / mlm+nsp.",
        backends=PIPELINED,
    )
    device_mapping: str | None = setting(
        None,
        "Device of each stage, from 0 within a replica: 0,1,2,3,0. Unset: one a stage; on IPUs the heads are "
        "with the embeddings; virtual: half as many as stages, in turn.",
        backends=PIPELINED,
    )
    pipeline_schedule: str | None = setting(
        None,
        "What a device does next: 1f1b, gpipe or virtual; on IPUs grouped, interleaved or sequential. Unset: "
        "the first of them.",
        choices=tuple(name for kind in KINDS.values() for name in kind.schedules),
        backends=PIPELINED,
    )


SECTION = Section("Pipeline", Pipeline, evaluation=False)
