"""How the time of a step grows with the number of hosts: arithmetic on what one replica takes alone."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from official.planning.all_reduce import Network, all_reduce


@dataclasses.dataclass(frozen=True)
class Work:
    """What a step of one replica costs alone.

    Attributes:
      row_secs: forward and backward pass of a row.
      fill: micro batches that a pipeline could work on while it fills and empties; 0 without one.
      update_secs: the optimizer, and whatever a step costs beside its micro batches.
      backward_share: of a micro batch's time, the backward pass.
      gradient_bytes: that a replica adds to the all-reduce.
      packs: all-reduces that the gradients go in.
      small_sums: all-reduces of a few numbers that a step waits for.
    """

    row_secs: float
    fill: float
    update_secs: float
    backward_share: float
    gradient_bytes: float
    packs: int = 1
    small_sums: int = 0


class Batch(NamedTuple):
    """The rows of a step of one replica: accumulation x micro batch."""

    accumulation: int
    rows: int


class StepTime(NamedTuple):
    """The time of a step, and what it is made of; seconds.

    Attributes:
      secs: of a step.
      compute_secs: all micro batches.
      update_secs: the optimizer, and what else a step costs once.
      all_reduce_secs: of the gradients, and of a few numbers.
      hidden_secs: what of it passes while the last backward pass still computes.
      input_secs: in which a host reads the rows of a step, beside all this.
      algorithm: of the gradients' all-reduce.
    """

    secs: float
    compute_secs: float
    update_secs: float
    all_reduce_secs: float
    hidden_secs: float
    input_secs: float
    algorithm: str


def step_time(
    work: Work,
    network: Network,
    hosts: int,
    batch: Batch,
    overlap: float = 0.0,
    rows_per_sec: float | None = None,
) -> StepTime:
    """Returns how long a step takes.

    Micro batches follow each other. The gradients are summed once a step, after the last of them, but for
    what hides behind its backward pass. Reading goes on meanwhile: a step takes as long as it, if that is
    more.

    Args:
      work: of a replica.
      network: what replicas send over.
      hosts: how many.
      batch: of a replica.
      overlap: share of the last backward pass behind which the all-reduce can hide, 0 to 1.
      rows_per_sec: that a host reads; None: as many as are wanted.
    """
    micro_secs = batch.rows * work.row_secs
    compute = (batch.accumulation + work.fill) * micro_secs
    pack = all_reduce(network, hosts, work.gradient_bytes / work.packs)
    gradients = work.packs * pack.secs
    hidden = min(gradients, overlap * work.backward_share * micro_secs)
    waited = gradients + work.small_sums * all_reduce(network, hosts, 0.0).secs
    read = network.replicas_per_host * batch.accumulation * batch.rows
    reading = read / rows_per_sec if rows_per_sec else 0.0
    secs = max(compute + work.update_secs + waited - hidden, reading)
    return StepTime(secs, compute, work.update_secs, waited, hidden, reading, pack.algorithm)


def divided(rows: int, replicas: int, most_rows: int) -> Batch | None:
    """Returns the batch of each replica where a step's rows are shared out anew: micro batches as large as
    they were, or the next smaller ones that divide it. None where the rows cannot be shared out evenly.

    Args:
      rows: of a step of all replicas.
      replicas: how many there are now.
      most_rows: of a micro batch.
    """
    if rows % replicas:
        return None
    own = rows // replicas
    micro = next(size for size in range(min(most_rows, own), 0, -1) if own % size == 0)
    return Batch(own // micro, micro)


def row_secs_of(work: Work, network: Network, hosts: int, batch: Batch, measured_secs: float) -> float:
    """Returns the seconds of a row with which a step takes as long as was measured, all else as in `work`,
    whose own `row_secs` counts for nothing, and without overlap: the fit to a log.

    Args:
      work, network, hosts, batch: of the measured run.
      measured_secs: of a step.
    """
    rest = step_time(dataclasses.replace(work, row_secs=0.0), network, hosts, batch).secs
    return (measured_secs - rest) / ((batch.accumulation + work.fill) * batch.rows)
