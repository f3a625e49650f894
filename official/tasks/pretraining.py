"""Masked-LM and next-sentence pre-training."""

import os

import numpy as np
import tensorflow as tf
from absl import logging

from official.config import Config, ConfigError, encoder_options
from official.data import pipeline, synthetic
from official.data.records import record_batches, record_files, record_formats
from official.data.records import schema as schema_lib
from official.data.word_pieces.vocabulary import Vocabulary, load_for_text, load_vocabulary
from official.io import files as io_files
from official.io import vocabulary_files
from official.modeling import losses
from official.modeling.pretrainer import BertPretrainer
from official.tasks import examples as examples_lib
from official.tasks.known import known

_GUESSES = 3  # of a masked token, in the report


class PretrainingTask:
    """See `official.training.task.Task` and `ExampleTask` for what each member means."""

    losses = ("mlm_loss", "nsp_loss")
    metrics = eval_metrics = losses + ("mlm_accuracy", "nsp_accuracy")
    target_metric = "mlm_accuracy"
    is_scored = False
    sequences_per_row: float | None = None
    train_samples = None  # records are counted by nobody: --num_steps_per_epoch says what an epoch is
    # sum(w * CE) / (sum(w) + 1e-5) and a plain mean. Source: the MLPerf v0.7 reference.
    local_epsilon = {"mlm_loss": 1e-5, "nsp_loss": 0.0}

    def __init__(self, config: Config):
        self._config = config
        self._schema = schema_lib.pretraining_schema(
            config.max_seq_length, config.max_predictions_per_seq, config.model.vocab_size
        )
        self._train_files: list[str] = []
        self._eval_files: list[str] = []
        self.companions: dict[str, bytes] = {}

    def find_data(self) -> list[str]:
        if self._config.do_train:
            self._train_files = self._files("input_files")
        if self._config.do_eval:
            self._eval_files = self._files("eval_files" if self._config.eval_files else "input_files")
        files = sorted({*self._train_files, *self._eval_files})
        if self._config.vocab_file:
            self.companions = self._kept_vocabulary(files)
        return files

    def _kept_vocabulary(self, files: list[str]) -> dict[str, bytes]:
        """Returns the files of the records' vocabulary; what their manifest says of capitals counts where no
        flag says it."""
        config, told = self._config, self._config.do_lower_case
        if told is None and files:
            told = record_formats.lower_case_of(files[0])
        vocab_file = known(config.vocab_file)
        vocabulary = load_for_text(vocab_file, told, config.init_checkpoint)
        return vocabulary_files.companions(
            vocab_file, vocabulary.do_lower_case, config.model.max_position_embeddings
        )

    def _files(self, flag: str) -> list[str]:
        if self._config.use_synthetic_data:
            return []
        files = record_files.find_files(self._config[flag], flag)
        record_files.check_first_record(files, self._schema, flag)
        return files

    def build_model(self) -> BertPretrainer:
        return BertPretrainer(self._config.model, **encoder_options(self._config))

    def train_dataset(
        self, global_batch: int, replica_batch: int, order: pipeline.TrainingOrder
    ) -> tf.data.Dataset:
        if self._config.use_synthetic_data:
            return self.synthetic_dataset(replica_batch)
        streams = record_batches.num_streams(len(self._train_files), global_batch)
        name = (
            f"record_counts-{order.host}.json" if order.host else "record_counts.json"
        )  # a host counts the files that it reads
        counts_path = os.path.join(self._config.model_dir, name) if self._config.model_dir else ""
        return record_batches.training_dataset(
            self._train_files,
            self._schema,
            replica_batch,
            order,
            streams,
            counts_path,
        )

    def eval_dataset(self, batch_size: int) -> tf.data.Dataset:
        if self._config.use_synthetic_data:
            return self.synthetic_dataset(batch_size).take(-(-self._config.num_eval_samples // batch_size))
        return record_batches.evaluation_dataset(
            self._eval_files, self._schema, batch_size, self._config.num_eval_samples
        )

    def synthetic_dataset(self, batch_size: int) -> tf.data.Dataset:
        return synthetic.synthetic_dataset(
            self._schema, self._config.model.vocab_size, batch_size, self._config.seed
        )

    def explain_read_error(self) -> str | None:
        splits = {
            tuple(files): files for files in (self._train_files, self._eval_files) if files
        }  # each may have a format of its own
        return next(
            filter(None, (record_files.find_bad_record(files, self._schema) for files in splits.values())),
            None,
        )

    def weights(self, batch) -> dict[str, tf.Tensor]:
        return {
            "mlm_loss": tf.reduce_sum(batch["masked_lm_weights"]),
            "nsp_loss": tf.reduce_sum(batch["example_weights"]),
        }

    def loss(self, model, batch, dropout_seed) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        logits_BPV, logits_B2 = model(batch, dropout_seed=dropout_seed)
        weights = self.weights(batch)
        masked = (logits_BPV, batch["masked_lm_ids"], batch["masked_lm_weights"])
        relation = (logits_B2, batch["next_sentence_labels"][:, 0], batch["example_weights"])
        return {
            "mlm_loss": (losses.cross_entropy(*masked, fused=self._config.fused_ops), weights["mlm_loss"]),
            "nsp_loss": (losses.cross_entropy(*relation), weights["nsp_loss"]),
            "mlm_accuracy": (losses.correct(*masked), weights["mlm_loss"]),
            "nsp_accuracy": (losses.correct(*relation), weights["nsp_loss"]),
        }

    def evaluate(self, model, batch) -> tuple[dict, dict]:
        return self.loss(model, batch, None), {}

    def data_digest(self) -> dict:
        return {
            name: io_files.digest(files)
            for name, files in (("train", self._train_files), ("eval", self._eval_files))
            if files
        }

    def example_outputs(self, model, batch) -> dict[str, tf.Tensor]:
        logits_BPV, logits_B2 = model(batch)
        top = tf.math.top_k(tf.nn.softmax(tf.cast(logits_BPV, tf.float32)), _GUESSES)
        shown = {name: batch[name] for name in self._schema if name != "segment_ids"}
        return {
            **shown,
            "top_ids": top.indices,
            "top_probabilities": top.values,
            "random_probability": tf.nn.softmax(tf.cast(logits_B2, tf.float32))[:, 1],
        }

    def examples(self, outputs: dict[str, np.ndarray]) -> list[dict]:
        word = examples_lib.word_of(self._vocabulary())
        rows = [
            {name: values[row] for name, values in outputs.items()}
            for row in range(len(outputs.get("input_ids", ())))
        ]
        return examples_lib.group(
            "Masked tokens and predictions",
            "The start of the evaluation set. Green: masked and predicted right; struck out: a wrong"
            " prediction, before the token that was masked, in blue. Below: the masked tokens with the"
            " likeliest predictions and their probabilities.",
            [examples_lib.masked_sequence(row, word) for row in rows[: examples_lib.MOST]],
        )

    def _vocabulary(self) -> Vocabulary | None:
        """Returns the words of the records; None where they are not known."""
        try:
            return load_vocabulary(self._config.vocab_file) if self._config.vocab_file else None
        except ConfigError as error:  # the run is over, and needed no words
            logging.warning("The report names tokens by their numbers: %s", error)
            return None

    def constant_prediction(self) -> tuple[str, float]:
        counts: np.ndarray = np.zeros(0)
        for batch in self.eval_dataset(self._config.eval_batch_size).as_numpy_iterator():
            new: np.ndarray = np.bincount(
                batch["masked_lm_ids"].ravel(), batch["masked_lm_weights"].ravel(), minlength=len(counts)
            )
            new[: len(counts)] += counts
            counts = new
        return examples_lib.word_of(self._vocabulary())(int(counts.argmax())), float(
            counts.max() / max(counts.sum(), 1.0)
        )
