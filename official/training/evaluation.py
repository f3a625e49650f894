"""One pass over a set: sums over all of it, and the model's outputs in the order of its rows."""

from collections.abc import Callable, Iterable

import numpy as np


def run(
    eval_step: Callable, batches: Iterable, before_each: Callable[[], None]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Evaluates all batches.

    Args:
      eval_step: see `step.make_eval_step`.
      batches: global batches.
      before_each: called before a batch; what it raises comes through.

    Returns:
      (float64 [2 x eval metrics + 1], see `make_eval_step`; {output: [rows of the set, ...]}, without what
      filled the last batch).
    """
    totals, parts = 0.0, []
    for batch in batches:
        before_each()
        sums, outputs = eval_step(batch)
        totals = totals + sums.numpy().astype(np.float64)
        parts.append({name: value.numpy() for name, value in outputs.items()})
    return totals, _in_order(parts)


def _in_order(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Joins the batches and sorts them by `rows`, of which -1 is filling."""
    if not parts or not parts[0]:
        return {}
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    rows = whole.pop("rows")
    order = np.argsort(rows, kind="stable")[np.count_nonzero(rows < 0) :]
    return {name: values[order] for name, values in whole.items()}
