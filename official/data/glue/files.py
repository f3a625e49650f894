"""Files of GLUE -> texts and labels -> token ids -> metrics -> files of predictions."""

from __future__ import annotations

import dataclasses
import os

import numpy as np

from official.config import suggest
from official.data.glue.tasks import MAX_SCORE, MRPC_TRAIN_AND_DEV, GlueTask
from official.data.pretraining.examples import kept_lengths
from official.data.rows import ragged
from official.data.word_pieces.vocabulary import Vocabulary
from official.data.word_pieces.wordpiece import Tokenizer
from official.io import files, writing
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Files
#
# The files have a row per line and columns between tabs; a quotation mark is a character like any other.
# What cannot be used is never dropped silently: a malformed row is listed, and left out of train and dev; a
# test row stays, with what it has, since predictions are numbered by row. A label that the task does not
# have ends the reading.


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
    for number, row in enumerate(rows):
        if row.index != str(number) and not row.problem:
            return [RowProblem(layout.path, row.line, f"has index {row.index!r}, but is row {number}")]
    return []


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
    score = _number(label)
    if not 0 <= score <= MAX_SCORE:  # true for NaN, too
        raise ConfigError(
            f"{path}:{row.line}: score {label[:100]!r} is not a number from 0 to {MAX_SCORE:g}."
        )
    return score


# -----------------------------------------------------------------------------------------------------------
# Features
#
# Source: `convert_single_example` and `_truncate_seq_pair` of Google's run_classifier.py.


@dataclasses.dataclass(frozen=True)
class GlueFeatures:
    """N examples of T tokens altogether. Those of example n are ids[starts[n]:starts[n] + lengths[n]].

    Tokens before `first_lengths` have segment id 0, the others 1.
    """

    ids: np.ndarray  # [T] uint16, or int32 for vocabularies above 65,536 words
    lengths: np.ndarray  # [N] int32: tokens, at most max_seq_length, the special ones among them
    first_lengths: np.ndarray  # [N] int32: tokens of [CLS] A [SEP]
    labels: np.ndarray | None  # [N] int32 classes or float32 scores; None for the test set
    whole_lengths: np.ndarray  # [N] int32: as `lengths`, of all tokens

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def truncated(self) -> int:
        """Examples that lost tokens."""
        return int((self.lengths < self.whole_lengths).sum())

    @property
    def starts(self) -> np.ndarray:
        """[N] int64: where the examples begin in `ids`."""
        return ragged.offsets(self.lengths)[:-1]


def make_features(
    rows: GlueRows, tokenizer: Tokenizer, vocabulary: Vocabulary, max_seq_length: int
) -> GlueFeatures:
    """Returns the features of all rows, in their order.

    Args:
      rows: texts, or pairs of texts, and labels.
      tokenizer: makes ids of texts.
      vocabulary: has the ids of [CLS] and [SEP].
      max_seq_length: tokens of an example, at most, from 3 on. The longer text of a pair (of equals: B) loses
        its last token until both fit.
    """
    tokens, lengths = zip(*(tokenizer.tokenize(texts) for texts in rows.texts))
    kept = _kept(lengths, max_seq_length)
    totals = np.asarray(1 + np.sum([count + 1 for count in kept], axis=0, dtype=np.int32))
    starts = ragged.offsets(totals)[:-1]
    ids = np.full(totals.sum(), vocabulary.id_of("[SEP]"), tokens[0].dtype)
    ids[starts] = vocabulary.id_of("[CLS]")
    position = starts + 1
    for part_tokens, part_lengths, part_kept in zip(tokens, lengths, kept):
        ids[ragged.ranges(position, part_kept)] = part_tokens[
            ragged.ranges(ragged.offsets(part_lengths)[:-1], part_kept)
        ]
        position = position + part_kept + 1  # over the [SEP] that is there already
    whole = np.asarray(1 + np.sum([count + 1 for count in lengths], axis=0, dtype=np.int32))
    return GlueFeatures(ids, totals, (kept[0] + 2).astype(np.int32), rows.labels, whole)


def _kept(lengths: tuple[np.ndarray, ...], max_seq_length: int) -> tuple[np.ndarray, ...]:
    """Returns the number of tokens of each text that stay: [N] for one, or two of them for pairs."""
    room = max(max_seq_length - 1 - len(lengths), 0)
    return kept_lengths(*lengths, room) if len(lengths) == 2 else (np.minimum(lengths[0], room),)


# -----------------------------------------------------------------------------------------------------------
# Predictions
#
# A file is called as the server wants it and has the header `index<tab>prediction`; rows are numbered from
# 0. Labels are words for the entailment tasks and numbers otherwise; a score has three decimals and lies
# between 0 and 5.


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
    return [task.submitted_labels[number] for number in predictions]


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
        if 0 <= _number(fields[1]) <= MAX_SCORE:  # false for NaN
            return None
        return f"prediction {fields[1][:100]!r}, expected a number from 0 to {MAX_SCORE:g}"
    if fields[1] in task.submitted_labels:
        return None
    return f"prediction {fields[1][:100]!r}, expected one of {', '.join(task.submitted_labels)}"


def _number(text: str) -> float:
    """Returns the number that a text is, NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return np.nan


# -----------------------------------------------------------------------------------------------------------
# Metrics
#
# Where a measure is not defined (a correlation with predictions that are all alike, are not finite, or are
# fewer than two; the F1 of no positive example) it is 0.0: such predictions say nothing.


def score(task: GlueTask, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns the task's metrics, {name: value}; correlations from -1 to 1, the others from 0 to 1.

    Args:
      task: the task.
      predictions: [N] classes (integers) or scores (floats) of the whole set.
      labels: [N] the same of the file.
    """
    return {name: float(_METRICS[name](np.asarray(labels), np.asarray(predictions))) for name in task.metrics}


def baseline(task: GlueTask, labels: np.ndarray) -> dict[str, float]:
    """Returns the metrics of predicting the same for every row: the most frequent class, or the mean
    score."""
    constant = np.mean(labels) if task.is_regression else np.argmax(np.bincount(labels))
    return score(task, np.full(len(labels), constant), labels)


def confusion_matrix(task: GlueTask, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns [C, C] int of a task with classes: how many rows of class i, in the order of its labels, are
    predicted as class j."""
    return _sklearn().confusion_matrix(labels, predictions, labels=range(len(task.classes)))


def _sklearn():
    """Returns scikit-learn's metrics, which take a second to load: of the run, not of every program that
    knows the tasks."""
    from sklearn import metrics

    return metrics


def _scipy():
    from scipy import stats  # late, as scikit-learn

    return stats


def _correlation(measure):
    def of(labels: np.ndarray, predictions: np.ndarray) -> float:
        if not np.isfinite(predictions).all() or np.ptp(predictions) == 0 or np.ptp(labels) == 0:
            return 0.0
        # in float64: sums over thousands of float32 scores lose digits
        return measure(labels.astype(np.float64), predictions.astype(np.float64))

    return of


# {name: (labels, predictions) -> value}
_METRICS = {
    "accuracy": lambda *sets: _sklearn().accuracy_score(*sets),
    "f1": lambda *sets: _sklearn().f1_score(*sets, pos_label=1, average="binary", zero_division=0.0),
    "matthews_correlation": _correlation(lambda *sets: _sklearn().matthews_corrcoef(*sets)),
    "pearson": _correlation(lambda *sets: _scipy().pearsonr(*sets).statistic),
    "spearman": _correlation(lambda *sets: _scipy().spearmanr(*sets).statistic),
}
