"""Formats of the records of pre-training data: their readers, by name.

  plain    tf.train.Examples of Google's BERT and MLPerf
  compact  blocks of examples, as 16-bit ids without padding
  remask   tf.train.Examples of Graphcore's static mask: the predicted tokens first
  packed   tf.train.Examples of several examples each, as Graphcore's for PyTorch; `bert pack` makes them
  habana   tf.train.Examples of several examples each, as Habana's for TensorFlow
  popart_static, popart_plain, popart_packed, popart_in_place  Graphcore's binaries for PopART, without frames

All are read into the same features, those of `schema.pretraining_schema`.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import tensorflow as tf

from official.data.records import encoding
from official.data.records.formats import compact, habana, packed
from official.data.records.formats.plain import Plain, Remask, Static
from official.data.records.schema import Feature, read_example
from official.io.errors import ConfigError
from official.io.jobs import MANIFEST
from official.io.json_files import read_json

POPART = "official.graphcore.popart_records"


class _Late:
    """A format of POPART, which is imported when such a record is met.

    Args:
      table: name of its table of readers there.
      name: of the format.
    """

    def __init__(self, table: str, name: str):
        self._table, self._name = table, name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(getattr(importlib.import_module(POPART), self._table)[self._name], attribute)


POPART_FORMATS = ("popart_static", "popart_plain", "popart_packed", "popart_in_place")
_POPART_ROWS = ("popart_packed", "popart_in_place")
FORMATS: dict[str, Any] = {
    "plain": Plain(),
    "compact": compact.READER,
    "remask": Remask(),
    "packed": packed.EXAMPLES,
    "habana": habana.EXAMPLES,
    **{name: _Late("EXAMPLES", name) for name in POPART_FORMATS},
}
# Formats whose records are rows of several examples, and by what name the rows are read as such.
_ROWS: dict[str, Any] = {
    "packed": packed.ROWS,
    "habana": habana.ROWS,
    **{name: _Late("ROWS", name) for name in _POPART_ROWS},
}
AS_ROWS = {name: f"{name}_whole" for name in _ROWS}
# By what name rows whose predicted tokens stand first are read as they stand.
AS_STATIC = {"remask": "remask_static"}
_READERS = {
    **FORMATS,
    **{AS_ROWS[name]: reader for name, reader in _ROWS.items()},
    AS_STATIC["remask"]: Static(),
}


def lower_case_of(path: str) -> bool | None:
    """Returns whether the text of a file of records was lower-cased, as the manifest beside it says; None
    where it says nothing."""
    manifest = os.path.join(os.path.dirname(path), MANIFEST)
    try:
        told = read_json(manifest).get("flags", {}).get("do_lower_case")
    except (ConfigError, AttributeError):  # none, or somebody else's
        return None
    return told if isinstance(told, bool) else None


def detect_format(record: bytes) -> str | None:
    """Returns the format of a record, or None where it has none of them. Only what tells the formats apart is
    looked at."""
    features = read_example(record)
    if not features:
        return None
    if encoding.SHAPE in features:
        return "compact"
    if packed.IDS in features:
        return "packed"
    if habana.MARK in features:
        return "habana"
    return "remask" if "mask_padding_index" in features else "plain"


def row_sizes(record: bytes, record_format: str) -> tuple[int, int]:
    """Returns the places of a packed record for predicted tokens and for examples; `record_format` is a name
    of AS_ROWS. Raises ValueError where it is none."""
    return _READERS[AS_ROWS[record_format]].row_sizes(record)


def average_sequences(files: list[str], record_format: str) -> float | None:
    """Returns how many examples a packed record of some files holds on average, where something beside the
    files says so; `record_format` is a name by which rows are read."""
    return habana.average_sequences(files) if record_format == AS_ROWS["habana"] else None


def rows_per_record(record_format: str) -> int:
    """Returns the largest number of rows in a record."""
    return _READERS[record_format].rows_per_record


def records_of(rows: int, record_format: str) -> int:
    """Returns the number of whole records that hold so many rows, one at least."""
    return max(rows // rows_per_record(record_format), 1)


def count_rows(serialized_B: tf.Tensor, record_format: str) -> tf.Tensor:
    """Returns the number of rows of each record, int32 [B]. Fails as `unpack` does."""
    return _READERS[record_format].count_rows(serialized_B)


def unpack(serialized_B: tf.Tensor, schema: dict[str, Feature], record_format: str) -> tf.Tensor:
    """Returns the rows of some records, [N] or [N, W], in the form in which they are shuffled and
    joined at the least cost.

    Args:
      serialized_B: string [B], of records that may hold any number of rows each.

    Fails with InvalidArgumentError where one of them is of another format or has other lengths than the
    schema; a format whose rows are its records leaves that to `parse_rows`.
    """
    return _READERS[record_format].unpack(serialized_B, schema)


def parse_rows(rows_N: tf.Tensor, schema: dict[str, Feature], record_format: str) -> dict[str, tf.Tensor]:
    """Turns rows of `unpack` into {name: [N, length]}, the same for every format. Fails as `unpack` does."""
    return _READERS[record_format].parse_rows(rows_N, schema)


def to_words(rows_N: tf.Tensor, schema: dict[str, Feature], record_format: str) -> tf.Tensor:
    """Turns rows of `unpack` into words of compact records, integers [N, W]: see `compact.columns`. Fails as
    `unpack` does."""
    if rows_N.dtype != tf.string:  # of these formats rows are such words
        return tf.cast(rows_N, tf.int32)
    return compact.to_words(parse_rows(rows_N, schema, record_format))


def parse_records(
    serialized_B: tf.Tensor, schema: dict[str, Feature], record_format: str
) -> dict[str, tf.Tensor]:
    """Parses records, string [B], into {name: [N, length]} of their N rows. Fails as `unpack` does."""
    return parse_rows(unpack(serialized_B, schema, record_format), schema, record_format)


def split(record: bytes, record_format: str) -> list[bytes]:
    """Returns a record for each row that a record holds. Raises ValueError where it is not of the format
    and this tells."""
    return FORMATS[record_format].split(record)


def join(records: list[bytes], record_format: str) -> list[bytes]:
    """Returns records that hold the rows of the given ones, in the same order, and as many of them as the
    format allows."""
    return FORMATS[record_format].join(records)


def describe_mismatch(record: bytes, schema: dict[str, Feature], record_format: str) -> str | None:
    """Says how a record departs from the format and the schema, and in which of its rows; None where it
    does not."""
    problem = _READERS[record_format].describe_mismatch(record, schema)
    if problem is None:
        return None
    found = detect_format(record)
    return problem if found in (record_format, None) else f"it is a {found} record among {record_format} ones"


def sizes_of(record: bytes, record_format: str) -> tuple[int, int]:
    """Returns max_seq_length and max_predictions_per_seq of a record whose format was detected; 0 where it
    does not say."""
    return _READERS[record_format].sizes_of(record)
