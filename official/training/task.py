"""What the training program asks of a task."""

from typing import Any, Protocol

import tensorflow as tf

Batch = dict[str, tf.Tensor]


class Task(Protocol):
    """A job: its model, data, losses and scores. Implementations inherit nothing.

    Attributes:
      losses: names whose mean losses add up to what is trained.
      metrics: names of everything `loss` returns, the losses first.
      target_metric: the metric that --stop_threshold is compared with.
      local_epsilon: per loss, what is added to the weight of a micro batch with --loss_normalization=local.
    """

    losses: tuple[str, ...]
    metrics: tuple[str, ...]
    target_metric: str
    local_epsilon: dict[str, float]

    def build_model(self) -> tf.keras.Model:
        """Makes the model; called in the strategy's scope."""

    def find_data(self) -> list[str]:
        """Finds the data files and checks that they are of the right kind; called before any dataset of files is asked for.

        Returns:
          All files, training and evaluation; empty for synthetic data.

        Raises:
          ConfigError: where a file is missing or of the wrong kind.
        """

    def train_dataset(self, batch_size: int, samples_done: int, host: int, num_hosts: int) -> tf.data.Dataset:
        """Returns endless batches of `batch_size` sequences of this host's share, after the first `samples_done` of all hosts."""

    def eval_dataset(self, batch_size: int) -> tf.data.Dataset:
        """Returns the evaluation set once, in batches of one shape; what fills up the last one has weight 0."""

    def synthetic_dataset(self, batch_size: int) -> tf.data.Dataset:
        """Returns endless batches of random records in the shape of `train_dataset`."""

    def weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the weight of every loss in a batch, without running the model."""

    def loss(self, model, batch: Batch, dropout_seed: Any) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Returns {metric: (weighted sum, weight)} of a batch; for losses the weight is that of `weights`."""

    def majority_accuracy(self) -> float:
        """Returns the target metric, on the evaluation set, of always predicting the most frequent label."""

    def data_digest(self) -> dict:
        """Returns what tells the data apart, per split; empty for data that is not read from files."""

    def explain_read_error(self) -> str | None:
        """Returns a line that names the file and record that cannot be read, or None where all can."""
