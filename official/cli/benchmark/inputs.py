"""Flags that benchmarks share, of models, shapes, rounds and steps; and cases that take turns."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from official.cli import configs
from official.config import read_json
from official.io.errors import ConfigError


def add_model_flag(parser: argparse.ArgumentParser, name: str = "base", text: str = "Model.") -> None:
    """Adds --bert_config_file."""
    parser.add_argument("--bert_config_file", default=f"configs/models/bert_{name}.json", help=text)


def add_gpus_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --num_gpus."""
    text = "0 for the CPU, 1 for a GPU; unset: a GPU where there is one."
    parser.add_argument("--num_gpus", type=int, default=None, help=text)


def add_timing_flags(parser: argparse.ArgumentParser, rounds: int, steps: int | None = None) -> None:
    """Adds --rounds and, where there is a default for it, --steps."""
    parser.add_argument("--rounds", type=int, default=rounds, help="How many times every case is timed.")
    if steps is not None:
        parser.add_argument("--steps", type=int, default=steps, help="Steps of one timing.")


def add_shapes_flag(parser: argparse.ArgumentParser, default: str) -> None:
    """Adds --shapes, which `read_shapes` reads."""
    parser.add_argument(
        "--shapes",
        default=default,
        help="Comma-separated LENGTHxBATCH: tokens of a sequence x sequences of a step.",
    )


def read_model(path: str) -> dict:
    """Returns the keys of --bert_config_file. Raises ConfigError."""
    return read_json(configs.find(path), "bert_config_file")


def read_shapes(text: str) -> list[tuple[int, int]]:
    """Returns (tokens of a sequence, sequences) of each LENGTHxBATCH in a comma-separated list. Raises
    ConfigError."""
    try:
        shapes = [tuple(map(int, shape.split("x"))) for shape in text.split(",")]
    except ValueError:
        shapes = []
    if not shapes or any(len(shape) != 2 or min(shape) < 1 for shape in shapes):
        raise ConfigError(f"--shapes={text}, expected LENGTHxBATCH,LENGTHxBATCH,... such as 128x8,512x2.")
    return [(length, batch) for length, batch in shapes]


def in_turns(works: dict[str, Callable[[], Any]], rounds: int, warmup_rounds: int = 2, title: str = "rounds"):
    """Times all works once a round, under a progress bar. Returns {name: Timing}."""
    from official.io.bars import Bar
    from official.reporting import measurement

    with Bar(total=rounds + warmup_rounds, desc=title, file=sys.stderr) as progress:
        return measurement.measure_in_turns(
            works, rounds, warmup_rounds=warmup_rounds, after_round=lambda _: progress.update()
        )
