"""Measures how long a process takes from its start to its first answer: imports, loading, the first question.

  bert benchmark start --output=results/start_inference_bert_base.json
  bert benchmark start --checkpoint=runs/squad --backends=tensorflow,onnxruntime,openvino --dtypes=fp32,bf16

Every start is a process of its own; cases take turns. The first turn is not counted: it fills the caches of
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

from official.cli import command_line, outputs
from official.cli.benchmark import inputs
from official.io.errors import ConfigError
from official.io.writing import check_output_file

_QUESTION = "Who was first?"
_CONTEXT = "The first one was Ada, who wrote a letter to the king of Spain."
_MOMENTS = ("imported", "loaded", "built", "answered")  # of a process, in their order
_CHILD = "import sys; from official.cli.benchmark import start; start.ask(*sys.argv[1:])"


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    inputs.add_model_flag(parser, text="Sizes of a model of random weights, without --checkpoint.")
    parser.add_argument("--checkpoint", default=None, help="A model that was fine-tuned on SQuAD.")
    parser.add_argument("--backends", default="tensorflow", help="Comma-separated back ends.")
    parser.add_argument("--dtypes", default="fp32", help="Comma-separated types: fp32, bf16.")
    inputs.add_timing_flags(parser, rounds=3)
    parser.add_argument("--output", default=None, help="Also write the figures to this JSON file.")
    parser.add_argument("--overwrite", action="store_true", help="Replace it where it is there.")
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    if flags.rounds < 1:
        raise ConfigError(f"--rounds={flags.rounds} is out of range. Allowed: 1 or more.")
    if flags.output:
        check_output_file(flags.output, "output", flags.overwrite)
    return flags


def ask(checkpoint: str, backend: str, dtype: str) -> None:
    """Asks a model twice and prints as JSON when what was done, in seconds since 1970, and the seconds of the
    second question: what a process does whose start is measured."""
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
      The seconds between its moments: `imported`, `loaded`, `built` and `answered`, from the one before; from
      its start to its first answer `first_answer`; and `second`, of the second question.

    Raises:
      ConfigError: where the model cannot be asked so.
    """
    began = time.time()
    words = [sys.executable, "-c", _CHILD, checkpoint, backend, dtype]
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


def table(measured: dict) -> str:
    """Returns the cases, a line each, in seconds."""
    lines = [f"{'seconds':<20} import   load  build  first answer  in all  second question"]
    for row in measured["cases"]:
        secs, name = row["secs"], f"{row['backend']} {row['dtype']}"
        lines.append(
            f"{name:<20} {secs['imported']:6.2f} {secs['loaded']:6.2f} {secs['built']:6.2f}"
            f" {secs['answered']:13.2f} {secs['first_answer']:7.2f} {secs['second']:16.3f}"
        )
    return "\n".join(lines)


def write_made_up(config_file: str, folder: str) -> None:
    """Writes a checkpoint of random weights that answers questions, with its vocabulary."""
    from official.checkpoint.containers import bundle
    from official.config import bert_config_from_dict
    from official.inference import source

    settings = inputs.read_model(config_file)
    found = source.random_source(bert_config_from_dict(settings, config_file), "answer")
    bundle.write(found.tensors, os.path.join(folder, "ckpt-0"))
    outputs.write_json(os.path.join(folder, "config.json"), settings)
    outputs.write_file(os.path.join(folder, "vocab.txt"), "\n".join(found.vocabulary.words) + "\n")


def main() -> None:
    flags = parse_flags()
    with tempfile.TemporaryDirectory() as folder:
        if not flags.checkpoint:
            write_made_up(flags.bert_config_file, folder)
        measured = measure(flags, flags.checkpoint or folder, os.path.join(folder, "caches"))
    print(table(measured))
    if flags.output:
        from official.reporting import environment

        record = {"command": command_line.as_typed(), **measured, "environment": environment.environment()}
        outputs.write_json(flags.output, record)
