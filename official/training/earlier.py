"""What earlier processes of a run left in its folder: result, metrics, settings."""

from __future__ import annotations

import os
from collections.abc import Callable

from absl import logging

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import Config, ConfigError
from official.config.model import contradictions
from official.io.json_files import read_json_or_empty
from official.optimization.train_state import TrainState
from official.reporting.metrics import read_metrics
from official.reporting.result import TrainResult, read_result
from official.training.task import Task, is_scored


class Earlier:
    """Read before this process writes."""

    def __init__(self, model_dir: str):
        self.result = read_result(model_dir)
        self._metrics = read_metrics(model_dir)
        self._settings = read_json_or_empty(os.path.join(model_dir, "config.json"))

    def evaluates_like(self, config: Config) -> bool:
        """Tells whether its evaluations are of the set that this run evaluates."""
        return bool(self._settings) and all(
            self._settings.get(name, field.default) == config[name]
            for name, field in config_lib.FIELDS.items()
            if field.changes_evaluation(config)
        )

    def changes(self, config: Config) -> list[str]:
        """Returns the settings that differ from those of the earlier process: 'name old -> new'."""
        known = {
            name: self._settings[name]
            for name in config_lib.FIELDS
            if name in self._settings and name != "init_checkpoint"
        }
        return [f"{name} {value} -> {config[name]}" for name, value in known.items() if value != config[name]]

    def check_model(self, config: Config) -> None:
        """Raises ConfigError where its model computes something else with the same weights: other heads,
        activation or epsilon."""
        saved = self._settings.get("model")
        other = contradictions(config.model, saved) if isinstance(saved, dict) else []
        if other:
            raise ConfigError(
                f"the run in --model_dir={config.model_dir} {'; it '.join(other)}. Give the config.json there"
                " as --config in place of --bert_config_file, or change --model_dir."
            )

    def evaluations(self, last_step: int) -> dict[int, dict]:
        """Returns {step: values} of its evaluations up to `last_step`."""
        return {
            line["step"]: line
            for line in self._metrics
            if line["split"] == "eval" and line["step"] <= last_step
        }

    def skipped_steps(self, last_step: int) -> int:
        """Returns the updates up to `last_step` that loss scaling skipped."""
        return sum(
            line.get("skipped_steps") or 0
            for line in self._metrics
            if line["split"] == "train" and line["step"] <= last_step
        )

    def baseline(self) -> tuple[str, float] | None:
        """Returns what to predict always, and its score, where it is known."""
        prediction, score = (self.result.get(f"majority_{name}") for name in ("prediction", "accuracy"))
        return None if prediction is None or score is None else (prediction, score)

    def complete(self, result: TrainResult, first_step: int) -> None:
        """Adds to the result of this process, which went on from `first_step`, what only earlier ones
        know."""
        result.skipped_steps += self.skipped_steps(first_step)
        if result.step == first_step == self.result.get("step"):  # nothing was trained: the speed is theirs
            result.sequences_per_sec = self.result.get("sequences_per_sec")
            result.wall_secs = self.result.get("wall_secs")


def restore(
    config: Config,
    manager: CheckpointManager,
    state: TrainState,
    earlier: Earlier,
    task: Task,
    initialize: Callable[[str], list[str]],
) -> list[str]:
    """Sets the state: own newest (without training: best) checkpoint > init_checkpoint > fresh.

    Args:
      config, manager, state, task: of the run.
      earlier: what earlier processes left.
      initialize: path -> names; sets the variables of the model from a checkpoint, and returns those that it
        does not have.

    Returns:
      The names of a head that started fresh.

    Raises:
      ConfigError: where there is nothing to evaluate, or a checkpoint is of another model.
    """
    best = earlier.result.get("best_step") if is_scored(task) and not config.do_train else None
    prefix = best is not None and manager.restore(best) or manager.restore_newest()
    if prefix:
        earlier.check_model(config)
        if state.loss_scale:
            state.loss_scale.go_on(state.step)
        logging.info("Resuming from %s: step %d, %d sequences", prefix, state.step, state.samples_done)
        return earlier.result.get("fresh_variables", [])
    if config.init_checkpoint:
        fresh = initialize(config.init_checkpoint)
        if fresh and is_scored(task) and not config.do_train:
            raise ConfigError(
                f"--init_checkpoint={config.init_checkpoint} has no {', '.join(fresh)}: it was not"
                " fine-tuned for this task. Give a checkpoint that was, or --do_train."
            )
        return fresh
    if not config.do_train:
        raise ConfigError(
            f"do_train=false, but --model_dir={config.model_dir} has no checkpoint to evaluate. Change"
            " --model_dir, or give --init_checkpoint."
        )
    logging.info("Fresh weights from seed %d", config.seed)
    return []
