"""What the plan expects of a run, beside what the run measured."""

from __future__ import annotations

from absl import logging

from official.config import Config
from official.io.errors import ConfigError
from official.planning import machine, plan
from official.training.starting import Devices, MakeTask


def check(config: Config) -> None:
    """Raises ConfigError where --machine_file cannot be read."""
    if config.machine_file is not None:
        machine.find(config.machine_file)


def tell(config: Config, make_task: MakeTask, devices: Devices, measured: float | None) -> float | None:
    """Logs the predicted speed of a run beside the measured one, in sequences a second.

    It makes the graph of a step, so it comes when the run is done.

    Returns:
      The predicted speed; None where the run's machine was not measured, and of processes that write nothing.
    """
    if not (devices.is_chief and config.do_train):
        return None
    try:
        found = plan.predict(config, make_task, devices.plan)
    except ConfigError as error:
        logging.warning("No predicted speed: %s", error)
        return None
    if found is None:
        return None
    beside = "" if measured is None else f", measured {measured:.4g}"
    logging.info("Predicted: %.4g sequences/s%s", found["sequences_per_sec"], beside)
    return found["sequences_per_sec"]
