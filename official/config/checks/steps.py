"""Checks of how long a run is, and of what happens in it when."""

from __future__ import annotations

from official.config.checks.profiling import check_window
from official.config.derived import schedule_steps, train_steps
from official.config.table import FIELDS, Config
from official.io.errors import ConfigError, nearest_multiples


def check_schedule(config: Config) -> None:
    """Raises ConfigError where --stop_steps is beyond the schedule, or --profile_steps beyond the run."""
    if train_steps(config) > schedule_steps(config):
        raise ConfigError(
            f"stop_steps={config.stop_steps} is beyond num_steps_per_epoch x num_train_epochs ="
            f" {config.num_steps_per_epoch} x {config.num_train_epochs} = {schedule_steps(config)}. Lower"
            " --stop_steps or raise --num_steps_per_epoch."
        )
    check_window(config)


def check_steps(config: Config) -> None:
    """Refuses steps that do not fit into loops, and evaluations that do not take place."""
    if config.num_steps_per_epoch is not None:
        check_schedule(config)
    for name in ("steps_between_eval", "checkpoint_every_steps"):
        value = config[name]
        if value and config.steps_per_loop and value % config.steps_per_loop:
            raise ConfigError(
                f"{name}={value} is not a multiple of steps_per_loop={config.steps_per_loop}. "
                f"Nearest valid: {nearest_multiples(value, config.steps_per_loop)}."
            )
    if config.stop_threshold is not None and not config.do_eval:
        raise ConfigError(
            f"stop_threshold={config.stop_threshold} needs evaluations. Add --do_eval or drop"
            " --stop_threshold."
        )
    made_up = config.use_synthetic_data or config.generated_data
    if config.eval_rule == "mlperf_1.0" and not config.eval_files and not made_up:
        raise ConfigError(
            "eval_rule=mlperf_1.0 evaluates held-out records. Give --eval_files, e.g. one made by"
            " scripts/make_eval_set.py."
        )
    for name in ("steps_between_eval", "steps_before_eval_start", "eval_files"):
        if config[name] and not config.do_eval:
            unset = "" if FIELDS[name].default is None else FIELDS[name].default
            raise ConfigError(
                f"{name}={config[name]} needs --do_eval. Add --do_eval, or --{name}={unset} to unset it."
            )
