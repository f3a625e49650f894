"""Measurements of the training loop, and the status and reason that follow from them."""

from __future__ import annotations

import dataclasses
import signal

import numpy as np

from official.config import Config
from official.training.task import Task


@dataclasses.dataclass
class PackingCounts:
    """Counts of the packed rows that a run trained on.

    Attributes:
      rows, sequences: numbers of both.
      tokens: number of tokens without padding, to seven digits.
    """

    rows: int = 0
    sequences: int = 0
    tokens: int = 0

    def add(self, rows: int, counts: np.ndarray) -> None:
        """Adds `rows` rows with their `counts`, int [N + 1]: sequences of each of N streams, then tokens."""
        self.rows, self.tokens = self.rows + rows, self.tokens + int(counts[-1])
        self.sequences += int(counts[:-1].sum())

    def shares(self, row_length: int) -> dict[str, float]:
        """Returns `sequences_per_row` and `packing_efficiency`, the share of the rows' positions that hold a
        token; empty without packed rows."""
        if not self.rows:
            return {}
        efficiency = self.tokens / (self.rows * row_length)
        return {"sequences_per_row": self.sequences / self.rows, "packing_efficiency": efficiency}


@dataclasses.dataclass
class Outcome:
    """Measurements of the loop so far.

    Attributes:
      eval_metrics: values of the last evaluation.
      outputs: the model's outputs in the last evaluation of this process.
      reached: whether the target was reached.
      skipped_steps: number of updates that loss scaling skipped.
      loop_rates: (sequences, seconds) of each interval.
      first_step_secs: seconds from the start of this process to the end of its first step.
      step_secs: seconds per step in the last device call after the first.
      interrupted: whether a signal stopped the loop before its end.
      packing: counts of the packed rows trained on in this process.
    """

    eval_metrics: dict = dataclasses.field(default_factory=dict)
    outputs: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    reached: bool = False
    skipped_steps: int = 0
    loop_rates: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    first_step_secs: float | None = None
    step_secs: float | None = None
    interrupted: bool = False
    packing: PackingCounts = dataclasses.field(default_factory=PackingCounts)

    def sequences_per_sec(self) -> float | None:
        """Returns the training throughput, without the first interval, which includes the compilation, unless
        it is the only one; None without training."""
        steady = self.loop_rates[1:] or self.loop_rates
        secs = sum(secs for _, secs in steady)
        return sum(sequences for sequences, _ in steady) / secs if secs else None

    def startup_secs(self, process_started: float, run_started: float) -> float:
        """Returns the startup time in seconds: up to the end of the first step, less the time of a step;
        without training, up to the start of the run. Both arguments are seconds since 1970."""
        if self.first_step_secs is None:
            return run_started - process_started
        return max(self.first_step_secs - (self.step_secs or 0.0), 0.0)


def judge(config: Config, task: Task, outcome: Outcome, step: int) -> tuple[str, str]:
    """Returns (status, reason) of a run that ended at `step` without an error or a signal."""
    if outcome.reached or config.stop_threshold is not None:
        score = f"{task.target_metric} {outcome.eval_metrics[task.target_metric]:.4f}"
        target = f"the target {config.stop_threshold}"
        if outcome.reached:
            return "success", f"{score} reached {target} at step {step}"
        return "aborted", f"{score} is below {target} after all {step} steps"
    if not config.do_train:
        return "finished", f"{'evaluated' if config.do_eval else 'predicted'} at step {step}"
    return "finished", f"all {step} steps done"


def describe_interruption(config: Config, step: int, number: int) -> str:
    """Returns the reason of a run that stopped at `step` on signal `number`."""
    done = "saved" if config.do_train else "evaluation stopped"
    return f"{done} at step {step} on {signal.Signals(number).name}"
