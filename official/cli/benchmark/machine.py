"""Measures this machine: matrix products by type and shape, the kernels that memory bounds, the all-reduce
and the cost of a call, for the times that plans and benchmarks predict.

  bert benchmark machine
  bert benchmark machine --dtypes=bf16 --output=machine.json

The file goes where `bert plan` finds it again: in the user's cache, a file for each processor, number of
cores and version of TensorFlow. Every shape is timed alone, several times; the fastest counts, with the cores
that it kept busy. Each type is measured in a process of its own, which takes the products that training
takes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import official  # first: sets what TensorFlow reads when it is imported
from official.cli import command_line, outputs
from official.cli.benchmark import inputs
from official.io.errors import ConfigError
from official.io.processor import processor
from official.io.writing import check_output_file

_DTYPES = ("fp32", "bf16", "fp16")
_SECS, _LEAST_ROUNDS, _MOST_ROUNDS = 0.25, 3, 20  # of a case
_OPERATIONS = 1000  # of the graph that tells what one costs
_GRADIENTS = [(30522, 768)] + [(3072, 768)] * 12  # bytes as of a replica's gradients, in tensors


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    parser.add_argument("--dtypes", default="fp32,bf16", help="Comma-separated: fp32, bf16, fp16.")
    parser.add_argument("--output", default=None, help="File to write instead of that in the cache.")
    parser.add_argument("--overwrite", action="store_true", help="Replace --output where it is there.")
    inputs.add_gpus_flag(parser)
    parser.add_argument(
        "--num_virtual_devices", type=int, default=None, help="Measure the all-reduce of so many CPUs."
    )
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", _DTYPES)
    if flags.output:
        check_output_file(flags.output, "output", flags.overwrite)
    return flags


def measure(flags: argparse.Namespace) -> dict:
    """Returns the machine's file: of one type measured here, of several each in a process of its own."""
    if len(flags.dtypes) == 1:
        return measure_type(flags)
    found: dict = {}
    for dtype in flags.dtypes:
        of_type = _in_new_process(dtype, flags)
        found = found or {**of_type, "products": [], "kernels": []}
        for rows in ("products", "kernels"):
            known = {_key(row) for row in found[rows]}
            found[rows] += [row for row in of_type[rows] if _key(row) not in known]
    return found


def _key(row: dict) -> tuple:
    return tuple(
        value for name, value in row.items() if name not in ("secs", "cores", "gflops", "gb_per_sec")
    )


def _in_new_process(dtype: str, flags: argparse.Namespace) -> dict:
    """Returns the file of one type. Raises ConfigError where its process fails."""
    given = [
        f"--{name}={value}" for name in ("num_gpus", "num_virtual_devices") if (value := getattr(flags, name))
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "machine.json")
        words = command_line.in_new_process("benchmark", "machine", f"--dtypes={dtype}", f"--output={path}")
        done = subprocess.run([*words, *given], stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise ConfigError(f"the measurement of {dtype} ended with exit code {done.returncode}.")
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def measure_type(flags: argparse.Namespace) -> dict:
    """Returns the machine's file with the products of one type."""
    (dtype,) = flags.dtypes
    official.choose_kernels(dtype)  # those of train.py
    import tensorflow as tf

    from official.planning import machine, machine_kernels
    from official.reporting import environment

    tf.get_logger().setLevel("ERROR")  # it takes many small functions for one that is traced again and again
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    all_reduce = _all_reduce(flags)
    device = "GPU" if flags.num_gpus != 0 and tf.config.list_physical_devices("GPU") else "CPU"
    here, rates = processor(), []
    for case in _cases(dtype, device):
        with tf.device(f"/{device}:0"):
            secs, busy = fastest(case.run)
        # What a GPU does fills it: nothing else goes beside it.
        cores = here.cores if device == "GPU" else min(max(busy / secs, 1.0), float(here.cores))
        rates.append(machine.Rate(case.work, secs / case.sets, cores))
        print(_line(rates[-1]), file=sys.stderr)
    call_secs, _ = fastest(machine_kernels.call_case())
    operations_secs, _ = fastest(machine_kernels.operations_case(_OPERATIONS))
    found = machine.Machine(
        here,
        device,
        machine.tensorflow_version(),
        tuple(rates),
        max(operations_secs - call_secs, 1e-6) / _OPERATIONS,
        call_secs,
        all_reduce,
    )
    return {**machine.to_json(found), "environment": environment.environment()}


def _cases(dtype: str, device: str):
    """Yields what is timed: one after the other is made, and forgotten."""
    from official.planning import machine_kernels, native_cases

    for kernel, product in machine_kernels.products():
        yield machine_kernels.product_case(kernel, product, dtype)
    for kind in dict.fromkeys(("fp32", dtype)):
        yield from machine_kernels.kernel_cases(kind)
        if device == "CPU":
            yield from native_cases.native_cases(kind)


def _all_reduce(flags: argparse.Namespace) -> float | None:
    """Returns GB/s of an all-reduce over the devices of this process; None where there is one."""
    import tensorflow as tf

    from official.distribution import strategy as strategy_lib
    from official.optimization import gradients
    from official.training import step_benchmark

    settings = {"num_gpus": flags.num_gpus, "num_virtual_devices": flags.num_virtual_devices}
    config = step_benchmark.step_config(
        inputs.read_model("configs/models/bert_base.json"),
        16,
        8 * (flags.num_virtual_devices or 1),
        "fp32",
        {**settings, "distribution_strategy": "mirrored"},
    )
    strategy = strategy_lib.make_strategy(config)
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return None

    @tf.function(autograph=False)
    def reduce():
        def own():
            tensors = [tf.ones(shape) for shape in _GRADIENTS]
            return gradients.reduce_sum(tensors)[0][0, 0]

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(own), axis=None)

    secs, _ = fastest(lambda: reduce().numpy())
    moved = 2 * (replicas - 1) / replicas * sum(4 * rows * columns for rows, columns in _GRADIENTS)
    return moved / secs / 1e9


def fastest(work: Callable[[], object]) -> tuple[float, float]:
    """Returns (seconds, seconds of the processor) of the fastest of several runs, after one that compiles.

    A machine's peak is what it reaches undisturbed.
    """
    work()
    timed: list[tuple[float, float]] = []
    began = time.perf_counter()
    while len(timed) < _LEAST_ROUNDS or (time.perf_counter() - began < _SECS and len(timed) < _MOST_ROUNDS):
        start = time.perf_counter(), time.process_time()
        work()
        timed.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return min(timed)


def _line(rate) -> str:
    work = rate.work
    if work.product:
        sizes = " x ".join(map(str, work.product[:4]))
        what, speed = (
            f"{sizes}, {work.product.transposed}",
            f"{work.product.flops / rate.secs / 1e9:8.1f} GFLOP/s",
        )
    else:
        what, speed = f"{work.bytes / 1e6:.1f} MB", f"{work.bytes / rate.secs / 1e9:8.1f} GB/s"
    return f"{work.kernel:<30}{work.dtype:<7}{what:<38}{speed:<18}{rate.cores:5.2f} cores"


def table(found: dict) -> str:
    """Returns the machine in a few lines: its processor and its best rates."""
    told = found["processor"]
    lines = [
        f"{told['name']}, {told['cores']} cores: {', '.join(told['instructions']) or 'no instructions known'}"
    ]
    for dtype in dict.fromkeys(row["dtype"] for row in found["products"]):
        for kernel in ("product", "batched product"):
            rows = [row for row in found["products"] if (row["dtype"], row["kernel"]) == (dtype, kernel)]
            speeds = [row["gflops"] for row in rows]
            lines.append(f"{dtype + ' ' + kernel:<24}{min(speeds):>8.1f} to {max(speeds):.1f} GFLOP/s")
    for row in found["kernels"]:
        if row["kernel"] in ("elementwise", "norm") and row["dtype"] == "fp32":
            size = f"{row['kernel']}, {row['bytes'] / 1e6:.0f} MB"
            lines.append(f"{size:<24}{row['gb_per_sec']:>8.1f} GB/s")
    all_reduce = found["all_reduce_gb_per_sec"]
    lines.append(
        f"{'all-reduce':<24}" + ("one device: none" if all_reduce is None else f"{all_reduce:>8.1f} GB/s")
    )
    call, operation = (found[name] * 1e6 for name in ("call_secs", "operation_secs"))
    return "\n".join([*lines, f"{'a call':<24}{call:>8.1f} us, and {operation:.2f} us an operation"])


def main() -> None:
    flags = parse_flags()
    from official.planning import machine

    found = measure(flags)
    path = flags.output or machine.default_path()
    check_output_file(path, "output", overwrite=True)
    outputs.write_json(path, found)
    print(f"{table(found)}\n{path}")
