"""The lines that tell one block of calls, so that what reads the published programs' logs reads ours."""

from official.cli.benchmark.inference.latency import Block, latency_ms
from official.graphcore import log_style

STYLES = ("plain", "popart")


def plain(case: str, block: Block) -> str:
    """Returns the line of a case in the words of the published benchmarks' regular expressions.

    Source: Graphcore's examples v3.4.1, run_squad_runtime.py and benchmarks.yml.
    """
    latency = latency_ms(block.secs)
    shown = {"avg": "mean", "min": "min", "max": "max", "99p": "p99", "99p9": "p999"}
    latencies = [f"latency {name}: {latency[key]:.3f} ms" for name, key in shown.items()]
    return ", ".join([f"{case}: throughput: {block.sequences_per_sec:.3f} samples/sec", *latencies])


def popart(number: int, block: Block) -> str:
    """Returns the line of PopART's inference; `number` counts blocks from 0."""
    duration = sum(block.secs) / len(block.secs)
    return log_style.inference_line(number, duration, block.sequences_per_sec, block.secs)
