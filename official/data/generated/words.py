"""Words that made-up text consists of."""

from __future__ import annotations

import numpy as np

from official.data.frequencies import draw_ids
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS, Vocabulary, load_vocabulary
from official.io.errors import ConfigError


def make_vocabulary(size: int, vocab_file: str | None) -> Vocabulary:
    """Returns a vocabulary: the one of a file, or made-up words.

    Args:
      size: words of the model.
      vocab_file: its path; None: [PAD], [UNK], [CLS], [SEP], [MASK] and word5, word6, ...

    Raises:
      ConfigError: for a file that cannot be read, and a size that holds no word.
    """
    if vocab_file:
        return load_vocabulary(vocab_file)
    if size <= len(SPECIAL_TOKENS):
        raise ConfigError(
            f"generated_data: vocab_size={size} has no room for a word beside {', '.join(SPECIAL_TOKENS)}."
            " Change --bert_config_file."
        )
    numbers = range(len(SPECIAL_TOKENS), size)
    return Vocabulary((*SPECIAL_TOKENS, *(f"word{number}" for number in numbers)), sha256="")


class Text:
    """Draws text of the whole words of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary, generator: np.random.Generator):
        """Args: vocabulary: of the words; generator: all draws come from it."""
        whole = [
            word for word in vocabulary.words if word.isalnum() and word.isascii() and word == word.lower()
        ]
        self._words = np.array(whole or ["word"])
        self._generator = generator

    def words(self, least: int, most: int) -> list[str]:
        """Returns `least` to `most` words."""
        count = int(self._generator.integers(least, most + 1))
        return self._words[draw_ids(self._generator, np.arange(len(self._words)), count)].tolist()

    def sentence(self, least: int, most: int) -> str:
        """Returns `least` to `most` words, with blanks between them."""
        return " ".join(self.words(least, most))

    def below(self, limit: int) -> int:
        """Returns a number from 0 to below `limit`."""
        return int(self._generator.integers(limit))
