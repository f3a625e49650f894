"""Number and duration of XLA's compilations in this process.

TensorFlow counts them but has no function that returns the counts. They are read from the memory of its
metrics registry, if TensorFlow's headers have the layout assumed here. Source: tsl/lib/monitoring,
collection_registry.h and collected_metrics.h, which are the same in both stacks; std::string, std::vector and
std::map as the C++ library of GCC has them on 64 bits.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import sys
from typing import NamedTuple

import tensorflow as tf

_COUNT, _USECS = b"/tensorflow/core/xla_compilations", b"/tensorflow/core/xla_compilation_time_usecs"
_REGISTRY = "_ZN3tsl10monitoring18CollectionRegistry7DefaultEv"
_COLLECT = "_ZNK3tsl10monitoring18CollectionRegistry14CollectMetricsERKNS1_21CollectMetricsOptionsE"
_HEADER = "tsl/lib/monitoring/collected_metrics.h"
_LAYOUT = re.compile(
    r"struct Point {.*?vector<Label> labels; ValueType value_type; int64\w* int64_value;.*"
    r"struct PointSet { \S*string metric_name; std::vector<std::unique_ptr<Point>> points; };.*"
    r"struct CollectedMetrics { \S*map<.*?> metric_descriptor_map; \S*map<.*?> point_set_map; };"
)
# The mangled name implies GCC's C++ library.
_OF_GCC = (
    "_ZN3tsl10monitoring18CollectionRegistry8RegisterEPKNS0_17AbstractMetricDef"
    "ERKSt8functionIFvNS0_21MetricCollectorGetterEEE"
)


class Compilations(NamedTuple):
    """Number of functions that XLA has compiled, counted per argument shape, and its duration in seconds."""

    functions: int
    secs: float

    def since(self, before: Compilations) -> Compilations:
        return Compilations(self.functions - before.functions, self.secs - before.secs)


def compilations() -> Compilations | None:
    """Returns the compilations of the process so far; None if this TensorFlow has another layout."""
    if sys.platform != "linux" or sys.maxsize < 2**32 or not _lies_as_here():
        return None
    try:
        library = ctypes.CDLL(os.path.join(tf.sysconfig.get_lib(), "libtensorflow_framework.so.2"))
        registry, collect, _ = (getattr(library, name) for name in (_REGISTRY, _COLLECT, _OF_GCC))
    except (OSError, AttributeError):
        return None
    registry.restype = ctypes.c_void_p
    collect.argtypes, collect.restype = [ctypes.c_void_p] * 3, None
    collected, descriptors = ctypes.c_void_p(), ctypes.c_bool(False)
    # An object is returned through a first argument. Its memory, about 100 KB, is never freed.
    collect(ctypes.addressof(collected), registry(), ctypes.addressof(descriptors))
    if not collected.value:
        return None
    return Compilations(_total(collected.value, _COUNT), _total(collected.value, _USECS) / 1e6)


@functools.lru_cache
def _lies_as_here() -> bool:
    """Returns whether TensorFlow's header has the structures that `_total` reads."""
    for folder in ("", "xla"):
        with contextlib.suppress(OSError):
            path = os.path.join(tf.sysconfig.get_include(), folder, _HEADER)
            with open(path, encoding="utf-8") as file:
                text = re.sub(r"//.*", "", file.read())
            if _LAYOUT.search(" ".join(text.split())):
                return True
    return False


def _total(collected: int, name: bytes) -> int:
    """Returns the sum of the points of a counter metric in the CollectedMetrics at an address: two maps, the
    second of which is {name: pointer to a PointSet}."""
    node = _word(collected + 48 + 16)  # the root; a map holds a comparator, a header node, and a size
    while node:  # colour, parent, left, right; key: address, length and 16 more bytes; value
        key = ctypes.string_at(_word(node + 32), _word(node + 40))
        if key == name:
            points = _word(node + 64) + 32  # after the name: begin and end of a vector of pointers
            of_value = 32  # after a vector of labels and the type
            return sum(
                ctypes.c_int64.from_address(_word(place) + of_value).value
                for place in range(_word(points), _word(points + 8), 8)
            )
        node = _word(node + (16 if name < key else 24))
    return 0


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value
