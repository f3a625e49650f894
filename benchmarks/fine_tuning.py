"""Measures fine-tuning on SQuAD or GLUE, as whole processes, compared with Hugging Face's Trainer.

  python benchmarks/fine_tuning.py --make_environments --work_dir=runs/fine_tuning --train_steps=100 \\
    --output=results/fine_tuning_squad -- --config=squad_minilm --train_file=train-v1.1.json \\
    --predict_file=dev-v1.1.json --vocab_file=MODEL/vocab.txt --init_checkpoint=MODEL/model.safetensors

The flags after -- are the recipe, for train.py; the Trainer gets the same. Every run is a process: it reads
the data, makes features of them, trains --train_steps updates and writes one checkpoint. Times exclude
evaluation. Afterwards this project's evaluation scores the checkpoints of all systems. All systems run in
turns, seed by seed. The same command resumes with the first unfinished run.
"""

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import statistics
import sys
import time
from typing import Any

import harness
from official.cli import command_line, outputs
from official.cli import flags as flags_lib
from official.config import Config, ConfigError, steps_per_loop, with_data
from official.io import json_files
from official.io.writing import replace_file

_DONE, _MODEL, _SCORES, _LOG = "run.json", "model", "scores", "log.txt"
_TOLD_WHEN = 10  # steps between logged losses
_COUNTED = {"squad": "windows", "glue": "rows"}  # unit of a task's sequences in result.json
_KINDS: dict[str, type | tuple[type, ...]] = {
    "whole_secs": float,
    "cpu_secs": float,
    "training_secs": float,
    "loss": float,
    "metric": (str, type(None)),
    "score": (float, type(None)),
    "data_sequences": int,
    "data_tokens": int,
}


# Fixed behaviour of the Trainer: setting -> its value.
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
_SAME_EPSILON = 1e-8  # negligible compared with the roots, so its position does not matter


# ------------------------------------------------------------------------------------------------------------
# One run: a whole process of a system, timed from outside, then its scores


@dataclasses.dataclass(frozen=True)
class System:
    """A system, and how it pads.

    Attributes:
      title: its name in charts.
      train_flags: flags of `bert train`; None: Hugging Face's Trainer.
      padding: the Trainer's: "grouped" (batches of about one length, as long as their longest), "longest"
        (batches in any order, as long as their longest) or "max_length" (all as long as the maximum).
    """

    title: str
    train_flags: tuple[str, ...] | None = None
    padding: str = "max_length"

    @property
    def is_ours(self) -> bool:
        return self.train_flags is not None


SYSTEMS = {
    "ours_buckets": System("this project, length buckets", ("--length_buckets=always", "--unpad=false")),
    "ours_unpad": System("this project, no padding", ("--length_buckets=auto", "--unpad")),
    "ours_padded": System("this project, padded", ("--length_buckets=never", "--unpad=false")),
    "huggingface_grouped": System("Hugging Face's Trainer, grouped by length", padding="grouped"),
    "huggingface_longest": System("Hugging Face's Trainer, padded to the batch's longest", padding="longest"),
    "huggingface_padded": System("Hugging Face's Trainer, padded"),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """Settings of one run.

    Attributes:
      system: name of its system in SYSTEMS.
      dtype: fp32 or bf16.
      seed: seed of the data order and of the head's weights.
      train_flags: the recipe, flags of `bert train`, the same for all runs.
      config: that recipe, with the steps of the benchmark.
      scored: whether its model is scored.
      environments: folder of the peers' environments.
      work_dir: folder of all runs.
    """

    system: str
    dtype: str
    seed: int
    train_flags: tuple[str, ...]
    config: Config
    scored: bool
    environments: str
    work_dir: str

    @property
    def folder(self) -> str:
        return os.path.join(os.path.abspath(self.work_dir), f"{self.dtype}-{self.system}-seed-{self.seed}")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings saved with a finished run; one with the same settings is reused instead of run again."""
        requirements = () if SYSTEMS[self.system].is_ours else harness.HUGGINGFACE.requirements
        steps = self.config.num_steps_per_epoch
        return {
            "train_flags": list(self.train_flags),
            "train_steps": steps,
            "scored": self.scored,
            "requirements": list(requirements),
        }


def common_flags(train_steps: int) -> list[str]:
    """Returns the flags of `bert train` after the recipe: `train_steps` updates, one checkpoint at their end,
    no evaluation."""
    told_every = range(max(1, train_steps // _TOLD_WHEN), 0, -1)
    return [
        "--do_train",
        "--do_eval=false",
        "--do_predict=false",
        f"--num_steps_per_epoch={train_steps}",
        "--num_train_epochs=1",
        f"--steps_per_loop={next(steps for steps in told_every if train_steps % steps == 0)}",
        f"--checkpoint_every_steps={train_steps}",
    ]


def scoring_flags(checkpoint: str) -> list[str]:
    """Returns the flags of `bert train` after the recipe that score a checkpoint."""
    stages = ["--do_train=false", "--do_eval", "--do_predict=false"]
    return [*stages, "--dtype=fp32", "--unpad", f"--init_checkpoint={checkpoint}"]


def done(run: Run) -> dict | None:
    """Returns the saved measurements of a finished run; None if it is unfinished.

    Raises:
      ConfigError: if its folder has a run with other settings, or its file is damaged.
    """
    path = os.path.join(run.folder, _DONE)
    if not os.path.exists(path):
        return None
    values = json_files.read_json(path)
    if values.get("settings") != run.settings:
        raise ConfigError(
            f"--work_dir={run.work_dir}: {path} is of another recipe, --train_steps or scoring. Give another"
            " folder, or remove this one."
        )
    for name, kind in _KINDS.items():
        json_files.expect(values, name, kind, path)
    return values


def measure(run: Run) -> dict:
    """Returns the measurements of a run: those saved in its folder, else those of a new one.

    Returns:
      {whole_secs: of the process, cpu_secs: of all its cores, training_secs: of its steps, loss: the last one
      logged, metric, score (None: not scored), data_sequences, data_tokens: of the training set, settings}.
    """
    found = done(run)
    if found is not None:
        return found
    shutil.rmtree(run.folder, ignore_errors=True)
    os.makedirs(run.folder)
    before = _cpu_secs()
    found, checkpoint = (_train_ours if SYSTEMS[run.system].is_ours else _train_theirs)(run)
    found["cpu_secs"] = _cpu_secs() - before
    metric, score = _score(run, checkpoint) if run.scored else (None, None)
    found |= {"metric": metric, "score": score, "settings": run.settings}
    for name in (_MODEL, _SCORES):  # hundreds of megabytes
        shutil.rmtree(os.path.join(run.folder, name), ignore_errors=True)
    replace_file(os.path.join(run.folder, _DONE), json.dumps(found, indent=1) + "\n")
    return found


def _cpu_secs() -> float:
    """Returns the CPU seconds of all ended child processes."""
    used = os.times()
    return used.children_user + used.children_system


def _train_ours(run: Run) -> tuple[dict, str]:
    """Trains with `bert train`. Returns (measurements, checkpoint)."""
    folder = os.path.join(run.folder, _MODEL)
    own = SYSTEMS[run.system].train_flags or ()
    whole_secs = _bert_train(
        run,
        *common_flags(run.config.num_steps_per_epoch),
        *own,
        f"--dtype={run.dtype}",
        f"--seed={run.seed}",
        f"--model_dir={folder}",
    )
    result, path = _result_of(folder)
    rate = json_files.expect(result, "sequences_per_sec", float, path)
    samples = json_files.expect(result, "samples", int, path)
    counts = json_files.expect(json_files.expect(result, "data", dict, path), "train", dict, path)
    found = {
        "whole_secs": whole_secs,
        "training_secs": samples / rate,
        "loss": _last_loss(folder),
        "data_sequences": json_files.expect(counts, _COUNTED[run.config.task], int, path),
        "data_tokens": json_files.expect(counts, "tokens", int, path),
    }
    return found, json_files.expect(result, "checkpoint", str, path)


def _result_of(folder: str) -> tuple[dict, str]:
    """Returns (result of a run, path of its file)."""
    from official.reporting.result import FILE_NAME, load_result

    return load_result(folder), os.path.join(folder, FILE_NAME)


def _last_loss(folder: str) -> float:
    from official.reporting.metrics import read_metrics

    return [line["loss"] for line in read_metrics(folder) if line["split"] == "train"][-1]


def _bert_train(run: Run, *own: str) -> float:
    """Runs `bert train` with the recipe and then the flags `own`. Returns its seconds. Raises ConfigError
    if it fails."""
    command = [*harness.in_new_process("train"), *run.train_flags, *own]
    return harness.run_logged(command, os.path.join(run.folder, _LOG), f"{run.system}: bert train")


def _train_theirs(run: Run) -> tuple[dict, str]:
    """Trains with Hugging Face's Trainer. Returns (measurements, checkpoint)."""
    specification = specification_of(run)
    advice = ": give a smaller --train_batch_size behind --"
    started = time.perf_counter()
    with harness.program(
        f"--peers: {run.system}", "trainer.py", harness.HUGGINGFACE, run, run.folder, advice
    ) as program:
        program.ask(specification)
        found = program.answer()
        whole_secs = time.perf_counter() - started
    return {"whole_secs": whole_secs, **found}, found["checkpoint"]


def specification_of(run: Run) -> dict[str, Any]:
    """Returns the specification of a run for the Trainer's program, see
    `programs/trainer.py`."""
    config = run.config
    recipe = (
        "train_batch_size learning_rate weight_decay_rate beta_1 beta_2 epsilon clip_norm max_seq_length"
        " doc_stride"
    ).split()
    train_file, outputs = training_file(config, run.work_dir)
    return {
        "task": config.task,
        "dtype": run.dtype,
        "padding": SYSTEMS[run.system].padding,
        "model": huggingface_folder(config),
        "train_file": os.path.abspath(train_file),
        "outputs": outputs,
        "output_dir": os.path.join(run.folder, _MODEL),
        "threads": len(os.sched_getaffinity(0)),
        "seed": run.seed,
        "train_steps": config.num_steps_per_epoch,
        "warmup_steps": config.warmup_steps,
        "log_steps": steps_per_loop(config),
        **{name: config[name] for name in recipe},
    }


def huggingface_folder(config: Config) -> str:
    """Returns the folder of the initial checkpoint. Raises ConfigError if Hugging Face cannot read it."""
    asked = config.init_checkpoint
    path = os.path.abspath(asked or "")
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    for name in ("config.json", "tokenizer.json"):
        if not asked or not os.path.isfile(os.path.join(folder, name)):
            raise ConfigError(
                f"--init_checkpoint={asked}: {name} is missing next to it, and Hugging Face's Trainer needs"
                " it. Give a folder with it, or --peers=ours_buckets,... without the Trainer."
            )
    return folder


def training_file(config: Config, work_dir: str) -> tuple[str, int]:
    """Returns (the Trainer's training file, number of outputs of the model's head). GLUE's rows are written
    as JSON lines, which the Trainer's example reads, too."""
    if config.task == "squad":
        return config.train_file or "", 2
    from official.data.glue import files, tasks

    task = tasks.find_task(config.glue_task or "")
    path = os.path.join(work_dir, f"{task.name}-train.json")
    rows = files.read_split(task, "train", config.data_dir or "")
    labels = [] if rows.labels is None else rows.labels.tolist()
    names = ("sentence1", "sentence2")
    lines = [
        json.dumps({**dict(zip(names, texts)), "label": label}) + "\n"
        for *texts, label in zip(*rows.texts, labels)
    ]
    replace_file(path, "".join(lines))
    return path, len(task.classes) or 1


def _score(run: Run, checkpoint: str) -> tuple[str, float]:
    """Scores a checkpoint of any system with this project's evaluation, in fp32. Returns (metric, its value,
    a fraction)."""
    folder = os.path.join(run.folder, _SCORES)
    _bert_train(run, *scoring_flags(checkpoint), f"--model_dir={folder}")
    result, path = _result_of(folder)
    score = json_files.expect(result, "eval_accuracy", float, path)
    return json_files.expect(result, "target_metric", str, path), score


# ------------------------------------------------------------------------------------------------------------
# All runs


class Main(harness.EnvironmentFlags, harness.ChartFlags):
    """Flags of the command.

    Attributes:
      work_dir: Folder of the runs; finished ones are reused.
      train_steps: Number of updates of every run, and length of the schedule.
      peers: Comma-separated systems, including ours.
      dtypes: Comma-separated: fp32, bf16.
      seeds: Number of runs of each system and type, with the seeds from --seed on.
      seed: The first seed.
      scores: Score every checkpoint.
      train_flags: After --: the recipe, flags of train.py.
    """

    POSITIONAL = ("train_flags",)
    RANGES = dict.fromkeys(("train_steps", "seeds"), command_line.COUNT)
    work_dir: str
    train_steps: int = 100
    peers: str = ",".join(SYSTEMS)
    dtypes: str = "fp32,bf16"
    seeds: int = 3
    seed: int = 12345
    scores: bool = True
    train_flags: list[str] = []


def read_recipe(train_flags: list[str], train_steps: int, scored: bool = False) -> Config:
    """Returns the recipe after `--` as a configuration with `train_steps` updates. Raises ConfigError if it
    is invalid, the Trainer does not support it, or the files for scores are missing."""
    common = common_flags(train_steps)
    config = flags_lib.parse([*train_flags, *common, "--model_dir=unused"])
    if config.task == "pretrain":
        raise ConfigError("behind --: --task=pretrain. Give --task=squad or --task=glue.")
    for name, value in _NEEDED.items():
        if config[name] != value:
            raise ConfigError(
                f"behind --: --{name}={config[name]} is not supported by Hugging Face's Trainer. Give"
                f" --{name}={str(value).lower()}."
            )
    if scored:
        flags_lib.parse([*train_flags, *scoring_flags("unused"), "--model_dir=unused"])
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
    """Returns a row for each type and system: rates of whole processes and of only their training, as medians
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
    """Compares each of our systems with each variant of the Trainer, by type: speedup of whole processes and
    of their training, and whether the mean scores differ by no more than the seeds of either (None: no scores
    of several seeds)."""
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


def describe(rows: list[dict], comparison: list[dict]) -> str:
    """Returns a line per row, then a line per comparison."""
    shown = [
        {
            **row,
            "name": f"{row['dtype']}  {SYSTEMS[row['peer']].title}",
            "secs": statistics.median(row["whole_secs"]),
            "loss": statistics.fmean(row["losses"]),
        }
        for row in rows
    ]
    columns = [
        ("type, system", "name", ""),
        ("seq/s", "sequences_per_sec", ".2f"),
        ("+-", "spread", ".1%"),
        ("training", "training_sequences_per_sec", ".2f"),
        ("in all s", "secs", ".1f"),
        ("loss", "loss", ".4f"),
        ("score", "score_mean", ".4f"),
        ("spread", "score_spread", ".4f"),
    ]
    words = {True: ", scores agree", False: ", SCORES DIFFER", None: ""}
    lines = [
        f"{each['dtype']}: {SYSTEMS[each['ours']].title}: {each['ratio']:.2f} x {SYSTEMS[each['peer']].title}"
        f" (training alone {each['training_ratio']:.2f}){words[each['scores_agree']]}"
        for each in comparison
    ]
    return "\n".join([outputs.table(columns, shown), *lines])


def _print_run(run: Run, found: dict) -> None:
    """Prints the result of a run."""
    score = "" if found["score"] is None else f", {found['metric']} {found['score']:.4f}"
    print(
        f"{run.dtype}, {SYSTEMS[run.system].title}, seed {run.seed}: {found['whole_secs']:.1f} s, training"
        f" {found['training_secs']:.1f} s, of all cores {found['cpu_secs']:.1f} s, loss {found['loss']:.4f}"
        f"{score}",
        file=sys.stderr,
        flush=True,
    )


def _warn_of_epsilon(epsilon: float) -> None:
    """Warns if scores would differ because of epsilon."""
    if epsilon > _SAME_EPSILON:
        print(
            f"--epsilon={epsilon:g}: ours adds it to the uncorrected root, PyTorch to the corrected one, and"
            f" scores of short runs differ by it. Behind -- give --epsilon={_SAME_EPSILON:g}, with which both"
            " train the same.",
            file=sys.stderr,
        )


def main() -> None:
    flags = Main.parse()
    flags.peers = command_line.read_list(flags.peers, "peers", tuple(SYSTEMS))
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", ("fp32", "bf16"))
    config = read_recipe(flags.train_flags, flags.train_steps, flags.scores)
    runs = runs_of(flags, config)
    if any(not SYSTEMS[name].is_ours for name in flags.peers):
        huggingface_folder(config)
        if flags.scores:
            _warn_of_epsilon(config.epsilon)
        harness.prepare([("huggingface", harness.HUGGINGFACE)], flags)
    for run in runs:  # all folders before the first run, not an hour later
        done(run)
    os.makedirs(flags.work_dir, exist_ok=True)
    found = []
    for run in runs:
        found.append(measure(run))
        _print_run(run, found[-1])
    rows = rows_of(runs, found)
    comparison = compare(rows)
    print(describe(rows, comparison))
    task = config.glue_task if config.task == "glue" else "SQuAD"
    record = {
        "task": config.glue_task or config.task,
        "train_steps": flags.train_steps,
        "train_batch_size": config.train_batch_size,
        "max_seq_length": config.max_seq_length,
        "seeds": flags.seeds,
        "seed": flags.seed,
        "requirements": harness.HUGGINGFACE.requirements,
        "comparison": comparison,
        "cases": rows,
    }
    title = f"Fine-tuning on {task}, {flags.train_steps} steps of {config.train_batch_size} sequences"
    bars = [
        (
            f"{row['dtype']}: {SYSTEMS[row['peer']].title}",
            row["sequences_per_sec"],
            row["spread"],
            f"{row['sequences_per_sec']:.3g}; training alone {row['training_sequences_per_sec']:.3g}",
            "ours" if SYSTEMS[row["peer"]].is_ours else "peers",
        )
        for row in rows
    ]
    harness.write(flags, record, bars, title, "sequences per second of the whole process")


if __name__ == "__main__":
    harness.main(main)
