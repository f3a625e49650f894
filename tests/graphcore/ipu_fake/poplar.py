"""Options that Poplar reads by itself: the strings for its products."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.graphcore.ipu_fake import machine


def check_values(what: str, options: dict[str, str]) -> None:
    """Refuses values of options that mean something else (kind of error not in the sources read).

    Raises:
      tf.errors.InvalidArgumentError: a share of memory that is no number above 0, or other partials.
    """
    for name, value in options.items():
        if name == "availableMemoryProportion" and not _positive(value):
            raise _refused(what, name, value, "a number above 0")
        if name == "partialsType" and value not in ("half", "float"):
            raise _refused(what, name, value, "half or float")


def _positive(value: str) -> bool:
    try:
        return float(value) > 0
    except ValueError:
        return False


def _refused(what: str, name: str, value: str, allowed: str) -> Any:
    return tf.errors.InvalidArgumentError(None, None, f"{what}: {name}={value!r} must be {allowed}")


def check_pipeline(settings: Any) -> None:
    """Checks the options of a pipeline and of the configuration when a program is compiled."""
    for name, value in machine.current.config.attributes():
        if name.endswith(".poplar_options"):
            check_values(name, value)
    lists = {
        "forward_propagation_stages_poplar_options": settings.forward_propagation_stages_poplar_options,
        "backward_propagation_stages_poplar_options": settings.backward_propagation_stages_poplar_options,
        "weight_update_poplar_options": [settings.weight_update_poplar_options],
    }
    for name, stages in lists.items():
        for index, each in enumerate(stages or []):
            for kind in ("convolution_options", "matmul_options", "slice_options"):
                check_values(f"{name}[{index}].{kind}", getattr(each, kind, {}))
