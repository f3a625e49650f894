"""Measures the time from the start of a process to its first answer: imports, loading, the first question.

  python benchmarks/start.py --output=results/start_inference_bert_base.json
  python benchmarks/start.py --checkpoint=runs/squad --backends=tensorflow,openvino --dtypes=fp32,bf16

Every start is a separate process; cases run in turns. The first turn is not counted: it fills the caches of
files and of exported models.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import harness
from official.cli import command_line, outputs
from official.io.errors import ConfigError

_QUESTION = "Who was first?"
_CONTEXT = "The first one was Ada, who wrote a letter to the king of Spain."
_MOMENTS = ("imported", "loaded", "built", "answered")  # of a process, in their order


class Main(harness.ModelFlag, harness.NumbersFlags):
    """Flags of the command.

    Attributes:
      bert_config_file: Without --checkpoint: sizes of a model with random weights.
      checkpoint: A model fine-tuned on SQuAD.
      backends: Comma-separated back ends.
      dtypes: Comma-separated types: fp32, bf16.
      rounds: How many times every case is timed.
    """

    RANGES = {"rounds": command_line.COUNT}
    checkpoint: str | None = None
    backends: str = "tensorflow"
    dtypes: str = "fp32"
    rounds: int = 3


def ask(checkpoint: str, backend: str, dtype: str) -> None:
    """Main function of a measured process: asks a model twice, and prints as JSON the times of `_MOMENTS` in
    seconds since 1970, and the seconds of the second question."""
    from official import inference

    moments = {"imported": time.time()}
    try:
        model = inference.load(checkpoint, backend=backend, dtype=dtype)
        moments["loaded"] = time.time()
        model.prepare("answer")
        moments["built"] = time.time()
        model.answer(_QUESTION, _CONTEXT)
        moments["answered"] = time.time()
        model.answer(_QUESTION, _CONTEXT)
    except ConfigError as error:
        sys.exit(f"{error}")
    print(json.dumps({**moments, "second_secs": time.time() - moments["answered"]}))


def time_start(checkpoint: str, caches: str, backend: str, dtype: str) -> dict[str, float]:
    """Starts a process that asks a model, with its caches in the folder `caches`.

    Returns:
      Seconds of `imported`, `loaded`, `built` and `answered`, each since the previous one; `first_answer`,
      from the start to the first answer; and `second`, of the second question.

    Raises:
      ConfigError: if the model cannot answer in this case.
    """
    began = time.time()
    words = [sys.executable, os.path.abspath(__file__), "ask", checkpoint, backend, dtype]
    around = {**os.environ, "BERT_CACHE_DIR": caches}
    done = subprocess.run(words, capture_output=True, text=True, env=around)
    if done.returncode:
        raise ConfigError(f"{backend}, {dtype}: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    ends = [began, *(found[name] for name in _MOMENTS)]
    secs = {name: end - before for name, before, end in zip(_MOMENTS, ends, ends[1:])}
    return {**secs, "first_answer": ends[-1] - began, "second": found["second_secs"]}


def measure(flags: argparse.Namespace, checkpoint: str, caches: str) -> dict:
    """Returns the medians of all cases, and the seconds of each round."""
    cases = [(backend, dtype) for backend in flags.backends.split(",") for dtype in flags.dtypes.split(",")]
    rounds = [[time_start(checkpoint, caches, *case) for case in cases] for _ in range(flags.rounds + 1)][1:]
    rows = []
    for number, (backend, dtype) in enumerate(cases):
        secs = [done[number] for done in rounds]
        medians = {name: round(statistics.median(each[name] for each in secs), 3) for name in secs[0]}
        all_of_them = [round(each["first_answer"], 3) for each in secs]
        rows.append({"backend": backend, "dtype": dtype, "secs": medians, "first_answers": all_of_them})
    return {"rounds": flags.rounds, "cases": rows}


def write_made_up(config_file: str, folder: str) -> None:
    """Writes a question-answering checkpoint with random weights, and its vocabulary."""
    from official.checkpoint.containers import bundle
    from official.config import bert_config_from_dict
    from official.inference import source

    settings = harness.read_model(config_file)
    found = source.random_source(bert_config_from_dict(settings, config_file), "answer")
    bundle.write(found.tensors, os.path.join(folder, "ckpt-0"))
    outputs.write_json(os.path.join(folder, "config.json"), settings)
    outputs.write_file(os.path.join(folder, "vocab.txt"), "\n".join(found.vocabulary.words) + "\n")


def main() -> None:
    flags = Main.parse()
    with tempfile.TemporaryDirectory() as folder:
        if not flags.checkpoint:
            write_made_up(flags.bert_config_file, folder)
        measured = measure(flags, flags.checkpoint or folder, os.path.join(folder, "caches"))
    columns = [
        ("seconds", "name", ""),
        ("import", "imported", ".2f"),
        ("load", "loaded", ".2f"),
        ("build", "built", ".2f"),
        ("first answer", "answered", ".2f"),
        ("in all", "first_answer", ".2f"),
        ("second question", "second", ".3f"),
    ]
    rows = [{"name": f"{row['backend']} {row['dtype']}", **row["secs"]} for row in measured["cases"]]
    print(outputs.table(columns, rows))
    harness.write_json(flags, measured)


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"]:  # a process whose start is measured
        ask(*sys.argv[2:])
    else:
        harness.main(main)
