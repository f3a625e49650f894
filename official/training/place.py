"""Where in its training data a run stands, beside the number of its sequences."""

from __future__ import annotations

import dataclasses

import numpy as np

from official.data.pipeline import MOST_STREAMS, TrainingOrder


@dataclasses.dataclass
class Place:
    """Of a run on packed rows: how many it has read, and how many sequences of each stream of the data.

    Both follow from no number of sequences, so that checkpoints keep them.
    """

    rows: int
    stream_sequences: np.ndarray  # int64 [MOST_STREAMS]

    def add(self, rows: int, stream_sequences: np.ndarray) -> None:
        """Notes what was trained on since."""
        self.rows, self.stream_sequences = self.rows + rows, self.stream_sequences + stream_sequences

    def order(self, order: TrainingOrder) -> TrainingOrder:
        """Returns an order of the data that goes on here."""
        return dataclasses.replace(
            order, rows_done=self.rows, stream_sequences=tuple(self.stream_sequences.tolist())
        )

    def to_saved(self) -> dict:
        """Returns what `from_saved` takes, ready for JSON."""
        return {"rows_done": self.rows, "stream_sequences": self.stream_sequences.tolist()}


def from_saved(saved: dict, samples: int, rows: int) -> Place:
    """Returns where a run goes on.

    Args:
      saved: what `to_saved` returned; of a run that was not packed so far, or whose file is lost, it is
        something else.
      samples, rows: the sequences and rows done, for that case: as many of each stream then, which reads some
        sequences twice and leaves others out.
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
