#!/usr/bin/env python3
"""Kills the workers of a job in turn at random moments, and compares the result with an undisturbed job.

  python scripts/kill_workers.py [--runs=20] [--workers=2] [--seed=1] [--output=results/cluster_kills.json]

A small pre-training job of several processes under scripts/launch.py with --max_restarts, with dropout and
--deterministic. In each run `kill -9` hits one process at any moment; the launcher restarts all of them, and
the job must end with exit code 0 and the same bits as without the kill: checkpoint, metrics.jsonl, scores.

Exit codes: 0 all checks passed, 1 a check failed (see the report), 2 bad input.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

from kill_runs import ROOT, read_lines
from official.cli import command_line, outputs
from official.io import signals
from official.io.errors import ConfigError
from official.io.writing import check_output_file

_RESTARTS = 3
LIMIT_SECS = 600.0  # a job takes one or two minutes; a longer one hangs
_WORDS = "red blue green what is the ball box sky sea sun hat old stone here there was".split()
_SPECIAL = "[PAD] [UNK] [CLS] [SEP] [MASK] .".split()
_FILES = 4
_MODEL = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=32,
)
_RECORDS = "--max_seq_length=32 --max_predictions_per_seq=5"


class Main(command_line.Flags):
    """Flags of the program.

    Attributes:
      runs: Number of jobs, each of which loses a worker.
      workers: Number of processes per job: 2 or 4.
      seed: Seed of the moments.
      output: Write the counts to this JSON file.
      overwrite: Replace an existing file.
    """

    RANGES = {"runs": command_line.COUNT}
    runs: int = 20
    workers: int = 2
    seed: int = 1
    output: str | None = None
    overwrite: bool = False


def parse_flags() -> argparse.Namespace:
    flags: argparse.Namespace = Main.parse()
    if flags.workers not in (2, 4):
        raise ConfigError(f"--workers={flags.workers}, expected 2 or 4: they share four files evenly.")
    return flags


# -----------------------------------------------------------------------------------------------------------
# A small pre-training job of several processes under the launcher, observed and hit from outside


def make_data(folder: str) -> None:
    """Writes model, vocabulary and records of random sentences.

    Raises:
      subprocess.CalledProcessError: if the records cannot be made.
    """
    rng, words = random.Random(0), [*_SPECIAL, *_WORDS]
    outputs.write_json(f"{folder}/bert.json", {"vocab_size": len(words), **_MODEL})
    outputs.write_file(f"{folder}/vocab.txt", "\n".join(words) + "\n")
    documents = ["\n".join(_sentence(rng) for _ in range(8)) for _ in range(80)]
    outputs.write_file(f"{folder}/text.txt", "\n\n".join(documents) + "\n")
    arguments = (
        f"--input_files={folder}/text.txt --output_dir={folder}/records --vocab_file={folder}/vocab.txt"
    )
    options = f"{_RECORDS} --dupe_factor=2 --num_shards={_FILES} --random_seed=1 --num_workers=1"
    script = os.path.join(ROOT, "scripts", "create_pretraining_data.py")
    command = [sys.executable, script, *arguments.split(), *options.split()]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)


def _sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randrange(4, 9))) + " ."


def _training(data: str, model_dir: str) -> list[str]:
    """Returns the command line of one process of the job."""
    return [
        sys.executable,
        os.path.join(ROOT, "train.py"),
        *f"--input_files={data}/records/part-* --eval_files={data}/records/part-00000* --do_eval".split(),
        *f"--bert_config_file={data}/bert.json --vocab_file={data}/vocab.txt {_RECORDS}".split(),
        *f"--model_dir={model_dir} --train_batch_size=16 --eval_batch_size=16 --num_eval_samples=64".split(),
        *"--num_steps_per_epoch=400 --num_train_epochs=1 --warmup_steps=20 --learning_rate=1e-3".split(),
        *"--steps_per_loop=10 --checkpoint_every_steps=20 --steps_between_eval=100".split(),
        *"--num_accumulation_steps=2 --deterministic --num_gpus=0".split(),
        "--distribution_strategy=multi_worker_mirrored",
    ]


class Job:
    """A running job under the launcher, observed from outside.

    Args:
      data: folder of `make_data`.
      model_dir: folder of the run.
      workers: number of processes.
      restarts: maximum number of restarts.
    """

    def __init__(self, data: str, model_dir: str, workers: int, restarts: int):
        self.model_dir, self.log = model_dir, model_dir + ".log"
        self.workers, self.started = workers, time.monotonic()
        hosts = ",".join(f"localhost:{port}" for port in _free_ports(workers))
        launcher = [sys.executable, os.path.join(ROOT, "scripts", "launch.py"), f"--hosts={hosts}"]
        command = [*launcher, f"--max_restarts={restarts}", "--", *_training(data, model_dir)]
        with open(self.log, "wb") as log:
            self.popen = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def is_over(self) -> bool:
        return self.popen.poll() is not None

    def ranks(self) -> dict[int, int]:
        """Returns {rank: process id} of the training processes."""
        found = {}
        for name in os.listdir("/proc"):
            rank = self._rank_of(name) if name.isdigit() else None
            if rank is not None:
                found[rank] = int(name)
        return found

    def _rank_of(self, name: str) -> int | None:
        """Returns the rank of a process of this job; None of any other."""
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                arguments = file.read().decode(errors="replace").split("\0")
            if f"--model_dir={self.model_dir}" not in arguments or not arguments[1].endswith("train.py"):
                return None
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = dict(
                    part.split("=", 1) for part in file.read().decode().split("\0") if "=" in part
                )
            return int(json.loads(variables["TF_CONFIG"])["task"]["index"])
        except (OSError, KeyError, IndexError, UnicodeDecodeError):
            return None

    def step(self) -> int:
        """Returns the step of the newest line of the metrics; 0 without lines."""
        lines = read_lines(f"{self.model_dir}/metrics.jsonl")
        return lines[-1]["step"] if lines else 0

    def wait(self) -> int | None:
        """Returns the exit code of the job; None if it hangs and was killed."""
        try:
            return self.popen.wait(timeout=LIMIT_SECS)
        except subprocess.TimeoutExpired:
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()
            return None

    def last_line(self) -> str:
        """Returns the end of the job's output, without paths of this machine."""
        with open(self.log, "rb") as file:
            lines = file.read().decode(errors="replace").strip().splitlines()
        return (lines or [""])[-1].replace(os.path.dirname(self.model_dir), "")[:200]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def kill_one(job: Job, rank: int, secs: float) -> dict | None:
    """Kills a worker `secs` after the launch. Returns {rank, after_secs, at_step}; None if the job ended
    before."""
    time.sleep(max(job.started + secs - time.monotonic(), 0))
    while not job.is_over():
        found = job.ranks().get(rank)
        if found is not None:
            seen = {"rank": rank, "after_secs": round(secs, 2), "at_step": job.step()}
            os.kill(found, signal.SIGKILL)
            return seen
        time.sleep(0.05)
    return None


def differences(ours: Job, theirs: str) -> list[str]:
    """Returns the parts of a finished job that differ from an undisturbed one in the folder `theirs`:
    checkpoint, metrics, scores."""
    import numpy as np

    from official.checkpoint import bundle_reader

    folders = (ours.model_dir, theirs)
    results = [json.load(open(f"{folder}/result.json", encoding="utf-8")) for folder in folders]
    names = ("status", "step", "samples", "eval_accuracy", "eval_loss")
    found = [name for name in names if results[0].get(name) != results[1].get(name)]
    readers = [bundle_reader.new_reader(f"{folder}/ckpt-{results[1]['step']}") for folder in folders]
    for name in readers[1].get_variable_to_shape_map():
        if not np.array_equal(*(reader.get_tensor(name) for reader in readers)):
            found.append(f"ckpt: {name}")
    lines = [read_lines(f"{folder}/metrics.jsonl") for folder in folders]
    return found + (["metrics.jsonl"] if lines[0] != lines[1] else [])


# -----------------------------------------------------------------------------------------------------------
# Many jobs


def undisturbed(data: str, folder: str, workers: int) -> tuple[str, float]:
    """Runs a job without kills. Returns its folder, and the seconds from the launch to the end of the
    training."""
    job = Job(data, f"{folder}/whole", workers, 0)
    if job.wait():
        raise ConfigError(f"the undisturbed job ended with {job.popen.returncode}: {job.last_line()}")
    with open(f"{job.model_dir}/result.json", encoding="utf-8") as file:
        result = json.load(file)
    return job.model_dir, result["startup_secs"] + result["wall_secs"]


def disturbed(data: str, model_dir: str, workers: int, rank: int, secs: float) -> dict | None:
    """Runs a job that loses a worker after `secs`. Returns the hit and the end of the job; None if the job
    ended before."""
    job = Job(data, model_dir, workers, _RESTARTS)
    hit = kill_one(job, rank, secs)
    code = job.wait()
    if hit is None:
        return None
    differs = differences(job, f"{data}/whole") if code == 0 else [f"exit {code}: {job.last_line()}"]
    return {**hit, "exit_code": code, "differs": differs}


def summarize(runs: list[dict]) -> dict:
    """Returns the counts for the report."""
    return {
        "runs": len(runs),
        "killed_chief": sum(run["rank"] == 0 for run in runs),
        "killed_before_the_first_line": sum(run["at_step"] == 0 for run in runs),
        "wrong_exit_codes": sum(run["exit_code"] != 0 for run in runs),
        "runs_that_differ": sum(bool(run["differs"]) for run in runs),
    }


def run_all(flags: argparse.Namespace, folder: str) -> list[dict]:
    """Runs the jobs. Returns the result of `disturbed` for each."""
    rng, runs, number = random.Random(flags.seed), [], 0
    whole, secs = undisturbed(folder, folder, flags.workers)
    print(f"undisturbed: {secs:.1f} s, {whole}", flush=True)
    while len(runs) < flags.runs:
        number += 1
        rank = len(runs) % flags.workers
        run = disturbed(folder, f"{folder}/run-{number}", flags.workers, rank, rng.random() * secs)
        if run is None:
            continue
        runs.append(run)
        how = f"rank {run['rank']} after {run['after_secs']:5.1f} s, step {run['at_step']:3}"
        same = ", ".join(run["differs"]) or "the same bits"
        print(f"{len(runs):3} killed {how}: exit {run['exit_code']}, {same}", flush=True)
    return runs


def main() -> int:
    flags = parse_flags()
    if flags.output:
        check_output_file(flags.output, "output", flags.overwrite)
    from official.reporting.environment import environment

    surroundings = environment()  # now, since the checkout may change meanwhile
    with tempfile.TemporaryDirectory() as folder:
        try:
            make_data(folder)
        except subprocess.CalledProcessError as error:
            raise ConfigError(f"the records cannot be made: {error.stderr.decode()[-150:].strip()}") from None
        runs = run_all(flags, folder)
    summary = summarize(runs)
    print(json.dumps(summary, indent=1))
    if flags.output:
        values = {"command": command_line.as_typed(), "environment": surroundings, **summary, "kills": runs}
        outputs.write_json(flags.output, values)
    return int(bool(summary["wrong_exit_codes"] or summary["runs_that_differ"]))


if __name__ == "__main__":
    signals.watch()
    command_line.run(main)
