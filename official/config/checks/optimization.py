"""Checks of how weights are updated."""

from __future__ import annotations

import math

from official.config import by_step
from official.config.derived import schedule_steps
from official.config.table import FIELDS, Config
from official.io.errors import ConfigError

# Settings that only some optimizers and schedules read.
_ADAM = ("adam", "adamw", "mpadamw")
OF_OPTIMIZERS = {
    ("lamb_variant", "lamb_bias_correction", "lamb_decays_gamma"): ("lamb",),
    ("adam_bias_correction",): _ADAM,
    ("momentum",): ("momentum",),
    ("weight_decay_rate",): ("lamb", "adamw", "mpadamw"),
    ("beta_1", "beta_2", "epsilon"): ("lamb", *_ADAM),
}
_WARMED_UP = ("polynomial", "cosine", "natural_exponential", "up_down")
OF_SCHEDULES = {
    ("lr_schedule_by_step",): ("custom",),
    ("decay_steps", "decay_rate"): ("natural_exponential",),
    ("poly_power",): ("polynomial",),
    ("learning_rate", "end_learning_rate", "warmup_power", "warmup_proportion"): _WARMED_UP,
}


def check_optimization(config: Config) -> None:
    """Refuses hyper-parameters that contradict each other."""
    _check_optimizer(config)
    _check_kind_of_optimizer(config)
    _check_schedule(config)
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
    for name in ("beta_1", "beta_2", "momentum"):
        if config[name] >= 1:
            raise ConfigError(f"{name}={config[name]}, expected a number in [0, 1). Lower --{name}.")
    if config.clip_scope != "none" and config.clip_norm == 0:
        raise ConfigError(
            "clip_norm=0 would clip every gradient to nothing. Raise --clip_norm or set --clip_scope=none."
        )


def _check_kind_of_optimizer(config: Config) -> None:
    """Refuses settings that the optimizer would not read."""
    for names, allowed in OF_OPTIMIZERS.items():
        _refuse_unread(config, names, "optimizer_type", allowed)
    if config.lamb_variant == "lamb":
        return
    clips_itself = config.clip_scope == "global" and config.clip_norm != FIELDS["clip_norm"].default
    if clips_itself or config.clip_scope == "micro_batch":
        what = f"clip_norm={config.clip_norm:g}" if clips_itself else f"clip_scope={config.clip_scope}"
        raise ConfigError(
            f"lamb_variant={config.lamb_variant} says how the step's gradient is clipped, and so does {what}."
            f" Drop --{what.partition('=')[0]} or --lamb_variant."
        )


def _refuse_unread(config: Config, names: tuple[str, ...], by: str, allowed: tuple[str, ...]) -> None:
    """Refuses settings that are not their default where `by` is none of `allowed`, which read them."""
    for name in names:
        is_told = config[name] != FIELDS[name].default and (config[name] or config[name] is False)
        if config[by] not in allowed and is_told:
            raise ConfigError(
                f"{name}={str(config[name])[:100]} is not read by {by}={config[by]}, but by"
                f" {', '.join(allowed)}. Drop --{name}, or change --{by}."
            )


def _check_schedule(config: Config) -> None:
    for names, allowed in OF_SCHEDULES.items():
        _refuse_unread(config, names, "lr_schedule", allowed)
    if config.lr_schedule == "custom":
        if config.lr_schedule_by_step is None:
            raise ConfigError("lr_schedule=custom needs --lr_schedule_by_step.")
        by_step.read(config.lr_schedule_by_step, "lr_schedule_by_step")
        for name in ("warmup_steps", "start_warmup_step"):
            if config[name]:
                raise ConfigError(
                    f"{name}={config[name]:g}, but lr_schedule=custom has no warm-up beside"
                    f" lr_schedule_by_step. Drop --{name}."
                )
    for name in ("decay_steps", "decay_rate"):
        if config.lr_schedule == "natural_exponential" and config[name] is None:
            raise ConfigError(f"lr_schedule=natural_exponential needs --{name}.")
    if config.warmup_power == 0:
        raise ConfigError("warmup_power=0 is no warm-up. Raise --warmup_power, or set --warmup_steps=0.")


def _check_gradients(config: Config) -> None:
    if config.gradient_reduction == "sum" and (config.loss_normalization == "global" or config.scale_loss):
        other = "scale_loss" if config.scale_loss else "loss_normalization=global"
        raise ConfigError(
            f"gradient_reduction=sum adds up the mean losses of all micro batches and replicas, {other} makes"
            " a mean of them. Use --loss_normalization=local without --scale_loss, or drop"
            " --gradient_reduction."
        )
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
    if config.loss_scale_by_step is not None:
        values = by_step.read(config.loss_scale_by_step, "loss_scale_by_step")
        if config.loss_scale is not None:
            raise ConfigError(
                f"loss_scale={config.loss_scale} and loss_scale_by_step both set the loss scale. Drop one."
            )
        if min(values.values()) == 0:
            raise ConfigError(
                f"loss_scale_by_step={config.loss_scale_by_step[:100]} has a loss scale of 0, expected"
                " numbers above 0."
            )
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
