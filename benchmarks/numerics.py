"""Trains one recipe in several types, with fused and plain operations and several seeds, and checks that all
end at the same loss.

  python benchmarks/numerics.py --model_dir=runs/numerics --output=results/numerics_bert_mini -- \\
    --flagfile=configs/wikipedia_mini.flags \\
    --num_steps_per_epoch=1000 --steps_between_eval=250

The flags after -- are for train.py; they must include evaluations, whose losses are compared. A variant
agrees with the first one if their mean final losses differ by no more than the seeds of either. The same
command resumes. Exit code 1: a variant disagrees.
"""

import dataclasses
import os
import statistics
import subprocess

import harness
from official.cli import command_line, outputs
from official.io.errors import ConfigError

VARIANTS = {
    "fp32": ("--dtype=fp32", "--kernels=auto"),
    "fp32_plain": ("--dtype=fp32", "--kernels=plain"),
    "bf16": ("--dtype=bf16", "--kernels=auto"),
    "bf16_plain": ("--dtype=bf16", "--kernels=plain"),
}


@dataclasses.dataclass(frozen=True)
class Curve:
    """Evaluation losses of one run: steps and, for each, the loss in nats."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]


class Main(harness.ChartFlags):
    """Flags of the command.

    Attributes:
      model_dir: Folder of the runs.
      variants: Comma-separated names in VARIANTS. The others are compared with the first.
      num_runs: Number of runs of each variant, 2 or more, with the seeds --seed, --seed + 1, ...
      seed: Seed of the first run of each variant.
      train_flags: After --: the recipe, flags of train.py.
    """

    POSITIONAL = ("train_flags",)
    model_dir: str
    variants: str = ",".join(VARIANTS)
    num_runs: int = 3
    seed: int = 12345
    train_flags: list[str] = []


def train(flags, variant: str, number: int) -> None:
    """Trains or resumes run `number` of a variant. Raises ConfigError if the run fails."""
    command = [
        *harness.in_new_process("train"),
        *flags.train_flags,
        "--do_eval",
        *VARIANTS[variant],
        f"--model_dir={folder(flags, variant, number)}",
        f"--seed={flags.seed + number}",
    ]
    code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if code not in (0, 1):  # 1: the target was not reached, which is irrelevant here
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
    """Returns a row per variant: its final losses, their mean and spread (maximum - minimum), the difference
    of the mean from the first variant's, the largest difference between runs of one seed, and whether it
    agrees."""
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


def main() -> int:
    flags = Main.parse()
    flags.variants = command_line.read_list(flags.variants, "variants", tuple(VARIANTS))
    if flags.num_runs < 2:
        raise ConfigError(
            f"--num_runs={flags.num_runs}, expected 2 or more: differences are compared with the spread of"
            " the seeds."
        )
    numbers = range(flags.num_runs)
    for number in numbers:  # seed by seed, so that results can be compared after an interruption
        for variant in flags.variants:
            train(flags, variant, number)
    rows = summarize(
        {
            variant: [read_curve(folder(flags, variant, number)) for number in numbers]
            for variant in flags.variants
        }
    )
    columns = [
        ("variant", "variant", ""),
        ("mean loss", "mean", ".4f"),
        ("spread", "spread", ".4f"),
        ("distance", "distance", "+.4f"),
        ("one seed", "largest_of_one_seed", ".4f"),
        ("agrees", "agrees_text", ""),
    ]
    print(outputs.table(columns, [{**row, "agrees_text": "yes" if row["agrees"] else "NO"} for row in rows]))
    record = {
        "seed": flags.seed,
        "num_runs": flags.num_runs,
        "train_flags": flags.train_flags,
        "variants": rows,
    }
    bars = [
        (row["variant"], row["mean"], row["spread"] / 2 / row["mean"], f"{row['mean']:.4f}", row["variant"])
        for row in rows
    ]
    harness.write(flags, record, bars, "Final loss of all types", "nats; mean and range of the seeds")
    return 0 if all(row["agrees"] for row in rows) else 1


if __name__ == "__main__":
    harness.main(main)
