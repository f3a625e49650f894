"""One run of the fine-tuning benchmark: a whole process of a system, timed from outside, then its scores."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import time
from typing import Any

from official.cli import command_line
from official.cli.benchmark import environments, peers
from official.cli.benchmark.programs import Program
from official.config import Config, ConfigError, steps_per_loop
from official.io import json_files
from official.io.writing import replace_file

_DONE, _MODEL, _SCORES, _LOG = "run.json", "model", "scores", "log.txt"
_TOLD_WHEN = 10  # how often a run tells its loss
_PROGRAM = os.path.join(peers.FOLDER, "huggingface_trainer.py")
_COUNTED = {"squad": "windows", "glue": "rows"}  # what result.json calls the sequences of a task
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
        requirements = () if SYSTEMS[self.system].is_ours else peers.PEERS["huggingface"].requirements
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
    """Returns the saved measurements of a finished run; None where it is still to be run.

    Raises:
      ConfigError: where a run of other settings lies in its folder, or its file is damaged.
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


def finished(run: Run) -> dict:
    """Returns the measurements of a run: those saved in its folder, else those of a new run from its
    beginning.

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
    where it fails."""
    log_file = os.path.join(run.folder, _LOG)
    command = [*command_line.in_new_process("train"), *run.train_flags, *own]
    started = time.perf_counter()
    with open(log_file, "a", encoding="utf-8") as log:
        code = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environments.variables(None),
            check=False,
        ).returncode
    if code:
        with open(log_file, encoding="utf-8", errors="replace") as log:
            last = [line for line in log.read().splitlines() if line.strip()][-1:]
        raise ConfigError(f"{run.system}: bert train ended with exit code {code}: {' '.join(last)}")
    return time.perf_counter() - started


def _train_theirs(run: Run) -> tuple[dict, str]:
    """Trains with Hugging Face's Trainer. Returns (measurements, checkpoint)."""
    specification = specification_of(run)
    advice = ": give a smaller --train_batch_size behind --"
    environment = peers.PEERS["huggingface"].environment
    started = time.perf_counter()
    with Program(
        f"--peers: {run.system}", _PROGRAM, environment, run.environments, run.folder, advice
    ) as program:
        program.ask(specification)
        found = program.answer()
        whole_secs = time.perf_counter() - started
    return {"whole_secs": whole_secs, **found}, found["checkpoint"]


def specification_of(run: Run) -> dict[str, Any]:
    """Returns the specification of a run for the Trainer's program, see
    `peer_programs/huggingface_trainer.py`."""
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
    """Returns the folder of the initial checkpoint. Raises ConfigError where Hugging Face could not read
    it."""
    asked = config.init_checkpoint
    path = os.path.abspath(asked or "")
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    for name in ("config.json", "tokenizer.json"):
        if not asked or not os.path.isfile(os.path.join(folder, name)):
            raise ConfigError(
                f"--init_checkpoint={asked}: no {name} beside it, which Hugging Face's Trainer reads. Give a"
                " folder that has it, or --peers=ours_buckets,... without the Trainer."
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
    return path, task.num_outputs


def _score(run: Run, checkpoint: str) -> tuple[str, float]:
    """Scores a checkpoint of any system with this project's evaluation, in fp32. Returns (metric, its value,
    a fraction)."""
    folder = os.path.join(run.folder, _SCORES)
    _bert_train(run, *scoring_flags(checkpoint), f"--model_dir={folder}")
    result, path = _result_of(folder)
    score = json_files.expect(result, "eval_accuracy", float, path)
    return json_files.expect(result, "target_metric", str, path), score
