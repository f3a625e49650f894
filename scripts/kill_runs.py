#!/usr/bin/env python3
"""Kills and interrupts fine-tuning runs at random moments, starts them again, and compares them with
undisturbed ones.

  python scripts/kill_runs.py [--kills=5] [--signals=20] [--seed=1] [--output=results/kills.json]

Two small runs, on SQuAD and on GLUE files that are made here, with --deterministic. `kill -9` hits them while
they start, train, evaluate, save or finish; the run that was started again must end with the same bits:
checkpoint, metrics.jsonl and predictions. SIGTERM and SIGINT must end them with 143 and 130 in time, and they
must go on. Where a run ends before it is hit, another one is begun.

Exit codes: 0 all was as it must be, 1 something was not (the report says what), 2 bad input.
"""

import argparse
import json
import os
import random
import signal
import tempfile

from fuzzing import observed_runs
from fuzzing.observed_runs import ALLOWED_SECS, MOMENTS, Process, differences, hit

from official.cli import command_line, outputs
from official.io import signals
from official.io.errors import ConfigError
from official.io.writing import check_output_file

TASKS = ("squad", "glue")
CODES = {"SIGKILL": 137, "SIGTERM": 143, "SIGINT": 130}


class Main(command_line.Flags):
    """Flags of the program.

    Attributes:
      kills: kill -9 of each of the two runs.
      signals: SIGTERM and SIGINT in turn, over both runs.
      seed: Of the moments.
      output: Write the counts to this JSON file.
      overwrite: Replace it where it is there.
    """

    RANGES = dict.fromkeys(("kills", "signals"), command_line.COUNT)
    kills: int = 5
    signals: int = 20
    seed: int = 1
    output: str | None = None
    overwrite: bool = False


def parse_flags() -> argparse.Namespace:
    flags: argparse.Namespace = Main.parse()
    return flags


def disturb(task: str, data: str, folder: str, numbers: list[int], whole: str, rng: random.Random) -> dict:
    """Sends signals to runs of a task, each of which goes on where the one before was hit, and compares those
    that end with `whole`.

    Returns:
      {hits: [see `hit`], runs: [what differs from the undisturbed run, nothing where all is the same]}.
    """
    hits, runs, numbers = [], [], list(numbers)
    with open(f"{whole}/result.json", encoding="utf-8") as file:
        longest_delays = {"start-up": json.load(file)["first_step_secs"], "training": 3.0}
    while numbers:
        model_dir, over = f"{folder}/{task}-{numbers[0]}-{len(runs)}", False
        while not over:
            process = Process(task, data, model_dir)
            moment = rng.choice(MOMENTS)  # most are short, and so is the time in which they can be hit
            seen = (
                hit(process, moment, numbers[0], rng.random() * longest_delays.get(moment, 0.3))
                if numbers
                else None
            )
            if seen:
                hits.append(seen)
                numbers.pop(0)
                code, secs = seen["exit_code"], seen["secs"]
                print(
                    f"{task:5} {seen['signal']:7} {moment:10} exit {code:4} after {secs:5.2f} s", flush=True
                )
                if code != CODES[seen["signal"]]:
                    print(process.read_log().decode(errors="replace")[-2000:], flush=True)
            else:
                over = process.popen.wait() != 0 or os.path.exists(f"{model_dir}/result.json")
        runs.append(differences(model_dir, whole, process))
        print(f"{task:5} went on to its end: {', '.join(runs[-1]) or 'the same bits'}", flush=True)
    return {"hits": hits, "runs": runs}


def undisturbed(task: str, data: str, folder: str) -> str:
    """Returns the folder of a run that nobody disturbs."""
    process = Process(task, data, f"{folder}/{task}-whole")
    if process.popen.wait():
        raise ConfigError(
            f"the undisturbed run of {task} ended with {process.popen.returncode}: "
            f"{process.read_log().decode(errors='replace')[-150:]}"
        )
    return process.model_dir


def summarize(report: dict) -> dict:
    """Returns the counts that people read, and whether all is as it must be."""
    kinds = ("kills", "signals")
    hits = {kind: [seen for task in TASKS for seen in report[task][kind]["hits"]] for kind in kinds}
    runs = [run for task in TASKS for kind in kinds for run in report[task][kind]["runs"]]
    return {
        "kills": len(hits["kills"]),
        "signals": len(hits["signals"]),
        "moments": {
            moment: sum(seen["moment"] == moment for kind in kinds for seen in hits[kind])
            for moment in MOMENTS
        },
        "wrong_exit_codes": sum(
            seen["exit_code"] != CODES[seen["signal"]] for kind in kinds for seen in hits[kind]
        ),
        "longest_secs": max(seen["secs"] for seen in hits["signals"]),
        "late": sum(seen["secs"] > ALLOWED_SECS for seen in hits["signals"]),
        "runs_that_went_on": len(runs),
        "runs_that_differ": sum(bool(run) for run in runs),
    }


def main() -> int:
    flags = parse_flags()
    if flags.output:
        check_output_file(flags.output, "output", flags.overwrite)
    from official.reporting.environment import environment

    surroundings = environment()  # of the start: the checkout may change meanwhile
    rng, report = random.Random(flags.seed), {}
    in_turn = [(signal.SIGTERM, signal.SIGINT)[number % 2] for number in range(flags.signals)]
    with tempfile.TemporaryDirectory() as folder:
        observed_runs.make_data(folder)
        for index, task in enumerate(TASKS):
            whole = undisturbed(task, folder, folder)
            report[task] = {
                "kills": disturb(task, folder, folder, [signal.SIGKILL] * flags.kills, whole, rng),
                "signals": disturb(
                    task,
                    folder,
                    folder,
                    in_turn[index * len(in_turn) // 2 : (index + 1) * len(in_turn) // 2],
                    whole,
                    rng,
                ),
            }
    summary = summarize(report)
    print(json.dumps(summary, indent=1))
    if flags.output:
        values = {
            "command": command_line.as_typed(),
            "environment": surroundings,
            **summary,
            "tasks": report,
        }
        outputs.write_json(flags.output, values)
    return int(bool(summary["wrong_exit_codes"] or summary["late"] or summary["runs_that_differ"]))


if __name__ == "__main__":
    signals.watch()
    command_line.run(main)
