"""One vector for a text, of the vectors of its tokens.

Source: https://github.com/UKPLab/sentence-transformers, the modules Transformer, Pooling and Normalize. Its
folders say in modules.json which of them a model has.
"""

import numpy as np

from official.data.word_pieces.wordpiece import Tokenizer
from official.inference import backends, batching, calibration, rows
from official.inference.source import Source, Truncation
from official.io.errors import ConfigError
from official.io.model_folder import POOLING_MODES, Pooling, pooling_of

SMALLEST_NORM = 1e-12


def pooling_of_source(source: Source) -> Pooling:
    """Returns the pooling of the vectors of a model's tokens, with the length that texts are cut to.

    Raises:
      ConfigError: where the files beside it ask for what there is not here.
    """
    pooling = pooling_of(source.location, source.vocabulary.do_lower_case)
    length = min(pooling.max_length or source.length(), source.bert.max_position_embeddings)
    return pooling._replace(max_length=source.max_seq_length or length)


class Embedder:
    """Makes vectors of texts."""

    def __init__(self, source: Source, settings: backends.Settings, calibration_file: str | None = None):
        self._bert = source.bert
        self._pooling = pooling_of_source(source)
        self.cut = Truncation(source.name)
        self._cls, self._sep, self._unk = map(source.vocabulary.id_of, ("[CLS]", "[SEP]", "[UNK]"))
        self._tokenizer = Tokenizer(source.vocabulary)
        read = calibration.texts(calibration_file)
        self.settings = calibration.calibrated(
            settings, lambda: rows.join(self._ids_of(read(), self._pooling))
        )
        self.network = backends.build(source, "embed", self.settings)

    def __call__(self, texts: list[str], pooling: Pooling | None) -> np.ndarray:
        """Returns float32 [N, D]. Raises ConfigError for a mode that there is not."""
        pooling = pooling or self._pooling
        modes = POOLING_MODES.values()
        if pooling.mode not in modes:
            raise ConfigError(f"pooling mode {pooling.mode!r}, expected one of {', '.join(modes)}.")
        if not texts:
            return np.zeros((0, self._bert.hidden_size), np.float32)
        made = rows.join(self._ids_of(texts, pooling))
        sequence_TD = batching.run(self.network, "embed", made)["sequence"]
        if pooling.mode == "cls":
            vectors_ND = sequence_TD[made.firsts_N]
        else:
            vectors_ND = np.add.reduceat(sequence_TD, made.firsts_N) / made.lengths_N[:, None]
        if pooling.normalized:
            vectors_ND /= np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), SMALLEST_NORM)
        return vectors_ND.astype(np.float32)

    def _ids_of(self, texts: list[str], pooling: Pooling) -> list[np.ndarray]:
        """Returns the ids of each text with [CLS] and [SEP]; what is too long is cut."""
        positions = self._bert.max_position_embeddings
        length = min(pooling.max_length or self._pooling.max_length or positions, positions)
        pieces, counts = self._tokenizer.tokenize(texts)
        self.cut.report(int((counts > length - 2).sum()), length)
        pieces = np.where(pieces < self._bert.vocab_size, pieces, self._unk).astype(np.int32)
        parts = np.split(pieces, np.cumsum(counts)[:-1])
        return [np.array([self._cls, *part[: length - 2], self._sep], np.int32) for part in parts]
