"""Predictions for the rows of a file: one row out for each row in, in their order, gone on with after a
kill."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from official.data.tables import files as tables
from official.data.tables import predictions, texts
from official.io import bars, files, jobs, writing
from official.io.errors import ConfigError, counted

PART_ROWS = 8192  # are predicted, and written, at once: sorted by length among them

# Texts of rows -> {column: values}
Predict = Callable[[list[list[str]]], dict[str, list]]


def predict_file(
    predict: Predict,
    table: tables.Table,
    columns: Sequence[str],
    output_file: str,
    identity: dict[str, Any],
    overwrite: bool = False,
    with_words: bool = False,
) -> int:
    """Writes a table with the predictions behind its columns; returns the number of its rows.

    Rows without a text get empty predictions; how many there are is said. The rows that are done are kept in
    a folder beside the output until all are: the same command goes on with them.

    Args:
      predict: computes the columns of some rows.
      table: the rows.
      columns: those with the texts.
      output_file: CSV, TSV, JSON lines, Parquet or CoNLL by its ending.
      identity: what makes it this job, JSON values: the model and how it computes.
      overwrite: whether a file that is there is replaced.
      with_words: whether a list of words is a text, too.

    Raises:
      ConfigError: where the output is there, cannot be written, or a row of the table is malformed.
    """
    ending = predictions.check_format(output_file)
    if files.is_file(output_file) and not overwrite:
        raise ConfigError(f"--output_file={output_file} is there. Give another one, or --overwrite.")
    work = f"{output_file}.parts"
    job = {"input": files.digest(table.paths), "columns": list(columns), "format": ending, **identity}
    total, empty = 0, 0
    with jobs.unfinished_folder(work, job, overwrite) as folder:
        parts = []
        with bars.Bar(desc="Predicting", unit=" rows", unit_scale=True, mininterval=1.0) as bar:
            for number, batch in enumerate(table.batches(rows=PART_ROWS)):
                path = os.path.join(folder, f"{number:06}{ending}")
                note = jobs.read_done(f"{path}.json") if files.is_file(path) else None
                if note is None:
                    content, without = _part(predict, table, batch, columns, ending, with_words)
                    writing.replace_file(path, content)
                    note = {"rows": len(batch.columns[columns[0]]), "empty": without}
                    jobs.write_done(f"{path}.json", note)
                parts.append(path)
                total, empty = total + note["rows"], empty + note["empty"]
                bar.update(note["rows"])
        if not parts:
            raise ConfigError(f"--{table.flag}={table.given} has no row.")
        _join(parts, output_file, ending)
    files.store_of(work).remove_folder(work)
    if empty:
        logging.warning("%s: %s without a text, predicted as empty", table.given, counted(empty, "row"))
    return total


def _part(
    predict: Predict,
    table: tables.Table,
    batch: tables.Batch,
    columns: Sequence[str],
    ending: str,
    with_words: bool,
) -> tuple[bytes, int]:
    """Returns the bytes of some rows with their predictions, and how many of them have no text."""
    if batch.problems:
        number, reason = next(iter(batch.problems.items()))
        raise ConfigError(f"--{table.flag}={table.given}, row {batch.first + number + 1}: {reason}.")
    rows = list(zip(*(batch.columns[name] for name in columns)))
    usable = [
        number
        for number, row in enumerate(rows)
        if texts.wrong_text(row) is None or with_words and _are_words(row[0])
    ]
    found = predict([list(rows[number]) for number in usable]) if usable else predict([["-"] * len(columns)])
    added: dict[str, list] = {name: [None] * len(rows) for name in found}
    for name, values in found.items():
        for number, value in zip(usable, values):
            added[name][number] = value
    written = {**batch.columns, **predictions.with_free_names(table.columns, added)}
    written = added if ending == predictions.CONLL else written
    is_first = batch.first == 0 and table.has_header
    return predictions.encode(ending, written, with_header=is_first), len(rows) - len(usable)


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


def _join(parts: Sequence[str], output_file: str, ending: str) -> None:
    """Makes one file of the parts; it is there whole or not at all."""
    with writing.replacing(output_file) as path:
        if ending == ".parquet":
            _write_parquet(parts, path)
            return
        with open(path, "wb") as file:
            for part in parts:
                with files.open_binary(part) as content:
                    shutil.copyfileobj(content, file)


def _write_parquet(parts: Sequence[str], path: str) -> None:
    import pyarrow  # late: only Parquet needs it
    from pyarrow import parquet

    def read(part: str) -> Any:
        with files.open_binary(part) as file:
            return parquet.read_table(file)

    schema = pyarrow.unify_schemas([read(part).schema for part in parts], promote_options="permissive")
    with parquet.ParquetWriter(path, schema) as writer:
        for part in parts:
            writer.write_table(read(part).cast(schema))
