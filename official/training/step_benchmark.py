"""Benchmark workloads: training steps, and matrix products."""

import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from official import config as config_lib
from official.config import Config
from official.data import pipeline
from official.data.pipeline import TrainingOrder
from official.distribution import strategy as strategy_lib
from official.distribution.batch_plan import make_batch_plan
from official.optimization import replica_step
from official.training import feeding, pipelined
from official.training import step as step_lib
from official.training.task import Task

_TYPES = {"fp32": tf.float32, "fp16": tf.float16, "bf16": tf.bfloat16}
_PRODUCT_SIZE = 2048
_PRODUCTS = 8


def step_config(model: dict, length: int, batch_size: int, dtype: str, settings: dict) -> Config:
    """Returns the configuration of a training step on synthetic data.

    Args:
      model: the keys of a bert_config.json.
      length: tokens of a sequence.
      batch_size: sequences of a step.
      dtype: fp32, fp16 or bf16.
      settings: more settings, by name.
    """
    usual = dict(
        model=model,
        model_dir="unused",
        use_synthetic_data=True,
        distribution_strategy="one_device",
        dtype=dtype,
        max_seq_length=length,
        max_predictions_per_seq=predictions_of(length),
        train_batch_size=batch_size,
        optimizer_type="lamb",
        warmup_steps=0,
    )
    return config_lib.build_config([("benchmark", {**usual, **settings})])


def predictions_of(length: int) -> int:
    """Returns the masked tokens of a sequence in the published recipes: 20 for 128, 56 for 384, 76 for 512,
    else 15 %."""
    return {128: 20, 384: 56, 512: 76}.get(length, max(1, round(0.15 * length)))


def make_step(
    config: Config,
    make_task: Callable[[Config], Task],
    steps: int,
    batch: dict[str, np.ndarray] | None = None,
    reads_data: bool = False,
) -> Callable[..., float]:
    """Builds model, optimizer and training loop. Returns a function that runs a number of steps with their
    updates, by default `steps`, and returns their mean loss.

    Args:
      config: configuration of the step.
      make_task: config -> Task.
      steps: default number of steps per call.
      batch: {feature: array [B, ..]} for every step, with a replica's B rows; None: random records.
      reads_data: whether to read the data of the configuration.

    Raises:
      ConfigError: if a device or data are missing, or a batch cannot be divided among the replicas.
    """
    strategy = strategy_lib.make_strategy(config)
    config = strategy_lib.with_choices_of_devices(config, strategy)
    task = make_task(config)
    if reads_data:
        task.find_data()
    plan = make_batch_plan(config, strategy.num_replicas_in_sync).with_rows_of(task.sequences_per_row)
    state = pipelined.make_state(config, task, strategy)
    train_loop = step_lib.make_train_loop(config, task, state, strategy, plan)
    if reads_data:
        iterator = feeding.training_batches(task, plan, TrainingOrder(config.seed), strategy)
    elif batch is None:
        iterator = feeding.synthetic_batches(task, plan.replica_batch_size, strategy)
    else:
        held = tf.data.Dataset.from_tensors(batch).cache().repeat()
        iterator = iter(strategy_lib.distribute(lambda _: pipeline.fixed(held), strategy))
    nothing = step_lib.no_totals(task, plan)

    def run(steps: int = steps) -> float:
        sums = train_loop(iterator, tf.constant(steps), nothing)["sums"]
        return replica_step.mean_metrics(task.losses, task.metrics, sums)["loss"]

    return run


def measure_steps(config: Config, make_task: Callable[[Config], Task], count: int = 3) -> list[float]:
    """Returns the seconds of each of `count` steps on generated records, after one step that compiles. Writes
    no files. Raises as `make_step`."""
    run, secs = make_step(config, make_task, 1), []
    for _ in range(count + 1):
        since = time.perf_counter()
        run()
        secs.append(time.perf_counter() - since)
    return secs[1:]


def make_products(dtype: str) -> tuple[Callable[[], None], float]:
    """Returns (function that multiplies square matrices, FLOPs of one call), to measure the machine's
    speed."""
    left = tf.cast(tf.random.stateless_normal([_PRODUCT_SIZE] * 2, [1, 2]), _TYPES[dtype])
    right = tf.cast(
        tf.random.stateless_normal([_PRODUCT_SIZE] * 2, [3, 4]) / _PRODUCT_SIZE**0.5, _TYPES[dtype]
    )

    @tf.function
    def multiply():
        value = left
        for _ in range(_PRODUCTS):  # a chain, so that none is optimized away and none runs in parallel
            value = tf.matmul(value, right)
        return value[0, 0]

    return lambda: multiply().numpy(), _PRODUCTS * 2.0 * _PRODUCT_SIZE**3
