"""Exports a model as a program of the IPUs' embedded runtime, and measures its latency and throughput."""

from __future__ import annotations

import json
import os

import tensorflow as tf

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config import Config, ConfigError
from official.data.pipeline import TrainingOrder
from official.distribution.ipu import api as api_lib
from official.distribution.ipu import embedded
from official.distribution.ipu import pipeline as pipeline_lib
from official.io.writing import replace_file
from official.training.ipu import building, feeding, stages
from official.training.ipu.run import make_task
from official.training.ipu.weights import initialize
from official.training.task import Task

_BATCHES = 8  # different ones that a measurement asks


def export(config: Config, path: str) -> None:
    """Writes a run's newest checkpoint as a program: the features of a micro batch -> the outputs of
    `stages.prediction_chain`. PATH.json beside it names its inputs, outputs and step.

    Raises:
      ConfigError: where there are no weights, or what `building.take_devices` refuses.
    """
    embedded.check_export(config, path)
    config = _of_one_replica(config)
    building.set_numbers(config)
    task = make_task(config)
    rows = _rows(config, task, config.train_batch_size // config.num_accumulation_steps)
    devices = building.take_devices(config)
    state = building.make_state(config, task, devices)
    _restore(config, state)
    signature = feeding.signature_of(rows)
    chain = stages.prediction_chain(task, state.model)
    parts = stages.make_parts(chain, devices.pipeline, signature)
    functions = stages.make_functions(chain, parts)
    taken = parts[0].features
    with devices.strategy.scope():
        queues = pipeline_lib.make_queues(
            devices.api, rows.map(lambda row: tuple(row[name] for name in taken))
        )

        def program():
            pipeline_lib.add_pipeline(config, devices.api, devices.pipeline, functions, queues)

        embedded.compile_program(devices.api, program, path)
    about = {
        "inputs": {name: [signature[name].shape.as_list(), signature[name].dtype.name] for name in taken},
        "outputs": list(chain.last.gives),
        "step": state.step,
    }
    replace_file(path + ".json", json.dumps(about, indent=2) + "\n")
    print(f"exported step {state.step} to {path}")


def measure(config: Config, path: str, calls: int, threads: int, raw: bool) -> None:
    """Runs a program on random rows and prints its latency and throughput.

    Args:
      config: configuration that it was exported with.
      path: path of the program.
      calls, threads: see `embedded.measure`.
      raw: also writes the seconds of each call to PATH.timings.json.
    """
    about = config_lib.read_json(path + ".json", "run")
    api, batches = api_lib.load(), _random_batches(config, about["inputs"])
    signature = [tf.TensorSpec(shape, dtype, name) for name, (shape, dtype) in about["inputs"].items()]
    answer = embedded.make_caller(api, path, signature)
    secs, total = embedded.measure(answer, batches, calls, threads)
    if raw:
        replace_file(path + ".timings.json", json.dumps(secs) + "\n")
    print(json.dumps(embedded.summary(secs, total, signature[0].shape[0])))


def _of_one_replica(config: Config) -> Config:
    """Returns the configuration of a program: one replica, with the micro batches of the training."""
    rows = config.train_batch_size // config.ipu_replicas
    config = config_lib.replaced(
        config,
        ipu_replicas=1,
        train_batch_size=rows,
        replicated_tensor_sharding=False,
        do_train=True,
        do_eval=False,
        do_predict=False,
        stop_steps=None,
    )
    return config_lib.with_data(config, 1)


def _restore(config: Config, state) -> None:
    manager = CheckpointManager(config.model_dir, state.variables(), config.keep_checkpoints, read_only=True)
    if manager.restore_newest() is None and not config.init_checkpoint:
        where = os.path.join(config.model_dir, "ckpt-N")
        raise ConfigError(
            f"--export: there is no {where} to export. Change model_dir, or set init_checkpoint."
        )
    if state.step == 0 and config.init_checkpoint:
        initialize(state.model_variables(), config.init_checkpoint)


def _rows(config: Config, task: Task, micro_batch: int) -> tf.data.Dataset:
    """Returns micro batches {feature: [rows, ...]}: random ones, or for pre-training those of the training
    data, which may be packed."""
    if config.task != "pretrain":
        return task.synthetic_dataset(micro_batch)
    task.find_data()
    return task.train_dataset(micro_batch, micro_batch, TrainingOrder(config.seed))


def _random_batches(config: Config, inputs: dict) -> list[tuple]:
    made_up = config_lib.replaced(config, use_synthetic_data=True, do_train=True, do_eval=False)
    rows = next(iter(inputs.values()))[0][0]
    batches = _rows(made_up, make_task(made_up), rows).take(_BATCHES)
    return [tuple(batch[name] for name in inputs) for batch in batches]
