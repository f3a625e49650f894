"""Sequences that the ranges of int8's activations are taken from.

They are read of a file, or of what a run was trained with, where that is still there:
  answer               SQuAD's JSON
  classify             a row a line, a tab between the texts of a pair
  fill_mask and embed  a text a line
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from official.data.glue import files as files_lib
from official.data.glue import tasks
from official.data.squad import squad_files
from official.inference.backends import Settings
from official.inference.rows import Rows
from official.inference.source import Source
from official.io import files
from official.io.errors import ConfigError

_SEQUENCES = 128  # spread over the file
_BATCH = 16


def calibrated(settings: Settings, read: Callable[[], Rows]) -> Settings:
    """Returns the settings with the sequences that `read` gives, where they ask for int8 and have none."""
    if settings.dtype != "int8" or settings.calibration:
        return settings
    rows = read()
    count = len(rows.lengths_N)
    batches = [rows.pick(range(first, min(first + _BATCH, count))) for first in range(0, count, _BATCH)]
    return dataclasses.replace(settings, calibration=batches)


def questions(source: Source, file: str | None) -> Callable[[], list[tuple[str, str]]]:
    """Returns () -> (question, context) each."""

    def read() -> list[tuple[str, str]]:
        path = file or _of_run(source, "train_file")
        data = squad_files.read_squad(path, "calibration_file", False, True)
        chosen = _spread(data.questions)
        return [(question.text, data.contexts[question.context]) for question in chosen]

    return read


def sentences(source: Source, file: str | None) -> Callable[[], list[list[str]]]:
    """Returns () -> rows of one text each, or of two."""

    def read() -> list[list[str]]:
        if file:
            return [line.split("\t") for line in _lines(file)]
        folder = _of_run(source, "data_dir")
        table = files_lib.read_split(tasks.find_task(source.run.glue_task), "train", folder)
        return _spread([list(texts) for texts in zip(*table.texts)])

    return read


def texts(file: str | None) -> Callable[[], list[str]]:
    """Returns () -> texts."""

    def read() -> list[str]:
        if not file:
            raise ConfigError("int8 needs texts for the ranges of activations. Give --calibration_file=F.")
        return _lines(file)

    return read


def _of_run(source: Source, setting: str) -> str:
    path = source.setting(setting, None)
    if path is None or not os.path.exists(path):
        what = (
            f"{setting}={path} of its run is not there" if path else "nothing says what it was trained with"
        )
        raise ConfigError(
            f"int8 needs data for the ranges of activations, and {what}. Give --calibration_file=F."
        )
    return path


def _lines(path: str) -> list[str]:
    text = files.read_text(path, f"--calibration_file={path}")
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise ConfigError(f"--calibration_file={path} has no text.")
    return _spread(lines)


def _spread(values: Sequence[Any]) -> list[Any]:
    """Returns at most so many of them as are needed, from the first on at equal distances."""
    places = np.linspace(0, len(values), min(len(values), _SEQUENCES), endpoint=False).astype(int)
    return [values[place] for place in places]
