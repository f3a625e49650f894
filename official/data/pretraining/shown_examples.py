"""Examples of records as words, with what was predicted and what stands in its place."""

from __future__ import annotations

import dataclasses

import numpy as np

from official.data.word_pieces.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class ShownExample:
    """An example as words.

    Attributes:
      place: the file's name and the number of the record, and of the example in a record of several.
      words: (word piece that stands there, the one to be predicted there or None) of each token.
      is_random: whether the second segment is from another document.
    """

    place: str
    words: list[tuple[str, str | None]]
    is_random: bool

    @property
    def title(self) -> str:
        predicted = sum(label is not None for _, label in self.words)
        relation = "a random one" if self.is_random else "the next one"
        return (
            f"{self.place}: {len(self.words)} tokens, {predicted} predicted, the second segment is {relation}"
        )

    def text(self) -> str:
        """Returns the title and, below it, the words; a predicted one is {word>what stands in its place},
        {word} where it is kept."""
        return f"{self.title}\n  {' '.join(_marked(*word) for word in self.words)}"


def _marked(word: str, label: str | None) -> str:
    if label is None:
        return word
    return f"{{{label}}}" if label == word else f"{{{label}>{word}}}"


def example_of(place: str, values: dict[str, np.ndarray], vocabulary: Vocabulary) -> ShownExample:
    """Returns an example as words; `values` are its features {name: [length]}."""
    length, count = int(values["input_mask"].sum()), int((values["masked_lm_weights"] > 0).sum())
    labels: list[str | None] = [None] * length
    for position, label in zip(values["masked_lm_positions"][:count], values["masked_lm_ids"]):
        labels[position] = vocabulary.words[label]
    words = [vocabulary.words[token] for token in values["input_ids"][:length]]
    return ShownExample(place, list(zip(words, labels)), bool(values["next_sentence_labels"][0]))
