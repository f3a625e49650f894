"""Checks of what is said of a run: its plan, and where its metrics go."""

from __future__ import annotations

from official.config.table import Config
from official.io.errors import ConfigError


def check_wandb(config: Config) -> None:
    """Refuses settings of Weights & Biases without it."""
    for name in ("wandb_project", "wandb_name"):
        if config[name] is not None and not config.wandb:
            raise ConfigError(f"{name}={config[name]} needs --wandb.")


def check_plan(config: Config) -> None:
    """Refuses settings of the plan without it, and speeds of 0."""
    for name in ("plan_file", "plan_config_file", "plan_picture", "plan_tflops", "plan_gbps"):
        if config[name] is not None and not config.plan:
            raise ConfigError(f"{name}={config[name]} needs --plan. Add --plan or drop --{name}.")
        if config[name] == 0:
            raise ConfigError(f"{name}=0, expected a number above 0. Raise --{name}.")
    if config.plan_gbps and not config.plan_tflops:
        raise ConfigError(
            f"plan_gbps={config.plan_gbps} is added to the time of the matrix products. Add --plan_tflops."
        )
