"""Attention and forward pass without padding: packed sequences separated, tokens of a batch concatenated."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from official import native
from official.modeling import stages
from official.modeling.layers import sizes
from official.modeling.stages import Staged, Tensors

# -----------------------------------------------------------------------------------------------------------
# Sizes


_SIZES = 64  # maximum: more sizes waste less, but need more compilations
_STEP = 8  # sizes are multiples of this
# On GPUs compilation is slower, and a step faster.
_SIZES_ON_GPUS = 32
_STEP_ON_GPUS = 32


def _step() -> int:
    """Returns the step between sizes, for the devices of the strategy."""
    return _STEP if native.on_cpus() else _STEP_ON_GPUS


def predicted_first(features: dict[str, tf.Tensor]) -> int:
    """Returns the number of slots for predicted tokens at the start of each row, followed by [CLS]: 0 except
    for a batch that has `masked_lm_ids` [B, P] without their positions, `masked_lm_positions`."""
    if "masked_lm_positions" in features or "masked_lm_ids" not in features:
        return 0
    return features["masked_lm_ids"].shape[1]


def size_for(count: tf.Tensor, most: int | tf.Tensor) -> tf.Tensor:
    """Rounds a count up to one of a few sizes. At most a 64th of the maximum is wasted, or 7; on GPUs a 32nd,
    or 31.

    Args:
      count: int32, 0 or more.
      most: maximum of the count.
    """
    multiple, sizes = _step(), _SIZES if native.on_cpus() else _SIZES_ON_GPUS
    step = -(-most // (sizes * multiple)) * multiple
    return -(-tf.maximum(count, 1) // step) * step


def find_predicted(weights_BP: tf.Tensor) -> tf.Tensor:
    """Returns the indices of the predicted tokens whose weight, float32 [B, P], is not 0: int32 [Q], in [0,
    B x P), padded with B x P."""
    weights_N = tf.reshape(weights_BP, [-1])
    most = tf.size(weights_N)
    numbers = tf.cast(tf.where(weights_N > 0)[:, 0], tf.int32)
    missing = size_for(tf.size(numbers), most) - tf.size(numbers)
    return tf.pad(numbers, [[0, missing]], constant_values=most)


def pick_predicted(values_BP: tf.Tensor, numbers_Q: tf.Tensor) -> tf.Tensor:
    """Returns the values of the predicted tokens of `find_predicted`, [Q]; 0 for the padding."""
    return tf.gather(tf.pad(tf.reshape(values_BP, [-1]), [[0, 1]]), numbers_Q)


# -----------------------------------------------------------------------------------------------------------
# Separated sequences of packed rows
#
# A sequence goes to the shortest of a few widths that holds it. The number of sequences of a width is
# dynamic, rounded up, so this is not for steps that are compiled as a whole. Shapes: N sequences of a width
# of W tokens, T = B x L tokens of a batch, H heads of size K.


MIN_ROW_LENGTH = 128  # tokens; shorter rows were not measured
_WIDTHS = 16  # maximum: more widths waste less, but need more operations and compilations
_GROUPS = 4  # for concatenated sequences
_LOG_2 = 0.6931471805599453


class Indices(NamedTuple):
    """Indices that move vectors between packed rows and rows of one sequence.

    Attributes:
      reads: int32 [vectors of a width], one tensor per width: index of the source vector in the packed rows.
      writes: int32 [vectors of the packed rows]: index of the source vector among those of all widths; for
        padding the number of these, which is the index of a zero vector.
    """

    reads: tuple[tf.Tensor, ...]
    writes: tf.Tensor


class SequenceLayout(NamedTuple):
    """Mapping of a batch's sequences to separate rows. Its tuples have one element per width.

    Attributes:
      is_token_NW: bool, false after the end of a sequence.
      products: indices for query, key and value: packed [T, 3, H], separated [3, N, H, W].
      heads: indices for the outputs of attention: packed [T, H], separated [N, H, W].
    """

    is_token_NW: tuple[tf.Tensor, ...]
    products: Indices
    heads: Indices


def widths(length: int) -> list[int]:
    """Returns the widths for rows of `length` tokens, ascending: multiples of one number, and the row
    itself."""
    multiple = _step()
    step = -(-length // (_WIDTHS * multiple)) * multiple
    return [*range(step, length, step), length]


def layout_of_rows(sequence_ids_BL: tf.Tensor, heads: int) -> SequenceLayout:
    """Returns the layout of sequences, whose tokens may be anywhere in their row.

    Args:
      sequence_ids_BL: int32, number of a token's sequence in its row, from 1; 0 for padding. L is static.
      heads: H.
    """
    length = sequence_ids_BL.shape[1]
    order_T, sequences = _find_sequences(sequence_ids_BL)
    return _layout_of(order_T, list(zip(widths(length), sequences)), heads)


def layout_end_to_end(lengths_N: tf.Tensor, tokens: int | tf.Tensor, heads: int) -> SequenceLayout:
    """Returns the layout of sequences that are concatenated in one row, followed by padding.

    They are split into a few groups of similar length, each as wide as its longest sequence, so that widths
    depend on the sequences and not on the row. The sizes of the groups depend only on the number of
    sequences.

    Args:
      lengths_N: int32, number of tokens of each sequence, 1 or more.
      tokens: length of the row.
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
    """Returns the layout of sequences.

    Args:
      order_T: int32, the tokens of a batch, sequence by sequence.
      kinds: (width, (index of their first tokens in `order_T`, their lengths: int32 [N])) of each width.
      heads: H.
    """
    tokens = sizes(order_T)[0]
    is_token, near, exact = [], [], []
    for width, (first_N, length_N) in kinds:
        is_token_NW = tf.range(width) < length_N[:, None]
        # After its end a sequence repeats its last token, which is masked there.
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
    """Returns (the tokens sequence by sequence, int32 [T]; for each width its sequences: (index of their
    first tokens among these, their lengths), int32 [N])."""
    batch, length = sizes(sequence_ids_BL)
    most = tf.reduce_max(sequence_ids_BL) + 1
    sequence_T = tf.reshape(tf.range(batch)[:, None] * most + sequence_ids_BL, [-1])
    lengths = tf.math.unsorted_segment_sum(tf.ones_like(sequence_T), sequence_T, batch * most)
    firsts = tf.cumsum(lengths, exclusive=True)
    is_sequence = (tf.range(batch * most) % most > 0) & (lengths > 0)  # number 0 is padding
    kinds = tf.where(is_sequence, tf.searchsorted(tf.constant(widths(length)), lengths), -1)
    chosen = [_filled(tf.where(kinds == kind)[:, 0], batch * most) for kind in range(len(widths(length)))]
    firsts, lengths = (tf.pad(values, [[0, 1]]) for values in (firsts, lengths))  # the padding has length 0
    found = [(tf.gather(firsts, numbers_N), tf.gather(lengths, numbers_N)) for numbers_N in chosen]
    return tf.argsort(sequence_T, stable=True), found


def _filled(numbers_N: tf.Tensor, filling: tf.Tensor) -> tf.Tensor:
    """Returns the numbers, padded to one of a few counts, at most a quarter more, since operations are
    compiled per count."""
    count = tf.size(numbers_N)
    doublings = tf.math.log(tf.cast(tf.maximum(count - 1, 1), tf.float32)) / _LOG_2 + 1e-4
    step = tf.bitwise.left_shift(1, tf.maximum(tf.cast(doublings, tf.int32) - 2, 0))
    return tf.pad(numbers_N, [[0, -count % step]], constant_values=tf.cast(filling, numbers_N.dtype))


def _vectors(tokens_NW: list[tf.Tensor], parts: int, heads: int) -> list[tf.Tensor]:
    """Returns the vectors [parts, N, H, W], flat, for tokens with parts x H vectors each."""
    vectors = tf.reshape(tf.range(parts * heads), [parts, 1, heads, 1])
    return [tf.reshape(tokens[:, None] * (parts * heads) + vectors, [-1]) for tokens in tokens_NW]


def _inverse(reads: list[tf.Tensor], count: int | tf.Tensor) -> tf.Tensor:
    """Returns the index of each of 0, 1, .. count - 1 among all `reads`, int32 [count]; the number of all
    reads for missing ones."""
    joined = tf.minimum(tf.concat(reads, axis=0), count)
    number = tf.size(joined)
    # Missing ones stay 0.
    return number - tf.scatter_nd(joined[:, None], number - tf.range(number), [count + 1])[:-1]


def split_sequences(vectors: tf.Tensor, moves: Indices) -> list[tf.Tensor]:
    """Returns the vectors [.., K] of each width from the packed rows' [.., K].

    Vectors after the end of a sequence must have no gradient.
    """

    @tf.custom_gradient
    def move(vectors):
        return [tf.gather(vectors, reads) for reads in moves.reads], lambda *parts: _join(parts, moves.writes)

    return move(vectors)


def join_sequences(parts: list[tf.Tensor], moves: Indices) -> tf.Tensor:
    """Returns the vectors of the packed rows, zero for padding, from those of each width.

    Vectors after the end of a sequence have no gradient.
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
    """Concatenates vectors, followed by a zero vector."""
    return tf.concat([*parts, tf.zeros([1, parts[0].shape[-1]], parts[0].dtype)], axis=0)


# -----------------------------------------------------------------------------------------------------------
# Forward pass over tokens
#
# The sequences of a batch are concatenated in one row. Dense layers, LayerNorm and heads see tokens only, and
# attention groups sequences of similar length (`layout_end_to_end`). Outputs have the positions of the padded
# batch. All of it has gradients. The number of tokens is dynamic, so this is not for functions that are
# compiled as a whole. For parts that are compiled per size there are few sizes: the row is padded to one of
# them (`size_for`).
#
# Shapes: T tokens of a batch including this padding; B rows, L slots per row and P predictions as everywhere.


_BY_TOKEN = ("sequence", "start_logits", "end_logits", "tag_logits", "sampled_ids", "replaced_logits")
_BY_SEQUENCE = ("pooled", "logits", "next_sentence_logits", "vectors")
_BY_PREDICTION = ("masked_lm_logits",)


class Laid(NamedTuple):
    """A batch concatenated in one row.

    Attributes:
      features: features of one row, [1, T], [1, B] and [1, B x P or Q], as for `BertEncoder.stages`.
      slots: int32, in [0, B x L): original position of each token, without the padding.
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
      features: `input_ids`, `input_mask` and `segment_ids` int32 [B, L], one sequence per row, and, if
        present, `position_ids` [B, L]; if the model predicts masked tokens, `masked_lm_positions` int32
        [B, P], or the features that `varlen.predicted_first` reads. A row without tokens, or with 0 in
        `example_weights` float32 [B], counts as one token.
      dropout_seed: int32 [N], or None to switch dropout off. Masks differ from those with padding.
      left_out: names of tensors that are not returned.

    Returns:
      Outputs of the stages in the shapes of the padded batch; zeros at padding. If the batch has
      `masked_lm_weights` float32 [B, P], `masked_lm_logits` are those of the predictions of
      `varlen.find_predicted`, [Q, V].
    """
    laid = lay_end_to_end(features)
    carried = stages.run(model, laid.features, dropout_seed)
    return {
        name: _as_padded(name, value, laid, features)
        for name, value in carried.items()
        if name not in left_out
    }


def lay_end_to_end(features: Tensors) -> Laid:
    """Returns a batch with one sequence per row as one row without padding; arguments as in `run`."""
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
        """Returns the indices of tokens in the row. Unused slots may point to padding."""
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
    """Returns a mask, bool [B, L], of the tokens to compute; for an empty row its first slot."""
    mask_BL = features["input_mask"] > 0
    weights_B = features.get("example_weights")
    if weights_B is not None:
        mask_BL &= weights_B[:, None] > 0
    is_first = tf.range(sizes(mask_BL)[1]) == 0
    return mask_BL | (~tf.reduce_any(mask_BL, axis=1, keepdims=True) & is_first)


def _predicted(features: Tensors) -> tf.Tensor | None:
    """Returns the slots of the predicted tokens, int32 [B or 1, P]; None without any."""
    first = predicted_first(features)
    return tf.range(first)[None] if first else features.get("masked_lm_positions")


def _counted(values_BP: tf.Tensor, features: Tensors) -> tf.Tensor:
    """Returns the values of the actual predictions, flat."""
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
