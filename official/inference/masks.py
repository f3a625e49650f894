"""The words that stand as [MASK] in a text."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from official.data.word_pieces.wordpiece import Tokenizer
from official.inference import backends, batching, calibration, rows
from official.inference.rows import Rows
from official.inference.source import Source
from official.io.errors import ConfigError

MASK = "[MASK]"
_SPECIAL = ("[CLS]", "[SEP]", "[UNK]", MASK)


class Word(NamedTuple):
    """A word piece and its probability."""

    word: str
    probability: float


class Filler:
    """Predicts masked words."""

    def __init__(self, source: Source, settings: backends.Settings, calibration_file: str | None = None):
        source.check_can("fill_mask")
        self._bert, self._vocabulary = source.bert, source.vocabulary
        self._tokenizer = Tokenizer(source.vocabulary)
        self._special = {name: np.array([source.vocabulary.id_of(name)], np.int32) for name in _SPECIAL}
        read = calibration.texts(calibration_file)
        self.settings = calibration.calibrated(settings, lambda: self._masked_rows(read()))
        self.network = backends.build(source, "fill_mask", self.settings)

    def __call__(self, texts: Sequence[str], top_k: int) -> list[list[list[Word]]]:
        """See `Model.fill_mask`; of several texts."""
        if not texts:
            return []
        made = self.rows_of(texts)
        logits_MV = batching.run(self.network, "fill_mask", made)["logits"][:, : self._vocabulary.size]
        words = [self._likeliest(logits_V, top_k) for logits_V in logits_MV]
        ends: list[int] = made.masked_ends_N.tolist()
        return [words[first:last] for first, last in zip([0, *ends], ends)]

    def rows_of(self, texts: Sequence[str]) -> Rows:
        """Returns texts end to end. Raises ConfigError where one has no mask, or is too long."""
        ids = [self._ids_of(text) for text in texts]
        mask = self._vocabulary.id_of(MASK)
        if not all((ids_L == mask).any() for ids_L in ids):
            raise ConfigError(
                f"no {MASK} in the text. Write {MASK}, with its brackets and in capitals, in place of each"
                " word to predict."
            )
        joined = rows.join(ids)
        return joined._replace(masked_M=np.flatnonzero(joined.ids_T == mask).astype(np.int32))

    def _masked_rows(self, texts: Sequence[str]) -> Rows:
        """Returns texts as what ranges are taken from: one without a mask gets one."""
        return self.rows_of([text if MASK in text else f"{text} {MASK}" for text in texts])

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

    def _likeliest(self, logits_V: np.ndarray, top_k: int) -> list[Word]:
        powers_V = np.exp(logits_V - logits_V.max())
        probabilities_V = powers_V / powers_V.sum()
        best = np.argsort(-probabilities_V, kind="stable")[:top_k]
        return [Word(self._vocabulary.words[word], float(probabilities_V[word])) for word in best]
