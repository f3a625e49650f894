"""Checks of how weights are updated."""

from __future__ import annotations

import math

from official.config.derived import schedule_steps
from official.config.table import Config
from official.io.errors import ConfigError


def check_optimization(config: Config) -> None:
    """Refuses hyper-parameters that contradict each other."""
    _check_optimizer(config)
    _check_gradients(config)
    _check_loss_scale(config)
    _check_warmup(config)


def _check_optimizer(config: Config) -> None:
    if config.end_learning_rate > config.learning_rate:
        raise ConfigError(
            f"end_learning_rate={config.end_learning_rate} is above learning_rate={config.learning_rate}."
            " Lower --end_learning_rate."
        )
    if config.epsilon == 0:
        raise ConfigError("epsilon=0, expected a number above 0. Raise --epsilon.")
    for name in ("beta_1", "beta_2"):
        if config[name] >= 1:
            raise ConfigError(f"{name}={config[name]}, expected a number in [0, 1). Lower --{name}.")
    if config.clip_scope != "none" and config.clip_norm == 0:
        raise ConfigError(
            "clip_norm=0 would clip every gradient to nothing. Raise --clip_norm or set --clip_scope=none."
        )


def _check_gradients(config: Config) -> None:
    if config.clip_scope == "micro_batch" and config.loss_normalization == "global":
        raise ConfigError(
            "clip_scope=micro_batch clips a mean loss's gradient, loss_normalization=global makes none per"
            " micro batch. Use --loss_normalization=local, or --clip_scope=global."
        )
    if config.scale_loss and config.loss_normalization == "global":
        raise ConfigError(
            "scale_loss divides each replica's mean loss, loss_normalization=global has none: it already"
            " divides by the whole step's weights. Drop --scale_loss, or use --loss_normalization=local."
        )


def _check_loss_scale(config: Config) -> None:
    if config.loss_scale in (None, "dynamic"):
        return
    try:
        valid = 0 < float(config.loss_scale) < math.inf
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"loss_scale={config.loss_scale}, expected dynamic or a number above 0.")


def _check_warmup(config: Config) -> None:
    share = config.warmup_proportion
    if (
        share is not None
        and config.warmup_steps is not None
        and (config.num_steps_per_epoch is None or config.warmup_steps != share * schedule_steps(config))
    ):
        raise ConfigError(
            f"warmup_steps={config.warmup_steps:g} and warmup_proportion={config.warmup_proportion:g} both"
            " set the warm-up. Drop one."
        )
    if config.start_warmup_step and config.warmup_steps == 0:
        raise ConfigError(
            f"start_warmup_step={config.start_warmup_step} needs a warm-up. Set --warmup_steps above 0."
        )
