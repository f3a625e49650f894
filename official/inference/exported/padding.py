"""Rows for what computes batches of one length: sequences of about one length together, filled up to it.

Shapes: N sequences of T tokens in all, M masked; of a group B and L.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from official.inference import networks
from official.inference.backends import Network, Outputs
from official.inference.exported import conversion
from official.inference.rows import Rows

Run = Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]
_STEP = 16  # lengths are multiples of it
_ENOUGH = 512  # tokens of a group that shorter sequences do not join any more


def network(run: Run, head: str) -> Network:
    """Returns a network.

    Args:
      run: {name: int32} as of `conversion.Traced.inputs` -> `conversion.OUTPUTS` of the head, in their order.
      head: one of `source.HEADS`.
    """

    def compute(rows: Rows) -> Outputs:
        groups = _groups(rows.lengths_N)
        parts = [_outputs(run, rows.pick(group), head) for group in groups]
        places = _places(rows, np.concatenate(groups), head)
        outputs = [_put(np.concatenate(values), places) for values in zip(*parts)]
        return dict(zip(conversion.OUTPUTS[head], outputs))

    return compute


def batches(rows: Rows) -> Iterator[dict[str, np.ndarray]]:
    """Yields the inputs of each group of rows."""
    for group in _groups(rows.lengths_N):
        yield _feeds(rows.pick(group))


def sample(inputs: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Returns a small batch with padding, to compare with: the inputs of these names."""
    generator = np.random.default_rng(1)
    lengths_N = np.array([11, 1, 6], np.int32)
    tokens = int(lengths_N.sum())
    ids_T, segments_T = generator.integers(0, 5, tokens), generator.integers(0, 2, tokens)
    masked_M = np.array([1, 11, tokens - 1], np.int32) if "masked" in inputs else None
    return _feeds(Rows(ids_T.astype(np.int32), segments_T.astype(np.int32), lengths_N, masked_M))


def _groups(lengths_N: np.ndarray) -> list[np.ndarray]:
    """Returns the sequences of each group, longest first. Short ones fill a group of few tokens up: there a
    call costs more than its padding."""
    groups: list[list[int]] = []
    width = 0
    for sequence in np.argsort(-lengths_N, kind="stable"):
        own = _width(int(lengths_N[sequence]))
        if not groups or (own < width and len(groups[-1]) * width >= _ENOUGH):
            groups.append([])
            width = own
        groups[-1].append(int(sequence))
    return [np.array(group) for group in groups]


def _width(length: int) -> int:
    return -(-length // _STEP) * _STEP


def _feeds(rows: Rows) -> dict[str, np.ndarray]:
    batch = networks.padded(rows._replace(masked_M=None))
    longest = batch["input_ids"].shape[1]
    width = _width(longest)
    feeds = {name: np.pad(values, ((0, 0), (0, width - longest))) for name, values in batch.items()}
    if rows.masked_M is not None:
        sequences_M = networks.sequences_of(rows, rows.masked_M)
        places_M = sequences_M * width + rows.masked_M - rows.firsts_N[sequences_M]
        # Never none: an empty tensor has a size 0, which says "as before" in the shapes of ONNX.
        feeds["masked"] = (places_M if len(places_M) else np.zeros(1)).astype(np.int32)
    return feeds


def _outputs(run: Run, rows: Rows, head: str) -> Sequence[np.ndarray]:
    """Returns the outputs of a group's tokens, sequences or masks, without those of padding."""
    feeds = _feeds(rows)
    outputs = run(feeds)
    if head == "classify":
        return outputs
    if rows.masked_M is not None:
        return [values[: len(rows.masked_M)] for values in outputs]
    is_token_BL = feeds["input_mask"] > 0
    return [values[is_token_BL] for values in outputs]


def _places(rows: Rows, order: np.ndarray, head: str) -> np.ndarray:
    """Returns the indices in the outputs of rows at which those of the sequences in another order go."""
    if head == "classify":
        return order
    kept = np.arange(len(rows.ids_T)) if rows.masked_M is None else rows.masked_M
    of = networks.sequences_of(rows, kept)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return np.argsort(rank[of], kind="stable")


def _put(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    result = np.empty_like(values)
    result[places] = values
    return result
