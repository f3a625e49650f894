"""Records as they lie in a file, by a small library in C++ that is compiled when it is first used: a third of
the time of making plain records goes without.

The bytes are those of the other modules here and of TensorFlow's writer. Where there is no compiler, these
write them.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence

import numpy as np
from absl import logging

from official.data.pretraining.examples import Examples
from official.io import native_library

_SOURCE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "native", "records.cc")
_FLAGS = ("-std=c++17", "-O3", "-march=native")
_LONGEST_SECS = 60  # that compiling may take: one is usual
_FRAME_BYTES = 16


@functools.lru_cache
def library() -> ctypes.CDLL | None:
    """Returns the library, or None, after a line in the log that says why there is none."""
    recipe = native_library.Recipe("records", {_SOURCE: _FLAGS}, (), (), "")
    try:
        found = ctypes.CDLL(native_library.built(recipe, _LONGEST_SECS))
    except (native_library.NotBuilt, OSError) as error:
        logging.info("Records are written without a compiled library: %s.", error)
        return None
    number, data = ctypes.c_int64, ctypes.c_void_p
    found.plain_bytes.argtypes = (number, number)
    found.put_frames.argtypes = (data, number, data, data)
    found.put_plain_records.argtypes = (data, *(number,) * 4, *(data,) * 7)
    for function in (found.plain_bytes, found.put_frames, found.put_plain_records):
        function.restype = number
    return found


def framed(compiled: ctypes.CDLL, records: Sequence[bytes]) -> memoryview:
    """Returns records in their frames."""
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    out = np.empty(int(sizes.sum()) + _FRAME_BYTES * len(records), np.uint8)
    written = compiled.put_frames(out.ctypes.data, len(records), b"".join(records), sizes.ctypes.data)
    return out[:written].data


def plain_records(compiled: ctypes.CDLL, examples: Examples) -> memoryview:
    """Returns the framed records of examples in the plain format. Raises ValueError for a value out of
    range."""
    (count, length), most = examples.input_ids.shape, examples.positions.shape[1]
    ids = examples.input_ids
    ids = np.ascontiguousarray(ids, np.uint16 if ids.dtype == np.uint16 else np.int32)
    arrays = [
        ids,
        np.ascontiguousarray(examples.lengths, np.int64),
        np.ascontiguousarray(examples.first_lengths, np.int64),
        np.ascontiguousarray(examples.positions, np.int32),
        np.ascontiguousarray(examples.labels, np.int32),
        np.ascontiguousarray(examples.predictions, np.int64),
        np.ascontiguousarray(examples.is_random, np.uint8),
    ]
    out = np.empty(count * compiled.plain_bytes(length, most), np.uint8)
    places = [array.ctypes.data for array in arrays]
    written = compiled.put_plain_records(out.ctypes.data, count, length, most, ids.itemsize, *places)
    if written < 0:
        raise ValueError("examples have values that are out of range")
    return out[:written].data
