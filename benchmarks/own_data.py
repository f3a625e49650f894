"""Scores fine-tuning on user data with every kind of label, compared with the same recipe in transformers.

  python benchmarks/own_data.py --data_dir=data --init_checkpoint=MODEL --work_dir=runs/own_data \\
    --make_environments --output=results/own_data

Six inputs are made of public data in --data_dir: SST-2 as CSV, STS-B as JSON lines, MRPC as pairs,
multi-label XED (held out by hash), WNUT 2017 in CoNLL columns, and CMRC 2018, Chinese questions scored by
characters. Ours trains each with one command, `train.py --task=...`. The peer is Hugging Face's Trainer with
the same rows, splits, length, batch, epochs, rate, schedule and decay, scored by scikit-learn, by seqeval,
and for answers by the official measure. MODEL is a Hugging Face folder. Both sides run in turns, seed by
seed; the same command resumes with the first unfinished run.
"""

import argparse
import csv
import dataclasses
import itertools
import json
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import harness
from official.cli import command_line, outputs
from official.config import ConfigError
from official.io import json_files
from official.io.writing import replace_file

HUGGINGFACE = harness.Environment(
    "huggingface_scores",
    (
        "torch==2.13.0",
        "transformers==5.24.0",
        "accelerate==1.15.0",
        "numpy",
        "seqeval==1.2.2",
        "scikit-learn==1.9.1",
    ),
)
_SIDES = ("ours", "huggingface")
_DONE, MODEL, _LOG = "run.json", "model", "log.txt"
_EPOCHS = 2
_RECIPE = (
    "train_batch_size learning_rate weight_decay_rate beta_1 beta_2 epsilon clip_norm max_seq_length"
    " doc_stride max_answer_length n_best_size num_train_epochs"
).split()
# As in the Trainer: the rate decays after the warm-up, and epsilon is added to the bias-corrected root, which
# is irrelevant if it is small. One evaluation, at the end.
_COMMON = (
    f"--num_train_epochs={_EPOCHS}",
    "--decay_from=warmup_end",
    "--epsilon=1e-8",
    "--steps_between_eval=1000000",
    "--do_train",
    "--do_eval",
)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of data.

    Attributes:
      title: title in tables.
      make: writes its files: (data folder, folder, number of training rows, number of evaluation rows) ->
        (flags of train.py that name them, files of the peer).
      flags: other flags of train.py.
      metric, others: its main score, and others that both sides have.
      train_rows, eval_rows: maximum numbers of rows, chosen so that all runs take hours on two cores.
    """

    title: str
    make: Callable[[str, str, int, int], tuple[list[str], dict[str, str]]]
    flags: tuple[str, ...]
    metric: str
    train_rows: int
    eval_rows: int
    others: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------------------
# Inputs: rows {"texts": [...], "label": ...} for the peer, and files in the form that users have


def _lines(data_dir: str, *parts: str) -> list[list[str]]:
    """Returns the fields of the lines of a tab-separated file. Raises ConfigError if it is missing."""
    path = os.path.join(data_dir, *parts)
    if not os.path.isfile(path):
        raise ConfigError(f"--data_dir={data_dir}: there is no {os.path.join(*parts)}.")
    with open(path, encoding="utf-8-sig") as file:
        return [line.rstrip("\r\n").split("\t") for line in file]


def _some(rows: Iterable[Any], count: int) -> list[Any]:
    """Returns a fixed sample of the rows."""
    rows = list(rows)
    random.Random(0).shuffle(rows)
    return rows[:count]


def write_lines(path: str, rows: Iterable[Any]) -> str:
    replace_file(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def _write_csv(path: str, head: list[str], rows: Iterable[list[str]]) -> str:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def glue_rows(
    data_dir: str, task: str, columns: tuple[str, ...], counts: dict[str, int]
) -> dict[str, list[list[str]]]:
    """Returns {split: rows of the columns} of a GLUE task."""
    found = {}
    for split, count in counts.items():
        head, *rows = _lines(data_dir, "glue", task, f"{split}.tsv")
        places = [head.index(name) for name in columns]
        whole = [[row[place] for place in places] for row in rows if len(row) == len(head)]
        found[split] = _some(whole, count)
    return found


def _of_glue(
    task: str,
    columns: tuple[str, ...],
    head: list[str],
    write: Callable[[str, list[str], list[list[str]]], str],
) -> Callable:
    def make(data_dir: str, folder: str, train_rows: int, eval_rows: int) -> tuple[list[str], dict[str, str]]:
        splits = glue_rows(data_dir, task, columns, {"train": train_rows, "dev": eval_rows})
        flags, theirs = [], {}
        for rows, name in zip(splits.values(), ("train", "eval")):
            flags.append(f"--{name}_file={write(os.path.join(folder, name), head, rows)}")
            labelled = [{"texts": row[:-1], "label": row[-1]} for row in rows]
            theirs[name] = write_lines(os.path.join(folder, f"peer_{name}.jsonl"), labelled)
        return flags, theirs

    return make


def _as_csv(path: str, head: list[str], rows: list[list[str]]) -> str:
    return _write_csv(f"{path}.csv", head, rows)


def _as_lines(path: str, head: list[str], rows: list[list[str]]) -> str:
    objects = [{**dict(zip(head, row)), head[-1]: float(row[-1])} for row in rows]
    return write_lines(f"{path}.jsonl", objects)


def _several(data_dir: str, folder: str, train_rows: int, eval_rows: int) -> tuple[list[str], dict[str, str]]:
    """Writes the unchanged lines of XED; a hash of the text decides which ones are held out."""
    from official.data.tables import texts

    rows = _some((row for row in _lines(data_dir, "emotions", "xed_en.tsv") if len(row) == 2), train_rows)
    path = os.path.join(folder, "all.tsv")
    replace_file(path, "".join("\t".join(row) + "\n" for row in rows))
    parts: tuple[list[dict], list[dict]] = ([], [])
    for text, labels in rows:
        if text.strip():
            row = {"texts": [text], "label": [one.strip() for one in labels.split(",")]}
            parts[texts.share_of([text]) < 0.1].append(row)
    theirs = {
        name: write_lines(os.path.join(folder, f"peer_{name}.jsonl"), part)
        for name, part in zip(("train", "eval"), parts)
    }
    return [f"--train_file={path}"], theirs


def _tags(data_dir: str, folder: str, train_rows: int, eval_rows: int) -> tuple[list[str], dict[str, str]]:
    from official.data.tables import tags

    flags, theirs = [], {}
    for name, split, count in (("train", "train", train_rows), ("eval", "dev", eval_rows)):
        read = tags.read_sentences(
            os.path.join(data_dir, "ner", "wnut17", f"{split}.conll"), "data_dir", True
        )
        kept = [(one.words, one.tags or []) for one in _some(read, count)]
        path = os.path.join(folder, f"{name}.conll")
        sentences = ["".join(f"{word}\t{tag}\n" for word, tag in zip(*one)) for one in kept]
        replace_file(path, "\n".join(sentences))
        flags.append(f"--{name}_file={path}")
        rows = [{"words": words, "tags": own} for words, own in kept]
        theirs[name] = write_lines(os.path.join(folder, f"peer_{name}.jsonl"), rows)
    return flags, theirs


def _questions(
    data_dir: str, folder: str, train_rows: int, eval_rows: int
) -> tuple[list[str], dict[str, str]]:
    """Writes some questions of CMRC 2018; for training, only those whose answer is at its stated position."""
    theirs = {}
    for name, split, count in (("train", "dev", train_rows), ("eval", "trial", eval_rows)):
        path = os.path.join(data_dir, "squad_zh", f"cmrc2018_{split}.json")
        if not os.path.isfile(path):
            raise ConfigError(f"--data_dir={data_dir}: there is no squad_zh/{os.path.basename(path)}.")
        articles = json_files.read_json(path)["data"]
        asked = [
            (paragraph["context"], question)
            for article in articles
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
            if name == "eval" or all(_stands(paragraph["context"], one) for one in question["answers"])
        ]
        paragraphs = [{"context": context, "qas": [question]} for context, question in _some(asked, count)]
        theirs[name] = os.path.join(folder, f"{name}.json")
        content = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
        replace_file(theirs[name], json.dumps(content, ensure_ascii=False))
    return [f"--train_file={theirs['train']}", f"--predict_file={theirs['eval']}"], theirs


def _stands(context: str, answer: dict) -> bool:
    return context[answer["answer_start"] :].startswith(answer["text"])


KINDS = {
    "one": Kind(
        "SST-2, one of two labels, CSV",
        _of_glue("SST-2", ("sentence", "label"), ["text", "label"], _as_csv),
        ("--task=classify", "--max_seq_length=64"),
        "accuracy",
        3000,
        872,
        ("macro_f1", "roc_auc"),
    ),
    "number": Kind(
        "STS-B, a number for pairs, JSON lines",
        _of_glue("STS-B", ("sentence1", "sentence2", "score"), ["first", "second", "score"], _as_lines),
        (
            "--task=classify",
            "--label_kind=number",
            "--text_columns=first,second",
            "--label_column=score",
            "--max_seq_length=128",
        ),
        "spearman",
        2000,
        1000,
        ("pearson",),
    ),
    "pairs": Kind(
        "MRPC, pairs of texts, CSV",
        _of_glue("MRPC", ("#1 String", "#2 String", "Quality"), ["first", "second", "label"], _as_csv),
        ("--task=classify", "--text_columns=first,second", "--max_seq_length=128"),
        "accuracy",
        2000,
        408,
        ("macro_f1", "roc_auc"),
    ),
    "several": Kind(
        "XED, several labels, TSV without a header",
        _several,
        (
            "--task=classify",
            "--label_kind=several",
            "--text_columns=1",
            "--label_column=2",
            "--max_seq_length=64",
        ),
        "micro_f1",
        3000,
        0,
        ("macro_f1", "roc_auc"),
    ),
    "tags": Kind(
        "WNUT 2017, tags of words, CoNLL columns",
        _tags,
        ("--task=tag", "--max_seq_length=128"),
        "f1",
        2500,
        1009,
        ("strict_f1", "accuracy"),
    ),
    "answers": Kind(
        "CMRC 2018, answers in Chinese, SQuAD's JSON",
        _questions,
        ("--task=squad", "--learning_rate=1e-4", "--train_batch_size=16", "--max_seq_length=384"),
        "f1",
        600,
        500,
        ("exact_match",),
    ),
}

# ------------------------------------------------------------------------------------------------------------
# One run


@dataclasses.dataclass(frozen=True)
class Run:
    """A run: its kind, side and seed, the flags of train.py, and the peer's files."""

    kind: str
    side: str
    seed: int
    train_flags: tuple[str, ...]
    theirs: dict[str, str]
    folder: str


def measured(folder: str, settings: dict[str, Any], train: Callable[[], dict]) -> dict:
    """Returns the results, seconds and settings of a run: those saved in its folder, else those of a new run.
    Raises ConfigError if the folder has a run with other settings."""
    path = os.path.join(folder, _DONE)
    if os.path.exists(path):
        found = json_files.read_json(path)
        if found["settings"] != settings:
            raise ConfigError(f"{path} is of another recipe. Give another --work_dir, or remove this folder.")
        return found
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    began = time.perf_counter()
    found = train() | {"secs": time.perf_counter() - began, "settings": settings}
    shutil.rmtree(os.path.join(folder, MODEL), ignore_errors=True)
    replace_file(path, json.dumps(found, indent=1) + "\n")
    return found


def settings_of(train_flags: Sequence[str], side: str, environment: harness.Environment) -> dict[str, Any]:
    """Returns the settings saved with a finished run; a run with the same settings is reused."""
    requirements = [] if side == "ours" else list(environment.requirements)
    return {"train_flags": list(train_flags), "requirements": requirements}


def train_ours(train_flags: Sequence[str], seed: int, folder: str, what: str) -> dict:
    """Runs train.py in a folder; returns its result.json."""
    from official.reporting.result import load_result

    model_dir, log_file = os.path.join(folder, MODEL), os.path.join(folder, _LOG)
    command = [sys.executable, os.path.join(harness.ROOT, "train.py"), *train_flags]
    command += [f"--seed={seed}", f"--model_dir={model_dir}"]
    harness.run_logged(command, log_file, f"{what}: train.py")
    return load_result(model_dir)


def measure(run: Run, environments: str) -> dict:
    """Returns {scores, metric, train_rows, eval_rows, secs, versions} of a run, see `measured`."""
    train = lambda: _train_ours(run) if run.side == "ours" else _train_theirs(run, environments)
    return measured(run.folder, settings_of(run.train_flags, run.side, HUGGINGFACE), train)


def _train_ours(run: Run) -> dict:
    result = train_ours(run.train_flags, run.seed, run.folder, run.kind)
    named = KINDS[run.kind].metric
    if result["target_metric"] != named:
        raise ConfigError(f"{run.kind}: the main score is {result['target_metric']}, expected {named}.")
    data = result["data"]
    count = next(name for name in ("questions", "sentences", "rows") if name in data["train"])
    return {
        "scores": {name: result[name] for name in (named, *KINDS[run.kind].others)},
        "train_rows": data["train"][count],
        "eval_rows": data["eval"][count],
    }


def _train_theirs(run: Run, environments: str) -> dict:
    from official.cli import flags as flags_lib
    from official.data.squad import evaluation, squad_files

    config = flags_lib.parse([*run.train_flags, "--model_dir=unused"])
    specification = {
        **{name: config[name] for name in _RECIPE},
        "kind": run.kind,
        "model": os.path.abspath(config.init_checkpoint or ""),
        "train_file": run.theirs["train"],
        "eval_file": run.theirs["eval"],
        "output_dir": os.path.join(run.folder, MODEL),
        "threads": len(os.sched_getaffinity(0)),
        "seed": run.seed,
    }
    flags = argparse.Namespace(environments=environments)
    name = f"huggingface, {run.kind}"
    with harness.program(name, "own_data_trainer.py", HUGGINGFACE, flags, run.folder) as program:
        program.ask(specification)
        found = program.answer()
    if predictions := found.pop("predictions", None):
        gold = squad_files.read_gold_answers(run.theirs["eval"]).answers
        scores = evaluation.score_characters(gold, predictions)
        parts = {"f1": scores.f1, "exact_match": scores.exact}
        found["scores"] = {name: statistics.fmean(part.values()) for name, part in parts.items()}
    return found


# ------------------------------------------------------------------------------------------------------------
# All runs


class Main(harness.EnvironmentFlags, harness.NumbersFlags):
    """Flags of the command.

    Attributes:
      data_dir: Folder of glue/, emotions/, ner/wnut17/ and squad_zh/.
      init_checkpoint: Folder of an encoder in Hugging Face's form.
      work_dir: Folder of the runs; finished ones are reused.
      kinds: Comma-separated kinds of data.
      sides: Comma-separated: ours, huggingface.
      seeds: Number of runs of each kind and side, with the seeds from --seed on.
      seed: The first seed.
      max_rows: Maximum number of rows of a set, for a trial of the benchmark.
    """

    RANGES = dict.fromkeys(("seeds", "max_rows"), command_line.COUNT)
    data_dir: str
    init_checkpoint: str
    work_dir: str
    kinds: str = ",".join(KINDS)
    sides: str = ",".join(_SIDES)
    seeds: int = 3
    seed: int = 1
    max_rows: int = 10_000


def runs_of(flags: argparse.Namespace) -> list[Run]:
    """Writes the inputs of all kinds, and returns all runs, seed by seed."""
    made = {}
    for name in flags.kinds:
        kind, folder = KINDS[name], os.path.join(os.path.abspath(flags.work_dir), name)
        os.makedirs(folder, exist_ok=True)
        limits = (min(count, flags.max_rows) for count in (kind.train_rows, kind.eval_rows))
        own, theirs = kind.make(flags.data_dir, folder, *limits)
        init = f"--init_checkpoint={os.path.abspath(flags.init_checkpoint)}"
        made[name] = ((*kind.flags, *_COMMON, init, *own), theirs, folder)
    seeds = range(flags.seed, flags.seed + flags.seeds)
    return [
        Run(name, side, seed, own, theirs, os.path.join(folder, f"{side}-seed-{seed}"))
        for seed, (name, (own, theirs, folder)), side in itertools.product(seeds, made.items(), flags.sides)
    ]


def rows_of(runs: list[Run], found: list[dict]) -> list[dict]:
    """Returns a row for each kind: the scores of both sides by seed, and whether they agree.

    They agree if the means differ by no more than the larger range of the seeds.
    """
    rows = []
    for name in dict.fromkeys(run.kind for run in runs):
        kind, row = KINDS[name], {"name": name, "title": KINDS[name].title, "metric": KINDS[name].metric}
        mine = [(run, each) for run, each in zip(runs, found) if run.kind == name]
        row["train_flags"] = [without_folder(flag) for flag in mine[0][0].train_flags]
        row |= {key: mine[0][1][key] for key in ("train_rows", "eval_rows")}
        for run, each in mine:
            if any(each[key] != row[key] for key in ("train_rows", "eval_rows")):
                raise ConfigError(f"{name}: {run.side} has read another number of rows: {each}.")
        for side in dict.fromkeys(run.side for run, _ in mine):
            own = [each["scores"] for run, each in mine if run.side == side]
            row[side] = {
                "seeds": [run.seed for run, _ in mine if run.side == side],
                **spread_of([scores[kind.metric] for scores in own]),
                **{other: [scores[other] for scores in own] for other in kind.others},
            }
        if set(_SIDES) <= row.keys():
            row |= compared(*(row[side] for side in _SIDES))
        rows.append(row)
    return rows


def spread_of(scores: list[float]) -> dict:
    """Returns the scores of several seeds, their mean, and the range from the worst to the best."""
    return {"scores": scores, "mean": statistics.fmean(scores), "spread": max(scores) - min(scores)}


def compared(ours: dict, theirs: dict) -> dict:
    """Returns the difference of the means of two sides, and whether it is below the larger spread."""
    difference = ours["mean"] - theirs["mean"]
    return {
        "difference": difference,
        "inside_spread": abs(difference) <= max(ours["spread"], theirs["spread"]),
    }


def without_folder(flag: str) -> str:
    name, equals, value = flag.partition("=")
    return f"{name}={os.path.basename(value)}" if os.path.isabs(value) else name + equals + value


def describe(rows: list[dict]) -> str:
    """Returns a line per kind."""
    shown = []
    for row in rows:
        of_sides = {
            f"{side}_{key}": row[side][key] for side in _SIDES if side in row for key in ("mean", "spread")
        }
        inside = {True: "yes", False: "NO", None: "-"}[row.get("inside_spread")]
        shown.append({**row, **of_sides, "inside": inside})
    columns = [
        ("data", "title", ""),
        ("rows", "train_rows", ",d"),
        ("metric", "metric", ""),
        ("ours", "ours_mean", ".4f"),
        ("spread", "ours_spread", ".4f"),
        ("transformers", "huggingface_mean", ".4f"),
        ("spread", "huggingface_spread", ".4f"),
        ("inside", "inside", ""),
    ]
    return outputs.table(columns, shown)


def main() -> None:
    flags = Main.parse()
    flags.kinds = command_line.read_list(flags.kinds, "kinds", tuple(KINDS))
    flags.sides = command_line.read_list(flags.sides, "sides", _SIDES)
    if "huggingface" in flags.sides:
        harness.prepare([("huggingface", HUGGINGFACE)], flags)
    runs, found = runs_of(flags), []
    for run in runs:
        found.append(measure(run, flags.environments))
        scores = ", ".join(f"{name} {value:.4f}" for name, value in found[-1]["scores"].items())
        line = f"{run.kind}, {run.side}, seed {run.seed}: {scores} ({found[-1]['secs']:.0f} s)"
        print(line, file=sys.stderr, flush=True)
    rows = rows_of(runs, found)
    print(describe(rows))
    versions = next((each["versions"] for each in found if "versions" in each), {})
    record = {
        "epochs": _EPOCHS,
        "repeats": flags.seeds,
        "seed": flags.seed,
        "requirements": HUGGINGFACE.requirements,
        "peer_versions": versions,
        "cases": rows,
    }
    harness.write_json(flags, record)


if __name__ == "__main__":
    harness.main(main)
