"""State of a run besides its variables, saved next to a checkpoint: sums of an unfinished metrics window,
position in packed data, used time budget. Also the number of steps of a device call."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from official.data.pipeline import MOST_STREAMS, TrainingOrder
from official.io.errors import ConfigError
from official.optimization import replica_step

if TYPE_CHECKING:
    from official.optimization.train_state import TrainState
    from official.training.task import Task

CALL_SECS = 5.0  # duration of a device call; signals and non-finite losses are checked between calls


class NonFiniteError(ArithmeticError):
    """A loss, metric, gradient or weight is NaN or infinite. The message names step and metric."""


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
class MetricsWindow:
    """Totals of the steps since the last line of the metrics.

    Attributes:
      first_step: number of updates done before the window.
      totals: sums of the training loop over the window, see `step.no_totals`.
      steps, sequences, secs: number of steps of the window done by this process, their sequences, and their
        seconds.
      waited_secs: the part of `secs` in which steps waited for their batches; None if not measured.
    """

    first_step: int
    totals: dict[str, tf.Tensor]
    steps: int = 0
    sequences: int = 0
    secs: float = 0.0
    waited_secs: float | None = None

    def add(
        self, totals: dict[str, tf.Tensor], steps: int, sequences: int, secs: float, waited: float | None
    ) -> None:
        """Replaces the totals by those that a call returned, which include earlier calls, and adds its steps,
        sequences, seconds and, if measured, seconds of waiting."""
        self.totals, self.steps, self.secs = totals, self.steps + steps, self.secs + secs
        self.sequences += sequences
        if waited is not None:
            self.waited_secs = (self.waited_secs or 0.0) + waited

    @property
    def bad_step(self) -> int | None:
        """Returns the first step with a non-finite number; None without one."""
        step = int(self.totals["bad_step"])
        return step if step >= 0 else None

    def values(self, task: Task, state: TrainState, packed_rows: int, row_length: int) -> dict:
        """Returns the values of the metrics line, for the finished part of the window.

        Args:
          task, state: of the run.
          packed_rows: number of packed rows per step; 0 without packing.
          row_length: number of tokens per row.
        """
        totals = {name: value.numpy() for name, value in self.totals.items()}
        skipped = int(totals["skipped"])
        done, packing = state.step - self.first_step, PackingCounts()
        values: dict[str, Any] = {
            "samples": state.samples_done,
            **replica_step.mean_metrics(task.losses, task.metrics, totals["sums"]),
            "learning_rate": float(state.schedule(state.step - 1)),
        }
        if "norm" in totals:  # not on IPUs
            values["gradient_norm"] = float(totals["norm"]) / max(done - skipped, 1)
        scale = state.loss_scale
        # A dynamic scale returns None for past steps: the next step's scale is reported.
        used = scale.told(state.step - 1) if scale else 1.0
        values["loss_scale"] = float(scale.scale.numpy()) if scale and used is None else used
        values["skipped_steps"] = skipped
        values["sequences_per_sec"] = self.sequences / self.secs if self.secs else None
        if self.waited_secs is not None and self.secs:
            values["host_wait_share"] = self.waited_secs / self.secs
        if packed_rows:
            packing.add(done * packed_rows, totals["counts"])
        return {**values, **packing.shares(row_length)}

    def non_finite(self, task: Task, values: dict) -> NonFiniteError:
        """Returns the error of a window with a `bad_step`."""
        names = [name for name in task.metrics if not math.isfinite(values[name])] or ["gradient norm"]
        return NonFiniteError(f"{', '.join(names)} not finite at step {self.bad_step}")

    def check_skipped(self, state: TrainState) -> None:
        """Raises NonFiniteError if loss scaling has skipped all steps of a finished window and its scale is
        already minimal."""
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
        totals = {name: value.numpy().tolist() for name, value in self.totals.items()}
        return {"first_step": self.first_step, **totals}


def window_from_saved(saved: dict, step: int, nothing: dict[str, tf.Tensor]) -> MetricsWindow:
    """Returns the window with which a run resumes.

    Args:
      saved: the value of `to_saved` from the checkpoint of `step`; empty if a window ended there.
      step: number of updates done.
      nothing: initial totals, see `step.no_totals`. If saved totals have other shapes, they belong to another
        task, and a new window starts.
    """
    try:
        types = {name: value.dtype.as_numpy_dtype for name, value in nothing.items()}
        totals = {name: tf.constant(np.array(saved[name], kind)) for name, kind in types.items()}
        first_step = saved["first_step"]
        fits = all(totals[name].shape == value.shape for name, value in nothing.items())
        if fits and type(first_step) is int and 0 <= first_step < step:
            return MetricsWindow(first_step, totals)
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    return MetricsWindow(step, nothing)


@dataclasses.dataclass
class DataPosition:
    """Position of a run on packed rows: the rows read, and the sequences read of each stream of the data.

    Neither follows from the total number of sequences, so checkpoints keep both.
    """

    rows: int
    stream_sequences: np.ndarray  # int64 [MOST_STREAMS]

    def add(self, rows: int, stream_sequences: np.ndarray) -> None:
        """Advances the position by the rows and the sequences of each stream that were trained on."""
        self.rows, self.stream_sequences = self.rows + rows, self.stream_sequences + stream_sequences

    def order(self, order: TrainingOrder) -> TrainingOrder:
        """Returns the order of the data, continued from this position."""
        streams = tuple(self.stream_sequences.tolist())
        return dataclasses.replace(order, rows_done=self.rows, stream_sequences=streams)

    def to_saved(self) -> dict:
        """Returns the position as a dict for JSON, which `position_from_saved` reads."""
        return {"rows_done": self.rows, "stream_sequences": self.stream_sequences.tolist()}


def position_from_saved(saved: dict, samples: int, rows: int) -> DataPosition:
    """Returns the position at which a run continues.

    Args:
      saved: the value of `to_saved`; another dict if the run was not packed so far, or its file is lost.
      samples: number of sequences done; a saved position with another total is ignored.
      rows: number of rows done, for a run without a saved position. Its counts per stream are zeros, and the
        data assume equally many sequences of each stream, so some are read twice, and others not at all.
    """
    rows_done, streams = saved.get("rows_done"), saved.get("stream_sequences")
    counts = streams if isinstance(streams, list) and len(streams) == MOST_STREAMS else [-1]
    whole = all(type(count) is int and count >= 0 for count in counts)
    if type(rows_done) is int and whole and sum(counts) == samples:
        return DataPosition(rows_done, np.array(counts, np.int64))
    return DataPosition(rows, np.zeros(MOST_STREAMS, np.int64))


class TimeBudget:
    """Time budget of a run: seconds that its processes have used, and the learning rates that followed.

    Everything between the start of the loop and its end counts: compilation, steps, evaluations, checkpoints.
    The time of steps lost by a kill does not count; they are repeated.

    Attributes:
      secs: the budget in seconds.
      rates: {step: learning rate of the updates from this step on}.
    """

    _CALLS = 1000  # minimum number of calls per budget, so that the rate decays in small steps

    def __init__(self, secs: float, saved: dict, step: int, model_dir: str):
        """Makes the budget.

        Args:
          secs: the budget in seconds.
          saved: the value of `to_saved` from the checkpoint from which the run resumes.
          step: step of that checkpoint; 0 for a new run.
          model_dir: folder of the run, for messages.

        Raises:
          ConfigError: if the run resumes and its used time is unknown.
        """
        used, rates = saved.get("budget_used_secs", 0.0), saved.get("learning_rates", {})
        if step and not (rates and isinstance(used, float) and isinstance(rates, dict)):
            raise ConfigError(
                f"budget_hours={secs / 3600:g}, but ckpt-{step} in --model_dir={model_dir} does not record"
                " the time used so far. Drop --budget_hours, or give another --model_dir."
            )
        self.secs, self._since = secs, math.inf
        self._used: float = used
        self.rates: dict[int, float] = {int(at): rate for at, rate in rates.items()}

    def begin(self) -> None:
        """Starts the clock of this process."""
        self._since = time.monotonic()

    def used(self) -> float:
        """Returns the seconds used so far by this process and the earlier ones of the run."""
        return self._used + max(time.monotonic() - self._since, 0.0)

    def call_secs(self, used: float) -> float:
        """Returns the maximum seconds of a device call after `used` seconds."""
        return min(CALL_SECS, self.secs / self._CALLS, self.secs - used)

    def note(self, step: int, rate: float) -> None:
        """Records the learning rate of the updates from a step on."""
        if [*self.rates.values()][-1:] != [rate]:
            self.rates[step] = rate

    def to_saved(self) -> dict:
        """Returns the time used and the rates as a dict for JSON."""
        return {"budget_used_secs": self.used(), "learning_rates": self.rates}


class StepsPerCall:
    """Chooses the number of steps of a device call, so that it takes about `CALL_SECS`, from the last call's
    time.

    The first call is one unit: it compiles, and the user waits for it. Its time overestimates that of a step,
    so the second call may be too short, but not too long.
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

    def steps(self, left: int, step: int = 0, secs: float = CALL_SECS) -> int:
        """Returns the number of steps of the next call, of about `secs`: at most `left`, after `step`
        updates."""
        left = min([left, *(stop - step for stop in self._stops if stop > step)])
        if self._secs_per_step is None:
            return min(self._unit, left)
        units = int(secs / max(self._secs_per_step, 1e-9)) // self._unit
        return min(left, max(1, units) * self._unit)

    def note(self, steps: int, secs: float) -> None:
        """Records the seconds of a call, which must be the same in all processes."""
        self._secs_per_step = secs / steps
