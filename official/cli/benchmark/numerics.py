"""Trains one recipe in several types and with fused and plain operations, from several seeds, and tells
whether all end at the same loss.

  bert benchmark numerics --model_dir=runs/numerics --output=results/numerics_bert_mini -- \\
    --flagfile=configs/wikipedia_mini.flags \\
    --num_steps_per_epoch=1000 --steps_between_eval=250

What follows -- goes to train.py; it evaluates, as losses of an evaluation set are compared. A variant agrees
with the first one where their mean final losses are no further apart than the seeds of either. Started again,
the command goes on where it was. Exit code 1: one disagrees.
"""

import argparse
import dataclasses
import os
import statistics
import subprocess
from typing import Any

from official.cli import command_line, outputs
from official.io.errors import ConfigError

VARIANTS = {
    "fp32": ("--dtype=fp32", "--kernels=auto"),
    "fp32_plain": ("--dtype=fp32", "--kernels=plain"),
    "bf16": ("--dtype=bf16", "--kernels=auto"),
    "bf16_plain": ("--dtype=bf16", "--kernels=plain"),
}
_WIDTH, _HEIGHT = 12.0, 4.6  # of the picture, in inches


@dataclasses.dataclass(frozen=True)
class Curve:
    """Evaluation losses of one run: steps and, for each, the loss in nats."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    parser.add_argument("--model_dir", required=True, help="Folder of the runs.")
    parser.add_argument(
        "--variants",
        default=",".join(VARIANTS),
        help=f"Comma-separated: {', '.join(VARIANTS)}. The others are compared with the first.",
    )
    parser.add_argument(
        "--num_runs",
        type=int,
        default=3,
        help="Runs of each, 2 or more, with the seeds --seed, --seed + 1, ...",
    )
    parser.add_argument("--seed", type=int, default=12345, help="Seed of the first run of each.")
    outputs.add_flags(parser)
    parser.add_argument("train_flags", nargs="*", help="After --: the recipe, flags of train.py.")
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    flags.variants = command_line.read_list(flags.variants, "variants", tuple(VARIANTS))
    if flags.num_runs < 2:
        raise ConfigError(
            f"--num_runs={flags.num_runs}, expected 2 or more: the spread of the seeds is what differences"
            " are compared with."
        )
    outputs.check_results(flags)
    return flags


def train(flags, variant: str, number: int) -> None:
    """Trains a variant from the seed of a number, or goes on where that was interrupted. Raises ConfigError
    where the run fails."""
    command = [
        *command_line.in_new_process("train"),
        *flags.train_flags,
        "--do_eval",
        *VARIANTS[variant],
        f"--model_dir={folder(flags, variant, number)}",
        f"--seed={flags.seed + number}",
    ]
    code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if code not in (0, 1):  # 1: a target was not reached, which is no concern here
        raise ConfigError(
            f"train.py ended with exit code {code} in the variant {variant}. Its message is above."
        )


def folder(flags, variant: str, number: int) -> str:
    return os.path.join(flags.model_dir, variant, f"seed-{flags.seed + number}")


def read_curve(path: str) -> Curve:
    """Returns the evaluations of a run."""
    from official.reporting.metrics import read_metrics

    lines = [line for line in read_metrics(path) if line["split"] == "eval"]
    return Curve(tuple(line["step"] for line in lines), tuple(line["loss"] for line in lines))


def summarize(curves: dict[str, list[Curve]]) -> list[dict]:
    """Returns a row a variant: its final losses, their mean and spread (the largest less the smallest), the
    distance of the mean from the first variant's, the largest difference between runs of one seed, and
    whether it agrees."""
    rows: list[dict] = []
    for name, runs in curves.items():
        losses = [run.losses[-1] for run in runs]
        rows.append(
            {
                "variant": name,
                "final_losses": losses,
                "mean": statistics.fmean(losses),
                "spread": max(losses) - min(losses),
                "curves": [dataclasses.asdict(run) for run in runs],
            }
        )
    first = rows[0]
    for row in rows:
        row["distance"] = row["mean"] - first["mean"]
        row["largest_of_one_seed"] = max(
            abs(loss - other) for loss, other in zip(row["final_losses"], first["final_losses"])
        )
        row["agrees"] = abs(row["distance"]) <= max(row["spread"], first["spread"])
    return rows


def table(rows: list[dict]) -> str:
    lines = [
        f"{'variant':<12}{'mean loss':>10}{'spread':>9}{'distance':>10}{'one seed':>10}  agrees   final"
        " losses"
    ]
    for row in rows:
        lines.append(
            f"{row['variant']:<12}{row['mean']:>10.4f}{row['spread']:>9.4f}{row['distance']:>+10.4f}{row['largest_of_one_seed']:>10.4f}"
            f"  {'yes' if row['agrees'] else 'NO':<7} "
            f" {', '.join(f'{loss:.4f}' for loss in row['final_losses'])}"
        )
    return "\n".join(lines)


def draw(rows: list[dict]) -> bytes:
    """Draws the curves, mean and range of the seeds, and the final losses of all runs. Returns a PNG."""
    from official.reporting import palette, plots

    with plots.style():
        figure = plots.new_figure(_WIDTH, _HEIGHT)
        places = dict(left=0.06, right=0.94, wspace=0.45, bottom=0.14, top=0.82)
        curves, final = figure.subplots(1, 2, gridspec_kw=places)
        plots.write_head(curves, "Evaluation loss", "nats; mean and range of the seeds")
        plots.write_head(final, "Final loss", "nats; a dot a seed, a line the mean")
        labels = []
        for place, (row, color) in enumerate(zip(rows, palette.COLORS)):
            last = _draw_curve(curves, row, color, ("-", "--", ":", "-.")[place])
            labels.append((last, f"{row['variant']} {last:.3f}", color))
            dots = [place] * len(row["final_losses"])
            final.plot(dots, row["final_losses"], "o", color=color, markersize=5, alpha=0.8)
            final.hlines(row["mean"], place - 0.25, place + 0.25, color=color, linewidth=1.6)
        plots.finish_axes(curves, "step", max(rows[0]["curves"][0]["steps"]))
        plots.label_ends(curves, labels)
        final.set_xticks(range(len(rows)), [row["variant"] for row in rows])
        final.set_xlim(-0.5, len(rows) - 0.5)
        return plots.render(figure, "png")


def _draw_curve(axes: Any, row: dict, color: str, line: str) -> float:
    """Draws mean and range of a variant's losses. Returns the last mean."""
    steps = row["curves"][0]["steps"]
    losses = list(zip(*(curve["losses"] for curve in row["curves"])))
    means = [statistics.fmean(values) for values in losses]
    axes.plot(steps, means, color=color, linewidth=1.6, marker="o", markersize=3.2, linestyle=line)
    least, most = [min(values) for values in losses], [max(values) for values in losses]
    axes.fill_between(steps, least, most, color=color, alpha=0.12, linewidth=0)
    return means[-1]


def main() -> int:
    flags = parse_flags()
    numbers = range(flags.num_runs)
    for number in numbers:  # seed by seed: what is there after an interruption can be compared
        for variant in flags.variants:
            train(flags, variant, number)
    rows = summarize(
        {
            variant: [read_curve(folder(flags, variant, number)) for number in numbers]
            for variant in flags.variants
        }
    )
    print(table(rows))
    record = {
        "seed": flags.seed,
        "num_runs": flags.num_runs,
        "train_flags": flags.train_flags,
        "variants": rows,
    }
    outputs.write_results(flags.output, record, lambda: draw(rows))
    return 0 if all(row["agrees"] for row in rows) else 1
