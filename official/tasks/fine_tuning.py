"""Fine-tuning on labelled text: base classes of the tasks whose data are token rows in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError, suggest
from official.config.checks import check_segment_types
from official.config.setting import PIPELINED
from official.data import generated
from official.data.pipeline import TrainingOrder
from official.data.rows import token_rows
from official.data.rows.text_rows import TokenRows
from official.data.tables.labels import CHOICE, NUMBER, Labels
from official.data.tables.texts import ANSWER, TextRows, tell_shared
from official.data.word_pieces.vocabulary import Vocabulary, load_for_text
from official.io import files, model_folder, vocabulary_files
from official.io.errors import shortened
from official.modeling import layers, objectives
from official.tasks import known

if TYPE_CHECKING:
    from official.data.tables.files import Table

_SYNTHETIC_SEQUENCES = 1000
# Google's heads are initialized with the standard deviation 0.88 initializer_range, that of a truncated
# normal; GLUE and SQuAD keep it. On small user data a head with the full deviation, as in transformers,
# learns faster. Measured with tags, see docs/own_data.md.
FULL_DEVIATION = 1 / layers.TRUNCATED_STDDEV


class FineTuning:
    """Base of fine-tuning tasks; `official.training.task.Task` and `ScoredTask` document the members.

    A task reads its files in `_read_splits` and puts the rows of each set, with their labels, into `_rows`,
    under "train", "eval" or "test" (the set to predict), and the files of each split into `_paths`.
    `_random_labels` returns the labels of random sequences.
    """

    is_scored = True
    problem_type = model_folder.ONE_LABEL
    head_scale = 1.0  # scale of a head's initial weights, see `modeling.models.SequenceModel`
    compared: tuple[str, ...] = ()
    eval_metrics: tuple[str, ...] = ()
    class_names: list[tuple[str, ...]] | None = None
    predicts_evaluation_set = False
    losses: dict[str, float]
    target_metric: str
    texts = 1  # number of texts in a row

    def __init__(self, config: Config):
        self._config = config
        self._rows: dict[str, TokenRows] = {}
        self._paths: dict[str, list[str]] = {}
        self.companions: dict[str, bytes] = {}
        self.local_epsilon = dict.fromkeys(self.losses, 0.0)

    def _take_scores(self, names: Sequence[str]) -> None:
        """Sets the names of the task's scores, the main one first. Raises ConfigError if
        --early_stopping_metric is not one of them."""
        asked, allowed = self._config.early_stopping_metric, (*names, *self.losses, "loss")
        if asked and asked not in allowed:
            raise ConfigError(
                f"--early_stopping_metric={asked}{suggest(asked, allowed)} is not a score of this task."
                f" Allowed: {', '.join(dict.fromkeys(allowed))}."
            )
        self.target_metric = names[0]

    def _refuse(self, why: str, **given: bool) -> None:
        """Raises ConfigError, with `why`, if one of the flags is given, and for pipelines."""
        strategy = self._config.distribution_strategy
        given[f"distribution_strategy={strategy}"] = strategy in PIPELINED
        for flag in (flag for flag, is_given in given.items() if is_given):
            raise ConfigError(f"--{flag} is not for {why}. Drop it.")

    def find_data(self) -> list[str]:
        config = self._config = generated.with_files(self._config)
        if config.use_synthetic_data:
            return []
        vocab_file = known(config.vocab_file)
        vocabulary = load_for_text(vocab_file, config.do_lower_case, config.init_checkpoint)
        vocabulary = vocabulary.cut(config.model.vocab_size)
        self.companions.update(
            vocabulary_files.companions(vocab_file, vocabulary.do_lower_case, config.model.positions)
        )
        if self.texts > 1:
            check_segment_types(config, vocabulary.marks_pairs)
        self._read_splits(vocabulary)
        return [path for paths in self._paths.values() for path in paths]

    def _read_splits(self, vocabulary: Vocabulary) -> None:
        """Reads the sets that the run needs."""
        raise NotImplementedError

    def build_model(self) -> tf.keras.Model:
        model, frozen = self._make_model(), self._config.freeze_layers
        if frozen > len(model.encoder.blocks):
            raise ConfigError(
                f"--freeze_layers={frozen}, and the model has {len(model.encoder.blocks)} layers. Lower it."
            )
        for layer in [model.encoder.embeddings, *model.encoder.blocks][: frozen and frozen + 1]:
            layer.trainable = False
        return model

    def _make_model(self) -> tf.keras.Model:
        """Makes the model, without frozen layers."""
        raise NotImplementedError

    def weights(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return dict.fromkeys(self.losses, tf.reduce_sum(objectives.label_weights(batch)))

    def assets(self, outputs: dict[str, np.ndarray]) -> dict[str, bytes]:
        return {}

    rows_of_example = 1  # sequences of an example, such as one per text to choose from

    def _random_token_labels(self, generator: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        """Returns {name: [count]}, labels of random tokens; empty for most tasks."""
        return {}

    def _random_labels(
        self, generator: np.random.Generator, length: int, count: int
    ) -> dict[str, np.ndarray]:
        """Returns {name: [count]}, labels of random sequences of `length` tokens; empty if tokens have
        labels."""
        return {}

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
        tokens = self._random_token_labels(generator, _SYNTHETIC_SEQUENCES * length)
        return token_rows.synthetic_dataset(labels, batch_size, config, tokens, self.rows_of_example)

    def data_files(self) -> dict[str, list[str]]:
        return dict(self._paths)

    def data_digest(self) -> dict:
        return {
            split: {**files.digest(paths), **self._facts(split)} for split, paths in self.data_files().items()
        }

    def _facts(self, split: str) -> dict[str, Any]:
        """Returns the statistics of a split, such as the number of rows and tokens, and its problems."""
        raise NotImplementedError

    def _saved_labels(self, with_names: bool = False) -> tuple[str, dict[str, Any]]:
        """Returns the folder of the evaluated run or weights, and the labels in its labels.json or Hugging
        Face's config.json; with `with_names`, only a file with names counts. Raises ConfigError if there is
        none."""
        for folder in filter(None, (self._config.model_dir, self._config.init_checkpoint)):
            found = model_folder.labels_of_folder(folder)
            if found.get("labels") or found and not with_names:
                return folder, found
        raise ConfigError(
            "the labels of the model are unknown: no labels.json or config.json of --model_dir, or of"
            " --init_checkpoint, names them."
        )

    def _of_each_sequence(self, values_BL: tf.Tensor, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the values of tokens by sequence, --max_seq_length for each: packed sequences are extracted
        from their rows, others padded."""
        if "cls_positions" in batch:
            return objectives.cut_out(values_BL, batch)
        missing = self._config.max_seq_length - layers.sizes(values_BL)[1]
        return tf.pad(values_BL, [[0, 0], [0, missing]])

    def explain_read_error(self) -> str | None:
        return None  # all data are in memory


class TableTask(FineTuning):
    """Base of tasks on user tables: `_tables` has the table of each split, `_read` its usable rows."""

    _text_columns: list[str]

    def __init__(self, config: Config):
        super().__init__(config)
        self._tables: dict[str, Table] = {}
        self._read: dict[str, TextRows] = {}

    def _take(self, split: str, table: Table, rows: TextRows, description: str, what: str = "rows") -> None:
        """Stores the rows of a table; logs their description, the columns that are not read, and the faults
        of other rows; `what` as of `tell_truncated`."""
        self._tables[split], self._read[split], self._paths[split] = table, rows, table.paths
        read = (*self._text_columns, self._config.label_column or "label", ANSWER)
        others = shortened([name for name in table.columns if name not in read])
        logging.info("%s: %s%s", table.given, description, others and f"; not read: {others}")
        if rows.bad:
            logging.warning("%s: %s", table.given, rows.describe_problems())
        tell_truncated(table.given, rows.truncated, len(rows.lengths), self._config.max_seq_length, what)

    def _check_differ(self, table: Table, column: str, labels: Labels, values: np.ndarray) -> None:
        """Raises ConfigError if all rows have the same label, from which nothing is learned, and with which
        nothing correlates. The texts of a choice differ, and a teacher has its own numbers."""
        may_be_same = labels.kind == CHOICE or labels.kind == NUMBER and self._config.teacher
        if not may_be_same and (values == values[:1]).all():
            names = [f"{values[0]:g}"] if labels.kind == NUMBER else list(map(repr, labels.names))
            only = f"only the label {' and '.join(names)[:200]}" if names else "no label"
            raise ConfigError(
                f"--{table.flag}={table.given} has {only} in the column {column!r}. Give rows of two or"
                " more, or change --label_column."
            )

    def _hold_out(self) -> None:
        """Splits the evaluation set off the training set."""
        self._read["train"], self._read["eval"] = self._read["train"].parts(self._config.eval_share)
        self._tables["eval"], self._paths["eval"] = self._tables["train"], self._paths["train"]

    def _tell_shared(self, what: str = "rows") -> None:
        """Warns of rows of --eval_file that are also trained on; `what` as of `tell_shared`."""
        if self._config.do_train:
            scored, trained = (self._read[split].row_ids for split in ("eval", "train"))
            tell_shared(known(self._config.eval_file), scored, trained, what)

    def _facts(self, split: str) -> dict[str, Any]:
        return self._read[split].facts()


def tell_truncated(path: str, truncated: int, count: int, max_seq_length: int, what: str = "rows") -> None:
    """Warns of truncated rows, or texts, among `count`, if there are any."""
    if truncated:
        warning = "%s: %d of %d %s are longer than --max_seq_length=%d and lose their ends"
        logging.info(warning, path, truncated, count, what, max_seq_length)
