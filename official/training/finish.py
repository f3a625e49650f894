"""Work after the training: scores, error examples and predictions of the best checkpoint."""

from __future__ import annotations

import dataclasses
import os
import tempfile

import tensorflow as tf
from absl import logging

from official.io.writing import replace_file, set_aside
from official.reporting import popart_lines
from official.training.run_loop import RunLoop
from official.training.task import Outputs, ScoredTask, has_examples_only, is_scored


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
    outputs: Outputs = {}
    for number in range(passes):
        secs: list[float] = []
        outputs = loop.outputs_of(task.predict_dataset, secs)
        if secs:
            rate = len(next(iter(outputs.values()))) / sum(secs)
            logging.info("%s", popart_lines.inference_line(number, sum(secs), rate, secs))
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
