"""Token rows without padding, the input of a network, and how they are split into batches.

Shapes: N sequences, T tokens in all, M masked; B and L of a padded batch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from official import native
from official.data.rows import ragged
from official.data.rows.text_rows import TokenRows
from official.inference.signatures import output_names

Outputs = dict[str, np.ndarray]


class Rows(NamedTuple):
    """Concatenated token ids of several sequences, without padding.

    Attributes:
      ids_T: int32.
      segments_T: int32, 0 for the first and 1 for the second segment of a sequence.
      lengths_N: int32, tokens of each sequence, 1 or more; their sum is T.
      masked_M: int32, in [0, T): the tokens whose words are to be predicted, ascending; None for heads that
        do not predict words.
    """

    ids_T: np.ndarray
    segments_T: np.ndarray
    lengths_N: np.ndarray
    masked_M: np.ndarray | None = None

    @property
    def firsts_N(self) -> np.ndarray:
        """Index of the first token of each sequence, int64."""
        return np.cumsum(self.lengths_N) - self.lengths_N

    @property
    def masked_ends_N(self) -> np.ndarray:
        """Cumulative number of masked tokens at the end of each sequence, int64; 0 without masks."""
        if self.masked_M is None:
            return np.zeros(len(self.lengths_N), np.int64)
        return np.searchsorted(self.masked_M, np.cumsum(self.lengths_N))

    @property
    def masked_counts_N(self) -> np.ndarray:
        """Masked tokens of each sequence, int64."""
        return np.diff(self.masked_ends_N, prepend=0)

    def pick(self, sequences: Sequence[int] | np.ndarray) -> "Rows":
        """Returns some of the sequences, in the given order."""
        chosen = np.asarray(sequences, np.int64)
        lengths_N = self.lengths_N[chosen]
        places_T = ragged.ranges(self.firsts_N[chosen], lengths_N)
        masked_M = None
        if self.masked_M is not None:
            is_masked_T = np.zeros(len(self.ids_T), bool)
            is_masked_T[self.masked_M] = True
            masked_M = np.flatnonzero(is_masked_T[places_T]).astype(np.int32)
        return Rows(self.ids_T[places_T], self.segments_T[places_T], lengths_N, masked_M)

    def masked_places(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the sequence of each masked token and its position in it, int64 [M] each."""
        assert self.masked_M is not None
        sequences_M = np.searchsorted(np.cumsum(self.lengths_N), self.masked_M, side="right")
        return sequences_M, self.masked_M - self.firsts_N[sequences_M]


def join(sequences: Sequence[np.ndarray], segments: Sequence[np.ndarray] | None = None) -> Rows:
    """Returns rows of sequences of token ids; without `segments` all tokens are in segment 0."""
    ids_T = np.concatenate([*sequences, np.zeros(0, np.int32)]).astype(np.int32)
    segments_T = np.zeros_like(ids_T) if segments is None else np.concatenate(segments).astype(np.int32)
    return Rows(ids_T, segments_T, np.array([len(ids) for ids in sequences], np.int32))


def of_token_rows(made: TokenRows) -> Rows:
    """Converts token rows; the tokens from `first_lengths` on are second segments."""
    firsts_T = np.repeat(made.starts + made.first_lengths, made.lengths)
    segments_T = (np.arange(len(made.ids)) >= firsts_T).astype(np.int32)
    return Rows(made.ids.astype(np.int32), segments_T, made.lengths)


# Function of a batch that runs a model. Its outputs are float32, arrays or eager tensors, by head: answer:
# `start_logits` and `end_logits` [T]; classify: `logits` [N, C]; tag: `logits` [T, C]; embed: `sequence`
# [T, D]; fill_mask: `logits` [M, V].
Network = Callable[[Rows], Outputs]


# -----------------------------------------------------------------------------------------------------------
# Batches of sequences of nearly one length

TOKENS = 4096  # per batch, padding included: on CPUs more are not faster and need memory
_TOKENS_ON_GPUS = 32768
_SCORES = _TOKENS_ON_GPUS * 512  # maximum of a batch and head: bounds the memory of long sequences


def run(network: Network, head: str, rows: Rows, batches: Iterable[np.ndarray] | None = None) -> Outputs:
    """Computes the outputs of all sequences.

    Args:
      network: network of the head.
      head: one of `source.HEADS`.
      rows: sequences, one or more.
      batches: sequences of each batch; None: `batches_of`.

    Returns:
      Outputs as of a network, for all rows in order.
    """
    if head == "classify":
        counts_N = np.ones(len(rows.lengths_N), np.int64)
    else:
        counts_N = rows.masked_counts_N if head == "fill_mask" else rows.lengths_N.astype(np.int64)
    offsets = ragged.offsets(counts_N)
    outputs: Outputs = {}
    for batch in batches_of(rows.lengths_N) if batches is None else batches:
        places = ragged.ranges(offsets[batch], counts_N[batch])
        for name, values in network(rows.pick(batch)).items():
            if name not in outputs:
                outputs[name] = np.empty((offsets[-1], *values.shape[1:]), np.float32)
            outputs[name][places] = values
    return outputs


def batches_of(lengths_N: np.ndarray, tokens: int | None = None) -> Iterator[np.ndarray]:
    """Yields the sequences of each batch, of at most so many tokens, or one sequence: longest first, so that
    the batch with the highest memory use comes first. Without `tokens` the device decides."""
    tokens = tokens or (_TOKENS_ON_GPUS if native.on_gpus() else TOKENS)
    order_N = np.argsort(-lengths_N, kind="stable")
    first = 0
    while first < len(order_N):
        longest = int(lengths_N[order_N[first]])
        size = max(min(tokens // longest, _SCORES // longest**2), 1)
        yield order_N[first : first + size]
        first += size


# -----------------------------------------------------------------------------------------------------------
# Padded batches

Run = Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]  # `feeds_of` -> outputs, padding included
STEP = 16  # widths of `feeds_of` are multiples of it


def padded(rows: Rows, multiple: int = 1) -> dict[str, np.ndarray]:
    """Returns a batch with one sequence per row, padded to the longest one, rounded up to a multiple.

    Returns:
      `input_ids`, `segment_ids` and `input_mask` int32 [B, L]; with masked tokens also `masked_lm_positions`
      int32 [B, P], padded with 0, and `masked_lm_weights` float32 [B, P], 0 for padding.
    """
    width = -(-int(rows.lengths_N.max()) // multiple) * multiple
    is_token_BL = np.arange(width) < rows.lengths_N[:, None]
    ids_BL, segments_BL = np.zeros(is_token_BL.shape, np.int32), np.zeros(is_token_BL.shape, np.int32)
    ids_BL[is_token_BL], segments_BL[is_token_BL] = rows.ids_T, rows.segments_T
    batch = {"input_ids": ids_BL, "segment_ids": segments_BL, "input_mask": is_token_BL.astype(np.int32)}
    if rows.masked_M is not None:
        counts_B = rows.masked_counts_N
        places_BP = np.zeros((len(counts_B), max(counts_B.max(initial=0), 1)), np.int32)
        is_masked_BP = np.arange(places_BP.shape[1]) < counts_B[:, None]
        places_BP[is_masked_BP] = rows.masked_places()[1]
        batch |= {"masked_lm_positions": places_BP, "masked_lm_weights": is_masked_BP.astype(np.float32)}
    return batch


def feeds_of(rows: Rows) -> dict[str, np.ndarray]:
    """Returns the inputs of an ONNX file: `padded` to a multiple of 16, and for masked tokens `masked`, int32
    [M] in [0, B x L)."""
    feeds = padded(rows._replace(masked_M=None), STEP)
    if rows.masked_M is not None:
        sequences_M, places_M = rows.masked_places()
        masked_M = sequences_M * feeds["input_ids"].shape[1] + places_M
        # Never empty: a size 0 means "unchanged" in the shapes of ONNX.
        feeds["masked"] = (masked_M if len(masked_M) else np.zeros(1)).astype(np.int32)
    return feeds


def padded_network(run_batch: Run, head: str) -> Network:
    """Returns the network of a head, one of `source.HEADS`, from a function that computes padded batches; its
    outputs are in the order of `signatures`."""

    def compute_batch(rows: Rows) -> Outputs:
        feeds = feeds_of(rows)
        outputs = run_batch(feeds)
        if rows.masked_M is not None:
            outputs = [values[: len(rows.masked_M)] for values in outputs]
        elif head != "classify":
            is_token_BL = feeds["input_mask"] > 0
            outputs = [values[is_token_BL] for values in outputs]
        return dict(zip(output_names(head), outputs))

    return lambda rows: run(compute_batch, head, rows, padded_groups(rows.lengths_N))


def padded_groups(lengths_N: np.ndarray) -> list[np.ndarray]:
    """Returns the sequences of each padded batch, longest first. Short ones join a small batch, since a call
    costs more than their padding."""
    groups: list[list[int]] = []
    width, widths_N = 0, -(-lengths_N // STEP) * STEP
    for sequence in np.argsort(-lengths_N, kind="stable"):
        own = int(widths_N[sequence])
        if not groups or (own < width and len(groups[-1]) * width >= 512):
            groups.append([])
            width = own
        groups[-1].append(int(sequence))
    return [np.array(group) for group in groups]


# -----------------------------------------------------------------------------------------------------------
# Groups of attention
#
# Only attention's rows are padded. Shapes: N sequences of a group, W tokens of its longest one.

GROUPS = 4  # maximum: more groups pad less, but need more operations


def attention_groups(rows: Rows, heads: int) -> dict[str, np.ndarray]:
    """Returns the attention groups of the sequences, each padded to its longest one, and the inverse mapping.

    Returns:
      `used`: number of groups with sequences, the first ones of GROUPS; the others have one sequence of one
      token. For group n `lengths_n` int32 [N], and `tokens_n` int32 [N, W], in [0, T): the token at each
      position; after the end of a sequence its last one. `firsts_T` and `widths_T`, int32: in the groups'
      concatenated vectors [N, H, W], that of head h of a token has index firsts + h x widths. A group has H
      times as many vectors as tokens, so `firsts_T` depends on the number of heads.
    """
    order_N = np.argsort(-rows.lengths_N, kind="stable")
    bounds = _cheapest_bounds(rows.lengths_N[order_N].astype(np.int64))
    firsts_T, widths_T = (np.zeros(len(rows.ids_T), np.int32) for _ in range(2))
    found = {"used": np.array(len(bounds) - 1), "firsts_T": firsts_T, "widths_T": widths_T}
    for number in range(GROUPS):
        found |= {f"tokens_{number}": np.zeros((1, 1), np.int32), f"lengths_{number}": np.ones(1, np.int32)}
    base = 0
    for number, (first, last) in enumerate(zip(bounds[:-1], bounds[1:])):
        lengths_N = rows.lengths_N[order_N[first:last]]
        width = int(lengths_N[0])
        places_W = np.arange(width)
        tokens_NW = rows.firsts_N[order_N[first:last], None] + np.minimum(places_W, lengths_N[:, None] - 1)
        is_token_NW = places_W < lengths_N[:, None]
        vectors_NW = base + np.arange(last - first)[:, None] * (heads * width) + places_W
        firsts_T[tokens_NW[is_token_NW]] = vectors_NW[is_token_NW]
        widths_T[tokens_NW[is_token_NW]] = width
        base += tokens_NW.size * heads
        found |= {f"tokens_{number}": tokens_NW.astype(np.int32), f"lengths_{number}": lengths_N}
    return found


def _cheapest_bounds(lengths_N: np.ndarray) -> list[int]:
    """Cuts lengths, descending, into at most GROUPS groups with the fewest attention scores. Returns their
    starts and the end of the last one.

    Equal lengths stay together, since the best cuts are between different ones.
    """
    starts = [0, *(np.flatnonzero(np.diff(lengths_N)) + 1).tolist()]
    squares, ends = lengths_N[starts] ** 2, np.array([*starts[1:], len(lengths_N)])
    # best[k]: minimum number of scores of the first k distinct lengths with so many groups, and its cuts.
    best = [(0, [0])] + [(np.iinfo(np.int64).max // 2, [0])] * len(starts)
    found = best
    for _ in range(GROUPS):
        longer = [best[0]]
        for end in range(1, len(starts) + 1):
            counts = ends[end - 1] - np.array(starts[:end])
            # This many more scores are cheaper than another group.
            totals = np.array([total for total, _ in best[:end]]) + squares[:end] * counts + 64 * 64
            cheapest = int(totals.argmin())
            longer.append((int(totals[cheapest]), [*best[cheapest][1], int(ends[end - 1])]))
        best = longer
        if best[-1][0] < found[-1][0]:
            found = best
    return found[-1][1]
