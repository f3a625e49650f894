"""Labels of texts: reads them from a column, defines the classes of a run, and scores predictions.

Kinds: `one` of many (softmax), `several` at once (a sigmoid each), `number` (a score), `choice` of several
  texts.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from scipy.special import expit, softmax

from official.io.errors import ConfigError, counted, shortened, suggest

ONE, SEVERAL, NUMBER, CHOICE = KINDS = ("one", "several", "number", "choice")
MAX_LABELS = 1000  # with more, the column probably has numbers or texts, not labels
_SEPARATORS = ",;|"
# A list of texts in Python's notation, which pandas writes into CSV: ['a', 'b'], ('a',), {'a', 'b'}. Not
# NumPy's ['a' 'b'], which Python would read as one text.
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PYTHON_LIST = re.compile(rf"[\[({{]\s*{_QUOTED}(?:\s*,\s*{_QUOTED})*\s*,?\s*[\])}}]", re.DOTALL)
_LIST_OF_TEXTS = re.compile(r"""[\[({]\s*['"]""")
# What stands for a missing value in files of pandas, of R, and of databases.
MISSING = {"nan", "NaN", "NAN", "<NA>", "NA", "N/A", "n/a", "null", "NULL", "None", "\\N", "#N/A"}
_ZEROS, _ONES = {"0", "0.0", "false"}, {"1", "1.0", "true"}
_BINS = 15  # bins of the calibration error, as in Guo et al. 2017, arXiv 1706.04599
_EPSILON = 1e-15
THRESHOLD = 0.5  # default threshold of a label's probability


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of a model.

    Attributes:
      kind: one of KINDS.
      names: names of the classes, in the order of the outputs; empty for a number.
      thresholds: for `several`: minimum probability of each label that a text has.
      scale: for `number`: mean and standard deviation of the training set; outputs are normalized by them, so
        that numbers of any size are learned at the same rate.
    """

    kind: str
    names: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()
    scale: tuple[float, float] = (0.0, 1.0)

    @property
    def outputs(self) -> int:
        """Width of the head: one per class; 1 for a number, and for each text of a choice."""
        return len(self.names) if self.kind in (ONE, SEVERAL) else 1

    @property
    def dtype(self) -> type:
        return np.int32 if self.kind in (ONE, CHOICE) else np.float32


def as_text(value: Any) -> str | None:
    """Returns a label as text: numbers and booleans as in JSON, bytes as UTF-8, other types of Parquet as
    str; None for an empty label."""
    value = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    if value is None or isinstance(value, float) and math.isnan(value):
        return None
    is_json = isinstance(value, (bool, int, float, list, dict))
    text = json.dumps(value, ensure_ascii=False, default=str) if is_json else str(value)
    return text.strip() or None


def as_texts(value: Any, used: set[str] | None = None) -> list[str]:
    """Returns several labels: the items of a list, or of a text in JSON's or Python's notation, or separated
    by one of , ; |. Raises ValueError for a mixture of these separators, for other lists, such as NumPy's,
    and for lists with a null, or with a 0 or 1 for each label.

    Args:
      value: value of a row.
      used: separators in the rows before; this row's is added. Another one may be part of a name.
    """
    if isinstance(value, str):
        value = _as_list(value.strip())
    if isinstance(value, str):
        found = sorted({separator for separator in _SEPARATORS if separator in value} | (used or set()))
        if len(found) > 1:
            problem = "between labels, or another row has: write each row as a JSON list"
            raise ValueError(f"has {' and '.join(found)} {problem}")
        if used is not None:
            used.update(found)
        value = value.split(found[0]) if found else [value]
    values = value if isinstance(value, (list, tuple)) else [value]
    if any(each is None or each != each or isinstance(each, (dict, list, tuple)) for each in values):
        raise ValueError("is not a list of label names")  # NaN differs from itself
    texts = [text for text in map(as_text, values) if text is not None]
    if len(set(texts)) < len(texts) and set(texts) <= _ZEROS | _ONES:
        raise ValueError("has a 0 or 1 for each label: list the names of the labels that apply")
    return texts


def _as_list(text: str) -> str | list:
    """Parses a text that is a list; returns other texts unchanged."""
    with contextlib.suppress(ValueError, RecursionError):
        if text.startswith("["):
            return json.loads(text)
    with contextlib.suppress(ValueError, SyntaxError):
        if _PYTHON_LIST.fullmatch(text):
            found = ast.literal_eval(text)
            return [found] if isinstance(found, str) else list(found)
    if text in ("()", "set()"):
        return []
    # {a} and {} are lists in PostgreSQL.
    has_several = text[:1] + text[-1:] in ("[]", "()") and re.search(rf"[\s{_SEPARATORS}]", text)
    if _LIST_OF_TEXTS.match(text) or has_several or text[:1] + text[-1:] == "{}":
        raise ValueError("is not a list such as [\"a\", \"b\"] or ['a', 'b']")
    return text


def _is_list(value: Any) -> bool:
    """Tells whether a label is a list or an object, a text with one in JSON's or Python's notation, or a text
    that begins like one of texts or numbers."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "(", "{")):
        try:
            value = _as_list(value.strip())
        except ValueError:  # [a b] is a name
            return re.match(r"\s*[\[{]\s*[\"'\d.-]", value) is not None
    return isinstance(value, (list, tuple, dict))


def as_number(value: Any) -> float:
    """Returns a score. Raises ValueError or TypeError for a value that is not a finite number."""
    number = float("nan") if isinstance(value, bool) or value is None else float(value)
    if not math.isfinite(number) or "_" in str(value):  # 1_000 is a number in Python only
        raise ValueError("is not a finite number")
    return number


class _Chosen(NamedTuple):
    """Possible meanings of the label of a choice: a number, the text whose column it names, and the text that
    it equals or whose letter it is; None for impossible ones."""

    number: int | None
    column: int | None
    place: int | None


class Reader:
    """Reads the labels of a training set, which define the classes, or of another set with known classes.

    Attributes:
      counts: {class: number of its rows}.
      unknown: {label that is missing in the known classes: number of its rows}.
    """

    def __init__(self, kind: str, known: Labels | None = None, choices: Sequence[str] = ()):
        """Makes a reader of labels of a kind; `choices` are the columns of the texts to choose from."""
        self.kind = kind
        self.counts: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self._known, self._choices = known, choices
        self._ids = {name: number for number, name in enumerate(known.names)} if known else {}
        self._read: list[Any] = []
        self._separators: set[str] = set()  # separators between several labels, at most one

    def read(self, value: Any, texts: Sequence[str] = ()) -> str | None:
        """Adds the label of the next row; for a faulty one, only returns its fault."""
        try:
            label = self._of(value, texts)
        except ConfigError:
            raise
        except (ValueError, TypeError, OverflowError) as error:  # the last two: lists, dates, huge numbers
            shown = f"label {str(value)[:60]!r} "
            return shown + (str(error) if str(error).startswith(("is ", "has ")) else "is not a number")
        if label is None:
            return "has no label" + ", and no [] for none" * (self.kind == SEVERAL)
        self._read.append(label)
        return None

    def _of(self, value: Any, texts: Sequence[str]) -> Any:
        text = as_text(value)
        if text is None:  # a blank cell is an empty list
            is_blank = isinstance(value, str) and not value.strip()
            return () if self.kind == SEVERAL and is_blank else None
        if self.kind == NUMBER:
            return as_number(value)
        if self.kind == SEVERAL:
            return tuple(self._id_of(name) for name in dict.fromkeys(as_texts(value, self._separators)))
        if self.kind == CHOICE:
            return self._chosen(text, texts)
        if _is_list(value):
            raise ValueError("is a list, of which --label_kind=several learns each label")
        return self._id_of(text)

    def _chosen(self, text: str, texts: Sequence[str]) -> _Chosen:
        place = texts.index(text) if texts.count(text) == 1 else None
        column = self._choices.index(text) if text in self._choices else None
        number = text[:-2] if text.endswith(".0") else text  # pandas writes numbers so next to missing ones
        if number.isdecimal():  # all rows together decide on one of the three meanings
            return _Chosen(int(number), column, place)
        if column is None and place is None:
            letter = string.ascii_uppercase.find(text.upper()) if len(text) == 1 else -1
            place = letter if 0 <= letter < len(self._choices) else None
        if column is None and place is None:
            raise ValueError(
                f"is not one of the columns {', '.join(self._choices)}, or of their texts, numbers or letters"
            )
        return _Chosen(None, column, place)

    def _id_of(self, name: str) -> int:
        number = self._ids.get(name)
        if number is None:
            if self._known:
                self.unknown[name] += 1
                raise ValueError("is not in the training set")
            number = self._ids[name] = len(self._ids)
            if number >= MAX_LABELS:
                raise ConfigError(describe_too_many(self._ids))
        self.counts[name] += 1
        return number

    def finish(self) -> tuple[Labels, np.ndarray]:
        """Returns the classes, and the labels of all added rows: [N] int32 for `one` and `choice`, float32
        for `number`, [N, C] float32 for `several`."""
        if self.kind == NUMBER:
            return Labels(NUMBER), np.array(self._read, np.float32)
        if self.kind == CHOICE:
            return Labels(CHOICE), self._choice_numbers()
        names = tuple(sorted(self._ids, key=sort_key))
        order = np.argsort([self._ids[name] for name in names]) if names else np.zeros(0, np.int64)
        labels = Labels(self.kind, self._known.names if self._known else names)
        if odd := [name for name in names if not self._separators.isdisjoint(name)]:
            problem = f"has {min(self._separators)}, which separates labels in other rows"
            raise ConfigError(f"the label {odd[0][:60]!r} of a list {problem}. Write JSON lists in all rows.")
        if self.kind == ONE:
            numbers_N = np.array(self._read, np.int64)
            return labels, (numbers_N if self._known else order[numbers_N]).astype(np.int32)
        marks_NC = np.zeros((len(self._read), len(labels.names)), np.float32)
        for row, numbers in enumerate(self._read):
            marks_NC[row, [number if self._known else order[number] for number in numbers]] = 1.0
        return labels, marks_NC

    def _choice_numbers(self) -> np.ndarray:
        """Returns the numbers of the right texts, from 0. Numeric labels count from 0 if one of them is 0,
        and from 1 if one of them is the number of texts; if all of them are also names of columns, or texts
        of their rows, they mean these. Raises ConfigError if that is ambiguous."""
        count, read = len(self._choices), self._read
        places = [one.place if one.column is None else one.column for one in read]
        rows = [row for row, one in enumerate(read) if one.number is not None]
        numbers = [read[row].number for row in rows]
        first = 0 if 0 in numbers else 1
        readings = [[read[row].column for row in rows], [read[row].place for row in rows]]
        if rows and max(numbers) - first < count and not {0, count}.isdisjoint(numbers):
            readings.append([number - first for number in numbers])
        readings = [reading for reading in readings if None not in reading]
        if not readings or any(reading != readings[0] for reading in readings):
            shown = shortened([str(number) for number in sorted(set(numbers))])
            others = "meant by column, text or number" if readings else "counted from 0 or from 1"
            raise ConfigError(
                f"the labels {shown} are ambiguous: the {count} texts may be {others}. Give the names of"
                " the columns, or letters, A for the first text."
            )
        for row, place in zip(rows, readings[0]):
            places[row] = place
        return np.array(places, np.int32)


def sort_key(name: str) -> tuple:
    """Returns the sort key of a label: numbers come first, by size, then words, including NaN."""
    with contextlib.suppress(ValueError):
        if not math.isnan(number := float(name)):
            return 0, number, name
    return 1, 0.0, name


def tell_doubtful(names: Sequence[str], kind: str = SEVERAL) -> None:
    """Warns of labels that are probably the same, since they differ only in case, white space, or the form of
    a number or of accents; of those that stand for missing ones; and of fractions used as classes."""
    alike: dict[tuple, list[str]] = {}
    for name in names:
        key = sort_key(" ".join(unicodedata.normalize("NFKC", name).casefold().split()))
        alike.setdefault(key if key[0] else key[:2], []).append(name)
    if found := [" and ".join(map(repr, own)) for own in alike.values() if len(own) > 1]:
        warning = "Labels that differ only in case, white space or the form of letters are learned apart: %s"
        logging.warning(warning, shortened(found, 200))
    numbers = sorted(key[1] for key in alike if not key[0])
    is_counted = len(numbers) == len(names) > 3 and numbers == list(range(-1, len(numbers) - 1))
    for name in names:
        if name in (*MISSING, "-") or is_counted and float(name) == -1:
            logging.warning("The label %r is learned like any other: many files have it for none", name)
    if kind == ONE and not any(key[0] for key in alike) and any(key[1] % 1 for key in alike):
        logging.warning("The labels are numbers with fractions: --label_kind=number learns their size")


def describe_too_many(names: Iterable[str]) -> str:
    """Returns the message about a column with more than MAX_LABELS labels."""
    names = list(names)
    numbers = sum(sort_key(name)[0] == 0 for name in names)
    advice = "--label_kind=number predicts a number" if numbers > len(names) / 2 else "check --label_column"
    return f"the label column has more than {MAX_LABELS:,} labels, such as {shortened(names, 60)}: {advice}."


def describe_unknown(unknown: Counter, names: Sequence[str]) -> str:
    """Returns the message about labels that are missing in the training set."""
    label, rows = unknown.most_common(1)[0]
    others = f" and {len(unknown) - 1:,} others" if len(unknown) > 1 else ""
    return (
        f"label {label[:60]!r} ({counted(rows, 'row')}){others} is not in the training set"
        f"{suggest(label, names)}: {shortened(list(names))}."
    )


# -----------------------------------------------------------------------------------------------------------
# Predictions and scores
#
# Shapes: N rows, C classes.


def probabilities(labels: Labels, logits_NC: np.ndarray) -> np.ndarray:
    """Returns the probabilities, float64 [N, C]; for a number the scores in the labels' unit."""
    logits_NC = np.asarray(logits_NC, np.float64)
    if labels.kind == NUMBER:
        return labels.scale[0] + labels.scale[1] * logits_NC
    return expit(logits_NC) if labels.kind == SEVERAL else softmax(logits_NC, axis=1)


def choose_thresholds(probabilities_NC: np.ndarray, truths_NC: np.ndarray) -> tuple[float, ...]:
    """Returns the threshold with the best F1 for each class; 0.5 for a class without rows. It is the middle
    between two probabilities of the set."""
    return tuple(_threshold(*pair) for pair in zip(probabilities_NC.T, truths_NC.T > 0))


def _threshold(probabilities_N: np.ndarray, is_true_N: np.ndarray) -> float:
    if not is_true_N.any():
        return THRESHOLD
    order = np.argsort(-probabilities_N, kind="stable")
    sorted_N = probabilities_N[order]
    hits = np.cumsum(is_true_N[order])
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + is_true_N.sum())
    ends = np.append(sorted_N[1:] < sorted_N[:-1], True)  # equal probabilities have the same prediction
    best = int(np.argmax(np.where(ends, f1, -1.0)))
    below = sorted_N[best + 1] if best + 1 < len(sorted_N) else 0.0
    return float((sorted_N[best] + below) / 2)


def predicted(labels: Labels, logits_NC: np.ndarray) -> np.ndarray:
    """Returns the predictions: int64 [N] classes, bool [N, C] for `several`, by the thresholds, or float64
    [N] numbers."""
    values_NC = probabilities(labels, logits_NC)
    if labels.kind == NUMBER:
        return values_NC[:, 0]
    if labels.kind == SEVERAL:
        return values_NC >= np.array(labels.thresholds or [THRESHOLD] * len(labels.names))
    return values_NC.argmax(axis=1)


_OF_CLASSES = ("accuracy", "macro_f1", "micro_f1", "weighted_f1", "roc_auc", "log_loss", "calibration_error")
# {kind: names of its scores}; the first one is the main one.
SCORES = {
    ONE: _OF_CLASSES,
    SEVERAL: ("micro_f1", "macro_f1", "weighted_f1", "accuracy", *_OF_CLASSES[4:]),
    NUMBER: ("spearman", "pearson", "root_mean_squared_error"),
    CHOICE: ("accuracy", "log_loss", "calibration_error"),
}


def scores(labels: Labels, logits_NC: np.ndarray, truths: np.ndarray) -> dict[str, float]:
    """Returns the scores of a set.

    Returns:
      For classes accuracy, macro_f1, micro_f1, weighted_f1, roc_auc (mean over one class against the rest;
      left out if no class has rows of both kinds), log_loss and calibration_error; the accuracy of `several`
      is the share of rows with exactly the right labels. For a number pearson, spearman and
      root_mean_squared_error.
    """
    if labels.kind == NUMBER:
        return scores_of_numbers(predicted(labels, logits_NC), np.asarray(truths, np.float64))
    from sklearn import metrics  # late: takes a second, and few programs score

    chances_NC = probabilities(labels, logits_NC)
    calls = predicted(labels, logits_NC)
    truths_NC, calls_NC = (_marks(part, chances_NC.shape[1]) for part in (truths, calls))
    if labels.kind == SEVERAL:
        clipped = np.clip(chances_NC, _EPSILON, 1 - _EPSILON)
        loss = -np.where(truths_NC, np.log(clipped), np.log1p(-clipped)).mean()
        error = calibration_error(chances_NC.ravel(), truths_NC.ravel())
    else:
        loss = -np.log(np.clip(chances_NC[truths_NC], _EPSILON, None)).mean()
        error = calibration_error(chances_NC.max(axis=1), calls == truths)
    found = {"accuracy": (calls_NC == truths_NC).all(axis=1).mean()}
    if labels.kind != CHOICE:
        # A class that occurs neither in labels nor predictions is left out, or counts as 0 for `several`.
        pair = (truths_NC, calls_NC) if labels.kind == SEVERAL else (truths, calls)
        for average in ("macro", "micro", "weighted"):
            found[f"{average}_f1"] = metrics.f1_score(*pair, average=average, zero_division=0.0)
        areas = [
            metrics.roc_auc_score(is_true_N, chances_N)
            for is_true_N, chances_N in zip(truths_NC.T, chances_NC.T)
            if is_true_N.any() and not is_true_N.all()
        ]
        if areas:
            found["roc_auc"] = np.mean(areas)
    return {
        name: float(value) for name, value in {**found, "log_loss": loss, "calibration_error": error}.items()
    }


def scores_of_numbers(values_N: np.ndarray, truths_N: np.ndarray) -> dict[str, float]:
    """Returns root_mean_squared_error, pearson and spearman."""
    from scipy import stats  # late, too

    constant = len(values_N) < 2 or np.ptp(values_N) == 0 or np.ptp(truths_N) == 0
    constant = constant or not np.isfinite(values_N).all()
    return {
        "root_mean_squared_error": float(np.sqrt(np.mean((values_N - truths_N) ** 2))),
        "pearson": 0.0 if constant else float(stats.pearsonr(truths_N, values_N).statistic),
        "spearman": 0.0 if constant else float(stats.spearmanr(truths_N, values_N).statistic),
    }


def calibration_error(chances_N: np.ndarray, is_right_N: np.ndarray) -> float:
    """Returns the expected calibration error: the distance between mean probability and accuracy, over 15
    bins of equal width, weighted by their rows. Source: Guo et al. 2017, arXiv 1706.04599."""
    bins_N = np.minimum((chances_N * _BINS).astype(int), _BINS - 1)
    counts, chances, right = (
        np.bincount(bins_N, weights, _BINS) for weights in (np.ones(len(bins_N)), chances_N, is_right_N)
    )
    return float(np.abs(chances - right).sum() / max(counts.sum(), 1))


def by_label(labels: Labels, logits_NC: np.ndarray, truths: np.ndarray) -> list[list]:
    """Returns the table of precision, recall, F1 and rows of each class, with its head first."""
    sets = (truths, predicted(labels, logits_NC))
    truths_NC, calls_NC = (_marks(part, len(labels.names)) for part in sets)
    counts = (part.sum(axis=0).tolist() for part in (calls_NC & truths_NC, calls_NC, truths_NC))
    rows: list[list] = [["label", "rows", "precision", "recall", "F1"]]
    for name, hits, called, there in zip(labels.names, *counts):
        rows.append([name, there, *rates(hits, called, there)])
    return rows


def rates(hits: int, called: int, there: int) -> tuple[float, float, float]:
    """Returns precision, recall and F1."""
    return hits / max(called, 1), hits / max(there, 1), 2 * hits / max(called + there, 1)


def _marks(values: np.ndarray, classes: int) -> np.ndarray:
    """Converts classes [N], or marks [N, C], to bool [N, C]."""
    values = np.asarray(values)
    return values > 0 if values.ndim == 2 else values[:, None] == np.arange(classes)
