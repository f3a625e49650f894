"""Machine-readable metrics of a run: metrics.jsonl, one line per interval or evaluation."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import tensorflow as tf
from absl import logging

from official.io import json_files
from official.io.errors import ConfigError
from official.io.writing import LineFile, read_lines
from official.reporting.callback import Callback, End, Evaluation

FILE_NAME = "metrics.jsonl"
OTHER_EVAL = "other_eval"  # split of evaluations with other data or settings than the later ones
OPEN_STEPS = "open_interval_steps"  # number of steps so far of an interrupted interval


def plain_value(value: Any) -> Any:
    """Returns a number, string, None or nested container as a JSON-serializable value: NumPy and TensorFlow
    values unwrapped, NaN and infinity as None."""
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
    """Reads metrics.jsonl and skips damaged lines, such as those that a kill or a full disk left incomplete.

    Args:
      path: the file, or the run's folder. A missing file gives an empty list.

    Returns:
      One dict per line, in the order of the file, with at least a split (train, eval or other_eval) and
      an int step.
    """
    return read_metrics_counted(path)[0]


def read_metrics_counted(path: str) -> tuple[list[dict], int]:
    """As `read_metrics`, with the number of damaged lines, except a last line that a kill has cut short."""
    if tf.io.gfile.isdir(path):
        path = os.path.join(path, FILE_NAME)
    lines = read_lines(path)
    records = [_parse(line) for line in lines]
    damaged = sum(record is None and line.endswith(b"\n") for record, line in zip(records, lines))
    return [record for record in records if record is not None], damaged


def _parse(line: bytes) -> dict | None:
    """Returns the object of a line, or None for an incomplete line."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json_files.parse_json(line, "")
        for name in record:
            json_files.expect(record, name, str if name == "split" else (float, type(None)), "")
        is_known = record.get("split") in ("train", "eval", OTHER_EVAL)
        whole = is_known and json_files.expect(record, "step", int, "") >= 0
    except ConfigError:
        return None
    return record if whole else None


class MetricsWriter(Callback):
    """Appends to model_dir/metrics.jsonl."""

    def __init__(self, model_dir: str, resume_step: int | None = None, evaluations_count: bool = True):
        """Opens the file; lines of earlier processes are kept.

        Args:
          model_dir: folder of the run, made if missing.
          resume_step: the step that this process resumes from. Lines of later steps are removed, since they
            will be written again. 0 for a new run; None keeps all lines.
          evaluations_count: whether earlier evaluations have the same data and settings as the coming ones;
            otherwise their split becomes `OTHER_EVAL`, so that the two are not compared.
        """
        tf.io.gfile.makedirs(model_dir)
        path = os.path.join(model_dir, FILE_NAME)
        damaged = read_metrics_counted(path)[1]
        if damaged:
            logging.warning("%s: %d damaged lines are left out.", path, damaged)
        kept, last = [], math.inf if resume_step is None else resume_step
        for line in read_lines(path):
            record = _parse(line)
            # The line of an interrupted interval is removed: the interval resumes.
            if record and OPEN_STEPS not in record and record["step"] <= last:
                if record["split"] == "eval" and not evaluations_count:
                    line = json.dumps({**record, "split": OTHER_EVAL}).encode() + b"\n"
                kept.append(line)
        self._file = LineFile(path, kept)

    def on_interval(self, step: int, values: dict) -> None:
        self.write("train", step, values)

    def on_open_interval(self, step: int, steps: int, values: dict) -> None:
        self.write("train", step, {**values, OPEN_STEPS: steps})

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.write("eval", evaluation.step, evaluation.values)
        self.flush()

    def on_checkpoint(self, step: int) -> None:
        self.flush()

    def on_end(self, end: End) -> None:
        self.close()

    def write(self, split: str, step: int, values: dict) -> None:
        """Writes one line.

        Args:
          split: `train` or `eval`.
          step: optimizer updates done so far.
          values: name -> number; `samples` (sequences seen so far) comes first. NaN and infinity become null.
        """
        values = plain_value(values)
        record = {"split": split, "step": int(step), "samples": values.get("samples"), **values}
        self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")

    def flush(self) -> None:
        """Writes buffered lines, on file systems that cannot append."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def finite_numbers(values: dict) -> dict[str, int | float]:
    """Returns the finite numbers among `values`, except `samples`: those that can be plotted over steps."""
    return {
        name: value
        for name, value in plain_value(values).items()
        if isinstance(value, (int, float)) and name != "samples"
    }
