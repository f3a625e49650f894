"""Timed calls of inference: throughput and latency, and lines of a log that tell them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from official.graphcore import popart_lines
from official.reporting.measurement import Timing

_PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9}


class Block(NamedTuple):
    """Calls that were timed together, of all instances.

    Attributes:
      secs: of each call.
      sequences_per_sec, tokens_per_sec: of the instances together: each one's own rate, summed.
    """

    secs: tuple[float, ...]
    sequences_per_sec: float
    tokens_per_sec: float


def block_of(answers: Sequence[dict]) -> Block:
    """Returns the block of the instances' answers, see `answering.measure`."""
    return Block(
        tuple(secs for answer in answers for secs in answer["secs"]),
        sum(answer["sequences"] / answer["total_secs"] for answer in answers),
        sum(answer["tokens"] / answer["total_secs"] for answer in answers),
    )


def latency_ms(secs: Sequence[float]) -> dict[str, float]:
    """Returns {mean, min, max, p50, p99, p999} of calls in milliseconds. Between two calls, percentiles are
    interpolated linearly, as NumPy does it."""
    values = np.asarray(secs, np.float64) * 1000
    percentiles = {name: float(np.percentile(values, share)) for name, share in _PERCENTILES.items()}
    extremes = {"min": float(values.min()), "max": float(values.max())}
    return {"mean": float(values.mean()), **extremes, **percentiles}


def summary(blocks: Sequence[Block]) -> dict:
    """Returns the statistics of a case's blocks.

    Returns:
      sequences_per_sec, tokens_per_sec: medians over the blocks; spread: half the distance between the
      quartiles of the first, over it; latency_ms of all calls; calls: their number.
    """
    rates = Timing(tuple(block.sequences_per_sec for block in blocks))
    secs = [secs for block in blocks for secs in block.secs]
    return {
        "sequences_per_sec": rates.median,
        "tokens_per_sec": statistics.median(block.tokens_per_sec for block in blocks),
        "spread": rates.spread,
        "latency_ms": latency_ms(secs),
        "calls": len(secs),
    }


def plain_line(case: str, block: Block) -> str:
    """Returns the line of a case in the words of the published benchmarks' regular expressions.

    Source: Graphcore's examples v3.4.1, run_squad_runtime.py and benchmarks.yml.
    """
    latency = latency_ms(block.secs)
    shown = {"avg": "mean", "min": "min", "max": "max", "99p": "p99", "99p9": "p999"}
    latencies = [f"latency {name}: {latency[key]:.3f} ms" for name, key in shown.items()]
    return ", ".join([f"{case}: throughput: {block.sequences_per_sec:.3f} samples/sec", *latencies])


def popart_line(number: int, block: Block) -> str:
    """Returns the line of PopART's inference; `number` counts blocks from 0."""
    duration = sum(block.secs) / len(block.secs)
    return popart_lines.inference_line(number, duration, block.sequences_per_sec, block.secs)
