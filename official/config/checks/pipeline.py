"""Checks of what a pipeline's settings say alone; whether they fit the model is known with its stages."""

from __future__ import annotations

from official.config.settings.pipeline import SCHEDULES
from official.config.stage_notation import read_devices, read_stages
from official.config.table import Config
from official.io.errors import ConfigError


def check_pipeline(config: Config) -> None:
    """Refuses texts that say no stages and no devices, and schedules of another back end."""
    if config.pipeline_stages:
        read_stages(config.pipeline_stages)
    if config.device_mapping:
        read_devices(config.device_mapping)
    known = SCHEDULES.get(config.distribution_strategy, ())
    if config.pipeline_schedule and config.pipeline_schedule not in known:
        raise ConfigError(
            f"pipeline_schedule={config.pipeline_schedule} does not go with"
            f" --distribution_strategy={config.distribution_strategy}. Use one of {', '.join(known)}."
        )
