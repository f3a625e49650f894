"""The file of a machine: what its processor reaches, as `bert benchmark machine` measured it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from official.io import json_files, user_cache
from official.io.errors import ConfigError
from official.io.processor import Processor, processor
from official.planning.kernels import ELEMENTWISE, Product, Work

FORMAT = 1  # of the file
_SMALL_FLOPS = 1e7  # heads are float32 in any run: products of so few count as those of any type
HOW = "bert benchmark machine"


class Rate(NamedTuple):
    """A kernel as it was measured alone.

    Attributes:
      work: that was measured.
      secs: of one run.
      cores: that it kept busy: seconds of the processor over seconds.
    """

    work: Work
    secs: float
    cores: float


class Machine(NamedTuple):
    """What a machine reaches.

    Attributes:
      processor: name, cores and instructions.
      device: CPU or GPU: what was measured.
      tensorflow: the version that was measured.
      rates: of products and kernels.
      operation_secs: what an operation costs beside its work.
      call_secs: what the call of a step costs beside its operations.
      all_reduce_gb_per_sec: of the gradients of a replica, 10^9 bytes; None where there was one device.
    """

    processor: Processor
    device: str
    tensorflow: str
    rates: tuple[Rate, ...]
    operation_secs: float
    call_secs: float
    all_reduce_gb_per_sec: float | None

    def alone(self, work: Work) -> tuple[float, float]:
        """Returns (seconds that work takes alone, cores that it keeps busy meanwhile).

        The rate is that of the measured ones like it, the nearer the more: weights are 1 / distance squared,
        of the logarithms of the sizes. Source: Shepard 1968, "A two-dimensional interpolation function for
        irregularly-spaced data".

        Raises:
          ConfigError: where products of the type were not measured.
        """
        if not work.kernel:
            return 0.0, 1.0
        near = self._like(work)
        weights = [1.0 / max(_distance(rate.work, work), 1e-6) ** 2 for rate in near]
        total = sum(weights)
        log_rate = sum(
            weight * math.log(_amount(rate.work) / rate.secs) for weight, rate in zip(weights, near)
        )
        cores = sum(weight * rate.cores for weight, rate in zip(weights, near)) / total
        secs = _amount(work) / math.exp(log_rate / total)
        return secs + self.operation_secs, min(max(cores, 1.0), float(self.processor.cores))

    def _like(self, work: Work) -> list[Rate]:
        """Returns the measured rates that tell of work: of its kernel and type, or the next best ones."""
        found = [rate for rate in self.rates if rate.work.kernel == work.kernel]
        typed = [rate for rate in found if rate.work.dtype == work.dtype]
        if work.product is not None:
            typed = typed or [
                rate for rate in self.rates if rate.work.product and rate.work.dtype == work.dtype
            ]
            if not typed and work.product.flops < _SMALL_FLOPS:
                typed = [rate for rate in self.rates if rate.work.product]
            if not typed:
                known = sorted({rate.work.dtype for rate in self.rates if rate.work.product})
                raise ConfigError(
                    f"the machine file has no matrix products of {work.dtype}, only of {', '.join(known)}."
                    f" Measure them: {HOW} --dtypes={work.dtype}."
                )
            same = [rate for rate in typed if _transposed(rate.work) == _transposed(work)]
            return same or typed
        other = [rate for rate in self.rates if rate.work.kernel == ELEMENTWISE]
        return typed or found or [rate for rate in other if rate.work.dtype == work.dtype] or other


def _transposed(work: Work) -> str:
    return work.product.transposed if work.product else ""


def _amount(work: Work) -> int:
    """Returns what a rate counts: FLOPs of products, bytes of all else; at least 1."""
    return max(work.product.flops if work.product else work.bytes, 1)


def _distance(one: Work, other: Work) -> float:
    """Returns how far two works of a kernel are apart: the logarithms of their sizes, as points."""
    if one.product and other.product:
        sizes = zip(one.product[:4], other.product[:4])
        return math.hypot(*(math.log2(max(a, 1) / max(b, 1)) for a, b in sizes))
    return abs(math.log2(_amount(one) / _amount(other)))


def default_path(here: Processor | None = None, tensorflow: str | None = None) -> str:
    """Returns where the file of a machine is kept, of this one unless told: in the user's cache."""
    here, tensorflow = here or processor(), tensorflow or tensorflow_version()
    told = json.dumps([here.name, here.cores, sorted(here.instructions), tensorflow])
    name = re.sub(r"[^a-z0-9]+", "-", here.name.lower()).strip("-")[:40]
    key = f"{name}-{here.cores}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    return os.path.join(user_cache.folder(), f"machine-{key}.json")


def tensorflow_version() -> str:
    """Returns the version of TensorFlow that is installed, which has several names."""
    for name in ("tensorflow", "tensorflow-cpu", "tensorflow-aarch64"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "unknown"


def find(path: str | None) -> Machine | None:
    """Returns the machine of a file, or of this machine's own one; None where that was not measured.

    Args:
      path: of --machine_file; None for that in the user's cache.

    Raises:
      ConfigError: where the file is missing, damaged, or none of a machine.
    """
    if path is None and not os.path.exists(default_path()):
        return None
    return read(path or default_path(), "machine_file" if path else "")


def read(path: str, flag: str) -> Machine:
    """Reads the file of a machine; `flag` gave its name. Raises ConfigError as `find` does."""
    return parse(json_files.read_json(path, flag), f"--{flag}={path}" if flag else path)


def parse(values: dict, source: str) -> Machine:
    """Returns the machine of a file's JSON; `source` begins the messages. Raises ConfigError."""
    form = json_files.expect(values, "machine_format", int, f"{source}: no file of a machine ({HOW})", 0)
    if form != FORMAT:
        raise ConfigError(
            f"{source}: machine_format is {form or 'missing'}, expected {FORMAT}. Measure it again: {HOW}."
        )
    told = _Told(values, source)
    here = _Told(told.take("processor", dict), f"{source}: processor")
    return Machine(
        Processor(
            here.take("name", str),
            int(here.positive("cores")),
            tuple(map(str, here.take("instructions", list))),
        ),
        told.take("device", str),
        told.take("tensorflow", str),
        tuple(_rates(told, source)),
        told.positive("operation_secs"),
        told.positive("call_secs"),
        told.positive_or_none("all_reduce_gb_per_sec"),
    )


class _Told:
    """An object of a JSON file, and the place in the file for messages."""

    def __init__(self, values: Any, source: str):
        self._values, self._source = values, source

    def take(self, key: str, kind: Any) -> Any:
        """Returns a value of a kind. Raises ConfigError."""
        return json_files.expect(self._values, key, kind, self._source)

    def positive_or_none(self, key: str) -> float | None:
        """Returns a number above 0, or None for null. Raises ConfigError."""
        return None if self.take(key, (float, type(None))) is None else self.positive(key)

    def positive(self, key: str) -> float:
        """Returns a number above 0. Raises ConfigError."""
        value = float(self.take(key, float))
        if value <= 0:
            raise ConfigError(f'{self._source}: "{key}" is {value:g}, expected more than 0.')
        return value


def _rates(told: _Told, source: str) -> Iterable[Rate]:
    for number, values in enumerate(told.take("products", list), 1):
        row = _Told(values, f"{source}: product {number}")
        sizes = [int(row.positive(name)) for name in Product._fields[:4]]
        product = Product(sizes[0], sizes[1], sizes[2], sizes[3], row.take("transposed", str))
        work = Work(row.take("kernel", str), row.take("dtype", str), 0, product)
        yield Rate(work, row.positive("secs"), row.positive("cores"))
    for number, values in enumerate(told.take("kernels", list), 1):
        row = _Told(values, f"{source}: kernel {number}")
        work = Work(row.take("kernel", str), row.take("dtype", str), int(row.positive("bytes")))
        yield Rate(work, row.positive("secs"), row.positive("cores"))


def to_json(machine: Machine) -> dict:
    """Returns a machine as the JSON of its file, with the rates for people beside the seconds."""
    return {
        "machine_format": FORMAT,
        "processor": {**machine.processor._asdict(), "instructions": list(machine.processor.instructions)},
        "device": machine.device,
        "tensorflow": machine.tensorflow,
        "operation_secs": machine.operation_secs,
        "call_secs": machine.call_secs,
        "all_reduce_gb_per_sec": machine.all_reduce_gb_per_sec,
        "products": [_product_row(rate) for rate in machine.rates if rate.work.product],
        "kernels": [_kernel_row(rate) for rate in machine.rates if not rate.work.product],
    }


def _product_row(rate: Rate) -> dict:
    assert rate.work.product is not None
    gflops = rate.work.product.flops / rate.secs / 1e9
    told = {"kernel": rate.work.kernel, "dtype": rate.work.dtype, **rate.work.product._asdict()}
    return {**told, "secs": rate.secs, "cores": rate.cores, "gflops": gflops}


def _kernel_row(rate: Rate) -> dict:
    told = {"kernel": rate.work.kernel, "dtype": rate.work.dtype, "bytes": rate.work.bytes}
    return {**told, "secs": rate.secs, "cores": rate.cores, "gb_per_sec": rate.work.bytes / rate.secs / 1e9}
