"""Pre-training examples of tokenised documents: pairs of segments, then masks. No files here, and no TensorFlow ops.

Source: the rules of Google's `create_pretraining_data.py`. Two stages: `plan_pairs` decides which tokens make an
example (five numbers each, so that millions fit in memory), `build_examples` writes out and masks a batch of them.

Shapes: N examples, L = max_seq_length, P = max_predictions_per_seq, V = vocabulary.
"""

import dataclasses

import numpy as np

from official.config import ConfigError
from official.data.tokenization import TokenizedDocuments, Vocabulary

# Columns of a plan: two half-open ranges of `TokenizedDocuments.tokens`, and whether the second is a random one.
A_START, A_END, B_START, B_END, IS_RANDOM = range(5)
_SPECIALS_PER_EXAMPLE = 3  # [CLS] A [SEP] B [SEP]
_SHARE_MASKED = 0.8  # of the predicted tokens; half of the others stay, half become a random word
_SHARE_NOT_RANDOM = 0.9


@dataclasses.dataclass(frozen=True)
class Rules:
    """How examples are made; the fields are the flags of the same names."""

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    dupe_factor: int = 10
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    do_whole_word_mask: bool = False

    def __post_init__(self):
        """Raises ConfigError for a value out of range."""
        _check(self, "max_seq_length", 8, 2**15)
        _check(self, "max_predictions_per_seq", 1, self.max_seq_length)
        _check(self, "dupe_factor", 1, 2**15)
        _check(self, "masked_lm_prob", 0.0, 1.0)
        _check(self, "short_seq_prob", 0.0, 1.0)

    @property
    def max_pair_length(self) -> int:
        return self.max_seq_length - _SPECIALS_PER_EXAMPLE


def _check(rules: Rules, name: str, minimum, maximum) -> None:
    value = getattr(rules, name)
    if not minimum <= value <= maximum:
        bound = "max_seq_length=" if name == "max_predictions_per_seq" else ""
        raise ConfigError(f"--{name}={value} is out of range. Allowed: {minimum} to {bound}{maximum}.")


def check_documents(documents: TokenizedDocuments) -> None:
    """Raises ConfigError where there are too few documents to draw a random next segment from another one."""
    if documents.num_documents < 2:
        raise ConfigError(f"--input_files hold {documents.num_documents} documents with text, expected at least 2: a random next segment "
                          "comes from another document. Documents are separated by blank lines.")


# ---------------------------------------------------------------------------------------------------------------------
# Pairs of segments


def plan_shard(documents: TokenizedDocuments, rules: Rules, seed: int, shard: int, num_shards: int) -> np.ndarray:
    """Returns the plan of a shard: the pairs of every num_shards-th document, for all duplicates, shuffled.

    The draws of a duplicate depend on (seed, shard, duplicate) and nothing else.

    Returns:
      int64 [N, 5], columns A_START .. IS_RANDOM.
    """
    pairs = []
    for duplicate in range(rules.dupe_factor):
        rng = np.random.default_rng([seed, shard, duplicate])
        for document in range(shard, documents.num_documents, num_shards):
            pairs.extend(plan_pairs(documents, document, rules, rng))
    plan = np.array(pairs, np.int64).reshape(-1, 5)
    return np.random.default_rng([seed, shard, rules.dupe_factor]).permutation(plan)


def plan_pairs(documents: TokenizedDocuments, document: int, rules: Rules, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Cuts a document into pairs of segments, half of them with a second segment from another document.

    Sentences are collected up to a target length; the first 1..n-1 of them are segment A. Segment B is the rest, or
    sentences from a random place of another document, in which case the rest is used again for the next pair.
    """
    starts = documents.sentence_starts
    sentence, last = documents.document_starts[document:document + 2].tolist()
    target = rules.max_pair_length
    if rng.random() < rules.short_seq_prob:
        target = 2 + _draw(rng, rules.max_pair_length - 1)
    pairs = []
    while sentence < last:
        end = _reach(starts, sentence, last, target)
        middle = sentence + 1 + _draw(rng, max(1, end - sentence - 1))
        is_random = end - sentence == 1 or rng.random() < 0.5
        a_start, a_end = int(starts[sentence]), int(starts[middle])
        if is_random:
            b_start, b_end = _random_segment(documents, document, target - (a_end - a_start), rng)
        else:
            b_start, b_end = a_end, int(starts[end])
        pairs.append((*_truncate(a_start, a_end, b_start, b_end, rules.max_pair_length, rng), is_random))
        sentence = middle if is_random else end
    return pairs


def _draw(rng: np.random.Generator, count: int) -> int:
    """Returns a whole number below `count` (five times the speed of Generator.integers for one number)."""
    return int(rng.random() * count)


def _reach(starts: np.ndarray, sentence: int, last: int, target: int) -> int:
    """Returns the end of the shortest run of sentences from `sentence` on with `target` tokens or more, `last` at most."""
    return min(last, sentence + 1 + int(np.searchsorted(starts[sentence + 1:last + 1], starts[sentence] + target)))


def _random_segment(documents: TokenizedDocuments, document: int, target: int, rng: np.random.Generator) -> tuple[int, int]:
    """Returns a range of at least `target` tokens, where there are so many, from a random place of another document."""
    other = _draw(rng, documents.num_documents - 1)
    other += other >= document
    first, last = documents.document_starts[other:other + 2].tolist()
    start = first + _draw(rng, last - first)
    end = _reach(documents.sentence_starts, start, last, max(1, target))
    return int(documents.sentence_starts[start]), int(documents.sentence_starts[end])


def _truncate(a_start: int, a_end: int, b_start: int, b_end: int, max_length: int,
              rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Shortens the longer segment, token by token at its front or its back at random, until both fit in max_length."""
    keep_a, keep_b = kept_lengths(a_end - a_start, b_end - b_start, max_length)
    cut_a, cut_b = a_end - a_start - keep_a, b_end - b_start - keep_b
    if cut_a:
        a_start += int(rng.binomial(cut_a, 0.5))
    if cut_b:
        b_start += int(rng.binomial(cut_b, 0.5))
    return a_start, a_start + keep_a, b_start, b_start + keep_b


def kept_lengths(a_length: int, b_length: int, max_length: int) -> tuple[int, int]:
    """Returns what is left of two segments when the longer one (of equals: B) loses tokens until they fit together."""
    if a_length + b_length <= max_length:
        return a_length, b_length
    keep_a, keep_b = (max_length + 1) // 2, max_length // 2
    if b_length < keep_b:
        return max_length - b_length, b_length
    if a_length < keep_a:
        return a_length, max_length - a_length
    return keep_a, keep_b


# ---------------------------------------------------------------------------------------------------------------------
# Masks


def masking_rng(rules: Rules, seed: int, shard: int) -> np.random.Generator:
    """Returns the generator of a shard's masks, apart from those of its duplicates and of its shuffle."""
    return np.random.default_rng([seed, shard, rules.dupe_factor + 1])


def build_examples(plan: np.ndarray, documents: TokenizedDocuments, vocabulary: Vocabulary, rules: Rules,
                   rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Writes out and masks the examples of a plan.

    Args:
      plan: int64 [N, 5], columns A_START .. IS_RANDOM.

    Returns:
      {feature of `schema.pretraining_schema`: array [N, length]}.
    """
    input_ids_NL, is_text_NL, features = _assemble(plan, documents, vocabulary, rules)
    lengths_N = features["input_mask"].sum(axis=1)
    wanted_N = np.clip(np.rint(lengths_N * rules.masked_lm_prob).astype(np.int64), 1, rules.max_predictions_per_seq)
    if rules.do_whole_word_mask:
        chosen_NL = _choose_words(input_ids_NL, is_text_NL, wanted_N, vocabulary.continuations(), rng)
    else:
        chosen_NL = _choose_tokens(is_text_NL, wanted_N, rng)
    return features | _mask(input_ids_NL, chosen_NL, vocabulary, rules, rng)


def _assemble(plan: np.ndarray, documents: TokenizedDocuments, vocabulary: Vocabulary, rules: Rules):
    """Lays out [CLS] A [SEP] B [SEP] and padding. Returns ids [N, L], bool [N, L] where a token of text is, features."""
    a_start, a_end, b_start, b_end = (plan[:, column, None] for column in (A_START, A_END, B_START, B_END))
    a_stop = 1 + a_end - a_start  # the column of the first [SEP]
    b_stop = a_stop + 1 + b_end - b_start  # and of the second one
    column = np.arange(rules.max_seq_length)
    in_a = (column >= 1) & (column < a_stop)
    in_b = (column > a_stop) & (column < b_stop)
    source = np.where(in_a, a_start + column - 1, np.where(in_b, b_start + column - a_stop - 1, 0))
    input_ids_NL = np.where(in_a | in_b, documents.tokens[source].astype(np.int32), vocabulary.id_of("[PAD]"))
    input_ids_NL[:, 0] = vocabulary.id_of("[CLS]")
    input_ids_NL[(column == a_stop) | (column == b_stop)] = vocabulary.id_of("[SEP]")
    features = {
        "input_mask": (column <= b_stop).astype(np.int32),
        "segment_ids": ((column > a_stop) & (column <= b_stop)).astype(np.int32),
        "next_sentence_labels": plan[:, IS_RANDOM, None].astype(np.int32),
    }
    return input_ids_NL, in_a | in_b, features


def _choose_tokens(is_text_NL: np.ndarray, wanted_N: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Chooses wanted_N tokens of text in each row, all equally likely. Returns bool [N, L]."""
    key_NL = np.where(is_text_NL, rng.random(is_text_NL.shape), np.inf)
    rank_NL = np.argsort(np.argsort(key_NL, axis=1), axis=1)
    return (rank_NL < wanted_N[:, None]) & is_text_NL


def _choose_words(input_ids_NL: np.ndarray, is_text_NL: np.ndarray, wanted_N: np.ndarray, continuations_V: np.ndarray,
                  rng: np.random.Generator) -> np.ndarray:
    """Chooses whole words in random order, leaving out those that would make more than wanted_N tokens. Returns bool [N, L]."""
    after_text_NL = np.pad(is_text_NL, ((0, 0), (1, 0)))[:, :-1]
    first_piece_NL = is_text_NL & ~(continuations_V[input_ids_NL] & after_text_NL)
    word_NL = np.cumsum(first_piece_NL, axis=1) - 1
    rows, columns = np.nonzero(is_text_NL)
    size_NW = np.zeros(is_text_NL.shape, np.int64)
    np.add.at(size_NW, (rows, word_NL[rows, columns]), 1)
    order_NW = np.argsort(np.where(size_NW > 0, rng.random(size_NW.shape), np.inf), axis=1)
    taken_N, chosen_NW = np.zeros_like(wanted_N), np.zeros(size_NW.shape, bool)
    row_N = np.arange(len(wanted_N))
    for word_N in order_NW.T:
        size_N = size_NW[row_N, word_N]
        fits_N = (size_N > 0) & (taken_N + size_N <= wanted_N)
        chosen_NW[row_N, word_N] = fits_N
        taken_N += np.where(fits_N, size_N, 0)
    return chosen_NW[row_N[:, None], word_NL] & is_text_NL


def _mask(input_ids_NL: np.ndarray, chosen_NL: np.ndarray, vocabulary: Vocabulary, rules: Rules,
          rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Replaces chosen tokens: 80 % by [MASK], 10 % by themselves, 10 % by any word of the vocabulary."""
    slots = slice(0, rules.max_predictions_per_seq)
    positions_NP = np.argsort(~chosen_NL, axis=1, kind="stable")[:, slots]  # the chosen ones first, in ascending order
    used_NP = np.take_along_axis(chosen_NL, positions_NP, axis=1)
    labels_NP = np.take_along_axis(input_ids_NL, positions_NP, axis=1)
    fate_NP = rng.random(labels_NP.shape)
    random_NP = rng.integers(vocabulary.size, size=labels_NP.shape)
    other_NP = np.where(fate_NP < _SHARE_NOT_RANDOM, labels_NP, random_NP)
    replaced_NP = np.where(fate_NP < _SHARE_MASKED, vocabulary.id_of("[MASK]"), other_NP)
    masked_NL = input_ids_NL.copy()
    np.put_along_axis(masked_NL, positions_NP, np.where(used_NP, replaced_NP, labels_NP).astype(np.int32), axis=1)
    return {
        "input_ids": masked_NL,
        "masked_lm_positions": np.where(used_NP, positions_NP, 0).astype(np.int32),
        "masked_lm_ids": np.where(used_NP, labels_NP, 0).astype(np.int32),
        "masked_lm_weights": used_NP.astype(np.float32),
    }
