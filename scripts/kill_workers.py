#!/usr/bin/env python3
"""Kills random workers of a job at random moments, and compares how it ends with an undisturbed one.

  python scripts/kill_workers.py [--runs=20] [--workers=2] [--seed=1] [--output=results/cluster_kills.json]

A small pre-training job of several processes under scripts/launch.py with --max_restarts, with dropout and
--deterministic. In each run `kill -9` hits one process, whatever it is doing; the launcher starts all of them
again, and the job must end with exit code 0 and the same bits as without the kill: checkpoint, metrics.jsonl,
scores.

Exit codes: 0 all was as it must be, 1 something was not (the report says what), 2 bad input.
"""

import argparse
import json
import random
import subprocess
import tempfile

from fuzzing import observed_jobs
from fuzzing.observed_jobs import Job, differences, kill_one

from official.cli import command_line, outputs
from official.io import signals
from official.io.errors import ConfigError
from official.io.writing import check_output_file

_RESTARTS = 3


class Main(command_line.Flags):
    """Flags of the program.

    Attributes:
      runs: Jobs, each of which loses a worker.
      workers: Processes of a job: 2 or 4.
      seed: Of moments and ranks.
      output: Write the counts to this JSON file.
      overwrite: Replace it where it is there.
    """

    RANGES = {"runs": command_line.COUNT}
    runs: int = 20
    workers: int = 2
    seed: int = 1
    output: str | None = None
    overwrite: bool = False


def parse_flags() -> argparse.Namespace:
    flags: argparse.Namespace = Main.parse()
    if flags.workers not in (2, 4):
        raise ConfigError(f"--workers={flags.workers}, expected 2 or 4: they share four files evenly.")
    return flags


def undisturbed(data: str, folder: str, workers: int) -> tuple[str, float]:
    """Returns the folder of a job that nobody disturbs, and its seconds from the launch to the end of the
    training."""
    job = Job(data, f"{folder}/whole", workers, 0)
    if job.wait():
        raise ConfigError(f"the undisturbed job ended with {job.popen.returncode}: {job.last_line()}")
    with open(f"{job.model_dir}/result.json", encoding="utf-8") as file:
        result = json.load(file)
    return job.model_dir, result["startup_secs"] + result["wall_secs"]


def disturbed(data: str, model_dir: str, workers: int, secs: float, rng: random.Random) -> dict | None:
    """Runs a job that loses a worker within some seconds. Returns what was hit and how it ended; None where
    it was over before."""
    job = Job(data, model_dir, workers, _RESTARTS)
    hit = kill_one(job, rng, rng.random() * secs)
    code = job.wait()
    if hit is None:
        return None
    differs = differences(job, f"{data}/whole") if code == 0 else [f"exit {code}: {job.last_line()}"]
    return {**hit, "exit_code": code, "differs": differs}


def summarize(runs: list[dict]) -> dict:
    """Returns the counts that people read."""
    return {
        "runs": len(runs),
        "killed_chief": sum(run["rank"] == 0 for run in runs),
        "killed_before_the_first_line": sum(run["at_step"] == 0 for run in runs),
        "wrong_exit_codes": sum(run["exit_code"] != 0 for run in runs),
        "runs_that_differ": sum(bool(run["differs"]) for run in runs),
    }


def run_all(flags: argparse.Namespace, folder: str) -> list[dict]:
    """Runs the jobs. Returns what `disturbed` does of each."""
    rng, runs, number = random.Random(flags.seed), [], 0
    whole, secs = undisturbed(folder, folder, flags.workers)
    print(f"undisturbed: {secs:.1f} s, {whole}", flush=True)
    while len(runs) < flags.runs:
        number += 1
        run = disturbed(folder, f"{folder}/run-{number}", flags.workers, secs, rng)
        if run is None:
            continue
        runs.append(run)
        how = f"rank {run['rank']} after {run['after_secs']:5.1f} s, step {run['at_step']:3}"
        same = ", ".join(run["differs"]) or "the same bits"
        print(f"{len(runs):3} killed {how}: exit {run['exit_code']}, {same}", flush=True)
    return runs


def main() -> int:
    flags = parse_flags()
    if flags.output:
        check_output_file(flags.output, "output", flags.overwrite)
    from official.reporting.environment import environment

    surroundings = environment()  # of the start: the checkout may change meanwhile
    with tempfile.TemporaryDirectory() as folder:
        try:
            observed_jobs.make_data(folder)
        except subprocess.CalledProcessError as error:
            raise ConfigError(f"the records cannot be made: {error.stderr.decode()[-150:].strip()}") from None
        runs = run_all(flags, folder)
    summary = summarize(runs)
    print(json.dumps(summary, indent=1))
    if flags.output:
        values = {"command": command_line.as_typed(), "environment": surroundings, **summary, "kills": runs}
        outputs.write_json(flags.output, values)
    return int(bool(summary["wrong_exit_codes"] or summary["runs_that_differ"]))


if __name__ == "__main__":
    signals.watch()
    command_line.run(main)
