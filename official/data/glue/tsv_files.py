"""GLUE's files -> texts and labels.

The files have a row per line and columns between tabs; a quotation mark is a character like any other. What
cannot be used is never dropped silently: a malformed row is listed, and left out of train and dev; a test row
stays, with what it has, since predictions are numbered by row. A label that the task does not have ends the
reading.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from official.config import ConfigError, suggest
from official.data.glue.tasks import MAX_SCORE, MRPC_TRAIN_AND_DEV, GlueTask
from official.io import files

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SHOWN_PROBLEMS = 3  # in one line of a log; `GlueRows.problems` has them all


@dataclasses.dataclass(frozen=True)
class RowProblem:
    """A row that is not as it should be."""

    path: str
    line: int  # counted from 1, the header among them
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class GlueRows:
    """The N usable rows of one file, in its order."""

    path: str
    texts: tuple[list[str], ...]  # one list of N texts, or two for pairs
    labels: np.ndarray | None  # [N] int32 classes or float32 scores; None for the test set
    problems: list[RowProblem]  # rows that were skipped, or, of a test set, kept with what they have

    def __len__(self) -> int:
        return len(self.texts[0])

    def describe(self) -> str:
        """Returns one line for a log: how many rows, and what was wrong with how many others."""
        text = f"{self.path}: {len(self):,} rows"
        if self.problems:
            shown = [f"line {problem.line} {problem.reason}" for problem in self.problems[:_SHOWN_PROBLEMS]]
            more = ["..."] * (len(self.problems) > _SHOWN_PROBLEMS)
            kind = "malformed" if self.labels is None else "skipped"
            text += f"; {len(self.problems):,} {kind}: {'; '.join(shown + more)}"
        return text + "."


@dataclasses.dataclass(frozen=True)
class _Columns:
    """Columns of a file, and which of them are read."""

    path: str
    columns: tuple[str, ...]
    texts: tuple[int, ...]
    label: int | None  # None: not read
    index: int | None  # the column that numbers the rows; None: not checked


@dataclasses.dataclass(frozen=True)
class _Row:
    line: int
    texts: tuple[str, ...]
    label: str | None
    index: str | None
    problem: str | None


def read_split(task: GlueTask, split: str, data_dir: str, flag: str = "data_dir") -> GlueRows:
    """Reads one of train, dev and test.

    Args:
      task: the task.
      split: train, dev or test; of test the labels are not read, even where a file has some.
      data_dir: folder of all tasks, or of this one.
      flag: name of the flag that gave it, for messages.

    Raises:
      ConfigError: for a file that is not there, cannot be read, has other columns or no usable row, and for a
        label that the task does not have.
    """
    path = task.find_file(split, data_dir, flag)
    lines = _read_lines(path)
    layout, first = _layout(task, split, path, lines)
    rows = [_parse(line, number, layout) for number, line in enumerate(lines[first - 1 :], first)]
    problems = [RowProblem(path, row.line, row.problem) for row in rows if row.problem]
    if split == "test":
        problems += _misnumbered(rows, layout)
    else:
        rows = [row for row in rows if not row.problem]
    if path.endswith(MRPC_TRAIN_AND_DEV):
        rows, shared = _without_dev(rows, task, data_dir, path)
        problems += shared
    if not rows:
        raise ConfigError(
            f"{path}: no usable row among {len(lines):,} lines{f' ({problems[0]})' if problems else ''}."
        )
    texts = tuple([row.texts[part] for row in rows] for part in range(len(task.text_columns)))
    return GlueRows(path, texts, None if split == "test" else _labels(task, rows, path), problems)


def _read_lines(path: str) -> list[bytes]:
    """Returns the lines without their ends, those after the last row left out. Only a line feed ends a
    line."""
    try:
        with files.open_binary(path) as file:
            content = file.read()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}.") from None
    begin = len(_BYTE_ORDER_MARK) if content.startswith(_BYTE_ORDER_MARK) else 0
    lines = [line[:-1] if line.endswith(b"\r") else line for line in content[begin:].split(b"\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _layout(task: GlueTask, split: str, path: str, lines: list[bytes]) -> tuple[_Columns, int]:
    """Returns the layout and the line, counted from 1, of the first row."""
    columns, first = task.splits[split].columns, 1
    if columns is None:
        header = lines[0].decode("utf-8", "replace") if lines else ""
        columns, first = tuple(header.split("\t")), 2
    needed = (*task.text_columns, *([] if split == "test" else [task.label_column]))
    missing = [name for name in needed if name not in columns]
    if missing:
        received = ", ".join(columns)
        raise ConfigError(
            f"{path}:1: the header has no column {' and no column '.join(missing)}. Received:"
            f" {received[:200] or 'nothing'}. The {split} file of {task.name} has {', '.join(needed)} among"
            " its columns, with tabs between them."
        )
    return _Columns(
        path,
        columns,
        texts=tuple(map(columns.index, task.text_columns)),
        label=None if split == "test" else columns.index(task.label_column),
        index=columns.index("index") if split == "test" and "index" in columns else None,
    ), first


def _parse(line: bytes, number: int, layout: _Columns) -> _Row:
    """Splits a row; texts that it does not have are empty, and `problem` says what is wrong with it."""
    problem = None
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        text = line.decode("utf-8", "replace")
        problem = f"is not UTF-8 text (byte {error.start + 1})"
    fields = text.split("\t")
    if len(fields) != len(layout.columns):
        problem = (
            problem or f"has {len(fields)} column{'s' * (len(fields) != 1)}, expected {len(layout.columns)}"
        )
        fields += [""] * (len(layout.columns) - len(fields))
    texts = tuple(fields[column] for column in layout.texts)
    empty = [layout.columns[column] for column, text in zip(layout.texts, texts) if not text.strip()]
    if empty:
        problem = problem or f"has an empty {' and an empty '.join(empty)}"
    return _Row(
        number,
        texts,
        None if layout.label is None else fields[layout.label],
        None if layout.index is None else fields[layout.index],
        problem,
    )


def _misnumbered(rows: list[_Row], layout: _Columns) -> list[RowProblem]:
    """Returns the first row of a test file whose index is not its number: from there on one is missing, or
    too many."""
    if layout.index is None:
        return []
    wrong = [(number, row) for number, row in enumerate(rows) if row.index != str(number) and not row.problem]
    return [
        RowProblem(layout.path, row.line, f"has index {row.index!r}, but is row {number}")
        for number, row in wrong[:1]
    ]


def _without_dev(
    rows: list[_Row], task: GlueTask, data_dir: str, path: str
) -> tuple[list[_Row], list[RowProblem]]:
    """Takes the dev set's rows out of MRPC's published training file; where there is no dev set, all stay."""
    try:
        dev = set(zip(*read_split(task, "dev", data_dir).texts))
    except ConfigError:
        return rows, []
    shared = [RowProblem(path, row.line, "is a row of the dev set") for row in rows if row.texts in dev]
    return [row for row in rows if row.texts not in dev], shared


def _labels(task: GlueTask, rows: list[_Row], path: str) -> np.ndarray:
    if task.is_regression:
        return np.array([_score(row, path) for row in rows], np.float32)
    numbers = {label: number for number, label in enumerate(task.classes)}
    labels = [row.label or "" for row in rows]
    for row, label in zip(rows, labels):
        if label not in numbers:
            raise ConfigError(
                f"{path}:{row.line}: label {label[:100]!r}{suggest(label, numbers)} is not one of"
                f" {task.name}'s: {', '.join(task.classes)}."
            )
    return np.array([numbers[label] for label in labels], np.int32)


def _score(row: _Row, path: str) -> float:
    label = row.label or ""
    try:
        score = float(label)
    except ValueError:
        score = np.nan
    if not 0 <= score <= MAX_SCORE:  # true for NaN, too
        raise ConfigError(
            f"{path}:{row.line}: score {label[:100]!r} is not a number from 0 to {MAX_SCORE:g}."
        )
    return score
