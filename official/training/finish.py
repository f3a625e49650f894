"""End of a run: status of the loop, scores and predictions of the best weights, baseline, result."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.config import Config
from official.io.errors import PeerError
from official.io.signals import Interrupted
from official.io.writing import replace_file, set_aside
from official.optimization import schedules
from official.reporting import environment
from official.reporting import result as result_lib
from official.reporting.callback import End
from official.reporting.result import TrainResult
from official.training.loop import Outcome, RunLoop
from official.training.metrics_window import NonFiniteError
from official.training.resume import PreviousRun
from official.training.task import Outputs, ScoredTask, Task, has_examples_only, is_scored, reading


@dataclasses.dataclass(frozen=True)
class Findings:
    """Scores, tables, examples and predictions of the best weights.

    Attributes:
      scores: {metric: value} of the evaluation set, and `best_step`, the step of the best evaluation.
      tables: {title: rows}, the first row of each is its head.
      examples: groups of examples for the report.
      files: paths of the predictions.
    """

    scores: dict = dataclasses.field(default_factory=dict)
    tables: dict = dataclasses.field(default_factory=dict)
    examples: list[dict] = dataclasses.field(default_factory=list)
    files: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Finished:
    """A loop that has ended.

    Attributes:
      end: status, reason, step and sequences.
      findings: of the best weights; empty for a run that failed or was interrupted.
      baseline: the constant prediction and its score; None without one.
      first_step: step that this process began at.
      wall_secs, startup_secs: see `TrainResult`.
      peer_lost: whether another process was lost.
    """

    end: End
    findings: Findings
    baseline: tuple[str, float] | None
    first_step: int
    wall_secs: float
    startup_secs: float
    peer_lost: bool


def run_to_end(
    loop: RunLoop,
    previous: PreviousRun | None,
    prepare: Callable[[], None],
    noticing_lost_peers: Callable[[], AbstractContextManager] = contextlib.nullcontext,
) -> Finished:
    """Prepares a run, runs its loop, and scores its best weights.

    Args:
      loop: of the run.
      previous: earlier processes whose evaluations are valid for this run; None without such.
      prepare: called before the run's clock starts.
      noticing_lost_peers: makes the context in which the loss of another process becomes a PeerError.
    """
    state, first_step, run_started = loop.state, loop.state.step, time.time()
    end, findings, peer_lost = End("failed", "", first_step, state.samples_done), Findings(), False
    try:
        with noticing_lost_peers():
            prepare()
            run_started = time.time()
            with loop.interruption:
                end = run_loop(loop)
                end, findings = _find(loop, end)
    except PeerError as error:
        end, peer_lost = End("failed", str(error), state.step, state.samples_done), True
    baseline = _baseline(loop, end, previous)
    startup_secs = loop.outcome.startup_secs(loop.process_started, run_started)
    wall_secs = time.time() - run_started
    return Finished(end, findings, baseline, first_step, wall_secs, startup_secs, peer_lost)


# -----------------------------------------------------------------------------------------------------------
# Status


def run_loop(loop: RunLoop) -> End:
    """Runs the loop and returns its end (status, reason, step, sequences). The callbacks are told of the end
    even when the loop raises."""
    status, reason = "failed", ""
    try:
        loop.run()
        if loop.outcome.interrupted:
            status, reason = "interrupted", _describe_interruption(loop)
        else:
            status, reason = judge(loop.config, loop.task, loop.outcome, loop.state.step)
    except NonFiniteError as error:
        reason = f"{error}; the newest checkpoint is from before it"
        loop.manager.close()
    finally:
        end = End(status, reason, loop.state.step, loop.state.samples_done)
        with contextlib.ExitStack() as stack:  # an error of one does not keep the end from the others
            for callback in reversed(loop.callbacks):
                stack.callback(callback.on_end, end)
    return end


def judge(config: Config, task: Task, outcome: Outcome, step: int) -> tuple[str, str]:
    """Returns (status, reason) of a run that ended at `step` without an error or a signal."""
    if outcome.reached or config.stop_threshold is not None:
        score = f"{task.target_metric} {outcome.eval_metrics[task.target_metric]:.4f}"
        target = f"the target {config.stop_threshold}"
        if outcome.reached:
            return "success", f"{score} reached {target} at step {step}"
        return "aborted", f"{score} is below {target} after all {step} steps"
    if not config.do_train:
        return "finished", f"{'evaluated' if config.do_eval else 'predicted'} at step {step}"
    return "finished", f"all {step} steps done"


def _describe_interruption(loop: RunLoop) -> str:
    done = "saved" if loop.config.do_train else "evaluation stopped"
    name = signal.Signals(loop.interruption.signal or signal.SIGTERM).name
    return f"{done} at step {loop.state.step} on {name}"


def _baseline(loop: RunLoop, end: End, previous: PreviousRun | None) -> tuple[str, float] | None:
    """Returns the constant prediction and its score, the baseline; None without one. Computed after the run,
    so that the run is the first to read the data."""
    known = previous.baseline() if previous else None
    stopped = end.status in ("interrupted", "failed")
    if known or not loop.config.do_eval or loop.manager.read_only or stopped:
        return known
    found = reading(loop.task, loop.task.constant_prediction)
    if found:
        metric = loop.task.target_metric
        logging.info("Always predicting %r scores %.4f (%s) on the evaluation set", *found, metric)
    return found


# -----------------------------------------------------------------------------------------------------------
# Scores and predictions


def _find(loop: RunLoop, end: End) -> tuple[End, Findings]:
    """Returns the end, and the scores and predictions of the best weights; empty findings for a run that
    failed or was interrupted, during the training or here."""
    if end.status in ("interrupted", "failed"):
        return end, Findings()
    try:
        return end, _findings(loop)
    except Interrupted:
        reason = _describe_interruption(loop)
        return dataclasses.replace(end, status="interrupted", reason=reason), Findings()


def _findings(loop: RunLoop) -> Findings:
    """Restores the weights of the best evaluation, scores them and writes their predictions; for a task
    without scores it only collects examples."""
    config, task = loop.config, loop.task
    if is_scored(task) and (config.do_eval or config.do_predict):
        return _score(loop, task)
    if has_examples_only(task) and config.do_eval and not config.use_synthetic_data:
        outputs = loop.few_outputs(task)
        return Findings(examples=[] if outputs is None else task.examples(outputs))
    return Findings()


def _score(loop: RunLoop, task: ScoredTask) -> Findings:
    """Returns scores, tables, examples and prediction files of the best weights."""
    config, findings = loop.config, Findings()
    outputs = loop.outcome.outputs if _restore_best(loop) else {}
    if config.do_eval:
        outputs = outputs or loop.outputs_of(task.eval_dataset)
        scores = {**task.score(outputs), "best_step": loop.state.step}
        findings = Findings(scores, task.tables(outputs), task.examples(outputs))
    if config.do_predict:
        if config.predict_epochs:
            outputs = _timed_outputs(loop, task, config.predict_epochs)
        elif not (task.predicts_evaluation_set and outputs):
            outputs = loop.outputs_of(task.predict_dataset)
        if not loop.manager.read_only:
            files = _write_predictions(task, outputs, config.model_dir)
            findings = dataclasses.replace(findings, files=files)
            logging.info("Predictions of step %d: %s", loop.state.step, ", ".join(files))
    return findings


def _timed_outputs(loop: RunLoop, task: ScoredTask, passes: int) -> Outputs:
    """Predicts `passes` times, logs throughput and latency of each pass, reading of the data excluded, and
    returns the outputs of the last."""
    style = importlib.import_module(config_lib.LOG_STYLES["popart"])
    outputs: Outputs = {}
    for number in range(passes):
        secs: list[float] = []
        outputs = loop.outputs_of(task.predict_dataset, secs)
        if secs:
            rate = len(next(iter(outputs.values()))) / sum(secs)
            logging.info("%s", style.inference_line(number, sum(secs), rate, secs))
    return outputs


def _restore_best(loop: RunLoop) -> bool:
    """Restores the weights of the best evaluation. Returns whether the loop's outputs are of these
    weights."""
    best, last = loop.best_step(), loop.state.step
    if best is None or best == last:
        return bool(loop.outcome.outputs)
    loop.processes.barrier()  # the chief has written it by now
    if not loop.manager.restore(best):
        logging.warning(
            "ckpt-%d of the best evaluation is gone or damaged; going on with step %d.", best, last
        )
        return bool(loop.outcome.outputs)
    logging.info("Back to the best evaluation: step %d", best)
    return False


def _write_predictions(task: ScoredTask, outputs: Outputs, model_dir: str) -> list[str]:
    """Writes the prediction files into the run's folder, local or remote, and returns their paths. A file of
    the same name with other content is renamed, not lost."""
    paths = []
    with tempfile.TemporaryDirectory() as folder:
        for made in task.write_predictions(outputs, folder):
            with open(made, "rb") as file:
                content = file.read()
            path = os.path.join(model_dir, os.path.basename(made))
            if _holds_other(path, content):
                set_aside(path)
            replace_file(path, content)
            paths.append(path)
    return paths


def _holds_other(path: str, content: bytes) -> bool:
    if not tf.io.gfile.exists(path):
        return False
    with tf.io.gfile.GFile(path, "rb") as file:
        return file.read() != content


# -----------------------------------------------------------------------------------------------------------
# Result


@dataclasses.dataclass(frozen=True)
class About:
    """Facts of a run that its result holds, beside what the loop has measured.

    Attributes:
      command: the command line.
      weights: path of the checkpoint that the weights are from; empty for fresh ones.
      fresh: names of the variables that no checkpoint had.
      data_changed: whether the data differ from those that the run began with.
      environment: of the start of this process.
      pipeline: entry of a pipeline in result.json; None without one.
      page: name of the page that is written about a training; None where none is.
    """

    command: list[str]
    weights: str
    fresh: list[str]
    data_changed: bool
    environment: dict
    pipeline: dict | None = None
    page: str | None = None


def _is_added(config: Config, previous: PreviousRun) -> bool:
    """Tells whether the result is an entry, with a page of its own, of the result that the folder has."""
    return bool(not config.do_train and previous.result)


def make_result(
    loop: RunLoop, finished: Finished, previous: PreviousRun, counts: bool, about: About
) -> TrainResult:
    """Returns the result of a run, all of it: nothing is added later.

    Args:
      loop, finished: of this process.
      previous: result, metrics and settings of earlier processes.
      counts: whether these are valid for this run, with the same evaluation set.
      about: facts that the loop does not know.
    """
    config, outcome, task, writes = loop.config, loop.outcome, loop.task, not loop.manager.read_only
    end, findings, steps = finished.end, finished.findings, loop.manager.steps()
    prediction, score = finished.baseline or (None, None)
    packing = outcome.packing.shares(config.max_seq_length)
    is_known = counts and end.step == finished.first_step == previous.result.get("step")
    stopped, before = end.status in ("interrupted", "failed"), previous.result.get("evaluations", [])
    page = about.page if writes else None
    if page and _is_added(config, previous):
        page = None if stopped else f"evaluation_{len(before) + 1}.html"
    values: dict[str, Any] = dict(
        status=end.status,
        reason=end.reason,
        step=end.step,
        samples=end.samples,
        eval_accuracy=outcome.eval_metrics.get(task.target_metric),
        eval_loss=outcome.eval_metrics.get("loss"),
        target=config.stop_threshold,
        target_metric=task.target_metric,
        baseline_score=score,
        baseline_prediction=prediction,
        learning_rates=schedules.corners(config) if config.do_train else {},
        # Where nothing was trained, the speed is the earlier processes'.
        sequences_per_sec=previous.result.get("sequences_per_sec")
        if is_known
        else outcome.sequences_per_sec(),
        wall_secs=previous.result.get("wall_secs") if is_known else finished.wall_secs,
        startup_secs=finished.startup_secs,
        first_step_secs=outcome.first_step_secs,
        peak_memory_bytes=environment.peak_memory_bytes(),
        checkpoint=os.path.join(config.model_dir, f"ckpt-{steps[-1]}") if steps else None,
        checkpoints_written=loop.manager.times.saves,
        checkpoint_wait_secs=loop.manager.times.wait_secs,
        checkpoint_write_secs=loop.manager.times.write_secs,
        fresh_variables=about.fresh,
        skipped_steps=outcome.skipped_steps + (previous.skipped_steps(finished.first_step) if counts else 0),
        config=json.loads(config_lib.to_json(config)),
        environment=about.environment,
        # Of the process that writes it: the others have looked at no files but their own.
        data=task.data_digest() if writes else {},
        data_changed=about.data_changed,
        signal=loop.interruption.signal,
        peer_lost=finished.peer_lost,
        scores=findings.scores,
        tables=findings.tables,
        examples=findings.examples,
        predictions=findings.files,
        report=os.path.join(config.model_dir, page) if page else None,
        sequences_per_row=packing.get("sequences_per_row"),
        packing_efficiency=packing.get("packing_efficiency"),
        pipeline=about.pipeline,
    )
    evaluations = before if config.do_train else [_evaluation_entry(config, values, about)]
    return TrainResult(**values, evaluations=evaluations)


def _evaluation_entry(config: Config, values: dict, about: About) -> dict:
    settings = {
        field.name: config[field.name]
        for field in config_lib.FIELDS.values()
        if field.changes_evaluation(config) and config[field.name] != field.default
    }
    return result_lib.evaluation_entry(values, shlex.join(about.command), about.weights, settings)


def write_result(config: Config, result: TrainResult, previous: PreviousRun) -> None:
    """Writes the result. An evaluation without training adds an entry to the result that the folder already
    has; one that failed or was interrupted writes nothing there."""
    if not _is_added(config, previous):
        result_lib.write_result(config.model_dir, result)
    elif result.status not in ("interrupted", "failed"):
        result_lib.add_evaluation(config.model_dir, result.evaluations[-1])
