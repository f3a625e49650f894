"""Scores several runs of one recipe as MLPerf does: the time to the target, and the sequences to it compared
with the reference."""

import json
import math
import tempfile

from official.io import quiet
from official.io.errors import ConfigError
from official.reporting.comparison import Run, differing_settings, format_table
from official.reporting.formats import DASH

# Rulesets with reference convergence points of closed BERT.
RULESETS = ("1.0.0", "1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0", "4.1.0", "5.0.0")
_RUNS_OF_A_SUBMISSION = 10
_MIN_RUNS = 3  # the score drops the best and the worst
_MAX_FAILURES = 1  # missed targets, as the library allows for BERT; such a run is scored as the slowest
_REFERENCE_TARGET = 0.720
_NOT_THE_RECIPE = ("seed", "init_checkpoint", "train_batch_size")
_ENDS = ("run_start", "run_stop")


def score(runs: list[Run], ruleset: str) -> dict:
    """Returns the score of runs of one recipe, as a JSON-serializable dict.

    Args:
      runs: runs from `comparison.read_runs`, each with an MLPerf log.
      ruleset: name in RULESETS.

    Returns:
      runs: [{run, minutes, samples, batch_size, success, whole}]; minutes and samples are None if they do not
        count; whole: whether the log has the run from its first sequence on; others are excluded from the
        rest;
      score_minutes and mean_samples: mean without the best and the worst run, None if there are too few runs
        of one batch size;
      references: see `_references`; notes: warnings about missing or doubtful data, one sentence each.

    Raises:
      ConfigError: naming a run without a usable log.
    """
    with quiet.silence():
        from mlperf_logging.result_summarizer import result_summarizer  # late: loads SciPy

        mean = result_summarizer._compute_olympic_average  # pylint: disable=protected-access
        rows = [_read_run(run, ruleset) for run in runs]
        scored = [row for row in rows if row["whole"]]
        successes = [row for row in scored if row["success"]]
        failures = len(scored) - len(successes)
        batches = {row["batch_size"] for row in scored}
        minutes, samples, references = None, None, []
        if len(successes) >= _MIN_RUNS and failures <= _MAX_FAILURES and len(batches) == 1:
            kept = [sorted(row[name] for row in successes) for name in ("minutes", "samples")]
            minutes, samples = (mean(values, failures, 1) for values in kept)  # a failure is the worst
            references = _references(batches.pop(), samples, ruleset)
    return {
        "ruleset": ruleset,
        "runs": rows,
        "score_minutes": minutes,
        "mean_samples": samples,
        "references": references,
        "notes": _notes(runs, rows, references),
    }


def _read_run(run: Run, ruleset: str) -> dict:
    """Returns the row of a run. The library reads the success, the sequences to the target and the batch size
    from the run's log."""
    from mlperf_logging.rcp_checker import rcp_checker  # late: loads SciPy

    times = {event["key"]: event["time_ms"] for event in run.events if event["key"] in _ENDS}
    if "run_start" not in times:
        raise ConfigError(f"{run.folder} has no MLPerf log with a run_start: {run.log_path}.")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f":::MLLOG {json.dumps(event)}\n" for event in run.events)
        file.flush()
        try:
            found = rcp_checker.read_submission_file(file.name, ruleset, use_train_samples=False)
            failed, samples, batch_size, _ = found
            if not isinstance(batch_size, int) or batch_size < 1:
                raise ValueError(f"global_batch_size is {batch_size!r}, expected a number")
        except (KeyError, TypeError, UnboundLocalError, ValueError) as error:
            raise ConfigError(f"{run.log_path} is not a complete MLPerf log: {error!r}.") from None
    blocks = [event["metadata"] for event in run.events if event["key"] == "block_start"]
    whole = not (blocks and blocks[0].get("first_epoch_num"))
    minutes = (times["run_stop"] - times["run_start"]) / 60_000 if "run_stop" in times else None
    return {
        "run": run.name,
        "minutes": minutes if whole else None,
        "samples": None if failed or not whole else samples,
        "batch_size": batch_size,
        "success": not failed,
        "whole": whole,
    }


def _references(batch_size: int, samples: float, ruleset: str) -> list[dict]:
    """Compares the mean of the sequences to the target with the reference's.

    Returns:
      A dict for all reference points, and one for the pruned ones, which submissions are checked against:
        {points, batch_sizes (two if interpolated), mean and minimum (sequences), accepted, normalization
        (factor of the score)}. None for batches larger than all reference points.
    """
    from mlperf_logging.rcp_checker import rcp_checker

    # pylint: disable=protected-access
    checker = rcp_checker.RCP_Checker("training", ruleset, "bert", verbose=False)
    found = []
    for points in ("full_rcps", "pruned_rcps"):
        # The same choice of the reference for a batch size as in the library's check_directory.
        record, batch_sizes = checker._find_rcp(batch_size, points), [batch_size]
        if not record:
            low = checker._find_top_min_rcp(batch_size, points)
            record = high = checker._find_bottom_max_rcp(batch_size, points)
            batch_sizes = [each["BS"] for each in (low, high) if each]
            if low and high:
                record = checker._create_interp_rcp(batch_size, low, high)[1]
        if record:
            reference: dict = {"points": points, "batch_sizes": batch_sizes}
            reference |= {"mean": float(record["RCP Mean"]), "minimum": float(record["Min Epochs"])}
            reference["accepted"] = bool(samples >= record["Min Epochs"])
            reference["normalization"] = float(checker._find_norm_factor(record, samples))
            found.append(reference)
    return found


def _notes(runs: list[Run], rows: list[dict], references: list[dict]) -> list[str]:
    partial = sorted(row["run"] for row in rows if not row["whole"])
    runs, rows = [run for run in runs if run.name not in partial], [row for row in rows if row["whole"]]
    failed = [row["run"] for row in rows if not row["success"]]
    reached = len(rows) - len(failed)
    batches = sorted({row["batch_size"] for row in rows})
    recipe = [name for name in differing_settings(runs) if name not in _NOT_THE_RECIPE]
    targets = {run.settings["stop_threshold"] for run in runs if run.settings.get("stop_threshold")}
    others, few = references and targets - {_REFERENCE_TARGET}, reached < _MIN_RUNS
    who, stops = ", ".join(failed), ", ".join(f"{target:g}" for target in sorted(targets))
    begun, differing, sizes = ", ".join(partial), ", ".join(recipe), ", ".join(map(str, batches))
    asked, target = _RUNS_OF_A_SUBMISSION, _REFERENCE_TARGET
    notes = [
        (partial, f"left out of the score, because the log begins in the middle of the run: {begun}."),
        (failed, f"{who} did not reach the target; one such run counts as the slowest, more leave no score."),
        (few, f"a score takes at least {_MIN_RUNS} runs that reached the target; these are {reached}."),
        (len(rows) != asked, f"MLPerf asks for {asked} runs of BERT; these are {len(rows)}."),
        (len(batches) > 1, f"the batch sizes differ ({sizes}), so there is no score and no reference."),
        (recipe, f"not one recipe: the runs differ in {differing}."),
        (others, f"the references are for a target of {target:.3f}; these runs stop at {stops}."),
    ]
    return [note for holds, note in notes if holds]


def format_score(values: dict) -> str:
    """Formats the score of `score` as text."""
    rows, references, score = values["runs"], values["references"], values["score_minutes"]
    columns = {
        "run": [row["run"] for row in rows],
        "batch size": [str(row["batch_size"]) for row in rows],
        "minutes": [DASH if row["minutes"] is None else f"{row['minutes']:,.2f}" for row in rows],
        "samples to target": [DASH if row["samples"] is None else f"{row['samples']:,.0f}" for row in rows],
    }
    parts = [f"MLPerf, ruleset {values['ruleset']}\n{format_table([*columns.items()])}"]
    if score is not None:
        parts.append(
            f"Score: {score:,.2f} minutes; samples to target: {values['mean_samples']:,.0f}"
            " (means without the best and the worst run)"
        )
    if references:
        names = {"full_rcps": "all", "pruned_rcps": "pruned (for submissions)"}
        points = [(names[each["points"]], " to ".join(map(str, each["batch_sizes"]))) for each in references]
        columns = {
            "reference points": [f"{name}, batch {sizes}" for name, sizes in points],
            "mean samples": [f"{each['mean']:,.0f}" for each in references],
            "fewest accepted": [f"{math.ceil(each['minimum']):,}" for each in references],
            "these runs": [f"{values['mean_samples']:,.0f}"] * len(references),
            "verdict": [_verdict(each, score) for each in references],
        }
        parts.append(format_table([*columns.items()]))
    return "\n\n".join([*parts, "\n".join(f"Note: {note}" for note in values["notes"])]).rstrip()


def _verdict(reference: dict, minutes: float) -> str:
    if not reference["accepted"]:
        return "FAILED: converges faster than the reference allows"
    factor = reference["normalization"]
    faster = f", faster than the reference: score normalized to {minutes * factor:,.2f} minutes"
    return "passed" + (faster if factor > 1 else "")
