"""Classes and scores of sentences and of pairs of them: the tasks of GLUE."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf
from absl import logging

from official.config import Config, encoder_options
from official.config.checks import check_segment_types
from official.data.glue import files as files_lib
from official.data.glue import tasks
from official.data.rows import text_rows
from official.data.word_pieces.vocabulary import Vocabulary
from official.data.word_pieces.wordpiece import Tokenizer
from official.io import files, model_folder
from official.modeling import objectives
from official.modeling.models import SequenceModel
from official.tasks import examples as examples_lib
from official.tasks import known
from official.tasks.fine_tuning import FineTuning


class GlueTask(FineTuning):
    """A GLUE task; see `official.training.task.Task` and `ScoredTask` for what each member means."""

    losses = ("label_loss",)
    output_names = ("logits",)
    local_epsilon = {"label_loss": 0.0}
    predicts_evaluation_set = False

    def __init__(self, config: Config):
        super().__init__(config)
        self._glue_task = tasks.find_task(known(config.glue_task))
        self.class_names = self._glue_task.class_names
        if len(self._glue_task.text_columns) == 2:
            check_segment_types(config)
        self.metrics = self.losses if self._glue_task.is_regression else self.losses + ("label_accuracy",)
        self.eval_metrics = self.losses
        self.target_metric = self._glue_task.main_metric
        self._files: dict[str, text_rows.Table] = {}  # {train, dev, test}
        self._digests: dict[str, dict[str, int]] = {}  # of their tokens
        self.companions = {model_folder.LABELS: model_folder.labels_json(self._glue_task.labels).encode()}

    # --------------------------------------------------------------------------------------------------------
    # Data

    def _read_splits(self, vocabulary: Vocabulary) -> list[str]:
        config, tokenizer = self._config, Tokenizer(vocabulary)
        needed = {"train": config.do_train, "dev": config.do_eval, "test": config.do_predict}
        for split in [name for name, is_needed in needed.items() if is_needed]:
            rows = self._files[split] = files_lib.read_split(self._glue_task, split, known(config.data_dir))
            encoded, truncated = text_rows.encode(rows.texts, tokenizer, vocabulary, config.max_seq_length)
            labels = self._no_labels(len(rows)) if rows.labels is None else rows.labels
            name = "eval" if split == "dev" else split
            self._rows[name] = dataclasses.replace(encoded, columns={"labels": labels})
            self._digests[split] = {"tokens": int(encoded.lengths.sum()), "truncated": truncated}
            (logging.warning if rows.problems else logging.info)("%s", rows.describe())
            if truncated:
                logging.info(
                    "%s: %d of %d rows are longer than --max_seq_length=%d and lose their ends",
                    rows.path,
                    truncated,
                    len(rows),
                    config.max_seq_length,
                )
        return [rows.path for rows in self._files.values()]

    def _no_labels(self, count: int) -> np.ndarray:
        return np.zeros(count, np.float32 if self._glue_task.is_regression else np.int32)

    def _random_labels(
        self, generator: np.random.Generator, length: int, count: int
    ) -> dict[str, np.ndarray]:
        labels = generator.integers(0, self._glue_task.num_outputs, count)
        return {"labels": labels.astype(self._no_labels(0).dtype)}

    def data_files(self) -> dict[str, list[str]]:
        return {split: [rows.path] for split, rows in self._files.items()}

    def data_digest(self) -> dict:
        return {
            split: {
                **files.digest([rows.path]),
                "rows": len(rows),
                **self._digests[split],
                "problems": list(map(str, rows.problems)),
            }
            for split, rows in self._files.items()
        }

    # --------------------------------------------------------------------------------------------------------
    # Model and loss

    def build_model(self) -> SequenceModel:
        return SequenceModel(self._config.model, self._glue_task.num_outputs, **encoder_options(self._config))

    def weights(self, batch) -> dict[str, tf.Tensor]:
        return {"label_loss": tf.reduce_sum(batch["example_weights"])}

    def terms(self, outputs, batch) -> objectives.Terms:
        return objectives.label_terms(outputs, batch, self._glue_task.is_regression)

    def evaluate(self, model, batch) -> tuple[dict, dict[str, tf.Tensor]]:
        logits = model(batch)
        return self.terms(logits, batch), {"logits": logits}

    # --------------------------------------------------------------------------------------------------------
    # Scores

    def _labels(self) -> np.ndarray:
        return known(self._files["dev"].labels)

    def _predictions(self, outputs: dict[str, np.ndarray]) -> np.ndarray:
        logits_NC = outputs["logits"]
        return logits_NC[:, 0] if self._glue_task.is_regression else logits_NC.argmax(axis=1)

    def score(self, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        return files_lib.score(self._glue_task, self._predictions(outputs), self._labels())

    def tables(self, outputs: dict[str, np.ndarray]) -> dict[str, list[list]]:
        if self._glue_task.is_regression:
            return {}
        predictions, labels = self._predictions(outputs), known(self._glue_task.labels)
        counts = files_lib.confusion_matrix(self._glue_task, predictions, self._labels()).tolist()
        head = ["label", *(f"predicted {label}" for label in labels)]
        return {"Confusion matrix": [head, *([label, *row] for label, row in zip(labels, counts))]}

    def examples(self, outputs: dict[str, np.ndarray]) -> list[dict]:
        rows, labels_N, predictions = self._files["dev"], self._labels(), self._predictions(outputs)
        if self._glue_task.is_regression:
            items = examples_lib.far_scores(rows.texts, predictions, labels_N)
            note = "The rows of the evaluation set whose scores are missed by most."
            return examples_lib.group("Largest errors", note, items)
        names = known(self._glue_task.labels)
        items = examples_lib.sure_mistakes(rows.texts, names, outputs["logits"], labels_N)
        note = "The wrong predictions that the model gives the highest probabilities."
        return examples_lib.group("Confident mistakes", note, items)

    def constant_prediction(self) -> tuple[str, float]:
        labels = self._labels()
        if self._glue_task.is_regression:
            name = f"{np.mean(labels):.2f}"
        else:
            name = known(self._glue_task.labels)[np.argmax(np.bincount(labels))]
        return name, files_lib.baseline(self._glue_task, labels)[self.target_metric]

    def write_predictions(self, outputs: dict[str, np.ndarray], folder: str) -> list[str]:
        return [files_lib.write_predictions(self._glue_task, self._predictions(outputs), folder)]
