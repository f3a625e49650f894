"""Shards of records as jobs write them: the folder, and TFRecord files of examples."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from official.data import compiled
from official.data.pretraining.examples import Examples
from official.data.records import encoding
from official.io import files, jobs
from official.io.files import store_of

SHARDS = "part-*-of-*.tfrecord"
FRAME_BYTES = 16  # overhead of a record in a TFRecord file: its length, and two checksums

# -----------------------------------------------------------------------------------------------------------
# Folder


def remove_earlier(folder: str) -> None:
    """Removes the files and samples of an earlier finished job, with its manifest last, and the partial files
    of an interrupted job."""
    manifest = os.path.join(folder, jobs.MANIFEST)
    if store_of(folder).exists(manifest):
        for path in [*jobs.files_in(folder, SHARDS), *jobs.files_in(folder, jobs.SAMPLES), manifest]:
            store_of(folder).remove(path)
    for path in jobs.files_in(folder, f"*{files.TEMPORARY}*"):
        store_of(folder).remove(path)


# -----------------------------------------------------------------------------------------------------------
# Files of examples


@contextlib.contextmanager
def writing(path: str, record_format: str, pad_position_value: int | None = None) -> Iterator[Callable]:
    """Yields a function that writes a batch of examples to a new local file, which is complete after the
    block.

    Args:
      path: path of the file.
      record_format, pad_position_value: as of `encoding.encode`; a batch is encoded at once.

    Raises:
      OSError: if the file cannot be written.
      ConfigError, ValueError: as `encoding.encode` does.
    """
    library = compiled.library()
    if library and record_format == "plain":
        with open(path, "wb", buffering=0) as file:
            yield lambda examples: _write_all(file, plain_records(library, examples))
        return
    with writing_records(path) as write:
        yield lambda examples: write(encoding.encode(examples, record_format, pad_position_value))


@contextlib.contextmanager
def writing_records(path: str) -> Iterator[Callable[[Sequence[bytes]], None]]:
    """Yields a function that writes records to a new local file, which is complete after the block. Raises
    OSError if the file cannot be written."""
    if library := compiled.library():
        with open(path, "wb", buffering=0) as file:
            yield lambda records: _write_all(file, framed(library, records))
        return
    import tensorflow as tf  # late: not all jobs need it

    try:
        with tf.io.TFRecordWriter(path) as writer:

            def write(records: Sequence[bytes]) -> None:
                for record in records:
                    writer.write(record)

            yield write
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, str(error), path) from None


def _write_all(file: io.FileIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


def framed(library: ctypes.CDLL, records: Sequence[bytes]) -> memoryview:
    """Returns framed records, made by the compiled library."""
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    out = np.empty(int(sizes.sum()) + FRAME_BYTES * len(records), np.uint8)
    written = library.put_frames(out.ctypes.data, len(records), b"".join(records), sizes.ctypes.data)
    return out[:written].data


def plain_records(library: ctypes.CDLL, examples: Examples) -> memoryview:
    """Returns the framed records of examples in the plain format, made by the compiled library. Raises
    ValueError for a value out of range, as `encoding.encode` does."""
    (count, length), most = examples.input_ids.shape, examples.positions.shape[1]
    ids = _narrow(examples.input_ids)
    arrays = [
        ids,
        np.ascontiguousarray(examples.lengths, np.int64),
        np.ascontiguousarray(examples.first_lengths, np.int64),
        np.ascontiguousarray(_narrow(examples.positions), np.int32),
        np.ascontiguousarray(_narrow(examples.labels), np.int32),
        np.ascontiguousarray(examples.predictions, np.int64),
        np.ascontiguousarray(examples.is_random, np.uint8),
    ]
    out = np.empty(count * library.plain_bytes(length, most), np.uint8)
    addresses = [array.ctypes.data for array in arrays]
    written = library.put_plain_records(out.ctypes.data, count, length, most, ids.itemsize, *addresses)
    if written < 0:
        encoding.encode(examples, "plain")  # its error names the value
        raise ValueError("examples have counts that are out of range")
    return out[:written].data


def _narrow(values: np.ndarray) -> np.ndarray:
    """Returns whole numbers as uint16 or int32; numbers that do not fit become an invalid one."""
    if values.dtype == np.uint16:
        return np.ascontiguousarray(values)
    return np.ascontiguousarray(np.clip(values, -1, encoding.LIMIT), np.int32)
