"""A run on IPUs from a configuration to its end: calls of the devices, lines of metrics, checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import Config, ConfigError
from official.config.ipu_rules import computes
from official.config.setting import LENGTH
from official.io.writing import replace_file
from official.modeling import objectives
from official.optimization import schedules
from official.optimization.train_state import TrainState
from official.reporting.metrics import MetricsWriter
from official.training import own_folder
from official.training.interruption import Interruption
from official.training.ipu import building, records
from official.training.ipu.stages import NUM_SUMS
from official.training.ipu.weights import initialize

RESULT = "result.json"
_EXIT_CODES = {"finished": 0, "failed": 3, "interrupted": 128}


@dataclasses.dataclass
class Run:
    """A run while it goes on.

    Attributes:
      config: of the run.
      state: what is trained; its numbers are on the devices.
      manager: of its checkpoints.
      metrics: where its lines go; None in a process that writes none.
      call: runs steps, see `building.make_call`.
      step, samples: done.
      rates: (sequences, seconds) of each call.
    """

    config: Config
    state: TrainState
    manager: CheckpointManager
    metrics: MetricsWriter | None
    call: Callable[[], np.ndarray]
    step: int
    samples: int
    rates: list = dataclasses.field(default_factory=list)


class NonFiniteError(ArithmeticError):
    """A loss or a weight is NaN or infinite."""


def run(config: Config, command: list[str]) -> int:
    """Trains, and writes what a run leaves. Returns the exit code.

    Args:
      config: the frozen configuration.
      command: the command line, saved with the run.

    Raises:
      ConfigError: for bad input, before anything is trained.
    """
    if not computes(config):
        found = records.find(config)
        config = _with_counted_records(config, found)
        return _compile(config, building.take_devices(config), found)
    with own_folder.set_aside(config, command) as config:
        record = own_folder.read_record(config.model_dir)
        record.check(config)
        if record.is_over and not record.changes(config)[LENGTH]:
            status = record.result["status"]
            print(f"{status}: the run in {config.model_dir} is over, and nothing in its folder was changed")
            return _EXIT_CODES.get(status, 0)
        found = records.find(config)
        config = _with_counted_records(config, found)
        record.check_steps(config, config_lib.train_steps(config))
        devices = building.take_devices(config)
    chief = devices.instances.is_chief
    folder = own_folder.writing(config.model_dir) if chief else contextlib.nullcontext(own_folder.unchecked)
    with folder as check_folder, Interruption() as interruption, _explained():
        state = building.make_state(config, devices)
        manager = CheckpointManager(
            config.model_dir, state.variables(), config.keep_checkpoints, read_only=not chief
        )
        _restore(config, manager, state)
        call = building.make_call(config, devices, state, found)
        step, samples = state.step, state.samples_done
        if chief:
            _save_settings(config, command)
        metrics = MetricsWriter(config.model_dir, step) if chief else None
        going = Run(config, state, manager, metrics, call, step, samples)
        return _train(going, interruption, check_folder)


def _with_counted_records(config: Config, found: records.Records) -> Config:
    return config_lib.with_data(config, found.num_rows()) if config.count_records else config


def _compile(config: Config, devices: building.Devices, found: records.Records) -> int:
    """Compiles the program of a call for IPUs that are not here."""
    since = time.monotonic()
    with _explained():
        state = building.make_state(config, devices)
        building.make_call(config, devices, state, found)()
    kept = config.executable_cache_path
    where = f"; kept in {kept}" if kept else ""
    print(
        f"compiled in {time.monotonic() - since:.1f} s for {config.ipu_version}{where}; nothing was trained"
    )
    return 0


@contextlib.contextmanager
def _explained() -> Any:
    """Makes one line of what the IPUs say of a model that they have no room for, or of a program that they do
    not take."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise ConfigError(
            f"the model does not fit into its IPUs ({_first_line(error)}). Give more --pipeline_stages,"
            " smaller micro batches (more --num_accumulation_steps), --recompute=block or another"
            " --available_memory_proportion."
        ) from None
    except tf.errors.FailedPreconditionError as error:
        raise ConfigError(f"the IPUs do not take this pipeline: {_first_line(error)}.") from None


def _first_line(error: tf.errors.OpError) -> str:
    return (error.message.strip().splitlines() or [type(error).__name__])[0][:150].rstrip(".")


def _restore(config: Config, manager: CheckpointManager, state: TrainState) -> None:
    """Sets the state: own newest checkpoint > --init_checkpoint > fresh."""
    prefix = manager.restore_newest()
    if prefix:
        if state.loss_scale:
            state.loss_scale.go_on(state.step)
        logging.info("Resuming from %s: step %d, %d sequences", prefix, state.step, state.samples_done)
    elif config.init_checkpoint:
        initialize(state.model_variables(), config.init_checkpoint)
    else:
        logging.info("Fresh weights from seed %d", config.seed)


def _save_settings(config: Config, command: list[str]) -> None:
    replace_file(os.path.join(config.model_dir, "config.json"), config_lib.to_json(config))
    line = " ".join(map(shlex.quote, command)) + "\n"
    replace_file(os.path.join(config.model_dir, "command.txt"), line)


def _train(run: Run, interruption: Interruption, check_folder: Callable[[], None]) -> int:
    """Trains to the last step or a signal. Returns the exit code."""
    since = time.time()
    last = config_lib.train_steps(run.config)
    try:
        while run.step < last and interruption.signal is None:
            _interval(run, last, interruption)
            due = run.step % config_lib.checkpoint_every_steps(run.config) == 0
            if due or run.step >= last or interruption.signal is not None:
                check_folder()
                _save(run)
        status, reason = "finished", f"all {run.step} steps done"
        if run.step < last and interruption.signal is not None:
            name = signal.Signals(interruption.signal).name
            status, reason = "interrupted", f"saved at step {run.step} on {name}"
    except NonFiniteError as error:
        status, reason = "failed", f"{error}; the newest checkpoint is from before it"
    if run.metrics:
        run.metrics.close()
        values = {"status": status, "reason": reason, "wall_secs": time.time() - since}
        _write_result(run, values, interruption.signal)
        print(f"{status}: {reason}. Result: {os.path.join(run.config.model_dir, RESULT)}")
    return _EXIT_CODES[status] + (interruption.signal or 0 if status == "interrupted" else 0)


def _interval(run: Run, last: int, interruption: Interruption) -> None:
    """Trains to the end of a line of the metrics, or to a signal, and writes the line."""
    config, sums, secs = run.config, np.zeros(NUM_SUMS), 0.0
    every = config_lib.steps_per_loop(config)
    end = min(run.step - run.step % every + every, last)
    samples = run.samples
    while run.step < end and interruption.signal is None:
        since = time.monotonic()
        new = run.call()
        took, sequences = time.monotonic() - since, _sequences(config, new)
        bad = np.flatnonzero(~np.isfinite(new).all(axis=1))
        if bad.size:
            raise NonFiniteError(f"loss not finite at step {run.step + int(bad[0]) + 1}")
        run.rates.append((sequences, took))
        sums, secs = sums + new.sum(axis=0), secs + took
        run.step, run.samples = run.step + len(new), run.samples + sequences
    if run.samples > samples:
        _write_line(run, sums, (run.samples - samples) / secs)


def _sequences(config: Config, sums: np.ndarray) -> int:
    """Returns the sequences of some steps. --synthetic_input leaves the batches empty, which say none."""
    if config.synthetic_input:
        return len(sums) * config.train_batch_size
    return round(float(sums[:, -1].sum()))


def _write_line(run: Run, sums: np.ndarray, sequences_per_sec: float) -> None:
    values = {
        "samples": run.samples,
        **means(sums),
        "learning_rate": float(run.state.schedule(run.step - 1)),
        "loss_scale": run.state.loss_scale.told(run.step - 1) if run.state.loss_scale else 1.0,
        "sequences_per_sec": sequences_per_sec,
    }
    logging.info("step %d: loss %.4f, %.1f sequences/s", run.step, values["loss"], sequences_per_sec)
    if run.metrics:
        run.metrics.write("train", run.step, values)


def means(sums: np.ndarray) -> dict:
    """Returns the means of the terms, and `loss`, the sum of those of the losses; `sums` as of
    `stages.make_functions`."""
    names = objectives.PRETRAINING_METRICS
    totals, weights = sums[: len(names)], sums[len(names) : 2 * len(names)]
    found = {
        name: float(total / weight) if weight else 0.0 for name, total, weight in zip(names, totals, weights)
    }
    return {"loss": sum(found[name] for name in objectives.PRETRAINING_LOSSES), **found}


def _save(run: Run) -> None:
    """Saves the state, unless the last update has broken the weights."""
    values = run.state.model_variables().values()
    if not all(np.isfinite(variable.numpy()).all() for variable in values):
        raise NonFiniteError(f"weights not finite after step {run.step}")
    run.state.samples.assign(run.samples)
    if run.metrics:
        run.metrics.flush()
    run.manager.save(run.step)


def _write_result(run: Run, values: dict, number: int | None) -> None:
    """Writes result.json; `number` is that of the signal that came, if one did."""
    steady = run.rates[1:] or run.rates
    secs, steps = sum(secs for _, secs in steady), run.manager.steps()
    checkpoint = os.path.join(run.config.model_dir, f"ckpt-{steps[-1]}") if steps else None
    result = {
        **values,
        "step": run.step,
        "samples": run.samples,
        "eval_accuracy": None,
        "eval_loss": None,
        "target": run.config.stop_threshold,
        "target_metric": "mlm_accuracy",
        "majority_accuracy": None,
        "sequences_per_sec": sum(count for count, _ in steady) / secs if secs else None,
        "checkpoint": checkpoint,
        "signal": number,
        "learning_rates": {str(step): rate for step, rate in schedules.corners(run.config).items()},
        "config": json.loads(config_lib.to_json(run.config)),
    }
    path = os.path.join(run.config.model_dir, RESULT)
    replace_file(path, json.dumps(result, indent=2, allow_nan=False) + "\n")
