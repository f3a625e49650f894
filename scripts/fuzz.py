#!/usr/bin/env python3
"""Damages command lines, settings, data and checkpoints and checks that every command ends in order each
time.

In order means: an exit code that the command has, no exception, no hang, for 2 one short line that says what
  is
wrong, and no silence where the damage can be seen. Counts are by command and kind of damage.

  python scripts/fuzz.py --cases=3000 --seed=2 --output=results/fuzz.json
"""

import collections
import dataclasses
import glob
import json
import os
import random
import shutil
import string
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import command_line
from fuzzing import commands, damage, definitions, processes, workspace

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


def parse_flags():
    parser = command_line.Parser(__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=500, help="Random cases; each command gets as many.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of all cases.")
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="Cases that run at a time."
    )
    parser.add_argument("--commands", help=f"Comma-separated; unset: all. {', '.join(commands.COMMANDS)}.")
    parser.add_argument("--keep", help="Folder that keeps the files of the cases that failed.")
    parser.add_argument("--output", help="JSON file for the counts.")
    parser.add_argument("--overwrite", action="store_true", help="Replace --output where it is there.")
    flags = parser.parse()
    command_line.check_counts(flags, "cases", "workers")
    names = tuple(commands.COMMANDS)
    flags.commands = (
        command_line.read_list(flags.commands, "commands", names) if flags.commands else list(names)
    )
    return flags


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
        unknown = f"--{''.join(rng.choice(string.ascii_lowercase) for _ in range(8))}"
        return rng.choice(
            (
                (*command.arguments, unknown),
                (*command.arguments, unknown + "=1"),
                (*command.arguments, "--output"),
                ("surplus",),
            )
        )
    arguments = list(command.arguments)
    for _ in range(rng.choice((1, 1, 2, 3))):
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
        elif kind < 0.85 and command.script == "train.py":
            arguments.append(_any_setting(rng))
        else:
            arguments.append(
                rng.choice(
                    (
                        "--",
                        "-",
                        "surplus",
                        name,
                        f"--no{name[2:]}",
                        "--flagfile=nowhere",
                        "--config=nowhere.json",
                        "--help",
                    )
                )
            )
        if not arguments:
            break
    return tuple(arguments)


def _any_setting(rng: random.Random) -> str:
    from official.config import FIELDS

    name = rng.choice([name for name in FIELDS if name not in _SPARED])
    return f"--{name}={rng.choice(FIELDS[name].choices or _VALUES)}"


def _damage_text(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice(string.printable) + text[place + rng.randrange(2) :]


def fuzz(flags) -> dict:
    """Returns {environment, cases, seed, counts, failures}."""
    from tqdm import tqdm

    from official.reporting.environment import environment

    chosen = [commands.COMMANDS[name] for name in flags.commands]
    surroundings, results = environment(), []
    with tempfile.TemporaryDirectory() as folder, processes.Server() as server:
        base = os.path.join(folder, "base")
        workspace.make(base, server, {part for command in chosen for part in command.parts})
        left, running = collections.deque(range(flags.cases)), {}
        with tqdm(total=flags.cases, disable=None) as bar:
            while left or running:
                while left and len(running) < flags.workers:
                    number = left.popleft()
                    case = make_case(
                        number,
                        flags.seed,
                        chosen[number % len(chosen)],
                        base,
                        os.path.join(folder, str(number)),
                    )
                    running[number] = case
                    server.submit(
                        number, case.command.script, case.arguments, os.path.join(folder, str(number))
                    )
                number, code, secs = server.next_answer()
                results.append(
                    _result(running.pop(number), code, secs, os.path.join(folder, str(number)), flags.keep)
                )
                shutil.rmtree(os.path.join(folder, str(number)))
                bar.update()
    return {
        "environment": surroundings,
        "cases": flags.cases,
        "seed": flags.seed,
        "secs": round(sum(result["secs"] for result in results)),
        **_counts(results),
        "failures": [result for result in results if result["wrong"]],
    }


def _result(case: Case, code: int | None, secs: float, folder: str, keep: str | None) -> dict:
    output, errors = (processes.text_of(os.path.join(folder, name)) for name in ("stdout", "stderr"))
    wrong = processes.judge(case.command.script, code, case.command.codes, case.expected, output, errors)
    if wrong and keep:
        shutil.copytree(folder, os.path.join(keep, str(case.number)), dirs_exist_ok=True)
    return {
        "number": case.number,
        "command": case.command.name,
        "kind": case.kind,
        "what": case.what,
        "expected": case.expected,
        "code": code,
        "secs": secs,
        "wrong": wrong,
        "arguments": [argument[:200].encode("utf-8", "replace").decode() for argument in case.arguments]
        if wrong
        else [],
        "output": (errors.strip() or output.strip())[-1500:] if wrong else "",
    }


def _counts(results: list[dict]) -> dict:
    """Returns {by_kind, by_command}: {name: {exit code or what is wrong: count}}."""
    counts = {}
    for key in ("kind", "command"):
        found = collections.defaultdict(collections.Counter)
        for result in results:
            found[result[key]][result["wrong"] or f"exit {result['code']}"] += 1
        counts[f"by_{key}"] = {name: dict(sorted(found[name].items())) for name in sorted(found)}
    return counts


def main() -> int:
    flags = parse_flags()
    if flags.output:
        command_line.check_output_file(flags.output, "output", flags.overwrite)
    report = fuzz(flags)
    for name, codes in {**report["by_kind"], **report["by_command"]}.items():
        print(f"{name:32}" + "  ".join(f"{code}: {count}" for code, count in codes.items()))
    for failure in report["failures"]:
        print(
            f"\ncase {failure['number']}, {failure['command']}, {failure['what'] or failure['arguments']}: "
            f"{failure['wrong']}\n{failure['output']}"
        )
    print(f"{report['cases']} cases, {len(report['failures'])} not in order.")
    if flags.output:
        command_line.write_file(flags.output, json.dumps(report, indent=1) + "\n")
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    command_line.run(main)
