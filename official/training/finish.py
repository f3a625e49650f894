"""What follows the training: scores of a task that keeps its best checkpoint, where the model is right and wrong, and predictions."""

import dataclasses
import os
import tempfile

import tensorflow as tf
from absl import logging

from official.distribution import strategy as strategy_lib
from official.io.writing import replace_file, set_aside
from official.training import evaluation
from official.training import step as step_lib
from official.training.loop import Loop, reading

_EXAMPLES = 8  # rows a replica


@dataclasses.dataclass
class Findings:
    """What the best weights are worth.

    Attributes:
      scores: {metric: value} of the evaluation set, and the step of the best evaluation.
      tables: {title: rows, the first one the head}.
      examples: groups of examples for the report.
      files: paths of the predictions.
    """

    scores: dict = dataclasses.field(default_factory=dict)
    tables: dict = dataclasses.field(default_factory=dict)
    examples: list[dict] = dataclasses.field(default_factory=list)
    files: list[str] = dataclasses.field(default_factory=list)


def finish(loop: Loop) -> Findings:
    """Goes back to the weights of the best evaluation, scores them and writes what they predict; otherwise
    only looks at examples.

    Raises:
      Interrupted: on a signal.
    """
    config, task, findings = loop.config, loop.task, Findings()
    if not task.keeps_best:
        findings.examples = (
            task.examples(_few_outputs(loop)) if config.do_eval and not config.use_synthetic_data else []
        )
        return findings
    if not (config.do_eval or config.do_predict):
        return findings
    outputs = loop.outcome.outputs if _restore_best(loop) else {}
    if config.do_eval:
        outputs = outputs or loop.outputs_of(task.eval_dataset)
        findings.scores = {**task.score(outputs), "best_step": loop.state.step}
        findings.tables, findings.examples = task.tables(outputs), task.examples(outputs)
    if config.do_predict:
        if not (task.predicts_evaluation_set and outputs):
            outputs = loop.outputs_of(task.predict_dataset)
        if not loop.manager.read_only:
            findings.files = _write_predictions(task, outputs, config.model_dir)
            logging.info("Predictions of step %d: %s", loop.state.step, ", ".join(findings.files))
    return findings


def _few_outputs(loop: Loop) -> dict:
    """Returns what the task makes of the first rows of the evaluation set: one small batch a replica, so that
    it costs next to nothing."""
    size = min(_EXAMPLES, loop.plan.replica_eval_batch_size)

    def host_dataset(context):
        rows = size * loop.strategy.num_replicas_in_sync
        batches = loop.task.eval_dataset(rows).take(1).map(_numbered).rebatch(size, drop_remainder=True)
        return batches.shard(context.num_input_pipelines, context.input_pipeline_id)

    def work():
        look = step_lib.make_example_step(loop.task, loop.state, loop.strategy)
        batches = strategy_lib.batches(strategy_lib.distribute(host_dataset, loop.strategy), loop.strategy)
        return evaluation.run(look, batches, before_each=lambda: None)[1]

    return reading(loop.task, work)


def _numbered(batch: dict) -> dict:
    """Adds `rows`, of which -1 is filling."""
    weights = batch["example_weights"]
    return {**batch, "rows": tf.where(weights > 0, tf.range(tf.size(weights)), -1)}


def _restore_best(loop: Loop) -> bool:
    """Restores the best weights. Returns whether the outputs that the loop has are theirs."""
    best, last = loop.best_step(), loop.state.step
    if best is None or best == last:
        return bool(loop.outcome.outputs)
    if not loop.manager.restore(best):
        logging.warning(
            "ckpt-%d of the best evaluation is gone or damaged; going on with step %d.", best, last
        )
        return bool(loop.outcome.outputs)
    logging.info("Back to the best evaluation: step %d", best)
    return False


def _write_predictions(task, outputs: dict, model_dir: str) -> list[str]:
    """Writes the predictions into the run's folder, local or remote. Others of the same name that are there
    are renamed, not lost."""
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
