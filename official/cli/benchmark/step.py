"""Measures the training step: sequences/s, and GFLOP/s of its matrix products relative to bare matrix
products on the same machine.

  bert benchmark step --bert_config_file=configs/models/bert_base.json --shapes=128x8,512x2 \\
    --dtypes=fp32,bf16 \\
    --output=results/step_bert_base

All cases and the bare matrix products run in turns, several rounds, in one process. Results are medians, with
half the interquartile range. A step includes everything: forward, backward, clipping, optimizer, and the
model's dropout, on synthetic full-length data. Several comma-separated models also run in turns.
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from typing import Any, Literal

import official  # first: sets what TensorFlow reads when it is imported
from official.cli import command_line, configs, outputs
from official.config import Config, read_json
from official.io.errors import ConfigError


def read_model(path: str) -> dict:
    """Returns the keys of --bert_config_file. Raises ConfigError."""
    return read_json(configs.find(path), "bert_config_file")


def read_shapes(text: str) -> list[tuple[int, int]]:
    """Returns (tokens per sequence, sequences) of each LENGTHxBATCH in a comma-separated list. Raises
    ConfigError."""
    try:
        shapes = [tuple(map(int, shape.split("x"))) for shape in text.split(",")]
    except ValueError:
        shapes = []
    if not shapes or any(len(shape) != 2 or min(shape) < 1 for shape in shapes):
        raise ConfigError(f"--shapes={text}, expected LENGTHxBATCH,LENGTHxBATCH,... such as 128x8,512x2.")
    return [(length, batch) for length, batch in shapes]


def in_turns(works: dict[str, Callable[[], Any]], rounds: int, warmup_rounds: int = 2, title: str = "rounds"):
    """Times all functions once per round, with a progress bar. Returns {name: Timing}."""
    from official.io.bars import Bar
    from official.reporting import measurement

    with Bar(total=rounds + warmup_rounds, desc=title, file=sys.stderr) as progress:
        return measurement.measure_in_turns(
            works, rounds, warmup_rounds=warmup_rounds, after_round=lambda _: progress.update()
        )


class Main(command_line.Flags):
    """Flags of the command.

    Attributes:
      bert_config_file: Model.
      shapes: Comma-separated LENGTHxBATCH: tokens per sequence x sequences per step.
      dtypes: Comma-separated: fp32, bf16, fp16.
      blocks: Comma-separated: fused, the default of a run; plain and compiled, --kernels=plain and
        --kernels=fused; packed, fused on packed rows.
      optimizer_type: Optimizer.
      num_accumulation_steps: Number of micro batches per step.
      enable_xla: Compile forward and backward pass with XLA.
      num_gpus: 0 for the CPU, 1 for a GPU. Unset: a GPU if the machine has one.
      rounds: Number of timings of each case.
      steps: Number of steps per timing.
      output: Also write OUTPUT.json and the chart OUTPUT.png.
      overwrite: Replace existing files.
    """

    RANGES = {"rounds": command_line.COUNT, "steps": command_line.COUNT}
    bert_config_file: str = "configs/models/bert_base.json"
    shapes: str = "128x8,512x2"
    dtypes: str = "fp32,bf16"
    blocks: str = "fused"
    optimizer_type: Literal["lamb", "adamw"] = "lamb"
    num_accumulation_steps: int = 1
    enable_xla: bool = False
    num_gpus: int | None = None
    rounds: int = 7
    steps: int = 1
    output: str | None = None
    overwrite: bool = False


def parse_flags() -> argparse.Namespace:
    flags: argparse.Namespace = Main.parse()
    outputs.check_results(flags)
    flags.shapes = read_shapes(flags.shapes)
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", ("fp32", "bf16", "fp16"))
    flags.blocks = command_line.read_list(flags.blocks, "blocks", ("fused", "plain", "compiled", "packed"))
    return flags


def make_configs(flags: argparse.Namespace) -> dict[str, Config]:
    """Returns {name of a case: its configuration}."""
    from official.training import step_benchmark

    paths = flags.bert_config_file.split(",")
    names = ("optimizer_type", "num_accumulation_steps", "enable_xla", "num_gpus")
    settings = {name: getattr(flags, name) for name in names}
    made = {}
    for dtype, (length, batch), path, blocks in itertools.product(
        flags.dtypes, flags.shapes, paths, flags.blocks
    ):
        parts = [outputs.stem(path)] * (len(paths) > 1) + [dtype, f"{length} tokens x {batch}"]
        parts += [blocks] * (blocks != "fused")
        kernels = {"plain": "plain", "compiled": "fused"}.get(blocks, "auto")
        own = {**settings, "kernels": kernels, "pack_on_the_fly": blocks == "packed"}
        made[", ".join(parts)] = step_benchmark.step_config(read_model(path), length, batch, dtype, own)
    return made


def measure(flags: argparse.Namespace) -> dict:
    """Returns {cases: [...], products: {dtype: GFLOP/s}} of the flags."""
    if len(flags.dtypes) == 1:  # the choice is per process
        official.choose_kernels(*flags.dtypes)  # those of train.py
    from official.planning import plan
    from official.tasks import TASKS
    from official.training import step_benchmark

    make_task, configs = TASKS["pretrain"], make_configs(flags)
    plans = {name: plan.make_plan(config, make_task) for name, config in configs.items()}
    works: dict[str, Callable[[], Any]] = {
        name: step_benchmark.make_step(config, make_task, flags.steps) for name, config in configs.items()
    }
    products = {dtype: step_benchmark.make_products(dtype) for dtype in flags.dtypes}
    works |= {dtype: work for dtype, (work, _) in products.items()}
    timings = in_turns(works, flags.rounds)
    peaks = {dtype: timings[dtype].rate(amount) / 1e9 for dtype, (_, amount) in products.items()}
    cases = []
    for name, config in configs.items():
        timing = timings[name]
        gflops = timing.rate(plans[name]["flops_per_step"] * flags.steps) / 1e9
        row = {
            "name": name,
            "dtype": config.dtype,
            "max_seq_length": config.max_seq_length,
            "train_batch_size": config.train_batch_size,
            "kernels": config.kernels,
            "packed": config.pack_on_the_fly,
            "sequences_per_sec": timing.rate(plans[name]["sequences_per_step"] * flags.steps),
            "step_secs": timing.median / flags.steps,
            "spread": timing.spread,
            "gflops": gflops,
            "share_of_products": gflops / peaks[config.dtype],
        }
        cases.append({**row, "secs": timing.secs})
    spreads = {dtype: {"gflops": peaks[dtype], "spread": timings[dtype].spread} for dtype in flags.dtypes}
    return {"cases": cases, "products": spreads}


def main() -> None:
    flags = parse_flags()
    measured = measure(flags)
    columns = [
        ("case", "name", ""),
        ("s/step", "step_secs", ".3f"),
        ("seq/s", "sequences_per_sec", ".3f"),
        ("+-", "spread", ".1%"),
        ("GFLOP/s", "gflops", ".1f"),
        ("of products", "share_of_products", ".1%"),
    ]
    products = [{"name": f"matrix product {dtype}", **row} for dtype, row in measured["products"].items()]
    print(outputs.table(columns, [*measured["cases"], *products]))
    model = ", ".join(map(outputs.stem, flags.bert_config_file.split(",")))
    record = {"model": model, "optimizer_type": flags.optimizer_type, "rounds": flags.rounds, "seed": 12345}
    bars = []
    for row in measured["cases"]:
        text = f"{row['sequences_per_sec']:.3g} seq/s, {row['gflops']:.0f} GFLOP/s"
        bars.append((row["name"], 100 * row["share_of_products"], row["spread"], text, row["dtype"]))
    title = f"Training step of {model}, {flags.optimizer_type.upper()}"
    unit = "achieved GFLOP/s of the step's matrix products, % of bare products of the same type"
    limit = {"limit": 100.0, "limit_text": "bare products"}
    outputs.write_bars(flags.output, {**record, **measured}, bars, title, unit, **limit)
