"""Back ends, which compute the outputs of a model: one file each, found by its name, which is `--backend`.

A file has
  DTYPES
      the types that it computes in, of fp32, bf16 and int8
  build(source, head, settings) -> Network
      the network of a model with one of the heads of `source.HEADS`; raises ConfigError where a package is
      missing, or the machine cannot do what the settings ask for
and may have
  take_threads(threads)
      for threads that are those of the process, see `begin`
Nothing else names the back ends: a new file is a new one.
"""

import dataclasses
import importlib
import os
from collections.abc import Callable, Sequence
from types import ModuleType

from official.inference.rows import Network, Outputs, Rows
from official.io.errors import ConfigError, suggest


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the computation.

    Attributes:
      backend: one of `names()`.
      dtype: of products: fp32, bf16, or int8, whose products have weights and activations of 8 bits.
      threads: of this process; None for as many as it has cores.
      calibration: batches from which the ranges of activations are taken; int8 only.
      observe: called with every batch before it is computed.
    """

    backend: str = "tensorflow"
    dtype: str = "fp32"
    threads: int | None = None
    calibration: Sequence[Rows] = ()
    observe: Callable[[Rows], None] | None = None


def names() -> list[str]:
    """Returns the names of all back ends."""
    files = os.listdir(os.path.dirname(__file__))
    return sorted(name[:-3] for name in files if name.endswith(".py") and not name.startswith("_"))


def dtypes_of(name: str) -> tuple[str, ...]:
    """Returns the types that a back end computes in. Raises ConfigError for an unknown one."""
    if name not in names():
        hint = suggest(name, names())
        raise ConfigError(f"backend={name[:100]}{hint}: expected one of {', '.join(names())}.")
    return _find(name).DTYPES


def check(settings: Settings) -> None:
    """Raises ConfigError for a back end that there is not, a type that it does not compute in, or less than
    one thread."""
    dtypes = dtypes_of(settings.backend)
    if settings.dtype not in dtypes:
        computes = f"{settings.backend} computes in {', '.join(dtypes)}."
        raise ConfigError(f"dtype={settings.dtype[:100]}: {computes}")
    if settings.threads is not None and settings.threads < 1:
        raise ConfigError(f"threads={settings.threads} is out of range. Allowed: 1 or more.")


def begin(settings: Settings) -> None:
    """Does what comes before anything is computed, tokenizers included: checks the settings, and takes the
    threads where a back end's are those of the process. Raises ConfigError."""
    check(settings)
    take_threads = getattr(_find(settings.backend), "take_threads", None)
    if take_threads:
        take_threads(settings.threads)


def build(source, head: str, settings: Settings) -> Network:
    """Builds a network; arguments as of the files. Raises ConfigError."""
    check(settings)
    network, observe = _find(settings.backend).build(source, head, settings), settings.observe
    if observe is None:
        return network

    def observed(rows: Rows) -> Outputs:
        observe(rows)
        return network(rows)

    return observed


def _find(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
