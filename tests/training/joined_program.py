"""One of two processes that add up gradients and train together: says what it has found, as JSON.

python -m tests.training.joined_program RANK HOSTS RECORDS
"""

import hashlib
import json
import os
import sys

import numpy as np
import tensorflow as tf

from official import native
from official.config import build_config, replaced
from official.data.pipeline import TrainingOrder
from official.distribution import strategy as strategy_lib
from official.distribution.batch_plan import make_batch_plan
from official.optimization import optimizers, replica_step, schedules
from official.optimization.train_state import LossScale
from official.tasks.pretraining import PretrainingTask
from official.training import feeding, pipelined
from official.training import step as step_lib
from tests.conftest import TINY

STEPS = 3
COUNT = 1000


def numbers(rank: int) -> np.ndarray:
    """Returns what a process adds to a sum."""
    return np.random.default_rng(rank).normal(size=COUNT).astype(np.float32)


def sums(config, strategy, rank: int) -> list[float]:
    """Returns what the processes' numbers add up to in the type of --allreduce_dtype."""
    with strategy.scope():
        loss_scale = LossScale(8.0, dynamic=False)

    @tf.function(autograph=False)
    def add_up():
        def own():
            given = replica_step.Gradients([tf.constant(numbers(rank))], 1.0)
            narrow = replica_step.narrow(config, given, loss_scale)
            reduced, _ = replica_step.reduce_across_replicas(config, narrow, tf.zeros([2]))
            return reduced.tensors[0] / reduced.divisor

        return strategy.experimental_local_results(strategy.run(own))[0]

    return add_up().numpy().tolist()


def train(config, strategy) -> dict:
    """Returns the optimizer of some steps, and a digest of all that they have changed."""
    tf.keras.utils.set_random_seed(config.seed)
    task = PretrainingTask(config)
    task.find_data()
    plan = make_batch_plan(config, strategy.num_replicas_in_sync).with_rows_of(task.sequences_per_row)
    state = pipelined.make_state(config, task, strategy)
    loop = step_lib.make_train_loop(config, task, state, strategy, plan)
    batches = feeding.training_batches(task, plan, TrainingOrder(config.seed), strategy)
    totals = loop(batches, tf.constant(STEPS), step_lib.no_totals(task, plan))
    digest = hashlib.sha256()
    for name, variable in sorted(state.variables().items()):
        digest.update(name.encode() + variable.read_value().numpy().tobytes())
    return {
        "digest": digest.hexdigest(),
        "loss": replica_step.mean_metrics(task.losses, task.metrics, totals["sums"])["loss"],
        "optimizer": type(state.optimizer).__name__,
    }


def optimizer_without_compiler(config, strategy, rank: int) -> str:
    """Returns the optimizer's module where one of the processes has no compiler."""
    native.library_path.cache_clear()
    native.operations.cache_clear()
    native._not_built.cache_clear()
    if rank:
        os.environ["CXX"] = "/none"
    with strategy.scope():
        return type(optimizers.build_optimizer(config, schedules.from_config(config))).__name__


def main(rank: int, hosts: str, records: str) -> None:
    settings = dict(model={**TINY, "num_hidden_layers": 1}, model_dir="unused", input_files=records)
    settings |= dict(max_seq_length=16, max_predictions_per_seq=3, train_batch_size=8, num_steps_per_epoch=20)
    settings |= dict(warmup_steps=0, learning_rate=1e-3, optimizer_type="lamb", dtype="bf16", num_gpus=0)
    settings |= dict(loss_scale="dynamic", distribution_strategy="multi_worker_mirrored", task_index=rank)
    settings |= dict(worker_hosts=hosts, peer_timeout_secs=120)
    config = build_config([("test", settings)])
    strategy = strategy_lib.make_strategy(config)
    of_type = {name: replaced(config, allreduce_dtype=name) for name in ("float32", "bfloat16", "float16")}
    found = {
        "sums": {name: sums(own, strategy, rank) for name, own in of_type.items()},
        "trained": {name: train(own, strategy) for name, own in of_type.items()},
        "without": optimizer_without_compiler(config, strategy, rank),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
