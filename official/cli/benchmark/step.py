"""Measures the training step: sequences/s, and GFLOP/s of its matrix products over what the machine's matrix
products reach.

  bert benchmark step --bert_config_file=configs/models/bert_base.json --shapes=128x8,512x2 \\
    --dtypes=fp32,bf16 \\
    --output=results/step_bert_base

All cases and the bare matrix products take turns, several rounds, in one process; medians, with half the
distance between the quartiles beside them. A step is everything: forward, backward, clipping, optimizer,
dropout as the model says, on synthetic full-length data. Several models, comma-separated, take turns too.
"""

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import official  # first: sets what TensorFlow reads when it is imported
from official.cli import command_line, outputs
from official.cli.benchmark import inputs
from official.config import Config


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    inputs.add_model_flag(parser)
    inputs.add_shapes_flag(parser, "128x8,512x2")
    parser.add_argument("--dtypes", default="fp32,bf16", help="Comma-separated: fp32, bf16, fp16.")
    parser.add_argument(
        "--blocks",
        default="fused",
        help=(
            "Comma-separated: fused, what a run takes by itself; plain and compiled, --kernels=plain and"
            " --kernels=fused; packed, the first one on packed rows."
        ),
    )
    parser.add_argument("--optimizer_type", default="lamb", choices=("lamb", "adamw"), help="Optimizer.")
    parser.add_argument("--num_accumulation_steps", type=int, default=1, help="Micro batches of a step.")
    parser.add_argument(
        "--enable_xla", action="store_true", help="Compile forward and backward pass with XLA."
    )
    inputs.add_gpus_flag(parser)
    inputs.add_timing_flags(parser, rounds=7, steps=1)
    outputs.add_flags(parser)
    return parser


def parse_flags(parser: command_line.Parser | None = None) -> argparse.Namespace:
    flags = (parser or make_parser()).parse()
    outputs.check_results(flags)
    command_line.check_counts(flags, "rounds", "steps")
    flags.shapes = inputs.read_shapes(flags.shapes)
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", ("fp32", "bf16", "fp16"))
    flags.blocks = command_line.read_list(flags.blocks, "blocks", ("fused", "plain", "compiled", "packed"))
    return flags


def make_configs(flags: argparse.Namespace) -> dict[str, Config]:
    """Returns {name of a case: its configuration}."""
    from official.training import step_benchmark

    paths = flags.bert_config_file.split(",")
    names = ("optimizer_type", "num_accumulation_steps", "enable_xla", "num_gpus")
    settings = {name: getattr(flags, name) for name in names}

    configs = {}
    for dtype, (length, batch), path, blocks in itertools.product(
        flags.dtypes, flags.shapes, paths, flags.blocks
    ):
        parts = [outputs.stem(path)] if len(paths) > 1 else []
        parts += [dtype, f"{length} tokens x {batch}"] + ([] if blocks == "fused" else [blocks])
        kernels = {"plain": "plain", "compiled": "fused"}.get(blocks, "auto")
        own = {**settings, "kernels": kernels, "pack_on_the_fly": blocks == "packed"}
        model = inputs.read_model(path)
        configs[", ".join(parts)] = step_benchmark.step_config(model, length, batch, dtype, own)
    return configs


def measure(flags: argparse.Namespace) -> dict:
    """Returns {cases: [...], products: {dtype: GFLOP/s}} of the flags."""
    if len(flags.dtypes) == 1:  # a process has one choice
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
    timings = inputs.in_turns(works, flags.rounds)
    peaks = {dtype: timings[dtype].rate(amount) / 1e9 for dtype, (_, amount) in products.items()}
    cases = [
        {"name": name, **case(config, timings[name], flags.steps, plans[name], peaks)}
        for name, config in configs.items()
    ]
    spreads = {dtype: {"gflops": peaks[dtype], "spread": timings[dtype].spread} for dtype in flags.dtypes}
    return {"cases": cases, "products": spreads}


def case(config: Config, timing, steps: int, plan: dict, peaks: dict) -> dict:
    """Returns the result row of a case; `plan` is the plan of its configuration."""
    gflops = timing.rate(plan["flops_per_step"] * steps) / 1e9
    return {
        "dtype": config.dtype,
        "max_seq_length": config.max_seq_length,
        "train_batch_size": config.train_batch_size,
        "kernels": config.kernels,
        "packed": config.pack_on_the_fly,
        "sequences_per_sec": timing.rate(plan["sequences_per_step"] * steps),
        "step_secs": timing.median / steps,
        "spread": timing.spread,
        "gflops": gflops,
        "share_of_products": gflops / peaks[config.dtype],
        "secs": timing.secs,
    }


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
    record = {
        "model": model,
        "optimizer_type": flags.optimizer_type,
        "rounds": flags.rounds,
        "seed": 12345,
        **measured,
    }
    bars = [
        (
            row["name"],
            100 * row["share_of_products"],
            row["spread"],
            f"{row['sequences_per_sec']:.3g} seq/s, {row['gflops']:.0f} GFLOP/s",
            row["dtype"],
        )
        for row in measured["cases"]
    ]
    title = f"Training step of {model}, {flags.optimizer_type.upper()}"
    unit = "achieved GFLOP/s of the step's matrix products, % of bare products of the same type"
    limit = {"limit": 100.0, "limit_text": "bare products"}
    outputs.write_bars(flags.output, record, bars, title, unit, **limit)
