"""Measures training steps beside what is predicted of them from the machine's file.

  bert benchmark machine
  bert benchmark predictions --output=results/predictions_bert_base

Its flags and cases are those of `bert benchmark step`. Both are to be measured on a machine that does nothing
else: a peak is what it reaches undisturbed.
"""

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from official.cli import command_line, outputs
from official.cli.benchmark import step
from official.io import quiet
from official.io.errors import ConfigError


def make_parser() -> command_line.Parser:
    parser = step.make_parser()
    parser.description = "Measures training steps beside what is predicted of them from the machine's file."
    parser.set_defaults(blocks="fused,plain,packed", rounds=5)
    return parser


def table(cases: list[dict]) -> str:
    """Returns a line a case: seconds of a step, predicted and measured, and by how much they differ."""
    width = max(len(row["name"]) + 2 for row in cases)
    lines = [f"{'case':<{width}}{'measured s':>11}{'+-':>7}{'predicted s':>13}{'off':>7}"]
    for row in cases:
        lines.append(
            f"{row['name']:<{width}}{row['step_secs']:>11.3f}{row['spread']:>7.1%}"
            f"{row['predicted_step_secs']:>13.3f}{row['off']:>+7.0%}"
        )
    return "\n".join(lines)


def draw(cases: list[dict], title: str) -> bytes:
    """Returns the picture (PNG): a bar a case, predicted over measured seconds."""
    from official.reporting import measurement

    bars = [
        measurement.Bar(
            row["name"],
            1 + row["off"],
            row["spread"],
            f"{row['predicted_step_secs']:.2f} / {row['step_secs']:.2f} s",
            row["dtype"],
        )
        for row in cases
    ]
    return measurement.draw_bars(bars, title, "predicted over measured seconds of a step", 1.0, "as measured")


def measure(flags: argparse.Namespace) -> list[dict]:
    """Returns the cases of all types, each type measured in a process of its own: TensorFlow keeps the
    memory of one type's networks while the process lives, and two types may need more than there is."""
    cases = []
    for dtype in flags.dtypes:
        own = argparse.Namespace(**{**vars(flags), "dtypes": [dtype]})
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            cases += process.submit(_cases, own).result()
    return cases


def _cases(flags: argparse.Namespace) -> list[dict]:
    quiet.quieten_libraries()
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # it takes the functions of many cases for one that is traced again
    return step.measure(flags)["cases"]


def main() -> None:
    flags = step.parse_flags(make_parser())
    from official.planning import machine

    here = machine.find(flags.machine_file)
    if here is None:
        raise ConfigError(f"this machine was not measured, nothing is predicted. First: {machine.HOW}.")
    cases = [row for row in measure(flags) if row["predicted_step_secs"] is not None]
    if not cases:
        raise ConfigError("the machine's file is of other devices than the steps. Give --num_gpus=0.")
    cases = [{**row, "off": row["predicted_step_secs"] / row["step_secs"] - 1} for row in cases]
    print(
        f"{table(cases)}\n{', '.join([here.processor.name, *here.processor.instructions])}", file=sys.stdout
    )
    model = ", ".join(map(outputs.stem, flags.bert_config_file.split(",")))
    record = {"model": model, "optimizer_type": flags.optimizer_type, "rounds": flags.rounds, "cases": cases}
    outputs.write_results(flags.output, record, lambda: draw(cases, f"Predicted steps of {model}"))
