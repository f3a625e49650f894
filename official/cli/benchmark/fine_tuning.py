"""Measures fine-tuning on SQuAD or GLUE as whole processes, beside Hugging Face's Trainer.

  bert benchmark fine-tuning --make_environments --work_dir=runs/fine_tuning --train_steps=100 \\
    --output=results/fine_tuning_squad -- --config=squad_minilm --train_file=train-v1.1.json \\
    --predict_file=dev-v1.1.json --vocab_file=MODEL/vocab.txt --init_checkpoint=MODEL/model.safetensors

What follows -- is the recipe, flags of train.py; the Trainer takes the same. Every run is a process: it reads
the data, makes features of them, trains --train_steps updates and writes one checkpoint. Nothing is evaluated
while the clock runs. Then the checkpoint is scored by this project's evaluation, whoever has trained it.

All systems take turns, seed by seed. Started again, the command goes on with the first run that is not done.
"""

import argparse
import itertools
import os
import statistics
import sys

from official.cli import command_line, outputs
from official.cli import flags as flags_lib
from official.cli.benchmark import environments as environments_lib
from official.cli.benchmark import fine_tuning_runs as runs_lib
from official.cli.benchmark import peers as peers_lib
from official.cli.benchmark.fine_tuning_runs import SYSTEMS, Run
from official.config import Config, ConfigError, with_data

# What the Trainer does not do otherwise: setting -> its value.
_NEEDED = {
    "optimizer_type": "adamw",
    "lr_schedule": "polynomial",
    "decay_from": "warmup_end",
    "poly_power": 1.0,
    "end_learning_rate": 0.0,
    "num_accumulation_steps": 1,
    "num_runs": 1,
    "pack": False,
}
_SAME_EPSILON = 1e-8  # so small beside the roots that it is no matter where it stands


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add("--work_dir", required=True, help="Folder of the runs: what is done there is not done again.")
    add("--train_steps", type=int, default=100, help="Updates of every run; the schedule spans them.")
    add("--peers", default=",".join(SYSTEMS), help="Comma-separated systems, ours among them.")
    add("--dtypes", default="fp32,bf16", help="Comma-separated: fp32, bf16.")
    add("--seeds", type=int, default=3, help="Runs of each system and type, from --seed on.")
    add("--seed", type=int, default=12345, help="The first seed.")
    parser.add_bool("scores", True, "Score every checkpoint.")
    environments_lib.add_flags(parser)
    outputs.add_flags(parser)
    add("train_flags", nargs="*", help="After --: the recipe, flags of train.py.")
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    outputs.check_results(flags)
    command_line.check_counts(flags, "train_steps", "seeds")
    flags.peers = command_line.read_list(flags.peers, "peers", tuple(SYSTEMS))
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", ("fp32", "bf16"))
    return flags


def read_recipe(train_flags: list[str], train_steps: int, scored: bool = False) -> Config:
    """Returns the recipe behind `--` as a configuration of that many updates. Raises ConfigError for one that
    is wrong, or that the Trainer cannot follow, or that lacks what scores are made of."""
    common = runs_lib.common_flags(train_steps)
    config = flags_lib.parse([*train_flags, *common, "--model_dir=unused"])
    if config.task == "pretrain":
        raise ConfigError("behind --: --task=pretrain. Give --task=squad or --task=glue.")
    for name, value in _NEEDED.items():
        if config[name] != value:
            raise ConfigError(
                f"behind --: --{name}={config[name]} is not what Hugging Face's Trainer does. Give"
                f" --{name}={str(value).lower()}."
            )
    if scored:
        flags_lib.parse([*train_flags, *runs_lib.scoring_flags("unused"), "--model_dir=unused"])
    return with_data(config, None)  # the steps of the warm-up follow


def runs_of(flags: argparse.Namespace, config: Config) -> list[Run]:
    """Returns all runs, seed by seed, so that a slow episode of the machine hits all systems."""
    seeds = range(flags.seed, flags.seed + flags.seeds)
    return [
        Run(
            name,
            dtype,
            seed,
            tuple(flags.train_flags),
            config,
            flags.scores,
            flags.environments,
            flags.work_dir,
        )
        for seed, dtype, name in itertools.product(seeds, flags.dtypes, flags.peers)
    ]


def rows_of(runs: list[Run], found: list[dict]) -> list[dict]:
    """Returns a row for each type and system: rates of whole processes and of their training alone, medians
    over the seeds, and scores."""
    from official.reporting.measurement import Timing

    rows = []
    for dtype, system in dict.fromkeys((run.dtype, run.system) for run in runs):
        mine = [each for run, each in zip(runs, found) if (run.dtype, run.system) == (dtype, system)]
        config = runs[0].config
        samples = config.train_batch_size * config.num_steps_per_epoch
        whole = Timing(tuple(each["whole_secs"] for each in mine))
        training = Timing(tuple(each["training_secs"] for each in mine))
        scores = [each["score"] for each in mine if each["score"] is not None]
        rows.append(
            {
                "dtype": dtype,
                "peer": system,
                "sequences_per_sec": whole.rate(samples),
                "spread": whole.spread,
                "training_sequences_per_sec": training.rate(samples),
                "whole_secs": whole.secs,
                "cpu_secs": [each["cpu_secs"] for each in mine],
                "training_secs": training.secs,
                "data_sequences": mine[0]["data_sequences"],
                "mean_length": mine[0]["data_tokens"] / mine[0]["data_sequences"],
                "losses": [each["loss"] for each in mine],
                "metric": mine[0]["metric"],
                "scores": scores,
                "score_mean": statistics.fmean(scores) if scores else None,
                "score_spread": max(scores) - min(scores) if len(scores) > 1 else None,
            }
        )
    return rows


def compare(rows: list[dict]) -> list[dict]:
    """Returns a comparison of each of ours with each way of the Trainer, type by type: how many times as fast
    whole processes and their training are, and whether the mean scores are no further apart than the seeds of
    either (None: no scores of several seeds)."""
    pairs = itertools.product(rows, rows)
    return [
        {
            "dtype": ours["dtype"],
            "ours": ours["peer"],
            "peer": peer["peer"],
            "ratio": ours["sequences_per_sec"] / peer["sequences_per_sec"],
            "training_ratio": ours["training_sequences_per_sec"] / peer["training_sequences_per_sec"],
            "scores_agree": _agree(ours, peer),
        }
        for ours, peer in pairs
        if SYSTEMS[ours["peer"]].is_ours
        and not SYSTEMS[peer["peer"]].is_ours
        and ours["dtype"] == peer["dtype"]
    ]


def _agree(one: dict, other: dict) -> bool | None:
    if one["score_spread"] is None or other["score_spread"] is None:
        return None
    return abs(one["score_mean"] - other["score_mean"]) <= max(one["score_spread"], other["score_spread"])


def table(rows: list[dict], comparison: list[dict]) -> str:
    """Returns a line a row, then a line a comparison."""
    lines = [
        f"{'type':<6}{'system':<43}{'seq/s':>8}{'+-':>7}{'training':>10}{'in all s':>10}{'loss':>8}"
        f"{'score':>9}{'spread':>9}"
    ]
    for row in rows:
        score, spread = (
            f"{row[name]:.4f}" if row[name] is not None else "-" for name in ("score_mean", "score_spread")
        )
        lines.append(
            f"{row['dtype']:<6}{SYSTEMS[row['peer']].title:<43}{row['sequences_per_sec']:>8.2f}"
            f"{row['spread']:>7.1%}{row['training_sequences_per_sec']:>10.2f}"
            f"{statistics.median(row['whole_secs']):>10.1f}{statistics.fmean(row['losses']):>8.4f}{score:>9}{spread:>9}"
        )
    words = {True: ", scores agree", False: ", SCORES DIFFER", None: ""}
    lines += [
        f"{each['dtype']}: {SYSTEMS[each['ours']].title}: {each['ratio']:.2f} x {SYSTEMS[each['peer']].title}"
        f" (training alone {each['training_ratio']:.2f}){words[each['scores_agree']]}"
        for each in comparison
    ]
    return "\n".join(lines)


def draw(rows: list[dict], title: str) -> bytes:
    """Returns the picture (PNG): a bar a row."""
    from official.reporting import measurement

    bars = [
        measurement.Bar(
            f"{row['dtype']}: {SYSTEMS[row['peer']].title}",
            row["sequences_per_sec"],
            row["spread"],
            f"{row['sequences_per_sec']:.3g}; training alone {row['training_sequences_per_sec']:.3g}",
            "ours" if SYSTEMS[row["peer"]].is_ours else "peers",
        )
        for row in rows
    ]
    return measurement.draw_bars(bars, title, "sequences per second of the whole process")


def _tell(run: Run, found: dict) -> None:
    """Prints how a run went."""
    score = "" if found["score"] is None else f", {found['metric']} {found['score']:.4f}"
    print(
        f"{run.dtype}, {SYSTEMS[run.system].title}, seed {run.seed}: {found['whole_secs']:.1f} s, training"
        f" {found['training_secs']:.1f} s, of all cores {found['cpu_secs']:.1f} s, loss {found['loss']:.4f}"
        f"{score}",
        file=sys.stderr,
        flush=True,
    )


def _tell_of_epsilon(epsilon: float) -> None:
    """Says it where scores would differ because of epsilon."""
    if epsilon > _SAME_EPSILON:
        print(
            f"--epsilon={epsilon:g}: ours adds it to the uncorrected root, PyTorch to the corrected one, and"
            f" scores of short runs differ by it. Behind -- give --epsilon={_SAME_EPSILON:g}, with which both"
            " train the same.",
            file=sys.stderr,
        )


def main() -> None:
    flags = parse_flags()
    config = read_recipe(flags.train_flags, flags.train_steps, flags.scores)
    runs = runs_of(flags, config)
    if any(not SYSTEMS[name].is_ours for name in flags.peers):
        runs_lib.huggingface_folder(config)
        if flags.scores:
            _tell_of_epsilon(config.epsilon)
        peer = peers_lib.PEERS["huggingface"]
        environment = environments_lib.Environment(peer.environment or "", peer.requirements)
        environments_lib.prepare([("huggingface", environment)], flags.environments, flags.make_environments)
    for run in runs:  # all folders before the first run: an hour later would be late
        runs_lib.done(run)
    os.makedirs(flags.work_dir, exist_ok=True)
    found = []
    for run in runs:
        found.append(runs_lib.finished(run))
        _tell(run, found[-1])
    rows = rows_of(runs, found)
    comparison = compare(rows)
    print(table(rows, comparison))
    task = config.glue_task if config.task == "glue" else "SQuAD"
    record = {
        "task": config.glue_task or config.task,
        "train_steps": flags.train_steps,
        "train_batch_size": config.train_batch_size,
        "max_seq_length": config.max_seq_length,
        "seeds": flags.seeds,
        "seed": flags.seed,
        "requirements": peers_lib.PEERS["huggingface"].requirements,
        "comparison": comparison,
        "cases": rows,
    }
    title = f"Fine-tuning on {task}, {flags.train_steps} steps of {config.train_batch_size} sequences"
    outputs.write_results(flags.output, record, lambda: draw(rows, title))
