"""Files of records: detects their format, reads and counts records, and finds invalid ones.

Records are framed as TFRecords, or, in PopART's files, concatenated without frames, all of one size. The
latter files have no header: the chosen format and size are those with which most records of a sample are
valid. Rows of few sequences may be valid in several shapes, rows of many sequences in one only.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.python.lib.io._pywrap_record_io import RecordIterator  # 20 times as fast as a dataset

from official.data.records import record_formats
from official.data.records.formats.row_reader import Shape
from official.data.records.record_formats import READERS
from official.data.records.schema import Feature, read_example
from official.data.records.shard_files import FRAME_BYTES
from official.data.rows import ragged
from official.io import files as io_files
from official.io import json_files, writing
from official.io.errors import ConfigError, counted, shortened
from official.io.jobs import MANIFEST
from official.io.record_paths import find_files as find_files

_CHECKED_ROWS = 1024  # approximate number of rows that are read at once
_FILES_CHECKED_FIRST = 16
_MAX_UNFRAMED = 1 << 17  # maximum size of a record without a frame, in bytes: rows of 8,192 tokens

# -----------------------------------------------------------------------------------------------------------
# Formats and sizes


class Wanted(NamedTuple):
    """Sizes of records in the flags: max_seq_length, max_predictions_per_seq, and max_sequences_per_pack, if
    given."""

    length: int
    most: int
    depth: int | None


def detect_format(files: list[str]) -> str:
    """Returns the format of the first record; "plain" for an unknown one, since its reader raises the
    error."""
    for path in files:
        try:
            with _readable(path) as local:
                record = next(RecordIterator(local, ""))
        except StopIteration:
            continue
        except tf.errors.OpError:
            found = next(filter(None, map(_find_unframed, files[:_FILES_CHECKED_FIRST])), None)
            return getattr(found, "record_format", "plain")
        return record_formats.detect_format(record) or "plain"
    return "plain"


def row_sizes(files: list[str], wanted: Wanted | None = None) -> tuple[int, int] | None:
    """Returns the number of slots of packed rows for predicted tokens and for sequences, from the first
    record, or, for files without this information, from the flags and several records; None if the rows are
    not packed."""
    record_format = detect_format(files)
    if record_format not in record_formats.AS_ROWS:
        return None
    if unframed := _unframed_of(files, record_format, wanted):
        return unframed.shape.slots, unframed.shape.depth
    records = itertools.chain.from_iterable(read_batches(path, record_format, 1) for path in files)
    return READERS[record_format].row_sizes(next(records)[0])


def sizes_of(path: str, record_format: str, record: bytes) -> tuple[int, int]:
    """Returns max_seq_length and max_predictions_per_seq of a file from its first record; 0 for unknown
    ones."""
    reader, unframed = READERS[record_format], _unframed_of([path], record_format)
    return reader.layout.sizes(unframed.shape) if unframed else reader.sizes_of(record)


def store_masks(files: list[str]) -> bool:
    """Tells whether records store masks, by the first one; true if unknown."""
    with contextlib.suppress(ConfigError):  # `check_first_record` names the file
        record_format = detect_format(files)
        for batch in itertools.chain.from_iterable(read_batches(path, record_format, 1) for path in files):
            length, predictions = sizes_of(files[0], record_format, batch[0])
            return predictions > 0 or not length
    return True


# -----------------------------------------------------------------------------------------------------------
# Files without frames


def _popart() -> Any:
    return importlib.import_module(record_formats.POPART)


class _Unframed(NamedTuple):
    """Records of a file without frames: their format and size."""

    record_format: str
    num_bytes: int  # size of a record
    shape: Shape

    def fits(self, wanted: Wanted) -> bool:
        sizes = self.num_bytes, wanted.length, wanted.most
        is_shape = _popart().shape_of_sizes(self.record_format, *sizes) == self.shape
        return is_shape and wanted.depth in (None, self.shape.depth)


def has_frames(record_format: str) -> bool:
    """Tells whether records of a format have the frames of TFRecord files."""
    return not record_format.startswith("popart_")


def bytes_of(paths: list[str], record_format: str) -> int | None:
    """Returns the size of a record in bytes for files without frames; None for other files, and if no layout
    fits the first ones. Raises ConfigError if a file cannot be read."""
    return getattr(_unframed_of(paths, record_format), "num_bytes", None)


def opener(paths: list[str], record_format: str) -> Callable[[tf.Tensor | str | list[str]], tf.data.Dataset]:
    """Returns a function from some of these files, all of one format, to a dataset of their records,
    string."""
    if has_frames(record_format):
        return tf.data.TFRecordDataset
    # If the size is unknown, reading fails, and the reason is searched for then.
    num_bytes = bytes_of(paths, record_format) or _MAX_UNFRAMED
    return lambda some: tf.data.FixedLengthRecordDataset(some, num_bytes)


def count_unframed(path: str, num_bytes: int) -> int:
    """Returns the number of records of a file without frames. Raises ConfigError if it is truncated inside a
    record."""
    size = io_files.sizes([path])[0]
    if size % num_bytes:
        why = f"its {size:,} bytes are not a multiple of the {num_bytes:,} of a record"
        raise ConfigError(f"{path} is truncated or damaged after record {size // num_bytes}: {why}.")
    return size // num_bytes


def _unframed_of(paths: list[str], record_format: str, wanted: Wanted | None = None) -> _Unframed | None:
    """Returns the layout of files of a format, from the first of them that has one; None for a format with
    frames."""
    if has_frames(record_format):
        return None
    found = (_find_unframed(path, wanted) for path in paths[:_FILES_CHECKED_FIRST])
    return next(filter(None, found), None)


def _find_unframed(path: str, wanted: Wanted | None = None) -> _Unframed | None:
    """Returns the layout of a file: the one in the flags, if it fits; else the one that fits most records of
    a sample. None for a file with frames, an empty one, and if no layout fits its first or last record.
    Raises ConfigError if the file cannot be read."""
    with io_files.naming(path):
        found = _layouts(path, io_files.version(path))
    return next((each for each in found if wanted and each.fits(wanted)), next(iter(found), None))


@functools.lru_cache(maxsize=4096)
def _layouts(path: str, version: tuple[int, int]) -> list[_Unframed]:
    """Returns the layouts that fit a file, the one that fits most records first."""
    size, popart = version[0], _popart()
    sizes = np.arange(64, min(_MAX_UNFRAMED, size) + 1, 4)
    found: list[tuple[int, _Unframed]] = []
    with io_files.open_binary(path) as file:

        def read(start: int, count: int) -> bytes:
            file.seek(start)
            return file.read(count)

        first, last = read(0, _MAX_UNFRAMED), read(max(size - _MAX_UNFRAMED, 0), _MAX_UNFRAMED)
        for num_bytes in sizes[size % sizes == 0].tolist() if size else ():
            ends, records = (first[:num_bytes], last[-num_bytes:]), size // num_bytes
            for name in popart.EXAMPLES:
                if any(next(popart.shapes(record, name), None) is not None for record in ends):
                    numbers = np.linspace(0, records - 1, min(records, 16)).astype(int).tolist()
                    sample = [read(number * num_bytes, num_bytes) for number in numbers]
                    shapes = popart.shapes_by_fit(sample, name)
                    found += [(count, _Unframed(name, num_bytes, shape)) for count, shape in shapes]
    return [each for _, each in sorted(found, key=lambda pair: -pair[0])]


# -----------------------------------------------------------------------------------------------------------
# Every record


def read_batches(
    path: str, record_format: str, limit: int | None = None, num_bytes: int | None = None
) -> Iterator[list[bytes]]:
    """Yields the records of a file, or the first `limit` ones, in batches of about a thousand rows.

    Args:
      path: path of the file.
      record_format: format of its records.
      limit: maximum number of records; None: all.
      num_bytes: size of a record in a format without frames, as of `bytes_of`; None: detected.

    Raises:
      ConfigError: if the file cannot be read, or is truncated or damaged; then the records before that
        position have been yielded.
    """
    at_once = READERS[record_format].records_of(_CHECKED_ROWS)
    if has_frames(record_format):
        yield from _read_framed(path, limit, at_once)
        return
    num_bytes = num_bytes or bytes_of([path], record_format)
    if num_bytes is None:
        problem = f"neither it nor the last one is a valid {record_format} record of any size"
        raise ConfigError(f"{path}, record 1: {problem}.")
    left = io_files.sizes([path])[0] // num_bytes if limit is None else limit
    with io_files.naming(path), io_files.open_binary(path) as file:
        while whole := len(block := file.read(min(at_once, left) * num_bytes)) // num_bytes:
            yield [block[start : start + num_bytes] for start in range(0, whole * num_bytes, num_bytes)]
            left -= whole
    count_unframed(path, num_bytes)


def read_rows(path: str, record_format: str) -> Iterator[bytes]:
    """Yields a record for each row of a file; records of several rows are split. Raises ConfigError as
    `read_batches` does."""
    for number, record in enumerate(itertools.chain.from_iterable(read_batches(path, record_format)), 1):
        try:
            yield from READERS[record_format].split(record)
        except ValueError as error:
            raise ConfigError(f"{path}, record {number}: {error}.") from None


@contextlib.contextmanager
def _readable(path: str) -> Iterator[str]:
    """Yields a path that TensorFlow can read; a file in a store without TensorFlow support is copied for the
    block. Raises ConfigError."""
    if io_files.tensorflow_reads(path):
        yield path
        return
    with writing.new_folder() as folder:
        local = os.path.join(folder, "copy")
        with io_files.naming(path), io_files.open_binary(path) as file, open(local, "wb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
        yield local


def _read_framed(path: str, limit: int | None, at_once: int) -> Iterator[list[bytes]]:
    number, size = 0, 0
    try:
        with _readable(path) as local:
            records = itertools.islice(RecordIterator(local, ""), limit)
            while number != limit:
                batch: list[bytes] = []
                try:
                    batch.extend(itertools.islice(records, at_once))  # keeps those before damage
                    ends = len(batch) < at_once
                except tf.errors.DataLossError:
                    ends = True
                number, size = number + len(batch), size + sum(map(len, batch)) + FRAME_BYTES * len(batch)
                if batch:
                    yield batch
                if ends:
                    break
    except tf.errors.OpError as error:
        raise ConfigError(f"{path}: {error.message}.") from None
    # TensorFlow treats a last record that is truncated within its length field as the end of the file.
    if number != limit and [size] != io_files.sizes([path]):
        raise _cut_off(path, number)


def _cut_off(path: str, whole: int) -> ConfigError:
    why = f"record {whole + 1} cannot be read"
    return ConfigError(f"{path} is truncated or damaged after record {whole}: {why}.")


# -----------------------------------------------------------------------------------------------------------
# Counts of records and rows, cached in a file of the run
#
# Records are counted by following the length fields through the file; only records of formats with a variable
# number of rows are parsed. Files of `create_pretraining_data.py` are not read at all: its manifest has the
# number of examples in each.


_CHUNK_BYTES = 1 << 24
_LENGTH = struct.Struct("<Q")
_HEAD_BYTES = 12  # size of a record's head: its length, and a checksum of that
_TAIL_BYTES = 1 << 16  # bytes at the end of a file, in which the last record usually begins


class RowCounts:
    """The numbers of rows in the records of a file, run-length encoded: (rows of a record, number of
    records)."""

    def __init__(self, runs: Iterable[Sequence[int]]):
        self.runs = [(int(rows), int(count)) for rows, count in runs]
        self._records = np.cumsum([0, *(count for _, count in self.runs)])
        self._rows = np.cumsum([0, *(rows * count for rows, count in self.runs)])
        self.records, self.rows = int(self._records[-1]), int(self._rows[-1])

    def rows_before(self, record: int) -> int:
        """Returns the number of rows in the first `record` records."""
        return round(float(np.interp(record, self._records, self._rows)))


def count(paths: list[str], record_format: str, kept_path: str = "") -> list[RowCounts]:
    """Returns the counts of each file.

    Args:
      paths: paths of the files.
      record_format: format of all of them.
      kept_path: file that caches the counts, updated by this call; '': no cache.

    Raises:
      ConfigError: for a file that cannot be read, or is damaged.
    """
    versions = dict(zip(paths, io_files.versions(paths)))
    found = _kept(kept_path, versions)
    if found.keys() == versions.keys():
        return [found[path] for path in paths]
    if READERS[record_format].rows_per_record == 1:
        # Counts from the manifests next to the files, unless the size of a file has changed.
        manifest_of = functools.lru_cache(None)(json_files.read_json_or_empty)
        for path in [path for path in versions if path not in found]:
            folder, name = os.path.split(path)
            entries_of = map(manifest_of(os.path.join(folder, MANIFEST)).get, ("files", "file_bytes"))
            number, size = (own.get(name) if isinstance(own, dict) else None for own in entries_of)
            if size == versions[path][0] and type(number) is int and 0 <= number <= size:
                found[path] = RowCounts([(1, number)])
    if missing := [path for path in versions if path not in found]:
        gigabytes = sum(versions[path][0] for path in missing) / 1e9
        logging.info("Counting the records of %s (%.1f GB), once.", counted(len(missing), "file"), gigabytes)
        num_bytes = bytes_of(paths, record_format)
        count_file = functools.partial(_count_file, record_format=record_format, num_bytes=num_bytes)
        with ThreadPoolExecutor(4) as readers:
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


def _kept(path: str, versions: dict[str, tuple[int, int]]) -> dict[str, RowCounts]:
    """Returns the cached counts of files whose version is unchanged; none if the cache is missing or damaged,
    which is then rewritten."""
    try:
        kept = json_files.read_json(path)["files"] if path else {}
        same = [name for name, own in kept.items() if versions.get(name) == (own["bytes"], own["changed"])]
        return {name: RowCounts(kept[name]["runs"]) for name in same}
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return {}


def _count_file(path: str, record_format: str, num_bytes: int | None) -> RowCounts:
    """Returns the counts of a file; `num_bytes` is the size of records without frames."""
    reader, is_framed = READERS[record_format], has_frames(record_format)
    if not is_framed and num_bytes is None:
        raise ConfigError(f"{path}: no record of the first files is a valid {record_format} record.")
    if reader.rows_per_record == 1 or not is_framed:
        records = count_records(path) if is_framed else count_unframed(path, num_bytes or 0)
        if reader.rows_per_record == 1:
            return RowCounts([(1, records)])
    data = tf.data.TFRecordDataset(path) if is_framed else tf.data.FixedLengthRecordDataset(path, num_bytes)
    try:
        batches = data.batch(64).map(reader.count_rows).as_numpy_iterator()
        rows = itertools.chain.from_iterable(batch.tolist() for batch in batches)
        return RowCounts([(number, len(list(run))) for number, run in itertools.groupby(rows)])
    except UnicodeDecodeError:  # the message quotes the record
        raise ConfigError(f"{path} holds a record that is not a {record_format} one.") from None
    except tf.errors.OpError as error:
        raise ConfigError(f"{path}: {error.message.splitlines()[0]}.") from None


def count_records(path: str) -> int:
    """Returns the number of records of a TFRecord file. Raises ConfigError if it is truncated inside a record
    or cannot be read."""
    number, place, start, chunk = 0, 0, 0, b""
    with io_files.naming(path), io_files.open_binary(path) as file:
        size = io_files.version(path)[0]
        while place + _HEAD_BYTES <= size:
            if place + _HEAD_BYTES > start + len(chunk):
                file.seek(place)
                start, chunk = place, file.read(_CHUNK_BYTES)
            place += FRAME_BYTES + _LENGTH.unpack_from(chunk, place - start)[0]
            number += 1
    if place != size:
        raise _cut_off(path, number - (place > size))
    return number


def check_ends(paths: list[str]) -> None:
    """Checks that TFRecord files end with a whole record. TensorFlow treats a record that is truncated within
    its length field as the end of the file, and silently drops it.

    A file is read backwards to its last record, or, if that is longer than 64 KiB, forwards along the length
    fields. Raises ConfigError for a file that is truncated, or cannot be read.
    """
    with ThreadPoolExecutor(16) as readers:
        for path, is_whole in zip(paths, readers.map(_ends_with_record, paths, io_files.sizes(paths))):
            if not is_whole:
                count_records(path)


def _ends_with_record(path: str, size: int) -> bool:
    """Tells whether some record in the last bytes of a file ends exactly at its end."""
    start = max(size - _TAIL_BYTES, 0)
    with io_files.naming(path), io_files.reading_parts(path) as read:
        tail = read(start, size - start)
    left = np.arange(len(tail) - FRAME_BYTES, -1, -1)  # size of a record from each position to the end
    lengths = ragged.windows(tail, np.arange(len(left)), _LENGTH.size).view("<u8")[:, 0]
    for place in np.flatnonzero(lengths == left.astype(np.uint64)).tolist():
        head = tail[place : place + _HEAD_BYTES]
        if _masked_crc32c(head[: _LENGTH.size]) == int.from_bytes(head[_LENGTH.size :], "little"):
            return True
    return not tail


def _masked_crc32c(data: bytes) -> int:
    """Returns the masked CRC-32C of TFRecord files for a few bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# -----------------------------------------------------------------------------------------------------------
# Bad records


def check_first_record(files: list[str], schema: dict[str, Feature], flag: str) -> None:
    """Compares the first record of the first files with the schema, before anything is compiled. Raises
    ConfigError for a mismatch. Warns of features of a plain record that are missing in the schema."""
    if problem := next(_problems(files, schema, files[:_FILES_CHECKED_FIRST], 1), None):
        raise ConfigError(f"--{flag}: {problem}.")
    if detect_format(files) == "plain":
        record = next(read_batches(files[0], "plain", 1))[0]
        others = (read_example(record) or {}).keys() - schema.keys()
        if others:
            _warn_of_features(files[0], shortened(sorted(others)))


@functools.lru_cache(maxsize=None)  # noqa: UP033  # functools.cache is not in Python 3.8
def _warn_of_features(path: str, names: str) -> None:
    """Warns once of features in the records of a file that nothing reads."""
    warning = "%s: records have features that are ignored: %s. Check that the others do not depend on them."
    logging.warning(warning, path, names)


def find_bad_record(files: list[str], schema: dict[str, Feature]) -> str | None:
    """Finds the first invalid record; returns a line with the file, the record and its fault, or None."""
    logging.warning("Searching for the invalid record in %s.", counted(len(files), "file"))
    return next(_problems(files, schema, files), None)


def _problems(files: list[str], schema: dict[str, Feature], chosen: list[str], limit=None) -> Iterator[str]:
    """Yields the fault of each faulty file of `chosen`, judged by their first records."""
    record_format = detect_format(files)
    num_bytes = bytes_of(files, record_format)
    flags = "by --max_seq_length, --max_predictions_per_seq and the model's vocab_size"
    for path in chosen:
        number = 0
        try:
            batches = read_batches(path, record_format, limit, num_bytes)
            for number, record in enumerate(itertools.chain.from_iterable(batches), 1):
                if mismatch := record_formats.describe_mismatch(record, schema, record_format):
                    yield f"{path}, record {number}: {mismatch} ({flags})"
                    break
            if not number:
                yield f"{path} has no records"
        except ConfigError as error:
            problem = str(error).rstrip(".")
            if not number and record_format == "plain" and "input_ids" in schema:
                sizes = schema["input_ids"].length, schema["masked_lm_ids"].length
                problem += f"; {_describe_unframed(path, *sizes)}"
            yield problem


def _describe_unframed(path: str, length: int, most: int) -> str:
    """Describes, for a message, the sizes of files of records without frames, with `length` tokens and `most`
    predicted tokens per example; or tells that the file is compressed."""
    with io_files.naming(path), io_files.open_binary(path) as file:
        if file.read(2) == b"\x1f\x8b":
            return "it is compressed with gzip, and records are read uncompressed: gunzip it"
    popart = _popart()
    names = {name: 3 if name in popart.ROWS else 1 for name in popart.EXAMPLES}
    sizes = ((popart.record_bytes(name, length, most, depth), name) for name, depth in names.items())
    allowed = ", ".join("{:,} ({})".format(*each) for each in sizes)
    return (
        f"it has {io_files.sizes([path])[0]:,} bytes. Allowed: TFRecord files, and PopART's binaries, whose"
        f" records of {length} tokens, {most} predicted ones and, if packed, 3 sequences have"
        f" {allowed} bytes"
    )
