"""Tags of Graphcore's TF1 program for the metrics of a run, in TensorBoard and W&B: beside our names.

Source: examples v3.0.0 nlp/bert/tensorflow1.
"""

import math
from collections.abc import Callable

from official import config as config_lib
from official.config import Config

Tags = Callable[[int, dict], dict[str, float]]

COMPILE_TIME = "poplar/compile_time"
WANDB_PROJECT = "tf-bert"
FOLDERS = ("loss/*", "accuracy/*", "poplar/*")
_NAMES = {
    "loss/MLM": "mlm_loss",
    "loss/NSP": "nsp_loss",
    "accuracy/MLM": "mlm_accuracy",
    "accuracy/NSP": "nsp_accuracy",
    "learning_rate": "learning_rate",
    "loss_scaling": "loss_scale",
    "samples_per_sec": "sequences_per_sec",
    "samples": "samples",
}


def of_run(config: Config) -> Tags | None:
    """Returns (step, values of an interval) -> {tag: finite number}; None without their log style.

    Args:
      config: of the run.
    """
    if not config_lib.follows_graphcore_log(config):
        return None

    def tags(step: int, values: dict) -> dict[str, float]:
        found = {tag: values[name] for tag, name in _NAMES.items() if name in values}
        found["epoch"] = step / config.num_steps_per_epoch
        return {tag: float(value) for tag, value in found.items() if math.isfinite(value)}

    return tags
