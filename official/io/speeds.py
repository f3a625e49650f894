"""Times of the rounds of this process's job: for people, and for nothing that is compared."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator

FILE_NAME = "speed.json"


@dataclasses.dataclass
class TimedRound:
    """A round of tasks.

    Attributes:
      doing, items_name: words of its progress bar: "Tokenising", "documents".
      engine: where its tasks ran.
      workers: how many of them at the same time, at most.
      secs: of the wall's clock.
      bytes: of text, or of records, that were gone through: not those of tasks that were done before.
      items: as many documents or examples.
    """

    doing: str
    items_name: str
    engine: str
    workers: int
    secs: float = 0.0
    bytes: float = 0.0
    items: float = 0.0


_rounds: list[TimedRound] = []


@contextlib.contextmanager
def timed(found: TimedRound) -> Iterator[TimedRound]:
    """Times its block, which sets `bytes` and `items`; a round that fails is not kept."""
    start = time.monotonic()
    yield found
    found.secs = time.monotonic() - start
    _rounds.append(found)


def take_rounds() -> list[TimedRound]:
    """Returns the rounds since the last call."""
    taken, _rounds[:] = list(_rounds), []
    return taken
