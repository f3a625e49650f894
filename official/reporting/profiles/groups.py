"""The groups that the operations of a training step count in, where the step is told beside its bounds.

They are found by what an operation does and on which shapes, so that a block is one group whether it is made
of TensorFlow's operations, of compiled functions or of our own operations (Bert...).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from official.reporting.profiles import times
from official.reporting.profiles.places import BACKWARD, FORWARD, Place

PRODUCTS, BLOCKS, UPDATE, OTHER, WAITING = (
    "matrix products",
    "blocks between them",
    "norm and update",
    "all else",
    "waiting",
)
SECTIONS = (PRODUCTS, BLOCKS, UPDATE, OTHER, WAITING)

DENSE, OF_INPUTS, OF_WEIGHTS = (
    "dense products, forward",
    "dense products, inputs' gradients",
    "dense products, weights' gradients",
)
OTHER_PRODUCTS = "products of heads, embeddings"
ATTENTION = "attention's products"
ACTIVATION, NORM, SOFTMAX = "bias, activation", "dropout, residual, LayerNorm", "softmax, dropout of weights"
BIAS, COLUMNS, SUMS = "bias of query, key, value", "column sums", "sums of gradients"
MOVED, RANDOM = "transposes and copies", "random numbers"
EMBEDDINGS, HEADS, REST = "embeddings", "heads and loss", "everything else"
IDLE = "waiting and dispatch"

# {group: its section}, in the order in which they are shown.
GROUPS = {
    **dict.fromkeys((DENSE, OF_INPUTS, OF_WEIGHTS, OTHER_PRODUCTS, ATTENTION), PRODUCTS),
    **{f"{name}, {way}": BLOCKS for name in (ACTIVATION, NORM, SOFTMAX) for way in (FORWARD, BACKWARD)},
    **dict.fromkeys((BIAS, COLUMNS, SUMS, MOVED), BLOCKS),
    RANDOM: BLOCKS,
    times.NORM: UPDATE,
    times.UPDATE: UPDATE,
    EMBEDDINGS: OTHER,
    HEADS: OTHER,
    times.CASTS: OTHER,
    times.INPUT: OTHER,
    times.EXCHANGE: OTHER,
    REST: OTHER,
    IDLE: WAITING,
}
_LAYER = re.compile(r"layer_\d+")
_EMBEDDINGS = "embeddings"
_RANDOM = re.compile(r"Random|Bitwise|RightShift|LeftShift")
_MOVED = re.compile(r"Transpose|Slice|Pack|Concat|Split|Tile|Pad|Reshape|Heads")
# Parts of the names of our own operations.
_OWN = (
    (re.compile("^Bert.*(Activation|Gelu)"), ACTIVATION),
    (re.compile("^Bert.*(Softmax|Atten|Weights|Scores)"), SOFTMAX),
    (re.compile("^Bert.*(Norm|Residual)"), NORM),
)


class Sizes(NamedTuple):
    """The sizes that tell blocks apart: of the vectors of tokens, of those between the dense products of a
    block, and the number of words."""

    hidden: int
    feed_forward: int
    vocabulary: int


class Seen(NamedTuple):
    """An operation of a profile.

    Attributes:
      place: where in the step it is.
      type: as it ran, such as _MklMatMul.
      kernel: that of `kernels.Work`; "" where it is not known.
      dtype: of what it computes, likewise.
      shape: of its largest tensor; () where it is not known.
      transposed: of a matrix product, as in `kernels.Product`; "" where it is none, or not known.
    """

    place: Place
    type: str
    kernel: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    transposed: str = ""


def group_of(seen: Seen, sizes: Sizes) -> str:
    """Returns the group of an operation, a key of `GROUPS`."""
    kind = times.kind_of(seen.place, seen.type)
    in_layer = _LAYER.fullmatch(seen.place.part) is not None
    if kind == times.PRODUCTS:
        return _dense(seen) if in_layer else OTHER_PRODUCTS
    if kind not in (times.BLOCKS, times.REST):
        return kind  # of the same name
    if seen.dtype == "uint32" or _RANDOM.search(seen.type):
        return RANDOM
    if seen.type == "AddN":
        return SUMS
    if in_layer:
        return _in_layer(seen, sizes)
    of_table = seen.shape == (sizes.vocabulary, sizes.hidden)
    return EMBEDDINGS if of_table or seen.place.part == _EMBEDDINGS else HEADS


def _dense(seen: Seen) -> str:
    if seen.transposed == "left":
        return OF_WEIGHTS
    # With neither factor transposed it may be a gradient, too, whose kernel was transposed before.
    return OF_INPUTS if seen.transposed == "right" or seen.place.passes == BACKWARD else DENSE


def _in_layer(seen: Seen, sizes: Sizes) -> str:
    """Returns the group of what is no product in a layer."""
    if seen.kernel in ("column sums", "compiled sum of rows"):
        return COLUMNS
    if _MOVED.search(seen.type):
        return MOVED
    if seen.kernel == "bias" and seen.shape[-1] == 3 * sizes.hidden:
        return BIAS
    block = _block(seen, sizes)
    return f"{block}, {seen.place.passes}" if block else REST


def _block(seen: Seen, sizes: Sizes) -> str | None:
    """Returns which of the three blocks an operation belongs to: by its name where it is one of our own, else
    by its largest tensor, [.., F], [.., D], or [B, H, L, M] and [B, H, L, K]; None of none."""
    own = next((name for pattern, name in _OWN if pattern.search(seen.type)), None)
    if own or seen.shape and not seen.kernel:  # what costs nothing is of no block
        return own
    if len(seen.shape) == 4 or "Softmax" in seen.type:
        return SOFTMAX
    columns = seen.shape[-1] if seen.shape else 0
    return {sizes.feed_forward: ACTIVATION, sizes.hidden: NORM}.get(columns)
