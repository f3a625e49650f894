"""Count of repetitions among very many values, in memory that does not grow: exact as long as the values that
differ are a million or fewer, an estimate beyond.

A value is a 64-bit hash. Those below a limit are kept, with how often they came. When too many are kept, the
limit is halved. A value that is below the limit at the end was below it all the time, so its count is whole;
and the limit depends on the set of values alone. Counts of parts therefore add up to the same as one count of
all, in whatever order.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

_MOST_KEPT = 1 << 20  # 16 MB
_TOO_FAR = 6.0  # standard deviations


@dataclasses.dataclass(frozen=True)
class Share:
    """A share of repetitions, 0 to 1, and its standard error, 0 where it is exact."""

    value: float
    error: float
    exact: bool


class Repeats:
    """Counts values, and those among them that came before."""

    def __init__(self, most_kept: int = _MOST_KEPT):
        self._most_kept = most_kept
        self._halvings = 0  # values below 2^(64 - halvings) are kept
        self._values: np.ndarray = np.zeros(0, np.uint64)  # each once, ascending
        self._counts: np.ndarray = np.zeros(0, np.int64)
        self._new: list[np.ndarray] = []  # not yet in `_values`
        self._waiting = 0
        self.total = 0

    def add(self, values: np.ndarray) -> None:
        """Counts values, uint64 of one axis, as if each were a random one: use `mixed` where they are not."""
        self.total += len(values)
        self._new.append(self._below_limit(values))
        self._waiting += len(self._new[-1])
        if self._waiting > self._most_kept:
            self._settle()

    def merge(self, other: Repeats) -> None:
        """Adds the counts of another counter."""
        other._settle()
        self._settle()
        self.total += other.total
        self._halvings = max(self._halvings, other._halvings)
        self._put_in(other._values, other._counts)

    def share(self) -> Share:
        """Returns the share of the values that another one before them has."""
        self._settle()
        if not self.total:
            return Share(0.0, 0.0, True)
        if not self._halvings:
            return Share(1 - len(self._values) / self.total, 0.0, True)
        distinct, error = self._estimate()
        return Share(1 - min(max(distinct, 1.0), self.total) / self.total, error / self.total, False)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns all that was counted, for a file."""
        self._settle()
        state = np.array([self.total, self._halvings, self._most_kept])
        return {"state": state, "values": self._values, "counts": self._counts}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Repeats:
        """Returns the counter from the result of its `to_arrays`."""
        total, halvings, most_kept = arrays["state"].tolist()
        made = cls(most_kept)
        made.total, made._halvings = total, halvings
        made._values, made._counts = arrays["values"], arrays["counts"]
        return made

    def _below_limit(self, values: np.ndarray) -> np.ndarray:
        return values[values < np.uint64(2 ** (64 - self._halvings))] if self._halvings else values

    def _settle(self) -> None:
        """Takes in what waits."""
        if self._waiting:
            values, counts = np.unique(np.concatenate(self._new), return_counts=True)
            self._put_in(values, counts)
        self._new, self._waiting = [], 0

    def _put_in(self, values: np.ndarray, counts: np.ndarray) -> None:
        """Adds values, each once, and how often they came; halves the limit as often as it takes."""
        both = np.concatenate([self._values, values])
        self._values, places = np.unique(both, return_inverse=True)
        weights = np.concatenate([self._counts, counts])
        self._counts = np.zeros(len(self._values), np.int64)
        np.add.at(self._counts, places, weights)
        self._cut()
        while len(self._values) > self._most_kept:
            self._halvings += 1
            self._cut()

    def _cut(self) -> None:
        kept = len(self._below_limit(self._values))  # they are ascending
        self._values, self._counts = self._values[:kept], self._counts[:kept]

    def _estimate(self) -> tuple[float, float]:
        """Returns the number of different values, and the standard error of that number.

        The number that was kept, divided by the share of all hashes that is kept, is one estimate. How many
        values there are in all is known, and what the kept ones say about it tells how far they are off: with
        the best weight of it, values that are all different are counted exactly. It is left out where a value
        that came very often, and was not kept, spoils it.
        Source: the difference estimator; W. G. Cochran, "Sampling Techniques" (1977), chapter 7.
        """
        share = 2.0**-self._halvings
        counts = self._counts.astype(float)
        off = counts.sum() / share - self.total
        squares = float(counts @ counts)
        is_spoilt = abs(off) > _TOO_FAR * math.sqrt(squares * (1 - share)) / share
        weight = 0.0 if is_spoilt or not squares else counts.sum() / squares
        error = math.sqrt(float(((1 - weight * counts) ** 2).sum()) * (1 - share)) / share
        return len(counts) / share - weight * off, error


def mixed(values: np.ndarray) -> np.ndarray:
    """Returns 64-bit values of which every bit depends on every bit of those given, one to one.

    Source: the end of SplitMix64; Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
    2014.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
