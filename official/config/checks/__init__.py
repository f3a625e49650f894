"""Validation of the whole: each check is one rule that no single setting can know."""

from __future__ import annotations

from official.config.checks import (
    devices,
    exporting,
    inputs,
    notes,
    optimization,
    packing,
    pipeline,
    profiling,
    steps,
)
from official.config.data_streams import check_streams
from official.config.table import Config

# In the order in which a person would want to know.
_CHECKS = (
    inputs.check_task,
    devices.check_batches,
    inputs.check_files,
    notes.check_wandb,
    inputs.check_lengths,
    inputs.check_vocabulary,
    packing.check_packing,
    check_streams,
    profiling.check_profile,
    steps.check_steps,
    optimization.check_optimization,
    devices.check_backend,
    pipeline.check_pipeline,
    devices.check_all_reduce,
    exporting.check_export,
    notes.check_plan,
)


def validate(config: Config) -> None:
    """Raises ConfigError for settings that are missing or exclude each other."""
    for check in _CHECKS:
        check(config)
