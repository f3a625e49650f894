"""How much memory a larger batch adds to a training step with each --recompute, beside the plan, and what
that costs in time.

Memory is measured as `memory` does it, each case in a process of its own. Times are those of steps in turns
in one process, with the usual allocation of memory.
"""

import itertools
import statistics
import sys
from typing import Any

from official.cli import outputs
from official.cli.benchmark.memory_steps import common_arguments, plan_and_measure, run_in_process
from official.config import Config

BATCHES = (4, 8)  # sequences of a step
# Name -> the flags of it. XLA compiles a step as a whole.
OPERATIONS = {
    "fused": ["--kernels=auto"],
    "plain": ["--kernels=plain"],
    "xla": ["--kernels=auto", "--enable_xla=true"],
}
RECOMPUTE = ("none", "attention", "block")
CASES = tuple(itertools.product(OPERATIONS, RECOMPUTE))


def case_arguments(operations: str, recompute: str, batch: int, model: str) -> list[str]:
    """Returns the command line of a case: BERT on 512 tokens in fp32."""
    return [
        *common_arguments(model),
        *OPERATIONS[operations],
        f"--recompute={recompute}",
        "--max_seq_length=512",
        "--max_predictions_per_seq=76",
        f"--train_batch_size={batch}",
        "--optimizer_type=lamb",
    ]


def read_config(operations: str, recompute: str, batch: int, model: str) -> Config:
    from official.cli import flags

    return flags.parse(case_arguments(operations, recompute, batch, model))


def measure_case(index: int, model: str, steps: int) -> dict:
    """Measures and plans one case with both batches, in this process."""
    operations, recompute = CASES[index]
    found = [plan_and_measure(read_config(operations, recompute, batch, model), steps) for batch in BATCHES]
    planned = [sizes["gradients"] + sizes["activations"] for sizes, _ in found]
    measured = [statistics.median(peaks) for _, peaks in found]
    growth, expected = measured[1] - measured[0], planned[1] - planned[0]
    return {
        "operations": operations,
        "recompute": recompute,
        "measured_bytes": [peaks for _, peaks in found],
        "planned_bytes": planned,
        "measured_growth_bytes": growth,
        "planned_growth_bytes": expected,
        "error": round(expected / growth - 1, 4),
    }


def time_operations(operations: str, model: str, rounds: int) -> dict[str, list[float]]:
    """Returns {--recompute: seconds of a step with the smaller batch, a value per round}."""
    from official.reporting import measurement
    from official.tasks import TASKS
    from official.training import step_benchmark

    steps: dict[str, Any] = {}
    for recompute in RECOMPUTE:
        config = read_config(operations, recompute, BATCHES[0], model)
        steps[recompute] = step_benchmark.make_step(config, TASKS[config.task], steps=1)
    timings = measurement.measure_in_turns(steps, rounds)
    return {name: list(timing.secs) for name, timing in timings.items()}


def slowdowns(secs: dict[str, list[float]]) -> dict[str, float]:
    """Returns {--recompute: the median over the rounds of its time over that of `none` in the same round}."""
    return {
        name: statistics.median(own / kept for own, kept in zip(values, secs["none"]))
        for name, values in secs.items()
    }


def measure(flags) -> list[dict]:
    """Measures all cases, each in a process of its own, and prints a line each."""
    results = []
    print("operations recompute    measured planned MB   error slowdown", flush=True)
    for operations in flags.operations:
        # Before the others: nothing of a process but its times counts.
        secs = run_in_process(["--time", operations, f"--rounds={flags.rounds}"], flags.model, usual=True)
        slower = slowdowns(secs)
        for index, case in enumerate(CASES):
            if case[0] != operations:
                continue
            result = run_in_process([f"--one={index}", "--growth", f"--steps={flags.steps}"], flags.model)
            name = result["recompute"]
            results.append({**result, "slowdown": round(slower[name], 4), "secs": secs[name]})
            print(table_row(results[-1]), flush=True)
    return results


def table_row(result: dict) -> str:
    """Returns a case as a line of the table, in MB."""
    return (
        f"{result['operations']:>10} {result['recompute']:>9} {result['measured_growth_bytes'] / 1e6:>11,.0f}"
        f" {result['planned_growth_bytes'] / 1e6:>10,.0f} {result['error']:>+7.1%} {result['slowdown']:>8.3f}"
    )


def draw(results: list[dict]) -> bytes:
    """Returns the picture (PNG): a bar a case."""
    from official.reporting import measurement

    sequences = BATCHES[1] - BATCHES[0]
    bars = []
    for result in results:
        size = result["measured_growth_bytes"] / sequences / 1e6
        planned = result["planned_growth_bytes"] / sequences / 1e6
        text = f"planned {planned:,.0f}, time x {result['slowdown']:.2f}"
        name = f"{result['operations']}, {result['recompute']}"
        bars.append(measurement.Bar(name, size, 0.0, text, result["operations"]))
    return measurement.draw_bars(
        bars, "Memory of one more sequence of 512 tokens", "MB a sequence, by --recompute"
    )


def write(path: str, record: dict) -> None:
    """Writes the JSON, and the picture beside it."""
    outputs.write_json(path, record)
    outputs.write_file(path.removesuffix(".json") + ".png", draw(record["results"]))
    print(f"wrote {path} and the picture beside it", file=sys.stderr)
