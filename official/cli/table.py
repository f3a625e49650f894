"""The table of commands: words after `bert`, the function that runs the command, and a line of help.

The function returns an exit code or None, or ends the process. The flags of `run_fill_mask` are the class
`FillMask` of the same module, those of `main` the class `Main`; a command without a class has the settings of
training as flags.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from official.io.errors import ConfigError, suggest


class Command(NamedTuple):
    """A row of the table."""

    name: str
    module: str
    function: str
    help: str

    @property
    def group(self) -> str | None:
        """The first of two words, else None."""
        first, space, _ = self.name.partition(" ")
        return first if space else None

    def load(self) -> Callable[[], Any]:
        """Imports the module, which loads no TensorFlow, and returns the function."""
        return getattr(importlib.import_module(self.module), self.function)

    def parser(self) -> Any:
        """Returns the parser of its flags; None: they are the settings of training."""
        name = self.function.removeprefix("run_").title().replace("_", "")
        flags = getattr(importlib.import_module(self.module), name, None)
        return flags.parser() if flags else None


_ROWS = tuple(
    Command(name, f"official.cli.{module}", function, text)
    for name, module, function, text in (
        ("train", "train", "start", "pre-train, or fine-tune on your own data, SQuAD or GLUE"),
        ("plan", "train", "start_plan", "compute batches, steps, FLOPs, memory and hours of a run"),
        ("adapt", "adapt", "run_adapt", "continue a model's pre-training on your own text"),
        ("launch", "launch", "main", "start the processes of a run, restart them after a loss"),
        ("vocab", "text", "run_vocab", "learn a WordPiece vocabulary from text"),
        ("data create", "text", "run_create", "make pre-training records from text"),
        ("data prepare", "text", "run_prepare", "clean text, split it into sentences, hold documents out"),
        ("data corpus", "text", "run_corpus", "make a small English corpus from installed packages"),
        ("data inspect", "records", "run_inspect", "check records, print statistics and examples"),
        ("data eval-set", "records", "run_eval_set", "MLPerf's evaluation set: evenly spaced records"),
        ("data glue", "glue", "run_glue", "download GLUE"),
        ("pack", "records", "run_pack", "pack several sequences into each row, or plan it"),
        ("inspect", "checkpoints", "run_inspect", "show the tensors of a checkpoint of any format"),
        ("convert", "checkpoints", "run_convert", "convert checkpoints between formats"),
        ("evaluate squad-v1", "scores", "run_squad_v1", "score answers to SQuAD 1.1"),
        ("evaluate squad-v2", "scores", "run_squad_v2", "score answers to SQuAD 2.0"),
        ("evaluate glue-submission", "scores", "run_glue_submission", "zip predictions for GLUE's server"),
        ("ask", "ask", "run_ask", "answer typed questions about a text"),
        ("classify", "ask", "run_classify", "label typed sentences"),
        ("tag", "ask", "run_tag", "tag the words of typed text"),
        ("predict", "ask", "run_predict", "predict for every row of a table"),
        ("embed", "vectors", "run_embed", "make an embedding of every text of a table"),
        ("search", "vectors", "run_search", "find the nearest texts to a query among embeddings"),
        ("fill-mask", "ask", "run_fill_mask", "predict the words at [MASK] in typed text"),
        ("serve", "serve", "main", "serve a model over HTTP: REST, the v2 protocol, a page"),
        ("export", "checkpoints", "run_export", "write a model for other programs: SavedModel or ONNX"),
        ("render-job", "render_job", "main", "write a Kubernetes manifest for a training command"),
        ("compare", "runs", "run_compare", "compare runs: settings, results, curves, MLPerf score"),
        ("benchmark run", "benchmark.run", "main", "run the benchmarks of a YAML file"),
        ("benchmark step", "benchmark.step", "main", "time the training step and bare matrix products"),
        ("benchmark inference", "benchmark.inference", "main", "measure throughput and latency of inference"),
        ("doctor", "doctor", "run_doctor", "check this machine: driver, CUDA, devices, XLA, limits"),
        ("completion", "completion", "main", "print completions for bash or zsh"),
    )
)
COMMANDS = {command.name: command for command in _ROWS}
GROUPS = {"data": "make, check and download data", "evaluate": "score predictions", "benchmark": "measure"}
DEFAULTS = {"data": "create", "benchmark": "run"}  # second word of a group if it is left out


def find(arguments: list[str]) -> tuple[Command, list[str]]:
    """Returns the command at the beginning of a command line, and the remaining arguments.

    Underscores count as hyphens. Raises ConfigError for an unknown or missing command.
    """
    first, second, *_ = *map(_hyphened, arguments[:2]), "", ""
    if first in COMMANDS:
        return COMMANDS[first], arguments[1:]
    if first not in GROUPS:
        names = list(dict.fromkeys(command.group or command.name for command in _ROWS))
        problem = f"unknown command {arguments[0][:100]!r}" if arguments else "a command is missing"
        raise ConfigError(f"{problem}{suggest(first, names)}. It is one of {', '.join(names)}. See --help.")
    if f"{first} {second}" in COMMANDS:
        return COMMANDS[f"{first} {second}"], arguments[2:]
    if first in DEFAULTS and (not second or second.startswith("-")):
        return COMMANDS[f"{first} {DEFAULTS[first]}"], arguments[1:]
    names = members(first)
    problem = f" {arguments[1][:100]!r} is unknown{suggest(second, names)}:" if second else ""
    raise ConfigError(f"{first}:{problem} give one of {', '.join(names)}. See bert {first} --help.")


def members(group: str) -> list[str]:
    """Returns the second words of a group's commands."""
    return [command.name.partition(" ")[2] for command in _ROWS if command.group == group]


def help_text() -> str:
    """Returns all commands, one per line; for a group its second words."""
    rows = {command.group or command.name: command.help for command in _ROWS}
    rows |= {group: f"{text}: {', '.join(members(group))}" for group, text in GROUPS.items()}
    lines = [f"  {name:<11} {text}" for name, text in rows.items()]
    first, last = "BERT on TensorFlow 2.  bert COMMAND [flags]", "bert COMMAND --help shows its flags."
    return "\n".join([first, "", *lines, "", last])


def group_help(group: str) -> str:
    """Returns the commands of a group, a line each."""
    lines = [f"  {command.name:<26} {command.help}" for command in _ROWS if command.group == group]
    without = [f"Without NAME: {DEFAULTS[group]}."] if group in DEFAULTS else []
    last = f"bert {group} NAME --help shows its flags."
    return "\n".join([f"bert {group} NAME [flags]: {GROUPS[group]}", "", *lines, "", *without, last])


def _hyphened(word: str) -> str:
    return word if word.startswith("-") else word.replace("_", "-")
