#!/usr/bin/env python3
"""Kills and interrupts fine-tuning runs at random moments, restarts them, and compares them with undisturbed
ones.

  python scripts/kill_runs.py [--kills=5] [--signals=20] [--seed=1] [--output=results/kills.json]

Two small runs, on generated SQuAD and GLUE files, with --deterministic. `kill -9` hits them while they start,
train, evaluate, save or finish; the restarted run must end with the same bits: checkpoint, metrics.jsonl and
predictions. SIGTERM and SIGINT must end them with 143 and 130 in time, and the runs must resume. If a run
ends before it is hit, another one is started.

Exit codes: 0 all checks passed, 1 a check failed (see the report), 2 bad input.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from official.cli import command_line, outputs
from official.io import signals
from official.io.errors import ConfigError
from official.io.writing import check_output_file

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TASKS = ("squad", "glue")
CODES = {"SIGKILL": 137, "SIGTERM": 143, "SIGINT": 130}
ALLOWED_SECS = 15.0  # maximum time from a signal to the end of the process
MOMENTS = ("start-up", "training", "evaluation", "checkpoint", "finish")
_WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] red blue green what is the ball box sky sea sun hat . ?".split()
_THINGS, _COLOURS = _WORDS[11:17], _WORDS[5:8]
_MODEL = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=48,
)
_STEPS_BETWEEN_EVAL, _LAST_STEP = 60, 480


class Main(command_line.Flags):
    """Flags of the program.

    Attributes:
      kills: Number of kill -9 for each of the two runs.
      signals: Number of SIGTERM and SIGINT, in turn, over both runs.
      seed: Seed of the moments.
      output: Write the counts to this JSON file.
      overwrite: Replace an existing file.
    """

    RANGES = dict.fromkeys(("kills", "signals"), command_line.COUNT)
    kills: int = 5
    signals: int = 20
    seed: int = 1
    output: str | None = None
    overwrite: bool = False


def parse_flags() -> argparse.Namespace:
    flags: argparse.Namespace = Main.parse()
    return flags


# -----------------------------------------------------------------------------------------------------------
# A small fine-tuning run in a separate process, observed and hit from outside


def make_data(folder: str) -> None:
    """Writes model, vocabulary, and data files: questions and sentences about things and their colours."""
    rng = random.Random(0)
    outputs.write_json(f"{folder}/bert.json", _MODEL)
    fill = [f"word{number}" for number in range(_MODEL["vocab_size"] - len(_WORDS))]
    outputs.write_file(f"{folder}/vocab.txt", "\n".join([*_WORDS, *fill]) + "\n")
    for name, count in (("train", 320), ("dev", 160)):
        paragraphs = [_paragraph(rng, number) for number in range(count)]
        articles = [{"title": "colours", "paragraphs": [paragraph]} for paragraph in paragraphs]
        outputs.write_json(f"{folder}/{name}.json", {"version": "1.1", "data": articles})
    os.makedirs(f"{folder}/SST-2", exist_ok=True)
    for name, count in (("train", 320), ("dev", 160), ("test", 160)):
        outputs.write_file(f"{folder}/SST-2/{name}.tsv", _sentences(rng, name, count))


def _paragraph(rng: random.Random, number: int) -> dict:
    """Returns a SQuAD paragraph: a context and a question about it."""
    things, colours = rng.sample(_THINGS, 3), rng.choices(_COLOURS, k=3)
    context = " . ".join(f"the {colour} {thing}" for colour, thing in zip(colours, things))
    answer = {"text": colours[0], "answer_start": context.index(f"{colours[0]} {things[0]}")}
    question = {"id": f"q{number}", "question": f"what is the {things[0]} ?", "answers": [answer]}
    return {"context": context, "qas": [question]}


def _sentences(rng: random.Random, split: str, count: int) -> str:
    """Returns a table of sentences; the label is whether a sentence ends with red."""
    colours = rng.choices(_COLOURS, k=count)
    texts = [" ".join([*rng.choices(_THINGS, k=6), colour]) for colour in colours]
    if split == "test":
        lines = ["index\tsentence", *(f"{row}\t{text}" for row, text in enumerate(texts))]
    else:
        rows = zip(texts, colours)
        lines = ["sentence\tlabel", *(f"{text}\t{int(colour == 'red')}" for text, colour in rows)]
    return "\n".join(lines) + "\n"


def command(task: str, data: str, model_dir: str) -> list[str]:
    """Returns the command line of a run."""
    files = {
        "squad": f"--train_file={data}/train.json --predict_file={data}/dev.json --max_query_length=8",
        "glue": f"--glue_task=sst2 --data_dir={data}",
    }
    return [
        sys.executable,
        os.path.join(ROOT, "train.py"),
        *f"--task={task} {files[task]} --model_dir={model_dir} --bert_config_file={data}/bert.json".split(),
        *f"--vocab_file={data}/vocab.txt --max_seq_length=48 --train_batch_size=8".split(),
        *"--eval_batch_size=8 --num_train_epochs=12 --learning_rate=1e-3 --steps_per_loop=20".split(),
        *f"--checkpoint_every_steps=20 --steps_between_eval={_STEPS_BETWEEN_EVAL} --deterministic".split(),
        *"--do_eval --do_predict --num_gpus=0".split(),
    ]


class Process:
    """A running process of a run, observed from outside."""

    def __init__(self, task: str, data: str, model_dir: str):
        self.model_dir, self.log = model_dir, model_dir + ".log"
        with open(self.log, "wb") as log:
            self.popen = subprocess.Popen(
                command(task, data, model_dir), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def is_at(self, moment: str) -> bool:
        """Tells whether it has reached a moment, one of `MOMENTS`."""
        if moment == "start-up":  # of the run, not of the Python interpreter
            return self._handles_signals()
        if moment == "training":
            return b"First step done" in self.read_log()
        if moment == "checkpoint":
            names = set(os.listdir(self.model_dir)) if os.path.isdir(self.model_dir) else set()
            return any(
                name.startswith("ckpt-") and name.split(".")[0] + ".index" not in names for name in names
            )
        last = self._last_line()
        if moment == "evaluation":
            return (
                b"First step done" in self.read_log()
                and last.get("split") == "train"
                and last["step"] % _STEPS_BETWEEN_EVAL == 0
            )
        return last.get("split") == "eval" and last["step"] == _LAST_STEP

    def _handles_signals(self) -> bool:
        try:
            with open(f"/proc/{self.popen.pid}/status", encoding="ascii") as file:
                caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
        except (OSError, StopIteration):
            return False
        return all(caught >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGTERM))

    def read_log(self) -> bytes:
        with open(self.log, "rb") as file:
            return file.read()

    def _last_line(self) -> dict:
        lines = read_lines(f"{self.model_dir}/metrics.jsonl")
        return lines[-1] if lines else {}


def read_lines(path: str) -> list[dict]:
    """Returns the complete lines of a metrics.jsonl, without times."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    return [{name: value for name, value in line.items() if name != "sequences_per_sec"} for line in lines]


def hit(process: Process, moment: str, number: int, delay: float) -> dict | None:
    """Sends a signal `delay` seconds after a moment. Returns {moment, signal, exit_code, secs}, or None if
    the run ended before. The exit code is that of a shell: 128 + the signal's number also for a process that
    the signal itself ended, such as while Python starts or exits."""
    while process.popen.poll() is None and not process.is_at(moment):
        time.sleep(0.005)
    time.sleep(delay)
    if process.popen.poll() is not None:
        return None
    sent = time.monotonic()
    process.popen.send_signal(number)
    try:
        code = process.popen.wait(timeout=4 * ALLOWED_SECS)
    except subprocess.TimeoutExpired:
        process.popen.kill()
        code = process.popen.wait()
    last_line = (process.read_log().decode(errors="replace").strip().splitlines() or [""])[-1]
    return {
        "moment": moment,
        "signal": signal.Signals(number).name,
        "exit_code": code if code >= 0 else 128 - code,
        "secs": round(time.monotonic() - sent, 2),
        "last_line": last_line.partition(" /")[0],  # without the paths of this machine
    }


def differences(ours: str, theirs: str, process: Process) -> list[str]:
    """Returns the parts of a run that differ from the undisturbed one: checkpoint, metrics, scores,
    predictions."""
    import numpy as np

    from official.checkpoint import bundle_reader

    if process.popen.returncode:
        return [
            f"exit {process.popen.returncode}: {process.read_log().decode(errors='replace').strip()[-200:]}"
        ]
    results = [json.load(open(f"{folder}/result.json", encoding="utf-8")) for folder in (ours, theirs)]
    found = [
        name
        for name in ("status", "step", "samples", "eval_accuracy", "eval_loss", "best_step")
        if results[0].get(name) != results[1].get(name)
    ]
    readers = [bundle_reader.new_reader(f"{folder}/ckpt-{results[1]['step']}") for folder in (ours, theirs)]
    for name in readers[1].get_variable_to_shape_map():
        if not np.array_equal(*(reader.get_tensor(name) for reader in readers)):
            found.append(f"ckpt: {name}")
    if read_lines(f"{ours}/metrics.jsonl") != read_lines(f"{theirs}/metrics.jsonl"):
        found.append("metrics.jsonl")
    for path in results[1]["predictions"]:
        other = os.path.join(ours, os.path.basename(path))
        if not os.path.exists(other) or open(other, "rb").read() != open(path, "rb").read():
            found.append(os.path.basename(path))
    return found


# -----------------------------------------------------------------------------------------------------------
# Many runs


def disturb(task: str, data: str, folder: str, numbers: list[int], whole: str, rng: random.Random) -> dict:
    """Sends signals to runs of a task, each of which resumes where the previous one was hit, and compares the
    completed ones with `whole`.

    Returns:
      {hits: [see `hit`], runs: [differences from the undisturbed run, empty if there are none]}.
    """
    hits, runs, numbers = [], [], list(numbers)
    with open(f"{whole}/result.json", encoding="utf-8") as file:
        longest_delays = {"start-up": json.load(file)["first_step_secs"], "training": 3.0}
    while numbers:
        model_dir, over = f"{folder}/{task}-{numbers[0]}-{len(runs)}", False
        while not over:
            process = Process(task, data, model_dir)
            moment = rng.choice(MOMENTS)  # not a random time, since most moments are short
            seen = (
                hit(process, moment, numbers[0], rng.random() * longest_delays.get(moment, 0.3))
                if numbers
                else None
            )
            if seen:
                hits.append(seen)
                numbers.pop(0)
                code, secs = seen["exit_code"], seen["secs"]
                print(
                    f"{task:5} {seen['signal']:7} {moment:10} exit {code:4} after {secs:5.2f} s", flush=True
                )
                if code != CODES[seen["signal"]]:
                    print(process.read_log().decode(errors="replace")[-2000:], flush=True)
            else:
                over = process.popen.wait() != 0 or os.path.exists(f"{model_dir}/result.json")
        runs.append(differences(model_dir, whole, process))
        print(f"{task:5} resumed to its end: {', '.join(runs[-1]) or 'the same bits'}", flush=True)
    return {"hits": hits, "runs": runs}


def undisturbed(task: str, data: str, folder: str) -> str:
    """Runs a task without signals; returns the folder of the run."""
    process = Process(task, data, f"{folder}/{task}-whole")
    if process.popen.wait():
        raise ConfigError(
            f"the undisturbed run of {task} ended with {process.popen.returncode}: "
            f"{process.read_log().decode(errors='replace')[-150:]}"
        )
    return process.model_dir


def summarize(report: dict) -> dict:
    """Returns the counts for the report, and whether all checks passed."""
    kinds = ("kills", "signals")
    hits = {kind: [seen for task in TASKS for seen in report[task][kind]["hits"]] for kind in kinds}
    runs = [run for task in TASKS for kind in kinds for run in report[task][kind]["runs"]]
    return {
        "kills": len(hits["kills"]),
        "signals": len(hits["signals"]),
        "moments": {
            moment: sum(seen["moment"] == moment for kind in kinds for seen in hits[kind])
            for moment in MOMENTS
        },
        "wrong_exit_codes": sum(
            seen["exit_code"] != CODES[seen["signal"]] for kind in kinds for seen in hits[kind]
        ),
        "longest_secs": max(seen["secs"] for seen in hits["signals"]),
        "late": sum(seen["secs"] > ALLOWED_SECS for seen in hits["signals"]),
        "runs_that_went_on": len(runs),
        "runs_that_differ": sum(bool(run) for run in runs),
    }


def main() -> int:
    flags = parse_flags()
    if flags.output:
        check_output_file(flags.output, "output", flags.overwrite)
    from official.reporting.environment import environment

    surroundings = environment()  # now, since the checkout may change meanwhile
    rng, report = random.Random(flags.seed), {}
    in_turn = [(signal.SIGTERM, signal.SIGINT)[number % 2] for number in range(flags.signals)]
    with tempfile.TemporaryDirectory() as folder:
        make_data(folder)
        for index, task in enumerate(TASKS):
            whole = undisturbed(task, folder, folder)
            report[task] = {
                "kills": disturb(task, folder, folder, [signal.SIGKILL] * flags.kills, whole, rng),
                "signals": disturb(
                    task,
                    folder,
                    folder,
                    in_turn[index * len(in_turn) // 2 : (index + 1) * len(in_turn) // 2],
                    whole,
                    rng,
                ),
            }
    summary = summarize(report)
    print(json.dumps(summary, indent=1))
    if flags.output:
        values = {
            "command": command_line.as_typed(),
            "environment": surroundings,
            **summary,
            "tasks": report,
        }
        outputs.write_json(flags.output, values)
    return int(bool(summary["wrong_exit_codes"] or summary["late"] or summary["runs_that_differ"]))


if __name__ == "__main__":
    signals.watch()
    command_line.run(main)
