"""Learns a new vocabulary of word pieces, or a new tokenizer of byte-level BPE or Unigram, from text.

A vocabulary of word pieces is the same for the same text on any machine. Words are found and counted by the
same rules as in tokenization; the trainer of Hugging Face's package `tokenizers` decides on the merges. It
gets all characters in a fixed order; otherwise it would number them randomly, and break ties accordingly.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable
from typing import Any

import tokenizers

from official.data.word_pieces.vocabulary import CONTINUATION, SPECIAL_TOKENS, Vocabulary
from official.data.word_pieces.wordpiece import find_words
from official.io import tokenizer_files
from official.io.errors import ConfigError
from official.io.model_folder import MAX_WORD_CHARACTERS

_MIN_CHARACTERS = 100  # minimum number of characters in a vocabulary; large ones have more
_REPEATED = 1 << 16  # maximum number of repetitions of a word in one text for the trainer
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
