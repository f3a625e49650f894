"""`ipu.gradient_accumulation`: how the gradients of micro batches become one."""

from __future__ import annotations

import enum
from typing import Any

import tensorflow as tf


class GradientAccumulationReductionMethod(enum.Enum):
    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2

    @classmethod
    def parse(cls, reduction_method: Any) -> GradientAccumulationReductionMethod:
        """Returns the method with this name, in any case, or the method itself.

        Raises:
          ValueError: there is none.
        """
        if isinstance(reduction_method, cls):
            return reduction_method
        if isinstance(reduction_method, str) and reduction_method.upper() in cls.__members__:
            return cls[reduction_method.upper()]
        raise ValueError(
            f"Cannot parse {reduction_method} as one of GradientAccumulationReductionMethod. Valid values "
            f"are: {', '.join(cls.__members__)}."
        )


def scales(
    method: GradientAccumulationReductionMethod, index: tf.Tensor, count: tf.Tensor
) -> tuple[Any, Any]:
    """Returns the factors of the sum so far and of the next gradient.

    Args:
      method: SUM, MEAN or RUNNING_MEAN.
      index: int scalar, how many micro batches are in the sum.
      count: int scalar, how many there will be.
    """
    if method == GradientAccumulationReductionMethod.MEAN:
        return 1.0, 1.0 / tf.cast(count, tf.float32)
    if method == GradientAccumulationReductionMethod.RUNNING_MEAN:
        done = tf.cast(index, tf.float32)
        return done / (done + 1.0), 1.0 / (done + 1.0)
    return 1.0, 1.0


def module_names() -> dict[str, Any]:
    """Returns what the module ipu.gradient_accumulation has."""
    return {"GradientAccumulationReductionMethod": GradientAccumulationReductionMethod}
