"""Pairs of segments -> examples with masked tokens: the second half of making pre-training examples.

Source: the rules of Google's `create_pretraining_data.py`; whole words as its `--do_whole_word_mask`.

Shapes: N examples, L = max_seq_length, P = max_predictions_per_seq, T tokens of text in a row at most, W
words.
"""

import numpy as np

from official.data.pretraining.corpus import TokenizedDocuments
from official.data.pretraining.examples import Examples
from official.data.pretraining.pairs import A_LENGTH, A_START, B_LENGTH, B_START, IS_RANDOM, ExampleRules
from official.data.rows import ragged
from official.data.word_pieces.vocabulary import Vocabulary

_SHARE_MASKED = 0.8  # of the predicted tokens; half of the others stay, half become a random word
_SHARE_NOT_RANDOM = 0.9


def build_examples(
    plan: np.ndarray,
    documents: TokenizedDocuments,
    vocabulary: Vocabulary,
    rules: ExampleRules,
    rng: np.random.Generator,
) -> Examples:
    """Writes out and masks the examples of a plan.

    Args:
      plan: int32 [N, 5], columns `pairs.A_START` .. `pairs.IS_RANDOM`.
      rng: all draws come from it.
    """
    input_ids_NL = _assemble(plan, documents.tokens, vocabulary, rules.max_seq_length)
    a_length_N, text_N = plan[:, A_LENGTH], plan[:, A_LENGTH] + plan[:, B_LENGTH]
    wanted_N = np.minimum(rules.predictions(text_N + 3), text_N)
    if rules.do_whole_word_mask:
        chosen_NT = _choose_words(
            _continues(input_ids_NL, a_length_N, text_N, vocabulary), text_N, wanted_N, rng
        )
    else:
        chosen_NT = _choose_tokens(text_N, wanted_N, rng)
    # One index for both axes: numpy is twice as fast with it.
    row, text_column = np.divmod(np.flatnonzero(chosen_NT), chosen_NT.shape[1])  # row by row, ascending
    column = _column(text_column, a_length_N[row])
    place, predictions_N = row * rules.max_seq_length + column, np.bincount(row, minlength=len(plan))
    slot = ragged.ranges(np.arange(len(plan)) * rules.max_predictions_per_seq, predictions_N)
    positions_NP, labels_NP = np.zeros((2, len(plan), rules.max_predictions_per_seq), np.int32)
    labels = input_ids_NL.ravel()[place]
    positions_NP.ravel()[slot], labels_NP.ravel()[slot] = column, labels
    input_ids_NL.ravel()[place] = _replace(labels, vocabulary, rng)
    return Examples(
        input_ids=input_ids_NL,
        lengths=text_N + 3,
        first_lengths=a_length_N + 2,
        positions=positions_NP,
        labels=labels_NP,
        predictions=predictions_N,
        is_random=plan[:, IS_RANDOM] != 0,
    )


def _assemble(plan: np.ndarray, tokens: np.ndarray, vocabulary: Vocabulary, length: int) -> np.ndarray:
    """Lays out [CLS] A [SEP] B [SEP] and padding. Returns ids [N, L] of the type of `tokens`."""
    first_sep_N = 1 + plan[:, A_LENGTH]
    second_sep_N = 1 + first_sep_N + plan[:, B_LENGTH]
    column_L = np.arange(length, dtype=np.int32)
    shift_NL = np.where(
        column_L <= first_sep_N[:, None],
        plan[:, A_START, None] - 1,
        (plan[:, B_START] - first_sep_N - 1)[:, None],
    )
    input_ids_NL = np.take(
        tokens, shift_NL + column_L, mode="clip"
    )  # a separator and the padding take what lies beside the segment
    input_ids_NL[column_L > second_sep_N[:, None]] = vocabulary.id_of("[PAD]")
    row_N = np.arange(len(plan))
    input_ids_NL[:, 0] = vocabulary.id_of("[CLS]")
    input_ids_NL[row_N, first_sep_N] = input_ids_NL[row_N, second_sep_N] = vocabulary.id_of("[SEP]")
    return input_ids_NL


def _column(text_column: np.ndarray, a_length: np.ndarray) -> np.ndarray:
    """Returns the place in a row of the n-th token of its text, which is A and B without the special
    tokens."""
    return text_column + 1 + (text_column >= a_length)


def _choose_tokens(text_N: np.ndarray, wanted_N: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Chooses wanted_N of the text_N tokens of each row, every set of them equally likely. Returns bool [N,
    T].

    Source: Robert Floyd's algorithm (J. Bentley, "A Sample of Brilliance", CACM 1987), for all rows at once.
    """
    rows, spare = np.arange(len(text_N)), text_N.max()
    chosen = np.zeros((len(text_N), spare + 1), bool)  # rows that have all they want choose the spare column
    for number in range(wanted_N.max()):
        last_N = text_N - wanted_N + number
        drawn_N = (rng.random(len(rows)) * (last_N + 1)).astype(np.int64)
        taken_N = np.where(chosen[rows, np.minimum(drawn_N, spare)], last_N, drawn_N)
        chosen[rows, np.where(number < wanted_N, taken_N, spare)] = True
    return chosen[:, :spare]


def _continues(
    input_ids_NL: np.ndarray, a_length_N: np.ndarray, text_N: np.ndarray, vocabulary: Vocabulary
) -> np.ndarray:
    """Returns bool [N, T]: whether the n-th token of the text goes on with the word of the one before it, in
    the same segment."""
    text_column = np.arange(text_N.max())
    column = np.minimum(_column(text_column, a_length_N[:, None]), input_ids_NL.shape[1] - 1)
    continues_NT = vocabulary.continuations()[np.take_along_axis(input_ids_NL, column, axis=1)]
    return continues_NT & (text_column != a_length_N[:, None]) & (text_column > 0)


def _choose_words(
    continues_NT: np.ndarray, text_N: np.ndarray, wanted_N: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Chooses whole words in random order, leaving out those that would make more than wanted_N tokens.
    Returns bool [N, T]."""
    is_text_NT = np.arange(continues_NT.shape[1]) < text_N[:, None]
    word_NT = np.cumsum(~continues_NT, axis=1) - 1
    row_N = np.arange(len(text_N))
    size_NW = np.zeros(continues_NT.shape, np.int64)
    np.add.at(size_NW, (np.nonzero(is_text_NT)[0], word_NT[is_text_NT]), 1)
    order_NW = np.argsort(np.where(size_NW > 0, rng.random(size_NW.shape), np.inf), axis=1)
    taken_N, chosen_NW = np.zeros_like(wanted_N), np.zeros(size_NW.shape, bool)
    for word_N in order_NW.T:
        size_N = size_NW[row_N, word_N]
        fits_N = (size_N > 0) & (taken_N + size_N <= wanted_N)
        chosen_NW[row_N, word_N] = fits_N
        taken_N += np.where(fits_N, size_N, 0)
        if np.array_equal(taken_N, wanted_N):
            break
    return np.take_along_axis(chosen_NW, word_NT, axis=1) & is_text_NT


def _replace(labels: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator) -> np.ndarray:
    """Returns the tokens that replace chosen ones: 80 % [MASK], 10 % themselves, 10 % any word of the
    vocabulary."""
    fate = rng.random(len(labels))
    other = np.where(fate < _SHARE_NOT_RANDOM, labels, rng.integers(vocabulary.size, size=len(labels)))
    return np.where(fate < _SHARE_MASKED, vocabulary.id_of("[MASK]"), other)
