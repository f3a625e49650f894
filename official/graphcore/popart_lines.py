"""Lines of the log of Graphcore's PopART program, word for word."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from official.config.table import Config

_TASKS = ("mlm", "nsp")  # tasks of pre-training


def iteration_line(config: Config, step: int, values: dict, step_secs: float) -> str:
    """Returns the line of the PopART program, whose accuracies are fractions without a sign.

    Args:
      config: configuration of the run.
      step: updates done, the number of the iteration.
      values: values of the interval.
      step_secs: seconds per step.
    """
    epoch, tasks = step / config.num_steps_per_epoch, [name for name in _TASKS if f"{name}_loss" in values]
    losses, accuracies = (
        " ".join(f"{values[f'{name}_{kind}']:.3f}" for name in tasks) for kind in ("loss", "accuracy")
    )
    named = " ".join(tasks).upper()
    return (
        f"Iteration: {step} Epoch: {epoch:.2f}/{config.num_train_epochs}"
        f" | Loss ({named}): {losses} Accuracy ({named}): {accuracies}"
        f" Learning Rate: {values['learning_rate']:.5g}"
        f" Duration: {step_secs:.4f} s Throughput: {values['sequences_per_sec']:.1f} sequences/s"
    )


def inference_line(number: int, duration: float, sequences_per_sec: float, secs: Sequence[float]) -> str:
    """Returns the line of PopART's inference.

    Source: examples v3.0.0 nlp/bert/popart/utils/iteration.py, report_inference_stats.

    Args:
      number: number of the iteration, from 0.
      duration: duration of the iteration in seconds.
      sequences_per_sec: throughput of the iteration.
      secs: seconds of each batch.
    """
    mean, least, most = np.mean(secs), min(secs), max(secs)
    return (
        f"Iteration: {number:6} Duration: {duration:6.4f} s Throughput: {sequences_per_sec:6.1f} sequences/s"
        f" Per-sample: Mean Latency={mean:.6f} Min Latency={least:.6f} Max Latency={most:.6f}"
        f" p99 Latency={np.percentile(secs, 99):.6f} p999 Latency={np.percentile(secs, 99.9):.6f} seconds"
    )
