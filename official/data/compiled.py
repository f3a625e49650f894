"""A small C++ library for the inner loops of data jobs, over words and records. It is compiled on first use,
in two seconds, and does not need TensorFlow.

Every caller has a Python path with the same result: the library only saves time.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os

from absl import logging

from official.io import native_library

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")
_FLAGS = ("-std=c++17", "-O3", "-march=native")
_MAX_SECS = 60  # time limit of the compiler
_NUMBER, _DATA = ctypes.c_int64, ctypes.c_void_p
# The functions of native/*.cc; each returns a 64-bit integer.
_FUNCTIONS = {
    "plain_bytes": [_NUMBER] * 2,
    "put_frames": [_DATA, _NUMBER, _DATA, _DATA],
    "put_plain_records": [_DATA, *[_NUMBER] * 4, *[_DATA] * 7],
    "add_words": [_DATA, *[_NUMBER] * 3, *[_DATA] * 6],
    "find_ids": [_DATA, *[_NUMBER] * 2, *[_DATA] * 2, _NUMBER, *[_DATA] * 6],
    "put_ids": [_DATA, *[_NUMBER] * 4, *[_DATA] * 5],
}


@functools.lru_cache
def library() -> ctypes.CDLL | None:
    """Returns the library; None if it cannot be compiled, with the reason in the log."""
    sources = dict.fromkeys(sorted(glob.glob(os.path.join(glob.escape(_FOLDER), "*.cc"))), _FLAGS)
    recipe = native_library.Recipe("data", sources, (), (), "")
    try:
        if not sources:
            raise native_library.NotBuilt(f"{_FOLDER} has no sources")
        found = ctypes.CDLL(native_library.built(recipe, _MAX_SECS))
    except (native_library.NotBuilt, OSError) as error:
        logging.info("Words are looked up and records written without a compiled library: %s.", error)
        return None
    for name, arguments in _FUNCTIONS.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, _NUMBER
    return found
