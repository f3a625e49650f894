"""What a line of the metrics sums up, however many calls of the devices, and processes, its steps take; and
how long a call may be."""

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

# Of a call of the devices: so often somebody looks for signals and losses that are not finite.
CALL_SECS = 5.0


class NonFiniteError(ArithmeticError):
    """A loss, metric, gradient or weight is NaN or infinite. The message names step and metric."""


@dataclasses.dataclass
class Interval:
    """The steps since the last line of the metrics.

    Attributes:
      first_step: the updates done before it.
      totals: what the training loop has summed up in it, see `step.no_totals`.
      steps, sequences, secs: of them, those that this process has done, what they trained on, and how long
        they took.
      waited_secs: of `secs`, those in which a step's program waited for its batch; None where nobody asks.
    """

    first_step: int
    totals: dict[str, tf.Tensor]
    steps: int = 0
    sequences: int = 0
    secs: float = 0.0
    waited_secs: float | None = None

    def add_wait(self, wait: HostWait | None) -> None:
        """Notes how long a call has waited for batches, where that is measured."""
        if wait is not None:
            self.waited_secs = (self.waited_secs or 0.0) + wait.take_secs()

    def add(self, totals: dict[str, tf.Tensor], steps: int, sequences: int, secs: float) -> None:
        """Notes what a call has returned, which has gone on from `totals`."""
        self.totals, self.steps, self.secs = totals, self.steps + steps, self.secs + secs
        self.sequences += sequences

    def numbers(self) -> dict[str, np.ndarray]:
        """Returns the totals as NumPy has them."""
        return {name: value.numpy() for name, value in self.totals.items()}

    @property
    def bad_step(self) -> int | None:
        """Returns the first step with a number that is not finite; None where all are."""
        step = int(self.totals["bad_step"])
        return step if step >= 0 else None

    def values(self, task: Task, state: TrainState) -> dict:
        """Returns the line of the metrics as far as the interval is done."""
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
        """Raises NonFiniteError where loss scaling has skipped all steps of the interval, which is over, and
        will go on to."""
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
        """Returns what a later process goes on from, to the last bit, ready for JSON."""
        totals = {name: value.tolist() for name, value in self.numbers().items()}
        return {"first_step": self.first_step, **totals}


def _loss_scale(state: TrainState) -> float:
    """Returns the loss scale of the last step, 1 without loss scaling; a dynamic one is that of the next."""
    if state.loss_scale is None:
        return 1.0
    told = state.loss_scale.told(state.step - 1)
    return float(state.loss_scale.scale.numpy()) if told is None else told


def from_saved(saved: dict, step: int, nothing: dict[str, tf.Tensor]) -> Interval:
    """Returns the interval that a run goes on with.

    Args:
      saved: what `to_saved` returned with the checkpoint of `step`; empty where an interval ended there.
      step: updates done.
      nothing: see `step.no_totals`; totals of another form are those of another task, and begin anew.
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
    """How many steps take about `CALL_SECS`, by what the last call took.

    The first call is one unit: it compiles, and people wait for it. So it takes longer than it will, and
    what follows is not too long.
    """

    def __init__(self, stops: Sequence[int] = (), unit: int = 1) -> None:
        """Args: stops: steps at which a call ends, whatever the pace. unit: steps that are done at once."""
        self._secs_per_step: float | None = None
        self._stops, self._unit = stops, unit

    @property
    def is_unknown(self) -> bool:
        """Whether no step was done yet."""
        return self._secs_per_step is None

    def steps(self, left: int, step: int = 0) -> int:
        """Returns the steps of the next call, of `left` ones, after `step` updates."""
        left = min([left, *(stop - step for stop in self._stops if stop > step)])
        if self._secs_per_step is None:
            return min(self._unit, left)
        units = int(CALL_SECS / max(self._secs_per_step, 1e-9)) // self._unit
        return min(left, max(1, units) * self._unit)

    def note(self, steps: int, secs: float) -> None:
        """Notes how long a call took, in all processes the same."""
        self._secs_per_step = secs / steps
