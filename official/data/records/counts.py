"""Counts of the records and rows in the files of a job: made once, and kept beside the run.

Records are counted by going from length to length through the file's bytes; only those of formats that hold
any number of rows are parsed. Files that `create_pretraining_data.py` made need not be read at all: its
manifest says how many examples they have.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf
from absl import logging

from official.data.records import files as record_files
from official.data.records import record_formats
from official.data.records.shard_files import FRAME_BYTES
from official.io import files, json_files, writing
from official.io.errors import ConfigError, counted
from official.io.jobs import MANIFEST

_CHUNK_BYTES = 1 << 24
_LENGTH = struct.Struct("<Q")
_HEAD_BYTES = 12  # of a record: its length, and a checksum of that
_CHECKSUM_BYTES = 4
_READERS = 4
_TAIL_BYTES = 1 << 16  # of a file, in which its last record begins most often
_END_READERS = 16
_PARSED_RECORDS = 64  # at once


class RowCounts:
    """The numbers of rows in the records of a file, in order."""

    def __init__(self, runs: Iterable[Sequence[int]]):
        """Takes (rows of a record, such records that follow each other)."""
        self.runs = [(int(rows), int(count)) for rows, count in runs]
        self._records = np.cumsum([0, *(count for _, count in self.runs)])
        self._rows = np.cumsum([0, *(rows * count for rows, count in self.runs)])

    @property
    def records(self) -> int:
        return int(self._records[-1])

    @property
    def rows(self) -> int:
        return int(self._rows[-1])

    def rows_before(self, record: int) -> int:
        """Returns the rows in the first `record` records."""
        run = int(np.searchsorted(self._records[1:-1], record, side="right"))
        return int(self._rows[run]) + (record - int(self._records[run])) * (
            self.runs[run][0] if self.runs else 0
        )


def count(paths: list[str], record_format: str, kept_path: str = "") -> list[RowCounts]:
    """Returns the counts of each file.

    Args:
      paths: of the files.
      record_format: of all of them.
      kept_path: file of the counts of an earlier call, which is brought up to date; unset: none is kept.

    Raises:
      ConfigError: for a file that cannot be read, or is damaged.
    """
    versions = [_version(path) for path in paths]
    kept = _read_kept(kept_path)
    found = [
        kept[path][1] if path in kept and kept[path][0] == version else None
        for path, version in zip(paths, versions)
    ]
    whole = [counts for counts in found if counts is not None]
    if len(whole) == len(found):
        return whole
    if record_formats.rows_per_record(record_format) == 1:
        found = _by_manifests(paths, versions, found)
    missing = [number for number, counts in enumerate(found) if counts is None]
    if missing:
        size = sum(versions[number][0] for number in missing)
        logging.info("Counting the records of %s (%.1f GB), once.", counted(len(missing), "file"), size / 1e9)
        find_bytes = functools.lru_cache(lambda: record_files.bytes_of(paths, record_format))
        count_file = functools.partial(_count_file, record_format=record_format, find_bytes=find_bytes)
        with ThreadPoolExecutor(_READERS) as readers:
            for number, counts in zip(missing, readers.map(count_file, [paths[n] for n in missing])):
                found[number] = counts
    whole = [counts for counts in found if counts is not None]
    _write_kept(kept_path, paths, versions, whole)
    return whole


def _version(path: str) -> tuple[int, int]:
    with files.naming(path):
        return files.version(path)


# ------------------------------------------------------------------------------------------------------------
# What is known already


def _read_kept(path: str) -> dict[str, tuple[tuple[int, int], RowCounts]]:
    """Returns {file: (version, counts)}; nothing where the file is not there or damaged: then it is written
    anew."""
    if not path:
        return {}
    try:
        kept = json_files.read_json(path)["files"]
        return {name: ((own["bytes"], own["changed"]), RowCounts(own["runs"])) for name, own in kept.items()}
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return {}


def _write_kept(path: str, paths: list[str], versions: list[tuple[int, int]], found: list[RowCounts]) -> None:
    if not path:
        return
    entries = {
        name: {"bytes": size, "changed": changed, "runs": counts.runs}
        for name, (size, changed), counts in zip(paths, versions, found)
    }
    try:
        writing.replace_file(path, json.dumps({"files": entries}) + "\n")
    except OSError as error:
        logging.warning(
            "%s cannot be written (%s): the next process counts again.", path, error.strerror or error
        )


def _by_manifests(
    paths: list[str], versions: list[tuple[int, int]], found: list[RowCounts | None]
) -> list[RowCounts | None]:
    """Fills in the counts that manifests in the files' folders have, for records of one row; none of a file
    that has another size now."""
    folders = list(map(os.path.dirname, paths))
    manifests = {
        folder: _manifest_counts(folder)
        for folder in {folder for folder, counts in zip(folders, found) if not counts}
    }
    for number, (path, (size, _)) in enumerate(zip(paths, versions)):
        examples, sizes = manifests.get(folders[number], ({}, {}))
        name = os.path.basename(path)
        told = examples.get(name) if sizes.get(name) == size else None
        if not found[number] and type(told) is int and 0 <= told <= size:
            found[number] = RowCounts([(1, told)])
    return found


def _manifest_counts(folder: str) -> tuple[dict, dict]:
    try:
        manifest = json_files.read_json(os.path.join(folder, MANIFEST))
    except ConfigError:
        return {}, {}
    examples, sizes = manifest.get("files"), manifest.get("file_bytes")
    return (examples, sizes) if isinstance(examples, dict) and isinstance(sizes, dict) else ({}, {})


# ------------------------------------------------------------------------------------------------------------
# Counting


def _count_file(path: str, record_format: str, find_bytes: Callable[[], int | None]) -> RowCounts:
    """Returns the counts of a file of a format; `find_bytes` finds the size of records without frames."""
    has_one_row = record_formats.rows_per_record(record_format) == 1
    if record_files.has_frames(record_format):
        if has_one_row:
            return RowCounts([(1, count_records(path))])
        return _count_rows(path, tf.data.TFRecordDataset(path), record_format)
    num_bytes = find_bytes()
    if num_bytes is None:
        raise ConfigError(f"{path}: no record of the first files is a right {record_format} one.")
    records = record_files.count_unframed(path, num_bytes)
    if has_one_row:
        return RowCounts([(1, records)])
    return _count_rows(path, tf.data.FixedLengthRecordDataset(path, num_bytes), record_format)


def _count_rows(path: str, records: tf.data.Dataset, record_format: str) -> RowCounts:
    try:
        batches = records.batch(_PARSED_RECORDS).map(
            lambda batch: record_formats.count_rows(batch, record_format)
        )
        rows = itertools.chain.from_iterable(batch.tolist() for batch in batches.as_numpy_iterator())
        return RowCounts([(number, len(list(run))) for number, run in itertools.groupby(rows)])
    except tf.errors.OpError as error:
        raise ConfigError(f"{path}: {error.message.splitlines()[0]}.") from None


def count_records(path: str) -> int:
    """Returns the number of a TFRecord file's records. Raises ConfigError where it is cut off inside of one,
    or cannot be read."""
    number, place, start, chunk = 0, 0, 0, b""
    with files.naming(path), files.open_binary(path) as file:
        size = files.version(path)[0]
        while place + _HEAD_BYTES <= size:
            if place + _HEAD_BYTES > start + len(chunk):
                file.seek(place)
                start, chunk = place, file.read(_CHUNK_BYTES)
            place += _HEAD_BYTES + _LENGTH.unpack_from(chunk, place - start)[0] + _CHECKSUM_BYTES
            number += 1
    if place != size:
        whole = number - (place > size)
        raise ConfigError(
            f"{path} is truncated or damaged after record {whole}: record {whole + 1} cannot be read."
        )
    return number


def check_ends(paths: list[str]) -> None:
    """Checks that TFRecord files end where a record does. TensorFlow takes a record that is cut off within
    its length for the end of the file, and would go on without it.

    A file is read from its end back to its last record, or, where that is longer than 64 KiB, from length to
    length. Raises ConfigError for a file that is cut off, or cannot be read.
    """
    with ThreadPoolExecutor(_END_READERS) as readers:
        for path, is_whole in zip(paths, readers.map(_ends_with_record, paths, files.sizes(paths))):
            if not is_whole:
                count_records(path)


def _ends_with_record(path: str, size: int) -> bool:
    """Tells whether a record that begins within the last bytes of a file ends with it."""
    start = max(size - _TAIL_BYTES, 0)
    with files.naming(path), files.reading_parts(path) as read:
        tail = read(start, size - start)
    if len(tail) < FRAME_BYTES:
        return not tail
    places = len(tail) - FRAME_BYTES + 1
    windows = np.lib.stride_tricks.as_strided(
        np.frombuffer(tail, np.uint8), (places, _LENGTH.size), (1, 1), writeable=False
    )
    lengths = np.ascontiguousarray(windows).view("<u8")[:, 0]
    left = np.arange(len(tail) - FRAME_BYTES, -1, -1).astype(np.uint64)
    return any(
        _masked_crc32c(tail[place : place + _LENGTH.size])
        == int.from_bytes(tail[place + _LENGTH.size : place + _HEAD_BYTES], "little")
        for place in np.flatnonzero(lengths == left).tolist()
    )


def _masked_crc32c(data: bytes) -> int:
    """Returns the checksum that TFRecord files keep of a few bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
