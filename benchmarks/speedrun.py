"""The speedrun: how much a small BERT learns of English in 30 or 120 minutes of two CPU cores.

  python benchmarks/speedrun.py --work_dir=runs/speedrun --glue_dir=glue --recipes=2018,2026 --minutes=30 \\
    --output=results/speedrun

A recipe is a flagfile and a model, benchmarks/speedrun/NAME.flags and NAME.json; a line of the flagfile,
`# Records: ...`, has the flags of `bert data create`. `NAME mask_share=0.3 ...` is a recipe with other flags,
`NAME model=OTHER ...` with the model of OTHER.json.
Of the rest all is fixed: the corpus (documentation of the packages in packages.txt) and the vocabulary, by
their hashes, the held-out masked-word loss (15 % of the words, drawn with one seed), and a fine-tuning on
SST-2, MRPC and RTE. Making the data is not part of the time; the time is that of --budget_hours.

Recipes take turns, seed by seed. Started again, the command goes on with the first run that is not done. The
rows of --output stay, but for those of the same recipe and time. Peers are `run_mlm` (the defaults of
transformers' example) and `run_mlm_2026` (the values of our recipe, as far as it has them).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import statistics
import sys
import tarfile
import urllib.parse
import urllib.request
from typing import Any

import harness
from harness import NEW_HUGGINGFACE
from official.cli import command_line, outputs
from official.config import ConfigError
from official.io import json_files
from official.io.writing import replace_file
from official.reporting.result import load_result

RECIPES = os.path.join(harness.ROOT, "benchmarks", "speedrun")
_PACKAGES = os.path.join(RECIPES, "packages.txt")
_DONE, _MODEL, _LOG = "run.json", "model", "log.txt"
_VOCAB_SIZE = 16384
_PAGES = (".md", ".rst", ".txt")
# sha256 of what the corpus and its vocabulary have to be.
HASHES = {
    "train.txt": "a7c8b55286f985c2a2b1c6c01426a1f1daba5c73904864bf2823e7202ffd76a1",
    "eval.txt": "1470804672508cf0ded37ef462885a363fe837caf3d91e8bf1ba5308f25adf08",
    "vocab.txt": "895c6092fb4ad31a01f4a8a67586326a6902d4f61117ff8ce93944de4be0a2ee",
}
# How the held-out text is cut.
_HELD_OUT = ("--objective=mlm", "--max_seq_length=128", "--random_seed=1", "--num_shards=1")
# The fine-tunings: task -> the score that counts, and flags.
_FINE_TUNINGS = {
    "SST-2": ("accuracy", ("--max_seq_length=64", "--num_train_epochs=1")),
    "MRPC": ("f1", ("--max_seq_length=128", "--num_train_epochs=5")),
    "RTE": ("accuracy", ("--max_seq_length=128", "--num_train_epochs=5")),
}
_FINE_TUNING = ("--task=glue", "--do_train", "--do_eval", "--train_batch_size=32", "--learning_rate=2e-4")
HUGGINGFACE = NEW_HUGGINGFACE._replace(requirements=(*NEW_HUGGINGFACE.requirements, "accelerate==1.15.0"))
# The peers: keys of programs/masked_words.py. `run_mlm` has the defaults of transformers' example and its
# Trainer; the rate falls from the first step on, as it does there over all epochs.
_PEERS: dict[str, dict[str, Any]] = {
    "run_mlm": {
        "model": "2018",
        "max_seq_length": 512,
        "train_batch_size": 8,
        "learning_rate": 5e-5,
        "weight_decay_rate": 0.0,
        "mask_share": 0.15,
        "warmup_share": 0.0,
        "decay_share": 1.0,
        "decay": "linear",
    },
    "run_mlm_2026": {
        "model": "2026",
        "max_seq_length": 128,
        "train_batch_size": 16,
        "learning_rate": 1e-3,
        "weight_decay_rate": 0.01,
        "mask_share": 0.2,
        "warmup_share": 0.05,
        "decay_share": 0.5,
        "decay": "1-sqrt",
    },
}


# ------------------------------------------------------------------------------------------------------------
# Corpus


def fetch(requirement: str, folder: str) -> None:
    """Extracts the pages of a package's source archive into a folder.

    Args:
      requirement: `FILE --hash=sha256:DIGEST`, the archive's name and its hash; its package is the name up to
        the version.
      folder: is made once all is there.

    Raises:
      ConfigError: where the index lacks the file, or has another one.
    """
    file, _, digest = requirement.partition(" --hash=sha256:")
    name = re.sub(r"[-_.]+", "-", file.rpartition("-")[0]).lower()
    target = os.path.join(folder, f"{name}-{digest[:8]}")
    if os.path.isdir(target):
        return
    from pip._internal.models.index import PyPI  # late: the index that pip takes unasked

    index = os.environ.get("PIP_INDEX_URL", PyPI.simple_url).rstrip("/") + f"/{name}/"
    with urllib.request.urlopen(index, timeout=60) as page:
        links = re.findall(r'href="([^"#]*/' + re.escape(file) + r')[#"]', page.read().decode())
    if not links:
        raise ConfigError(f"{_PACKAGES}: {index} has no {file}.")
    with urllib.request.urlopen(urllib.parse.urljoin(index, links[0]), timeout=300) as answer:
        archive = answer.read()
    found = hashlib.sha256(archive).hexdigest()
    if found != digest:
        raise ConfigError(f"{_PACKAGES}: {file} has the sha256 {found}, expected {digest}.")
    shutil.rmtree(target + ".part", ignore_errors=True)
    # Python 3.10 and 3.11 know filters from a patch release on; what is extracted is known by its hash.
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            parts = member.name.lower().split("/")
            if member.isfile() and parts[-1].endswith(_PAGES) and "locale" not in parts:
                member.mode = 0o644
                members.extract(member, target + ".part", **safely)
    os.rename(target + ".part", target)


def make_data(folder: str) -> None:
    """Makes the corpus, the vocabulary and the held-out records, where they are not there.

    Raises:
      ConfigError: where one is not what it has to be.
    """
    pages, corpus = os.path.join(folder, "pages"), os.path.join(folder, "corpus")
    log = os.path.join(folder, _LOG)
    vocabulary, held_out = os.path.join(folder, "vocab.txt"), os.path.join(folder, "held_out")
    os.makedirs(pages, exist_ok=True)
    with open(_PACKAGES, encoding="utf-8") as file:
        packages = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda package: fetch(package, pages), packages))
    train = os.path.join(corpus, "train.txt")
    _make(
        os.path.join(corpus, "corpus.json"),
        log,
        "data corpus",
        f"--sources={pages}",
        f"--output_dir={corpus}",
        "--eval_share=0.02",
    )
    _make(
        vocabulary,
        log,
        "vocab",
        f"--input_files={train}",
        f"--output_file={vocabulary}",
        f"--vocab_size={_VOCAB_SIZE}",
    )
    for path in (train, os.path.join(corpus, "eval.txt"), vocabulary):
        with open(path, "rb") as content:
            found = hashlib.sha256(content.read()).hexdigest()
        expected = HASHES[os.path.basename(path)]
        if found != expected:
            raise ConfigError(f"{path} has the sha256 {found}, expected {expected}: this is another race.")
    _make(
        os.path.join(held_out, "manifest.json"),
        log,
        "data create",
        f"--input_files={corpus}/eval.txt",
        f"--output_dir={held_out}",
        f"--vocab_file={vocabulary}",
        *_HELD_OUT,
    )


def _make(made: str, log: str, command: str, *flags: str) -> None:
    """Runs a command of `bert` unless the file that it writes last is there."""
    if not os.path.exists(made):
        print(f"{command} ...", file=sys.stderr, flush=True)
        harness.run_logged([*harness.in_new_process(*command.split()), *flags], log, command)


# ------------------------------------------------------------------------------------------------------------
# One run


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of a recipe, `NAME [FLAG=VALUE ...]`: its minutes, its seed, and its folder."""

    recipe: str
    minutes: float
    seed: int
    folder: str

    @property
    def log(self) -> str:
        return os.path.join(self.folder, _LOG)


def read_recipe(recipe: str) -> tuple[list[str], list[str]]:
    """Returns the flags of a recipe's training and those of its records. Raises ConfigError."""
    name, *others = recipe.split()
    path = os.path.join(RECIPES, f"{name}.flags")
    if not os.path.exists(path):
        known = sorted(file.removesuffix(".flags") for file in os.listdir(RECIPES) if file.endswith(".flags"))
        raise ConfigError(f"--recipes: no {path}. Allowed: {', '.join([*known, *_PEERS])}.")
    with open(path, encoding="utf-8") as file:
        found = re.search(r"^# Records: (.*)$", file.read(), re.MULTILINE)
    if not found:
        raise ConfigError(f"{path} has no line `# Records: ...` with the flags of bert data create.")
    models = [other.removeprefix("model=") for other in others if other.startswith("model=")]
    model = os.path.join(RECIPES, f"{models[-1] if models else name}.json")
    if not os.path.exists(model):
        raise ConfigError(f"--recipes: no {model}.")
    changed = [f"--{other}" for other in others if not other.startswith("model=")]
    return [f"--flagfile={path}", f"--bert_config_file={model}", *changed], found[1].split()


def settings_of(run: Run) -> dict[str, Any]:
    """Returns the settings that are saved with a run: a run of others is not taken for this one."""
    if run.recipe in _PEERS:
        return {**_PEERS[run.recipe], "requirements": list(HUGGINGFACE.requirements)}
    (flagfile, model, *others), of_records = read_recipe(run.recipe)
    with open(flagfile.partition("=")[2], encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.startswith("--")]
    sizes = json_files.read_json(model.partition("=")[2], any_number=True)
    return {"flags": [*lines, *others], "model": sizes, "records": of_records}


def measure(run: Run, flags: argparse.Namespace) -> dict:
    """Returns what a run has reached: {settings, steps, secs, curve, checkpoint, loss, accuracy, glue}.

    Its folder keeps each part once it is done. Raises ConfigError where that is of other settings.
    """
    path, settings = os.path.join(run.folder, _DONE), settings_of(run)
    os.makedirs(run.folder, exist_ok=True)
    found = json_files.read_json(path) if os.path.exists(path) else {"settings": settings, "glue": {}}
    if found["settings"] != settings:
        raise ConfigError(f"{path} is of another recipe. Give another --work_dir, or remove this folder.")
    keep = lambda: replace_file(path, json.dumps(found, indent=1) + "\n")
    if "steps" not in found:
        keep()  # before the first step: these are its settings
        found |= _train_theirs(run, flags) if run.recipe in _PEERS else _train_ours(run, flags)
        keep()
    if "loss" not in found:
        found |= _held_out_loss(run, found["checkpoint"], flags)
        keep()
    for task in _FINE_TUNINGS if flags.glue_dir else ():
        if task not in found["glue"]:
            found["glue"][task] = _fine_tune(run, task, found["checkpoint"], flags)
            keep()
    return found


def _train_ours(run: Run, flags: argparse.Namespace) -> dict:
    of_training, of_records = read_recipe(run.recipe)
    text, vocabulary = (os.path.join(flags.work_dir, name) for name in ("corpus/train.txt", "vocab.txt"))
    digest = hashlib.sha256(" ".join(of_records).encode()).hexdigest()[:8]
    records = os.path.join(flags.work_dir, "records", digest)
    files = (f"--input_files={text}", f"--output_dir={records}", f"--vocab_file={vocabulary}")
    _make(os.path.join(records, "manifest.json"), run.log, "data create", *files, *of_records)
    folder = os.path.join(run.folder, _MODEL)
    of_data = (f"--vocab_file={vocabulary}", f"--input_files={records}")
    result = _train(run, folder, *of_training, *of_data, f"--budget_hours={run.minutes / 60}", "--do_train")
    curve = []
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        for line in map(json.loads, file):
            if line["split"] == "train":
                curve.append([line["step"], 60 * run.minutes - line["budget_left_secs"], line["loss"]])
    curve = curve[:: max(1, len(curve) // 50)]
    return {"steps": result["step"], "secs": 60 * run.minutes, "curve": curve, "checkpoint": folder}


def _train(run: Run, folder: str, *words: str) -> dict:
    """Runs train.py, which goes on with what the folder has, and returns its result.json."""
    command = [sys.executable, os.path.join(harness.ROOT, "train.py"), *words]
    command += [f"--model_dir={folder}", f"--seed={run.seed}", "--keep_checkpoints=1"]
    harness.run_logged(command, run.log, f"{run.recipe}: train.py")
    return load_result(folder)


def _train_theirs(run: Run, flags: argparse.Namespace) -> dict:
    peer = _PEERS[run.recipe]
    specification = {
        **peer,
        "train_file": os.path.join(flags.work_dir, "corpus", "train.txt"),
        "vocab_file": os.path.join(flags.work_dir, "vocab.txt"),
        "model": json_files.read_json(os.path.join(RECIPES, f"{peer['model']}.json")),
        "output_dir": os.path.join(run.folder, _MODEL),
        "secs": run.minutes * 60,
        "threads": len(os.sched_getaffinity(0)),
        "seed": run.seed,
    }
    with harness.program(run.recipe, "masked_words.py", HUGGINGFACE, flags, run.folder) as program:
        program.ask(specification)
        return program.answer()


def _held_out_loss(run: Run, checkpoint: str, flags: argparse.Namespace) -> dict:
    """Returns {loss, accuracy} of the masked words of the held-out text."""
    folder = os.path.join(run.folder, "held_out")
    shutil.rmtree(folder, ignore_errors=True)
    records = f"--eval_files={os.path.join(flags.work_dir, 'held_out')}"
    scored = (
        "--do_train=false",
        "--do_eval",
        "--objective=mlm",
        "--max_seq_length=128",
        "--num_eval_samples=1000000",
    )
    result = _train(run, folder, *scored, f"--init_checkpoint={checkpoint}", records)
    shutil.rmtree(folder)
    return {"loss": result["eval_loss"], "accuracy": result["eval_accuracy"]}


def _fine_tune(run: Run, task: str, checkpoint: str, flags: argparse.Namespace) -> float:
    """Returns the score of a task of GLUE after the fixed fine-tuning."""
    metric, words = _FINE_TUNINGS[task]
    folder = os.path.join(run.folder, task)
    shutil.rmtree(folder, ignore_errors=True)
    name = task.replace("-", "").lower()
    named = (f"--glue_task={name}", f"--data_dir={flags.glue_dir}", f"--init_checkpoint={checkpoint}")
    result = _train(run, folder, *_FINE_TUNING, *words, *named)
    shutil.rmtree(folder)
    return result[metric]


# ------------------------------------------------------------------------------------------------------------
# All runs


class Main(harness.EnvironmentFlags, command_line.Flags):
    """Flags of the command.

    Attributes:
      work_dir: Folder of the data and the runs: what is done there is not done again.
      glue_dir: Folder with GLUE's SST-2, MRPC and RTE; unset: nothing is fine-tuned.
      recipes: Comma-separated recipes, NAME or "NAME FLAG=VALUE ...", and peers (run_mlm, run_mlm_2026).
      minutes: Comma-separated times of training, one of all recipes or one of each.
      seeds: Runs of each recipe, from --seed on.
      seed: The first seed.
      output: Also keep the rows in OUTPUT.json, and draw all that are there in OUTPUT.png.
    """

    RANGES = {"seeds": command_line.COUNT}
    work_dir: str
    glue_dir: str | None = None
    recipes: str = "2018,2026"
    minutes: str = "30"
    seeds: int = 3
    seed: int = 1
    output: str | None = None


def read_runs(flags: Main) -> list[Run]:
    """Returns the runs in their order: seed by seed, the recipes in turns. Raises ConfigError."""
    recipes = [" ".join(recipe.split()) for recipe in flags.recipes.split(",")]
    for recipe in recipes:
        if recipe not in _PEERS:
            read_recipe(recipe)
    try:
        minutes = [float(text) for text in flags.minutes.split(",")]
    except ValueError:
        raise ConfigError(f"--minutes={flags.minutes} are not numbers with commas between.") from None
    if len(minutes) not in (1, len(recipes)) or min(minutes) <= 0:
        raise ConfigError(f"--minutes={flags.minutes}: give one number above 0, or one of each recipe.")
    minutes = minutes * (len(recipes) if len(minutes) == 1 else 1)
    runs = []
    for seed, (recipe, limit) in itertools.product(
        range(flags.seed, flags.seed + flags.seeds), zip(recipes, minutes)
    ):
        name = re.sub(r"[^\w.=-]+", "_", f"{recipe}-{limit:g}-min-seed-{seed}")
        runs.append(Run(recipe, limit, seed, os.path.join(os.path.abspath(flags.work_dir), name)))
    return runs


def row_of(recipe: str, minutes: float, found: list[dict]) -> dict[str, Any]:
    """Returns the row of a recipe and a time: every value by seed, and the means."""
    row: dict[str, Any] = {"recipe": recipe, "minutes": minutes, "repeats": len(found)}
    row["settings"] = found[0]["settings"]
    tasks = [task for task in _FINE_TUNINGS if all(task in each["glue"] for each in found)]
    for name in ("loss", "accuracy", "steps", "secs", *tasks):
        row[name] = [each["glue"].get(name, each.get(name)) for each in found]
        row[f"mean_{name}"] = statistics.fmean(row[name])
    row["step_ms"] = 1e3 * sum(row["secs"]) / sum(row["steps"])
    row["curves"] = [each["curve"] for each in found]
    return row


def describe(rows: list[dict]) -> str:
    """Returns a line a recipe and time."""
    tasks = [task for task in _FINE_TUNINGS if any(f"mean_{task}" in row for row in rows)]
    columns = [
        ("recipe", "recipe", ""),
        ("minutes", "minutes", "g"),
        ("runs", "repeats", "d"),
        ("steps", "mean_steps", ",.0f"),
        ("ms a step", "step_ms", ".1f"),
        ("held-out loss", "mean_loss", ".4f"),
        ("accuracy", "mean_accuracy", ".4f"),
        *((task, f"mean_{task}", ".4f") for task in tasks),
    ]
    return outputs.table(columns, rows)


def draw(cases: list[dict]) -> bytes:
    """Draws the held-out loss of every recipe and time; returns a PNG."""
    from official.reporting import measurement

    bars = []
    for row in cases:
        loss, name = row["mean_loss"], f"{row['recipe']}, {row['minutes']:g} min"
        spread = (max(row["loss"]) - min(row["loss"])) / 2 / loss
        bars.append((name, loss, spread, f"{loss:.3f}  {row['mean_steps']:,.0f} steps", row["recipe"]))
    return measurement.draw_bars(bars, "Masked words of the held-out text", "loss, nats a word piece")


def main() -> None:
    flags = Main.parse()
    runs = read_runs(flags)
    flags.work_dir = os.path.abspath(flags.work_dir)
    harness.prepare([(run.recipe, HUGGINGFACE) for run in runs if run.recipe in _PEERS], flags)
    make_data(flags.work_dir)
    found: dict[tuple[str, float], list[dict]] = {}
    for run in runs:
        one = measure(run, flags)
        found.setdefault((run.recipe, run.minutes), []).append(one)
        what = f"{run.recipe}, {run.minutes:g} minutes, seed {run.seed}"
        print(f"{what}: loss {one['loss']:.4f} after {one['steps']:,} steps", file=sys.stderr, flush=True)
    rows = [row_of(*which, each) for which, each in found.items()]
    print(describe(rows))
    if flags.output:
        path = f"{flags.output}.json"
        kept = json_files.read_json(path)["cases"] if os.path.exists(path) else []
        kept = [row for row in kept if (row["recipe"], row["minutes"]) not in found]
        cases = [*kept, *map(outputs.with_machine, rows)]
        record = {"hashes": HASHES, "requirements": HUGGINGFACE.requirements, "cases": cases}
        outputs.write_json(path, record)
        outputs.write_file(f"{flags.output}.png", draw(cases))


if __name__ == "__main__":
    harness.main(main)
