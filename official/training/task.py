"""What the training program asks of a task."""

from typing import Any, Protocol

import numpy as np
import tensorflow as tf

Batch = dict[str, tf.Tensor]


class Task(Protocol):
    """A job: its model, data, losses and scores. Implementations inherit nothing.

    Attributes:
      losses: names whose mean losses add up to what is trained.
      metrics: names of everything `loss` returns, the losses first.
      eval_metrics: names of everything `evaluate` returns terms of, the losses first; may be empty.
      target_metric: the metric, of `eval_metrics` or of `score`, that --stop_threshold is compared with.
        Higher is better.
      local_epsilon: per loss, what is added to the weight of a micro batch with --loss_normalization=local.
      keeps_best: whether the checkpoint of the best evaluation is kept, scored and predicted with. Such a
        task has `score`, `tables`, `predict_dataset` and `write_predictions`.
      predicts_evaluation_set: whether predictions are of the evaluation set, and not of a test set.
      companions: {name: content} of what is kept in the run's folder, because its weights mean nothing
        without it: the vocabulary, whether text is lower-cased, the names of labels. Known once `find_data`
        has found the data.
      train_samples: sequences of the training set, once `find_data` has found it; None where that says
        nothing about the steps.
    """

    losses: tuple[str, ...]
    metrics: tuple[str, ...]
    eval_metrics: tuple[str, ...]
    target_metric: str
    local_epsilon: dict[str, float]
    keeps_best: bool
    predicts_evaluation_set: bool
    companions: dict[str, bytes]
    train_samples: int | None

    def build_model(self) -> tf.keras.Model:
        """Makes the model; called in the strategy's scope."""

    def find_data(self) -> list[str]:
        """Finds the data files and checks that they are of the right kind; called before any dataset of files
        is asked for.

        Returns:
          All files, training and evaluation; empty for synthetic data.

        Raises:
          ConfigError: where a file is missing or of the wrong kind.
        """

    def train_dataset(self, batch_size: int, samples_done: int, host: int, num_hosts: int) -> tf.data.Dataset:
        """Returns endless batches of `batch_size` sequences of this host's share, after the first
        `samples_done` of all hosts."""

    def eval_dataset(self, batch_size: int) -> tf.data.Dataset:
        """Returns the evaluation set once, in batches of one shape; what fills up the last one has weight
        0."""

    def synthetic_dataset(self, batch_size: int) -> tf.data.Dataset:
        """Returns endless batches of random records in the shape of `train_dataset`."""

    def weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the weight of every loss in a batch, without running the model."""

    def loss(self, model, batch: Batch, dropout_seed: Any) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Returns {metric: (weighted sum, weight)} of a batch; for losses the weight is that of `weights`."""

    def evaluate(
        self, model, batch: Batch
    ) -> tuple[dict[str, tuple[tf.Tensor, tf.Tensor]], dict[str, tf.Tensor]]:
        """Returns {metric: (weighted sum, weight)} of `eval_metrics`, and {output: [B, ...]}; the batch of a
        task with outputs has `rows`."""

    def score(self, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Returns {metric: value} of the outputs of the whole evaluation set, in the order of its rows."""

    def tables(self, outputs: dict[str, np.ndarray]) -> dict[str, list[list]]:
        """Returns {title: rows, the first one the head} that show where the model is right and wrong."""

    def predict_dataset(self, batch_size: int) -> tf.data.Dataset:
        """Returns what is predicted, like `eval_dataset`."""

    def write_predictions(self, outputs: dict[str, np.ndarray], folder: str) -> list[str]:
        """Writes the files of predictions, from the outputs of `predict_dataset`; returns their paths."""

    def example_outputs(self, model, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns {output: [B, ...]} of a few rows of the evaluation set, for `examples`; only of a task that
        does not keep its best."""

    def examples(self, outputs: dict[str, np.ndarray]) -> list[dict]:
        """Returns groups of examples for the report, from the outputs of the evaluation set or of
        `example_outputs`.

        A group is {"title", "note", "items"}, an item {"texts": lines of [text, kind] each, "facts": [[name,
        value], ...]}. Kinds: "" plain, "strong" what is asked, "right" predicted and true, "wrong" predicted
        and not true, "gold" true and not predicted.
        """

    def constant_prediction(self) -> tuple[str, float] | None:
        """Returns what to predict always, the most frequent of the evaluation set, and its target metric;
        None where there is none."""

    def data_digest(self) -> dict:
        """Returns what tells the data apart, per split; empty for data that is not read from files."""

    def explain_read_error(self) -> str | None:
        """Returns a line that names the file and record that cannot be read, or None where all can."""
