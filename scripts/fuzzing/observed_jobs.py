"""A small pre-training job of several processes under the launcher, seen and hit from outside."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

from fuzzing.observed_runs import ROOT, read_lines
from official.cli.outputs import write_file, write_json

LIMIT_SECS = 600.0  # a job takes one or two minutes; what takes longer hangs
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


def make_data(folder: str) -> None:
    """Writes model, vocabulary and records of made-up sentences.

    Raises:
      subprocess.CalledProcessError: where the records cannot be made.
    """
    rng, words = random.Random(0), [*_SPECIAL, *_WORDS]
    write_json(f"{folder}/bert.json", {"vocab_size": len(words), **_MODEL})
    write_file(f"{folder}/vocab.txt", "\n".join(words) + "\n")
    documents = ["\n".join(_sentence(rng) for _ in range(8)) for _ in range(80)]
    write_file(f"{folder}/text.txt", "\n\n".join(documents) + "\n")
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
    """A job that goes on under the launcher, and what can be seen of it from outside.

    Args:
      data: folder of `make_data`.
      model_dir: of the run.
      workers: how many processes.
      restarts: how often the launcher starts them again.
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
        """Returns {rank: number of the process} of those that train."""
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
        """Returns the step of the newest line of the metrics; 0 before the first one."""
        lines = read_lines(f"{self.model_dir}/metrics.jsonl")
        return lines[-1]["step"] if lines else 0

    def wait(self) -> int | None:
        """Returns the exit code of the job; None where it hangs, and is killed."""
        try:
            return self.popen.wait(timeout=LIMIT_SECS)
        except subprocess.TimeoutExpired:
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()
            return None

    def last_line(self) -> str:
        """Returns the end of what the job has said, without paths of this machine."""
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


def kill_one(job: Job, rng: random.Random, secs: float) -> dict | None:
    """Kills a random worker a while after the job was started. Returns what was hit, {rank, after_secs,
    at_step}; None where the job was over before."""
    time.sleep(max(job.started + secs - time.monotonic(), 0))
    rank = rng.randrange(job.workers)
    while not job.is_over():
        found = job.ranks().get(rank)
        if found is not None:
            seen = {"rank": rank, "after_secs": round(secs, 2), "at_step": job.step()}
            os.kill(found, signal.SIGKILL)
            return seen
        time.sleep(0.05)
    return None


def differences(ours: Job, theirs: str) -> list[str]:
    """Returns what of a job that has ended is not the same as of an undisturbed one, in the folder `theirs`:
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
