"""Fine-tuning on labelled text: the members of every task whose sets are token rows in memory."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from official.config import Config
from official.data import generated
from official.data.pipeline import TrainingOrder
from official.data.rows import token_rows
from official.data.rows.text_rows import TokenRows
from official.data.word_pieces.vocabulary import Vocabulary, load_for_text
from official.io import vocabulary_files
from official.tasks import known

_SYNTHETIC_SEQUENCES = 1000


class FineTuning:
    """Base of such tasks; see `official.training.task.Task` and `ScoredTask` for what each member means.

    A task reads its files in `_read_splits` and puts the rows of each set, with their labels, into `_rows`:
    of the training set "train", of the evaluation set "eval", of the set to predict "test". `_random_labels`
    are those of random sequences.
    """

    is_scored = True

    def __init__(self, config: Config):
        self._config = config
        self._rows: dict[str, TokenRows] = {}
        self.companions: dict[str, bytes] = {}

    def find_data(self) -> list[str]:
        config = self._config = generated.with_files(self._config)
        if config.use_synthetic_data:
            return []
        vocab_file = known(config.vocab_file)
        vocabulary = load_for_text(
            vocab_file, config.do_lower_case, config.init_checkpoint, size=config.model.vocab_size
        )
        self.companions.update(
            vocabulary_files.companions(
                vocab_file, vocabulary.do_lower_case, config.model.max_position_embeddings
            )
        )
        return self._read_splits(vocabulary)

    def _read_splits(self, vocabulary: Vocabulary) -> list[str]:
        """Reads the sets that the run needs; returns the paths of their files."""
        raise NotImplementedError

    def _random_labels(
        self, generator: np.random.Generator, length: int, count: int
    ) -> dict[str, np.ndarray]:
        """Returns {name: [count]} of sequences of `length` tokens."""
        raise NotImplementedError

    @property
    def train_samples(self) -> int | None:
        return len(self._rows["train"]) if "train" in self._rows else None

    @property
    def sequences_per_row(self) -> float | None:
        lengths = self._rows["train"].lengths if "train" in self._rows else None
        return token_rows.sequences_per_row(lengths, self._config)

    def train_dataset(self, global_batch: int, replica_batch: int, order: TrainingOrder) -> tf.data.Dataset:
        if self._config.use_synthetic_data:
            return self.synthetic_dataset(replica_batch)
        shape = token_rows.shape_of(self._config, global_batch, replica_batch)
        return token_rows.training_dataset(self._rows["train"], shape, order)

    def eval_dataset(self, batch_size: int) -> tf.data.Dataset:
        return self._whole("eval", batch_size)

    def predict_dataset(self, batch_size: int) -> tf.data.Dataset:
        return self._whole("test", batch_size)

    def _whole(self, split: str, batch_size: int) -> tf.data.Dataset:
        shape = token_rows.shape_of(self._config, batch_size, batch_size)
        return token_rows.evaluation_dataset(self._rows[split], shape)

    def synthetic_dataset(self, batch_size: int, for_evaluation: bool = False) -> tf.data.Dataset:
        config = self._config
        generator = np.random.default_rng(config.seed)
        length = token_rows.synthetic_length(config)
        labels = self._random_labels(generator, length, _SYNTHETIC_SEQUENCES)
        return token_rows.synthetic_dataset(labels, batch_size, config)

    def explain_read_error(self) -> str | None:
        return None  # all data are in memory
