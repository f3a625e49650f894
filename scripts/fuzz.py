#!/usr/bin/env python3
"""Damages command lines, settings, data and checkpoints and checks that every command ends correctly each
time.

Correctly means: a documented exit code, no exception, no hang, a short line with the problem for exit code 2,
and no silent success if the damage is detectable. Counts are by command and kind of damage. Hypothesis draws
the cases; a command stops at its first failure, which hypothesis simplifies.

  python scripts/fuzz.py --cases=3000 --seed=2 --output=results/fuzz.json
"""

import argparse
import os
import shlex
import sys

from official.cli import command_line, outputs
from official.io.errors import ConfigError, check_installed
from official.io.writing import check_output_file

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # of the tests
from tests.fuzz.commands import COMMANDS


class Main(command_line.Flags):
    """Flags of the program.

    Attributes:
      cases: Number of random cases, the same for each command.
      seed: Seed of all cases.
      workers: Number of concurrent cases.
      commands: Comma-separated commands. Unset: all. The error for another name lists them.
      replay: Single case of a command to run, as printed for a failure.
      keep: Folder for the files of failed cases.
      output: Write the counts to this JSON file.
      overwrite: Replace an existing file.
    """

    RANGES = dict.fromkeys(("cases", "workers"), command_line.COUNT)
    cases: int = 500
    seed: int = 1
    workers: int = len(os.sched_getaffinity(0))
    commands: str | None = None
    replay: str = ""
    keep: str | None = None
    output: str | None = None
    overwrite: bool = False


def parse_flags() -> argparse.Namespace:
    flags: argparse.Namespace = Main.parse()
    names = tuple(COMMANDS)
    flags.commands = (
        command_line.read_list(flags.commands, "commands", names) if flags.commands else list(names)
    )
    if flags.replay and len(flags.commands) != 1:
        raise ConfigError("--replay needs a single command. Give it with --commands.")
    return flags


def main() -> int:
    flags = parse_flags()
    check_installed("the fuzzer", "dev", "hypothesis")
    from tests.fuzz import campaign

    surroundings = {}
    if flags.output:
        check_output_file(flags.output, "output", flags.overwrite)
        from official.reporting.environment import environment

        surroundings = environment()  # now, since the checkout may change meanwhile
    report = campaign.run(flags)
    for name, codes in {**report["by_kind"], **report["by_command"]}.items():
        print(f"{name:32}" + "  ".join(f"{code}: {count}" for code, count in codes.items()))
    for failure in report["failures"]:
        again = ["--commands", failure["command"], "--replay", failure["replay"]]
        print(
            f"\n{failure['command']}, {failure['what'] or failure['arguments']}: {failure['wrong']}\n"
            f"{failure['output']}\nagain: python scripts/fuzz.py {shlex.join(again)}"
        )
    print(f"{report['cases']} cases, {len(report['failures'])} failures.")
    if flags.output:
        outputs.write_json(flags.output, {"environment": surroundings, **report})
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    command_line.run(main)
