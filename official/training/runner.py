"""Runs one job from a configuration and a task to a result, step by step."""

import contextlib
import json
import os
import sys
import time

from absl import logging

from official import config as config_lib
from official.config import Config
from official.distribution import strategy as strategy_lib
from official.io.errors import PeerError
from official.reporting import environment, report
from official.reporting.observer import End, Observer, Start
from official.reporting.result import TrainResult, remove_result, result_dict
from official.training import callbacks, ending, feeding, pipelined, resume, run_lock, starting
from official.training.evaluate import Findings
from official.training.loop import Loop
from official.training.run_loop import Interruption
from official.training.starting import MakeTask
from official.training.task import Task


def run(
    config: Config, make_task: MakeTask, command: list[str] | None = None, started: float | None = None
) -> TrainResult:
    """Trains, evaluates and reports.

    Args:
      config: the frozen configuration.
      make_task: config -> Task.
      command: the command line, saved with the run.
      started: start of the process, seconds since 1970; unset: now.

    Returns:
      The result, which is also in the folder of the run.

    Raises:
      ConfigError: for bad input, before anything is trained.
    """
    started, command = started or time.time(), command or sys.argv
    surroundings = environment.environment()  # of the start: the checkout may change while the run goes on
    surroundings["working_directory"] = os.getcwd()  # of paths in the settings
    with run_lock.set_aside(config, command) as config:
        config, over = resume.left_to_do(config)
        if over:
            return over
        ready = starting.make_ready(config, make_task)
        own, devices, task = ready.config, ready.devices, ready.task
        starting.check_init_checkpoint(own)
    with (
        _writing(own, devices) as check_folder,
        callbacks.listening(own, devices.is_chief) as observers,
        strategy_lib.noticing_lost_peers(devices.strategy),
    ):
        starting.tell(own, devices)
        beginning = starting.begin(own, task, devices, asked=config, command=command)
        observers += callbacks.of_state(own, devices, beginning)
        starting.tell_built(observers, ready)
        loop = _make_loop(own, task, devices, beginning, observers)
        loop.process_started, loop.check_folder = started, check_folder
        with contextlib.closing(beginning.manager):  # no other run has the folder before all is written
            result = _train(loop, ready.data_files, beginning)
        result.fresh_variables, result.config = beginning.fresh, json.loads(config_lib.to_json(own))
        # Of the process that writes it: the others have looked at no files but their own.
        result.environment, result.data = surroundings, task.data_digest() if devices.is_chief else {}
        result.data_changed = beginning.data_changed
        if devices.is_chief:
            _write_result(own, result, beginning, command)
        for observer in observers:
            observer.on_result(result.status, result_dict(result))
    return result


def _writing(config: Config, devices: starting.Devices) -> contextlib.AbstractContextManager:
    """Returns the context manager that locks the run's folder, in the process that writes; it yields a
    function that checks that the folder is still the run's."""
    if devices.is_chief:
        return run_lock.writing(config.model_dir)
    return contextlib.nullcontext(run_lock.unchecked)


def _make_loop(
    config: Config,
    task: Task,
    devices: starting.Devices,
    beginning: starting.Beginning,
    observers: list[Observer],
) -> Loop:
    state, knows_evaluations = beginning.state, beginning.earlier_counts and config.do_train
    return Loop(
        config,
        task,
        state,
        devices.strategy,
        devices.plan,
        beginning.manager,
        observers,
        Interruption(),
        beginning.earlier.evaluations(state.step) if knows_evaluations else {},
    )


def _train(loop: Loop, data_files: list[str], beginning: starting.Beginning) -> TrainResult:
    """Runs the loop, the scoring after it and the baseline, and returns the result."""
    state, first_step = loop.state, loop.state.step
    run_started = time.time()  # known better once all is prepared
    end, findings, peer_lost = End("failed", "", first_step, state.samples_done), Findings(), False
    try:
        with strategy_lib.noticing_lost_peers(loop.strategy):
            loop.together.check_same_step(first_step, loop.config.model_dir)
            _prepare(loop, data_files)
            if loop.config.do_train and not first_step and not loop.manager.read_only:
                resume.note(loop.config.model_dir, loop.task.data_files())
            run_started = time.time()
            with loop.interruption:
                end = ending.run_loop(loop)
                end, findings = ending.finish(loop, end)
    except PeerError as error:
        end, peer_lost = End("failed", str(error), state.step, state.samples_done), True
    earlier = beginning.earlier if beginning.earlier_counts else None
    result = ending.make_result(loop, end, findings, ending.baseline(loop, end, earlier))
    result.pipeline = pipelined.description(loop.strategy)
    result.wall_secs, result.peer_lost = time.time() - run_started, peer_lost
    result.startup_secs = loop.outcome.startup_secs(loop.process_started, run_started)
    if earlier:
        earlier.complete(result, first_step)
    return result


def _prepare(loop: Loop, data_files: list[str]) -> None:
    """Compiles the steps and empties caches before the run's clock starts, and tells the observers of the
    start."""
    config, state = loop.config, loop.state
    if config_lib.compiles_first(config):
        since = time.monotonic()
        loop.warm_up()
        if not config_lib.follows_graphcore_log(config):  # which has said so
            logging.info("Compiled the steps in %.1f s", time.monotonic() - since)
    dropped = 0
    if state.step < loop.last_step:
        if not loop.manager.read_only:
            remove_result(config.model_dir)  # it would be untrue from now on
        dropped = feeding.drop(data_files)
    start = Start(
        step=state.step,
        samples=state.samples_done,
        last_step=loop.last_step,
        tensors=tuple(state.model_variables()),
        process_started=loop.process_started,
        caches_dropped=dropped > 0,
    )
    for observer in loop.observers:
        observer.on_start(start)


def _write_result(
    config: Config, result: TrainResult, beginning: starting.Beginning, command: list[str]
) -> None:
    """Writes result and report."""
    earlier, weights = beginning.earlier, beginning.weights
    name = ending.write_result(config, result, earlier, weights, command, report.FILE_NAME)
    if name:
        title, text = f"BERT {config.task}", config_lib.to_json(config)
        report.write_report(config.model_dir, title, text, result, beginning.parameters, name)
