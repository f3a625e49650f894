"""Compares the memory that --plan expects of a training step with what a real step takes on the CPU.

Each case runs in a process of its own. After a step that compiles, the peak of resident memory during a step
is read from the kernel, and what was resident before it (weights, slots, program) is subtracted.

  bert benchmark memory --output=results/plan_memory.json
  bert benchmark memory --growth --output=results/recompute_memory.json
"""

import argparse
import json
import statistics

from official.cli import command_line, outputs
from official.cli.benchmark import memory_growth
from official.cli.benchmark.memory_steps import (
    ALLOCATION,
    common_arguments,
    plan_and_measure,
    run_in_process,
)
from official.io.errors import ConfigError
from official.io.writing import check_output_file

# Tokens, predictions, sequences a step, compute type, optimizer, micro batches.
CASES = (
    (128, 20, 4, "fp32", "lamb", 1),
    (128, 20, 8, "fp32", "lamb", 1),
    (128, 20, 8, "fp32", "adamw", 1),
    (128, 20, 8, "bf16", "lamb", 1),
    (512, 76, 1, "fp32", "lamb", 1),
    (512, 76, 2, "fp32", "lamb", 1),
    (512, 76, 2, "bf16", "adamw", 1),
    (128, 20, 16, "fp32", "lamb", 4),
)


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    parser.add_argument("--model", default="configs/models/bert_base.json", help="Model to measure.")
    parser.add_argument(
        "--steps", type=int, default=2, help="Steps measured of each case; the median counts."
    )
    parser.add_argument(
        "--growth",
        action="store_true",
        help="Measure what a larger batch adds with each --recompute, and the time of the step, instead.",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="With --growth: steps timed of each case, in turns."
    )
    parser.add_argument(
        "--operations",
        default="fused,plain",
        help=f"With --growth: which to measure, of {', '.join(memory_growth.OPERATIONS)}.",
    )
    parser.add_argument(
        "--time",
        choices=tuple(memory_growth.OPERATIONS),
        help="Time the steps of --growth with these operations in this process; used for them.",
    )
    parser.add_argument("--cases", help="Numbers of the cases to measure, such as 0,3; all without it.")
    parser.add_argument("--output", help="JSON file to write.")
    parser.add_argument("--overwrite", action="store_true", help="Replace --output where it is there.")
    parser.add_argument(
        "--one",
        type=int,
        choices=range(len(memory_growth.CASES)),
        help="Measure this case in this process and print the result; used for each case.",
    )
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    command_line.check_counts(flags, "steps", "rounds")
    if flags.one is not None and not flags.growth and flags.one >= len(CASES):
        raise ConfigError(f"--one={flags.one}, expected less than {len(CASES)} without --growth.")
    known = tuple(memory_growth.OPERATIONS)
    flags.operations = command_line.read_list(flags.operations, "operations", known)
    numbers = tuple(map(str, range(len(CASES))))
    flags.cases = (
        [int(number) for number in command_line.read_list(flags.cases, "cases", numbers)]
        if flags.cases
        else list(range(len(CASES)))
    )
    return flags


def case_arguments(case: tuple, model: str) -> list[str]:
    """Returns the command line of a case."""
    length, predictions, batch, dtype, optimizer, micro_batches = case
    return [
        *common_arguments(model),
        "--kernels=plain",
        f"--max_seq_length={length}",
        f"--max_predictions_per_seq={predictions}",
        f"--train_batch_size={batch}",
        f"--dtype={dtype}",
        f"--optimizer_type={optimizer}",
        f"--num_accumulation_steps={micro_batches}",
    ]


def measure(case: tuple, model: str, steps: int) -> dict:
    """Measures and plans one case, in this process."""
    from official.cli import flags

    sizes, peaks = plan_and_measure(flags.parse(case_arguments(case, model)), steps)
    measured, expected = statistics.median(peaks), sizes["gradients"] + sizes["activations"]
    # All error is put on the activations: the gradients are known exactly.
    error = sizes["activations"] / (measured - sizes["gradients"]) - 1
    names = (
        "max_seq_length",
        "max_predictions_per_seq",
        "train_batch_size",
        "dtype",
        "optimizer_type",
        "num_accumulation_steps",
    )
    return {
        **dict(zip(names, case)),
        "measured_bytes": peaks,
        "planned_bytes": expected,
        "planned": sizes,
        "error": round(expected / measured - 1, 4),
        "activations_error": round(error, 4),
    }


def table_row(result: dict) -> str:
    """Returns a case as a line of the table, in MB."""
    measured = statistics.median(result["measured_bytes"])
    return (
        f"{result['max_seq_length']:>6} {result['train_batch_size']:>5} {result['num_accumulation_steps']:>6}"
        f" {result['dtype']:>5} {result['optimizer_type']:>9} {measured / 1e6:>12,.0f}"
        f" {result['planned_bytes'] / 1e6:>11,.0f} {result['error']:>+8.1%}"
        f" {result['activations_error']:>+12.1%}"
    )


def main() -> None:
    flags = parse_flags()
    if flags.time is not None:
        print(json.dumps(memory_growth.time_operations(flags.time, flags.model, flags.rounds)))
        return
    if flags.one is not None:
        measured = (
            memory_growth.measure_case(flags.one, flags.model, flags.steps)
            if flags.growth
            else measure(CASES[flags.one], flags.model, flags.steps)
        )
        print(json.dumps(measured))
        return
    if flags.output:
        check_output_file(flags.output, "output", flags.overwrite)
    measure_growth(flags) if flags.growth else measure_cases(flags)


def measure_growth(flags) -> None:
    """Measures what a larger batch adds with each --recompute."""
    results = memory_growth.measure(flags)
    if flags.output:
        memory_growth.write(flags.output, record(flags, results))


def measure_cases(flags) -> None:
    """Measures the cases, and writes them after each: one takes minutes."""
    print("tokens batch micro dtype optimizer measured MB planned MB    error activations", flush=True)
    results = []
    for index in flags.cases:
        results.append(run_in_process([f"--one={index}", f"--steps={flags.steps}"], flags.model))
        print(table_row(results[-1]), flush=True)
        if flags.output:
            outputs.write_json(flags.output, record(flags, results))


def record(flags, results: list[dict]) -> dict:
    """Returns the record to write: the results with command, environment, allocator settings and model."""
    from official.reporting.environment import environment

    return {
        "command": command_line.as_typed(),
        "environment": environment(),
        "allocation": ALLOCATION,
        "model": flags.model,
        "results": results,
    }
