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

    script: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...]
    targets: tuple[tuple[str, str], ...]
    wrong_numbers: tuple[str, ...]
    typed: str | None
    codes: tuple[int, ...]
    refused_only: bool
    plain: bool


def _command(row: dict) -> Command:
    script, *arguments = row["run"].split()
    numbers = row.get("numbers", "").split()
    return Command(
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


def _rows(rows: dict[str, dict], words: dict[str, str]) -> dict[str, dict]:
    """Returns rows of the table, those of several formats once a format."""
    found = {}
    for name, row in _filled(rows, words).items():
        for format_name, path in row.get("each", {"": ""}).items():
            of_format = {"format": format_name, "path": path} if path else {}
            found[_filled(name, of_format)] = _filled(row, of_format)
    return found


def _words(texts: dict[str, str]) -> dict[str, str]:
    words: dict[str, str] = {}
    for word, text in texts.items():
        words[word] = _filled(text, words)
    return words


_TABLE = yaml.safe_load((pathlib.Path(__file__).parent / "commands.yml").read_text(encoding="utf-8"))
WORDS = _words(_TABLE["words"])
KINDS, PARTS = _filled(_TABLE["kinds"], WORDS), _rows(_TABLE["parts"], WORDS)
COMMANDS = {name: _command(row) for name, row in _rows(_TABLE["commands"], WORDS).items()}
