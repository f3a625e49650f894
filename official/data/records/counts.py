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
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf
from absl import logging

from official.data.records import files as record_files
from official.data.records.record_formats import READERS
from official.data.records.shard_files import FRAME_BYTES
from official.data.rows import ragged
from official.io import files, json_files, writing
from official.io.errors import ConfigError, counted
from official.io.jobs import MANIFEST

_CHUNK_BYTES = 1 << 24
_LENGTH = struct.Struct("<Q")
_HEAD_BYTES = 12  # of a record: its length, and a checksum of that
_READERS = 4
_TAIL_BYTES = 1 << 16  # of a file, in which its last record begins most often
_END_READERS = 16
_PARSED_RECORDS = 64  # at once


class RowCounts:
    """The numbers of rows in the records of a file, in order: runs of (rows of a record, such records)."""

    def __init__(self, runs: Iterable[Sequence[int]]):
        self.runs = [(int(rows), int(count)) for rows, count in runs]
        self._records = np.cumsum([0, *(count for _, count in self.runs)])
        self._rows = np.cumsum([0, *(rows * count for rows, count in self.runs)])
        self.records, self.rows = int(self._records[-1]), int(self._rows[-1])

    def rows_before(self, record: int) -> int:
        """Returns the rows in the first `record` records."""
        return round(float(np.interp(record, self._records, self._rows)))


def count(paths: list[str], record_format: str, kept_path: str = "") -> list[RowCounts]:
    """Returns the counts of each file.

    Args:
      paths: of the files.
      record_format: of all of them.
      kept_path: file of the counts of an earlier call, which is brought up to date; unset: none is kept.

    Raises:
      ConfigError: for a file that cannot be read, or is damaged.
    """
    versions = {path: _version(path) for path in paths}
    found = _kept(kept_path, versions)
    if found.keys() == versions.keys():
        return [found[path] for path in paths]
    if READERS[record_format].rows_per_record == 1:
        found.update(_of_manifests({path: size for path, (size, _) in versions.items() if path not in found}))
    missing = [path for path in versions if path not in found]
    if missing:
        gigabytes = sum(versions[path][0] for path in missing) / 1e9
        logging.info("Counting the records of %s (%.1f GB), once.", counted(len(missing), "file"), gigabytes)
        num_bytes = record_files.bytes_of(paths, record_format)
        count_file = functools.partial(_count_file, record_format=record_format, num_bytes=num_bytes)
        with ThreadPoolExecutor(_READERS) as readers:
            found.update(zip(missing, readers.map(count_file, missing)))
    if kept_path:
        entries = {
            path: {"bytes": size, "changed": changed, "runs": found[path].runs}
            for path, (size, changed) in versions.items()
        }
        try:
            writing.replace_file(kept_path, json.dumps({"files": entries}) + "\n")
        except OSError as error:
            reason = error.strerror or error
            logging.warning("%s cannot be written (%s): the next process counts again.", kept_path, reason)
    return [found[path] for path in paths]


def _version(path: str) -> tuple[int, int]:
    with files.naming(path):
        return files.version(path)


def _kept(path: str, versions: dict[str, tuple[int, int]]) -> dict[str, RowCounts]:
    """Returns the counts that a file keeps of these versions; none where it is not there or damaged: then it
    is written anew."""
    try:
        kept = json_files.read_json(path)["files"] if path else {}
        return {
            name: RowCounts(own["runs"])
            for name, own in kept.items()
            if versions.get(name) == (own["bytes"], own["changed"])
        }
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return {}


def _of_manifests(sizes: dict[str, int]) -> dict[str, RowCounts]:
    """Returns the counts that manifests in the files' folders have, for records of one row; none of a file
    that has another size now."""
    folders = {os.path.dirname(path) for path in sizes}
    manifests = {folder: json_files.read_json_or_empty(os.path.join(folder, MANIFEST)) for folder in folders}
    found = {}
    for path, size in sizes.items():
        folder, name = os.path.split(path)
        told, told_size = (_entry(manifests[folder], key, name) for key in ("files", "file_bytes"))
        if told_size == size and type(told) is int and 0 <= told <= size:
            found[path] = RowCounts([(1, told)])
    return found


def _entry(manifest: dict, key: str, name: str):
    entries = manifest.get(key)
    return entries.get(name) if isinstance(entries, dict) else None


# ------------------------------------------------------------------------------------------------------------
# Counting


def _count_file(path: str, record_format: str, num_bytes: int | None) -> RowCounts:
    """Returns the counts of a file of a format; `num_bytes` of records without frames."""
    reader, is_framed = READERS[record_format], record_files.has_frames(record_format)
    if reader.rows_per_record == 1 and is_framed:
        return RowCounts([(1, count_records(path))])
    if not is_framed:
        if num_bytes is None:
            raise ConfigError(f"{path}: no record of the first files is a right {record_format} one.")
        records = record_files.count_unframed(path, num_bytes)
        if reader.rows_per_record == 1:
            return RowCounts([(1, records)])
    data = tf.data.TFRecordDataset(path) if is_framed else tf.data.FixedLengthRecordDataset(path, num_bytes)
    try:
        batches = data.batch(_PARSED_RECORDS).map(reader.count_rows).as_numpy_iterator()
        rows = itertools.chain.from_iterable(batch.tolist() for batch in batches)
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
            place += FRAME_BYTES + _LENGTH.unpack_from(chunk, place - start)[0]
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
    left = np.arange(len(tail) - FRAME_BYTES, -1, -1)  # bytes of a record that begins at a place
    lengths = ragged.windows(tail, np.arange(len(left)), _LENGTH.size).view("<u8")[:, 0]
    for place in np.flatnonzero(lengths == left.astype(np.uint64)).tolist():
        head = tail[place : place + _HEAD_BYTES]
        if _masked_crc32c(head[: _LENGTH.size]) == int.from_bytes(head[_LENGTH.size :], "little"):
            return True
    return not tail


def _masked_crc32c(data: bytes) -> int:
    """Returns the checksum that TFRecord files keep of a few bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
