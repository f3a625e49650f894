"""The table of the commands that are damaged, `commands.yml`."""

import dataclasses
import json
import pathlib
import string

import yaml

# Types and ranges that no flag has whose value is a number.
_NO_NUMBERS = ("abc", "nan", "inf", "1e400", "1_0x", "--", "٣x")


@dataclasses.dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
      name: of the command in the table.
      script: its file, from the root of the project on.
      arguments: a command line that is right.
      needs: files and folders of the workspace.
      targets: files that are damaged, each with the name of a kind of damage.
      wrong_numbers: arguments that must be refused.
      typed: text on stdin.
      codes: exit codes of its own, beside 2 for bad input.
      refused_only: the right command line must not run.
      plain: it does not load TensorFlow.
    """

    name: str
    script: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...]
    targets: tuple[tuple[str, str], ...]
    wrong_numbers: tuple[str, ...]
    typed: str | None
    codes: tuple[int, ...]
    refused_only: bool
    plain: bool


def _command(name: str, row: dict) -> Command:
    script, *arguments = row["run"].split()
    numbers = row.get("numbers", "").split()
    return Command(
        name,
        script,
        tuple(arguments),
        tuple(row.get("needs", "").split()),
        tuple((path, kind) for path, kinds in row.get("damage", {}).items() for kind in kinds),
        tuple(f"--{number}={value}" for number in numbers for value in _NO_NUMBERS),
        row.get("typed"),
        tuple(row.get("codes", [0])),
        row.get("refused_only", False),
        row.get("plain", False),
    )


def _filled(value: object, words: dict[str, str]):
    """Returns a part of the table with words in the place of $NAME."""
    return json.loads(string.Template(json.dumps(value)).safe_substitute(words))


def _read() -> tuple[dict[str, str], dict[str, dict], dict[str, Command]]:
    table = yaml.safe_load((pathlib.Path(__file__).parent / "commands.yml").read_text(encoding="utf-8"))
    words: dict[str, str] = {}
    for word, text in table["words"].items():
        words[word] = _filled(text, words)
    commands = {}
    for name, row in _filled(table["commands"], words).items():
        for format_name, path in row.get("each", {None: None}).items():
            of_format = {"format": format_name, "path": path} if path else {}
            filled = _command(_filled(name, of_format), _filled(row, of_format))
            commands[filled.name] = filled
    return words, _filled(table["kinds"], words), commands


WORDS, KINDS, COMMANDS = _read()
