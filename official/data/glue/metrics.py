"""GLUE's metrics over a whole set, by scikit-learn and SciPy.

Where a measure is not defined (a correlation with predictions that are all alike, are not finite, or are
fewer than two; the F1 of no positive example) it is 0.0: such predictions say nothing.
"""

from __future__ import annotations

import numpy as np

from official.data.glue.tasks import GlueTask


def score(task: GlueTask, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns the task's metrics, {name: value}; correlations from -1 to 1, the others from 0 to 1.

    Args:
      task: the task.
      predictions: [N] classes (integers) or scores (floats) of the whole set.
      labels: [N] the same of the file.
    """
    return {name: float(_METRICS[name](np.asarray(labels), np.asarray(predictions))) for name in task.metrics}


def baseline(task: GlueTask, labels: np.ndarray) -> dict[str, float]:
    """Returns the metrics of predicting the same for every row: the most frequent class, or the mean
    score."""
    constant = np.mean(labels) if task.is_regression else np.argmax(np.bincount(labels))
    return score(task, np.full(len(labels), constant), labels)


def confusion_matrix(task: GlueTask, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns [C, C] int of a task with classes: how many rows of class i, in the order of its labels, are
    predicted as class j."""
    return _sklearn().confusion_matrix(labels, predictions, labels=range(len(task.classes)))


def _sklearn():
    """Returns scikit-learn's metrics, which take a second to load: of the run, not of every program that
    knows the tasks."""
    from sklearn import metrics

    return metrics


def _accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    return _sklearn().accuracy_score(labels, predictions)


def _f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    return _sklearn().f1_score(labels, predictions, pos_label=1, average="binary", zero_division=0.0)


def _matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    return _sklearn().matthews_corrcoef(labels, predictions)


def _pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    from scipy import stats  # late, as scikit-learn

    return stats.pearsonr(labels, predictions).statistic


def _spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    from scipy import stats

    return stats.spearmanr(labels, predictions).statistic


def _correlation(measure):
    def of(labels: np.ndarray, predictions: np.ndarray) -> float:
        if not np.isfinite(predictions).all() or np.ptp(predictions) == 0 or np.ptp(labels) == 0:
            return 0.0
        # in float64: sums over thousands of float32 scores lose digits
        return measure(labels.astype(np.float64), predictions.astype(np.float64))

    return of


_METRICS = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews_correlation": _correlation(_matthews),
    "pearson": _correlation(_pearson),
    "spearman": _correlation(_spearman),
}
