"""What the loop has found out, and what that makes of the run."""

from __future__ import annotations

import dataclasses
import signal

import numpy as np

from official.config import Config
from official.training.task import Task


@dataclasses.dataclass
class PackingCounts:
    """What the rows of a run's packed batches hold.

    Attributes:
      rows, sequences: trained on.
      tokens: of them, without padding; to seven digits.
    """

    rows: int = 0
    sequences: int = 0
    tokens: int = 0

    def add(self, rows: int, counts: np.ndarray) -> None:
        """Adds rows, and int [N + 1]: sequences of N streams, and tokens."""
        self.rows, self.tokens = self.rows + rows, self.tokens + int(counts[-1])
        self.sequences += int(counts[:-1].sum())

    def shares(self, row_length: int) -> dict[str, float]:
        """Returns `sequences_per_row` and `packing_efficiency`, the share of the rows' places that hold a
        token; empty where nothing was packed."""
        if not self.rows:
            return {}
        efficiency = self.tokens / (self.rows * row_length)
        return {"sequences_per_row": self.sequences / self.rows, "packing_efficiency": efficiency}


@dataclasses.dataclass
class Outcome:
    """What the loop has found out so far.

    Attributes:
      eval_metrics: values of the last evaluation.
      outputs: of the model, in the last evaluation of this process.
      reached: the target was reached.
      skipped_steps: updates that loss scaling skipped.
      loop_rates: (sequences, seconds) of each interval.
      first_step_secs: seconds from the start of this process to the end of its first step.
      step_secs: seconds of one step, by the last call of the devices after the first.
      interrupted: a signal has left something undone.
      packing: of the training in this process.
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
        """Returns the training throughput, without the first interval, which holds the compilation, where
        there are more."""
        steady = self.loop_rates[1:] or self.loop_rates
        secs = sum(secs for _, secs in steady)
        return sum(sequences for sequences, _ in steady) / secs if secs else None

    def startup_secs(self, process_started: float, run_started: float) -> float:
        """Returns the seconds until training was at its speed: until the first step was done, less a step;
        without training, until the run began. Both times are seconds since 1970."""
        if self.first_step_secs is None:
            return run_started - process_started
        return max(self.first_step_secs - (self.step_secs or 0.0), 0.0)


def judge(config: Config, task: Task, outcome: Outcome, step: int) -> tuple[str, str]:
    """Returns the status of a run that ended in order, without a signal, at `step`, and why."""
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
    """Returns why a run has stopped at `step` on signal `number`."""
    done = "saved" if config.do_train else "evaluation stopped"
    return f"{done} at step {step} on {signal.Signals(number).name}"
