"""The embedded runtime: a compiled program with its weights in one file, answered by without a compiler."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official.config import Config, ConfigError

_ENGINE = "bert"
_TIMEOUT_MICROSECS = 5000  # that a call waits for others to fill the pipeline with; the API's own default


def compile_program(api: Any, program: Callable, path: str) -> None:
    """Compiles a function without arguments that adds a pipeline to a graph, and writes it with its weights.

    Args:
      api: see `api.load`.
      program: the function.
      path: of the file to write, NAME.poplar_exec.
    """
    api.application_compile_op.experimental_application_compile_op(
        program, output_path=path, freeze_variables=True
    )


def make_caller(api: Any, path: str, signature: Sequence[tf.TensorSpec]) -> Callable:
    """Returns a function from the tensors of `signature` to the outputs; several threads may call it.

    Args:
      api: see `api.load`.
      path: of a program that `compile_program` has written.
      signature: shape and type of what its first stage takes.
    """
    runtime = api.embedded_runtime

    @tf.function(input_signature=list(signature), autograph=False)
    def answer(*tensors):
        # The first call starts the engine, others of the same name find it.
        context = runtime.embedded_runtime_start(path, [], _ENGINE, timeout=_TIMEOUT_MICROSECS)
        return runtime.embedded_runtime_call(list(tensors), context)

    return answer


def measure(
    answer: Callable, batches: Sequence[tuple], calls: int, threads: int
) -> tuple[list[float], float]:
    """Returns the seconds of each call, and those of all together. What the first call prepares does not
    count.

    Args:
      answer: see `make_caller`.
      batches: that are asked, again and again.
      calls: how many.
      threads: that call at once: a pipeline is full where there are as many as it has stages.
    """

    def call(number: int) -> float:
        since = time.perf_counter()
        outputs = answer(*batches[number % len(batches)])
        tf.nest.map_structure(np.asarray, outputs)  # waits
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
    """Refuses, with ConfigError, a file that is none of a program, and a run that is to compute nothing."""
    if not path.endswith(".poplar_exec"):
        raise ConfigError(f"--export={path}: a compiled program is called NAME.poplar_exec.")
    if config.compile_only:
        raise ConfigError("--export compiles a program of its own, compile_only=true the training. Drop one.")
