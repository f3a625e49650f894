"""The end of a run: status of the loop, scores of the best weights, result."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal

from absl import logging

from official import config as config_lib
from official.config import Config
from official.io.signals import Interrupted
from official.optimization import schedules
from official.reporting import environment
from official.reporting import result as result_lib
from official.reporting.observer import End
from official.reporting.result import TrainResult
from official.training import evaluate as finish_lib
from official.training.resume import Earlier
from official.training.run_loop import NonFiniteError, RunLoop, describe_interruption, judge
from official.training.task import reading


def run_loop(loop: RunLoop) -> End:
    """Runs the loop and returns its end (status, reason, step, sequences). The observers are told of the end
    even when the loop raises."""
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


def _judge(loop: RunLoop) -> tuple[str, str]:
    """Returns (status, reason) of a loop that ended without an error."""
    if loop.outcome.interrupted:
        return "interrupted", _describe_interruption(loop, loop.state.step)
    return judge(loop.config, loop.task, loop.outcome, loop.state.step)


def _describe_interruption(loop: RunLoop, step: int) -> str:
    return describe_interruption(loop.config, step, loop.interruption.signal or signal.SIGTERM)


def finish(loop: RunLoop, end: End) -> tuple[End, finish_lib.Findings]:
    """Returns the end, and the scores and predictions of the best weights; empty findings for a run that
    failed or was interrupted, during the training or here."""
    if end.status in ("interrupted", "failed"):
        return end, finish_lib.Findings()
    try:
        return end, finish_lib.finish(loop)
    except Interrupted:
        reason = _describe_interruption(loop, end.step)
        return dataclasses.replace(end, status="interrupted", reason=reason), finish_lib.Findings()


def baseline(loop: RunLoop, end: End, earlier: Earlier | None) -> tuple[str, float] | None:
    """Returns the constant prediction and its score, the baseline; None without one. Computed after the run,
    so that the run is the first to read the data."""
    known = earlier.baseline() if earlier else None
    stopped = end.status in ("interrupted", "failed")
    if known or not loop.config.do_eval or loop.manager.read_only or stopped:
        return known
    found = reading(loop.task, loop.task.constant_prediction)
    if found:
        metric = loop.task.target_metric
        logging.info("Always predicting %r scores %.4f (%s) on the evaluation set", *found, metric)
    return found


def make_result(
    loop: RunLoop, end: End, findings: finish_lib.Findings, always: tuple[str, float] | None
) -> TrainResult:
    """Returns the result of this process's part of the run. `always` is the value of `baseline`."""
    config, outcome, steps = loop.config, loop.outcome, loop.manager.steps()
    prediction, score = always or (None, None)
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
    )


def write_result(
    config: Config,
    result: TrainResult,
    earlier: Earlier,
    weights: str,
    command: list[str],
    page: str | None = None,
) -> str | None:
    """Writes the result. An evaluation without training adds an entry, with a page of its own, to the result
    that the folder already has; one that failed or was interrupted writes nothing there.

    Args:
      config: of the run.
      result: of this process.
      earlier: result, metrics and settings of earlier processes.
      weights: path of the checkpoint that the weights are from; empty for fresh ones.
      command: the command line.
      page: file name of the page that the caller writes about a training; None without one.

    Returns:
      The name of the page about this result; None where there is none to write.
    """
    adds = bool(not config.do_train and earlier.result)
    if adds and result.status in ("interrupted", "failed"):
        return None
    evaluations = earlier.result.get("evaluations", [])
    if page and adds:
        page = f"evaluation_{len(evaluations) + 1}.html"
    result.report = os.path.join(config.model_dir, page) if page else None
    result.evaluations = evaluations
    if not config.do_train:
        settings = {
            field.name: config[field.name]
            for field in config_lib.FIELDS.values()
            if field.changes_evaluation(config) and config[field.name] != field.default
        }
        entry = result_lib.evaluation_entry(result, shlex.join(command), weights, settings)
        result.evaluations = [entry]
        if adds:
            result_lib.add_evaluation(config.model_dir, entry)
    if not adds:
        result_lib.write_result(config.model_dir, result)
    return page
