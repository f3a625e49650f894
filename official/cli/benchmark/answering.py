"""Program of a measured system: loads a model, then answers batches on request.

Protocol: one JSON object per line, over standard input and output. First the input is the specification, and
the output {"start_secs", "versions"} once the model is ready. Then each line is a question, until the input
ends:
  {"batches": FILE.npz, "calls": N, "callers": K, "width": W}: K threads answer N batches each, those of the
    file in turn; output: {"secs": of each call, "total_secs", "sequences", "tokens"}
  the same with "save": FILE.npy: also the logits of the batches, float32 [2, T], first and last tokens
Outputs are also saved in timings.jsonl. Programs of other systems import the upper part of this file in their
own environments, without this project.

The specification: model (path of a checkpoint), config (keys of a bert_config.json) and seed of a random
model, dtype, threads, cores (numbers of the CPUs that the process is bound to), calibration (a file of
batches, or null), dynamic (whether batches have many shapes), and variant (specific to the system).
"""

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np


class Batch(NamedTuple):
    """Concatenated sequences: int32 [T] token ids and segments, int32 [N] number of tokens of each
    sequence."""

    ids_T: np.ndarray
    segments_T: np.ndarray
    lengths_N: np.ndarray


# (batch, tokens of a padded row, or None for those of the longest sequence) -> logits float32 [2, T]
Answer = Callable[[Batch, "int | None"], np.ndarray]

_WARM_UP_SECS = 0.3


def serve(make: Callable[[dict], tuple[Answer, dict]]) -> None:
    """Runs the protocol.

    Args:
      make: specification -> (answer function, {package: version}).
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps prints of libraries out of the answers
    specification = json.loads(sys.stdin.readline())
    os.sched_setaffinity(0, specification["cores"])  # before a library counts them
    started = time.perf_counter()
    answer, versions = make(specification)
    _say(answers, {"start_secs": time.perf_counter() - started, "versions": versions})
    for line in sys.stdin:
        answered = _answered(answer, json.loads(line))
        with open("timings.jsonl", "a", encoding="utf-8") as timings:
            _say(timings, answered)
        _say(answers, answered)


def _say(answers, values: dict) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()


def read_batches(path: str) -> list[Batch]:
    """Returns the batches of a file from `write_batches`."""
    with np.load(path) as file:
        arrays = [file[name] for name in file.files]
    return [Batch(*arrays[first : first + 3]) for first in range(0, len(arrays), 3)]


def write_batches(path: str, batches: list[Batch]) -> None:
    """Writes batches into a file."""
    np.savez(path, *(values.astype(np.int32) for batch in batches for values in batch))


def _answered(answer: Answer, question: dict) -> dict:
    batches, width = read_batches(question["batches"]), question.get("width")
    if question.get("save"):
        np.save(question["save"], np.concatenate([answer(batch, width) for batch in batches], axis=1))
    if question["calls"]:  # caches are cold after another system's turn, and its OpenMP threads may still
        until = time.perf_counter() + _WARM_UP_SECS  # spin for 0.2 s
        answer(batches[0], width)
        while time.perf_counter() < until:
            answer(batches[0], width)
    return measure(lambda batch: answer(batch, width), batches, question["calls"], question["callers"])


def measure(answer: Callable[[Batch], object], batches: list[Batch], calls: int, callers: int) -> dict:
    """Times answers.

    Args:
      answer: function to time.
      batches: batches, answered in turn.
      calls: number of calls per thread.
      callers: number of concurrent threads.

    Returns:
      secs: of each call, those of the first thread first; total_secs: from the first question to the last
      answer; sequences, tokens: numbers of both in all answers.
    """

    def ask() -> list[tuple[float, float]]:
        spans = []
        for call in range(calls):
            started = time.perf_counter()
            answer(batches[call % len(batches)])
            spans.append((started, time.perf_counter()))
        return spans

    with ThreadPoolExecutor(callers) as pool:
        others = [pool.submit(ask) for _ in range(callers - 1)]
        spans = ask()  # in this thread, which the warm-up has used
        for other in others:
            spans += other.result()
    begins, ends = zip(*spans) if spans else ((0.0,), (0.0,))
    lengths = [batches[call % len(batches)].lengths_N for call in range(calls)]
    return {
        "secs": [end - begin for begin, end in spans],
        "total_secs": max(ends) - min(begins),
        "sequences": callers * sum(map(len, lengths)),
        "tokens": callers * int(sum(map(np.sum, lengths))),
    }


# ------------------------------------------------------------------------------------------------------------
# This project


def make_ours(specification: dict):
    """Returns the answers of this project's inference, by the back end `variant`, and its version."""
    import importlib.metadata

    import official

    official.choose_kernels(specification["dtype"])
    from official.config import bert_config_from_dict
    from official.inference import backends, rows, source

    given = specification["calibration"]
    calibration = [rows.Rows(*batch) for batch in read_batches(given)] if given else []
    settings = backends.Settings(
        specification["variant"], specification["dtype"], specification["threads"], calibration
    )
    backends.begin(settings)  # before anything is computed, weights included
    if specification["model"]:
        found = source.find(specification["model"], specification["vocab_file"])
    else:
        config = bert_config_from_dict(specification["config"], "config")
        found = source.random_source(config, "answer", seed=specification["seed"])
    network = backends.build(found, "answer", settings)

    def answer(batch, width):
        outputs = network(rows.Rows(*batch))
        return outputs["start_logits"], outputs["end_logits"]

    return answer, {settings.backend: importlib.metadata.version(settings.backend)}


def make_products(specification: dict):
    """Returns a chain of bare TensorFlow matrix products for a batch, as an upper bound of the speed."""
    import official

    official.choose_kernels(specification["dtype"])
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(specification["threads"])
    from official.training import step_benchmark

    multiply, flops = step_benchmark.make_products(specification["dtype"])
    return lambda batch, width: multiply(), {"flops": flops}


if __name__ == "__main__":
    serve(lambda asked: (make_products if asked["variant"] == "products" else make_ours)(asked))
