"""Profiles the training step on a CPU: time in matrix products, compiled blocks, the optimizer, and other
operations.

  python benchmarks/step_profile.py --bert_config_file=configs/models/bert_base.json --shapes=128x8 \\
    --dtype=fp32 --output=results/profile_bert_base

Times are those of TensorFlow's operations in its profiler, summed over the threads that run operations, per
step. An operation that waits for a core counts as running, so profile on an idle machine.
"""

import glob
import tempfile
import time
from typing import Literal

import harness
import official
from official.cli import command_line, outputs
from official.io.errors import ConfigError
from official.reporting import profile as profile_lib

_MOST_KINDS = 12


class Main(harness.ModelFlag, harness.ShapesFlag, harness.ChartFlags):
    """Flags of the command.

    Attributes:
      dtype: Compute type. Only one, since TensorFlow's matrix products are chosen once per process.
      optimizer_type: Optimizer.
      steps: Number of profiled steps, after two others.
    """

    RANGES = {"steps": command_line.COUNT}
    shapes: str = "128x8"
    dtype: Literal["fp32", "bf16"] = "fp32"
    optimizer_type: Literal["lamb", "adamw"] = "adamw"
    steps: int = 5


def summarize(space, steps: int) -> dict:
    """Returns {groups: {kind of operation: ms}, kinds: {type of the rest: {ms, count}}} per step, the largest
    first; `space` is an XSpace, the profiler's file."""
    found = profile_lib.read_trace(space)
    rows = profile_lib.add_up(found, profile_lib.Places(found, (), {}), steps)
    rest = [row for row in rows if row["kind"] == profile_lib.REST]
    types = profile_lib.grouped(rest, "type")[:_MOST_KINDS]
    return {
        "groups": {row["kind"]: row["ms_per_step"] for row in profile_lib.grouped(rows, "kind")},
        "kinds": {row["type"]: {"ms": row["ms_per_step"], "count": row["count_per_step"]} for row in types},
    }


def profile(flags, length: int, batch: int) -> dict:
    """Returns the summary of a case, with the wall-clock seconds of a step."""
    import tensorflow as tf

    from official.tasks import TASKS
    from official.training import step_benchmark

    config = step_benchmark.step_config(
        harness.read_model(flags.bert_config_file),
        length,
        batch,
        flags.dtype,
        {"optimizer_type": flags.optimizer_type, "num_gpus": 0},
    )
    step = step_benchmark.make_step(config, TASKS["pretrain"], 1)
    for _ in range(2):
        step()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        started = time.perf_counter()
        for _ in range(flags.steps):
            step()
        secs = (time.perf_counter() - started) / flags.steps
        tf.profiler.experimental.stop()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        with open(path, "rb") as file:
            space = profile_lib.read_space(file.read())
    if space is None:
        raise ConfigError("The profile cannot be read: this TensorFlow lacks the profile's format.")
    return {"case": f"{flags.dtype}, {length} x {batch}", "step_secs": secs, **summarize(space, flags.steps)}


def text(row: dict) -> str:
    total = sum(row["groups"].values())
    lines = [f"{row['case']}: {row['step_secs']:.3f} s a step"]
    lines += [f"  {name:<24}{ms:>10.1f} ms{ms / total:>8.1%}" for name, ms in row["groups"].items()]
    lines += [
        f"    {kind:<34}{value['ms']:>8.1f} ms  {value['count']:,.0f} times"
        for kind, value in row["kinds"].items()
    ]
    return "\n".join(lines)


def main() -> None:
    flags = Main.parse()
    flags.shapes = harness.read_shapes(flags.shapes)
    official.choose_kernels(flags.dtype)  # those of train.py
    rows = [profile(flags, length, batch) for length, batch in flags.shapes]
    print("\n".join(map(text, rows)))
    bars = [
        (
            f"{row['case']}: {name}",
            100 * ms / sum(row["groups"].values()),
            0.0,
            f"{ms:,.0f} ms",
            "products" if name in (profile_lib.PRODUCTS, profile_lib.ATTENTION) else "rest",
        )
        for row in rows
        for name, ms in row["groups"].items()
    ]
    model = outputs.stem(flags.bert_config_file)
    record = {"model": model, "optimizer_type": flags.optimizer_type, "steps": flags.steps, "cases": rows}
    title = f"Training step of {model}, {flags.optimizer_type}"
    harness.write(flags, record, bars, title, "% of the time of all operations")


if __name__ == "__main__":
    harness.main(main)
