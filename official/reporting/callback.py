"""Events of a run, in the order in which they come, and the interface of the callbacks that receive them.

A run knows no callback by name. A callback overrides the events that it needs; the others do nothing.
All counts of data are in sequences.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Start:
    """A run starts or resumes: everything is compiled, no data has been read.

    Attributes:
      step, samples: updates done and sequences trained on before.
      last_step: the last update of the run; `step` if nothing is left to train; None with a time budget.
      tensors: names of the model's weights.
      process_started: when this process began, seconds since 1970.
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
    """The data are found and the model has its weights; nothing is compiled yet.

    Attributes:
      data_secs: seconds that finding the data took, of fine-tuning also reading and cutting them.
      devices: where each replica is, such as GPU 0.
      allocation: (part of the model, where it is) of a pipeline; empty where each replica has one device.
    """

    data_secs: float
    devices: tuple[str, ...]
    allocation: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation of the whole set.

    Attributes:
      step, samples: updates done and sequences trained on before it.
      sequences: sequences evaluated.
      values: {name: number}, `samples` first; a number may be NaN or infinite.
      target_metric: name of the main metric.
      target: its value in --stop_threshold; None if unset.
      secs: seconds that it took.
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
    """The end of the training, whatever the reason.

    Attributes:
      status, reason: as in result.json.
      step, samples: updates done and sequences trained on.
    """

    status: str
    reason: str
    step: int
    samples: int


class Callback:
    """Receives every event of a run. A run that only evaluates has the same events, without those of
    training."""

    def on_built(self, built: Built) -> None:
        """The model is built."""

    def on_compiling(self, done: int, graphs: int, secs: float) -> None:
        """`done` of the graphs that are compiled before the run starts are finished, after `secs`; the first
        call has 0."""

    def on_start(self, start: Start) -> None:
        """The run starts or resumes."""

    def on_training(self, step: int, samples: int, planned: int | None) -> None:
        """A block of training begins after `step` updates and `samples` sequences; `planned` sequences follow
        before the next evaluation or the end; None if a time budget may end the run before."""

    def on_call(self, step: int) -> None:
        """The devices are about to run some steps after `step` updates."""

    def on_first_step(self, step: int, secs: float) -> None:
        """This process has done its first step, which has compiled the others, `secs` after it was
        started."""

    def on_steps(self, step: int, values: dict) -> None:
        """More steps are done, after the first one; `values` are those of the interval so far."""

    def on_interval(self, step: int, values: dict) -> None:
        """An interval is done. `values`: {name: number}, `samples` first; NaN in the last one of a run that
        fails."""

    def on_open_interval(self, step: int, steps: int, values: dict) -> None:
        """A signal interrupted an interval after `steps` of its steps. `values` are those of `on_interval` so
        far; the resumed run reports the whole interval."""

    def on_evaluation_start(self, step: int, samples: int) -> None:
        """An evaluation begins."""

    def on_evaluation_stop(self, step: int, samples: int) -> None:
        """An evaluation ended or was interrupted; its outcome is not known yet."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """An evaluation has this outcome."""

    def on_checkpoint(self, step: int) -> None:
        """The state is about to be saved. Callbacks flush their files first, so that these reach up to the
        checkpoint."""

    def on_end(self, end: End) -> None:
        """The training is over; its files are complete."""

    def on_result(self, status: str, result: dict) -> None:
        """The run has this result, which result.json holds."""

    def close(self) -> None:
        """The process leaves the run, also after an error. May be called twice."""
