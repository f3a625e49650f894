"""Interface between the training program and a task: a job with its model, data, losses and scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import tensorflow as tf

from official.optimization.replica_step import Batch, Objective, Terms

if TYPE_CHECKING:
    from typing_extensions import TypeGuard  # noqa: UP035  # typing has it from Python 3.10 on

    from official.data.pipeline import TrainingOrder

    Outputs = dict[str, np.ndarray]  # {output: [sequences of the set, ...]}
    Dataset = Callable[[int], tf.data.Dataset]  # of a set: rows of a global batch -> its batches
else:
    Outputs = Dataset = Any


class Task(Objective, Protocol):
    """Members of every task. A protocol: implementations need not inherit from it.

    Attributes:
      eval_metrics: names of all metrics whose terms `evaluate` returns, the losses first; may be empty.
      output_names: names of the outputs that `evaluate` returns.
      target_metric: the metric, of `eval_metrics` or of `score`, that --stop_threshold is compared with.
        Higher is better.
      class_names: all names of each class of the head, in order, used to match the head of another
        checkpoint; None if its outputs are not named classes.
      problem_type: of those classes, a value of `model_folder.PROBLEM_TYPE_OF`.
      is_scored: whether it is a ScoredTask, and not an ExampleTask.
      companions: {name: content} of files kept in the run's folder, which give its weights their meaning: the
        vocabulary, whether text is lower-cased, the names of labels. Set by `find_data`.
      train_samples: number of sequences in the training set, set by `find_data`; None if the number of steps
        does not depend on it.
    """

    eval_metrics: tuple[str, ...]
    output_names: tuple[str, ...]
    target_metric: str
    class_names: list[tuple[str, ...]] | None
    problem_type: str
    is_scored: bool
    companions: dict[str, bytes]

    @property
    def train_samples(self) -> int | None: ...

    def build_model(self) -> tf.keras.Model:
        """Makes the model; called in the strategy's scope."""

    def find_data(self) -> list[str]:
        """Finds the data files and checks their kind; called before any method that returns a dataset of
        files.

        Returns:
          All files, training and evaluation; empty for synthetic data.

        Raises:
          ConfigError: if a file is missing or of the wrong kind.
        """

    @property
    def sequences_per_row(self) -> float | None:
        """Expected number of sequences per packed row, set by `find_data`; None where every row is one
        sequence."""

    def train_dataset(self, global_batch: int, replica_batch: int, order: TrainingOrder) -> tf.data.Dataset:
        """Returns endless batches, one per replica, of a host's share of the training set.

        Args:
          global_batch, replica_batch: rows per step, of all replicas and of one.
          order: the host and its share, and the position at which to start.
        """

    def eval_dataset(self, batch_size: int) -> tf.data.Dataset:
        """Returns one pass over the evaluation set, in batches of one shape; the padding of the last has
        weight 0."""

    def synthetic_dataset(self, batch_size: int, for_evaluation: bool = False) -> tf.data.Dataset:
        """Returns endless batches of random records in the shape of `train_dataset`, or of `eval_dataset`."""

    def evaluate(self, model: tf.keras.Model, batch: Batch) -> tuple[Terms, dict[str, tf.Tensor]]:
        """Returns {metric: (weighted sum, weight)} of `eval_metrics`, and {output: [B, ...]}.

        `example_weights` of the batch is 1 for every sequence and 0 for padding rows. The batch of a task
        with outputs has `rows`, the number of each sequence in the set, -1 for padding. Packed rows have both
        as [B, S], and outputs [B, S, ...]. Their training batches, too, have `example_weights`, to count the
        sequences of a step, and optionally `streams` [B], the data stream of each row.
        """

    def examples(self, outputs: Outputs) -> list[dict]:
        """Returns groups of examples for the report.

        A group is {"title", "note", "items"}, an item {"texts": lines of [text, kind] each, "facts": [[name,
        value], ...]}. Kinds: "" plain, "strong" the query, "right" predicted and true, "wrong" predicted and
        not true, "gold" true and not predicted.
        """

    def constant_prediction(self) -> tuple[str, float] | None:
        """Returns a constant prediction, such as the evaluation set's most frequent label, and its target
        metric, the baseline that a model must beat; None where there is none."""

    def data_files(self) -> dict[str, list[str]]:
        """Returns {split: files in reading order}; empty for synthetic data."""

    def data_digest(self) -> dict:
        """Returns the checksums and counts that identify each split's data; empty for data that is not read
        from files."""

    def explain_read_error(self) -> str | None:
        """Returns a line that names the file and record that cannot be read; None if all are readable."""


class ScoredTask(Task, Protocol):
    """A task with scores over the outputs of the whole evaluation set. The checkpoint of its best evaluation
    is kept, and used for scores and predictions; its `examples` are chosen from all outputs.

    Attributes:
      predicts_evaluation_set: whether predictions are for the evaluation set, not a test set.
    """

    predicts_evaluation_set: bool

    def score(self, outputs: Outputs) -> dict[str, float]:
        """Returns {metric: value} of the outputs of the whole evaluation set, in the order of its
        sequences."""

    def tables(self, outputs: Outputs) -> dict[str, list[list]]:
        """Returns {title: rows, the first one the header} of tables about right and wrong answers."""

    def predict_dataset(self, batch_size: int) -> tf.data.Dataset:
        """Returns the set to predict, in batches like those of `eval_dataset`."""

    def assets(self, outputs: Outputs) -> dict[str, bytes]:
        """Returns {name: content} of files to save with the best weights, computed from their outputs of the
        evaluation set."""

    def write_predictions(self, outputs: Outputs, folder: str) -> list[str]:
        """Writes the files of predictions, from the outputs of `predict_dataset`; returns their paths."""


class ExampleTask(Task, Protocol):
    """A task without scores; its `examples` show only a few sequences."""

    def example_dataset(self, batch_size: int) -> tf.data.Dataset:
        """Returns the evaluation set like `eval_dataset`, one sequence a row."""

    def example_outputs(self, model: tf.keras.Model, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns {output: [B, ...]} of a few sequences of the evaluation set."""


def is_scored(task: Task) -> TypeGuard[ScoredTask]:
    """Tells whether a task is a ScoredTask."""
    return task.is_scored
