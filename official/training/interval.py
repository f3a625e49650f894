"""Accumulates the metrics of one logging interval across device calls and restarts, and chooses the number of
steps per call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from official.optimization import replica_step
from official.optimization.train_state import TrainState
from official.training.task import Task
from official.training.waiting import HostWait

# Duration of a device call; signals and non-finite losses are checked between calls.
CALL_SECS = 5.0


class NonFiniteError(ArithmeticError):
    """A loss, metric, gradient or weight is NaN or infinite. The message names step and metric."""


@dataclasses.dataclass
class Interval:
    """Totals of the steps since the last line of the metrics.

    Attributes:
      first_step: number of updates done before the interval.
      totals: sums of the training loop over the interval, see `step.no_totals`.
      steps, sequences, secs: steps of the interval that this process has done, the sequences that they
        trained on, and their seconds.
      waited_secs: the part of `secs` in which steps waited for their batches; None where it isn't measured.
    """

    first_step: int
    totals: dict[str, tf.Tensor]
    steps: int = 0
    sequences: int = 0
    secs: float = 0.0
    waited_secs: float | None = None

    def add_wait(self, wait: HostWait | None) -> None:
        """Adds the seconds that a call waited for batches; nothing without a `wait`."""
        if wait is not None:
            self.waited_secs = (self.waited_secs or 0.0) + wait.take_secs()

    def add(self, totals: dict[str, tf.Tensor], steps: int, sequences: int, secs: float) -> None:
        """Takes the totals that a call returned, which include those before it, and adds its steps, sequences
        and seconds."""
        self.totals, self.steps, self.secs = totals, self.steps + steps, self.secs + secs
        self.sequences += sequences

    def numbers(self) -> dict[str, np.ndarray]:
        """Returns the totals as NumPy arrays."""
        return {name: value.numpy() for name, value in self.totals.items()}

    @property
    def bad_step(self) -> int | None:
        """Returns the first step with a number that is not finite; None where all are."""
        step = int(self.totals["bad_step"])
        return step if step >= 0 else None

    def values(self, task: Task, state: TrainState) -> dict:
        """Returns the values of the metrics line, for the part of the interval that is done."""
        totals, skipped = self.numbers(), int(self.totals["skipped"])
        wait, norm = {}, {}
        if self.waited_secs is not None and self.secs:
            wait["host_wait_share"] = self.waited_secs / self.secs
        if "norm" in totals:  # which IPUs do not tell
            norm["gradient_norm"] = float(totals["norm"]) / max(state.step - self.first_step - skipped, 1)
        return {
            **replica_step.mean_metrics(task.losses, task.metrics, totals["sums"]),
            "learning_rate": float(state.schedule(state.step - 1)),
            **norm,
            "loss_scale": _loss_scale(state),
            "skipped_steps": skipped,
            "sequences_per_sec": self.sequences / self.secs if self.secs else None,
            **wait,
        }

    def non_finite(self, task: Task, values: dict) -> NonFiniteError:
        """Returns the error of an interval with a `bad_step`."""
        names = [name for name in task.metrics if not math.isfinite(values[name])] or ["gradient norm"]
        return NonFiniteError(f"{', '.join(names)} not finite at step {self.bad_step}")

    def check_skipped(self, state: TrainState) -> None:
        """Raises NonFiniteError where loss scaling has skipped all steps of a finished interval and cannot
        lower its scale any more."""
        steps = state.step - self.first_step
        if state.loss_scale is None or int(self.totals["skipped"]) < steps:
            return
        scale = float(state.loss_scale.scale.numpy())
        if not state.loss_scale.dynamic or scale <= 1.0:
            raise NonFiniteError(
                f"gradient norm not finite in any of the {steps} steps before step {state.step}, "
                f"with loss_scale {scale:g}"
            )

    def to_saved(self) -> dict:
        """Returns the first step and the totals as a dict for JSON, from which a later process resumes
        bit-exactly."""
        totals = {name: value.tolist() for name, value in self.numbers().items()}
        return {"first_step": self.first_step, **totals}


def _loss_scale(state: TrainState) -> float:
    """Returns the loss scale of the last step, 1 without loss scaling; the next step's where it is
    dynamic."""
    if state.loss_scale is None:
        return 1.0
    told = state.loss_scale.told(state.step - 1)
    return float(state.loss_scale.scale.numpy()) if told is None else told


def from_saved(saved: dict, step: int, nothing: dict[str, tf.Tensor]) -> Interval:
    """Returns the interval that a run resumes with.

    Args:
      saved: the value of `to_saved` from the checkpoint of `step`; empty where an interval ended there.
      step: number of updates done.
      nothing: initial totals, see `step.no_totals`; saved totals of other shapes belong to another task, and
        the interval starts anew.
    """
    try:
        totals = {
            name: tf.constant(np.array(saved[name], value.dtype.as_numpy_dtype))
            for name, value in nothing.items()
        }
        first_step = saved["first_step"]
    except (KeyError, TypeError, ValueError, OverflowError):
        return Interval(step, nothing)
    fits = all(totals[name].shape == value.shape for name, value in nothing.items())
    return (
        Interval(first_step, totals)
        if fits and type(first_step) is int and 0 <= first_step < step
        else Interval(step, nothing)
    )


class Pace:
    """Chooses the number of steps of a device call, so that it takes about `CALL_SECS`, from the last call's
    time.

    The first call is one unit: it compiles, and people wait for it. Its time overestimates that of a step, so
    that the second call is rather too short than too long.
    """

    def __init__(self, stops: Sequence[int] = (), unit: int = 1) -> None:
        """Args: stops: steps at which a call ends in any case. unit: a call's steps are a multiple of it,
        unless fewer are left."""
        self._secs_per_step: float | None = None
        self._stops, self._unit = stops, unit

    @property
    def is_unknown(self) -> bool:
        """Whether no call has been timed yet."""
        return self._secs_per_step is None

    def steps(self, left: int, step: int = 0) -> int:
        """Returns the number of steps of the next call: at most `left`, after `step` updates."""
        left = min([left, *(stop - step for stop in self._stops if stop > step)])
        if self._secs_per_step is None:
            return min(self._unit, left)
        units = int(CALL_SECS / max(self._secs_per_step, 1e-9)) // self._unit
        return min(left, max(1, units) * self._unit)

    def note(self, steps: int, secs: float) -> None:
        """Records the seconds of a call, which must be the same in all processes."""
        self._secs_per_step = secs / steps
