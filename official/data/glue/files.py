"""Reads GLUE's files as texts and labels, scores predictions, and writes the files that GLUE's server
accepts."""

from __future__ import annotations

import functools
import os

import numpy as np

from official.config import suggest
from official.data.glue.tasks import MAX_SCORE, MRPC_TRAIN_AND_DEV, GlueTask
from official.data.rows.text_rows import Table
from official.data.tables.labels import scores_of_numbers
from official.io import files, writing
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Files
#
# The files have one row per line and tab-separated columns; quotation marks have no special meaning.
# Malformed rows are listed, and left out of train and dev. In test they stay, with the fields that they have,
# since predictions are numbered by row. A label that the task does not have is an error.


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_split(task: GlueTask, split: str, data_dir: str) -> Table:
    """Reads one of train, dev and test.

    Args:
      task: the task.
      split: train, dev or test; labels of test are not read, even if the file has some.
      data_dir: folder of all tasks, or of this one.

    Raises:
      ConfigError: if a file is missing or cannot be read, lacks a column, has no usable row, or has a label
        that the task does not have.
    """
    path, is_test = task.find_file(split, data_dir), split == "test"
    content = files.read_bytes(path, f"{path} cannot be read")
    begin = len(_BYTE_ORDER_MARK) if content.startswith(_BYTE_ORDER_MARK) else 0
    # Only a line feed ends a line; blank lines after the last row are left out.
    lines = [line[:-1] if line.endswith(b"\r") else line for line in content[begin:].split(b"\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    columns, first = task.splits[split].columns, 1
    if columns is None:
        columns, first = tuple((lines[0] if lines else b"").decode("utf-8", "replace").split("\t")), 2
    needed = (*task.text_columns, *([] if is_test else [task.label_column]))
    missing = [name for name in needed if name not in columns]
    if missing:
        raise ConfigError(
            f"{path}:1: the header has no column {' and no column '.join(missing)}. Received:"
            f" {', '.join(columns)[:200] or 'nothing'}. The {split} file of {task.name} has"
            f" {', '.join(needed)} among its columns, with tabs between them."
        )
    problems: dict[int, str] = {}
    misnumbered: dict[int, str] = {}
    rows: list[tuple[int, tuple[str, ...], str]] = []  # line, texts and label
    for number, line in enumerate(lines[first - 1 :], first):
        row, problem = _parse(line, columns, task.text_columns)
        index = str(number - first)
        if problem:
            problems[number] = problem
        elif is_test and (told := row.get("index", row.get("idx", index))) != index and not misnumbered:
            # At this row the numbering breaks: a row before it is missing, or is one too many.
            misnumbered[number] = f"has index {told!r}, but is row {index}"
        if is_test or not problem:
            texts = tuple(row[name] for name in task.text_columns)
            rows.append((number, texts, "" if is_test else row[task.label_column]))
    problems.update(misnumbered)
    if path.endswith(MRPC_TRAIN_AND_DEV):
        try:
            dev = set(zip(*read_split(task, "dev", data_dir).texts))
        except ConfigError:
            dev = set()  # no dev set
        problems.update({line: "is a row of the dev set" for line, texts, _ in rows if texts in dev})
        rows = [row for row in rows if row[1] not in dev]
    if not rows:
        shown = [f" ({path}:{line}: {fault})" for line, fault in problems.items()][:1]
        raise ConfigError(f"{path}: no usable row among {len(lines):,} lines{''.join(shown)}.")
    columns_of_text = tuple([row[1][part] for row in rows] for part in range(len(task.text_columns)))
    labels = None if is_test else np.array([_label(task, label, path, line) for line, _, label in rows])
    if labels is not None:
        labels = labels.astype(np.float32 if task.is_regression else np.int32)
    return Table(path, columns_of_text, labels, problems)


def _parse(
    line: bytes, columns: tuple[str, ...], text_columns: tuple[str, ...]
) -> tuple[dict[str, str], str | None]:
    """Returns the fields of a row, '' for missing ones, and a description of its fault, if any."""
    problem = None
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        text = line.decode("utf-8", "replace")
        problem = f"is not UTF-8 text (byte {error.start + 1})"
    fields = text.split("\t")
    if len(fields) != len(columns):
        problem = problem or f"has {len(fields)} column{'s' * (len(fields) != 1)}, expected {len(columns)}"
        fields += [""] * (len(columns) - len(fields))
    row = dict(zip(reversed(columns), reversed(fields[: len(columns)])))  # the first column of a name

    empty = [name for name in text_columns if not row[name].strip()]
    return row, problem or (f"has an empty {' and an empty '.join(empty)}" if empty else None)


def _label(task: GlueTask, label: str, path: str, line: int) -> float:
    """Returns the class number or the score of a label."""
    if task.is_regression:
        score = _number(label)
        if not 0 <= score <= MAX_SCORE:  # also true for NaN
            allowed = f"is not a number from 0 to {MAX_SCORE:g}"
            raise ConfigError(f"{path}:{line}: score {label[:100]!r} {allowed}.")
        return score
    if label not in task.classes:
        raise ConfigError(
            f"{path}:{line}: label {label[:100]!r}{suggest(label, task.classes)} is not one of"
            f" {task.name}'s: {', '.join(task.classes)}."
        )
    return task.classes.index(label)


def _number(text: str) -> float:
    """Returns a text as a number; NaN if it is not one."""
    try:
        return float(text)
    except ValueError:
        return np.nan


# -----------------------------------------------------------------------------------------------------------
# Predictions
#
# A file has the name that the server expects and the header `index<tab>prediction`; rows are numbered from 0.
# Labels are words for the entailment tasks and numbers otherwise; scores have three decimals, from 0 to 5.


HEADER = "index\tprediction"


def write_predictions(task: GlueTask, predictions: np.ndarray, folder: str) -> str:
    """Writes the predictions of a test set atomically and returns the file's path.

    Args:
      task: the task; source of the file name.
      predictions: [N] classes (integers) or scores (floats) in the order of the test file's rows.
      folder: created if it does not exist.

    Raises:
      ConfigError: for a score that is not finite, or a file that cannot be written.
    """
    path, finite = os.path.join(folder, task.submission_file), np.isfinite(predictions)
    if not finite.all():
        raise ConfigError(
            f"{task.submission_file}: the score of row {np.argmin(finite)} is"
            f" {predictions[np.argmin(finite)]}. The model's weights are not finite: train it with a lower"
            " --learning_rate."
        )
    if task.is_regression:
        texts = [f"{score:.3f}" for score in np.clip(predictions, 0.0, MAX_SCORE) + 0.0]  # no "-0.000"
    else:
        texts = [task.submitted_labels[number] for number in predictions]
    rows = [f"{index}\t{text}\n" for index, text in enumerate(texts)]
    with writing.naming_output(path):
        writing.put_file(path, HEADER + "\n" + "".join(rows))
    return path


def check_predictions(task: GlueTask, path: str, rows: int) -> None:
    """Validates a file of predictions.

    Args:
      task: the task whose labels are allowed.
      path: path of the file.
      rows: expected number of predictions.

    Raises:
      ConfigError: for a file that cannot be read, has another header, or too few or too many rows, and for
        the first row with a wrong number of columns, a wrong index, or a prediction that the task does not
        have.
    """
    try:
        # A byte order mark stays: GLUE's server reads the same bytes.
        text = files.read_bytes(path, f"{path} cannot be read").decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start + 1}).") from None
    header, *lines = text.split("\n")
    if lines and not lines[-1]:  # after the last line feed
        lines.pop()
    if header != HEADER:
        raise ConfigError(f"{path}:1: the header is {header[:100]!r}, expected {HEADER!r}.")
    allowed = f"one of {', '.join(task.submitted_labels)}"
    if task.is_regression:
        allowed = f"a number from 0 to {MAX_SCORE:g}"
    for index, fields in enumerate(line.split("\t") for line in lines):
        found = fields[-1]
        is_right = 0 <= _number(found) <= MAX_SCORE if task.is_regression else found in task.submitted_labels
        problem = None if is_right else f"prediction {found[:100]!r}, expected {allowed}"
        if len(fields) != 2:
            problem = f"{len(fields)} column{'s' * (len(fields) != 1)}, expected 2 with a tab between them"
        elif fields[0] != str(index):
            problem = f"index {fields[0][:100]!r}, expected {index}"
        if problem:
            raise ConfigError(f"{path}:{index + 2}: {problem}.")
    if len(lines) != rows:
        raise ConfigError(f"{path}: {len(lines):,} predictions, expected {rows:,}.")


# -----------------------------------------------------------------------------------------------------------
# Metrics
#
# An undefined metric is 0.0: a correlation with predictions that are all equal, not finite, or fewer than
# two, and the F1 without a positive example.


def score(task: GlueTask, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns the task's metrics, {name: value}; correlations from -1 to 1, the others from 0 to 1.

    Args:
      task: the task.
      predictions: [N] classes (integers) or scores (floats) of the whole set.
      labels: [N] true classes or scores.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if task.is_regression:
        scores = scores_of_numbers(predictions.astype(np.float64), labels.astype(np.float64))
        return {name: scores[name] for name in task.metrics}
    from sklearn import metrics  # late: takes a second to load

    def matthews(*sets: np.ndarray) -> float:
        return metrics.matthews_corrcoef(*sets) if all(map(np.ptp, sets)) else 0.0

    measures = {
        "accuracy": metrics.accuracy_score,
        "f1": functools.partial(metrics.f1_score, average="binary", zero_division=0.0),
        "matthews_correlation": matthews,
    }
    return {name: float(measures[name](labels, predictions)) for name in task.metrics}


def baseline(task: GlueTask, labels: np.ndarray) -> dict[str, float]:
    """Returns the metrics of predicting the same for every row: the most frequent class, or the mean
    score."""
    constant = np.mean(labels) if task.is_regression else np.argmax(np.bincount(labels))
    return score(task, np.full(len(labels), constant), labels)
