"""Formats of the records of pre-training data: their readers, by name.

  plain    tf.train.Examples of Google's BERT and MLPerf
  compact  blocks of examples, as 16-bit ids without padding
  remask   tf.train.Examples of Graphcore's static mask: the predicted tokens first
  packed   tf.train.Examples of several examples each, as Graphcore's for PyTorch; written by `bert pack`
  habana   tf.train.Examples of several examples each, as Habana's for TensorFlow
  popart_static, popart_plain, popart_packed, popart_in_place  Graphcore's binaries for PopART, without frames

All are read into the same features, those of `schema.pretraining_schema`; `formats.plain.Plain` documents the
methods of a reader.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import tensorflow as tf

from official.data.records import encoding
from official.data.records.formats import compact, packed
from official.data.records.formats.plain import Plain, Remask, Static
from official.data.records.schema import Feature, read_example
from official.io import record_paths
from official.io.errors import ConfigError
from official.io.jobs import MANIFEST
from official.io.json_files import read_json_or_empty

POPART = "official.graphcore.popart_records"


class _Late:
    """Proxy of a reader in POPART, `name` of its table `table`; the module is imported on first use."""

    def __init__(self, table: str, name: str):
        self._table, self._name = table, name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(getattr(importlib.import_module(POPART), self._table)[self._name], attribute)


_POPART_ROWS = ("popart_packed", "popart_in_place")
FORMATS: dict[str, Any] = {
    "plain": Plain(),
    "compact": compact.READER,
    "remask": Remask(),
    "packed": packed.EXAMPLES,
    "habana": packed.HABANA_EXAMPLES,
    **{name: _Late("EXAMPLES", name) for name in ("popart_static", "popart_plain", *_POPART_ROWS)},
}
# Formats with several examples per row, and the name of the reader that returns whole rows.
_ROWS: dict[str, Any] = {"packed": packed.ROWS, "habana": packed.HABANA_ROWS}
_ROWS.update((name, _Late("ROWS", name)) for name in _POPART_ROWS)
AS_ROWS = {name: f"{name}_whole" for name in _ROWS}
# Formats with the predicted tokens first, and the name of the reader that keeps this order.
AS_STATIC = {"remask": "remask_static"}
_WHOLE = {AS_ROWS[name]: reader for name, reader in _ROWS.items()}
READERS: dict[str, Any] = {**FORMATS, **_WHOLE, AS_STATIC["remask"]: Static()}


def flags_of(path: str) -> dict:
    """Returns the flags that a file of records was made with, from the manifest next to it."""
    flags = read_json_or_empty(os.path.join(os.path.dirname(path), MANIFEST)).get("flags")
    return flags if isinstance(flags, dict) else {}


def flag_of(path: str, name: str, kind: type) -> Any:
    """Returns the value of one of the flags, such as do_lower_case; None if unknown."""
    value = flags_of(path).get(name)
    return value if isinstance(value, kind) else None


def casing_of(paths: list[str], given: bool | None = None) -> bool | None:
    """Tells whether the text of records was lower-cased, by their manifests and the flag do_lower_case, if
    given; None if unknown. Raises ConfigError if these contradict each other."""
    casing, source = given, "--do_lower_case"
    for path in record_paths.first_of_folders(paths):
        found = flag_of(path, "do_lower_case", bool)
        if None not in (casing, found) and casing != found:
            advice = "Drop it" if source.startswith("--") else "Give records of one casing"
            raise ConfigError(
                f"the text of the records of {path} was made with do_lower_case={str(found).lower()},"
                f" {source} says {str(casing).lower()}. {advice}."
            )
        if casing is None:
            casing, source = found, f"that of {path}"
    return casing


def detect_format(record: bytes) -> str | None:
    """Returns the format of a record; None if unknown. Reads only features that distinguish the formats."""
    if not (features := read_example(record)):
        return None
    if encoding.SHAPE in features:
        return "compact"
    if packed.IDS in features:
        return "packed"
    if packed.HABANA_MARK in features:
        return "habana"
    return "remask" if "mask_padding_index" in features else "plain"


def parse_records(records: tf.Tensor, schema: dict[str, Feature], record_format: str) -> dict[str, tf.Tensor]:
    """Parses records, string [B], into {name: [N, length]} of their N rows. Fails as `Plain.unpack` does."""
    reader = READERS[record_format]
    return reader.parse_rows(reader.unpack(records, schema), schema)


def describe_mismatch(record: bytes, schema: dict[str, Feature], record_format: str) -> str | None:
    """Describes how a record violates the format or the schema, and in which row; None if it is valid."""
    try:
        problem = READERS[record_format].describe_mismatch(record, schema)
    except ValueError as error:
        problem = str(error)
    found = detect_format(record) if problem else None
    return problem if found in (record_format, None) else f"it is a {found} record among {record_format} ones"
