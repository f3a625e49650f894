"""Sizes of a server's batches, from its /metrics page."""

from __future__ import annotations

from typing import NamedTuple

from official.io.errors import ConfigError

_NAME = "bert_batch_sequences"


class Batches(NamedTuple):
    """Counts of batches, so far or between two moments.

    Attributes:
      computed: how many there were.
      requests: that were in them.
      up_to: {size: batches of at most so many requests}, ascending.
    """

    computed: float
    requests: float
    up_to: dict[float, float]

    def since(self, before: Batches) -> Batches:
        """Returns the batches after those of an earlier moment."""
        up_to = {size: count - before.up_to.get(size, 0) for size, count in self.up_to.items()}
        return Batches(self.computed - before.computed, self.requests - before.requests, up_to)

    @property
    def mean(self) -> float | None:
        return self.requests / self.computed if self.computed else None

    def shares(self) -> dict[str, float]:
        """Returns {greatest size: share of batches} of the steps of the histogram, those of none left out."""
        found, below = {}, 0.0
        for size, count in self.up_to.items():
            if count > below:
                found[f"{size:g}"] = (count - below) / self.computed
            below = count
        return found


def batches(text: str) -> Batches:
    """Returns the batches that our server has computed, those of all its signatures.

    Args:
      text: of /metrics, in Prometheus' format.

    Raises:
      ConfigError: where there is no such histogram.
    """
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        if family.name != _NAME:
            continue
        up_to: dict[float, float] = {}
        totals = dict.fromkeys(("count", "sum"), 0.0)
        for sample in family.samples:
            kind = sample.name.removeprefix(f"{_NAME}_")
            if kind == "bucket":
                size = float(sample.labels["le"])
                up_to[size] = up_to.get(size, 0) + sample.value
            elif kind in totals:
                totals[kind] += sample.value
        return Batches(totals["count"], totals["sum"], dict(sorted(up_to.items())))
    raise ConfigError(f"--export_dir: the server's /metrics does not tell {_NAME}.")
