"""Predictions of a test set -> the file that GLUE's server takes, and back with every row checked.

A file is called as the server wants it and has the header `index<tab>prediction`; rows are numbered from 0.
Labels are words for the entailment tasks and numbers otherwise; a score has three decimals and lies between 0
and 5.
"""

from __future__ import annotations

import os

import numpy as np

from official.data.glue.tasks import MAX_SCORE, GlueTask
from official.io import files, writing
from official.io.errors import ConfigError

HEADER = "index\tprediction"


def write_predictions(task: GlueTask, predictions: np.ndarray, folder: str) -> str:
    """Writes the predictions of a test set, whole or not at all, and returns the file's path.

    Args:
      task: the task; names the file.
      predictions: [N] classes (integers) or scores (floats) in the order of the test file's rows.
      folder: is made where it is not there.

    Raises:
      ConfigError: for a score that is not finite, or a file that cannot be written.
    """
    path = os.path.join(folder, task.submission_file)
    rows = [f"{index}\t{text}\n" for index, text in enumerate(_texts(task, np.asarray(predictions)))]
    try:
        os.makedirs(folder, exist_ok=True)
        writing.replace_file(path, HEADER + "\n" + "".join(rows))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from None
    return path


def _texts(task: GlueTask, predictions: np.ndarray) -> list[str]:
    if task.is_regression:
        finite = np.isfinite(predictions)
        if not finite.all():
            raise ConfigError(
                f"{task.submission_file}: the score of row {np.argmin(finite)} is"
                f" {predictions[np.argmin(finite)]}. The model's weights are not finite: train it with a"
                " lower --learning_rate."
            )
        return [f"{score:.3f}" for score in np.clip(predictions, 0.0, MAX_SCORE) + 0.0]  # no "-0.000"
    words = _submitted(task)
    return [words[number] for number in predictions]


def _submitted(task: GlueTask) -> tuple[str, ...]:
    """Returns the text of each class in the file."""
    return task.classes if task.words_in_submission else tuple(map(str, range(len(task.classes))))


def check_predictions(task: GlueTask, path: str, rows: int) -> None:
    """Reads a file of predictions.

    Args:
      task: the task whose labels are allowed.
      path: the file.
      rows: how many predictions it must have.

    Raises:
      ConfigError: for a file that cannot be read, has another header, or too few or too many rows, and for
        the first row that has not two columns, not its number as index, or a prediction that the task does
        not have.
    """
    try:
        with files.open_binary(path) as file:
            # A byte order mark stays: GLUE's server reads the same bytes.
            text = file.read().decode("utf-8").replace("\r\n", "\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start + 1}).") from None
    header, *lines = text.split("\n")
    if lines and not lines[-1]:  # what follows the last line's end
        lines.pop()
    if header != HEADER:
        raise ConfigError(f"{path}:1: the header is {header[:100]!r}, expected {HEADER!r}.")
    for index, line in enumerate(lines):
        problem = _problem(task, line.split("\t"), index)
        if problem:
            raise ConfigError(f"{path}:{index + 2}: {problem}.")
    if len(lines) != rows:
        raise ConfigError(f"{path}: {len(lines):,} predictions, expected {rows:,}.")


def _problem(task: GlueTask, fields: list[str], index: int) -> str | None:
    if len(fields) != 2:
        return f"{len(fields)} column{'s' * (len(fields) != 1)}, expected 2 with a tab between them"
    if fields[0] != str(index):
        return f"index {fields[0][:100]!r}, expected {index}"
    if task.is_regression:
        if _is_score(fields[1]):
            return None
        return f"prediction {fields[1][:100]!r}, expected a number from 0 to {MAX_SCORE:g}"
    allowed = _submitted(task)
    if fields[1] in allowed:
        return None
    return f"prediction {fields[1][:100]!r}, expected one of {', '.join(allowed)}"


def _is_score(text: str) -> bool:
    try:
        return 0 <= float(text) <= MAX_SCORE
    except ValueError:
        return False
