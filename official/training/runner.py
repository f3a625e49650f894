"""One run from a configuration and a task to a result, as a person would tell it."""

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import sys
import time

from absl import logging

from official import config as config_lib
from official.config import Config
from official.config.setting import LENGTH
from official.distribution import strategy as strategy_lib
from official.io.errors import PeerError
from official.io.signals import Interrupted
from official.optimization import schedules
from official.reporting import environment, report
from official.reporting import result as result_lib
from official.reporting.observer import End, Observer, Start
from official.reporting.result import TrainResult, remove_result, result_dict
from official.training import (
    finish,
    listeners,
    noted_data,
    own_folder,
    page_cache,
    pipelined,
    starting,
)
from official.training.earlier import Earlier
from official.training.feeding import reading
from official.training.interruption import Interruption
from official.training.loop import Loop, NonFiniteError
from official.training.outcome import describe_interruption, judge
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
      started: when the process began, seconds since 1970; unset: now.

    Returns:
      The result, which is also in the folder of the run.

    Raises:
      ConfigError: for bad input, before anything is trained.
    """
    started, command = started or time.time(), command or sys.argv
    surroundings = environment.environment()  # of the start: the checkout may change while the run goes on
    surroundings["working_directory"] = os.getcwd()  # of paths in the settings
    with own_folder.set_aside(config, command) as config:
        config, over = _left_to_do(config)
        if over:
            return over
        ready = starting.make_ready(config, make_task)
        own, devices, task = ready.config, ready.devices, ready.task
        starting.check_init_checkpoint(own)
    with (
        _writing(own, devices) as check_folder,
        listeners.listening(own, devices.is_chief) as observers,
        strategy_lib.noticing_lost_peers(devices.strategy),
    ):
        starting.tell(own, devices)
        beginning = starting.begin(own, task, devices, asked=config, command=command)
        observers += listeners.of_state(own, devices, beginning)
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


def _left_to_do(config: Config) -> tuple[Config, TrainResult | None]:
    """Looks at the run that is in the folder already, before anything is built.

    Returns:
      What there is to do, which of a run that is over may be an evaluation alone; and the run's result, where
      nothing is.

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


def _writing(config: Config, devices: starting.Devices) -> contextlib.AbstractContextManager:
    """Returns what holds the run's folder, of the process that writes; its value checks that the folder is
    still there."""
    if devices.is_chief:
        return own_folder.writing(config.model_dir)
    return contextlib.nullcontext(own_folder.unchecked)


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
    """Runs the loop and what follows it."""
    state, first_step = loop.state, loop.state.step
    run_started = time.time()  # known better once all is prepared
    end, findings, peer_lost = End("failed", "", first_step, state.samples_done), finish.Findings(), False
    try:
        with strategy_lib.noticing_lost_peers(loop.strategy):
            loop.together.check_same_step(first_step, loop.config.model_dir)
            _prepare(loop, data_files)
            if loop.config.do_train and not first_step and not loop.manager.read_only:
                noted_data.note(loop.config.model_dir, loop.task.data_files())
            run_started = time.time()
            with loop.interruption:
                end = _run_loop(loop)
                end, findings = _finish(loop, end)
    except PeerError as error:
        end, peer_lost = End("failed", str(error), state.step, state.samples_done), True
    earlier = beginning.earlier if beginning.earlier_counts else None
    result = _make_result(loop, end, findings, _baseline(loop, end, earlier))
    result.wall_secs, result.peer_lost = time.time() - run_started, peer_lost
    result.startup_secs = loop.outcome.startup_secs(loop.process_started, run_started)
    if earlier:
        earlier.complete(result, first_step)
    return result


def _prepare(loop: Loop, data_files: list[str]) -> None:
    """Does what comes before the clock starts: compiles, and empties caches."""
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
        dropped = page_cache.drop(data_files) if config.clear_caches else 0
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


def _run_loop(loop: Loop) -> End:
    """Runs the loop and returns how it ended; the observers hear of the end whatever happens."""
    status, reason = "failed", ""
    try:
        loop.run()
        status, reason = _judge(loop)
    except NonFiniteError as error:
        reason = f"{error}; the newest checkpoint is from before it"
        loop.manager.close()
    finally:
        end = End(status, reason, loop.state.step, loop.state.samples_done)
        with contextlib.ExitStack() as stack:  # an error of one does not keep the end from the others
            for observer in reversed(loop.observers):
                stack.callback(observer.on_end, end)
    return end


def _judge(loop: Loop) -> tuple[str, str]:
    """Returns the status of a loop that has ended in order, and why."""
    if loop.outcome.interrupted:
        return "interrupted", _describe_interruption(loop, loop.state.step)
    return judge(loop.config, loop.task, loop.outcome, loop.state.step)


def _describe_interruption(loop: Loop, step: int) -> str:
    return describe_interruption(loop.config, step, loop.interruption.signal or signal.SIGTERM)


def _finish(loop: Loop, end: End) -> tuple[End, finish.Findings]:
    """Returns the end and what the best weights are worth, unless a signal cuts that or has cut the
    training."""
    if end.status in ("interrupted", "failed"):
        return end, finish.Findings()
    try:
        return end, finish.finish(loop)
    except Interrupted:
        reason = _describe_interruption(loop, end.step)
        return dataclasses.replace(end, status="interrupted", reason=reason), finish.Findings()


def _baseline(loop: Loop, end: End, earlier: Earlier | None) -> tuple[str, float] | None:
    """Returns what to predict always, and its score. Found after the run, which is to be the first to read
    the data."""
    known = earlier.baseline() if earlier else None
    stopped = end.status in ("interrupted", "failed")
    if known or not loop.config.do_eval or loop.manager.read_only or stopped:
        return known
    found = reading(loop.task, loop.task.constant_prediction)
    if found:
        metric = loop.task.target_metric
        logging.info("Always predicting %r scores %.4f (%s) on the evaluation set", *found, metric)
    return found


def _make_result(
    loop: Loop, end: End, findings: finish.Findings, baseline: tuple[str, float] | None
) -> TrainResult:
    """Returns the result of this process's part of the run."""
    config, outcome, steps = loop.config, loop.outcome, loop.manager.steps()
    prediction, score = baseline or (None, None)
    packing = outcome.packing.shares(config.max_seq_length)
    return TrainResult(
        status=end.status,
        reason=end.reason,
        step=end.step,
        samples=end.samples,
        eval_accuracy=outcome.eval_metrics.get(loop.task.target_metric),
        eval_loss=outcome.eval_metrics.get("loss"),
        target=config.stop_threshold,
        target_metric=loop.task.target_metric,
        baseline_score=score,
        baseline_prediction=prediction,
        learning_rates=schedules.corners(config) if config.do_train else {},
        sequences_per_sec=outcome.sequences_per_sec(),
        first_step_secs=outcome.first_step_secs,
        peak_memory_bytes=environment.peak_memory_bytes(),
        checkpoint=os.path.join(config.model_dir, f"ckpt-{steps[-1]}") if steps else None,
        checkpoints_written=loop.manager.times.saves,
        checkpoint_wait_secs=loop.manager.times.wait_secs,
        checkpoint_write_secs=loop.manager.times.write_secs,
        skipped_steps=outcome.skipped_steps,
        signal=loop.interruption.signal,
        scores=findings.scores,
        tables=findings.tables,
        examples=findings.examples,
        predictions=findings.files,
        sequences_per_row=packing.get("sequences_per_row"),
        packing_efficiency=packing.get("packing_efficiency"),
        pipeline=pipelined.description(loop.strategy),
    )


def _write_result(
    config: Config, result: TrainResult, beginning: starting.Beginning, command: list[str]
) -> None:
    """Writes result and report. Where the folder has a result, what trains nothing adds an entry to it, with
    a report of its own; what a signal has cut off leaves nothing."""
    earlier, adds = beginning.earlier.result, bool(not config.do_train and beginning.earlier.result)
    if adds and result.status in ("interrupted", "failed"):
        return
    evaluations = earlier.get("evaluations", [])
    name = f"evaluation_{len(evaluations) + 1}.html" if adds else report.FILE_NAME
    result.report = os.path.join(config.model_dir, name)
    if not config.do_train:
        settings = {
            field.name: config[field.name]
            for field in config_lib.FIELDS.values()
            if field.changes_evaluation(config) and config[field.name] != field.default
        }
        line = shlex.join(command)
        entry = result_lib.evaluation_entry(result, line, beginning.weights, settings)
        result.evaluations = [entry]
    else:
        result.evaluations = evaluations
    if adds:
        result_lib.add_evaluation(config.model_dir, entry)
    else:
        result_lib.write_result(config.model_dir, result)
    title, text = f"BERT {config.task}", config_lib.to_json(config)
    report.write_report(config.model_dir, title, text, result, beginning.parameters, name)
