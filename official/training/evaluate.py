"""One pass of the evaluation step over a set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def run(
    eval_step: Callable, batches: Iterable, before_each: Callable[[], None], secs: list[float] | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Evaluates all batches.

    Args:
      eval_step: see `step.make_eval_step`.
      batches: global batches.
      before_each: called before each batch; its exceptions propagate.
      secs: list to append the seconds of each batch to, from the call of the step to outputs in host memory.

    Returns:
      (float64 [2 x eval metrics + 1], see `make_eval_step`; {output: [sequences of the set, ...]}, without
      padding rows).
    """
    totals: Any = 0.0
    parts: list[dict[str, np.ndarray]] = []
    for batch in batches:
        before_each()
        since = time.perf_counter()
        sums, outputs = eval_step(batch)
        totals = totals + sums.numpy().astype(np.float64)
        part = {name: value.numpy() for name, value in outputs.items()}
        if secs is not None:
            secs.append(time.perf_counter() - since)
        if part:  # drops the empty slots of packed rows, to save memory
            part = {name: value[part["rows"] >= 0] for name, value in part.items()}
        parts.append(part)
    return totals, in_order(parts)


def in_order(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Joins the outputs of batches and sorts them.

    Args:
      parts: {output: [B, ...]} with `rows` [B], the number of each sequence in the set, -1 for filling; or
        {output: [B, S, ...]} with `rows` [B, S], of rows that hold up to S sequences.

    Returns:
      {output: [sequences, ...]}, without `rows`.
    """
    if not parts or not parts[0]:
        return {}
    dims = parts[0]["rows"].ndim
    whole = {
        name: np.concatenate([part[name].reshape(-1, *part[name].shape[dims:]) for part in parts])
        for name in parts[0]
    }
    numbers = whole.pop("rows")
    order = np.argsort(numbers, kind="stable")[np.count_nonzero(numbers < 0) :]
    return {name: values[order] for name, values in whole.items()}
