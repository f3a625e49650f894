"""The vocabulary of word pieces. This module does not import TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import TYPE_CHECKING

import numpy as np
from absl import logging

from official.io import model_folder, vocabulary_files
from official.io.errors import ConfigError

if TYPE_CHECKING:
    from official.io.tokenizer_files import TokenizerFile

SPECIAL_TOKENS = vocabulary_files.SPECIAL_TOKENS
CONTINUATION = "##"
WORD_STARTS = ("\u0120", "\u2581")  # the space before a word in byte-level BPE and SentencePiece


def without_mark(word: str) -> str:
    """Returns a word piece without its continuation marker."""
    return word[len(CONTINUATION) :] if word.startswith(CONTINUATION) else word


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The words of a vocabulary file; a word's id is its line, counted from 0.

    Attributes:
      words: words in the order of their ids.
      sha256: hash of the file; for a tokenizer.json, of a vocab.txt with the same words.
      do_lower_case: whether text is lower-cased and stripped of accents first.
      max_length: number of tokens that texts are truncated to, from its files; None if unset.
      tokenizer: the tokenizer, if it is not BERT's; else None.
      marks_pairs: whether the second text of a pair has another segment id.
      max_word_characters: longer words become [UNK].
    """

    words: tuple[str, ...]
    sha256: str
    do_lower_case: bool = True
    max_length: int | None = None
    tokenizer: TokenizerFile | None = None
    marks_pairs: bool = True
    max_word_characters: int = model_folder.MAX_WORD_CHARACTERS

    @property
    def size(self) -> int:
        return len(self.words)

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """The id of every word."""
        return {word: number for number, word in enumerate(self.words)}

    @property
    def special(self) -> model_folder.Special:
        """The special tokens."""
        return SPECIAL_TOKENS if self.tokenizer is None else self.tokenizer.special

    @functools.cached_property
    def special_ids(self) -> model_folder.Special:
        """The ids of the special tokens."""
        return model_folder.Special(*map(self.ids.__getitem__, self.special))

    @property
    def separators(self) -> int:
        """Number of [SEP] between two texts."""
        return 1 if self.tokenizer is None else self.tokenizer.separators

    def cut(self, rows: int) -> Vocabulary:
        """Returns the vocabulary of a model whose embedding table has `rows` rows: words beyond it become
        unknown, with a warning. Raises ConfigError if a special token is among them."""
        if rows >= self.size:
            return self
        sizes = f"the vocabulary has {self.size:,} words, the model's embedding table {rows:,} rows"
        if beyond := [word for word in self.special if self.ids[word] >= rows]:
            raise ConfigError(f"vocab_file: {sizes}, and {beyond[0]} is beyond its end. Change --vocab_file.")
        logging.warning("%s: words from %r on become unknown.", sizes.capitalize(), self.words[rows])
        digest = hashlib.sha256(f"{self.sha256}, {rows} words".encode()).hexdigest()
        return dataclasses.replace(self, words=self.words[:rows], sha256=digest)

    def continuations(self) -> np.ndarray:
        """Returns bool [V]: whether a piece continues the word of the previous piece."""
        marks_starts = self.tokenizer is not None and any(word.startswith(WORD_STARTS) for word in self.words)
        if not marks_starts:  # WordPiece, also by the library
            return np.array([word.startswith(CONTINUATION) for word in self.words])
        special = {*self.special}
        return np.array([not word.startswith(WORD_STARTS) and word not in special for word in self.words])


def load_vocabulary(path: str) -> Vocabulary:
    """Reads a vocabulary, to convert ids to words.

    Args:
      path: value of --vocab_file, see `vocabulary_files.read`.

    Raises:
      ConfigError: for a file that cannot be read, lacks one of SPECIAL_TOKENS, or has a repeated word or an
        empty line.
    """
    file = vocabulary_files.read(path)
    return _checked(file, path, file.do_lower_case is not False)


def load_for_text(path: str, do_lower_case: bool | None = None, checkpoint: str | None = None) -> Vocabulary:
    """Reads a vocabulary as `load_vocabulary` does, to tokenise text.

    Args:
      do_lower_case: the setting of that name. None: the setting in tokenizer_config.json or tokenizer.json
        next to the vocabulary, or else next to the checkpoint; without these, true.
      checkpoint: path of the model's weights.

    Raises:
      ConfigError: also if text would be lower-cased and the vocabulary is cased.
    """
    file = vocabulary_files.read(path)
    lower = vocabulary_files.resolve_lower_case(file, do_lower_case, checkpoint)
    return _checked(file, path, lower)


def _checked(file: vocabulary_files.VocabularyFile, path: str, do_lower_case: bool) -> Vocabulary:
    digest = hashlib.sha256(file.content).hexdigest()
    if file.tokenizer is None:
        vocabulary_files.check_words(file.words, f"--vocab_file={path}")
    told = file.max_length, file.tokenizer, file.marks_pairs, file.max_word_characters
    return Vocabulary(file.words, digest, do_lower_case, *told)
