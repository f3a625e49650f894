"""Writes the metrics of a run as TensorBoard event files: model_dir/tensorboard/{train,eval}."""

import os
import socket
import time
from typing import Protocol

import tensorflow as tf

from official.reporting.callback import Callback, End, Evaluation, Start
from official.reporting.metrics import finite_numbers

FOLDER = "tensorboard"


class Tags(Protocol):
    """Another program's names for the metrics of a run, written in addition to ours.

    Attributes:
      compile_time: that program's name for the seconds of the compilation.
      project: default project in Weights & Biases.
      folders: patterns of all these names.
    """

    compile_time: str
    project: str
    folders: tuple[str, ...]

    def __call__(self, step: int, values: dict) -> dict[str, float]:
        """Returns {name: finite number} of the values of an interval that ends at a step."""
        ...


class NumbersCallback(Callback):
    """Base of callbacks that send the metrics of intervals and evaluations, also under another program's
    names."""

    def __init__(self, tags: Tags | None):
        self._tags, self._compile_secs = tags, 0.0

    def on_compiling(self, done: int, graphs: int, secs: float) -> None:
        self._compile_secs = secs

    def on_start(self, start: Start) -> None:
        if self._tags and self._compile_secs:
            self.send("train", start.step, {}, {self._tags.compile_time: self._compile_secs})

    def on_interval(self, step: int, values: dict) -> None:
        self.send("train", step, values, self._tags(step, values) if self._tags else {})

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.send("eval", evaluation.step, evaluation.values, {})

    def send(self, split: str, step: int, values: dict, others: dict[str, float]) -> None:
        """Sends the numbers of a step of a split, train or eval, and `others`, under their own names."""
        raise NotImplementedError


class TensorBoard(NumbersCallback):
    """Writes an event file for each split that has numbers."""

    def __init__(self, model_dir: str, resume_step: int | None = None, tags: Tags | None = None):
        """Args: model_dir: folder of the run; resume_step: the step that this process resumes from; points of
        later steps are hidden. None: all are shown. tags: additional names of an interval's numbers."""
        super().__init__(tags)
        self._folder = os.path.join(model_dir, FOLDER)
        self._resume_step = resume_step
        self._files: dict[str, _EventFile] = {}

    def on_end(self, end: End) -> None:
        self.close()

    def send(self, split: str, step: int, values: dict, others: dict[str, float]) -> None:
        if split not in self._files:
            self._files[split] = _EventFile(os.path.join(self._folder, split), self._resume_step)
        self._files[split].write(int(step), others | finite_numbers(values))

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


class _EventFile:
    """A TensorBoard event file of scalars.

    tf.summary cannot write the session-start event by which TensorBoard drops the points of an interrupted
    process after the step at which a later one resumed. So the records are written here, as TFRecords of
    Event.
    """

    def __init__(self, folder: str, resume_step: int | None):
        tf.io.gfile.makedirs(folder)
        # TensorBoard reads the files of a folder in the order of their names, so these begin with the time.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._writer = tf.io.TFRecordWriter(os.path.join(folder, name))
        self._write(tf.compat.v1.Event(file_version="brain.Event:2"))
        if resume_step is not None:
            session = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
            self._write(tf.compat.v1.Event(step=resume_step + 1, session_log=session))

    def _write(self, event) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())

    def write(self, step: int, values: dict[str, int | float]) -> None:
        """Writes points without buffering."""
        summary = tf.compat.v1.Summary(
            value=[tf.compat.v1.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        )
        self._write(tf.compat.v1.Event(step=step, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
