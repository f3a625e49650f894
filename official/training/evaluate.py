"""Evaluation and prediction: one pass over a set, scores of the best checkpoint, predictions."""

from __future__ import annotations

import dataclasses
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official import config as config_lib
from official.io.writing import replace_file, set_aside
from official.training.run_loop import RunLoop
from official.training.task import Outputs, ScoredTask, has_examples_only, is_scored

# -----------------------------------------------------------------------------------------------------------
# One pass


def run(
    eval_step: Callable,
    batches: Iterable,
    before_each: Callable[[], None],
    secs: list[float] | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Evaluates all batches.

    Args:
      eval_step: see `step.make_eval_step`.
      batches: global batches.
      before_each: called before each batch; its exceptions propagate.
      secs: gets the seconds of each batch, from the call of the step to outputs in the host's memory.

    Returns:
      (float64 [2 x eval metrics + 1], see `make_eval_step`; {output: [sequences of the set, ...]}, without
      padding rows).
    """
    totals: Any = 0.0
    parts: list[dict[str, np.ndarray]] = []
    for batch in batches:
        before_each()
        since = time.perf_counter()
        sums, outputs = eval_step(batch)
        totals = totals + sums.numpy().astype(np.float64)
        part = {name: value.numpy() for name, value in outputs.items()}
        if secs is not None:
            secs.append(time.perf_counter() - since)
        parts.append(_without_filling(part))
    return totals, in_order(parts)


def _without_filling(part: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the outputs of a batch as {output: [sequences, ...]}, without the empty places of packed rows,
    which would fill the memory."""
    if not part:
        return part
    is_sequence = part["rows"] >= 0
    return {name: value[is_sequence] for name, value in part.items()}


def in_order(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Joins the outputs of batches and sorts them.

    Args:
      parts: {output: [B, ...]} with `rows` [B], the number of each sequence in the set, -1 for filling; or
        {output: [B, S, ...]} with `rows` [B, S], of rows that hold up to S sequences.

    Returns:
      {output: [sequences, ...]}, without `rows`.
    """
    if not parts or not parts[0]:
        return {}
    places = parts[0]["rows"].ndim
    whole = {
        name: np.concatenate([part[name].reshape(-1, *part[name].shape[places:]) for part in parts])
        for name in parts[0]
    }
    numbers = whole.pop("rows")
    order = np.argsort(numbers, kind="stable")[np.count_nonzero(numbers < 0) :]
    return {name: values[order] for name, values in whole.items()}


# -----------------------------------------------------------------------------------------------------------
# After the training


@dataclasses.dataclass
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


def finish(loop: RunLoop) -> Findings:
    """Restores the weights of the best evaluation, scores them and writes their predictions; for a task
    without scores it only collects examples.

    Raises:
      Interrupted: on a signal.
    """
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
        findings.scores = {**task.score(outputs), "best_step": loop.state.step}
        findings.tables, findings.examples = task.tables(outputs), task.examples(outputs)
    if config.do_predict:
        if config.predict_epochs:
            outputs = _timed_outputs(loop, task, config.predict_epochs)
        elif not (task.predicts_evaluation_set and outputs):
            outputs = loop.outputs_of(task.predict_dataset)
        if not loop.manager.read_only:
            findings.files = _write_predictions(task, outputs, config.model_dir)
            logging.info("Predictions of step %d: %s", loop.state.step, ", ".join(findings.files))
    return findings


def _timed_outputs(loop: RunLoop, task: ScoredTask, passes: int) -> Outputs:
    """Predicts `passes` times, logs throughput and latency of each pass, reading of the data excluded, and
    returns the outputs of the last."""
    style = importlib.import_module(config_lib.LOG_STYLES["graphcore"])  # whose option asks for it
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
    loop.together.meet()  # the chief has written it by now
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
