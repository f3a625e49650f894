"""Records as they lie in a file, by the compiled library of data jobs; the bytes are those of the other
modules here in the frames of TensorFlow's writer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from official.data.pretraining.examples import Examples
from official.data.records.encoding import plain, wire

_FRAME_BYTES = 16


def framed(library: ctypes.CDLL, records: Sequence[bytes]) -> memoryview:
    """Returns records in their frames."""
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    out = np.empty(int(sizes.sum()) + _FRAME_BYTES * len(records), np.uint8)
    written = library.put_frames(out.ctypes.data, len(records), b"".join(records), sizes.ctypes.data)
    return out[:written].data


def plain_records(library: ctypes.CDLL, examples: Examples) -> memoryview:
    """Returns the framed records of examples in the plain format. Raises ValueError for a value out of range,
    as `plain.encode` does."""
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
    places = [array.ctypes.data for array in arrays]
    written = library.put_plain_records(out.ctypes.data, count, length, most, ids.itemsize, *places)
    if written < 0:
        plain.encode(examples)  # says which value it is
        raise ValueError("examples have counts that are out of range")
    return out[:written].data


def _narrow(values: np.ndarray) -> np.ndarray:
    """Returns whole numbers as uint16 or int32; those that do not fit as one that no record holds."""
    if values.dtype == np.uint16:
        return np.ascontiguousarray(values)
    return np.ascontiguousarray(np.clip(values, -1, wire.LIMIT), np.int32)
