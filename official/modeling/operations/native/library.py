"""Loader of the operations of operations.cc, and the decision whether a model takes them."""

from __future__ import annotations

import os
from typing import Any

from official.io import native_operations
from official.io.errors import ConfigError
from official.io.native_library import NotBuilt

_FOLDER = os.path.dirname(os.path.abspath(__file__))
# Products and sums as one instruction, and choices without branches: both keep what is not finite.
_FLAGS = ("-ffp-contract=fast", "-fno-trapping-math")
_failed: list[str] = []  # why they are not there: asked for once in a process


def are_taken(kernels: str) -> bool:
    """Tells whether a model that is made now, in the scope of its strategy, takes the operations.

    Args:
      kernels: auto or native, of --block_kernels.

    Raises:
      ConfigError: where --block_kernels=native cannot be.
    """
    reason = _what_is_against()
    if reason is not None and kernels == "native":
        raise ConfigError(f"block_kernels=native is not possible here: {reason}. Use --block_kernels=auto.")
    return reason is None


def _what_is_against() -> str | None:
    if not native_operations.on_cpus():
        return "it computes on CPUs only"
    try:
        if not _failed:
            loaded()
    except NotBuilt as error:
        _failed.append(str(error))
        native_operations.tell(f"Blocks take functions that XLA compiles, not the native kernels: {error}.")
    return _failed[0] if _failed else None


def loaded() -> Any:
    """Returns the module of the operations. Raises NotBuilt."""
    path = native_operations.build("blocks", _FOLDER, "the kernels of the blocks", _FLAGS)
    return native_operations.load(path)
