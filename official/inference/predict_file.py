"""Predictions for the rows of a table, one output row per input row in the same order; resumable."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from absl import logging

from official.data.tables import files as tables
from official.data.tables import predictions, texts
from official.io import bars, files, jobs, writing
from official.io.errors import ConfigError, counted

PART_ROWS = 8192  # rows that are sorted by length, computed and written at a time

# Function: texts of rows -> {column: values}
Predict = Callable[[list[list[str]]], dict[str, list]]


# -----------------------------------------------------------------------------------------------------------
# Parts: computed rows that are kept until all rows are computed


class Part(NamedTuple):
    """Some computed rows.

    Attributes:
      path: path of their bytes.
      note: JSON values, including `rows`.
    """

    path: str
    note: dict[str, Any]


def write_in_parts(
    table: tables.Table,
    output_file: str,
    job: dict[str, Any],
    make: Callable[[tables.Batch], tuple[bytes, dict[str, Any]]],
    join: Callable[[Sequence[Part]], None],
    overwrite: bool,
    doing: str,
) -> list[dict[str, Any]]:
    """Processes the rows of a table in parts, joins the parts to one file, and returns their notes.

    Finished parts are kept in a folder next to the output until all are finished, so the same command can
    resume, if the rows of these parts are unchanged.

    Args:
      table: the rows.
      output_file: path that `join` writes.
      job: JSON values that identify the job; files and format are added.
      make: function from rows to the bytes of a part, and its note.
      join: function that writes the output from all parts.
      overwrite: whether to replace an existing file.
      doing: label of the progress bar.

    Raises:
      ConfigError: if the output exists or cannot be written, or if a row of the table is malformed.
    """
    if files.is_file(output_file) and not overwrite:
        raise ConfigError(f"--output_file={output_file} exists. Give another one, or --overwrite.")
    writing.check_not_read(output_file, "output_file", table.paths, table.flag)
    work, ending = f"{output_file}.parts", os.path.splitext(output_file)[1].lower()
    job = {"input": files.digest(table.paths), "format": ending, **job}
    with jobs.unfinished_folder(work, job, overwrite) as folder:
        parts: list[Part] = []
        with bars.Bar(desc=doing, unit=" rows", unit_scale=True, mininterval=1.0) as bar:
            for number, batch in enumerate(table.batches(rows=PART_ROWS)):
                path = os.path.join(folder, f"{number:06}{ending}")
                note = jobs.read_done(f"{path}.json") if files.is_file(path) else None
                rows = _digest_of(batch)
                if note is None or note.get("sha256") != rows:  # the table may have changed meanwhile
                    if batch.problems:
                        place, reason = next(iter(batch.problems.items()))
                        row = batch.first + place + 1
                        raise ConfigError(f"--{table.flag}={table.given}, row {row}: {reason}.")
                    content, note = make(batch)
                    writing.replace_file(path, content)
                    note = {**note, "sha256": rows}
                    jobs.write_done(f"{path}.json", note)
                parts.append(Part(path, note))
                bar.update(note["rows"])
        if not parts:
            raise ConfigError(f"--{table.flag}={table.given} has no row.")
        join(parts)
    with contextlib.suppress(FileNotFoundError):  # stores have no empty folders
        if not files.store_of(work).names_in(work):  # other files stay
            files.store_of(work).remove_folder(work)
    return [part.note for part in parts]


def _digest_of(batch: tables.Batch) -> str:
    """Returns a digest of rows: names and values of all columns."""
    sha = hashlib.sha256()
    for name, values in batch.columns.items():
        for value in (name, *values):
            sha.update(f"{value!r}\n".encode("utf-8", "surrogatepass"))
    return sha.hexdigest()


# -----------------------------------------------------------------------------------------------------------
# Predictions


def predict_file(
    predict: Predict,
    table: tables.Table,
    columns: Sequence[str],
    output_file: str,
    identity: dict[str, Any],
    overwrite: bool = False,
    with_words: bool = False,
) -> int:
    """Writes a table with columns of predictions appended; returns the number of its rows.

    Rows without a text get empty predictions, and their number is printed.

    Args:
      predict: function that computes the columns of predictions for some rows.
      table: the rows.
      columns: columns with the texts.
      output_file: CSV, TSV, JSON lines, Parquet or CoNLL, by its suffix.
      identity: JSON values that identify the job: the model and its settings.
      overwrite: whether to replace an existing file.
      with_words: whether a list of words is accepted as a text.

    Raises:
      ConfigError: if the output exists or cannot be written, or if a row of the table is malformed.
    """
    ending = predictions.check_format(output_file)
    kinds = table.arrow_types() if ending == ".parquet" else None

    def make(batch: tables.Batch) -> tuple[bytes, dict[str, Any]]:
        rows = list(zip(*(batch.columns[name] for name in columns)))
        usable = [
            number
            for number, row in enumerate(rows)
            if texts.wrong_text(row) is None or with_words and _are_words(row[0])
        ]
        found = predict([list(rows[number]) for number in usable] or [["-"] * len(columns)])
        places = {number: place for place, number in enumerate(usable)}
        ours = predictions.beside(table.columns, found, [places.get(number) for number in range(len(rows))])
        written = ours if ending == predictions.CONLL else {**batch.columns, **ours}
        is_first = batch.first == 0 and table.has_header
        content = predictions.encode(ending, written, is_first, ours.keys(), kinds)
        return content, {"rows": len(rows), "empty": len(rows) - len(usable)}

    def join(parts: Sequence[Part]) -> None:
        with writing.replacing(output_file) as path:
            if ending == ".parquet":
                write_parquet([part.path for part in parts], path)
                return
            with open(path, "wb") as file:
                for part in parts:
                    with files.open_binary(part.path) as content:
                        shutil.copyfileobj(content, file)

    job = {"columns": list(columns), **identity}
    notes = write_in_parts(table, output_file, job, make, join, overwrite, "Predicting")
    if empty := sum(note["empty"] for note in notes):
        logging.warning("%s: %s without a text, predicted as empty", table.given, counted(empty, "row"))
    return sum(note["rows"] for note in notes)


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


def write_parquet(
    parts: Sequence[str], path: str, changed: Callable[[Any], Any] = lambda table: table
) -> None:
    """Joins Parquet files to one, after `changed` of each table."""
    import pyarrow  # late: only Parquet needs it
    from pyarrow import parquet

    def read(part: str) -> Any:
        with files.open_binary(part) as file:
            return changed(parquet.read_table(file))

    try:
        schema = pyarrow.unify_schemas([read(part).schema for part in parts], promote_options="permissive")
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{error}. {predictions.ONE_TYPE}") from None
    with parquet.ParquetWriter(path, schema) as writer:
        for part in parts:
            writer.write_table(read(part).cast(schema))
