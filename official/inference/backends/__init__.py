"""Back ends, which compute the outputs of a model: TensorFlow, ONNX Runtime and OpenVINO."""

import ctypes
import dataclasses
import gc
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from official.inference.rows import Network, Outputs, Rows
from official.io.errors import ConfigError, suggest

# {name, a value of `--backend`: its types}. ONNX Runtime has no products in bf16 on the CPU: they would be
# computed in fp32 and cast.
DTYPES = {
    "onnxruntime": ("fp32", "int8"),
    "openvino": ("fp32", "bf16", "int8"),
    "tensorflow": ("fp32", "bf16", "int8"),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the computation.

    Attributes:
      backend: one of DTYPES.
      dtype: type of matrix products: fp32, bf16, or int8, which has weights and activations of 8 bits.
      threads: number of threads of this process; None for one per core.
      calibration: batches from which the ranges of activations are taken; int8 only.
      observe: function called with every batch before it is computed.
    """

    backend: str = "tensorflow"
    dtype: str = "fp32"
    threads: int | None = None
    calibration: Sequence[Rows] = ()
    observe: Callable[[Rows], None] | None = None


def dtypes_of(name: str) -> tuple[str, ...]:
    """Returns the types that a back end supports. Raises ConfigError for an unknown one."""
    if name not in DTYPES:
        expected = f"{suggest(name, DTYPES)}: expected one of {', '.join(DTYPES)}."
        raise ConfigError(f"backend={name[:100]}{expected}")
    return DTYPES[name]


def check(settings: Settings) -> None:
    """Raises ConfigError for an unknown back end, a type that it does not support, or less than one
    thread."""
    dtypes = dtypes_of(settings.backend)
    if settings.dtype not in dtypes:
        computes = f"{settings.backend} computes in {', '.join(dtypes)}."
        raise ConfigError(f"dtype={settings.dtype[:100]}: {computes}")
    if settings.threads is not None and settings.threads < 1:
        raise ConfigError(f"threads={settings.threads} is out of range. Allowed: 1 or more.")


def begin(settings: Settings) -> None:
    """Prepares the process before any computation, tokenizers included: checks the settings, and sets
    TensorFlow's number of threads, which holds for the whole process. Raises ConfigError."""
    check(settings)
    if settings.backend == "tensorflow":
        _module(settings).take_threads(settings.threads)


def build(source, head: str, settings: Settings) -> Network:
    """Builds the network of a model with one of the heads of `source.HEADS`. Raises ConfigError if a package
    is missing, the machine does not support the settings, or int8 has no calibration rows."""
    check(settings)
    if settings.dtype == "int8" and not settings.calibration:
        needs = f"dtype=int8 of {settings.backend} needs rows to take the ranges of activations from"
        raise ConfigError(f"{needs}, received none. Give Settings.calibration, or another dtype.")
    network, observe = _module(settings).build(source, head, settings), settings.observe
    if observe is None:
        return network

    def observed(rows: Rows) -> Outputs:
        observe(rows)
        return network(rows)

    return observed


def _module(settings: Settings) -> Any:
    is_tensorflow = settings.backend == "tensorflow"
    return importlib.import_module(
        "official.inference.backends.tensorflow" if is_tensorflow else "official.inference.onnx_files"
    )


def free_memory() -> None:
    """Returns unused memory to the operating system, if the C library supports it."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
