"""What earlier processes of a run left in its folder: result, metrics, settings."""

from official import config as config_lib
from official.config import Config, ConfigError
from official.config.model import contradictions
from official.reporting.metrics import OPEN_STEPS, read_metrics
from official.reporting.result import TrainResult, read_result
from official.training import own_folder


class Earlier:
    """Read before this process writes."""

    def __init__(self, model_dir: str):
        self.result = read_result(model_dir)
        self.record = own_folder.read_record(model_dir)
        self._metrics = read_metrics(model_dir)
        self._settings = self.record.settings

    def evaluates_like(self, config: Config) -> bool:
        """Tells whether its evaluations are of the set that this run evaluates."""
        return bool(self._settings) and all(
            self.record.has(name, config[name])
            for name, field in config_lib.FIELDS.items()
            if field.changes_evaluation(config)
        )

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
        """Returns the updates up to `last_step` that loss scaling skipped, in whole intervals: one that was
        cut goes on with its own count."""
        return sum(
            line.get("skipped_steps") or 0
            for line in self._metrics
            if line["split"] == "train" and line["step"] <= last_step and OPEN_STEPS not in line
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
