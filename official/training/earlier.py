"""Result, metrics and settings that earlier processes of a run left in its folder."""

from __future__ import annotations

from collections.abc import Callable

from absl import logging

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import Config, ConfigError
from official.config.model import contradictions
from official.config.setting import LENGTH
from official.optimization.train_state import TrainState
from official.reporting import result as result_lib
from official.reporting.metrics import OPEN_STEPS, read_metrics
from official.reporting.result import TrainResult, read_result
from official.training import own_folder
from official.training.task import Task, is_scored


class Earlier:
    """The result, settings and metrics of a run's folder, read before this process writes to it."""

    def __init__(self, model_dir: str):
        self.result = read_result(model_dir)
        self.record = own_folder.read_record(model_dir)
        self._metrics = read_metrics(model_dir)
        self._settings = self.record.settings

    def evaluates_like(self, config: Config) -> bool:
        """Tells whether the earlier evaluations used the same set and settings as this run's."""
        return bool(self._settings) and all(
            self.record.has(name, config[name])
            for name, field in config_lib.FIELDS.items()
            if field.changes_evaluation(config)
        )

    def check(self, asked: Config, config: Config) -> None:
        """Checks that the training asked for continues the run in the folder, and has steps left.

        Args:
          asked: the configuration that was asked for.
          config: the configuration completed from devices and data.

        Raises:
          ConfigError: where the folder has another run, or no step is left.
        """
        if config.do_train:
            self.record.check(asked)
            self.record.check_steps(asked, config_lib.train_steps(config))

    def tell_changes(self, asked: Config) -> None:
        """Logs the settings changed since the run was started: a warning for those that affect the
        weights."""
        changes = self.record.changes(asked)
        others = changes.pop("")
        trained = [change for found in changes.values() for change in found]
        if trained:
            logging.warning("Changed since this run was started: %s", ", ".join(trained))
        if others:
            logging.info("Also changed, and of no effect on what is trained: %s", ", ".join(others))

    def check_model(self, config: Config) -> None:
        """Raises ConfigError where the saved model has the same weights but computes otherwise: other heads,
        activation or epsilon."""
        saved = self._settings.get("model")
        other = contradictions(config.model, saved) if isinstance(saved, dict) else []
        if other:
            raise ConfigError(
                f"the run in --model_dir={config.model_dir} {'; it '.join(other)}. Give the config.json there"
                " as --config in place of --bert_config_file, or change --model_dir."
            )

    def evaluations(self, last_step: int) -> dict[int, dict]:
        """Returns {step: values} of the earlier evaluations up to `last_step`."""
        return {
            line["step"]: line
            for line in self._metrics
            if line["split"] == "eval" and line["step"] <= last_step
        }

    def skipped_steps(self, last_step: int) -> int:
        """Returns the number of updates up to `last_step` that loss scaling skipped, in whole intervals: an
        interval that was cut keeps its own count when it is resumed."""
        return sum(
            line.get("skipped_steps") or 0
            for line in self._metrics
            if line["split"] == "train" and line["step"] <= last_step and OPEN_STEPS not in line
        )

    def baseline(self) -> tuple[str, float] | None:
        """Returns the constant prediction and its score (the baseline) from the result; None without them."""
        prediction, score = (self.result.get(f"majority_{name}") for name in ("prediction", "accuracy"))
        return None if prediction is None or score is None else (prediction, score)

    def complete(self, result: TrainResult, first_step: int) -> None:
        """Adds the earlier processes' share to the result of this process, which resumed at `first_step`:
        skipped steps and, where nothing was trained, throughput and wall time."""
        result.skipped_steps += self.skipped_steps(first_step)
        if result.step == first_step == self.result.get("step"):  # nothing was trained: the speed is theirs
            result.sequences_per_sec = self.result.get("sequences_per_sec")
            result.wall_secs = self.result.get("wall_secs")


def left_to_do(config: Config) -> tuple[Config, TrainResult | None]:
    """Decides from the run in the folder what is left to do, before anything is built.

    Returns:
      (the configuration of the work left, which for a finished run may be an evaluation without training; the
      finished run's result where no work is left, else None).

    Raises:
      ConfigError: where the run is another one, or is over and was trained otherwise.
    """
    if not config.do_train:
        return config, None
    try:
        earlier = Earlier(config.model_dir)
    except OSError:  # told where the folder is locked
        return config, None
    record, result = earlier.record, earlier.result
    record.check(config)
    if not (record.is_over and result) or record.changes(config)[LENGTH]:
        return config, None
    same = earlier.evaluates_like(config)
    evaluate = config.do_eval and not (same and result.get("eval_accuracy") is not None)
    predict = config.do_predict and not (same and result.get("predictions"))
    if evaluate or predict:
        logging.info("The run in %s is over: its weights are evaluated, and not trained", config.model_dir)
        return config_lib.replaced(config, do_train=False), None
    over = result_lib.from_dict(result)
    over.reason += ". The run is over, and nothing in its folder was changed"
    over.signal = None  # which was for the process of then
    return config, over


def restore(
    config: Config,
    manager: CheckpointManager,
    state: TrainState,
    earlier: Earlier,
    task: Task,
    initialize: Callable[[str], list[str]],
) -> tuple[str, list[str]]:
    """Sets the state: own newest (without training: best) checkpoint > init_checkpoint > fresh.

    Args:
      config, manager, state, task: of the run.
      earlier: result, metrics and settings of earlier processes.
      initialize: path -> names; sets the model's variables from a checkpoint, and returns the names of those
        that the checkpoint lacks.

    Returns:
      (path of the checkpoint that was restored, empty without one; names of the head's fresh variables).

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
        return prefix, earlier.result.get("fresh_variables", [])
    if config.init_checkpoint:
        fresh = initialize(config.init_checkpoint)
        if fresh and is_scored(task) and not config.do_train:
            raise ConfigError(
                f"--init_checkpoint={config.init_checkpoint} has no {', '.join(fresh)}: it was not"
                " fine-tuned for this task. Give a checkpoint that was, or --do_train."
            )
        return config.init_checkpoint, fresh
    only_timed = config.predict_epochs and config.generated_data
    if not config.do_train and not only_timed:
        raise ConfigError(
            f"do_train=false, but --model_dir={config.model_dir} has no checkpoint to evaluate. Change"
            " --model_dir, or give --init_checkpoint."
        )
    end = "; what they predict of generated data means nothing" if only_timed else ""
    logging.info("Fresh weights from seed %d%s", config.seed, end)
    return "", []
