"""What the devices of a pipeline do: one work at a time."""

from __future__ import annotations

from typing import NamedTuple


class Work(NamedTuple):
    """What a device does at a time: one stage of the pipeline for one micro batch.

    Attributes:
      stage: of the pipeline, from 0.
      micro_batch: of the step, from 0.
      backward: the backward pass, which computes again what was not kept; else the forward pass.
    """

    stage: int
    micro_batch: int
    backward: bool
