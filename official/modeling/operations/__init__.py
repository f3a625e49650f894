"""Memory-bound operations of a model, in sets: each set is a module with the functions of `Operations`.

  plain  TensorFlow's own operations and gradients: works everywhere, and defines the functions
  fused  the same to rounding, with gradients derived by hand and functions that XLA compiles
  native the same to rounding, in C++ for CPUs

Matrix products are not included: every set uses the vendor's library for them.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, cast

from official.native import choose as choose_kernels

Operations = Any  # a module with the functions documented in `plain`


def choose(kernels: str, attends_again: bool = False) -> Operations:
    """Returns the set; the others are not imported.

    Args:
      kernels: plain, fused, native or auto, see `official.native.choose`. Call it in the scope of the
        computing strategy.
      attends_again: selects the version whose `attend` recomputes in its backward pass.

    Raises:
      ConfigError: if `native` is not possible.
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
