"""A small fine-tuning run that goes on in a process of its own, seen and hit from outside."""

import json
import os
import random
import signal
import subprocess
import sys
import time

from fuzzing import made_files
from official.cli.outputs import write_file, write_json

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ALLOWED_SECS = 15.0  # from a signal to the end of the process
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


def make_data(folder: str) -> None:
    """Writes model, vocabulary, and files of questions and of sentences about things and their colours."""
    rng = random.Random(0)
    write_json(f"{folder}/bert.json", _MODEL)
    fill = [f"word{number}" for number in range(_MODEL["vocab_size"] - len(_WORDS))]
    write_file(f"{folder}/vocab.txt", "\n".join([*_WORDS, *fill]) + "\n")
    for name, count in (("train", 320), ("dev", 160)):
        articles = [("colours", *_question(rng, number)) for number in range(count)]
        write_json(f"{folder}/{name}.json", made_files.squad(articles))
    os.makedirs(f"{folder}/SST-2", exist_ok=True)
    for name, count in (("train", 320), ("dev", 160), ("test", 160)):
        write_file(f"{folder}/SST-2/{name}.tsv", _sentences(rng, name, count))


def _question(rng: random.Random, number: int) -> tuple[str, list[made_files.Question]]:
    """Returns a context and a question about it."""
    things, colours = rng.sample(_THINGS, 3), rng.choices(_COLOURS, k=3)
    context = " . ".join(f"the {colour} {thing}" for colour, thing in zip(colours, things))
    start = context.index(f"{colours[0]} {things[0]}")
    return context, [made_files.Question(f"q{number}", f"what is the {things[0]} ?", colours[0], start)]


def _sentences(rng: random.Random, split: str, count: int) -> str:
    """Returns a file of sentences, each with whether it ends with red."""
    colours = rng.choices(_COLOURS, k=count)
    texts = [" ".join([*rng.choices(_THINGS, k=6), colour]) for colour in colours]
    if split == "test":
        return made_files.table(("index", "sentence"), [(str(row), text) for row, text in enumerate(texts)])
    rows = [(text, str(int(colour == "red"))) for text, colour in zip(texts, colours)]
    return made_files.table(("sentence", "label"), rows)


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
    """A run that goes on, and what can be seen of it from outside."""

    def __init__(self, task: str, data: str, model_dir: str):
        self.model_dir, self.log = model_dir, model_dir + ".log"
        with open(self.log, "wb") as log:
            self.popen = subprocess.Popen(
                command(task, data, model_dir), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def is_at(self, moment: str) -> bool:
        """Tells whether it has come to a moment, one of `MOMENTS`."""
        if moment == "start-up":  # of the run: what Python does before it runs a line is Python's
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
    """Returns the whole lines of a metrics.jsonl without the time that they took."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    return [{name: value for name, value in line.items() if name != "sequences_per_sec"} for line in lines]


def hit(process: Process, moment: str, number: int, delay: float) -> dict | None:
    """Sends a signal a while after a moment. Returns {moment, signal, exit_code, secs}, or None where the run
    was over before. The exit code is the one that shells see: a process that the signal itself has ended, as
    while Python starts or ends, has 128 and the signal's number, too."""
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
    """Returns what of a run is not the same as of the undisturbed one: checkpoint, metrics, scores,
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
