"""Writes predictions next to their rows: all columns of the input, in order, then the predicted columns."""

from __future__ import annotations

import csv
import io
import json
import os
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from official.data.tables import labels as labels_lib
from official.data.tables.labels import CHOICE, NUMBER, SEVERAL, Labels
from official.io.errors import ConfigError

CONLL = ".conll"  # only for tags
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
FORMATS = (*TABLES, CONLL)
_PREFIX = "predicted_"
ONE_TYPE = "A column of Parquet has one type. Give --output_file=F.jsonl."


def check_format(path: str, flag: str = "output_file", formats: Sequence[str] = FORMATS) -> str:
    """Returns the suffix of a file, by default of predictions. Raises ConfigError for an unknown one."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in formats:
        raise ConfigError(f"--{flag}={path}: unknown suffix. Allowed: {', '.join(formats)}.")
    return ending


def beside(
    columns: Sequence[str], ours: Mapping[str, Sequence], places: Sequence[int | None]
) -> dict[str, list]:
    """Aligns predicted columns with the rows of an input, with None for rows without a value. A name that the
    input already has gets the prefix `predicted_`, repeatedly if needed."""
    found: dict[str, list] = {}
    for name, values in ours.items():
        while name in columns or name in found:
            name = _PREFIX + name
        found[name] = [None if place is None else values[place] for place in places]
    return found


def columns_of(
    labels: Labels, logits_NC: np.ndarray, all_probabilities: bool = False, choices: Sequence[str] = ()
) -> dict[str, list]:
    """Returns the columns of predicted labels: `label` and `probability`; for several labels `labels` (JSON),
    for a number `score`, for several numbers `score_NAME`; with `all_probabilities` also `probability_NAME`
    of every class. The label of a choice is the name of the text's column, from `choices`; without them its
    number, from 1 on."""
    chances_NC = labels_lib.probabilities(labels, logits_NC)
    if labels.kind == NUMBER and chances_NC.shape[1] == 1:
        return {"score": chances_NC[:, 0].tolist()}
    if labels.kind == NUMBER:
        return {f"score_{name}": column.tolist() for name, column in zip(labels.names, chances_NC.T)}
    called = labels_lib.predicted(labels, logits_NC)
    names = labels.names
    if labels.kind == CHOICE:
        names = tuple(choices) or tuple(str(number + 1) for number in range(chances_NC.shape[1]))
    if labels.kind == SEVERAL:
        marked = [[name for name, is_there in zip(names, row) if is_there] for row in called]
        found = {"labels": [json.dumps(row, ensure_ascii=False) for row in marked]}
    else:
        found = {
            "label": [names[number] for number in called],
            "probability": chances_NC.max(axis=1).tolist(),
        }
    if all_probabilities:
        found.update({f"probability_{name}": one.tolist() for name, one in zip(names, chances_NC.T)})
    return found


def encode(
    ending: str,
    columns: Mapping[str, Sequence],
    with_header: bool,
    ours: Collection[str] | None = None,
    arrow_types: Mapping[str, Any] | None = None,
) -> bytes:
    """Encodes rows as the bytes of a file, or of a part of one.

    Args:
      ending: suffix, one of FORMATS.
      columns: {name: values}; for CoNLL `tokens` and `tags`, lists, or None for a sentence without words.
      with_header: whether to write the names first, in formats with a header.
      ours: names of the predicted columns, whose numbers are rounded to six digits in text formats. None:
        all.
      arrow_types: pyarrow's types of columns of Parquet; other types are inferred from the values.

    Raises:
      ConfigError: for a column of Parquet with values of several types.
    """
    if ending == CONLL:
        sentences = (conll(words or [], tags or []) for words, tags in zip(*columns.values()))
        return _text(sentences)
    if ending == ".parquet":
        import pyarrow  # late: only Parquet needs it
        from pyarrow import parquet

        buffer, kinds = io.BytesIO(), arrow_types or {}
        arrays: dict[str, Any] = {}
        for name, values in columns.items():
            try:
                arrays[name] = pyarrow.array(list(values), type=kinds.get(name))
            except (pyarrow.ArrowException, OverflowError, UnicodeError) as error:
                raise ConfigError(f"the column {name!r}: {error}. {ONE_TYPE}") from None
        parquet.write_table(pyarrow.table(arrays), buffer)
        return buffer.getvalue()
    ours = columns.keys() if ours is None else ours
    rows = zip(*(map(_rounded, values) if name in ours else values for name, values in columns.items()))
    if ending == ".jsonl":
        return _text(f"{_json(dict(zip(columns, row)))}\n" for row in rows)
    # The writer quotes cells with characters of `lineterminator`, and a lone carriage return ends a row, too.
    # So rows are written with both characters, and the carriage return is dropped.
    lines = []
    sink: Any = types.SimpleNamespace(write=lambda row: lines.append(f"{row[:-2]}\n"))
    writer = csv.writer(sink, delimiter="\t" if ending == ".tsv" else ",", lineterminator="\r\n")
    if with_header:
        writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return _text(lines)


def _text(lines: Iterable[str]) -> bytes:
    """Returns lines as UTF-8, which has no lone surrogates: they become their escapes, as in JSON."""
    return "".join(lines).encode("utf-8", "backslashreplace")


def conll(words: Sequence[str], tags: Sequence[str]) -> str:
    """Returns a sentence in CoNLL columns: one word per line, a tab and its tag, and an empty line."""
    lines = (f"{' '.join(word.split()) or '-'}\t{tag}\n" for word, tag in zip(words, tags))
    return "".join(lines) + "\n"


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _cell(value: Any) -> Any:
    """Returns a value in the form of delimited files."""
    if isinstance(value, (list, dict, bool)):
        return _json(value)
    return "" if value is None else value


def _json(value: Any) -> str:
    """Returns a value as JSON, with dates and other types of Parquet as text."""
    return json.dumps(value, ensure_ascii=False, default=str)
