"""Attention and forward pass without padding: packed sequences apart, tokens of a batch end to end."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official import native
from official.modeling import stages
from official.modeling.layers import sizes
from official.modeling.stages import Staged, Tensors

# -----------------------------------------------------------------------------------------------------------
# Sizes


_SIZES = 64  # at most: more of them waste less, and are more to compile
_STEP = 8  # sizes are multiples
# A compilation takes longer on GPUs, and a step less time.
_SIZES_ON_GPUS = 32
_STEP_ON_GPUS = 32


def _step() -> int:
    """Returns the number of which sizes are multiples, on the devices of the strategy."""
    return _STEP if native.on_cpus() else _STEP_ON_GPUS


def predicted_first(features: dict[str, tf.Tensor]) -> int:
    """Returns how many slots at the start of each row are those of predicted tokens, with [CLS] behind them:
    0 but for a batch that has `masked_lm_ids` [B, P] and does not say in `masked_lm_positions` where they
    are."""
    if "masked_lm_positions" in features or "masked_lm_ids" not in features:
        return 0
    return features["masked_lm_ids"].shape[1]


def size_for(count: tf.Tensor, most: int | tf.Tensor) -> tf.Tensor:
    """Returns the least of a few sizes that is a count or more; a 64th of the most is wasted, or 7; on GPUs a
    32nd, or 31.

    Args:
      count: int32, 0 or more.
      most: that the count can be.
    """
    multiple, sizes = _step(), _SIZES if native.on_cpus() else _SIZES_ON_GPUS
    step = -(-most // (sizes * multiple)) * multiple
    return -(-tf.maximum(count, 1) // step) * step


def find_predicted(weights_BP: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of the predicted tokens whose weight, float32 [B, P], is not 0: int32 [Q], in [0,
    B x P), and B x P for what fills them up."""
    weights_N = tf.reshape(weights_BP, [-1])
    most = tf.size(weights_N)
    numbers = tf.cast(tf.where(weights_N > 0)[:, 0], tf.int32)
    missing = size_for(tf.size(numbers), most) - tf.size(numbers)
    return tf.pad(numbers, [[0, missing]], constant_values=most)


def pick_predicted(values_BP: tf.Tensor, numbers_Q: tf.Tensor) -> tf.Tensor:
    """Returns the values of the predicted tokens of `find`, [Q]; 0 for what fills them up."""
    return tf.gather(tf.pad(tf.reshape(values_BP, [-1]), [[0, 1]]), numbers_Q)


# -----------------------------------------------------------------------------------------------------------
# Sequences of packed rows, apart and together
#
# A sequence goes to the shortest of a few widths that holds it. How many sequences there are of a width is
# known only when it runs, up to some filling, so that this is nothing for steps that are compiled as a
# whole. Shapes: N sequences of a width of W tokens, T = B x L tokens of a batch, H heads of size K.


MIN_ROW_LENGTH = 128  # tokens; of shorter rows nothing was measured
_WIDTHS = 16  # at most: more of them waste less, and are more operations and more to compile
_GROUPS = 4  # of sequences end to end
_LOG_2 = 0.6931471805599453


class Indices(NamedTuple):
    """Indices that move vectors between packed rows and rows of one sequence.

    Attributes:
      reads: int32 [vectors of a width], one tensor a width: the vector of the packed rows that goes there.
      writes: int32 [vectors of the packed rows]: the vector, of all widths one after the other, that goes
        there; their number, which is that of a row of zeros, for padding.
    """

    reads: tuple[tf.Tensor, ...]
    writes: tf.Tensor


class SequenceLayout(NamedTuple):
    """The places of a batch's sequences in rows of their own. Its tuples have one element a width.

    Attributes:
      is_token_NW: bool, false behind the end of a sequence.
      products: of query, key and value: packed [T, 3, H], apart [3, N, H, W].
      heads: of what attention gives: packed [T, H], apart [N, H, W].
    """

    is_token_NW: tuple[tf.Tensor, ...]
    products: Indices
    heads: Indices


def widths(length: int) -> list[int]:
    """Returns the widths for rows of some tokens, ascending: all multiples of one number, and the row."""
    multiple = _step()
    step = -(-length // (_WIDTHS * multiple)) * multiple
    return [*range(step, length, step), length]


def layout_of_rows(sequence_ids_BL: tf.Tensor, heads: int) -> SequenceLayout:
    """Returns the places of sequences, whose tokens may stand anywhere in their row.

    Args:
      sequence_ids_BL: int32, the number of the sequence of its row that a token belongs to, from 1; 0 for
        padding. L is known.
      heads: H.
    """
    length = sequence_ids_BL.shape[1]
    order_T, sequences = _find_sequences(sequence_ids_BL)
    return _layout_of(order_T, list(zip(widths(length), sequences)), heads)


def layout_end_to_end(lengths_N: tf.Tensor, tokens: int | tf.Tensor, heads: int) -> SequenceLayout:
    """Returns the places of sequences that lie end to end in one row; padding is behind them.

    They are taken in a few groups of nearly one length, each as wide as its longest sequence, so that widths
    follow the sequences and not the row. A group has the same number of sequences in every batch of as many.

    Args:
      lengths_N: int32, tokens of each sequence, 1 or more.
      tokens: of the row.
      heads: H.
    """
    order_N = tf.argsort(-lengths_N, stable=True)
    lengths, firsts = (tf.gather(values, order_N) for values in (lengths_N, tf.cumsum(lengths_N) - lengths_N))
    count = sizes(lengths_N)[0]
    bounds = [group * count // _GROUPS for group in range(_GROUPS + 1)]
    kinds, step = [], _step()
    for first, last in zip(bounds[:-1], bounds[1:]):
        length_N = lengths[first:last]
        longest = tf.reduce_max(tf.concat([length_N, [1]], axis=0))
        width = -(-longest // step) * step
        kinds.append((width, (firsts[first:last], length_N)))
    return _layout_of(tf.range(tokens), kinds, heads)


def _layout_of(order_T: tf.Tensor, kinds: list, heads: int) -> SequenceLayout:
    """Returns the places of sequences.

    Args:
      order_T: int32, the tokens of a batch, sequence by sequence.
      kinds: (width, (the first of their tokens among these, how many: int32 [N])) each.
      heads: H.
    """
    tokens = sizes(order_T)[0]
    is_token, near, exact = [], [], []
    for width, (first_N, length_N) in kinds:
        is_token_NW = tf.range(width) < length_N[:, None]
        # Behind its end a sequence repeats its last token, which no other token of it sees there.
        last_N1 = tf.maximum(length_N[:, None] - 1, 0)
        nearest_NW = first_N[:, None] + tf.minimum(tf.range(width), last_N1)
        near.append(tf.gather(order_T, nearest_NW))
        exact.append(tf.where(is_token_NW, near[-1], tokens))
        is_token.append(is_token_NW)
    products, writes = _vectors(near, 3, heads), _inverse(_vectors(exact, 3, heads), tokens * 3 * heads)
    outputs = [tf.minimum(vectors, tokens * heads) for vectors in _vectors(exact, 1, heads)]
    return SequenceLayout(
        tuple(is_token),
        Indices(tuple(products), writes),
        Indices(tuple(outputs), _inverse(outputs, tokens * heads)),
    )


def _find_sequences(sequence_ids_BL: tf.Tensor) -> tuple[tf.Tensor, list]:
    """Returns (the tokens sequence by sequence, int32 [T]; for each width the sequences that take it: (the
    first of their tokens among these, how many), int32 [N])."""
    batch, length = sizes(sequence_ids_BL)
    most = tf.reduce_max(sequence_ids_BL) + 1
    sequence_T = tf.reshape(tf.range(batch)[:, None] * most + sequence_ids_BL, [-1])
    lengths = tf.math.unsorted_segment_sum(tf.ones_like(sequence_T), sequence_T, batch * most)
    firsts = tf.cumsum(lengths, exclusive=True)
    is_sequence = (tf.range(batch * most) % most > 0) & (lengths > 0)  # number 0 is padding
    kinds = tf.where(is_sequence, tf.searchsorted(tf.constant(widths(length)), lengths), -1)
    chosen = [_filled(tf.where(kinds == kind)[:, 0], batch * most) for kind in range(len(widths(length)))]
    firsts, lengths = (tf.pad(values, [[0, 1]]) for values in (firsts, lengths))  # of what fills up: none
    found = [(tf.gather(firsts, numbers_N), tf.gather(lengths, numbers_N)) for numbers_N in chosen]
    return tf.argsort(sequence_T, stable=True), found


def _filled(numbers_N: tf.Tensor, filling: tf.Tensor) -> tf.Tensor:
    """Returns the numbers, filled up to one of a few counts, a quarter more at most: compiled operations are
    compiled for each count."""
    count = tf.size(numbers_N)
    doublings = tf.math.log(tf.cast(tf.maximum(count - 1, 1), tf.float32)) / _LOG_2 + 1e-4
    step = tf.bitwise.left_shift(1, tf.maximum(tf.cast(doublings, tf.int32) - 2, 0))
    return tf.pad(numbers_N, [[0, -count % step]], constant_values=tf.cast(filling, numbers_N.dtype))


def _vectors(tokens_NW: list[tf.Tensor], parts: int, heads: int) -> list[tf.Tensor]:
    """Returns the vectors [parts, N, H, W], flat, of tokens that have parts x H vectors each."""
    vectors = tf.reshape(tf.range(parts * heads), [parts, 1, heads, 1])
    return [tf.reshape(tokens[:, None] * (parts * heads) + vectors, [-1]) for tokens in tokens_NW]


def _inverse(reads: list[tf.Tensor], count: int | tf.Tensor) -> tf.Tensor:
    """Returns the index among all `reads` of each of 0, 1, .. count - 1, int32 [count]; the number of all
    reads for one that is not among them."""
    joined = tf.minimum(tf.concat(reads, axis=0), count)
    number = tf.size(joined)
    # Zero is what stays where nothing is scattered to.
    return number - tf.scatter_nd(joined[:, None], number - tf.range(number), [count + 1])[:-1]


def split_sequences(vectors: tf.Tensor, moves: Indices) -> list[tf.Tensor]:
    """Returns the vectors [.., K] of each width, of the packed rows' [.., K].

    What stands behind the end of a sequence must be given no gradient.
    """

    @tf.custom_gradient
    def move(vectors):
        return [tf.gather(vectors, reads) for reads in moves.reads], lambda *parts: _join(parts, moves.writes)

    return move(vectors)


def join_sequences(parts: list[tf.Tensor], moves: Indices) -> tf.Tensor:
    """Returns the vectors of the packed rows, zero for padding, of those of each width.

    What stands behind the end of a sequence has no gradient.
    """

    @tf.custom_gradient
    def move(*parts):
        def gradient(upstream):
            upstream = _with_zeros([upstream])
            return [tf.gather(upstream, reads) for reads in moves.reads]

        return _join(parts, moves.writes), gradient

    return move(*parts)


def _join(parts, writes: tf.Tensor) -> tf.Tensor:
    return tf.gather(_with_zeros(parts), writes)


def _with_zeros(parts) -> tf.Tensor:
    """Returns vectors one after the other, and one of zeros behind them."""
    return tf.concat([*parts, tf.zeros([1, parts[0].shape[-1]], parts[0].dtype)], axis=0)


# -----------------------------------------------------------------------------------------------------------
# Forward pass over tokens
#
# The sequences of a batch are laid end to end in one row. Dense layers, LayerNorm and heads see tokens
# only, and attention takes sequences of nearly one length together (`layout_end_to_end`).
# Outputs stand where those of the padded batch do. All of it has gradients. How many tokens there are is
# known only when it runs, so that this is nothing for functions that are compiled as a whole. For what is
# compiled in parts, once a size, there are few sizes: the row is filled up to one of them
# (`size_for`).
#
# Shapes: T tokens of a batch with what fills them up; as everywhere B rows, L slots of a row, P
# predictions.


_BY_TOKEN = ("sequence", "start_logits", "end_logits", "tag_logits", "sampled_ids", "replaced_logits")
_BY_SEQUENCE = ("pooled", "logits", "next_sentence_logits", "vectors")
_BY_PREDICTION = ("masked_lm_logits",)


class Laid(NamedTuple):
    """A batch end to end.

    Attributes:
      features: of one row, [1, T], [1, B] and [1, B x P or Q], as `BertEncoder.stages` reads them.
      slots: int32, in [0, B x L): where each token stood, without what fills them up.
      shape: B and L.
    """

    features: Tensors
    slots: tf.Tensor
    shape: list


def run(
    model: Staged,
    features: Tensors,
    dropout_seed: tf.Tensor | None = None,
    left_out: tuple[str, ...] = ("seen",),
) -> Tensors:
    """Runs all stages of a model on the tokens of a batch.

    Args:
      model: list of stages.
      features: `input_ids`, `input_mask` and `segment_ids` int32 [B, L], one sequence a row, and, where it
        has them, `position_ids` [B, L]; where the model predicts masked tokens, `masked_lm_positions` int32
        [B, P], or what `varlen.predicted_first` reads. A row without tokens, or of 0 in `example_weights`
        float32 [B], counts as one token.
      dropout_seed: int32 [N], or None to switch dropout off. Other numbers are dropped than with padding.
      left_out: names of tensors that are not returned.

    Returns:
      What the stages gave, in the shapes that the padded batch has it; zeros at padding. Where the batch has
      `masked_lm_weights` float32 [B, P], `masked_lm_logits` are those of the predictions that
      `varlen.find_predicted` finds, [Q, V].
    """
    laid = lay_end_to_end(features)
    carried = stages.run(model, laid.features, dropout_seed)
    return {
        name: _as_padded(name, value, laid, features)
        for name, value in carried.items()
        if name not in left_out
    }


def lay_end_to_end(features: Tensors) -> Laid:
    """Returns a batch of one sequence a row as one row without padding; arguments as of `run`."""
    mask_BL = _is_token(features)
    batch, length = sizes(mask_BL)
    is_token, lengths_B = tf.reshape(mask_BL, [-1]), tf.reduce_sum(tf.cast(mask_BL, tf.int32), axis=1)
    slots = tf.cast(tf.where(is_token)[:, 0], tf.int32)
    tokens = tf.size(slots)
    size = size_for(tokens, batch * length)

    def filled(values):
        return tf.pad(values, [[0, size - tokens]])[None]

    def of_tokens(name):
        return filled(tf.gather(tf.reshape(features[name], [-1]), slots))

    def places_of(slots_BX):
        """Returns tokens' places among all. What fills up a row's slots may be padding."""
        before = tf.cumsum(tf.cast(is_token, tf.int32), exclusive=True)
        return tf.minimum(tf.gather(before, slots_BX + tf.range(batch)[:, None] * length), tokens - 1)

    row = {
        "input_ids": of_tokens("input_ids"),
        "segment_ids": of_tokens("segment_ids"),
        "input_mask": filled(tf.ones_like(slots)),
        "position_ids": of_tokens("position_ids") if "position_ids" in features else filled(slots % length),
        "sequence_ids": filled(slots // length + 1),
        "cls_positions": tf.reshape(places_of([[predicted_first(features)]]), [1, -1]),
        "sequence_lengths": lengths_B,
    }
    slots_BP = _predicted(features)
    if slots_BP is not None:
        row["masked_lm_positions"] = _counted(places_of(slots_BP), features)[None]
    if "masked_lm_weights" in features:
        row["masked_lm_weights"] = _counted(features["masked_lm_weights"], features)[None]
    return Laid(row, slots, [batch, length])


def _is_token(features: Tensors) -> tf.Tensor:
    """Returns bool [B, L]: what is computed. Of a row that has nothing to compute it is the first slot."""
    mask_BL = features["input_mask"] > 0
    weights_B = features.get("example_weights")
    if weights_B is not None:
        mask_BL &= weights_B[:, None] > 0
    is_first = tf.range(sizes(mask_BL)[1]) == 0
    return mask_BL | (~tf.reduce_any(mask_BL, axis=1, keepdims=True) & is_first)


def _predicted(features: Tensors) -> tf.Tensor | None:
    """Returns the slots of the predicted tokens, int32 [B or 1, P]; None where there are none."""
    first = predicted_first(features)
    return tf.range(first)[None] if first else features.get("masked_lm_positions")


def _counted(values_BP: tf.Tensor, features: Tensors) -> tf.Tensor:
    """Returns the values of the predictions that are made, flat."""
    if "masked_lm_weights" not in features:
        return tf.reshape(values_BP, [-1])
    return pick_predicted(values_BP, find_predicted(features["masked_lm_weights"]))


def _as_padded(name: str, value: tf.Tensor, laid: Laid, features: Tensors) -> tf.Tensor:
    batch, length = laid.shape
    if name in _BY_SEQUENCE:
        return value[0]
    if name in _BY_PREDICTION:
        is_all = "masked_lm_weights" not in features
        return tf.reshape(value, [batch, -1, value.shape[-1]]) if is_all else value[0]
    if name not in _BY_TOKEN:
        raise ValueError(f"{name} is by token, by sequence or by prediction?")
    of_tokens = value[0, : tf.size(laid.slots)]
    rows = tf.scatter_nd(laid.slots[:, None], of_tokens, [batch * length, *value.shape[2:]])
    return tf.reshape(rows, [batch, length, *value.shape[2:]])
