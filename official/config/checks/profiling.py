"""Checks of what is measured of a run."""

from __future__ import annotations

from official.config.derived import train_steps
from official.config.profile_window import read_steps
from official.config.table import Config
from official.io.errors import ConfigError


def check_profile(config: Config) -> None:
    """Refuses a profile of steps that are none, and of a run that trains not at all."""
    name = "profile_steps" if config.profile_steps else "profile_memory" if config.profile_memory else None
    if name and not config.do_train:
        raise ConfigError(
            f"{name}={config[name]} is of training steps, do_train=false has none. Drop --{name}."
        )
    if config.profile_steps:
        read_steps(config.profile_steps)


def check_window(config: Config) -> None:
    """Raises ConfigError where the steps of --profile_steps are beyond the run, whose steps are known."""
    if config.profile_steps and config.do_train and read_steps(config.profile_steps)[1] > train_steps(config):
        raise ConfigError(
            f"profile_steps={config.profile_steps} is beyond the last step of the run, {train_steps(config)}."
            " Lower --profile_steps or train longer."
        )
