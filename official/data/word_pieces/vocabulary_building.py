"""Learns a new vocabulary of word pieces, or a new tokenizer of byte-level BPE or Unigram, from text, and
chooses words to add to a vocabulary.

A vocabulary of word pieces is the same for the same text on any machine. Words are found and counted by the
same rules as in tokenization; the trainer of Hugging Face's package `tokenizers` decides on the merges. It
gets all characters in a fixed order; otherwise it would number them randomly, and break ties accordingly.

A vocabulary's fragmentation is the average number of pieces in a word. The words to add lower that of the
text the most: those with the highest count * (pieces - 1). Source: the fragment score of AVocaDo, Hong et al.
2021, arXiv 2110.13434. Only whole words are added, so all other words keep their pieces, except those that
begin with an added one, since tokenization takes the longest piece from left to right.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from official.data.rows import ragged
from official.data.word_pieces.vocabulary import CONTINUATION, SPECIAL_TOKENS, Vocabulary
from official.data.word_pieces.wordpiece import UNKNOWN, WordPiece, find_words
from official.io import tokenizer_files
from official.io.errors import ConfigError
from official.io.model_folder import MAX_WORD_CHARACTERS

_MIN_CHARACTERS = 100  # minimum number of characters in a vocabulary; large ones have more
_REPEATED = 1 << 16  # maximum number of repetitions of a word in one text for the trainer
MIN_COUNT = 10  # minimum count of a word to add, whose embedding is learned only from its contexts
_UNUSED = re.compile(r"\[unused\d+\]")
_WHITE = re.compile("[ \t\r\n]+")


@dataclasses.dataclass(frozen=True)
class BuiltVocabulary:
    """A new vocabulary and its composition."""

    words: list[str]
    learned: int  # number of special tokens, characters, and learned pieces
    unused: int  # number of [unusedN] entries
    covered: float  # share of the text's words whose characters are all in the vocabulary


def build_vocabulary(
    sentences: Iterable[str], vocab_size: int, do_lower_case: bool = True, show_progress: bool = False
) -> BuiltVocabulary:
    """Learns a vocabulary of exactly `vocab_size` word pieces, padded with [unusedN] entries if the text has
    fewer.

    Args:
      sentences: the text.
      vocab_size: number of entries, including the special tokens.
      do_lower_case: whether the text is lower-cased and stripped of accents first.
      show_progress: whether the trainer draws progress bars.

    Raises:
      ConfigError: for a size without room for the special tokens and the characters of the text, or for an
        empty text.
    """
    if not (counts := count_words(sentences, do_lower_case)):
        raise ConfigError("--input_files hold no text to build a vocabulary from.")
    of_characters: collections.Counter[str] = collections.Counter()
    for word, count in counts.items():
        for character in word:
            of_characters[character] += count
    # The most frequent ones, ties in the order of Unicode.
    order = sorted(of_characters, key=lambda character: (-of_characters[character], character))
    characters = set(order[: max(_MIN_CHARACTERS, vocab_size // 8)])
    known = {word: count for word, count in counts.items() if characters.issuperset(word)}
    inside = {character for word in known for character in word[1:]}
    fixed = [*SPECIAL_TOKENS, *sorted(characters), *(CONTINUATION + each for each in sorted(inside))]
    if len(fixed) > vocab_size:
        lacking = f"the {len(SPECIAL_TOKENS)} special tokens and the characters of the text"
        more = f"{len(fixed)} entries. Raise --vocab_size to {len(fixed)} or more."
        raise ConfigError(f"--vocab_size={vocab_size} does not hold {lacking}, {more}")
    learned = _learn(known, fixed, vocab_size, show_progress)
    unused = [f"[unused{number}]" for number in range(vocab_size - len(learned))]
    covered = sum(known.values()) / sum(counts.values())
    return BuiltVocabulary(learned + unused, len(learned), len(unused), covered)


_ROBERTA = tokenizer_files.ROBERTA


def build_tokenizer(
    sentences: Iterable[str], kind: str, vocab_size: int, show_progress: bool = False
) -> tuple[str, int]:
    """Learns a tokenizer like RoBERTa's (bpe) or XLM-RoBERTa's (unigram), with their special tokens.

    Args:
      sentences: the text, which is not lower-cased.
      kind: bpe or unigram.
      vocab_size: maximum number of entries, including the special tokens; a short text gives fewer.
      show_progress: whether the trainer draws progress bars.

    Returns:
      The content of a tokenizer.json, and the number of its entries.

    Raises:
      ConfigError: for a size without room for the special tokens and the 256 bytes, or for an empty text.
    """
    special = [_ROBERTA.cls, _ROBERTA.pad, _ROBERTA.sep, _ROBERTA.unk]
    least = len(special) + 1 + 256
    if kind == "bpe" and vocab_size < least:
        raise ConfigError(
            f"--vocab_size={vocab_size} does not hold the 256 bytes. Raise it to {least} or more."
        )
    texts, split = iter(sentences), tokenizers.pre_tokenizers
    first = next(texts, None)
    if first is None:
        raise ConfigError("--input_files hold no text to build a vocabulary from.")
    shared: Any = {"vocab_size": vocab_size, "special_tokens": special, "show_progress": show_progress}
    if kind == "bpe":
        made = tokenizers.Tokenizer(tokenizers.models.BPE())
        made.pre_tokenizer = split.ByteLevel(add_prefix_space=False)
        trainer: Any = tokenizers.trainers.BpeTrainer(initial_alphabet=split.ByteLevel.alphabet(), **shared)
    else:
        made = tokenizers.Tokenizer(tokenizers.models.Unigram())
        made.normalizer = tokenizers.normalizers.NFKC()
        made.pre_tokenizer = split.Sequence([split.WhitespaceSplit(), split.Metaspace()])
        trainer = tokenizers.trainers.UnigramTrainer(unk_token=_ROBERTA.unk, **shared)
    made.train_from_iterator(itertools.chain([first], texts), trainer)
    made.add_special_tokens([tokenizers.AddedToken(_ROBERTA.mask, lstrip=True, special=True)])
    decoders = {"bpe": tokenizers.decoders.ByteLevel, "unigram": tokenizers.decoders.Metaspace}
    made.decoder = decoders[kind]()
    ids = made.get_vocab()
    cls, sep = ((token, ids[token]) for token in (_ROBERTA.cls, _ROBERTA.sep))
    made.post_processor = tokenizers.processors.RobertaProcessing(
        sep, cls, trim_offsets=True, add_prefix_space=False
    )
    return made.to_str(pretty=True), made.get_vocab_size()


def split_words(sentence: str, vocabulary: Vocabulary) -> list[str]:
    """Returns the words of a sentence, which are split into word pieces; for other tokenizers than BERT's,
    splits at white space."""
    if vocabulary.tokenizer is not None:
        return sentence.split()
    return find_words(_WHITE.sub(" ", sentence), vocabulary.do_lower_case)


def count_words(sentences: Iterable[str], do_lower_case: bool) -> collections.Counter:
    """Counts the occurrences of each word that has word pieces."""
    chunks = collections.Counter(itertools.chain.from_iterable(map(_WHITE.split, sentences)))
    counts: collections.Counter[str] = collections.Counter()
    for chunk, count in chunks.items():
        for word in find_words(chunk, do_lower_case):
            if len(word) <= MAX_WORD_CHARACTERS:
                counts[word] += count
    return counts


def _learn(counts: dict[str, int], fixed: list[str], vocab_size: int, show_progress: bool) -> list[str]:
    """Returns the fixed entries, and pieces from frequent to rare, at most `vocab_size` in all."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=SPECIAL_TOKENS[1]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=fixed,
        continuing_subword_prefix=CONTINUATION,
        show_progress=show_progress,
    )
    # A text in which each word occurs as often as its count.
    text = (
        f"{word} " * min(_REPEATED, count - done)
        for word, count in counts.items()
        for done in range(0, count, _REPEATED)
    )
    tokenizer.train_from_iterator(text, trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


class AddedWord(NamedTuple):
    """A word to add to the vocabulary.

    Attributes:
      word: its entry in the vocabulary.
      frequency: number of its occurrences in the text.
      pieces: ids of its word pieces in the old vocabulary.
    """

    word: str
    frequency: int
    pieces: tuple[int, ...]


def choose_words(counts: Mapping[str, int], vocabulary: Vocabulary, number: int) -> list[AddedWord]:
    """Returns the words that lower the fragmentation of a text the most, at most `number` of them.

    Words without a letter, words rarer than MIN_COUNT, and words that become [UNK] are left out: the last
    have no pieces to initialize their embedding from.

    Args:
      counts: {tokenised word: number of its occurrences in the text}.
      vocabulary: vocabulary of word pieces.
      number: maximum number of words.
    """
    words = [word for word, count in counts.items() if count >= MIN_COUNT and any(map(str.isalpha, word))]
    split = ragged.split(*WordPiece(vocabulary).tokenize_words(words))
    unknown = vocabulary.ids[UNKNOWN]
    found = []
    for word, ids in zip(words, split):
        pieces = tuple(ids.tolist())
        if len(pieces) > 1 and unknown not in pieces:
            found.append(AddedWord(word, counts[word], pieces))
    found.sort(key=lambda one: (-one.frequency * (len(one.pieces) - 1), one.word))
    return found[:number]


def with_words(
    words: Sequence[str], added: Sequence[AddedWord]
) -> tuple[list[str], dict[int, tuple[int, ...]]]:
    """Puts words into a vocabulary: first in place of its [unusedN] entries, from the top, which keeps the
    model's shape, then at its end.

    Returns:
      The words of the new vocabulary; and {id of an added word: ids of its pieces}, see
      `checkpoint.convert.with_vocabulary`.
    """
    grown = list(words)
    free = [number for number, word in enumerate(words) if _UNUSED.fullmatch(word)]
    pieces: dict[int, tuple[int, ...]] = {}
    for place, one in enumerate(added):
        number = free[place] if place < len(free) else len(grown)
        grown[number : number + 1] = [one.word]
        pieces[number] = one.pieces
    return grown, pieces


def fragmentation(counts: Mapping[str, int], vocabulary: Vocabulary) -> float:
    """Returns the average number of word pieces per word of a text; 0 for an empty text."""
    _, lengths = WordPiece(vocabulary).tokenize_words(list(counts))
    total = sum(counts.values())
    return float(np.dot(lengths, np.fromiter(counts.values(), np.int64, len(counts)))) / max(total, 1)
