"""The numbers of a run, a line each: metrics.jsonl for programs, TensorBoard event files for people."""

import json
import math
import os
import socket
import time

import tensorflow as tf
from absl import logging

from official.config import ConfigError
from official.io import json_files
from official.io.writing import LineFile, read_lines

FILE_NAME = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


def plain_value(value):
    """Returns a number, string, None or nested container as JSON can hold it: NumPy and TensorFlow unwrapped,
    NaN and infinity as None."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_metrics(path: str) -> list[dict]:
    """Reads metrics.jsonl; lines that a kill or a full disk left incomplete, or that something else damaged,
    are skipped.

    Args:
      path: the file, or the run's folder. A file that does not exist holds no lines.

    Returns:
      One dict a line, in the order of the file, with at least a split (train or eval) and a step (int).
    """
    return read_metrics_counted(path)[0]


def read_metrics_counted(path: str) -> tuple[list[dict], int]:
    """As `read_metrics`, and the number of lines that are damaged; one that a kill cut short at the end is
    not among them."""
    if tf.io.gfile.isdir(path):
        path = os.path.join(path, FILE_NAME)
    lines = read_lines(path)
    records = [_parse(line) for line in lines]
    damaged = sum(record is None and line.endswith(b"\n") for record, line in zip(records, lines))
    return [record for record in records if record is not None], damaged


def _parse(line: bytes) -> dict | None:
    """Returns the object of a line, or None where the line is not a whole one."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json_files.parse_json(line, "")
        for name in record:
            json_files.expect(record, name, str if name == "split" else (float, type(None)), "")
        whole = record.get("split") in ("train", "eval") and json_files.expect(record, "step", int, "") >= 0
    except ConfigError:
        return None
    return record if whole else None


def _trimmed(lines: list[bytes], resume_step: int | None) -> list[bytes]:
    """Returns the whole lines of steps up to `resume_step` (None: of all steps), byte for byte."""
    kept = []
    for line in lines:
        record = _parse(line)
        if record is not None and (resume_step is None or record["step"] <= resume_step):
            kept.append(line)
    return kept


class MetricsWriter:
    """Appends to model_dir/metrics.jsonl and to model_dir/tensorboard/{train,eval}."""

    def __init__(self, model_dir: str, resume_step: int | None = None, others=()):
        """Opens the files; lines that an earlier process left are kept.

        Args:
          model_dir: folder of the run, made if missing.
          resume_step: the step this process goes on from. Lines of later steps, which it will write again,
            are removed. 0 for a run that starts from nothing; None keeps lines of all steps.
          others: writers with the same `write` and `flush` that are called, too; who has opened them closes
            them.
        """
        self._others = tuple(others)
        tf.io.gfile.makedirs(model_dir)
        self._tensorboard_dir = os.path.join(model_dir, TENSORBOARD_FOLDER)
        self._resume_step = resume_step
        self._event_files = {}
        path = os.path.join(model_dir, FILE_NAME)
        damaged = read_metrics_counted(path)[1]
        if damaged:
            logging.warning("%s: %d damaged lines are left out.", path, damaged)
        self._file = LineFile(path, _trimmed(read_lines(path), resume_step))

    def write(self, split: str, step: int, values: dict) -> None:
        """Writes one line.

        Args:
          split: train or eval.
          step: optimizer updates done so far.
          values: name -> number; `samples` (sequences seen so far) comes first. NaN and infinity become null.
        """
        values = plain_value(values)
        record = {"split": split, "step": int(step), "samples": values.get("samples"), **values}
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        self._file.write(line)
        self._write_events(split, int(step), values)
        for other in self._others:
            other.write(split, step, values)

    def _write_events(self, split: str, step: int, values: dict) -> None:
        if split not in self._event_files:
            self._event_files[split] = _EventFile(
                os.path.join(self._tensorboard_dir, split), self._resume_step
            )
        numbers = {
            name: value
            for name, value in values.items()
            if isinstance(value, (int, float)) and name != "samples"
        }
        self._event_files[split].write(step, numbers)

    def flush(self) -> None:
        """Writes out what is still in memory."""
        self._file.flush()
        for writer in (*self._event_files.values(), *self._others):
            writer.flush()

    def close(self) -> None:
        """Flushes and closes all files."""
        self._file.close()
        for event_file in self._event_files.values():
            event_file.close()


class SilentWriter:
    """The MetricsWriter of a process that is not the chief: it writes nothing."""

    def write(self, split: str, step: int, values: dict) -> None:
        """Does nothing."""

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class _EventFile:
    """A TensorBoard event file of scalars.

    tf.summary cannot write the session-start event by which TensorBoard drops points of an interrupted
    process that lie beyond the step a later one went on from, so the records are written here; the format is
    TFRecords of Event.
    """

    def __init__(self, folder: str, resume_step: int | None):
        tf.io.gfile.makedirs(folder)
        # TensorBoard reads the files of a folder in the order of their names, so the time comes first.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._writer = tf.io.TFRecordWriter(os.path.join(folder, name))
        self._write(tf.compat.v1.Event(file_version="brain.Event:2"))
        if resume_step is not None:
            session = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
            self._write(tf.compat.v1.Event(step=resume_step + 1, session_log=session))

    def _write(self, event) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())

    def write(self, step: int, values: dict) -> None:
        summary = tf.compat.v1.Summary(
            value=[tf.compat.v1.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        )
        self._write(tf.compat.v1.Event(step=step, summary=summary))
        self._writer.flush()

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
