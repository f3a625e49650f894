"""The cases of a benchmark: for each type, length and batch size, all systems take turns."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from official.cli.benchmark.inference import log_lines, measuring, models, questions, report, systems
from official.cli.benchmark.inference.latency import Block
from official.cli.benchmark.inference.measuring import Amount, Turn
from official.cli.benchmark.inference.peer_programs.asking import Batch
from official.cli.benchmark.inference.processes import Group
from official.cli.benchmark.inference.questions import Windows
from official.cli.benchmark.inference.systems import System

if TYPE_CHECKING:
    from official.inference.source import Source

_CALIBRATION = 8, 8  # batches and their sequences, for the ranges of int8
_PRODUCTS = systems.PRODUCTS.name


class Bench:
    """Shared state of all cases: flags, model, folder, and the reference logits that others are compared
    with."""

    def __init__(self, flags: argparse.Namespace, found: Source, folder: str):
        self.flags, self.found, self.folder = flags, found, folder
        os.makedirs(folder, exist_ok=True)
        self.is_real = not flags.generated_data
        if self.is_real and not flags.checkpoint:
            self.found = models.with_vocabulary(found, flags.vocab_file)
        self.amount = Amount(flags.rounds, flags.num_iter, flags.secs, flags.num_inference_thread)
        self.reference: dict[tuple, np.ndarray] = {}
        self.versions: dict[str, dict] = {}

    @functools.cached_property
    def huggingface(self) -> str:
        """Folder of the model in Hugging Face's format; writes it at the first use."""
        place = os.path.join(self.folder, "huggingface")
        return models.write_huggingface(self.found, not self.flags.checkpoint, place)

    def windows(self, length: int) -> Windows:
        """Returns the input windows for rows of `length` tokens: generated, or from real questions."""
        if not self.is_real:
            size = max(self.flags.micro_batch_size)
            return questions.generated(self.found.bert.vocab_size, length, 4 * size, models.SEED)
        every = questions.real(self.flags.predict_file, self.found, length)
        return questions.some(every, self.flags.sequences, models.SEED)

    def calibration(self, length: int) -> str:
        """Writes the batches from which int8 takes its ranges; returns their file."""
        count, size = _CALIBRATION
        windows = questions.some(self.windows(length), count * size, models.SEED + 1)
        batches = windows.batches(np.arange(len(windows.lengths_N)), size)
        return measuring.write(self.folder, f"calibration_{length}", batches)


def measure(flags: argparse.Namespace, found: Source, folder: str) -> dict[str, Any]:
    """Returns {cases, products, rounds, instances, ...}. Raises ConfigError."""
    bench = Bench(flags, found, folder)
    rows: list[dict] = []
    products: dict[str, float | None] = {}
    for dtype in flags.dtypes:
        of_dtype, products[dtype] = measure_dtype(bench, dtype)
        rows += of_dtype
    return {
        "rounds": flags.rounds,
        "instances": flags.instances,
        "num_inference_thread": flags.num_inference_thread,
        "cores": flags.cores,
        "data": os.path.basename(flags.predict_file) if bench.is_real else "generated",
        "seed": models.SEED,
        "products_gflops": products,
        "versions": bench.versions,
        "cases": rows,
    }


def systems_of(flags: argparse.Namespace, dtype: str) -> list[System]:
    """Returns the requested systems that compute in a type; says which do not."""
    from official.inference import backends

    ours = [systems.backend(name, backends.dtypes_of(name)) for name in flags.backends]
    wanted = [*ours, *(systems.PEERS[name] for name in flags.peers)]
    found = [system for system in wanted if dtype in system.dtypes]
    for system in wanted:
        if system not in found:
            measuring.say(f"{system.title}: not in {dtype}, which it does not compute in.")
    return found


def measure_dtype(bench: Bench, dtype: str) -> tuple[list[dict], float | None]:
    """Returns (result rows of a type, GFLOP/s of its bare products, None where these are not measured)."""
    rows: list[dict] = []
    seconds: list[float] = []
    with contextlib.ExitStack() as stack:
        wanted = systems_of(bench.flags, dtype)
        if wanted and dtype in systems.PRODUCTS.dtypes:
            wanted = [*wanted, systems.PRODUCTS]
        groups = {system.name: stack.enter_context(start(bench, system, dtype)) for system in wanted}
        for length in bench.flags.max_seq_length if groups else ():
            windows = bench.windows(length)
            for size in bench.flags.micro_batch_size:
                case = {"dtype": dtype, "max_seq_length": length, "batch": size}
                rows += measure_case(bench, groups, case, windows, seconds)
    peak = None
    if seconds:
        flops = groups[_PRODUCTS].versions["flops"] * bench.flags.instances
        peak = flops / float(np.median(seconds)) / 1e9
    return [finished(bench, row, peak) for row in rows], peak


def start(bench: Bench, system: System, dtype: str) -> Group:
    """Starts the instances of a system. Raises ConfigError where it cannot work."""
    flags = bench.flags
    measuring.say(f"{system.title}, {dtype} ...")
    calibration = bench.calibration(max(flags.max_seq_length)) if dtype == "int8" else None
    model = models.specification(flags, bench.found) if system.is_ours else {"model": bench.huggingface}
    specification = {**model, "dtype": dtype, "calibration": calibration, "dynamic": bench.is_real}
    if flags.num_threads is not None:
        specification["threads"] = flags.num_threads
    folder = os.path.join(bench.folder, dtype)
    group = Group(system, specification, flags.cores, folder, flags.environments)
    bench.versions[system.name] = group.versions
    return group


def measure_case(
    bench: Bench, groups: dict[str, Group], case: dict[str, Any], windows: Windows, seconds: list[float]
) -> list[dict]:
    """Returns a result row for each system and way of padding; adds the seconds of bare products to
    `seconds`."""
    turns, ways, batches = turns_of(bench, groups, case, windows)
    told = {name: turn for name, turn in turns.items() if name != _PRODUCTS}
    key = case["max_seq_length"], case["batch"]
    compared: dict[str, dict] = {}
    for name, logits in measuring.logits_of(told, bench.folder).items():
        order, lengths = ways[name]["order"], ways[name]["lengths"]
        reference = bench.reference.setdefault((*key, order), logits)
        compared |= measuring.compare({name: logits}, reference, lengths)

    def tell(name: str, number: int, block: Block) -> None:
        if name == _PRODUCTS:
            seconds.extend(block.secs)
        elif bench.flags.log_style == "popart":
            print(log_lines.popart(number, block), flush=True)
        else:
            print(log_lines.plain(report.row_of(case, name, "", {})["name"], block), flush=True)

    measured = measuring.measure(turns, bench.amount, tell)
    lengths = [int(length) for batch in batches for length in batch.lengths_N]
    shared = {"flops": models.forward_flops(bench.found.bert, lengths), "sequences": len(lengths)}
    return [
        report.row_of(
            case,
            name,
            turn.group.name,
            {
                "padding": ways[name]["padding"],
                "order": ways[name]["order"],
                **measured[name],
                **compared[name],
                "start_secs": turn.group.start_secs,
                **shared,
            },
        )
        for name, turn in told.items()
    ]


def turns_of(
    bench: Bench, groups: dict[str, Group], case: dict[str, Any], windows: Windows
) -> tuple[dict[str, Turn], dict[str, dict[str, Any]], list[Batch]]:
    """Returns ({label: turn}, {label: its padding, order and lengths}, batches in file order) of a case."""
    size, length = case["batch"], case["max_seq_length"]
    name = f"{length}_{size}"
    count = len(windows.lengths_N)
    orders: dict[str, np.ndarray] = {"file": np.arange(count)}
    if bench.flags.whole_set:
        orders["sorted"] = np.argsort(windows.lengths_N, kind="stable")
        made = {order: windows.batches(numbers, size) for order, numbers in orders.items()}
    else:
        made = {"file": questions.case_batches(windows, size, bench.is_real)}
    files = {order: measuring.write(bench.folder, f"{name}_{order}", made[order]) for order in made}
    of_order = {
        order: np.concatenate([batch.lengths_N for batch in batches]) for order, batches in made.items()
    }
    whole = len(made["file"]) if bench.flags.whole_set else None
    turns, ways = {}, {}
    for group in groups.values():
        if group.name == _PRODUCTS:
            turns[_PRODUCTS] = Turn(group, files["file"], whole=1)
            continue
        for padding, order in ways_of(group.system, bench.flags.whole_set):
            label = group.system.title + (f", {padding}, {order}" if bench.flags.whole_set else "")
            width = length if padding == "max" else None
            turns[label] = Turn(group, files[order], width, whole)
            ways[label] = {"padding": padding, "order": order, "lengths": of_order[order]}
    return turns, ways, made["file"]


def ways_of(system: System, whole_set: bool) -> list[tuple[str, str]]:
    """Returns the (padding, order) pairs measured for a system: none, longest or max; file or sorted (by
    length)."""
    if not whole_set:
        return [("none" if system.is_ours else "longest", "file")]
    if system.is_ours:
        return [("none", "file"), ("none", "sorted")]
    return [("max", "file"), ("longest", "file"), ("longest", "sorted")]


def finished(bench: Bench, row: dict[str, Any], peak: float | None) -> dict[str, Any]:
    """Returns a row completed with GFLOP/s without padding, and their share of those of bare products."""
    flops, sequences = row.pop("flops"), row.pop("sequences")
    gflops = flops / sequences * row["sequences_per_sec"] / 1e9 if flops else None
    return {
        **row,
        "instances": bench.flags.instances,
        "gflops": gflops,
        "share_of_products": gflops / peak if gflops and peak else None,
    }
