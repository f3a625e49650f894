"""Compares the predicted memory of --plan for a training step with that of a real step on the CPU, and
measures the time of each --recompute.

  python benchmarks/memory.py --output=results/plan_memory.json
  python benchmarks/memory.py --recompute --output=results/recompute_memory.json

Each case runs in a separate process. After a step that compiles, the peak resident memory during a step is
read from the kernel, minus the resident memory before it (weights, slots, program).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import harness
from official.cli import command_line, outputs
from official.config import Config
from official.io.errors import ConfigError

# Freed memory is returned to the system at once, so that resident memory equals memory in use: no pools in
# TensorFlow or glibc.
ALLOCATION = {
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "0",
}
NAMES = (
    "max_seq_length",
    "max_predictions_per_seq",
    "train_batch_size",
    "dtype",
    "optimizer_type",
    "num_accumulation_steps",
    "kernels",
    "recompute",
)
CASES = (
    (128, 20, 4, "fp32", "lamb", 1, "plain", "none"),
    (128, 20, 8, "fp32", "lamb", 1, "plain", "none"),
    (128, 20, 8, "fp32", "adamw", 1, "plain", "none"),
    (128, 20, 8, "bf16", "lamb", 1, "plain", "none"),
    (512, 76, 1, "fp32", "lamb", 1, "plain", "none"),
    (512, 76, 2, "fp32", "lamb", 1, "plain", "none"),
    (512, 76, 2, "bf16", "adamw", 1, "plain", "none"),
    (128, 20, 16, "fp32", "lamb", 4, "plain", "none"),
)
RECOMPUTE_CASES = tuple(
    (512, 76, batch, "fp32", "lamb", 1, kernels, recompute)
    for kernels in ("auto", "plain")
    for recompute in ("none", "attention", "block")
    for batch in (4, 8)
)


class Main(harness.NumbersFlags):
    """Flags of the command.

    Attributes:
      model: Model to measure.
      steps: Number of measured steps per case; the median is reported.
      recompute: Measure the cases of --recompute instead.
      cases: Numbers of the cases to measure, such as 0,3. Unset: all.
      one: JSON of a case to measure in this process; for internal use.
    """

    RANGES = {"steps": command_line.COUNT}
    model: str = "configs/models/bert_base.json"
    steps: int = 2
    recompute: bool = False
    cases: str | None = None
    one: str | None = None


def read_config(case: dict, model: str) -> Config:
    """Returns the configuration of a case: synthetic data, on one CPU."""
    from official.cli import flags

    own = [f"--{name}={str(value).lower()}" for name, value in case.items()]
    return flags.parse(
        [
            f"--bert_config_file={model}",
            "--model_dir=unused",
            "--use_synthetic_data",
            "--distribution_strategy=one_device",
            "--num_gpus=0",
            *own,
        ]
    )


def resident_bytes(name: str) -> int:
    """Returns VmRSS (now) or VmHWM (highest since the last reset) of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))


def measure(case: dict, model: str, steps: int) -> dict:
    """Plans and measures one case in this process: seconds and additional peak memory of each step."""
    from official.planning import plan
    from official.tasks import TASKS
    from official.training import step_benchmark

    config = read_config(case, model)
    planned = plan.make_plan(config, TASKS[config.task])["bytes"]
    step = step_benchmark.make_step(config, TASKS[config.task], steps=1)
    peaks, secs = [], []
    for _ in range(steps + 1):  # the first compiles
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # the highest is now
        before, began = resident_bytes("VmRSS"), time.perf_counter()
        step()
        secs.append(time.perf_counter() - began)
        peaks.append(resident_bytes("VmHWM") - before)
    measured = statistics.median(peaks[1:])
    expected = planned["gradients"] + planned["activations"]
    # The whole error is attributed to the activations, since the size of the gradients is known exactly.
    error = planned["activations"] / (measured - planned["gradients"]) - 1
    return {
        **case,
        "measured_bytes": peaks[1:],
        "planned_bytes": expected,
        "planned": planned,
        "error": round(expected / measured - 1, 4),
        "activations_error": round(error, 4),
        "secs": secs[1:],
    }


def measure_in_process(case: dict, flags: argparse.Namespace) -> dict:
    """Measures a case in a new process."""
    words = [f"--one={json.dumps(case)}", f"--steps={flags.steps}", f"--model={flags.model}"]
    command = [sys.executable, os.path.abspath(__file__), *words]
    environment = {**os.environ, **ALLOCATION}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [str(done.returncode)]
        raise ConfigError(f"{json.dumps(case)} failed: {last[0]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    flags = Main.parse()
    cases = RECOMPUTE_CASES if flags.recompute else CASES
    numbers = tuple(map(str, range(len(cases))))
    chosen = command_line.read_list(flags.cases, "cases", numbers) if flags.cases else numbers
    flags.cases = [cases[int(number)] for number in chosen]
    if flags.one:
        print(json.dumps(measure(json.loads(flags.one), flags.model, flags.steps)))
        return
    results = []
    for values in flags.cases:
        results.append(measure_in_process(dict(zip(NAMES, values)), flags))
        print(f"{len(results)} of {len(flags.cases)} cases", file=sys.stderr)
        record = {"allocation": ALLOCATION, "model": flags.model, "results": results}
        harness.write_json(flags, record)  # after each case, as one takes minutes
    rows = [
        {
            **row,
            "name": f"{row['recompute']}, {'plain' if row['kernels'] == 'plain' else 'fused'}",
            "measured": statistics.median(row["measured_bytes"]) / 1e6,
            "expected": row["planned_bytes"] / 1e6,
            "step_secs": statistics.median(row["secs"]),
        }
        for row in results
    ]
    columns = [
        ("--recompute", "name", ""),
        ("tokens", "max_seq_length", ""),
        ("batch", "train_batch_size", ""),
        ("micro", "num_accumulation_steps", ""),
        ("dtype", "dtype", ""),
        ("optimizer", "optimizer_type", ""),
        ("measured MB", "measured", ",.0f"),
        ("planned MB", "expected", ",.0f"),
        ("error", "error", "+.1%"),
        ("activations", "activations_error", "+.1%"),
        ("s/step", "step_secs", ".2f"),
    ]
    print(outputs.table(columns, rows))


if __name__ == "__main__":
    harness.main(main)
