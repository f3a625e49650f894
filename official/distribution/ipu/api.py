"""The API of the Poplar SDK, where it is installed."""

from __future__ import annotations

import importlib
from typing import Any

from official.io.errors import ConfigError


def load() -> Any:
    """Returns `tensorflow.python.ipu`, which TensorFlow has in Graphcore's wheel only.

    Raises:
      ConfigError: where it is not installed.
    """
    try:
        return importlib.import_module("tensorflow.python.ipu")
    except ImportError as error:
        raise ConfigError(
            "distribution_strategy=ipu needs Graphcore's TensorFlow 2.6 of the Poplar SDK, and this Python"
            f" has none ({_reason(error)}). Here --distribution_strategy=pipeline runs the same stages, and"
            " --plan shows the run."
        ) from None


def _reason(error: ImportError) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:80]


def load_popdist() -> Any:
    """Returns the module `popdist` where poprun has started this process; else None."""
    try:
        popdist = importlib.import_module("popdist")
    except ImportError:
        return None
    return popdist if popdist.isPopdistEnvSet() else None
