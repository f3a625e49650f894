"""The cases of fuzz.py: a command, what it needs, and one thing that is damaged."""

import dataclasses
import glob
import os
import random
import shutil
import string

from fuzzing import damage, definitions

# Values that are tried for any flag: small where they are valid, as a million steps are valid, too.
_VALUES = (
    "",
    "0",
    "1",
    "2",
    "3",
    "5",
    "8",
    "16",
    "-1",
    "-7",
    "0.5",
    "1e-3",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "true",
    "false",
    "None",
    "[]",
    "abc",
    "32",
    "7",
    "0x10",
    "1_0",
    "dynamic",
    "lamb",
    "adamw",
    "fp32",
    "bf16",
    "mirrored",
    "one_device",
    "none",
    "a\udce9b",
    "\x1b[2J",
    "micro_batch",
    "ünïcödé",
    "a,b",
    "*",
    "nowhere/*",
    "x" * 300,
    "line\nbreak",
    "99999999999999999999",
    "9" * 5000,
)
_LOST = ("--flagfile=nowhere", "--config=nowhere.json")
# Flags left alone: they would try another machine for a long time.
_SPARED = (
    "tpu",
    "worker_hosts",
    "distribution_strategy",
    "wandb",
    "num_virtual_devices",
    "tpu_zone",
    "gcp_project",
)


@dataclasses.dataclass(frozen=True)
class Case:
    """What one case does: the command, its arguments, what is damaged, and what is expected."""

    number: int
    command: definitions.Command
    arguments: tuple[str, ...]
    kind: str
    what: str
    expected: str


def make_case(number: int, seed: int, command: definitions.Command, base: str, folder: str) -> Case:
    """Copies what a command needs, damages one thing, and returns the case."""
    rng = random.Random(f"{seed} {number}")
    os.makedirs(folder)
    for part in command.parts:
        source, target = os.path.join(base, part), os.path.join(folder, part)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        (shutil.copytree if os.path.isdir(source) else shutil.copyfile)(source, target)
    if command.typed:
        with open(os.path.join(folder, "stdin"), "w", encoding="utf-8") as file:
            file.write(command.typed)
    share = 0.75 if len(command.targets) > 1 else 0.5
    if command.targets and rng.random() < share:
        target = rng.choice(command.targets)
        path = _path_of(rng, folder, target)
        what, expected = definitions.DAMAGES[target.kind](rng, path, **target.details)
        return Case(
            number,
            command,
            command.arguments,
            target.kind,
            f"{os.path.relpath(path, folder)}: {what}",
            expected,
        )
    if command.wrong_numbers and (not command.runs or rng.random() < 0.4):
        wrong = rng.choice(command.wrong_numbers)
        return Case(number, command, (*command.arguments, wrong), "wrong number", wrong, damage.REFUSED)
    arguments = damage_arguments(rng, command)
    return Case(number, command, arguments, "flags", "", damage.REFUSED if not command.runs else damage.ANY)


def _path_of(rng: random.Random, folder: str, target: definitions.Target) -> str:
    """Returns the file that is damaged; for checkpoints a prefix."""
    path = os.path.join(folder, target.path)
    if target.kind == "checkpoint" or "*" not in path:
        return path
    return rng.choice(
        sorted(found for found in glob.glob(path, include_hidden=True) if os.path.isfile(found))
    )


def damage_arguments(rng: random.Random, command: definitions.Command) -> tuple[str, ...]:
    """Changes a command line; where the right one must not run, so that it has to be refused."""
    if not command.runs:
        return _refused_arguments(rng, command)
    arguments = list(command.arguments)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _damage_one(rng, arguments, is_training=command.script == "train.py")
        if not arguments:
            break
    return tuple(arguments)


def _refused_arguments(rng: random.Random, command: definitions.Command) -> tuple[str, ...]:
    unknown = f"--{''.join(rng.choice(string.ascii_lowercase) for _ in range(8))}"
    return rng.choice(
        (
            (*command.arguments, unknown),
            (*command.arguments, unknown + "=1"),
            (*command.arguments, "--output"),
            ("surplus",),
        )
    )


def _damage_one(rng: random.Random, arguments: list[str], is_training: bool) -> None:
    """Changes, removes or adds one argument."""
    flags = [
        number
        for number, argument in enumerate(arguments)
        if argument.startswith("--") and argument != "--predictions"
    ]
    number = rng.choice(flags or range(len(arguments)))
    name = arguments[number].partition("=")[0]
    kind = rng.random()
    if kind < 0.45:
        arguments[number] = f"{name}={rng.choice(_VALUES)}"
    elif kind < 0.6:
        del arguments[number]
    elif kind < 0.7:
        arguments[number] = _damage_text(rng, arguments[number])
    elif kind < 0.85 and is_training:
        arguments.append(_any_setting(rng))
    else:
        others = ("--", "-", "surplus", name, f"--no{name[2:]}", *_LOST, "--help")
        arguments.append(rng.choice(others))


def _any_setting(rng: random.Random) -> str:
    from official.config import FIELDS

    name = rng.choice([name for name in FIELDS if name not in _SPARED])
    return f"--{name}={rng.choice(FIELDS[name].choices or _VALUES)}"


def _damage_text(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice(string.printable) + text[place + rng.randrange(2) :]
