"""Repeats a run with several seeds; mean and standard deviation of its scores."""

import json
import os
import signal
import statistics
import sys

from absl import logging

from official import config as config_lib
from official.config import Config, ConfigError
from official.config.setting import LENGTH
from official.reporting import report
from official.reporting.result import TrainResult, write_result
from official.training import run_lock, runner
from official.training.starting import MakeTask


def run(
    config: Config,
    make_task: MakeTask,
    command: list[str] | None = None,
    started: float | None = None,
) -> TrainResult:
    """Runs --num_runs times with the seeds --seed, --seed + 1, ..., in model_dir/run-1, run-2, ...

    A finished run only returns its saved scores, so the same command continues where it was interrupted, and
    a larger --num_runs adds runs.

    Returns:
      The result that ended the last run, with {metric: mean} and {metric_std: sample standard deviation} over
      all runs as scores and {run, ...} as a table. It is also written to model_dir/result.json.

    Raises:
      ConfigError: for bad input.
    """
    if config.num_runs == 1:
        return runner.run(config, make_task, command, started)
    if config.seed + config.num_runs > (config_lib.FIELDS["seed"].maximum or 0):
        raise ConfigError(f"seed={config.seed} leaves no room for num_runs={config.num_runs}. Lower --seed.")
    command = command or sys.argv
    with run_lock.set_aside(config, command) as config:
        return _run_all(config, make_task, command, started, _is_complete(config))


def _is_complete(config: Config) -> bool:
    """Tells whether all runs asked for are over; their summary is then not written again.

    Raises:
      ConfigError: where the folder holds a single run, more runs, or runs of other settings.
    """
    record = run_lock.read_record(config.model_dir)
    before = record.settings.get("num_runs", 1)
    as_before = config_lib.replaced(config, num_runs=before)
    record.check(as_before if 1 < before <= config.num_runs else config)
    return record.is_over and before == config.num_runs and not record.changes(config)[LENGTH]


def _run_all(
    config: Config, make_task: MakeTask, command: list[str], started: float | None, is_complete: bool
) -> TrainResult:
    cache_dir = config.cache_dir or (
        os.path.join(config.model_dir, "features") if config.task == "squad" else None
    )  # of all runs
    scores: dict[int, dict[str, float]] = {}
    folders: dict[str, str] = {}
    for number in range(1, config.num_runs + 1):
        seed = config.seed + number - 1
        logging.info("Run %d of %d, seed %d", number, config.num_runs, seed)
        own = config_lib.replaced(
            config,
            num_runs=1,
            seed=seed,
            model_dir=os.path.join(config.model_dir, f"run-{number}"),
            cache_dir=cache_dir,
        )
        result = runner.run(own, make_task, command, started if number == 1 else None)
        if result.status in ("interrupted", "failed"):
            return result
        scores[seed], folders[str(seed)] = result.scores, f"run-{number}"
        if result.signal and number < config.num_runs:  # it came while this run was finishing
            result.status, result.reason = (
                "interrupted",
                f"{number} of {config.num_runs} runs done on {signal.Signals(result.signal).name}",
            )
            return result
    _summarize(result, scores)
    if is_complete:
        return result
    result.config = json.loads(config_lib.to_json(config))
    result.evaluations, result.report = [], os.path.join(config.model_dir, report.FILE_NAME)
    write_result(config.model_dir, result)
    report.write_repeats_report(config.model_dir, f"BERT {config.task}", result, folders)
    return result


def _summarize(result: TrainResult, scores: dict[int, dict[str, float]]) -> None:
    """Replaces the scores of the last run in the result by those of all runs."""
    names = [name for name in next(iter(scores.values())) if name != "best_step"]
    result.tables = {
        "Runs": [
            ["seed", *names],
            *([str(seed), *(values[name] for name in names)] for seed, values in scores.items()),
        ]
    }
    result.scores, result.examples = {}, []
    for name in names:
        values = [run_scores[name] for run_scores in scores.values()]
        result.scores |= {name: statistics.fmean(values), f"{name}_std": statistics.stdev(values)}
        logging.info(
            "%s over %d runs: %.4f +- %.4f",
            name,
            len(values),
            result.scores[name],
            result.scores[f"{name}_std"],
        )
    result.reason = f"{len(scores)} runs done"
