"""Measures inference: throughput and latency of this project's back ends, beside Hugging Face + PyTorch.

  bert benchmark inference --max_seq_length=128,384 --micro_batch_size=1,8,32 --dtypes=fp32,bf16 \\
    --peers=huggingface_sdpa --make_environments --output=results/inference

Every system runs in processes of its own, tied to their cores, with the same weights, and answers the same
batches. All take turns, several rounds. --instances=N and mpirun --np N run N of each at once and add up what
they answer. A line of the log tells each turn.
"""

import argparse
import contextlib
import dataclasses
import os
import tempfile
from typing import Any

from official.cli import command_line, outputs
from official.cli.benchmark import environments
from official.cli.benchmark.inference import log_lines, ranks, systems
from official.io.errors import ConfigError

_BATCHES = "1,2,4,8,16,32,64,80"
_LENGTHS = "128,384"


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add("--bert_config_file", default=None, help="Sizes of a made-up model. Unset: --config's, else base's.")
    add("--config", default=None, help="Ours or Graphcore's, such as squad_base_128_inf: sizes and length.")
    add("--checkpoint", default=None, help="A model that was fine-tuned on SQuAD, of any known format.")
    add("--vocab_file", default=None, help="Vocabulary of real questions. Unset: that beside --checkpoint.")
    add(
        "--max_seq_length",
        default=None,
        help=f"Tokens of a row, comma-separated. Unset: --config's, else {_LENGTHS}.",
    )
    add("--micro_batch_size", default=_BATCHES, help="Sequences of a batch, comma-separated.")
    parser.add_bool(
        "generated_data", None, "Ask about made-up rows, all of full length. Unset: without questions."
    )
    add("--predict_file", default=None, help="Real questions: SQuAD JSON.")
    parser.add_bool("whole_set", False, "Each turn answers all questions once; peers pad in every usual way.")
    add(
        "--sequences", type=int, default=None, help="Take so many of the questions' windows, drawn at random."
    )
    add("--backends", default=",".join(systems.BACKENDS), help="Comma-separated back ends of this project.")
    add("--dtypes", default="fp32", help=f"Comma-separated: {', '.join(systems.DTYPES)}.")
    add("--peers", default="", help=f"Comma-separated: {', '.join(systems.PEERS)}.")
    environments.add_flags(parser)
    _add_amounts(parser)
    outputs.add_flags(parser)
    parser.also(
        {
            "input_files": "predict_file",
            "epochs_inference": "rounds",
            "sequence_length": "max_seq_length",
            "seq_length": "max_seq_length",
            "dtype": "dtypes",
        }
    )
    return parser


def _add_amounts(parser: command_line.Parser) -> None:
    add = parser.add_argument
    add("--instances", type=int, default=1, help="Processes of each system that answer at once.")
    add("--num_inference_thread", type=int, default=1, help="Threads of a process that ask at the same time.")
    add("--num_threads", type=int, default=None, help="Threads of a process's products. Unset: its cores.")
    add("--rounds", type=int, default=10, help="Turns of every system in every case.")
    add("--num_iter", type=int, default=None, help="Batches of a thread in all turns. Unset: for --secs.")
    add("--secs", type=float, default=10.0, help="Seconds of a system's turns in a case, without --num_iter.")
    add("--log_style", default="plain", choices=log_lines.STYLES, help="Words of the log's lines.")
    add("--work_dir", default=None, help="Keep the instances' folders in this new one. Unset: temporary.")


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    flags.rank = ranks.find()
    flags.output = ranks.own_output(flags.output, flags.rank)
    flags.work_dir = ranks.own_output(flags.work_dir, flags.rank)
    outputs.check_results(flags)
    command_line.check_counts(flags, "instances", "num_inference_thread", "rounds")
    for name in ("num_threads", "num_iter", "sequences"):
        if getattr(flags, name) is not None:
            command_line.check_counts(flags, name)
    if flags.secs <= 0:
        raise ConfigError(f"--secs={flags.secs:g}, expected more than 0.")
    if flags.work_dir and os.path.exists(flags.work_dir):
        raise ConfigError(f"--work_dir={flags.work_dir} exists. Give a new folder.")
    flags.backends = command_line.read_list(flags.backends, "backends", systems.BACKENDS)
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", systems.DTYPES)
    flags.peers = command_line.read_list(flags.peers, "peers", tuple(systems.PEERS)) if flags.peers else []
    flags.micro_batch_size = read_sizes(flags.micro_batch_size, "micro_batch_size")
    cores = ranks.own_cores(sorted(os.sched_getaffinity(0)), flags.rank, os.cpu_count() or 1)
    flags.cores = ranks.split(cores, flags.instances)
    return flags


def read_sizes(text: str, flag: str) -> list[int]:
    """Returns the numbers of a comma-separated list. Raises ConfigError."""
    sizes = [
        int(part) if part.strip().isascii() and part.strip().isdigit() else 0 for part in text.split(",")
    ]
    if min(sizes) < 1:
        raise ConfigError(f"--{flag}={text[:100]}, expected numbers from 1, comma-separated.")
    return sizes


def settle(flags: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Fills in what --config says and no flag does. Raises ConfigError for what does not go together."""
    lengths = flags.max_seq_length or str(settings.get("max_seq_length", _LENGTHS))
    flags.max_seq_length = read_sizes(lengths, "max_seq_length")
    if flags.checkpoint and flags.bert_config_file:
        raise ConfigError(
            "--bert_config_file is for a model that is made up, and --checkpoint is one. Drop one."
        )
    named = None if flags.checkpoint else settings.get("vocab_file")
    flags.vocab_file = flags.vocab_file or named
    flags.predict_file = flags.predict_file or settings.get("predict_file")
    if flags.generated_data is None:
        flags.generated_data = flags.predict_file is None
    if not flags.generated_data and not flags.predict_file:
        raise ConfigError("--generated_data=false needs --predict_file=FILE.json.")
    if flags.generated_data and flags.whole_set:
        raise ConfigError("--whole_set answers real questions. Give --predict_file=FILE.json.")


def main() -> None:
    flags = parse_flags()
    from official.cli.benchmark.inference import cases, models, report

    settings = models.settings_of(flags)
    settle(flags, settings)
    found = models.find(flags, settings)
    environments.prepare(
        [
            (name, peer.environment)
            for name, peer in systems.PEERS.items()
            if name in flags.peers and peer.environment
        ],
        flags.environments,
        flags.make_environments,
    )
    with contextlib.ExitStack() as stack:
        folder = flags.work_dir or stack.enter_context(tempfile.TemporaryDirectory())
        measured = cases.measure(flags, found, os.path.abspath(folder))
    rows = measured["cases"]
    comparison = report.verdicts(rows)
    print("\n".join([report.table(rows), *comparison]))
    name = model_name(flags)
    record = {"model": name, "config": dataclasses.asdict(found.bert), **measured, "comparison": comparison}
    title = f"Inference of {name}, {flags.instances} instance{'s' * (flags.instances > 1)}"
    outputs.write_results(flags.output, record, lambda: report.draw(rows, title))


def model_name(flags: argparse.Namespace) -> str:
    """Returns the model's name, from the file or folder that it is from."""
    path = flags.checkpoint or flags.bert_config_file or flags.config or "bert_base"
    return outputs.stem(os.path.normpath(path))
