"""MLPerf log of a run: lines `:::MLLOG {json}` that rulesets 0.7.0 to 5.0.0 of closed BERT accept."""

import contextlib
import logging
import math
import os
import re
from collections.abc import Callable

import tensorflow as tf
from absl import logging as absl_logging

from official import config as config_lib
from official.config import values
from official.config.table import Config
from official.io import json_files
from official.io.errors import ConfigError
from official.io.writing import LineFile, naming_output, read_lines, set_aside
from official.reporting.callback import Callback, End, Evaluation, Start

# -----------------------------------------------------------------------------------------------------------
# Lines


_MARK = b":::MLLOG "
_COUNTS = ("samples_count", "first_epoch_num", "epoch_num", "epoch_count", "step_num")  # in the metadata
_EVALUATION = ("eval_start", "eval_stop", "eval_accuracy")


def read_events(path: str) -> list[dict]:
    """Reads a log: its events as dicts {time_ms, event_type, key, value, metadata}; none for a missing
    file."""
    return [event for event in map(parse, read_lines(path)) if event]


def parse(line: bytes) -> dict | None:
    """Returns the event of a line, or None for an incomplete line."""
    _, mark, text = line.partition(_MARK)
    if not mark or not line.endswith(b"\n"):
        return None
    try:
        event = json_files.parse_json(text, "")
        for name, kind in (("key", str), ("time_ms", int), ("metadata", dict)):
            json_files.expect(event, name, kind, "")
        for name in _COUNTS:
            json_files.expect(event["metadata"], name, int, "", default=0)
    except ConfigError:
        return None
    return event if "value" in event else None


def kept_lines(lines: list[bytes], samples: int, evaluated: bool) -> list[bytes]:
    """Returns the lines of a run up to `samples` sequences, without its end; none for a run that was killed
    before it started.

    Args:
      lines: lines of the file.
      samples: number of sequences at which the run resumes.
      evaluated: whether the evaluation at exactly that point is known and not repeated.
    """
    kept, keys = [], set()
    for line in lines:
        if event := parse(line):
            key, at = event["key"], event["metadata"].get("samples_count", 0)
            repeated = at == samples and key in _EVALUATION and not evaluated
            begun_again = at >= samples and key == "block_start"
            if at <= samples and key != "run_stop" and not repeated and not begun_again:
                kept.append(line)
                keys.add(key)
    return kept if "run_start" in keys else []


# -----------------------------------------------------------------------------------------------------------
# Log
#
# The file describes one run, even of several processes: a process that resumes removes the earlier `run_stop`
# and everything after the checkpoint, and appends. Blocks, evaluations and accuracies are all counted in
# sequences (`epoch_num`, `first_epoch_num`, `epoch_count`, `samples_count`), since reference-convergence
# checks compare these.


FILE_NAME = "mllog.txt"
# {optimizer: (name in MLPerf's keys, key of the weight decay)}; MLPerf has no keys for others.
_ADAMW = ("adamw", "opt_adamw_weight_decay")
_KEYS: dict[str, tuple[str, str | None]] = {
    "lamb": ("lamb", "opt_lamb_weight_decay_rate"),
    "adamw": _ADAMW,
    "mpadamw": _ADAMW,
    "adam": ("adam", None),
}


def log_path(config: Config) -> str:
    """Returns the path of the MLPerf log of a run."""
    return config.mllog_file or os.path.join(config.model_dir, FILE_NAME)


def run_settings(
    config: Config, platform: str, sequences_per_step: int, num_accumulation_steps: int
) -> list[tuple[str, object]]:
    """Returns the (key, value) events that describe a run.

    Keys that the rulesets renamed have both spellings: opt_epsilon and opt_lamb_epsilon,
    opt_gradient_accumulation_steps and gradient_accumulation_steps. The steps of a run with a time budget are
    unknown.

    Args:
      config: the configuration.
      platform: platform if --submission_platform is unset, e.g. gpu-8.
      sequences_per_step: sequences of all replicas; an average for packed rows.
      num_accumulation_steps: micro batches per step of a replica.
    """
    steps, rows, warmup = config_lib.schedule_steps(config), config.train_batch_size, config.warmup_steps
    warmup = int(warmup) if warmup == int(warmup) else warmup
    base, end = config.learning_rate, config.end_learning_rate
    by_step = values.read_by_step(config.lr_schedule, "lr_schedule")
    if by_step:  # --lr_schedule replaces all other rates: the highest and the last one
        base, end = max(by_step.values()), [*by_step.values()][-1]
    train_samples = round(sequences_per_step * config_lib.whole_batches(config))
    of_steps = [
        ("opt_learning_rate_training_steps", steps),
        ("opt_learning_rate_warmup_steps", warmup),
        ("num_warmup_steps", warmup),
        ("start_warmup_step", config.start_warmup_step),
    ]
    return [
        # The division comes before init_stop: from 2.0.0 on, it sets the time limit of this.
        ("submission_benchmark", "bert"),
        ("submission_org", config.submission_org),
        ("submission_platform", config.submission_platform or platform),
        ("submission_division", config.submission_division),
        ("submission_status", config.submission_status),
        ("seed", config.seed),
        ("global_batch_size", sequences_per_step),
        # For packed rows: MLPerf counts its batch in sequences, and has no key for rows.
        *([("rows_per_step", rows)] if sequences_per_step != rows else []),
        ("max_sequence_length", config.max_seq_length),
        ("max_predictions_per_seq", config_lib.max_predictions(config)),
        ("opt_name", config.optimizer_type),
        ("opt_base_learning_rate", base),
        ("opt_end_learning_rate", end),
        *_optimization(config, by_step),
        *([] if config.budget_hours else of_steps),
        ("gradient_accumulation_steps", num_accumulation_steps),
        ("opt_gradient_accumulation_steps", num_accumulation_steps),
        # Sequences of the whole schedule, as in the v0.7 submission; the data files are not counted.
        *([] if config.budget_hours else [("train_samples", train_samples)]),
    ]


def _optimization(config: Config, by_step: dict[int, float]) -> list[tuple[str, object]]:
    """Returns the hyperparameters of the optimizer that MLPerf has keys for, and the shape of the schedule:
    the power of a polynomial, or the name of another and the steps at which it changes."""
    name, weight_decay = _KEYS.get(config.optimizer_type, (None, None))
    found: list[tuple[str, object]] = []
    if name:
        found = [("opt_epsilon", config.epsilon)]
        found += [(f"opt_{name}_{key}", config[key]) for key in ("epsilon", "beta_1", "beta_2")]
    if weight_decay:
        found.append((weight_decay, config.weight_decay_rate))
    if by_step:
        found.append(("opt_learning_rate_decay_schedule", "custom"))
        found.append(("opt_learning_rate_decay_boundary_steps", [step for step in by_step if step]))
    elif config.lr_schedule != "polynomial":
        found.append(("opt_learning_rate_decay_schedule", config.lr_schedule))
    elif weight_decay:
        found.append((f"opt_{name}_learning_rate_decay_poly_power", config.poly_power))
    return found


class MLPerfLog(Callback):
    """Writes the log of one process, through mlperf-logging, to a file.

    The file stays untouched until there is something new to write: a finished run that is started again keeps
    its log.

    Args:
      path: the file. A log of another run (other settings, or not `goes_on`) is renamed.
      settings: events from `run_settings`.
      samples: sequences that earlier processes of this run have trained on; later lines of the file are
        removed.
      goes_on: whether the file may be from an earlier process of this run; False if the run has just begun.
      evaluated: whether the evaluation at exactly that point is known and not repeated.
    """

    def __init__(
        self, path: str, settings: list[tuple[str, object]], samples: int, goes_on: bool, evaluated: bool
    ):
        with _naming(path):
            lines = read_lines(path)
        self._kept = kept_lines(lines, samples, evaluated) if goes_on else []
        events = [event for event in map(parse, self._kept) if event]
        if not set(map(repr, settings)) <= {repr((event["key"], event["value"])) for event in events}:
            self._kept, events = [], []
        self._path, self._settings, self._samples = path, settings, samples
        self._seen = {event["key"] for event in events}
        # The run_stop, if it is the only event after the kept lines.
        last = parse(lines[-1]) if self._kept and lines[:-1] == self._kept else None
        self._end = last if last and last["key"] == "run_stop" else None
        blocks = [event for event in events if event["key"].startswith("block_")]
        begun = blocks[-1]["metadata"] if blocks and blocks[-1]["key"] == "block_start" else {}
        self._block = begun if "first_epoch_num" in begun else None
        self._file: LineFile | None = None
        self._logger = _make_logger(self._write)

    @property
    def started(self) -> bool:
        """Whether the file held the start of the run when it was opened."""
        return "run_start" in self._seen

    def on_start(self, start: Start) -> None:
        """Writes the events that describe a run, at its start."""
        if self.started or start.step == start.last_step:
            return
        self._logger.start("init_start", time_ms=int(start.process_started * 1000))
        for key, value in self._settings:
            self._logger.event(key, value)
        for name in start.tensors:
            self._logger.event("weights_initialization", metadata={"tensor": name})
        if start.caches_dropped:
            self._logger.event("cache_clear", True)
        self._logger.end("init_stop")
        self._logger.start("run_start")

    def on_training(self, step: int, samples: int, planned: int | None) -> None:
        """Opens a block of training, up to the next evaluation or the end, if none is open."""
        if self._block is None:
            at = {"samples_count": samples, "step_num": step}
            count = {} if planned is None else {"epoch_count": planned}
            self._block = {"first_epoch_num": samples, **count, **at}
            self._logger.start("block_start", metadata=self._block)

    def _close_block(self, samples: int, step: int) -> None:
        if self._block is not None:
            first = self._block["first_epoch_num"]
            at = {"first_epoch_num": first, "samples_count": samples, "step_num": step}
            self._logger.end("block_stop", metadata=at)
            self._block = None

    def on_evaluation_start(self, step: int, samples: int) -> None:
        self._close_block(samples, step)
        self._logger.start("eval_start", metadata=_point(samples, step))

    def on_evaluation_stop(self, step: int, samples: int) -> None:
        self._logger.end("eval_stop", metadata=_point(samples, step))

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Writes the accuracy, if it is a number."""
        accuracy = evaluation.values[evaluation.target_metric]
        if math.isfinite(accuracy):
            if "eval_samples" not in self._seen:
                self._seen.add("eval_samples")
                self._logger.event("eval_samples", evaluation.sequences)
            at = _point(evaluation.samples, evaluation.step)
            self._logger.event("eval_accuracy", accuracy, metadata=at)
        self.flush()

    def on_checkpoint(self, step: int) -> None:
        self.flush()

    def on_end(self, end: End) -> None:
        """Ends the log, as success (target reached) or aborted."""
        status, time_ms = "success" if end.status == "success" else "aborted", None
        if self._end:  # nothing was done since the earlier process ended
            if self._end["metadata"].get("status") == status:
                return
            time_ms = self._end["time_ms"]  # only the target may have changed
        self._close_block(end.samples, end.step)
        metadata = {"status": status, "reason": end.status, **_point(end.samples, end.step)}
        self._logger.end("run_stop", metadata=metadata, time_ms=time_ms)
        self.close()

    def flush(self) -> None:
        """Writes buffered lines, on file systems that cannot append."""
        with _naming(self._path):
            if self._file:
                self._file.flush()

    def close(self) -> None:
        with _naming(self._path):
            if self._file:
                self._file.close()

    def _write(self, text: str) -> None:
        """Writes a line; the first one opens the file."""
        with _naming(self._path):
            if self._file is None:
                self._end = None
                tf.io.gfile.makedirs(os.path.dirname(self._path) or ".")
                if not self._kept and read_lines(self._path):
                    set_aside(self._path, "-earlier")
                self._file = LineFile(self._path, self._kept)
                if self._samples and not self._kept:
                    warning = "%s begins at %d sequences: it is not a log of the whole run."
                    absl_logging.warning(warning, self._path, self._samples)
            self._file.write(text.encode() + b"\n")


def _point(samples: int, step: int) -> dict:
    return {"epoch_num": samples, "samples_count": samples, "step_num": step}


def _naming(path: str) -> contextlib.AbstractContextManager:
    return naming_output(path, "mllog_file", (OSError, tf.errors.OpError))


def _make_logger(write: Callable[[str], None]):
    """Returns mlperf-logging's logger, which calls `write` with every line."""
    from mlperf_logging.mllog import mllog  # late: not every process writes a log

    handler = logging.Handler()
    handler.emit = lambda record: write(record.getMessage())  # type: ignore[method-assign]
    logger = logging.Logger("mllog", logging.INFO)  # a logger for this run only, outside the tree of loggers
    logger.addHandler(handler)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return mllog.MLLogger(logger, root_dir=re.escape(root))
