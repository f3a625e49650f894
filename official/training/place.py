"""Position of a run in its training data: rows read, and sequences read per stream."""

from __future__ import annotations

import dataclasses

import numpy as np

from official.data.pipeline import MOST_STREAMS, TrainingOrder


@dataclasses.dataclass
class Place:
    """Position of a run on packed rows: the rows read, and the sequences read of each stream of the data.

    Neither follows from the total number of sequences, so checkpoints keep both.
    """

    rows: int
    stream_sequences: np.ndarray  # int64 [MOST_STREAMS]

    def add(self, rows: int, stream_sequences: np.ndarray) -> None:
        """Advances the position by the rows and the sequences of each stream that were trained on."""
        self.rows, self.stream_sequences = self.rows + rows, self.stream_sequences + stream_sequences

    def order(self, order: TrainingOrder) -> TrainingOrder:
        """Returns the order of the data, continued from this position."""
        return dataclasses.replace(
            order, rows_done=self.rows, stream_sequences=tuple(self.stream_sequences.tolist())
        )

    def to_saved(self) -> dict:
        """Returns the position as a dict for JSON, which `from_saved` reads."""
        return {"rows_done": self.rows, "stream_sequences": self.stream_sequences.tolist()}


def from_saved(saved: dict, samples: int, rows: int) -> Place:
    """Returns the position at which a run continues.

    Args:
      saved: the value of `to_saved`; another dict where the run wasn't packed so far, or its file is lost.
      samples: sequences done; a saved position with another total is not used.
      rows: rows done, for a run without a saved position. Its counts per stream are zeros, and the data
        assume as many sequences of each stream: some are then read twice, and others left out.
    """
    rows_done, streams = saved.get("rows_done"), saved.get("stream_sequences")
    if (
        type(rows_done) is int
        and isinstance(streams, list)
        and len(streams) == MOST_STREAMS
        and all(type(count) is int and count >= 0 for count in streams)
        and sum(streams) == samples
    ):
        return Place(rows_done, np.array(streams, np.int64))
    return Place(rows, np.zeros(MOST_STREAMS, np.int64))
