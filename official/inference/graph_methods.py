"""A model's methods as TensorFlow functions, from text to answers: the content of an export.

Once saved they are independent of this package, and give the same results as `official.inference.Model`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from official.config import BertConfig
from official.data.squad.answers import AnswerRules
from official.data.squad.features import WindowRules
from official.data.tables import labels as labels_lib
from official.data.word_pieces.tokenizer import MASK
from official.inference import methods, signatures
from official.inference.graph_tokenizer import Decoded, Pieces, Splitter, repeated
from official.inference.rows import TOKENS
from official.inference.source import UNUSED_STAGES, Source, head_outputs, make_network, name_of
from official.io import model_folder
from official.io.model_folder import Special
from official.modeling import stages
from official.modeling.objectives import unit
from official.modeling.stages import Stage

# -----------------------------------------------------------------------------------------------------------
# Weights
#
# A variable is float32. With bf16, weights that are read as bfloat16 and the embedding tables are bfloat16;
# with int8, dense kernels and the table of words are 8-bit integers, with a scale in NAME/scale, per column
# or, for the table, per word.


SCALE = "/scale"
WORDS, TYPES = "bert/embeddings/word_embeddings", "bert/embeddings/token_type_embeddings"
TABLES = (WORDS, TYPES, "bert/embeddings/position_embeddings")


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A weight of a stage: its variable, and the type in which it is read."""

    name: str
    dtype: tf.DType


# A stage of a model without variables, and its `Stage.weights` with a Leaf for each tensor.
Read = tuple[Stage, Any]


def stages_of(bert: BertConfig, head: str, classes: int, dtype: str) -> list[Read]:
    """Returns the stages of a model that the outputs of its head need, without values of weights.

    Args:
      bert, head, classes: see `source.make_network`.
      dtype: fp32, bf16 or int8.
    """
    with tf.Graph().as_default():
        model = make_network(bert, head, classes, dtype)
        names = {variable.handle.op.name: name_of(variable) for variable in model.variables}
        used = [stage for stage in model.stages() if stage.name not in UNUSED_STAGES.get(head, ())]

        def leaf(tensor: tf.Tensor | None) -> Leaf | None:
            if tensor is None:
                return None
            operation = tensor.op
            while operation.type != "VarHandleOp":  # skips casts and reads
                operation = operation.inputs[0].op
            return Leaf(names[operation.name], tensor.dtype)

        return [(stage, tf.nest.map_structure(leaf, stage.weights())) for stage in used]


def leaves_of(reads: list[Read]) -> dict[str, tf.DType]:
    """Returns {name of a variable: type in which it is read}; float32 if there are several."""
    found: dict[str, tf.DType] = {}
    for leaf in filter(None, tf.nest.flatten([leaves for _, leaves in reads])):
        found[leaf.name] = leaf.dtype if found.get(leaf.name) in (None, leaf.dtype) else tf.float32
    return found


class Weights(tf.Module):
    """Variables by name."""

    def __init__(self, leaves: dict[str, tf.DType], read: Callable[[str], np.ndarray], dtype: str):
        """Reads the weights, each once.

        Args:
          leaves: {name: type in which the weight is read}.
          read: function from a name to float32 values. Raises ConfigError for missing ones.
          dtype: fp32, bf16 or int8.
        """
        super().__init__(name="weights")
        self.variables_by_name: dict[str, tf.Variable] = {}
        for name, kind in leaves.items():
            values = read(name)
            if dtype == "int8" and (name == WORDS or name.endswith("/kernel")):
                whole, scale = quantise(values, axis=1 if name == WORDS else 0)
                self._add(name, whole, tf.int8)
                self._add(name + SCALE, scale, tf.float32)
            else:
                is_short = dtype == "bf16" and (kind == tf.bfloat16 or name in TABLES)
                self._add(name, values, tf.bfloat16 if is_short else tf.float32)

    def _add(self, name: str, values: np.ndarray, dtype: tf.DType) -> None:
        value = tf.cast(values, dtype)
        self.variables_by_name[name] = tf.Variable(value, trainable=False, name=name, dtype=dtype)

    def tensor(self, leaf: Leaf | None) -> tf.Tensor | None:
        """Returns the weight of a leaf, in its type."""
        if leaf is None:
            return None
        value = tf.convert_to_tensor(self.variables_by_name[leaf.name])
        if value.dtype != tf.int8:
            return tf.cast(value, leaf.dtype)
        scale = tf.convert_to_tensor(self.variables_by_name[leaf.name + SCALE])
        return tf.cast(tf.cast(value, tf.float32) * scale, leaf.dtype)

    def rows(self, name: str, numbers: tf.Tensor) -> tf.Tensor:
        """Returns rows of a table, float32 [.., D]."""
        rows = tf.cast(tf.gather(self.variables_by_name[name], numbers), tf.float32)
        scale = self.variables_by_name.get(name + SCALE)
        return rows if scale is None else rows * tf.gather(scale, numbers)


def quantise(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns int8 values and the float32 scale by which they are multiplied, constant along an axis."""
    scale = np.abs(values).max(axis=axis, keepdims=True).astype(np.float32) / np.float32(127)
    scale = np.where(scale > 0, scale, np.float32(1))
    return np.rint(values / scale).astype(np.int8), scale


# -----------------------------------------------------------------------------------------------------------
# Network
#
# Shapes: R rows of L positions, B of them per batch.


Features = dict[str, tf.Tensor]


def loaded(bert: BertConfig, weights: Weights, reads: list[Read]) -> Callable[[Features], stages.Tensors]:
    """Returns a function of batches: the stages, beginning with the embeddings. The weights are read here,
    and dequantized if they are integers, once and not per batch. Of the tables of words and segments the rows
    of a batch are read: ids that do not exist are an error."""
    first, leaves = reads[0]
    types = None if bert.reads_segments else leaves.types
    own = tf.nest.map_structure(weights.tensor, leaves._replace(words=None, types=types))
    read = [(stage, tf.nest.map_structure(weights.tensor, leaves)) for stage, leaves in reads[1:]]

    def run(features: Features) -> stages.Tensors:
        ids_BL = features["input_ids"]
        words_TW = weights.rows(WORDS, tf.reshape(ids_BL, [-1]))
        if bert.reads_segments:
            words_TW += weights.rows(TYPES, tf.reshape(features["segment_ids"], [-1]))
        numbers_BL = tf.reshape(tf.range(tf.size(ids_BL)), tf.shape(ids_BL))
        carried: stages.Tensors = {}
        of_rows = {**features, "input_ids": numbers_BL}
        stages.run_one(first, carried, of_rows, None, own._replace(words=words_TW))
        for stage, values in read:
            stages.run_one(stage, carried, features, None, values)
        return carried

    return run


def places_of(ids: tf.Tensor, bert: BertConfig) -> tf.Tensor:
    """Returns the number of tokens before each one in its row, int32 like the ids [..., L], for a family that
    counts positions from the id of padding; padding may be anywhere.

    Source: transformers, `RobertaEmbeddings.create_position_ids_from_input_ids`.
    """
    is_token = tf.cast(tf.not_equal(ids, bert.position_offset - 1), tf.int32)
    counted = tf.maximum(tf.cumsum(is_token, axis=-1) * is_token - 1, 0)
    # Never more than the index in the row: this fails for rows that are too long.
    return tf.minimum(counted, tf.range(bert.positions)[: tf.shape(ids)[-1]])


def in_batches(
    compute: Callable[[Features], Sequence[tf.Tensor]], features: Features, like: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Computes rows of all lengths, a few at a time, so that memory does not grow with their number.

    Args:
      compute: function from the features of a batch, as long as its longest row, to tensors of B rows.
      features: int32 [R, ..]; `input_mask` has 1 for the tokens, from the first position on.
      like: tensors without rows, of the shapes and types that `compute` returns.

    Returns:
      The tensors of all rows, in order.
    """
    lengths_R = tf.reduce_sum(features["input_mask"], axis=1)
    order_R = tf.argsort(-lengths_R, stable=True)

    def body(first: tf.Tensor, *done: tf.Tensor) -> tuple[tf.Tensor, ...]:
        width = lengths_R[order_R[first]]
        rows = order_R[first : first + tf.maximum(TOKENS // width, 1)]
        batch = {name: tf.gather(values, rows) for name, values in features.items()}
        batch |= {name: batch[name][:, :width] for name in ("input_ids", "input_mask", "segment_ids")}
        made = zip(done, compute(batch))
        return first + tf.size(rows), *(tf.concat([before, more], 0) for before, more in made)

    shapes = tf.TensorShape([]), *(tf.TensorShape([None, *each.shape[1:]]) for each in like)
    _, *found = tf.while_loop(
        lambda first, *_: first < tf.size(order_R), body, (0, *like), shapes, parallel_iterations=1
    )
    back_R = tf.math.invert_permutation(order_R)
    return [tf.gather(values, back_R) for values in found]


# -----------------------------------------------------------------------------------------------------------
# Texts as rows
#
# Shapes: N texts of T word pieces in all, rows of L positions.


def pairs(first: Pieces, second: Pieces, has_second_N: tf.Tensor, special: Special, most: int) -> Features:
    """Returns [CLS] A [SEP] B [SEP], or [CLS] A [SEP] without a second text.

    The longer one of a pair (of equals: B) loses its last token until there are at most `most`, see
    `official.data.pretraining.examples.kept_lengths`.
    """
    room = max(most - 3, 0)
    a_N, b_N = first.lengths_N, second.lengths_N
    kept_a_N = tf.minimum(a_N, tf.maximum((room + 1) // 2, room - b_N))
    kept_a_N = tf.where(has_second_N, kept_a_N, tf.minimum(a_N, max(most - 2, 0)))
    kept_b_N = tf.minimum(b_N, tf.maximum(room // 2, room - a_N))
    b = _shortened(ragged(second), tf.where(has_second_N, kept_b_N, 0))
    return padded([_shortened(ragged(first), kept_a_N), b], special, has_second_N)


def ragged(pieces: Pieces) -> tf.RaggedTensor:
    """Returns the ids of the pieces of each text, ragged [N, ..]."""
    return _of_lengths(pieces.ids_T, pieces.lengths_N)


def _shortened(ids: tf.RaggedTensor, lengths_N: tf.Tensor) -> tf.RaggedTensor:
    """Returns the first ids of each row, as many as its length."""
    places = tf.ragged.range(tf.cast(ids.row_lengths(), tf.int32)).flat_values
    kept = places < tf.gather(lengths_N, ids.value_rowids())
    return _of_lengths(tf.boolean_mask(ids.flat_values, kept), lengths_N)


def _of_lengths(values_T: tf.Tensor, lengths_N: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(values_T, tf.cast(lengths_N, tf.int64), validate=False)


def padded(parts: list[tf.RaggedTensor], special: Special, has_second_N: tf.Tensor | None = None) -> Features:
    """Returns rows of one text or two, padded to the longest one.

    Args:
      parts: ids of the first texts, ragged [N, ..], and of the second ones if there may be any.
      special: ids of the special tokens.
      has_second_N: bool: whether a row has a second text, which may be empty.

    Returns:
      `input_ids`, `input_mask` and `segment_ids`, int32 [N, L].
    """
    count = parts[0].nrows(tf.int32)
    cls_N1, sep_N1 = (tf.fill([count, 1], number) for number in (special.cls, special.sep))
    first = tf.concat([cls_N1, parts[0], sep_N1], 1)
    joined = first
    if has_second_N is not None:
        ends = tf.ragged.boolean_mask(sep_N1, has_second_N[:, None])
        joined = tf.concat([first, parts[1], ends], 1)
    lengths_N1, first_N1 = (tf.cast(each.row_lengths(), tf.int32)[:, None] for each in (joined, first))
    ids_NL = joined.to_tensor(0)
    places_L = tf.range(tf.shape(ids_NL)[1])
    is_token_NL = places_L < lengths_N1
    return {
        "input_ids": ids_NL,
        "input_mask": tf.cast(is_token_NL, tf.int32),
        "segment_ids": tf.cast(is_token_NL & (places_L >= first_N1), tf.int32),
    }


def masked(texts_N: tf.Tensor, split: Splitter, special: Special) -> Features:
    """Returns [CLS] text [SEP] with the [MASK]s of the text, and their positions.

    Returns:
      As `padded`, and `masked_lm_positions` int32 [N, P]: positions of the masks, then 0; at least one
      column.
    """
    between = tf.strings.split(texts_N, MASK)
    pieces = split(between.flat_values)
    ends = tf.fill([tf.size(pieces.lengths_N), 1], special.mask)
    with_ends = tf.concat([ragged(pieces), ends], 1)
    # A mask follows every part; the last one of a text is removed again.
    of_texts = tf.RaggedTensor.from_row_splits(with_ends, between.row_splits, validate=False).merge_dims(1, 2)
    features = padded([of_texts[:, :-1]], special)
    found = tf.where(features["input_ids"] == special.mask)
    count, places = tf.size(texts_N, tf.int64), tf.cast(found[:, 1], tf.int32)
    positions_NP = tf.RaggedTensor.from_value_rowids(places, found[:, 0], count, validate=False).to_tensor(0)
    more = tf.maximum(1 - tf.shape(positions_NP)[1], 0)
    return {**features, "masked_lm_positions": tf.pad(positions_NP, [[0, 0], [0, more]])}


# -----------------------------------------------------------------------------------------------------------
# Windows
#
# Equivalent to `official.data.squad.features` and `official.data.squad.answers`. Shapes: N questions, each
# with its context, of T word pieces in all; R windows of L positions.


class Windows(NamedTuple):
    """[CLS] question [SEP] window [SEP], the windows of a question one after the other.

    Attributes:
      questions_R: int32, ascending: question of the window.
      first_lengths_R: int32: tokens of [CLS] question [SEP].
      first_pieces_R: int32: first piece, among those of all contexts.
      lengths_R: int32: number of pieces.
    """

    questions_R: tf.Tensor
    first_lengths_R: tf.Tensor
    first_pieces_R: tf.Tensor
    lengths_R: tf.Tensor


def cut_windows(questions: Pieces, contexts: Pieces, rules: WindowRules) -> Windows:
    """Cuts windows of as many pieces as fit after the question; each begins `doc_stride` pieces after the
    previous one. A question without text, or whose context has no piece, has none."""
    query_N = tf.minimum(questions.lengths_N, rules.max_query_length)
    room_N = rules.max_seq_length - query_N - 3  # [CLS] question [SEP] window [SEP]
    stride_N = tf.minimum(room_N, rules.doc_stride)
    more_N = tf.maximum(contexts.lengths_N - room_N + stride_N - 1, 0) // stride_N
    has_none_N = (contexts.lengths_N == 0) | questions.text.is_empty_N
    of_R, number_R = repeated(tf.where(has_none_N, 0, 1 + more_N))
    shift_R = number_R * tf.gather(stride_N, of_R)
    left_R = tf.gather(contexts.lengths_N, of_R) - shift_R
    return Windows(
        of_R,
        tf.gather(query_N, of_R) + 2,
        tf.gather(contexts.firsts_N, of_R) + shift_R,
        tf.minimum(tf.gather(room_N, of_R), left_R),
    )


def rows_of(windows: Windows, questions: Pieces, contexts: Pieces, special: Special) -> Features:
    """Returns `input_ids`, `input_mask` and `segment_ids` int32 [R, L], as long as the longest window."""
    asked = tf.gather(ragged(questions), windows.questions_R)
    places = tf.ragged.range(windows.first_pieces_R, windows.first_pieces_R + windows.lengths_R)
    pieces = places.with_flat_values(tf.gather(contexts.ids_T, places.flat_values))
    parts = [_shortened(asked, windows.first_lengths_R - 2), pieces]
    return padded(parts, special, tf.fill(tf.shape(windows.questions_R), True))


def is_context(windows: Windows, width: tf.Tensor) -> tf.Tensor:
    """Returns a mask, bool [R, L], of the tokens that are pieces of the context."""
    places_L = tf.range(width)
    first_R1 = windows.first_lengths_R[:, None]
    return (places_L >= first_R1) & (places_L < first_R1 + windows.lengths_R[:, None])


def is_max_context(windows: Windows, width: tf.Tensor, pieces: tf.Tensor) -> tf.Tensor:
    """Returns a mask, bool [R, L], of the context's pieces for which this window of the question has the most
    context; see `official.data.squad.answers`.

    Args:
      windows: windows of all questions.
      width: L.
      pieces: T.
    """
    is_context_RL = is_context(windows, width)
    of_K = tf.cast(tf.where(is_context_RL), tf.int32)
    rows_K = of_K[:, 0]
    places_K = of_K[:, 1] - tf.gather(windows.first_lengths_R, rows_K)
    lengths_K = tf.gather(windows.lengths_R, rows_K)
    nearest_K = tf.cast(tf.minimum(places_K, lengths_K - 1 - places_K), tf.float64)
    scores_K = nearest_K + tf.constant(0.01, tf.float64) * tf.cast(lengths_K, tf.float64)
    pieces_K = tf.gather(windows.first_pieces_R, rows_K) + places_K
    best_K = tf.gather(tf.math.unsorted_segment_max(scores_K, pieces_K, pieces), pieces_K)
    candidates_K = tf.where(scores_K == best_K, rows_K, tf.int32.max)
    first_K = tf.gather(tf.math.unsorted_segment_min(candidates_K, pieces_K, pieces), pieces_K)
    shape = tf.shape(is_context_RL)
    return tf.scatter_nd(of_K, tf.cast(first_K == rows_K, tf.int32), shape) > 0


# -----------------------------------------------------------------------------------------------------------
# Answers
#
# Equivalent to `official.data.squad.answers`. Shapes: N questions, R windows of L positions, K
# candidates, D of them the first with their text.


class Candidates(NamedTuple):
    """Spans of the contexts, grouped by question, best first.

    Attributes:
      questions: int32, ascending.
      begins, ends: int32: offsets of the first characters, and of the ends.
      scores: float64: sum of the two logits.
    """

    questions: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor
    scores: tf.Tensor

    def picked(self, places: tf.Tensor) -> Candidates:
        return Candidates(*(tf.gather(values, places) for values in self))


def find(
    start_RL: tf.Tensor, end_RL: tf.Tensor, windows: Windows, contexts: Pieces, rules: AnswerRules
) -> dict[str, tf.Tensor]:
    """Finds the answers.

    Args:
      start_RL, end_RL: float32 logits.
      windows: windows of all questions.
      contexts: contexts of N questions.
      rules: conditions for answers.

    Returns:
      As in `signatures.SIGNATURES`: `text`, `start`, `end`, `score`, [N] each.
    """
    candidates = _search(start_RL, end_RL, windows, contexts, rules)
    firsts_D, texts_D = _distinct(candidates, contexts.text)
    best, count = candidates.picked(firsts_D), tf.size(contexts.lengths_N)
    ranks_D = tf.range(tf.size(best.questions)) - tf.searchsorted(best.questions, best.questions)
    kept = tf.where(ranks_D < rules.n_best_size)[:, 0]
    nulls_N = None
    if rules.version_2_with_negative:  # minimum score of [CLS] over a question's windows; 0 without one
        of_R = windows.questions_R
        sums_R = tf.cast(start_RL[:, 0], tf.float64) + tf.cast(end_RL[:, 0], tf.float64)
        windows_N = tf.math.unsorted_segment_sum(tf.ones_like(of_R), of_R, count)
        nulls_N = tf.where(windows_N > 0, tf.math.unsorted_segment_min(sums_R, of_R, count), 0.0)
    return _predicted(best.picked(kept), tf.gather(texts_D, kept), nulls_N, count, rules)


def _search(
    start_RL: tf.Tensor, end_RL: tf.Tensor, windows: Windows, contexts: Pieces, rules: AnswerRules
) -> Candidates:
    """Returns all pairs of one of the best starts and one of the best ends of a window that are answers; for
    questions without such a pair, the best single-piece answer of each window."""
    width = tf.shape(start_RL)[1]
    may_start_RL = is_max_context(windows, width, tf.size(contexts.ids_T))
    starts = _best(start_RL, may_start_RL, rules.n_best_size)
    ends = _best(end_RL, is_context(windows, width), rules.n_best_size)
    lengths = ends[:, None, :] - starts[:, :, None] + 1
    is_pair = (starts[:, :, None] >= 0) & (ends[:, None, :] >= 0)
    is_pair &= (lengths >= 1) & (lengths <= rules.max_answer_length)
    rows, first, last = tf.unstack(tf.cast(tf.where(is_pair), tf.int32), num=3, axis=1)
    first = tf.gather_nd(starts, tf.stack([rows, first], 1))
    last = tf.gather_nd(ends, tf.stack([rows, last], 1))
    has_pair_N = tf.math.unsorted_segment_sum(
        tf.ones_like(rows), tf.gather(windows.questions_R, rows), tf.size(contexts.lengths_N)
    )
    is_without_R = tf.gather(has_pair_N, windows.questions_R) == 0
    may_RL = may_start_RL & is_without_R[:, None]
    others = tf.cast(tf.where(tf.reduce_any(may_RL, axis=1))[:, 0], tf.int32)
    sums_RL = tf.cast(start_RL, tf.float64) + tf.cast(end_RL, tf.float64)
    sums_RL = tf.where(may_RL, sums_RL, tf.constant(float("-inf"), tf.float64))
    best = tf.argmax(tf.gather(sums_RL, others), axis=1, output_type=tf.int32)
    pairs = (rows, others), (first, best), (last, best)
    rows_K, first_K, last_K = (tf.concat(both, 0) for both in pairs)
    starts_K = tf.gather_nd(start_RL, tf.stack([rows_K, first_K], 1))
    ends_K = tf.gather_nd(end_RL, tf.stack([rows_K, last_K], 1))
    offsets_K = tf.gather(windows.first_pieces_R - windows.first_lengths_R, rows_K)
    found = Candidates(
        tf.gather(windows.questions_R, rows_K),
        tf.gather(contexts.begins_T, offsets_K + first_K),
        tf.gather(contexts.ends_T, offsets_K + last_K),
        tf.cast(starts_K, tf.float64) + tf.cast(ends_K, tf.float64),
    )
    # Grouped by question, best first; ties in the order of discovery.
    by_score = tf.argsort(found.scores, direction="DESCENDING", stable=True)
    order = tf.gather(by_score, tf.argsort(tf.gather(found.questions, by_score), stable=True))
    return found.picked(order)


def _best(logits_RL: tf.Tensor, may_RL: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the positions of the largest logits where `may` allows it, int32 [R, at most count]; -1 if none
    is left."""
    lowest = tf.constant(float("-inf"), logits_RL.dtype)
    found = tf.math.top_k(tf.where(may_RL, logits_RL, lowest), tf.minimum(count, tf.shape(logits_RL)[1]))
    return tf.where(tf.gather(may_RL, found.indices, batch_dims=1), found.indices, -1)


def _distinct(candidates: Candidates, text: Decoded) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first candidate of each question with each text, int32 [D], and the texts."""
    lengths_K = candidates.ends - candidates.begins
    begins_K = tf.gather(text.splits_N1, candidates.questions) + candidates.begins
    number = tf.range(tf.reduce_sum(lengths_K)) - tf.repeat(tf.cumsum(lengths_K, exclusive=True), lengths_K)
    codes = tf.gather(text.codes_C, tf.repeat(begins_K, lengths_K) + number)
    ragged_codes = tf.RaggedTensor.from_row_lengths(codes, lengths_K, validate=False)
    texts_K = tf.strings.unicode_encode(ragged_codes, "UTF-8")
    text_numbers = tf.cast(tf.unique(texts_K).idx, tf.int64)
    keys = tf.cast(candidates.questions, tf.int64) * tf.size(texts_K, tf.int64) + text_numbers
    distinct = tf.unique(keys)
    firsts_D = tf.math.unsorted_segment_min(tf.range(tf.size(keys)), distinct.idx, tf.size(distinct.y))
    return firsts_D, tf.gather(texts_K, firsts_D)


def _predicted(
    best: Candidates, texts_D: tf.Tensor, nulls_N: tf.Tensor | None, count: tf.Tensor, rules: AnswerRules
) -> dict[str, tf.Tensor]:
    """Returns the answers, from the n-best candidates of all questions and the scores of "no answer"."""
    numbers_N = tf.range(count)
    firsts_N = tf.searchsorted(best.questions, numbers_N)
    counts_N = tf.searchsorted(best.questions, numbers_N, side="right") - firsts_N
    has_one_N = counts_N > 0
    scores = tf.RaggedTensor.from_row_lengths(best.scores, counts_N, validate=False)
    lowest = tf.constant(float("-inf"), tf.float64)
    scores_NE = tf.pad(scores.to_tensor(lowest), [[0, 0], [0, 1]], constant_values=lowest)
    chosen_N, is_answer_N, is_listed_N = scores_NE[:, 0], has_one_N, has_one_N
    if nulls_N is not None:
        is_answer_N &= nulls_N - chosen_N <= rules.null_score_diff_threshold
        chosen_N = tf.where(is_answer_N, chosen_N, nulls_N)
        # In the list, "no answer" follows everything that is at least as good, at any length of the list;
        # otherwise the last text makes room for it.
        ranks_N1 = tf.reduce_sum(tf.cast(scores_NE >= nulls_N[:, None], tf.int32), axis=1, keepdims=True)
        is_last_E = tf.range(tf.shape(scores_NE)[1]) == rules.n_best_size - 1
        listed_NE = tf.where((ranks_N1 < rules.n_best_size) & is_last_E, lowest, scores_NE)
        scores_NE = tf.concat([listed_NE, nulls_N[:, None]], 1)
        is_listed_N = tf.ones_like(has_one_N)

    # The probability of the score among those of its list; 1 without a list.
    most_N = tf.where(is_listed_N, tf.reduce_max(scores_NE, axis=1), 0.0)
    sums_N = tf.reduce_sum(tf.exp(scores_NE - most_N[:, None]), axis=1)
    share_N = tf.where(is_listed_N, tf.exp(chosen_N - most_N) / sums_N, 1.0)

    def picked(values: tf.Tensor, other: Any) -> tf.Tensor:
        padded = tf.concat([values, tf.constant(other)[None]], 0)
        return tf.gather(padded, tf.where(is_answer_N, firsts_N, tf.size(values)))

    found = {"text": picked(texts_D, ""), "start": picked(best.begins, 0), "end": picked(best.ends, 0)}
    return {**found, "score": tf.cast(share_N, tf.float32)}


# -----------------------------------------------------------------------------------------------------------
# Methods
#
# Shapes: N texts, R rows of L positions, P masks of a text, C classes.


Outputs = dict[str, tf.Tensor]


def pooled(sequence_BLD: tf.Tensor, mask_BL: tf.Tensor, pooling: str) -> tf.Tensor:
    """Returns one vector for each sequence, float32 [B, D], see `EmbeddingSettings.pooling`."""
    sequence_BLD, is_token_BL1 = tf.cast(sequence_BLD, tf.float32), mask_BL[..., None] > 0
    if pooling == "cls":
        return sequence_BLD[:, 0]
    if pooling == "max":
        return tf.reduce_max(tf.where(is_token_BL1, sequence_BLD, float("-inf")), 1)
    counts_BL1 = tf.cast(is_token_BL1, tf.float32)
    return tf.reduce_sum(sequence_BLD * counts_BL1, 1) / tf.reduce_sum(counts_BL1, 1)


class Methods:
    """The methods of a model, and `tensors`, as functions of tensors with the outputs in `signatures`."""

    def __init__(self, source: Source, networks: dict[str, Callable], words: Any):
        """`networks`: {method: function that loads its network}; `words`: a table of words by their ids
        (int64), None if no method takes text."""
        self._source, self._networks, self._words = source, networks, words
        vocabulary, self._bert = source.vocabulary, source.bert
        self._special = vocabulary.special_ids
        if words is not None:
            self._split = Splitter(vocabulary)
            if "answer" in networks:
                source.check_pairs()
        self.main = signatures.main_method(list(networks))

    def answer(self, question: tf.Tensor, context: tf.Tensor) -> Outputs:
        """Returns the answers to questions, string [N] each."""
        window_rules, rules = methods.answer_rules(self._source)
        questions, contexts = self._split(question), self._split(context)
        cut = cut_windows(questions, contexts, window_rules)
        features = rows_of(cut, questions, contexts, self._special)
        width = tf.maximum(tf.shape(features["input_ids"])[1], 1)
        run = self._networks["answer"]()

        def compute(batch: Features) -> list[tf.Tensor]:
            carried = run(batch)
            padding = [[0, 0], [0, width - tf.shape(batch["input_ids"])[1]]]
            return [tf.pad(carried[name], padding) for name in ("start_logits", "end_logits")]

        none = tf.zeros([0, width])
        start_RL, end_RL = in_batches(compute, features, [none, none])
        return find(start_RL, end_RL, cut, contexts, rules)

    def classify(self, sentence_a: tf.Tensor, sentence_b: tf.Tensor) -> Outputs:
        """Returns the labels of sentences, string [N] each. '' as second sentence means none, unless the
        model was trained with pairs."""
        classes = methods.classes_of(self._source)
        has_second_N = tf.fill(tf.shape(sentence_b), classes.texts == 2)
        if classes.texts is None:
            has_second_N = sentence_b != ""
        checks = []
        if classes.texts == 1 or self._bert.why_no_pairs(self._source.vocabulary.marks_pairs):
            problem = "sentence_b must be '': the model takes single sentences."
            checks = [tf.debugging.Assert(tf.reduce_all(sentence_b == ""), [problem])]
        with tf.control_dependencies(checks):
            first, second = self._split(sentence_a), self._split(sentence_b)
        features = pairs(first, second, has_second_N, self._special, self._source.length())
        run = self._networks["classify"]()
        none = tf.zeros([0, len(classes.labels)])
        (logits_NC,) = in_batches(lambda batch: [run(batch)["logits"]], features, [none])
        kinds = {
            labels_lib.ONE: tf.nn.softmax,
            labels_lib.SEVERAL: tf.sigmoid,
            labels_lib.NUMBER: tf.identity,
        }
        values_NC, is_number = kinds[classes.kind](logits_NC), classes.kind == labels_lib.NUMBER
        labels_NC = tf.broadcast_to(tf.constant(classes.labels), tf.shape(values_NC))
        best_N = tf.argmax(values_NC, axis=1)
        if is_number:
            best_N = tf.zeros_like(best_N)
        label_N = tf.gather(labels_NC, best_N, batch_dims=1)
        label_N = tf.fill(tf.shape(best_N), "") if is_number else label_N
        score_N = tf.gather(values_NC, best_N, batch_dims=1)
        return {"label": label_N, "score": score_N, "labels": labels_NC, "scores": values_NC}

    def embed(self, text: tf.Tensor) -> Outputs:
        """Returns the vectors of texts, string [N]."""
        settings, positions = methods.embedding_settings(self._source), self._bert.positions
        most = min(settings.max_seq_length or positions, positions)
        pieces = self._split(tf.strings.join([settings.prompt(), text]))
        features = padded([ragged(pieces)[:, : most - 2]], self._special)  # longer ones are cut
        run = self._networks["embed"]()
        dense = [(*each.weights(), methods.ACTIVATIONS[each.activation]) for each in settings.dense]

        def compute(batch: Features) -> list[tf.Tensor]:
            vectors_BD = pooled(run(batch)["sequence"], batch["input_mask"], settings.pooling)
            for kernel_IO, bias_O, activation in dense:
                vectors_BD = activation(tf.matmul(vectors_BD, kernel_IO) + bias_O)
            return [unit(vectors_BD) if settings.normalize else vectors_BD]

        size = settings.size(self._bert.hidden_size)
        (vectors_ND,) = in_batches(compute, features, [tf.zeros([0, size])])
        return {"embedding": vectors_ND}

    def fill_mask(self, text: tf.Tensor) -> Outputs:
        """Returns the most probable words of the masks of texts, string [N]."""
        positions, top = self._bert.positions, signatures.TOP_WORDS
        size = self._source.vocabulary.size
        features = masked(text, self._split, self._special)
        width = tf.shape(features["input_ids"])[1]
        problem = "Too many word pieces with [CLS] and [SEP]. Shorten the text:"
        check = tf.debugging.Assert(width <= positions, [problem, width, "of", positions])
        with tf.control_dependencies([check]):
            positions_NP = tf.identity(features["masked_lm_positions"])
        features["masked_lm_positions"], count = positions_NP, tf.shape(positions_NP)[1]
        run = self._networks["fill_mask"]()

        def compute(batch: Features) -> list[tf.Tensor]:
            logits_BPV = run(batch)["masked_lm_logits"][..., :size]
            found = tf.math.top_k(tf.nn.softmax(logits_BPV), top)
            return [found.values, found.indices]

        like = [tf.zeros([0, count, top]), tf.zeros([0, count, top], tf.int32)]
        shares_NPT, ids_NPT = in_batches(compute, features, like)
        tokens_NPT = self._words.lookup(tf.cast(ids_NPT, tf.int64))
        is_mask_NP1 = positions_NP[..., None] > 0  # position 0 is [CLS]
        tokens_NPT, shares_NPT = tf.where(is_mask_NP1, tokens_NPT, ""), tf.where(is_mask_NP1, shares_NPT, 0.0)
        masks = tf.reduce_max(tf.reduce_sum(tf.cast(is_mask_NP1, tf.int32), [1, 2]))
        return {"tokens": tokens_NPT[:, :masks], "scores": shares_NPT[:, :masks]}

    def tensors(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Outputs:
        """Returns the outputs of the main head for token ids, int32 [N, L] each."""
        features = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
        if self._bert.position_offset:
            features["position_ids"] = places_of(input_ids, self._bert)
        if self.main == "fill_mask":
            places_L = tf.range(tf.shape(input_ids)[1])
            features["masked_lm_positions"] = tf.broadcast_to(places_L, tf.shape(input_ids))
        carried = self._networks[self.main]()(features)
        found = head_outputs(carried, self.main)
        return {name: tf.cast(values, tf.float32) for name, values in found.items()}


# -----------------------------------------------------------------------------------------------------------
# Model


def only_ids_of(source: Source) -> str | None:
    """Returns the reason for which functions of TensorFlow can only take a model's token ids; None if they
    can take text."""
    if source.vocabulary.tokenizer is not None:
        return "TensorFlow's operations cannot express its tokenizer"
    if methods.embedding_settings(source).lower_case:
        return "do_lower_case of its sentence-transformers settings is not the tokenizer's"
    reasons = {"tag": "it tags words", "choice": "it chooses from several texts"}
    return reasons.get(model_folder.KIND_OF.get(str(source.problem_type), ""))


class GraphModel(tf.Module):
    """A model whose methods are functions of TensorFlow.

    Each method that it has is an attribute with the name of its signature, and so is `tensors`. Models for
    which `only_ids_of` gives a reason have only `tensors`.
    """

    def __init__(self, source: Source, vocabulary_file: str | None, dtype: str = "fp32"):
        """Builds the functions.

        Args:
          source: the model.
          vocabulary_file: file of its words, one per line, which becomes an asset; None: token ids only.
          dtype: fp32, bf16 or int8.

        Raises:
          ConfigError: if a weight is missing or cannot be read, or the vocabulary is not supported.
        """
        super().__init__(name="bert")
        names, self.words = source.abilities(), None
        if vocabulary_file is None:
            names = [signatures.main_method(names)]
        else:
            self.vocabulary = tf.saved_model.Asset(vocabulary_file)
            kinds = tf.lookup.TextFileIndex
            columns = tf.int64, kinds.LINE_NUMBER, tf.string, kinds.WHOLE_LINE
            lines = tf.lookup.TextFileInitializer(vocabulary_file, *columns)
            self.words = tf.lookup.StaticHashTable(lines, "[UNK]")
        reads = {name: stages_of(source.bert, name, source.classes, dtype) for name in names}
        leaves = leaves_of([each for stages in reads.values() for each in stages])
        self.weights = Weights(leaves, source.values, dtype)
        load = functools.partial(loaded, source.bert, self.weights)
        networks: dict[str, Callable] = {name: functools.partial(load, reads[name]) for name in names}
        functions = Methods(source, networks, self.words)
        inputs_of = {name: signature.inputs for name, signature in signatures.SIGNATURES.items()}
        self._names = (*(names if vocabulary_file else ()), signatures.TENSORS)
        for name in self._names:
            inputs = inputs_of.get(name, signatures.TENSOR_INPUTS)
            kinds = [tf.TensorSpec([None, *each.shape], each.dtype, name=each.name) for each in inputs]
            call = tf.function(getattr(functions, name), input_signature=kinds, autograph=False)
            setattr(self, name, call)

    @property
    def functions(self) -> dict[str, Any]:
        """Returns {name of a signature: function of its inputs}."""
        return {name: getattr(self, name) for name in self._names}
