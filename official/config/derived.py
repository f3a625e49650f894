"""Values that follow from the settings. They are never settings themselves."""

_PRETRAINING_STEPS_PER_EPOCH, _PRETRAINING_WARMUP_STEPS, _FINE_TUNING_WARMUP = 1000, 10000.0, 0.1


def fill_in_steps(config, train_samples: int | None = None) -> None:
    """Fills in the steps of an epoch, of the warm-up and between evaluations where they are unset and can be
    known.

    Args:
      config: the configuration, changed in place.
      train_samples: sequences of the training set, where it has been read and once through it is an epoch.
    """
    fine_tuning = config.task != "pretrain"
    if config.num_steps_per_epoch is None and (train_samples or not fine_tuning):
        config.num_steps_per_epoch = (
            -(-train_samples // config.train_batch_size) if fine_tuning else _PRETRAINING_STEPS_PER_EPOCH
        )
    if config.warmup_steps is None and config.num_steps_per_epoch is not None:
        share = _FINE_TUNING_WARMUP if config.warmup_proportion is None else config.warmup_proportion
        is_share = fine_tuning or config.warmup_proportion is not None
        config.warmup_steps = share * schedule_steps(config) if is_share else _PRETRAINING_WARMUP_STEPS
    if config.steps_between_eval is None and fine_tuning and config.do_eval and config.do_train:
        config.steps_between_eval = config.num_steps_per_epoch


def schedule_steps(config) -> int:
    """Returns the steps over which the learning rate decays."""
    return config.num_steps_per_epoch * config.num_train_epochs


def train_steps(config) -> int:
    """Returns the steps that are trained: the schedule, or --stop_steps of it."""
    return config.stop_steps or schedule_steps(config)


def checkpoint_every_steps(config) -> int:
    """Returns the steps between checkpoints: as asked, or a tenth of the run in whole loops."""
    tenth = train_steps(config) / 10
    return config.checkpoint_every_steps or config.steps_per_loop * max(
        1, round(tenth / config.steps_per_loop)
    )


def initial_loss_scale(config) -> float | None:
    """Returns the fixed or the first dynamic loss scale, or None where losses are not scaled."""
    if config.loss_scale in (None, "dynamic"):
        return 2.0**15 if config.dtype == "fp16" or config.loss_scale else None
    return float(config.loss_scale)


def dynamic_loss_scale(config) -> bool:
    return config.loss_scale == "dynamic" or (config.loss_scale is None and config.dtype == "fp16")


def encoder_options(config) -> dict[str, bool]:
    """Returns how the encoder is built: `fused` and `shared` of `official.modeling`. A step that is compiled
    as a whole has no functions to share."""
    return {
        "fused": config.fused_ops,
        "shared": not (config.enable_xla or config.distribution_strategy == "tpu"),
    }
