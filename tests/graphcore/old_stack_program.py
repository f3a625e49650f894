"""What an IPU run does with the plain model, on the TensorFlow of this Python: a program and a module.

    PYTHON -m tests.graphcore.old_stack_program FOLDER

FOLDER holds config.json, ckpt-0 (the weights to start from), batches.npz and files of records. It writes
ckpt-STEPS and prints JSON.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import tensorflow as tf

from official.checkpoint.manager import CheckpointManager
from official.config import Config, build_config, read_json
from official.data import pipeline
from official.data.records import batches as record_batches
from official.data.records import files as record_files
from official.data.records import schema as schema_lib
from official.io import files as io_files
from official.modeling import objectives
from official.modeling.models import BertPretrainer
from official.optimization.plain_optimizers import build_plain
from official.optimization.train_state import TrainState, build_state

STEPS = 3
RECORDS = 20  # that are read: an epoch of them


def make_state(config: Config) -> TrainState:
    return build_state(config, lambda: BertPretrainer(config.model), build_plain)


def train(config: Config, state: TrainState, batches: dict[str, np.ndarray]) -> list[float]:
    """Trains on `batches`, {name: [STEPS, B, ...]}. Returns the loss of each step."""
    weights = state.model.trainable_variables

    @tf.function(autograph=False)
    def step(batch):
        with tf.GradientTape() as tape:
            seed = tf.stack([config.seed, tf.cast(state.optimizer.iterations, tf.int32), 0])
            outputs = state.model(batch, dropout_seed=seed)
            terms = objectives.pretraining_terms(outputs, batch, config.loss_averaging_basis)
            loss = sum(terms[name][0] / terms[name][1] for name in objectives.PRETRAINING_LOSSES)
        state.optimizer.update(tape.gradient(loss, weights), weights, tf.constant(1.0))
        return loss

    return [
        float(step({name: tf.constant(values[number]) for name, values in batches.items()}))
        for number in range(STEPS)
    ]


def read_rows(folder: str, config: Config, name: str) -> dict[str, list]:
    """Returns the ids of the rows of FOLDER/NAME: all of an epoch, and those that come behind 8 of them."""
    files = io_files.find_files(os.path.join(folder, name), "input_files")
    example = schema_lib.pretraining_schema(
        config.max_seq_length, config.max_predictions_per_seq, config.model.vocab_size
    )
    sizes = record_files.row_sizes(files)
    schema = example
    if sizes:
        schema = schema_lib.packed_schema(config.max_seq_length, *sizes, config.model.vocab_size)

    def rows(done: int) -> list:
        order = pipeline.TrainingOrder(config.seed, done)
        batches = record_batches.training_dataset(files, schema, 4, order).take((RECORDS - done) // 4)
        return np.concatenate([batch["input_ids"] for batch in batches.as_numpy_iterator()]).tolist()

    return {"rows": rows(0), "rest": rows(8)}


def main(folder: str) -> dict:
    """Returns what the program prints."""
    config = build_config([("config.json", read_json(os.path.join(folder, "config.json")))])
    state = make_state(config)
    manager = CheckpointManager(folder, state.variables(), keep=5)
    manager.restore(0)
    with np.load(os.path.join(folder, "batches.npz")) as batches:
        losses = train(config, state, dict(batches))
    manager.save(STEPS)
    read = {name: read_rows(folder, config, name) for name in ("plain", "packed")}
    modules = sorted(name for name in sys.modules if name.split(".")[0] == "official")
    return {"losses": losses, "modules": modules, "tensorflow": tf.__version__, **read}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
