"""Compares the memory that --plan expects of a training step with what a real step takes on the CPU.

Each case runs in a process of its own. After a step that compiles, the peak of resident memory during a step
is read from the kernel, and what was resident before it (weights, slots, program) is subtracted.

  bert benchmark memory --output=results/plan_memory.json
"""

import argparse
import json
import os
import statistics
import subprocess

from official.cli import command_line, outputs
from official.config import Config, ConfigError
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
# Freed memory goes back to the system at once, so that what is resident is what is in use: no pools in
# TensorFlow or glibc.
ALLOCATION = {
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "0",
}


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    parser.add_argument("--model", default="configs/models/bert_base.json", help="Model to measure.")
    parser.add_argument(
        "--steps", type=int, default=2, help="Steps measured of each case; the median counts."
    )
    parser.add_argument("--cases", help="Numbers of the cases to measure, such as 0,3; all without it.")
    parser.add_argument("--output", help="JSON file to write.")
    parser.add_argument("--overwrite", action="store_true", help="Replace --output where it is there.")
    parser.add_argument(
        "--one",
        type=int,
        choices=range(len(CASES)),
        help="Measure this case in this process and print the result; used for each case.",
    )
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    command_line.check_counts(flags, "steps")
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
        f"--bert_config_file={model}",
        "--model_dir=unused",
        "--use_synthetic_data",
        "--distribution_strategy=one_device",
        "--num_gpus=0",
        "--fused_ops=false",
        f"--max_seq_length={length}",
        f"--max_predictions_per_seq={predictions}",
        f"--train_batch_size={batch}",
        f"--dtype={dtype}",
        f"--optimizer_type={optimizer}",
        f"--num_accumulation_steps={micro_batches}",
    ]


def resident_bytes(name: str) -> int:
    """Returns VmRSS (now) or VmHWM (highest since the last reset) of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))


def reset_highest() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def measure_steps(config: Config, steps: int) -> list[int]:
    """Returns the bytes that each of some training steps takes at its peak."""
    from official.tasks import TASKS
    from official.training import step_benchmark

    step = step_benchmark.make_step(config, TASKS[config.task], steps=1)
    peaks = []
    for _ in range(steps + 1):  # the first compiles
        reset_highest()
        before = resident_bytes("VmRSS")
        step()
        peaks.append(resident_bytes("VmHWM") - before)
    return peaks[1:]


def measure(case: tuple, model: str, steps: int) -> dict:
    """Measures and plans one case, in this process."""
    from official.cli import flags
    from official.planning import plan
    from official.tasks import TASKS

    config = flags.parse(case_arguments(case, model))
    sizes = plan.make_plan(config, TASKS[config.task])["bytes"]
    peaks = measure_steps(config, steps)
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


def measure_in_process(index: int, flags) -> dict:
    """Measures a case in a new process, whose memory nothing else has touched."""
    command = [
        *command_line.in_new_process("benchmark", "memory"),
        f"--one={index}",
        f"--model={flags.model}",
        f"--steps={flags.steps}",
    ]
    done = subprocess.run(
        command, env={**os.environ, **ALLOCATION}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ConfigError(
            f"case {index} failed:"
            f" {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}"
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


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
    if flags.one is not None:
        print(json.dumps(measure(CASES[flags.one], flags.model, flags.steps)))
        return
    if flags.output:
        check_output_file(flags.output, "output", flags.overwrite)
    print("tokens batch micro dtype optimizer measured MB planned MB    error activations", flush=True)
    results = []
    for index in flags.cases:
        results.append(measure_in_process(index, flags))
        print(table_row(results[-1]), flush=True)
        if flags.output:  # after each: a case takes minutes
            write_results(flags, results)


def write_results(flags, results: list[dict]) -> None:
    from official.reporting.environment import environment

    values = {
        "command": command_line.as_typed(),
        "environment": environment(),
        "allocation": ALLOCATION,
        "model": flags.model,
        "results": results,
    }
    outputs.write_json(flags.output, values)
