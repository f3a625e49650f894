"""Says what the training step spends its time in on a CPU: matrix products, compiled blocks, the optimizer,
and what the rest is.

  bert benchmark profile --bert_config_file=configs/models/bert_base.json --shapes=128x8 --dtype=fp32 \\
    --output=results/profile_bert_base

Times are those of TensorFlow's operations as its profiler sees them, summed over the threads that run
operations, a step. An operation that waits for a core counts as running, so profile on a quiet machine.
"""

import argparse
import collections
import glob
import tempfile
import time

import official  # first: sets what TensorFlow reads when it is imported
from official.cli import command_line, outputs
from official.cli.benchmark import inputs

PRODUCTS, ATTENTION, BLOCKS, OPTIMIZER, NORM, REST = (
    "matrix products",
    "attention's products",
    "compiled blocks",
    "optimizer",
    "gradient norm",
    "everything else",
)
# How the profiler names operations that may finish later; calls of compiled functions are among them, and run
# there.
_ASYNCHRONOUS, _CALL = "ExecutorState::ProcessAsync::Start", "PartitionedCall"
_MOST_KINDS = 12


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    inputs.add_model_flag(parser)
    inputs.add_shapes_flag(parser, "128x8")
    # One: which matrix products TensorFlow takes is set once a process.
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"), help="Compute type.")
    parser.add_argument("--optimizer_type", default="adamw", choices=("lamb", "adamw"), help="Optimizer.")
    parser.add_argument(
        "--steps", type=int, default=5, help="Steps that are profiled, after two that are not."
    )
    outputs.add_flags(parser)
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    outputs.check_results(flags)
    command_line.check_counts(flags, "steps")
    flags.shapes = inputs.read_shapes(flags.shapes)
    return flags


def group_of(node: str, kind: str) -> str:
    """Returns the group of an operation.

    Args:
      node: its name in the graph, with the scopes of who made it.
      kind: its type, such as _MklMatMul.
    """
    if "AdamW/" in node or "Lamb/" in node or kind.startswith("ResourceApply"):
        return OPTIMIZER
    if kind.endswith(_CALL):
        return BLOCKS
    if "BatchMatMul" in kind:
        return ATTENTION
    if "MatMul" in kind:
        return PRODUCTS
    return NORM if kind == "L2Loss" else REST


def operations(space):
    """Yields (node, kind, seconds) of each operation that ran; `space` is an XSpace, the profiler's file."""
    for plane in space.planes:
        for line in plane.lines:
            if not line.name.startswith("tf_Compute"):
                continue
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if name == _ASYNCHRONOUS:
                    stats = {
                        plane.stat_metadata[stat.metadata_id].name: plane.stat_metadata[stat.ref_value].name
                        for stat in event.stats
                    }
                    if stats.get("kernel_type", "").endswith(_CALL):
                        yield stats.get("name", ""), stats["kernel_type"], event.duration_ps / 1e12
                elif ":" in name and "::" not in name:
                    yield *name.rsplit(":", 1), event.duration_ps / 1e12


def summarize(space, steps: int) -> dict:
    """Returns {groups: {group: ms}, kinds: {kind: {ms, count}}}, a step, the largest first."""
    groups: collections.Counter[str] = collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    for node, kind, secs in operations(space):
        group = group_of(node, kind)
        groups[group] += 1e3 * secs / steps
        if group == REST:
            kinds[kind] += 1e3 * secs / steps
            counts[kind] += 1
    return {
        "groups": dict(groups.most_common()),
        "kinds": {
            kind: {"ms": ms, "count": counts[kind] / steps} for kind, ms in kinds.most_common(_MOST_KINDS)
        },
    }


def profile(flags, length: int, batch: int) -> dict:
    """Returns the summary of a case, with the step's seconds by the clock."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from official.tasks import TASKS
    from official.training import step_benchmark

    config = step_benchmark.step_config(
        inputs.read_model(flags.bert_config_file),
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
            space = xplane_pb2.XSpace.FromString(file.read())
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
    flags = parse_flags()
    official.choose_kernels(flags.dtype)  # those of train.py
    from official.reporting import measurement

    rows = [profile(flags, length, batch) for length, batch in flags.shapes]
    print("\n".join(map(text, rows)))
    bars = [
        measurement.Bar(
            f"{row['case']}: {name}",
            100 * ms / sum(row["groups"].values()),
            0.0,
            f"{ms:,.0f} ms",
            "products" if name in (PRODUCTS, ATTENTION) else "rest",
        )
        for row in rows
        for name, ms in row["groups"].items()
    ]
    model = outputs.stem(flags.bert_config_file)
    record = {"model": model, "optimizer_type": flags.optimizer_type, "steps": flags.steps, "cases": rows}
    outputs.write_results(
        flags.output,
        record,
        lambda: measurement.draw_bars(
            bars, f"Training step of {model}, {flags.optimizer_type}", "% of the time of all operations"
        ),
    )
