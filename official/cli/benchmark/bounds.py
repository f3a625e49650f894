"""Measures the training step beside its bounds on a CPU: what each group of operations takes, and what it
would take at the speed of bare matrix products and of the memory.

  bert benchmark bounds --shapes=128x8,512x2 --dtypes=fp32,bf16 --output=results/bounds_bert_base
  bert benchmark bounds --before=before.json --output=results/bounds_bert_base

The bound of a matrix product is the time of a bare product of its very shape and type; that of all else is
the time in which the memory moves what an operation reads and writes, each number once. Both speeds are
measured in the same run, the memory's by w -= a x over more than caches hold: what stays in a cache can be
faster than its bound. Where several operations run at once, the clock's time is divided among them, so groups
and waiting add up to the step; operations too short for the profiler count as waiting. With --before an
earlier result is drawn beside this one.
"""

import argparse
import glob
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import official  # first: sets what TensorFlow reads when it is imported
from official.cli import command_line, outputs
from official.cli.benchmark import inputs, machine, optimizer
from official.io import quiet
from official.io.errors import ConfigError
from official.io.json_files import expect, read_json

_MOST_TYPES = 8  # of a group, in the JSON
_LEAST_BOUND_SECS = 1e-4  # of a group: over a smaller bound, a factor says nothing
_TOLD_UNKNOWN = 0.01  # of a step: less is not worth a line
_VARIABLES, _SHAPE = 16, (4096, 1024)  # of the memory's test: 256 MB of weights, and as many of gradients


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    inputs.add_model_flag(parser)
    inputs.add_shapes_flag(parser, "128x8,512x2")
    parser.add_argument("--dtypes", default="fp32,bf16", help="Comma-separated: fp32, bf16, fp16.")
    parser.add_argument("--optimizer_type", default="adamw", choices=("lamb", "adamw"), help="Optimizer.")
    parser.add_argument(
        "--blocks",
        default="fused",
        choices=("fused", "plain"),
        help="Operations of the encoder's blocks.",
    )
    parser.add_argument(
        "--steps", type=int, default=5, help="Steps that are timed, and as many that are profiled."
    )
    parser.add_argument("--before", default=None, help="An earlier result of this command, the JSON file.")
    outputs.add_flags(parser)
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    outputs.check_results(flags)
    command_line.check_counts(flags, "steps")
    flags.shapes = inputs.read_shapes(flags.shapes)
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", ("fp32", "bf16", "fp16"))
    return flags


def read_before(path: str) -> dict[str, dict]:
    """Returns {name of a case: the case} of an earlier result. Raises ConfigError where it is none."""
    source = f"--before={path}"
    found = {}
    for number, case in enumerate(expect(read_json(path, "before"), "cases", list, source), 1):
        place = f"{source}: case {number}"
        for key in ("step_secs", "profiled_secs", "bound_secs"):
            expect(case, key, float, place)
        for row in expect(case, "groups", list, place):
            expect(row, "name", str, place)
            expect(row, "section", str, place)
            expect(row, "secs", float, place)
            expect(row, "bound_secs", float, place)
        found[expect(case, "case", str, place)] = case
    return found


def measure(flags: argparse.Namespace) -> list[dict]:
    """Returns the cases of all types, each type measured in a process of its own: which products TensorFlow
    takes is set once a process."""
    cases = []
    for dtype in flags.dtypes:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            cases += process.submit(measure_type, flags, dtype).result()
    return cases


def measure_type(flags: argparse.Namespace, dtype: str) -> list[dict]:
    """Returns the cases of a type, measured in this process."""
    quiet.quieten_libraries()
    official.choose_kernels(dtype)  # those of train.py
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # it takes many small functions for one that is traced again and again
    products: dict = {}
    speed = memory_speed()
    return [measure_case(flags, dtype, shape, speed, products) for shape in flags.shapes]


def memory_speed() -> float:
    """Returns the bytes that the memory moves in a second: w -= a x, 12 bytes a number."""
    import tensorflow as tf

    variables = [tf.Variable(tf.ones(_SHAPE)) for _ in range(_VARIABLES)]
    gradients = [tf.ones(_SHAPE) for _ in variables]
    secs, _ = machine.fastest(optimizer.stream(variables, gradients))
    return optimizer.BYTES["memory"] * _VARIABLES * _SHAPE[0] * _SHAPE[1] / secs


def product_secs(work) -> float:
    """Returns the seconds of a bare matrix product."""
    from official.planning import machine_kernels

    case = machine_kernels.product_case(work.kernel, work.product, work.dtype)
    return machine.fastest(case.run)[0] / case.sets


def measure_case(
    flags: argparse.Namespace, dtype: str, shape: tuple[int, int], speed: float, products: dict
) -> dict:
    """Returns a case: the step's seconds, their bound, and both of every group.

    Args:
      flags: of the command.
      dtype, shape: type, and (tokens of a sequence, sequences).
      speed: of the memory, bytes a second.
      products: {matrix product: seconds} that were timed; others are added.
    """
    from official.reporting.profiles import groups, times
    from official.tasks import TASKS
    from official.training import step_benchmark, step_bounds

    settings = {"optimizer_type": flags.optimizer_type, "num_gpus": 0, "fused_ops": flags.blocks == "fused"}
    config = step_benchmark.step_config(inputs.read_model(flags.bert_config_file), *shape, dtype, settings)
    loop = step_benchmark.make_loop(config, TASKS["pretrain"], 1)
    secs, profiled, found, parameters = profile(loop, config.model, flags.steps)
    found[groups.IDLE] = step_bounds.Group(max(0.0, profiled - sum(group.secs for group in found.values())))
    if times.UPDATE in found:
        found[times.UPDATE].bytes = optimizer.BYTES[flags.optimizer_type] * parameters
    step_bounds.time_products(found, product_secs, products)
    rows = [
        {
            "name": name,
            "section": groups.GROUPS[name],
            "secs": group.secs,
            "bound_secs": group.bound_secs(products, speed),
            "unknown_secs": group.unknown_secs,
            "count": group.count,
            "flops": group.flops,
            "bytes": group.bytes,
            "types": dict(sorted(group.types.items(), key=lambda each: -each[1])[:_MOST_TYPES]),
        }
        for name, group in found.items()
    ]
    return {
        "case": f"{dtype}, {shape[0]} x {shape[1]}",
        "step_secs": secs,
        "profiled_secs": profiled,
        "bound_secs": sum(row["bound_secs"] for row in rows),
        "memory_gb_per_sec": speed / 1e9,
        "groups": rows,
        "products": [product_row(bare, found, products[bare]) for bare in bare_products(found)],
    }


def bare_products(found: dict) -> list:
    """Returns the matrix products of all groups, each shape and type once."""
    return list(dict.fromkeys(bare for group in found.values() for bare in group.products))


def product_row(bare, found: dict, secs: float) -> dict:
    """Returns a shape of matrix products: how often it is in a step, and what it reaches by itself."""
    count = sum(group.products.get(bare, 0.0) for group in found.values())
    told = {"kernel": bare.kernel, "dtype": bare.dtype, **bare.product._asdict()}
    return {**told, "count": count, "secs": secs, "gflops": bare.product.flops / secs / 1e9}


def profile(loop, bert, steps: int) -> tuple[float, float, dict, int]:
    """Returns (median seconds of a step, mean seconds of one that is profiled, {group: what it takes}, number
    of the model's parameters)."""
    from official.planning import graph_cost
    from official.planning.executed import Executed
    from official.reporting.profiles.places import Places
    from official.training import backward_calls, step_bounds

    for _ in range(2):
        loop.run()
    secs = statistics.median(clocked(loop.run) for _ in range(steps))
    profiled, trace = traced(loop.run, steps)
    model = graph_cost.symbolic_model(loop.task.build_model)
    stages = [stage.name for stage in model.stages()]
    places = Places(trace, stages, backward_calls.stages_of(set(trace.functions.values()), stages))
    roots = [run for run, name in trace.functions.items() if "train_loop" in name]
    graph = loop.function.get_concrete_function(*loop.arguments).graph
    executed = Executed(graph, roots, trace.callers)
    found = step_bounds.add_up(trace, places, executed, step_bounds.sizes_of(bert), steps)
    parameters = sum(variable.shape.num_elements() for variable in model.trainable_variables)
    return secs, profiled, found, parameters


def clocked(work: Callable[[], object]) -> float:
    """Returns the seconds that something takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def traced(work: Callable[[], object], steps: int) -> tuple:
    """Returns (mean seconds of a step, what TensorFlow's profiler saw of `steps` calls of `work`). Raises
    ConfigError where its file cannot be read."""
    import tensorflow as tf

    from official.reporting.profiles import trace

    with tempfile.TemporaryDirectory() as folder:
        # Not the calls of Python: each has a cost.
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
        tf.profiler.experimental.start(folder, options)
        secs = clocked(lambda: [work() for _ in range(steps)]) / steps
        tf.profiler.experimental.stop()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        with open(path, "rb") as file:
            space = trace.read_space(file.read())
    if space is None:
        raise ConfigError("The profile cannot be read: this TensorFlow does not bring its format.")
    return secs, trace.read_trace(space)


def text(case: dict, before: dict | None) -> str:
    """Returns a case, a line a group; `before` is the same one of an earlier result."""
    was = {row["name"]: row["secs"] for row in before["groups"]} if before else {}
    lines = [
        f"{case['case']}: {case['step_secs']:.3f} s a step, bound {case['bound_secs']:.3f} s"
        f" ({case['step_secs'] / case['bound_secs']:.2f}x), memory {case['memory_gb_per_sec']:.1f} GB/s"
        + (f", before {before['step_secs']:.3f} s" if before else ""),
        f"  {'group':<40}{'ms':>9}{'bound ms':>10}{'over':>7}{'count':>8}" + f"{'before ms':>11}" * bool(was),
    ]
    for row in case["groups"]:
        over = f"{row['secs'] / row['bound_secs']:.2f}" if row["bound_secs"] >= _LEAST_BOUND_SECS else "-"
        lines.append(
            f"  {row['name']:<40}{row['secs'] * 1e3:>9.1f}{row['bound_secs'] * 1e3:>10.1f}{over:>7}"
            f"{row['count']:>8,.0f}" + (f"{was.get(row['name'], 0.0) * 1e3:>11.1f}" if was else "")
        )
    unknown = sum(row["unknown_secs"] for row in case["groups"])
    if unknown > _TOLD_UNKNOWN * case["profiled_secs"]:
        lines.append(
            f"  Of {unknown * 1e3:.1f} ms no bound is known: TensorFlow has rewritten the operations."
        )
    return "\n".join(lines)


def main() -> None:
    flags = parse_flags()
    earlier = read_before(flags.before) if flags.before else {}
    names = [f"{dtype}, {length} x {batch}" for dtype in flags.dtypes for length, batch in flags.shapes]
    if flags.before and not set(names) & set(earlier):
        raise ConfigError(
            f"--before={flags.before} has the cases {'; '.join(earlier) or 'none'}, and none of those"
            f" asked for: {'; '.join(names)}. Change --dtypes or --shapes."
        )
    cases = measure(flags)
    print("\n\n".join(text(case, earlier.get(case["case"])) for case in cases))
    from official.reporting import bounds_picture

    model = outputs.stem(flags.bert_config_file)
    record = {"model": model, "optimizer_type": flags.optimizer_type, "blocks": flags.blocks}
    record |= {"steps": flags.steps, "cases": cases}
    title = f"Training step of {model}, {flags.optimizer_type}, beside its bounds"
    columns = len(flags.shapes)
    outputs.write_results(flags.output, record, lambda: bounds_picture.draw(cases, earlier, title, columns))
