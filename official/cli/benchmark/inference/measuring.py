"""Times systems in turns on the same batches, round by round."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from official.cli.benchmark.inference import latency
from official.cli.benchmark.inference.latency import Block
from official.cli.benchmark.inference.peer_programs.asking import Batch, write_batches
from official.cli.benchmark.inference.processes import Group

Tell = Callable[[str, int, Block], None]  # (system, number of the round, its block)


class Amount(NamedTuple):
    """Amount of work that is timed.

    Attributes:
      rounds: turns of each system.
      calls: batches of a system in all turns; None: as many as take `secs`.
      secs: seconds of a system in all turns.
      callers: threads that ask at the same time.
    """

    rounds: int
    calls: int | None
    secs: float
    callers: int

    def of_round(self, call_secs: float) -> int:
        """Returns the number of batches per turn and thread, for a system that takes `call_secs` per
        batch."""
        if self.calls is not None:
            return math.ceil(self.calls / self.rounds)
        return max(1, round(self.secs / self.rounds / max(call_secs, 1e-6)))


class Turn(NamedTuple):
    """A system's turn: its instances, a file of batches, and the width of padded rows (None: that of the
    longest)."""

    group: Group
    file: str
    width: int | None = None
    whole: int | None = None  # calls of a turn, where all batches are answered once


def write(folder: str, name: str, batches: Sequence[Batch]) -> str:
    """Writes batches into a file of a folder and returns its path."""
    path = os.path.join(folder, f"{name}.npz")
    write_batches(path, list(batches))
    return path


def logits_of(turns: dict[str, Turn], folder: str) -> dict[str, np.ndarray]:
    """Returns {name: logits [2, T]} of all batches in each turn's file. Also triggers the compilation for
    their shapes."""
    found = {}
    for name, turn in turns.items():
        path = os.path.join(folder, "logits.npy")
        turn.group.save(turn.file, path, turn.width)
        found[name] = np.load(path)
    return found


def measure(turns: dict[str, Turn], amount: Amount, tell: Tell) -> dict[str, dict[str, Any]]:
    """Runs the turns one after another, round by round, and returns {name: its `latency.summary`}."""
    questions = {name: _question(turn, amount) for name, turn in turns.items()}
    blocks: dict[str, list[Block]] = {name: [] for name in turns}
    for number in range(amount.rounds):
        for name, turn in turns.items():
            block = turn.group.run(questions[name])
            blocks[name].append(block)
            tell(name, number, block)
    return {name: latency.summary(of_name) for name, of_name in blocks.items()}


def _question(turn: Turn, amount: Amount) -> dict:
    """Returns the question for each round, after calls that warm up and, unless the whole set is asked, show
    how long one takes."""
    question = {"batches": turn.file, "width": turn.width, "calls": 2, "callers": amount.callers}
    if turn.whole is not None:
        turn.group.run({**question, "calls": turn.whole, "callers": 1})
        return {**question, "calls": turn.whole, "callers": 1}
    warm = turn.group.run(question)
    return {**question, "calls": amount.of_round(min(warm.secs))}


def compare(logits: dict[str, np.ndarray], reference: np.ndarray, lengths: np.ndarray) -> dict[str, dict]:
    """Returns {name: {largest_difference, same_answers}} of logits beside the reference's.

    Args:
      logits: float32 [2, T] of each system.
      reference: float32 [2, T] of the reference system.
      lengths: int32 [N], tokens of each sequence.

    Returns:
      largest_difference: the largest absolute difference of a logit; same_answers: the share of sequences
      whose likeliest first and last tokens are the same.
    """
    bounds = np.cumsum(lengths)[:-1]

    def likeliest(values: np.ndarray) -> list[tuple]:
        return [tuple(part.argmax(axis=1)) for part in np.split(values, bounds, axis=1)]

    wanted = likeliest(reference)
    return {
        name: {
            "largest_difference": float(np.abs(values - reference).max()),
            "same_answers": float(np.mean([a == b for a, b in zip(likeliest(values), wanted)])),
        }
        for name, values in logits.items()
    }


def say(text: str) -> None:
    """Prints a line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)
