"""Measures how a training step scales from one process to two, beside the prediction of the arithmetic of
plans.

  bert benchmark scaling --output=results/scaling_cpu

Every process computes on a core of its own with one thread, and talks to the other over loopback. For each
number of micro batches take turns: one process alone, two beside each other that do not talk, two that sum
their gradients. Predicted from the first, or the second, and from a bare all-reduce; nothing is fitted to the
steps of the third.
"""

import argparse
import contextlib
import json
import os
import socket
import sys
import tempfile

from official.cli import command_line, outputs
from official.cli.benchmark import inputs
from official.cli.benchmark.programs import Program
from official.io.errors import ConfigError

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scaling_worker.py")
_HOST_PORTS = range(20000, 32000)


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    inputs.add_model_flag(parser, "mini")
    parser.add_argument(
        "--shape", default="128x4", help="LENGTHxROWS: tokens of a sequence x rows of a micro batch."
    )
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "fp16"), help="Of the products.")
    parser.add_argument(
        "--accumulations", default="1,2,4,8", help="Comma-separated: micro batches of a step."
    )
    inputs.add_timing_flags(parser, rounds=7, steps=1)
    outputs.add_flags(parser)
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    outputs.check_results(flags)
    command_line.check_counts(flags, "rounds", "steps")
    shapes = inputs.read_shapes(flags.shape)
    if len(shapes) > 1:
        raise ConfigError(f"--shape={flags.shape}, expected one LENGTHxROWS, such as 128x4.")
    (flags.shape,) = shapes
    numbers = flags.accumulations.split(",")
    if not all(number.isascii() and number.isdigit() and 0 < int(number) <= 10**4 for number in numbers):
        raise ConfigError(f"--accumulations={flags.accumulations}, expected numbers from 1, such as 1,2,4,8.")
    flags.accumulations = sorted(set(map(int, numbers)))
    if len(_cores()) < 2:
        raise ConfigError("this machine has one core, which two processes would share. Use one with more.")
    return flags


def _cores() -> list[int]:
    """Returns the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _free_addresses(count: int) -> list[str]:
    """Returns loopback addresses with free ports."""
    with contextlib.ExitStack() as stack:
        found = []
        for port in _HOST_PORTS[os.getpid() % len(_HOST_PORTS) :] or _HOST_PORTS:
            taken = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                taken.bind(("localhost", port))
                found.append(f"localhost:{port}")
            if len(found) == count:
                return found
    raise ConfigError("no free port between 20000 and 31999. End a program that has one.")


def specification(flags: argparse.Namespace, core: int, joined: bool) -> dict:
    """Returns the specification that a process gets first, see `scaling_worker`."""
    length, rows = flags.shape
    settings: dict[str, object] = {"num_gpus": 0}
    if joined:
        settings["distribution_strategy"] = "multi_worker_mirrored"
    return {
        "core": core,
        "settings": settings,
        "model": inputs.read_model(flags.bert_config_file),
        "length": length,
        "rows": rows * (2 if joined else 1),
        "dtype": flags.dtype,
        "accumulations": flags.accumulations,
        "steps": flags.steps,
    }


def start_pair(
    flags: argparse.Namespace, stack: contextlib.ExitStack, joined: bool
) -> tuple[list[Program], int]:
    """Starts two processes on a core each; returns them, after each workload has run once, and the bytes of
    the gradients."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    hosts = _free_addresses(2)
    programs = []
    for rank, core in enumerate(_cores()[:2]):
        cluster = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": rank}}
        variables = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        variables |= {"TF_CONFIG": json.dumps(cluster)} if joined else {}
        place = os.path.join(folder, str(rank))
        program = Program(f"process {rank}", _PROGRAM, None, "", place, variables=variables)
        programs.append(stack.enter_context(program))
        program.ask(specification(flags, core, joined))
    return programs, [program.answer()["gradient_bytes"] for program in programs][0]


def run(programs: list[Program], work: str) -> float:
    """Runs a workload in all processes at once, and returns the seconds of the slowest."""
    for program in programs:
        program.ask({"work": work})
    return max(program.answer()["secs"] for program in programs)


def measure(flags: argparse.Namespace) -> tuple[dict[str, dict[str, list[float]]], int]:
    """Returns ({group of processes: {workload: seconds of each round}}, bytes of the gradients)."""
    from official.cli.benchmark.scaling_prediction import ALONE, APART, JOINED
    from official.io.bars import Bar
    from official.training import scaling_benchmark

    steps = [scaling_benchmark.step_name(count) for count in flags.accumulations]
    sums = [scaling_benchmark.SUM, scaling_benchmark.SMALL_SUM]
    with contextlib.ExitStack() as stack:
        apart, gradient_bytes = start_pair(flags, stack, False)
        joined, _ = start_pair(flags, stack, True)
        groups = {ALONE: (apart[:1], steps), APART: (apart, steps), JOINED: (joined, [*steps, *sums])}
        secs: dict[str, dict[str, list[float]]] = {
            name: {work: [] for work in works} for name, (_, works) in groups.items()
        }
        for _ in Bar(range(flags.rounds), desc="rounds", file=sys.stderr):
            for name, (programs, works) in groups.items():
                for work in works:
                    secs[name][work].append(run(programs, work))
    return secs, gradient_bytes


def main() -> None:
    flags = parse_flags()
    from official.cli.benchmark import scaling_prediction

    record = {
        "model": outputs.stem(flags.bert_config_file),
        "dtype": flags.dtype,
        "max_seq_length": flags.shape[0],
        "micro_batch_size": flags.shape[1],
        "rounds": flags.rounds,
        "steps": flags.steps,
        **scaling_prediction.results(flags.accumulations, flags.shape[1], flags.steps, *measure(flags)),
    }
    print(scaling_prediction.table(record))
    outputs.write_results(flags.output, record, lambda: scaling_prediction.draw(record))
