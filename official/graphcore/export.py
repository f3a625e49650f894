"""Exports a model as a program of the IPUs' embedded runtime, and measures its latency and throughput."""

from __future__ import annotations

import concurrent.futures
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.config.table import Config
from official.data.pipeline import TrainingOrder
from official.graphcore import devices as api_lib
from official.graphcore import pipeline
from official.graphcore import program as program_lib
from official.graphcore.program import initialize
from official.graphcore.run import make_task
from official.io.errors import ConfigError
from official.io.json_files import written
from official.io.writing import replace_file
from official.training.task import Task

# -----------------------------------------------------------------------------------------------------------
# The embedded runtime


_TIMEOUT_MICROSECS = 5000  # wait of a call for others that fill the pipeline; the API's default


def make_caller(api: Any, path: str, signature: Sequence[tf.TensorSpec]) -> Callable:
    """Returns a function from the tensors of `signature` to the outputs; several threads may call it.

    Args:
      api: see `devices.load_api`.
      path: path of a program from `export`.
      signature: shapes and types of the inputs of its first stage.
    """
    runtime = api.embedded_runtime

    @tf.function(input_signature=list(signature), autograph=False)
    def answer(*tensors):
        # The first call starts the engine, later ones find it by its name.
        context = runtime.embedded_runtime_start(path, [], "bert", timeout=_TIMEOUT_MICROSECS)
        return runtime.embedded_runtime_call(list(tensors), context)

    return answer


def time_calls(
    answer: Callable, batches: Sequence[tuple], calls: int, threads: int
) -> tuple[list[float], float]:
    """Returns the seconds of each call and the total, without the preparation in the first call.

    Args:
      answer: function from `make_caller`.
      batches: inputs, used in turn.
      calls: number of calls.
      threads: number of concurrent calls: as many as the pipeline has stages fill it.
    """

    def call(number: int) -> float:
        since = time.perf_counter()
        outputs = answer(*batches[number % len(batches)])
        tf.nest.map_structure(np.asarray, outputs)  # waits for the results
        return time.perf_counter() - since

    call(0)
    since = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        secs = list(pool.map(call, range(calls)))
    return secs, time.perf_counter() - since


def summary(secs: Sequence[float], total_secs: float, batch_size: int) -> dict[str, float]:
    """Returns `batch size`, `latency`, `latency_99` and `latency_99_9` in seconds (mean and percentiles of
    the calls), and `throughput` in rows per second. Source: the keys of Graphcore's run_squad_runtime.py."""
    return {
        "batch size": batch_size,
        "latency": float(np.mean(secs)),
        "latency_99": float(np.percentile(secs, 99)),
        "latency_99_9": float(np.percentile(secs, 99.9)),
        "throughput": batch_size * len(secs) / total_secs,
    }


def check_export(config: Config, path: str) -> None:
    """Raises ConfigError for a file that is not a program, and for a run that computes nothing."""
    if not path.endswith(".poplar_exec"):
        raise ConfigError(f"--export={path}: a compiled program is called NAME.poplar_exec.")
    if config.compile_only:
        raise ConfigError("--export excludes compile_only=true, which compiles the training. Drop one.")


# -----------------------------------------------------------------------------------------------------------
# Commands


def export(config: Config, path: str) -> None:
    """Writes a run's newest checkpoint as a program: features of a micro batch -> outputs of
    `pipeline.prediction_chain`. PATH.json next to it names its inputs, outputs and step.

    Raises:
      ConfigError: without weights, or as in `program.take_devices`.
    """
    check_export(config, path)
    config = _of_one_replica(config)
    program_lib.set_numbers(config)
    task = make_task(config)
    rows = _rows(config, task, config.train_batch_size // config.num_accumulation_steps)
    devices = program_lib.take_devices(config)
    state = program_lib.make_state(config, task, devices)
    _restore(config, state)
    signature = program_lib.signature_of(rows)
    chain = pipeline.prediction_chain(task, state.model)
    parts = pipeline.make_parts(chain, devices.pipeline, signature)
    functions = pipeline.make_functions(chain, parts)
    taken = parts[0].features
    with devices.strategy.scope():
        queues = pipeline.make_queues(devices.api, rows.map(lambda row: tuple(row[name] for name in taken)))

        def program():
            pipeline.add_pipeline(config, devices.api, devices.pipeline, functions, queues)

        compiler = devices.api.application_compile_op
        compiler.experimental_application_compile_op(program, output_path=path, freeze_variables=True)
    about = {
        "inputs": {name: [signature[name].shape.as_list(), signature[name].dtype.name] for name in taken},
        "outputs": list(chain.last.gives),
        "step": state.step,
    }
    replace_file(path + ".json", written(about))
    print(f"exported step {state.step} to {path}")


def measure(config: Config, path: str, calls: int, threads: int, raw: bool) -> None:
    """Runs a program on random rows and prints its latency and throughput.

    Args:
      config: configuration of its export.
      path: path of the program.
      calls, threads: see `time_calls`.
      raw: whether to write the seconds of each call, too, to PATH.timings.json.
    """
    about = config_lib.read_json(path + ".json", "run")
    api, batches = api_lib.load_api(), _random_batches(config, about["inputs"])
    signature = [tf.TensorSpec(shape, dtype, name) for name, (shape, dtype) in about["inputs"].items()]
    answer = make_caller(api, path, signature)
    secs, total = time_calls(answer, batches, calls, threads)
    if raw:
        replace_file(path + ".timings.json", json.dumps(secs) + "\n")
    print(json.dumps(summary(secs, total, signature[0].shape[0])))


def _of_one_replica(config: Config) -> Config:
    """Returns the configuration of a program: one replica, with the micro batches of the training."""
    rows = config.train_batch_size // config.ipu.replicas
    config = config_lib.replaced(
        config,
        ipu_options=f"{config.ipu_options or ''} replicas=1 replicated_tensor_sharding=false",
        train_batch_size=rows,
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
    batches = _rows(made_up, make_task(made_up), rows).take(8)  # eight different batches
    return [tuple(batch[name] for name in inputs) for batch in batches]
