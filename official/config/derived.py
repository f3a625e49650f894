"""Values that follow from the settings. They are never settings themselves."""


def schedule_steps(config) -> int:
    """Returns the steps over which the learning rate decays."""
    return config.num_steps_per_epoch * config.num_train_epochs


def train_steps(config) -> int:
    """Returns the steps that are trained: the schedule, or --stop_steps of it."""
    return config.stop_steps or schedule_steps(config)


def checkpoint_every_steps(config) -> int:
    """Returns the steps between checkpoints: as asked, or a tenth of the run in whole loops."""
    tenth = train_steps(config) / 10
    return config.checkpoint_every_steps or config.steps_per_loop * max(1, round(tenth / config.steps_per_loop))


def initial_loss_scale(config) -> float | None:
    """Returns the fixed or the first dynamic loss scale, or None where losses are not scaled."""
    if config.loss_scale in (None, "dynamic"):
        return 2.0**15 if config.dtype == "fp16" or config.loss_scale else None
    return float(config.loss_scale)


def dynamic_loss_scale(config) -> bool:
    return config.loss_scale == "dynamic" or (config.loss_scale is None and config.dtype == "fp16")
