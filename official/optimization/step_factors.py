"""Factors of a step's objective and gradients, from the settings alone: plain numbers."""

from __future__ import annotations

from official.config import Config


def scale_factor(config: Config, num_micro_batches: int, num_replicas: int) -> int:
    """Returns the factor that the loss scale gets in the objective of a micro batch.

    With --loss_normalization=global a micro batch's part of the step's mean loss is smaller than its own mean
    by these two numbers; without them the scale would leave small gradients below what float16 can hold.
    """
    return num_micro_batches * num_replicas if config.loss_normalization == "global" else 1


def local_factor(config: Config, num_replicas: int) -> float:
    """Returns the factor of a micro batch's mean loss with --loss_normalization=local: 1, or 1 / replicas
    with --scale_loss."""
    return 1.0 / num_replicas if config.scale_loss else 1.0


def micro_batch_divisor(config: Config, num_micro_batches: int) -> int:
    """Returns the divisor of summed gradients that gives their mean over micro batches; 1 where the sum is
    wanted."""
    averages = config.loss_normalization == "local" and config.gradient_reduction == "mean"
    return num_micro_batches if averages else 1


def largest_norm(config: Config, num_replicas: int) -> float | None:
    """Returns the global norm that a step's gradient is clipped to, None for no clipping.

    Source: Graphcore's TF1 BERT: use_nvlamb clips to 1, use_mpclip to the number of replicas.
    """
    if config.lamb_variant == "nvlamb":
        return 1.0
    if config.lamb_variant == "mpclip":
        return float(num_replicas)
    return config.clip_norm if config.clip_scope == "global" else None
