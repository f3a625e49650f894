"""Progress of a run: a bar on a terminal, log lines elsewhere; and the format of all log lines."""

import logging as standard_logging
import math
import os
import sys
import time

import tqdm
from absl import logging
from absl.logging import converter

from official.io import quiet
from official.reporting.callback import Callback, End, Evaluation, Start
from official.reporting.formats import format_number, format_secs

# Plain lines are at least a hundredth of the run, or half a minute, apart, whichever is shorter.
_LINES_OF_A_RUN = 100
_SECS_BETWEEN_LINES = 30

_active_bar: tqdm.tqdm | None = None


def configure_logging(verbosity: int = 0) -> None:
    """Sends log lines to stderr as `HH:MM:SS message`, above the progress bar if there is one.

    Under absl's app.run call it from main: this replaces the handler that app.run installs.

    Args:
      verbosity: -1 warnings and errors, 0 progress, 1 debug messages.
    """
    root = standard_logging.getLogger()
    for handler in list(root.handlers):
        if handler is logging.get_absl_handler() or isinstance(handler, _TerminalHandler):
            root.removeHandler(handler)
    handler = _TerminalHandler()
    handler.setFormatter(standard_logging.Formatter("%(asctime)s %(mark)s%(message)s", "%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(standard_logging.WARNING)
    logging.get_absl_logger().setLevel(converter.absl_to_standard(verbosity))
    quiet.quieten_libraries()


class _TerminalHandler(standard_logging.Handler):
    """Writes to the current sys.stderr (tests replace it), through the progress bar if there is one."""

    def emit(self, record) -> None:
        record.mark = f"{record.levelname}: " if record.levelno >= standard_logging.WARNING else ""
        text = self.format(record)
        if _active_bar is not None:
            tqdm.tqdm.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)


class Progress(Callback):
    """Shows the progress of a run.

    A bar if stderr is a terminal and progress is logged (`verbosity` >= 0), otherwise plain log lines.
    """

    def __init__(self) -> None:
        self._total_steps: int | None = None
        self._started = self._first_update = (0, time.monotonic())
        self._shown: tuple[int, float] | None = None
        self._bar: tqdm.tqdm | None = None

    def on_start(self, start: Start) -> None:
        global _active_bar
        self._total_steps = start.last_step
        self._started = self._first_update = (start.step, time.monotonic())
        if is_terminal(sys.stderr) and logging.get_absl_logger().isEnabledFor(standard_logging.INFO):
            whole = "/{total_fmt} |{bar}|" if start.last_step else ""
            look = {"dynamic_ncols": True, "bar_format": f"step {{n_fmt}}{whole} {{desc}}"}
            steps = {"total": start.last_step, "initial": start.step}
            self._bar = _active_bar = tqdm.tqdm(**steps, file=sys.stderr, leave=True, **look)

    def on_first_step(self, step: int, secs: float) -> None:
        """Starts the measurement of the remaining time."""
        logging.info("First step done %.1f s after the start", secs)
        self._started = self._first_update = (step, time.monotonic())
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def on_steps(self, step: int, values: dict) -> None:
        """Shows the state after `step`, from the values loss, mlm_accuracy, learning_rate, sequences_per_sec
        and budget_left_secs, if present."""
        now = time.monotonic()
        left = values["budget_left_secs"] if self._total_steps is None else self._secs_left(step, now)
        if self._bar is not None:
            self._bar.n = step
            self._bar.set_description_str("  ".join(_describe(values, "mlm", left)))
        elif self._line_is_due(step, now):
            self._shown = (step, now)
            total = self._total_steps
            at = f"step {step}" if total is None else f"step {step:>{len(str(total))}}/{total}"
            parts = [at, *_describe(values, "mlm_accuracy", left)]
            logging.info("%s", "  ".join(parts))

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Logs the result if it is finite; a bar is redrawn below the line."""
        log_evaluation(evaluation)

    def on_end(self, end: End) -> None:
        """Leaves the bar on the screen and releases the terminal; the bar of a failed run is erased."""
        if self._bar is not None:
            self._bar.leave = end.status != "failed"
        self.close()

    def close(self) -> None:
        global _active_bar
        if self._bar is not None:
            self._bar.close()
            self._bar = _active_bar = None

    def _secs_left(self, step: int, now: float) -> float:
        """Returns the remaining seconds at the mean speed since the first update, evaluations included.

        The time before it includes compilation and is used only at the first update.
        """
        since_step, since = self._first_update
        if self._first_update is self._started:
            self._first_update = (step, now)
        return ((self._total_steps or 0) - step) * (now - since) / max(1, step - since_step)

    def _line_is_due(self, step: int, now: float) -> bool:
        shown, since = self._shown or (-math.inf, now)
        if self._total_steps is None:
            is_far = self._shown is None
        else:
            is_far = (step - shown) * _LINES_OF_A_RUN >= self._total_steps or step >= self._total_steps
        return is_far or now - since >= _SECS_BETWEEN_LINES


def log_evaluation(evaluation: Evaluation) -> None:
    """Logs the result of an evaluation if all of its numbers are finite."""
    values = {name: value for name, value in evaluation.values.items() if name != "samples"}
    if not all(map(math.isfinite, values.values())):
        return
    numbers = "  ".join(f"{name} {value:.4f}" for name, value in values.items())
    target = "" if evaluation.target is None else f" (target {evaluation.target})"
    logging.info("Evaluation at step %d: %s%s, %.1f s", evaluation.step, numbers, target, evaluation.secs)


def is_terminal(stream) -> bool:
    """Returns whether a bar can be drawn. On a terminal without a size, as in containers, tqdm would hide
    it."""
    if not stream.isatty():
        return False
    try:
        return min(os.get_terminal_size(stream.fileno())) > 0
    except OSError:
        return True


def _describe(values: dict, accuracy_label: str, secs_left: float) -> list[str]:
    """Returns the parts of a progress line that `values` has."""
    shown = {
        "loss": "loss {:.4f}".format,
        "mlm_accuracy": (accuracy_label + " {:.4f}").format,
        "learning_rate": "lr {:.1e}".format,
        "sequences_per_sec": lambda value: f"{format_number(value)} seq/s",
    }
    parts = [text(float(values[name])) for name, text in shown.items() if values.get(name) is not None]
    return [*parts, f"left {format_secs(secs_left)}"]
