"""What follows the training of a task that keeps its best checkpoint: its scores, where it is right and wrong, and predictions."""

import dataclasses
import os
import tempfile

from absl import logging
import tensorflow as tf

from official.io.writing import replace_file
from official.training.loop import Loop


@dataclasses.dataclass
class Findings:
    """What the best weights are worth.

    Attributes:
      scores: {metric: value} of the evaluation set, and the step of the best evaluation.
      tables: {title: rows, the first one the head}.
      files: paths of the predictions.
    """

    scores: dict = dataclasses.field(default_factory=dict)
    tables: dict = dataclasses.field(default_factory=dict)
    files: list[str] = dataclasses.field(default_factory=list)


def finish(loop: Loop) -> Findings:
    """Goes back to the weights of the best evaluation, scores them and writes what they predict. Raises Interrupted on a signal."""
    config, task, findings = loop.config, loop.task, Findings()
    if not task.keeps_best or not (config.do_eval or config.do_predict):
        return findings
    outputs = loop.outcome.outputs if _restore_best(loop) else {}
    if config.do_eval:
        outputs = outputs or loop.outputs_of(task.eval_dataset)
        findings.scores = {**task.score(outputs), "best_step": loop.state.step}
        findings.tables = task.tables(outputs)
    if config.do_predict:
        if not (task.predicts_evaluation_set and outputs):
            outputs = loop.outputs_of(task.predict_dataset)
        if not loop.manager.read_only:
            findings.files = _write_predictions(task, outputs, config.model_dir)
            logging.info("Predictions of step %d: %s", loop.state.step, ", ".join(findings.files))
    return findings


def _restore_best(loop: Loop) -> bool:
    """Restores the best weights. Returns whether the outputs that the loop has are theirs."""
    best, last = loop.best_step(), loop.state.step
    if best is None or best == last:
        return bool(loop.outcome.outputs)
    if not loop.manager.restore(best):
        logging.warning("ckpt-%d of the best evaluation is gone or damaged; going on with step %d.", best, last)
        return bool(loop.outcome.outputs)
    logging.info("Back to the best evaluation: step %d", best)
    return False


def _write_predictions(task, outputs: dict, model_dir: str) -> list[str]:
    """Writes the predictions into the run's folder, local or remote. Others of the same name that are there are renamed, not lost."""
    paths = []
    with tempfile.TemporaryDirectory() as folder:
        for made in task.write_predictions(outputs, folder):
            with open(made, "rb") as file:
                content = file.read()
            path = os.path.join(model_dir, os.path.basename(made))
            _set_aside(path, content)
            replace_file(path, content)
            paths.append(path)
    return paths


def _set_aside(path: str, content: bytes) -> None:
    """Renames a file of other content to NAME-1.ENDING, or the next number that is free."""
    if not tf.io.gfile.exists(path):
        return
    with tf.io.gfile.GFile(path, "rb") as file:
        if file.read() == content:
            return
    stem, ending = os.path.splitext(path)
    number = 1
    while tf.io.gfile.exists(f"{stem}-{number}{ending}"):
        number += 1
    tf.io.gfile.rename(path, f"{stem}-{number}{ending}")
