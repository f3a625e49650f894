"""The model of scaling fitted to measured steps, and what it then says of others."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from official.planning import scaling
from official.planning.all_reduce import Network
from official.planning.scaling import Batch, Work


class Run(NamedTuple):
    """A run whose step was measured.

    Attributes:
      name: of it.
      work: of a replica. Its `row_secs` are those of a replica that reaches its peak.
      network: that its replicas send over.
      hosts: how many.
      batch: of a replica.
      step_secs: as measured.
    """

    name: str
    work: Work
    network: Network
    hosts: int
    batch: Batch
    step_secs: float


def share_of_peak(run: Run) -> float:
    """Returns the share of a replica's peak with which the model takes as long as was measured."""
    found = scaling.row_secs_of(run.work, run.network, run.hosts, run.batch, run.step_secs)
    return run.work.row_secs / found


def predicted_secs(run: Run, share: float, update_secs: float | None = None) -> float:
    """Returns the seconds of a run's step by the model.

    Args:
      run: whose measured time is not looked at.
      share: of the peak that a replica reaches.
      update_secs: that a step costs beside its micro batches; None: as the run's work says.
    """
    work = dataclasses.replace(run.work, row_secs=run.work.row_secs / share)
    if update_secs is not None:
        work = dataclasses.replace(work, update_secs=update_secs)
    return scaling.step_time(work, run.network, run.hosts, run.batch).secs


def share_and_update(runs: Sequence[Run]) -> tuple[float, float]:
    """Returns (share of the peak, seconds that a step costs beside its micro batches) that fit several runs
    best, by least squares: what their steps take without the all-reduce is a line over what their micro
    batches would take at the peak.

    Args:
      runs: at least two, with different times of the micro batches.
    """
    at_peak, rest = [], []
    for run in runs:
        work = dataclasses.replace(run.work, update_secs=0.0)
        time = scaling.step_time(work, run.network, run.hosts, run.batch)
        at_peak.append(time.compute_secs)
        rest.append(run.step_secs - time.all_reduce_secs)
    slope, update_secs = statistics.linear_regression(at_peak, rest)
    return 1 / slope, update_secs
