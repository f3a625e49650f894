"""Memory-bound operations of a model, in sets: each set is a module with the functions of `Operations`.

  plain  TensorFlow's own operations and gradients: goes everywhere, and says what the functions mean
  fused  the same to rounding, with gradients derived by hand and functions that XLA compiles
  native the same to rounding, in C++ for CPUs

Matrix products are no part of them: every set multiplies by the vendor's library.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, cast

from official.native import choose as choose_kernels

Operations = Any  # a set of them: a module with the functions that `plain` documents


def choose(kernels: str, attends_again: bool = False) -> Operations:
    """Returns the set; of the others nothing is imported.

    Args:
      kernels: plain, fused, native or auto, see `official.native.choose`. Called in the scope of the strategy
        that computes.
      attends_again: gives the set whose `attend` computes again what its backward pass needs.

    Raises:
      ConfigError: where `native` cannot be.
    """
    chosen, operations = choose_kernels(kernels), cast(Any, None)
    if chosen == "plain":
        from official.modeling.operations import plain as operations
    elif chosen == "fused":
        from official.modeling.operations import fused as operations
    else:
        from official.modeling.operations import native as operations
    if not attends_again:
        return operations
    attend = functools.partial(operations.attend, again=True)
    return SimpleNamespace(**{**vars(operations), "attend": attend})
