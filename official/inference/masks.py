"""The words that stand as [MASK] in a text."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.config import ConfigError
from official.data.word_pieces.tokenization import Tokenizer
from official.inference.source import Source
from official.modeling.pretrainer import BertPretrainer

MASK = "[MASK]"
_SPECIAL = ("[CLS]", "[SEP]", "[UNK]", MASK)


class Word(NamedTuple):
    """A word piece and its probability."""

    word: str
    probability: float


class Filler:
    """Predicts masked words."""

    def __init__(self, source: Source):
        source.check_can("fill_mask")
        self._bert, self._vocabulary = source.bert, source.vocabulary
        self._tokenizer = Tokenizer(source.vocabulary)
        self._special = {name: np.array([source.vocabulary.id_of(name)], np.int32) for name in _SPECIAL}
        self._model = BertPretrainer(source.bert)
        source.fill(self._model)

    def __call__(self, text: str, top_k: int) -> list[list[Word]]:
        """See `Model.fill_mask`."""
        ids_L = self._ids_of(text)
        positions_P = np.flatnonzero(ids_L == self._vocabulary.id_of(MASK))
        if not len(positions_P):
            raise ConfigError(
                f"no {MASK} in the text. Write {MASK}, with its brackets and in capitals, in place of each"
                " word to predict."
            )
        return [self._likeliest(row, top_k) for row in self._probabilities(ids_L, positions_P)]

    def _ids_of(self, text: str) -> np.ndarray:
        """Returns the ids [L] of a text with [CLS] and [SEP]; words that the model has no row for are unknown
        ones."""
        pieces, counts = self._tokenizer.tokenize(text.split(MASK))
        parts = np.split(pieces.astype(np.int32), np.cumsum(counts)[:-1])
        between = [part for each in parts for part in (self._special[MASK], each)][1:]
        ids_L = np.concatenate([self._special["[CLS]"], *between, self._special["[SEP]"]])
        if len(ids_L) > self._bert.max_position_embeddings:
            raise ConfigError(
                f"{len(ids_L):,} word pieces with [CLS] and [SEP], the model takes"
                f" {self._bert.max_position_embeddings:,} at most. Shorten the text."
            )
        return np.where(ids_L < self._bert.vocab_size, ids_L, self._special["[UNK]"])

    def _probabilities(self, ids_L: np.ndarray, positions_P: np.ndarray) -> np.ndarray:
        """Returns float32 [P, V]: of each word at each position."""
        row_BL = tf.constant(ids_L[None], tf.int32)
        logits_BPV, _ = self._model(
            {
                "input_ids": row_BL,
                "input_mask": tf.ones_like(row_BL),
                "segment_ids": tf.zeros_like(row_BL),
                "masked_lm_positions": tf.constant(positions_P[None], tf.int32),
            }
        )
        return tf.nn.softmax(logits_BPV[0, :, : self._vocabulary.size]).numpy()

    def _likeliest(self, probabilities_V: np.ndarray, top_k: int) -> list[Word]:
        best = np.argsort(-probabilities_V, kind="stable")[:top_k]
        return [Word(self._vocabulary.words[word], float(probabilities_V[word])) for word in best]
