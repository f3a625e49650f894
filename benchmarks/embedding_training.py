"""Compares the training of embeddings with sentence-transformers: scores of several seeds, and steps per
second.

  python benchmarks/embedding_training.py --data_dir=data --init_checkpoint=MODEL --work_dir=runs/embedding \\
    --make_environments --output=results/embedding_training.json

Three inputs are made of public data in --data_dir: pairs with scores of STS-B, pairs of MRPC that say the
same (both trained on the training set and scored on the development set), and the questions of QNLI's
development set with the sentences that answer them, a fifth of which is held out by a hash of the question.
Each trains MODEL, a folder of Hugging Face's, and BERT-tiny of random weights with MODEL's vocabulary, in one
command of ours, `train.py --task=embed`, and with the same rows, batch, epochs, rate, schedule, decay, length
and temperature in sentence-transformers, whose evaluators score its vectors. Both sides run one after the
other, seed by seed; started again, the command continues with the first unfinished run.
"""

import argparse
import dataclasses
import itertools
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import harness
import own_data
from official.cli import command_line, outputs
from official.config import ConfigError
from official.io import json_files

SENTENCE_TRANSFORMERS = harness.Environment(
    "sentence_transformers",
    (
        "torch==2.13.0",
        "transformers==5.24.0",
        "accelerate==1.15.0",
        "datasets==5.2.0",
        "sentence-transformers==5.7.0",
        "scikit-learn==1.9.1",
    ),
)
_SIDES = ("ours", "sentence_transformers")
_MODELS = ("minilm", "tiny")
_TINY = os.path.join("configs", "models", "bert_tiny.json")
_LENGTH, _EPOCHS, _HELD_OUT = 128, 2, 0.2
_RECIPE = (
    "train_batch_size learning_rate weight_decay_rate beta_1 beta_2 epsilon clip_norm max_seq_length"
    " num_train_epochs temperature"
).split()
_COMMON = (
    "--task=embed",
    "--do_train",
    "--do_eval",
    "--pooling=mean",
    f"--num_train_epochs={_EPOCHS}",
    f"--max_seq_length={_LENGTH}",
    "--decay_from=warmup_end",
    "--epsilon=1e-8",
    "--steps_between_eval=1000000",
)

# ------------------------------------------------------------------------------------------------------------
# Inputs: JSON lines with the texts, and the score, of each row


def _similarity(data_dir: str) -> dict[str, list[dict]]:
    columns = ("sentence1", "sentence2", "score")
    found = own_data.glue_rows(data_dir, "STS-B", columns, dict.fromkeys(("train", "dev"), 10_000))
    return {
        name: [{"texts": row[:2], "score": float(row[2])} for row in rows]
        for name, rows in zip(("train", "eval"), found.values())
    }


def _paraphrases(data_dir: str) -> dict[str, list[dict]]:
    columns = ("#1 String", "#2 String", "Quality")
    found = own_data.glue_rows(data_dir, "MRPC", columns, dict.fromkeys(("train", "dev"), 10_000))
    return {
        name: [{"texts": row[:2]} for row in rows if row[2] == "1"]
        for name, rows in zip(("train", "eval"), found.values())
    }


def _questions(data_dir: str) -> dict[str, list[dict]]:
    from official.data.tables import texts

    columns = ("question", "sentence", "label")
    found: dict[str, list[dict]] = {"train": [], "eval": []}
    for row in own_data.glue_rows(data_dir, "QNLI", columns, {"dev": 10_000})["dev"]:
        if row[2] == "entailment":
            is_held_out = texts.share_of(row[:1]) < _HELD_OUT
            found["eval" if is_held_out else "train"].append({"texts": row[:2]})
    return found


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of data: its title, () -> its rows, its main score, and others that both sides have."""

    title: str
    read: Callable[[str], dict[str, list[dict]]]
    metric: str
    others: tuple[str, ...]


_OF_RANKING = ("recall_at_1", "recall_at_10", "mrr_at_10")
KINDS = {
    "sts": Kind("STS-B, pairs with scores", _similarity, "spearman", ("pearson",)),
    "mrpc": Kind("MRPC, pairs that say the same", _paraphrases, "ndcg_at_10", _OF_RANKING),
    "qnli": Kind("QNLI, questions and their answers", _questions, "ndcg_at_10", _OF_RANKING),
}


def write_inputs(kind: str, data_dir: str, folder: str, max_rows: int) -> tuple[list[str], dict[str, str]]:
    """Writes the rows of a kind; returns the flags of train.py that name them, and the peer's files."""
    flags, theirs = [], {}
    for name, rows in KINDS[kind].read(data_dir).items():
        rows = rows[:max_rows]
        theirs[name] = own_data.write_lines(os.path.join(folder, f"peer_{name}.jsonl"), rows)
        names = ("sentence1", "sentence2") if "score" in rows[0] else ("query", "positive")
        score = ({"score": row["score"]} if "score" in row else {} for row in rows)
        objects = [{**dict(zip(names, row["texts"])), **own} for row, own in zip(rows, score)]
        flags.append(f"--{name}_file={own_data.write_lines(os.path.join(folder, f'{name}.jsonl'), objects)}")
    return [*flags, *(["--label_column=score"] if "score" in rows[0] else [])], theirs


# ------------------------------------------------------------------------------------------------------------
# One run


@dataclasses.dataclass(frozen=True)
class Run:
    """A run: its kind, model, side and seed, the flags of train.py, the peer's files, and MODEL."""

    kind: str
    model: str
    side: str
    seed: int
    train_flags: tuple[str, ...]
    theirs: dict[str, str]
    encoder: str
    folder: str


def measure(run: Run, environments: str) -> dict:
    """Returns {scores, train_rows, steps, steps_per_sec, secs} of a run, see `own_data.measured`."""
    train = lambda: _train_ours(run) if run.side == "ours" else _train_theirs(run, environments)
    settings = own_data.settings_of(run.train_flags, run.side, SENTENCE_TRANSFORMERS)
    return own_data.measured(run.folder, settings, train)


def _train_ours(run: Run) -> dict:
    result = own_data.train_ours(run.train_flags, run.seed, run.folder, f"{run.kind}, {run.model}")
    kind = KINDS[run.kind]
    return {
        "scores": {name: result[name] for name in (kind.metric, *kind.others)},
        "train_rows": result["data"]["train"]["rows"],
        "steps": result["step"],
        "steps_per_sec": result["sequences_per_sec"] / result["config"]["train_batch_size"],
    }


def _train_theirs(run: Run, environments: str) -> dict:
    from official.cli import flags as flags_lib

    config = flags_lib.parse([*run.train_flags, "--model_dir=unused"])
    sizes = json_files.read_json(os.path.join(harness.ROOT, _TINY), any_number=True)
    specification = {
        **{name: config[name] for name in _RECIPE},
        "model": run.encoder,
        "is_random": run.model == "tiny",
        "sizes": {**sizes, "hidden_act": "gelu_new"},  # as Google's gelu is
        "train_file": run.theirs["train"],
        "eval_file": run.theirs["eval"],
        "output_dir": os.path.join(run.folder, own_data.MODEL),
        "threads": len(os.sched_getaffinity(0)),
        "seed": run.seed,
    }
    flags = argparse.Namespace(environments=environments)
    name = f"sentence-transformers, {run.kind}, {run.model}"
    file = "embedding_trainer.py"
    with harness.program(name, file, SENTENCE_TRANSFORMERS, flags, run.folder) as program:
        program.ask(specification)
        return program.answer()


# ------------------------------------------------------------------------------------------------------------
# All runs


class Main(harness.EnvironmentFlags, harness.NumbersFlags):
    """Flags of the command.

    Attributes:
      data_dir: Folder of glue/.
      init_checkpoint: Folder of an encoder in Hugging Face's form, with its vocabulary.
      work_dir: Folder of the runs: what is done there is not done again.
      kinds: Comma-separated kinds of data.
      models: Comma-separated: minilm, that of --init_checkpoint, and tiny, BERT-tiny of random weights.
      sides: Comma-separated: ours, sentence_transformers.
      seeds: Runs of each kind, model and side, from --seed on.
      seed: The first seed.
      max_rows: Rows of a set, at most, to try the benchmark with.
    """

    RANGES = dict.fromkeys(("seeds", "max_rows"), command_line.COUNT)
    data_dir: str
    init_checkpoint: str
    work_dir: str
    kinds: str = ",".join(KINDS)
    models: str = ",".join(_MODELS)
    sides: str = ",".join(_SIDES)
    seeds: int = 3
    seed: int = 1
    max_rows: int = 10_000


def runs_of(flags: argparse.Namespace) -> list[Run]:
    """Writes the inputs of all kinds, and returns all runs, seed by seed."""
    encoder, made = os.path.abspath(flags.init_checkpoint), {}
    for kind, model in itertools.product(flags.kinds, flags.models):
        folder = os.path.join(os.path.abspath(flags.work_dir), kind, model)
        os.makedirs(folder, exist_ok=True)
        own, theirs = write_inputs(kind, flags.data_dir, folder, flags.max_rows)
        start = [f"--init_checkpoint={encoder}"]
        if model == "tiny":
            start = [f"--bert_config_file={os.path.join(harness.ROOT, _TINY)}"]
            start += [f"--vocab_file={os.path.join(encoder, 'vocab.txt')}", "--learning_rate=1e-3"]
        made[kind, model] = (*_COMMON, *start, *own), theirs, folder
    seeds = range(flags.seed, flags.seed + flags.seeds)
    return [
        Run(kind, model, side, seed, own, theirs, encoder, os.path.join(folder, f"{side}-seed-{seed}"))
        for seed, ((kind, model), (own, theirs, folder)), side in itertools.product(
            seeds, made.items(), flags.sides
        )
    ]


def rows_of(runs: list[Run], found: list[dict]) -> list[dict]:
    """Returns a row for each kind and model: scores and speed of both sides by seed, whether the scores
    agree, see `own_data.compared`, and how much faster we are."""
    rows = []
    for kind, model in dict.fromkeys((run.kind, run.model) for run in runs):
        mine = [(run, each) for run, each in zip(runs, found) if (run.kind, run.model) == (kind, model)]
        row: dict[str, Any] = {"name": f"{kind}, {model}", "title": KINDS[kind].title, "model": model}
        row |= {"metric": KINDS[kind].metric, **{key: mine[0][1][key] for key in ("train_rows", "steps")}}
        row["train_flags"] = [own_data.without_folder(flag) for flag in mine[0][0].train_flags]
        for run, each in mine:
            if any(each[key] != row[key] for key in ("train_rows", "steps")):
                raise ConfigError(f"{row['name']}: {run.side} has trained on other rows: {each}.")
        for side in dict.fromkeys(run.side for run, _ in mine):
            own = [each for run, each in mine if run.side == side]
            speeds = [each["steps_per_sec"] for each in own]
            row[side] = {
                "seeds": [run.seed for run, _ in mine if run.side == side],
                **own_data.spread_of([each["scores"][KINDS[kind].metric] for each in own]),
                **{name: [each["scores"][name] for each in own] for name in KINDS[kind].others},
                "steps_per_sec": statistics.median(speeds),
                "all_steps_per_sec": speeds,
            }
        if set(_SIDES) <= row.keys():
            ours, theirs = (row[side] for side in _SIDES)
            row |= own_data.compared(ours, theirs)
            row["speedup"] = ours["steps_per_sec"] / theirs["steps_per_sec"]
        rows.append(row)
    return rows


def describe(rows: list[dict]) -> str:
    """Returns a line for each kind and model."""
    shown = []
    for row in rows:
        keys = ("mean", "spread", "steps_per_sec")
        of_sides = {f"{side}_{key}": row[side][key] for side in _SIDES if side in row for key in keys}
        inside = {True: "yes", False: "NO", None: "-"}[row.get("inside_spread")]
        shown.append({**row, **of_sides, "inside": inside})
    peer = _SIDES[1]
    columns = [
        ("data", "title", ""),
        ("model", "model", ""),
        ("rows", "train_rows", ",d"),
        ("metric", "metric", ""),
        ("ours", "ours_mean", ".4f"),
        ("spread", "ours_spread", ".4f"),
        ("theirs", f"{peer}_mean", ".4f"),
        ("spread", f"{peer}_spread", ".4f"),
        ("inside", "inside", ""),
        ("steps/s", "ours_steps_per_sec", ".2f"),
        ("theirs", f"{peer}_steps_per_sec", ".2f"),
        ("faster", "speedup", ".2f"),
    ]
    return outputs.table(columns, shown)


def main() -> None:
    flags = Main.parse()
    flags.kinds = command_line.read_list(flags.kinds, "kinds", tuple(KINDS))
    flags.models = command_line.read_list(flags.models, "models", _MODELS)
    flags.sides = command_line.read_list(flags.sides, "sides", _SIDES)
    if _SIDES[1] in flags.sides:
        harness.prepare([(_SIDES[1], SENTENCE_TRANSFORMERS)], flags)
    runs, found = runs_of(flags), []
    for run in runs:
        found.append(measure(run, flags.environments))
        scores = ", ".join(f"{name} {value:.4f}" for name, value in found[-1]["scores"].items())
        line = f"{run.kind}, {run.model}, {run.side}, seed {run.seed}: {scores}"
        print(f"{line}, {found[-1]['steps_per_sec']:.2f} steps/s", file=sys.stderr, flush=True)
    rows = rows_of(runs, found)
    print(describe(rows))
    versions: dict[str, str] = next((each["versions"] for each in found if "versions" in each), {})
    record = {
        "epochs": _EPOCHS,
        "repeats": flags.seeds,
        "seed": flags.seed,
        "requirements": SENTENCE_TRANSFORMERS.requirements,
        "peer_versions": versions,
        "cases": rows,
    }
    harness.write_json(flags, record)


if __name__ == "__main__":
    harness.main(main)
