"""Events of a run, in chronological order, and the interface of the callbacks that receive them.

A callback overrides the events that it needs; the others do nothing. All counts of data are in sequences.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Start:
    """A run starts or resumes: everything is compiled, no data has been read.

    Attributes:
      step, samples: updates done and sequences trained on so far.
      last_step: the last update of the run; `step` if nothing is left to train; None with a time budget.
      tensors: names of the model's weights.
      process_started: start of this process, in seconds since 1970.
      caches_dropped: whether the data were dropped from the system's cache.
    """

    step: int
    samples: int
    last_step: int | None
    tensors: tuple[str, ...]
    process_started: float
    caches_dropped: bool


@dataclasses.dataclass(frozen=True)
class Built:
    """The data files are known and the model has its weights; nothing is compiled yet.

    Attributes:
      data_secs: seconds for listing the data files; for fine-tuning also for reading and tokenizing them.
      devices: device of each replica, such as GPU 0.
      allocation: (part of the model, device) for a pipeline; empty if each replica has one device.
    """

    data_secs: float
    devices: tuple[str, ...]
    allocation: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation of the whole set.

    Attributes:
      step, samples: updates done and sequences trained on before the evaluation.
      sequences: sequences evaluated.
      values: {name: number}, `samples` first; a number may be NaN or infinite.
      target_metric: name of the main metric.
      target: its value in --stop_threshold; None if unset.
      secs: duration in seconds.
    """

    step: int
    samples: int
    sequences: int
    values: dict[str, float]
    target_metric: str
    target: float | None
    secs: float


@dataclasses.dataclass(frozen=True)
class End:
    """The end of the training, for any reason.

    Attributes:
      status, reason: as in result.json.
      step, samples: updates done and sequences trained on.
    """

    status: str
    reason: str
    step: int
    samples: int


class Callback:
    """Receives every event of a run. A run that only evaluates has the same events, except those of
    training."""

    def on_built(self, built: Built) -> None:
        """The model is built."""

    def on_compiling(self, done: int, graphs: int, secs: float) -> None:
        """`done` of the `graphs` compiled before the run starts are finished, after `secs` seconds; the first
        call has done=0."""

    def on_start(self, start: Start) -> None:
        """The run starts or resumes."""

    def on_training(self, step: int, samples: int, planned: int | None) -> None:
        """A block of training begins after `step` updates and `samples` sequences; `planned` sequences follow
        before the next evaluation or the end; None if a time budget may end the run earlier."""

    def on_call(self, step: int) -> None:
        """A device call with several steps is about to start, after `step` updates."""

    def on_first_step(self, step: int, secs: float) -> None:
        """The first step of this process is done, which includes compilation, `secs` seconds after the start
        of the process."""

    def on_steps(self, step: int, values: dict) -> None:
        """More steps are done after the first one; `values` are those of the open interval."""

    def on_interval(self, step: int, values: dict) -> None:
        """An interval is done. `values`: {name: number}, `samples` first; NaN in the last one of a run that
        fails."""

    def on_open_interval(self, step: int, steps: int, values: dict) -> None:
        """A signal interrupted an interval after `steps` steps. `values` are those of `on_interval` so far;
        the resumed run reports the whole interval."""

    def on_evaluation_start(self, step: int, samples: int) -> None:
        """An evaluation begins."""

    def on_evaluation_stop(self, step: int, samples: int) -> None:
        """An evaluation ended or was interrupted; its result is not known yet."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """An evaluation is done."""

    def on_checkpoint(self, step: int) -> None:
        """The state is about to be saved. Callbacks flush their files first, so that these reach up to the
        checkpoint."""

    def on_end(self, end: End) -> None:
        """The training has ended; its files are complete."""

    def on_result(self, status: str, result: dict) -> None:
        """The result is final and saved in result.json."""

    def close(self) -> None:
        """The process leaves the run, also after an error. May be called twice."""
