"""The table of commands: what follows `bert`, the module that it is, and a line of help.

A module has `main()`, which returns an exit code or None, and `make_parser()`, which makes its flags; or
`start()`, which ends the process itself. The first word of a name of two is a group.
"""

import importlib
from typing import Any, NamedTuple

from official.io.errors import ConfigError, suggest


class Command(NamedTuple):
    """A row of the table."""

    name: str
    module: str
    help: str

    @property
    def group(self) -> str | None:
        """The first of two words, else None."""
        first, space, _ = self.name.partition(" ")
        return first if space else None

    def load(self) -> Any:
        """Imports the module, which loads no TensorFlow."""
        return importlib.import_module(self.module)


_ROWS = (
    Command("train", "official.cli.train", "pre-train, or fine-tune on SQuAD or GLUE"),
    Command("plan", "official.cli.train", "show what a run will be: batches, steps, FLOPs, memory"),
    Command("launch", "official.cli.launch", "start the processes of a run, and again after a loss"),
    Command("vocab", "official.cli.text", "learn a WordPiece vocabulary from text"),
    Command("data create", "official.cli.text", "text to records of masked words and sentence pairs"),
    Command("data prepare", "official.cli.text", "clean text, split it, hold some out"),
    Command("data corpus", "official.cli.text", "a small English corpus of what is installed"),
    Command("data inspect", "official.cli.records", "check records and show what they hold"),
    Command("data eval-set", "official.cli.records", "MLPerf's evaluation set: evenly spaced records"),
    Command("data glue", "official.cli.glue", "download GLUE"),
    Command("pack", "official.cli.records", "pack several sequences of records into a row, or plan it"),
    Command("inspect", "official.cli.checkpoints", "show the tensors of a checkpoint of any format"),
    Command("convert", "official.cli.checkpoints", "convert checkpoints between formats"),
    Command("evaluate squad-v1", "official.cli.scores", "score answers to SQuAD 1.1"),
    Command("evaluate squad-v2", "official.cli.scores", "score answers to SQuAD 2.0"),
    Command(
        "evaluate glue-submission",
        "official.cli.scores",
        "check and zip predictions for GLUE's server",
    ),
    Command("ask", "official.cli.ask", "answer typed questions about a text"),
    Command("classify", "official.cli.ask", "label typed sentences"),
    Command("fill-mask", "official.cli.ask", "predict the words that are [MASK] in typed text"),
    Command("serve", "official.cli.serve", "serve a model over HTTP: REST, the v2 protocol, a page"),
    Command("export", "official.cli.checkpoints", "write a model for other programs: SavedModel or ONNX"),
    Command("render-job", "official.cli.render_job", "write a training command as a job of Kubernetes"),
    Command("compare", "official.cli.runs", "compare runs: settings, results, curves, MLPerf score"),
    Command("record", "official.cli.runs", "keep the numbers and the picture of a finished run"),
    Command("benchmark run", "official.cli.benchmark.run", "the benchmarks of a YAML file"),
    Command("benchmark step", "official.cli.benchmark.step", "the training step, beside bare products"),
    Command("benchmark inference", "official.cli.benchmark.inference", "throughput and latency of inference"),
    Command("completion", "official.cli.completion", "print completions for bash, zsh or fish"),
)
COMMANDS = {command.name: command for command in _ROWS}
GROUPS = {
    "data": "make, check and download data",
    "evaluate": "score predictions",
    "benchmark": "measure",
}
# Benchmarks that are programs of a checkout.
PROGRAMS = {
    name: f"benchmarks/{name.replace('-', '_')}.py"
    for name in (
        "conversion data data-scale exports fine-tuning memory numerics optimizer packing peers scores"
        " serving start"
    ).split()
} | {"features": "benchmarks/squad_features.py", "profile": "benchmarks/step_profile.py"}
DEFAULTS = {"data": "create", "benchmark": "run"}  # what a group without a second word is


def find(arguments: list[str]) -> tuple[Command, list[str]]:
    """Returns the command that a command line begins with, and the rest of it.

    Underscores count as hyphens. Raises ConfigError where there is none.
    """
    first = _hyphened(arguments[0]) if arguments else ""
    if first in COMMANDS:
        return COMMANDS[first], arguments[1:]
    names = list(dict.fromkeys(command.group or command.name for command in _ROWS))
    if first not in GROUPS:
        problem = f"unknown command {arguments[0][:100]!r}" if arguments else "a command is missing"
        raise ConfigError(f"{problem}{suggest(first, names)}. It is one of {', '.join(names)}. See --help.")
    second = _hyphened(arguments[1]) if len(arguments) > 1 else ""
    if f"{first} {second}" in COMMANDS:
        return COMMANDS[f"{first} {second}"], arguments[2:]
    if first in DEFAULTS and (not second or second.startswith("-")):
        return COMMANDS[f"{first} {DEFAULTS[first]}"], arguments[1:]
    if first == "benchmark" and second in PROGRAMS:
        raise ConfigError(f"benchmark {second} is a program of a checkout: python {PROGRAMS[second]}.")
    names = members(first)
    problem = "" if not second else f" {arguments[1][:100]!r} is unknown{suggest(second, names)}:"
    raise ConfigError(f"{first}:{problem} give one of {', '.join(names)}. See bert {first} --help.")


def members(group: str) -> list[str]:
    """Returns the second words of a group's commands."""
    return [command.name.partition(" ")[2] for command in _ROWS if command.group == group]


def help_text() -> str:
    """Returns all commands, a line each; of a group, its second words."""
    rows = {}
    for command in _ROWS:
        name = command.group or command.name
        rows[name] = f"{GROUPS[name]}: {', '.join(members(name))}" if command.group else command.help
    lines = [f"  {name:<11} {text}" for name, text in rows.items()]
    first, last = "BERT on TensorFlow 2.  bert COMMAND [flags]", "bert COMMAND --help shows its flags."
    return "\n".join([first, "", *lines, "", last])


def group_help(group: str) -> str:
    """Returns the commands of a group, a line each."""
    rows = [(command.name, command.help) for command in _ROWS if command.group == group]
    lines = [f"  {name:<26} {text}" for name, text in rows]
    without = [f"Without NAME: {DEFAULTS[group]}."] if group in DEFAULTS else []
    last = f"bert {group} NAME --help shows its flags."
    return "\n".join([f"bert {group} NAME [flags]: {GROUPS[group]}", "", *lines, "", *without, last])


def _hyphened(word: str) -> str:
    return word if word.startswith("-") else word.replace("_", "-")
