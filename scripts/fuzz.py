#!/usr/bin/env python3
"""Damages command lines, settings, data and checkpoints and checks that every command ends in order each
time.

In order means: an exit code that the command has, no exception, no hang, for 2 one short line that says
what is wrong, and no silence where the damage can be seen. Counts are by command and kind of damage.

  python scripts/fuzz.py --cases=3000 --seed=2 --output=results/fuzz.json
"""

import argparse
import collections
import os
import shutil
import tempfile

from fuzzing import commands, processes, workspace
from fuzzing.cases import Case, make_case

from official.cli import command_line, outputs
from official.io import signals
from official.io.writing import check_output_file


class Main(command_line.Flags):
    """Flags of the program.

    Attributes:
      cases: Random cases; each command gets as many.
      seed: Seed of all cases.
      workers: Cases that run at a time.
      commands: Comma-separated commands of `fuzzing.commands`; unset: all.
      keep: Folder that keeps the files of the cases that failed.
      output: Write the counts to this JSON file.
      overwrite: Replace it where it is there.
    """

    RANGES = dict.fromkeys(("cases", "workers"), command_line.COUNT)
    cases: int = 500
    seed: int = 1
    workers: int = len(os.sched_getaffinity(0))
    commands: str | None = None
    keep: str | None = None
    output: str | None = None
    overwrite: bool = False


def parse_flags() -> argparse.Namespace:
    flags: argparse.Namespace = Main.parse()
    names = tuple(commands.COMMANDS)
    flags.commands = (
        command_line.read_list(flags.commands, "commands", names) if flags.commands else list(names)
    )
    return flags


def fuzz(flags: argparse.Namespace) -> dict:
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
        check_output_file(flags.output, "output", flags.overwrite)
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
        outputs.write_json(flags.output, report)
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    signals.watch()
    command_line.run(main)
