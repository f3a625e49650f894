"""What the plan expects of a run, said before it starts."""

from __future__ import annotations

from absl import logging

from official.config import Config
from official.io.errors import ConfigError
from official.planning import plan
from official.training.starting import Devices, MakeTask


def tell(config: Config, make_task: MakeTask, devices: Devices) -> float | None:
    """Logs the predicted speed of a run and returns it, sequences a second; None where its machine was not
    measured, and of processes that write nothing.

    Raises:
      ConfigError: where --machine_file cannot be read. A damaged file in the user's cache is only told.
    """
    if not (devices.is_chief and config.do_train):
        return None
    try:
        found = plan.predict(config, make_task, devices.plan)
    except ConfigError as error:
        if config.machine_file is not None:
            raise
        logging.warning("No predicted speed: %s", error)
        return None
    if found is None:
        return None
    logging.info("Predicted: %.4g sequences/s, %.4g s a step", found["sequences_per_sec"], found["step_secs"])
    return found["sequences_per_sec"]
