"""One vector for a text, of the vectors of its tokens.

Source: https://github.com/UKPLab/sentence-transformers, the modules Transformer, Pooling and Normalize. Its
folders say in modules.json which of them a model has.
"""

import os
from typing import NamedTuple

import numpy as np

from official.data.word_pieces.tokenization import Tokenizer
from official.inference import backends, batching, calibration, rows
from official.inference.source import Source
from official.io import json_files
from official.io.errors import ConfigError

MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
SMALLEST_NORM = 1e-12


class Pooling(NamedTuple):
    """How the vectors of a text's tokens become one.

    Attributes:
      mode: mean, of all tokens with [CLS] and [SEP], or cls, that of [CLS].
      normalized: divided by its length, so that the product of two is the cosine between them.
      most_tokens: what is longer is cut; None: as many as the model has positions.
    """

    mode: str = "mean"
    normalized: bool = False
    most_tokens: int | None = None


class Embedder:
    """Makes vectors of texts."""

    def __init__(self, source: Source, settings: backends.Settings, calibration_file: str | None = None):
        self._bert = source.bert
        self._pooling = pooling_beside(source.location)
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
        if pooling.mode not in MODES.values():
            raise ConfigError(f"pooling mode {pooling.mode!r}, expected one of {', '.join(MODES.values())}.")
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
        most = min(pooling.most_tokens or positions, positions)
        pieces, counts = self._tokenizer.tokenize(texts)
        pieces = np.where(pieces < self._bert.vocab_size, pieces, self._unk).astype(np.int32)
        parts = np.split(pieces, np.cumsum(counts)[:-1])
        return [np.array([self._cls, *part[: most - 2], self._sep], np.int32) for part in parts]


def pooling_beside(location: str) -> Pooling:
    """Returns what the files of sentence-transformers beside a checkpoint say; the mean where there are none.

    Raises:
      ConfigError: where they say a pooling that there is not here.
    """
    folder = location if os.path.isdir(location) else os.path.dirname(location)
    path = os.path.join(folder, "modules.json")
    if not os.path.exists(path):
        return Pooling()
    kinds = {}
    for module in json_files.read_json(path, kind=list):
        kinds[str(module.get("type")).rpartition(".")[2]] = str(module.get("path"))
    mode = _mode(os.path.join(folder, kinds["Pooling"], "config.json")) if "Pooling" in kinds else "mean"
    limits = os.path.join(folder, "sentence_bert_config.json")
    most = json_files.read_json(limits).get("max_seq_length") if os.path.exists(limits) else None
    return Pooling(mode, "Normalize" in kinds, most)


def _mode(path: str) -> str:
    asked = [
        name
        for name, value in json_files.read_json(path).items()
        if name.startswith("pooling_mode") and value
    ]
    if len(asked) != 1 or asked[0] not in MODES:
        raise ConfigError(f"{path}: {', '.join(asked) or 'no pooling'}, expected one of {', '.join(MODES)}.")
    return MODES[asked[0]]
