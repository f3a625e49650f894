"""End of a run: scores and predictions of the best weights, baseline, result."""

from __future__ import annotations

import importlib
import os
import shlex
import tempfile
import time
from typing import Any, cast

from absl import logging

from official import config as config_lib
from official.config import Config
from official.io.errors import PeerError
from official.io.writing import read_lines, replace_file, set_aside
from official.optimization import schedules
from official.reporting import environment
from official.reporting import result as result_lib
from official.reporting.callback import End
from official.reporting.compilations import Compilations, compilations
from official.reporting.result import TrainResult
from official.training.loop import STOPPED, Ended, RunLoop, reading
from official.training.run_lock import PreviousRun
from official.training.task import Outputs, ScoredTask, is_scored


def make_result(
    loop: RunLoop,
    ended: Ended,
    previous: PreviousRun,
    counts: bool,
    command: list[str],
    weights: str,
    page: str | None = None,
    compiled: Compilations | None = None,
    **facts: Any,
) -> TrainResult:
    """Returns the complete result of a run whose loop has ended.

    Args:
      loop: loop of the run.
      ended: return value of its `run_to_end`.
      previous: result, metrics and settings of earlier processes.
      counts: whether these are valid for this run, with the same evaluation set.
      command: the command line.
      weights: path of the checkpoint of the initial weights; empty for fresh ones.
      page: name of the report page of a training run; None without one.
      compiled: compilations of this process before the run; None if unknown.
      facts: fields of the result that the loop does not know.
    """
    config, task, outcome, end = loop.config, loop.task, loop.outcome, ended.end
    run_started = ended.run_started
    prediction, score = _baseline(loop, end, previous if counts else None) or (None, None)
    earlier, steps, writes = previous.result, loop.manager.steps(), not loop.manager.read_only
    is_known = counts and end.step == ended.first_step == earlier.get("step")
    evaluations = earlier.get("evaluations", [])
    if not writes:
        page = None
    elif page and _is_added(config, previous):
        page = None if end.status in STOPPED else f"evaluation_{len(evaluations) + 1}.html"
    found = compilations() if compiled else None
    made = found.since(compiled) if found and compiled else None
    if made and made.functions:
        logging.info("XLA compiled %d functions in %.1f s", *made)
    rates = loop.budget.rates if loop.budget else {}
    if config.do_train and not loop.budget:  # learning rates at the corners of the schedule
        rates = schedules.corners(config)
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
        learning_rates=rates,
        # Without training, the speed is that of the earlier processes.
        sequences_per_sec=earlier.get("sequences_per_sec") if is_known else outcome.sequences_per_sec(),
        wall_secs=earlier.get("wall_secs") if is_known else time.time() - run_started,
        startup_secs=outcome.startup_secs(loop.process_started, run_started),
        first_step_secs=outcome.first_step_secs,
        compilations=made.functions if made else None,
        compilation_secs=made.secs if made else None,
        peak_memory_bytes=environment.peak_memory_bytes(),
        checkpoint=os.path.join(config.model_dir, f"ckpt-{steps[-1]}") if steps else None,
        checkpoints_written=loop.manager.times.saves,
        checkpoint_wait_secs=loop.manager.times.wait_secs,
        checkpoint_write_secs=loop.manager.times.write_secs,
        skipped_steps=outcome.skipped_steps + previous.skipped_steps(ended.first_step),
        config=config_lib.to_dict(config),
        # Of this process, which writes the result: other processes check only their own files.
        data=task.data_digest() if writes else {},
        signal=loop.processes.signal,
        peer_lost=ended.peer_lost,
        report=os.path.join(config.model_dir, page) if page else None,
        **outcome.packing.shares(config.max_seq_length),
        **{"scores": {}, "predictions": [], **ended.findings, **facts},
    )
    if not config.do_train:
        fields = [field for field in config_lib.FIELDS.values() if field.changes_evaluation(config)]
        settings = {field.name: config[field.name] for field in fields if config[field.name] != field.default}
        evaluations = [result_lib.evaluation_entry(values, shlex.join(command), weights, settings)]
    return TrainResult(**values, evaluations=evaluations)


def _is_added(config: Config, previous: PreviousRun) -> bool:
    """Tells whether the result becomes an entry, with its own page, of the folder's existing result."""
    return bool(not config.do_train and previous.result)


def write_result(config: Config, result: TrainResult, previous: PreviousRun) -> None:
    """Writes the result. An evaluation without training adds an entry to the folder's existing result, unless
    it failed or was interrupted."""
    if not _is_added(config, previous):
        result_lib.write_result(config.model_dir, result)
    elif result.status not in STOPPED:
        entries = [*previous.result.get("evaluations", []), result.evaluations[-1]]
        result_lib.note(config.model_dir, evaluations=entries)


# -----------------------------------------------------------------------------------------------------------
# Baseline, scores and predictions


def _baseline(loop: RunLoop, end: End, previous: PreviousRun | None) -> tuple[str, float] | None:
    """Returns the constant prediction and its score, the baseline; None without one. Computed after the run,
    so that the run is the first to read the data."""
    known = previous.baseline() if previous else None
    if known or not loop.config.do_eval or loop.manager.read_only or end.status in STOPPED:
        return known
    found = reading(loop.task, loop.task.constant_prediction)
    if found:
        metric = loop.task.target_metric
        logging.info("Always predicting %r scores %.4f (%s) on the evaluation set", *found, metric)
    return found


def findings(loop: RunLoop) -> dict[str, Any]:
    """Restores the weights of the best evaluation and writes their predictions. Returns the fields of the
    result about them: scores, tables, examples and predictions; of a task without scores only examples."""
    config, task, found = loop.config, cast(Any, loop.task), {}
    if not is_scored(task):
        shows = config.do_eval and not config.use_synthetic_data
        outputs = loop.few_outputs(task) if shows else None
        return {} if outputs is None else {"examples": task.examples(outputs)}
    if not (config.do_eval or config.do_predict):
        return {}
    outputs = loop.outcome.outputs if _restore_best(loop) else {}
    if config.do_eval:
        outputs = outputs or loop.outputs_of(task.eval_dataset)
        scores = {**task.score(outputs), "best_step": loop.state.step}
        found = {"scores": scores, "tables": task.tables(outputs), "examples": task.examples(outputs)}
        if config.do_train and not loop.manager.read_only:
            for name, content in task.assets(outputs).items():
                replace_file(os.path.join(config.model_dir, name), content)
    if config.do_predict:
        if config.predict_epochs:
            outputs = _timed_outputs(loop, task, config.predict_epochs)
        elif not (task.predicts_evaluation_set and outputs):
            outputs = loop.outputs_of(task.predict_dataset)
        if not loop.manager.read_only:
            found["predictions"] = files = _write_predictions(task, outputs, config.model_dir)
            logging.info("Predictions of step %d: %s", loop.state.step, ", ".join(files))
    return found


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
    """Restores the weights of the best evaluation. Returns whether the loop's outputs are of these weights.
    Raises PeerError if only some of several processes find them: their outputs would be of two models."""
    best, last = loop.best_step(), loop.state.step
    if best is not None and best != last:
        loop.processes.barrier()  # the chief has written it by now
        is_here = loop.manager.restore(best) is not None
        if loop.processes.all(is_here):
            logging.info("Back to the best evaluation: step %d", best)
            return False
        if not loop.processes.all(not is_here):
            raise PeerError(
                f"ckpt-{best} of the best evaluation is {'' if is_here else 'not '}seen by this process, and"
                f" others differ: --model_dir={loop.config.model_dir} is on a file system that is late. Start"
                " all processes again: the run is trained, and is evaluated."
            )
        text = "ckpt-%d of the best evaluation is gone or damaged; going on with step %d."
        logging.warning(text, best, last)
    return bool(loop.outcome.outputs)


def _write_predictions(task: ScoredTask, outputs: Outputs, model_dir: str) -> list[str]:
    """Writes the prediction files into the run's folder, local or remote, and returns their paths. A file of
    the same name with other content is renamed, not lost."""
    paths = []
    with tempfile.TemporaryDirectory() as folder:
        for made in task.write_predictions(outputs, folder):
            with open(made, "rb") as file:
                content = file.read()
            path = os.path.join(model_dir, os.path.basename(made))
            if b"".join(read_lines(path)) not in (b"", content):
                set_aside(path)
            replace_file(path, content)
            paths.append(path)
    return paths
