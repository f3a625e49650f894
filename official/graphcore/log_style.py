"""Log lines and metric tags of Graphcore's programs: --log_style=graphcore.

Source: examples v3.4.1 nlp/bert/pytorch/run_pretraining.py (blocks and step line), v2.4.0
applications/popart/bert (iteration line), v3.0.0 nlp/bert/tensorflow1 (tags). Their program prints fractions
with a percent sign; here they are percentages.
"""

from __future__ import annotations

import logging as standard_logging
import math
import sys
import time
from collections.abc import Callable

import tqdm
from absl import logging

from official.config.table import Config
from official.graphcore.popart_lines import iteration_line
from official.reporting.callback import Built, Callback, End, Evaluation, Start
from official.reporting.progress import is_terminal, log_evaluation

# -----------------------------------------------------------------------------------------------------------
# Tags for TensorBoard and W&B
#
# Source: examples v3.0.0 nlp/bert/tensorflow1.


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


class Tags:
    """Tags of a run's numbers, see `official.reporting.tensorboard.Tags`."""

    compile_time = "poplar/compile_time"
    project = "tf-bert"
    folders = ("loss/*", "accuracy/*", "poplar/*")

    def __init__(self, config: Config):
        self._steps_per_epoch = config.num_steps_per_epoch

    def __call__(self, step: int, values: dict) -> dict[str, float]:
        found = {tag: values[name] for tag, name in _NAMES.items() if name in values}
        found["epoch"] = step / self._steps_per_epoch
        return {tag: float(value) for tag, value in found.items() if math.isfinite(value)}


# -----------------------------------------------------------------------------------------------------------
# Blocks and step line of the PyTorch program
#
# Source: examples v3.4.1 nlp/bert/pytorch/run_pretraining.py; examples v2.4.0 applications/popart/bert.
# Their program prints fractions with a percent sign; here they are percentages.


WIDTH = 59  # of every title and rule
_METRICS_TITLE = "-------------------- Training Metrics ---------------------"  # not centred like the others


class GraphcoreLog(Callback):
    """Prints the lines to stderr without the time of day."""

    def __init__(self, config: Config, writes: bool, rate_at: Callable[[int], float]):
        """Makes the callback.

        Args:
          config: configuration of the run.
          writes: whether this process writes the log.
          rate_at: function step -> learning rate of that update.
        """
        self._config, self._writes, self._rate_at = config, writes, rate_at
        self._bar: tqdm.tqdm | None = None
        self._last_step = 0
        self._first = (0, 0)  # steps and sequences before the interval
        self._started: float | None = None
        self._shown = 0.0

    def _say(self, *lines: str) -> None:
        if self._is_heard():
            print(*lines, sep="\n", file=sys.stderr, flush=True)

    def _is_heard(self) -> bool:
        return self._writes and logging.get_absl_logger().isEnabledFor(standard_logging.INFO)

    def on_built(self, built: Built) -> None:
        """Logs the time for the data, and the devices of the model's parts."""
        self._say(
            _title("Data Loading Started"),
            f"Data loaded in {built.data_secs:.3f} secs",
            "-" * WIDTH,
            _title("Device Allocation"),
            *(f"{part:<10} --> {where}" for part, where in built.allocation or _parts(self._config, built)),
            "-" * WIDTH,
        )

    def on_compiling(self, done: int, graphs: int, secs: float) -> None:
        """Draws the bar, which counts graphs; without a terminal, only when it is full."""
        if done == 0:
            self._say(_title("Compilation/Loading from Cache Started"))
            if self._is_heard() and is_terminal(sys.stderr):
                self._bar = tqdm.tqdm(total=graphs, desc="Graph compilation", file=sys.stderr)
        elif self._bar is not None:
            self._bar.update()
        if done < graphs:
            return
        if self._bar is None:
            meter = tqdm.tqdm.format_meter(done, graphs, secs, prefix="Graph compilation", ncols=79)
            self._say(meter)
        self.close()
        self._say(f"Compiled/Loaded model in {secs:.3f} secs", "-" * WIDTH)

    def on_start(self, start: Start) -> None:
        """Logs the start of a training."""
        self._last_step = start.last_step or 0
        if start.step < self._last_step:
            self._started = self._shown = time.monotonic()
            self._say(_title("Training Started"))

    def on_training(self, step: int, samples: int, planned: int | None) -> None:
        """Stores the beginning of the interval."""
        self._first = (step, samples)

    def on_steps(self, step: int, values: dict) -> None:
        """Shows the open interval periodically."""
        secs_between_lines = 30
        if time.monotonic() - self._shown >= secs_between_lines and step < self._last_step:
            self._show(step, values)

    def on_interval(self, step: int, values: dict) -> None:
        """Shows the interval, in a line of each program's style."""
        self._show(step, values)

    def _show(self, step: int, values: dict) -> None:
        self._shown = time.monotonic()
        # Their program advances its schedule before it prints: the rate is that of the next step.
        lines = [step_line(step, self._last_step, {**values, "learning_rate": self._rate_at(step)})]
        if "mlm_loss" in values:
            lines.append(iteration_line(self._config, step, values, self._step_secs(step, values)))
        self._say(*lines)

    def _step_secs(self, step: int, values: dict) -> float:
        """Returns the seconds per step of the interval, without the time between intervals."""
        first_step, first_samples = self._first
        samples_per_step = (values["samples"] - first_samples) / max(step - first_step, 1)
        return samples_per_step / values["sequences_per_sec"] if values["sequences_per_sec"] else 0.0

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Logs the result in the plain style, since their programs do not evaluate during training."""
        log_evaluation(evaluation)

    def on_end(self, end: End) -> None:
        """Logs the batch size, the steps and the training time."""
        self.close()
        if self._started is None:
            return
        self._say(
            _METRICS_TITLE,
            f"global_batch_size: {self._config.train_batch_size}",
            f"device_iterations: {self._config.ipu.device_iterations}",
            f"training_steps: {self._last_step}",
            f"Training time: {time.monotonic() - self._started:.3f} secs",
            "-" * WIDTH,
        )
        self._started = None

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _title(text: str) -> str:
    return f" {text} ".center(WIDTH, "-")


def _parts(config: Config, built: Built) -> list[tuple[str, str]]:
    """Returns (part of the model, its device) within a replica."""
    parts = ["Embedding", *(f"Encoder {number:<2}" for number in range(config.model.num_hidden_layers))]
    has_pooler = config.task == "glue" or config.task == "pretrain" and config.objective == "mlm_nsp"
    parts += ["Pooler"] * has_pooler + ["Classifier"]
    return [(part, ", ".join(built.devices)) for part in parts]


def step_line(step: int, last_step: int, values: dict) -> str:
    """Returns the line of the PyTorch program.

    Args:
      step: updates done; the line counts them from 0.
      last_step: updates of the whole run.
      values: values of the interval as in `metrics.jsonl`; accuracies are fractions.
    """
    losses = {name: value for name, value in values.items() if name.endswith("_loss")}
    accuracies = {name: value for name, value in values.items() if name.endswith("_accuracy")}
    parts = [
        f"Step: {step - 1} / {last_step - 1}",
        f"LR: {values['learning_rate']:.2e}",
        f"total loss: {values['loss']:.3f}",
        *(f"{name}: {value:.3f}" for name, value in losses.items()),
        *(f"{name.replace('accuracy', 'acc')}: {100 * value:.3f} %" for name, value in accuracies.items()),
    ]
    line = f"{' - '.join(parts)}, throughput: {values['sequences_per_sec']:.1f} samples/sec"
    share = values.get("host_wait_share")
    return line if share is None else f"{line}, waiting for the host: {100 * share:.1f} %"
