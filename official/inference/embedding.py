"""One vector for a text, of the vectors of its tokens.

Source: https://github.com/UKPLab/sentence-transformers, the modules Transformer, Pooling and Normalize. Its
folders say in modules.json which of them a model has.
"""

import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.config import ConfigError
from official.data.word_pieces.tokenization import Tokenizer
from official.inference.source import Source
from official.io import json_files
from official.modeling.encoder import BertEncoder

_BATCH = 32  # texts that are read at once
_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_SMALLEST_NORM = 1e-12


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

    def __init__(self, source: Source):
        self._bert = source.bert
        self._pooling = pooling_beside(source.location)
        self._cls, self._sep, self._unk = map(source.vocabulary.id_of, ("[CLS]", "[SEP]", "[UNK]"))
        self._tokenizer = Tokenizer(source.vocabulary)
        self._encoder = BertEncoder(source.bert)
        source.fill(self._encoder)

    def __call__(self, texts: list[str], pooling: Pooling | None) -> np.ndarray:
        """Returns float32 [N, D]. Raises ConfigError for a mode that there is not."""
        pooling = pooling or self._pooling
        if pooling.mode not in _MODES.values():
            raise ConfigError(f"pooling mode {pooling.mode!r}, expected one of {', '.join(_MODES.values())}.")
        vectors_ND = np.zeros((len(texts), self._bert.hidden_size), np.float32)
        if not texts:
            return vectors_ND
        most = min(
            pooling.most_tokens or self._bert.max_position_embeddings, self._bert.max_position_embeddings
        )
        rows = [self._ids_of(row, most) for row in self._pieces(texts)]
        order = sorted(
            range(len(rows)), key=lambda row: len(rows[row])
        )  # texts of one length waste no padding
        for first in range(0, len(order), _BATCH):
            some = order[first : first + _BATCH]
            vectors_ND[some] = self._vectors([rows[row] for row in some], pooling)
        return vectors_ND

    def _pieces(self, texts: list[str]) -> list[np.ndarray]:
        pieces, counts = self._tokenizer.tokenize(texts)
        return np.split(pieces.astype(np.int32), np.cumsum(counts)[:-1])

    def _ids_of(self, pieces: np.ndarray, most: int) -> np.ndarray:
        known = np.where(pieces < self._bert.vocab_size, pieces, self._unk)
        return np.concatenate([[self._cls], known[: most - 2], [self._sep]]).astype(np.int32)

    def _vectors(self, rows: list[np.ndarray], pooling: Pooling) -> np.ndarray:
        lengths_B = np.array([len(row) for row in rows])
        mask_BL = (np.arange(lengths_B.max()) < lengths_B[:, None]).astype(np.int32)
        ids_BL = np.zeros_like(mask_BL)
        ids_BL[mask_BL > 0] = np.concatenate(rows)
        mask = tf.constant(mask_BL)
        sequence_BLD, _ = self._encoder(tf.constant(ids_BL), mask, tf.zeros_like(mask))
        if pooling.mode == "cls":
            vectors_BD = sequence_BLD[:, 0]
        else:
            weights_BL1 = tf.cast(mask, sequence_BLD.dtype)[:, :, None]
            vectors_BD = tf.reduce_sum(sequence_BLD * weights_BL1, 1) / tf.reduce_sum(weights_BL1, 1)
        if pooling.normalized:
            vectors_BD /= tf.maximum(tf.norm(vectors_BD, axis=1, keepdims=True), _SMALLEST_NORM)
        return vectors_BD.numpy()


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
    if len(asked) != 1 or asked[0] not in _MODES:
        raise ConfigError(f"{path}: {', '.join(asked) or 'no pooling'}, expected one of {', '.join(_MODES)}.")
    return _MODES[asked[0]]
