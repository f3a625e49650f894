"""Comparing runs: names, settings, times to a target, table, picture, MLPerf score, references, bad input."""

import io
import json
import logging as standard_logging
import os
import pathlib
import subprocess
import sys
import warnings

import matplotlib.image
import pytest

from official import config as config_lib
from official.io.errors import ConfigError
from official.reporting import comparison
from official.reporting import convergence as convergence_lib
from official.reporting import plots as plots_lib
from tests.conftest import ROOT

GPU_MINUTES = [193.85, 193.92, 195.21, 195.34, 196.35, 196.47, 196.47, 227.05, 228.38, 229.68]
TPU_MINUTES = [52.34, 52.41, 52.41, 52.42, 52.43, 61.05, 61.08, 61.08, 61.10, 61.11]


def event(key, time_ms, value=None, **metadata):
    return {
        "namespace": "",
        "time_ms": time_ms,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": metadata,
    }


def evaluation(time_ms, samples, value, step):
    return event("eval_accuracy", time_ms, value, epoch_num=samples, samples_count=samples, step_num=step)


def write_run(
    folder,
    evaluations=((100, 3.0, 0.2), (200, 2.0, 0.3), (300, 1.9, 0.29)),
    events=None,
    result=None,
    **settings,
):
    """Writes the folder of a run.

    Args:
      evaluations: (step, loss, masked-LM accuracy).
      events: of the MLPerf log; None for no log.
      result: of result.json; None for none.
      settings: of config.json, over the defaults.
    """
    folder.mkdir(parents=True)
    settings = {"train_batch_size": 64, "model": {"hidden_size": 8}, **settings}
    values = (
        {name: field.default for name, field in config_lib.FIELDS.items()}
        | {"model_dir": str(folder), "warmup_steps": 10000.0}
        | settings
    )
    (folder / "config.json").write_text(json.dumps(values))
    lines = []
    for step, loss, accuracy in evaluations:
        point = {"step": step, "samples": step * settings["train_batch_size"], "mlm_accuracy": accuracy}
        lines += [
            {"split": "train", **point, "loss": loss - 0.1, "sequences_per_sec": 400.0},
            {"split": "eval", **point, "loss": loss},
        ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if events is not None:
        (folder / "mllog.txt").write_text(
            "noise\n" + "".join(f":::MLLOG {json.dumps(line)}\n" for line in events)
        )
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    return str(folder)


def read(*folders):
    return comparison.read_runs([str(folder) for folder in folders])


# ----------------------------------------------------------------------------------------------------------
# names and settings


@pytest.mark.parametrize(
    "folders, names",
    [
        (["runs/a", "runs/b/"], ["a", "b"]),
        (["x/run", "y/run"], ["x", "y"]),
        (["x/1", "y/1", "y/2"], ["x/1", "y/1", "y/2"]),
        (["gs://b/x/run", "gs://b/y/run"], ["x", "y"]),
        (["runs/only"], ["only"]),
    ],
)
def test_names_are_the_shortest_that_differ(folders, names):
    assert comparison.short_names(folders) == names


def test_a_folder_is_given_once(tmp_path):
    with pytest.raises(ConfigError, match=r"/a/ is given twice"):
        comparison.short_names([str(tmp_path / "a"), str(tmp_path / "b"), f"{tmp_path}/a/"])


def test_only_settings_that_differ_are_listed(tmp_path):
    runs = read(
        write_run(tmp_path / "a", learning_rate=1e-3, wandb_name="x", bert_config_file="a.json"),
        write_run(
            tmp_path / "b",
            learning_rate=2e-3,
            wandb=True,
            plan_file="p",
            mllog_file=None,
            model={"hidden_size": 16},
        ),
    )
    assert comparison.differing_settings(runs) == ["learning_rate", "model.hidden_size"]


def test_a_run_older_than_a_setting_has_its_default(tmp_path):
    folders = [write_run(tmp_path / "old"), write_run(tmp_path / "new", beta_2=0.5)]
    values = json.loads((tmp_path / "old" / "config.json").read_text())
    del values["beta_2"], values["enable_xla"]
    (tmp_path / "old" / "config.json").write_text(json.dumps(values))
    found = comparison.compare(read(*folders))
    assert found["settings"] == ["beta_2"]
    assert [run["settings"]["beta_2"] for run in found["runs"]] == [0.999, 0.5]


@pytest.mark.parametrize(
    "values, texts",
    [
        ([None, True, 0.0005, 12], ["\u2013", "true", "0.0005", "12"]),
        (["data/wiki/a/*.tfrecord", "data/wiki/b/*.tfrecord"], ["a/*.tfrecord", "b/*.tfrecord"]),
        (["data/a", None], ["data/a", "\u2013"]),
        (["x" * 50 + "end", "y"], ["\u2026" + "x" * 20 + "end", "y"]),
    ],
)
def test_settings_are_shortened(values, texts):
    assert comparison.short_values(values) == texts


# ----------------------------------------------------------------------------------------------------------
# numbers and table


EVENTS = [event("run_start", 10_000), evaluation(13_000, 6400, 0.2, 100), evaluation(16_500, 12800, 0.3, 200)]


def test_where_the_target_was_reached(tmp_path):
    (run,) = read(
        write_run(
            tmp_path / "a",
            events=EVENTS,
            result={"status": "success", "sequences_per_sec": 512.5},
            stop_threshold=0.3,
        )
    )
    assert comparison.summarize(run) == {
        "metric": "mlm_accuracy",
        "target": 0.3,
        "target_step": 200,
        "target_samples": 12800,
        "target_secs": 6.5,
        "step": 300,
        "eval_loss": 1.9,
        "eval_accuracy": 0.29,
        "best_accuracy": 0.3,
        "sequences_per_sec": 512.5,
        "status": "success",
    }
    other = comparison.summarize(run, target=0.15)
    assert [other[name] for name in ("target", "target_step", "target_samples", "target_secs")] == [
        0.15,
        100,
        6400,
        3.0,
    ]


def test_fine_tuned_runs_are_compared_by_the_score_of_their_task(tmp_path):
    folders = []
    for name, f1 in (("a", 0.5), ("b", 0.75)):
        result = {"status": "finished", "target_metric": "f1"}
        folders.append(write_run(tmp_path / name, evaluations=(), result=result))
        lines = [{"split": "eval", "step": step, "samples": 8 * step, "f1": f1 * step / 4} for step in (2, 4)]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs = read(*folders)
    found = comparison.compare(runs, target=0.6)
    assert [run["eval_accuracy"] for run in found["runs"]] == [0.5, 0.75]
    assert [run["target_step"] for run in found["runs"]] == [None, 4]
    table = comparison.format_comparison(found)
    assert "final F1" in table and "0.7500" in table
    _, score = comparison.plot_comparison(runs).axes
    assert score.get_title(loc="left") == "F1" and score.get_ylim()[0] == 0
    (other,) = read(write_run(tmp_path / "c"))
    mixed = comparison.compare([*runs, other])
    assert "best score" in comparison.format_comparison(mixed)


def test_a_correlation_below_zero_is_drawn(tmp_path):
    folder = write_run(
        tmp_path / "a", evaluations=(), result={"status": "finished", "target_metric": "matthews_correlation"}
    )
    line = {"split": "eval", "step": 2, "samples": 16, "matthews_correlation": -0.4}
    (tmp_path / "a" / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    _, score = comparison.plot_comparison(read(folder)).axes
    assert score.get_ylim()[0] < -0.4


def test_where_it_was_not(tmp_path):
    (run,) = read(write_run(tmp_path / "a", evaluations=[(5, 3.0, None), (10, 2.0, 0.1)], stop_threshold=0.3))
    found = comparison.summarize(run)
    assert [found[name] for name in ("target", "target_step", "target_samples", "target_secs")] == [
        0.3,
        None,
        None,
        None,
    ]
    assert (found["status"], found["sequences_per_sec"], found["best_accuracy"]) == ("unfinished", 400.0, 0.1)


def test_the_log_may_lie_elsewhere(tmp_path):
    folder = write_run(tmp_path / "a", events=EVENTS, stop_threshold=0.3, mllog_file=str(tmp_path / "log"))
    os.rename(os.path.join(folder, "mllog.txt"), tmp_path / "log")
    assert comparison.summarize(read(folder)[0])["target_secs"] == 6.5


def test_a_log_of_several_runs_is_left_out(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "log")
    folders = [
        write_run(tmp_path / "a", events=EVENTS, mllog_file=str(tmp_path / "log")),
        write_run(tmp_path / "b", mllog_file=str(tmp_path / "link")),
        write_run(tmp_path / "c", events=EVENTS),
    ]
    os.rename(tmp_path / "a" / "mllog.txt", tmp_path / "log")
    found = comparison.compare(read(*folders), target=0.3)
    assert [run["target_secs"] for run in found["runs"]] == [None, None, 6.5]
    assert found["notes"] == [
        f"a, b have the same --mllog_file, {tmp_path}/log, which tells of the last of them only: left out."
    ]
    assert comparison.format_comparison(found).endswith(f"\n\nNote: {found['notes'][0]}")
    with pytest.raises(ConfigError, match=r"/a has no MLPerf log of its own"):
        convergence_lib.score(read(*folders), "1.0.0")


@pytest.mark.parametrize(
    "change", [{"time_ms": None}, {"value": None}, {"metadata": None}, {"metadata": {}}, {"key": None}]
)
@pytest.mark.parametrize("number", range(3))
def test_damaged_events(tmp_path, number, change):
    events = [*EVENTS, event("run_stop", 17_000, status="success"), event("global_batch_size", 1, 64)]
    events[number] = {**events[number], **change}
    (run,) = read(write_run(tmp_path / "a", events=events, stop_threshold=0.3))
    assert comparison.summarize(run)["target_step"] == 200
    try:
        assert len(convergence_lib.score([run], "1.0.0")["runs"]) == 1
    except ConfigError as error:
        assert str(tmp_path / "a") in str(error) and "\n" not in str(error)


def test_table(tmp_path):
    runs = read(
        write_run(
            tmp_path / "small",
            events=EVENTS,
            result={"status": "success", "sequences_per_sec": 400},
            stop_threshold=0.3,
        ),
        write_run(
            tmp_path / "large", train_batch_size=256, stop_threshold=0.3, evaluations=[(1000, 2.5, 0.25)]
        ),
    )
    assert comparison.format_comparison(comparison.compare(runs)).splitlines() == [
        "           train_  steps to  samples to  seconds to                            final      best",
        (
            "run    batch_size       0.3         0.3         0.3  last step  final loss  accuracy  accuracy "
            " seq/s  status"
        ),
        (
            "small          64       200      12,800         6.5        300      1.9000    0.2900    0.3000  "
            "  400  success"
        ),
        (
            "large         256         \u2013           \u2013           \u2013      1,000      2.5000   "
            " 0.2500    0.2500    400  unfinished"
        ),
    ]


def test_table_without_targets_and_with_different_ones(tmp_path):
    runs = read(write_run(tmp_path / "a"), write_run(tmp_path / "b"))
    assert "to" not in comparison.format_comparison(comparison.compare(runs)).split()
    runs = read(write_run(tmp_path / "c", stop_threshold=0.2), write_run(tmp_path / "d", stop_threshold=0.3))
    assert "target      target" in comparison.format_comparison(comparison.compare(runs))


def test_many_settings_have_a_table_of_their_own(tmp_path):
    first = dict(learning_rate=1e-3, warmup_steps=1.0, beta_1=0.8, beta_2=0.9, epsilon=1e-7, seed=1)
    runs = read(write_run(tmp_path / "a", **first), write_run(tmp_path / "b"))
    lines = comparison.format_comparison(comparison.compare(runs)).splitlines()
    assert lines[1].split()[:3] == ["run", "last", "step"]
    assert lines[lines.index("") + 1].split() == ["setting", "a", "b"]
    assert [line.split() for line in lines[lines.index("") + 2 :]] == [
        ["seed", "1", "12345"],
        ["learning_rate", "0.001", "5e-05"],
        ["warmup_steps", "1", "10000"],
        ["beta_1", "0.8", "0.9"],
        ["beta_2", "0.9", "0.999"],
        ["epsilon", "1e-07", "1e-06"],
    ]


# ----------------------------------------------------------------------------------------------------------
# picture


def plotted_over_sequences(axes):
    return [list(line.get_xdata()) for line in axes.lines if line.get_linewidth() > 1.5]


def test_picture(tmp_path):
    runs = read(
        write_run(tmp_path / "first", stop_threshold=0.3, learning_rate=1e-3),
        write_run(tmp_path / "second", stop_threshold=0.3, train_batch_size=256),
    )
    figure = comparison.plot_comparison(runs)
    loss, accuracy = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Loss", "Masked-LM accuracy"]
    assert loss.get_xlabel() == accuracy.get_xlabel() == "sequences"
    assert plotted_over_sequences(loss) == [
        [6400, 12800, 19200],
        [25600, 51200, 76800],
    ] and loss.get_xlim() == (0, 76800)
    labels = {text.get_text(): text.get_color() for text in accuracy.texts}
    assert {"first 0.290", "second 0.290", "target 0.3"} <= labels.keys() and labels["first 0.290"] != labels[
        "second 0.290"
    ]
    assert [text.get_text() for text in figure.texts] == [
        "first",
        "train_batch_size 64, learning_rate 0.001",
        "second",
        "train_batch_size 256, learning_rate 5e-05",
    ]
    assert decoded(plots_lib.render(figure, "png")).shape[2] == 4


def test_a_run_without_evaluations_is_labelled_so(tmp_path):
    folder = write_run(tmp_path / "a")
    (tmp_path / "a" / "metrics.jsonl").write_text(
        '{"split": "train", "step": 1, "samples": 8, "loss": 2.5}\n'
    )
    loss, accuracy = comparison.plot_comparison(read(folder)).axes
    assert "a 2.500 train" in [text.get_text() for text in loss.texts] and loss.lines[0].get_marker() == "o"
    assert [text.get_text() for text in accuracy.texts][-1] == "no data"


def decoded(png):
    return matplotlib.image.imread(io.BytesIO(png), format="png")


@pytest.mark.parametrize("count", [1, 9, 24])
def test_picture_of_any_number_of_seeds(tmp_path, count):
    runs = read(*(write_run(tmp_path / f"seed_{seed}", seed=seed) for seed in range(count)))
    figure = comparison.plot_comparison(runs)
    looks = {
        (line.get_color(), line.get_linestyle())
        for line in figure.axes[0].lines
        if line.get_linewidth() > 1.5
    }
    assert len(looks) == min(count, 14) or count == 24
    assert not figure.texts  # nothing but the seed differs
    heights = sorted(text.xy[1] for text in figure.axes[0].texts if text.get_text().startswith("seed_"))
    assert len(heights) == count and heights[0] >= 0 and heights[-1] <= 1 + 1e-9


@pytest.mark.parametrize("evaluations", [[(5, None, None)], [(0, 0.0, 0.0)]], ids=["not finite", "zeros"])
def test_picture_of_odd_runs(tmp_path, evaluations):
    folder = write_run(tmp_path / "odd", stop_threshold=0.3)
    text = "".join(
        json.dumps({"split": "train", "step": step, "samples": step, "loss": loss, "mlm_accuracy": accuracy})
        + "\n"
        for step, loss, accuracy in evaluations
    )
    (tmp_path / "odd" / "metrics.jsonl").write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decoded(plots_lib.render(comparison.plot_comparison(read(folder)), "png")).size
    assert comparison.format_comparison(comparison.compare(read(folder)))


# ----------------------------------------------------------------------------------------------------------
# MLPerf score


def write_seed(folder, minutes, samples, success=True, batch_size=448, stopped=True, first=0, **settings):
    start = 1_700_000_000_000
    stop = start + round(minutes * 60_000)
    events = [
        event("submission_benchmark", start, "bert"),
        event("global_batch_size", start, batch_size),
        event("run_start", start),
        event(
            "block_start",
            start,
            first_epoch_num=first,
            epoch_count=samples - first,
            samples_count=first,
            step_num=first // batch_size,
        ),
        evaluation(stop - 10, samples, 0.73, samples // batch_size),
    ]
    events += [event("run_stop", stop, status="success" if success else "aborted")] * stopped
    return write_run(
        folder, events=events, **{"train_batch_size": batch_size, "stop_threshold": 0.72, **settings}
    )


def seeds(tmp_path, minutes, samples, **keywords):
    samples = samples if isinstance(samples, list) else [samples] * len(minutes)
    return read(
        *(
            write_seed(tmp_path / f"seed_{number}", *values, seed=number, **keywords)
            for number, values in enumerate(zip(minutes, samples))
        )
    )


@pytest.mark.parametrize("minutes, score", [(GPU_MINUTES, 203.65), (TPU_MINUTES, 56.74)], ids=["gpu", "tpu"])
def test_score_of_published_runs(tmp_path, minutes, score):
    found = convergence_lib.score(seeds(tmp_path, minutes, 2_800_000), "1.0.0")
    assert found["score_minutes"] == pytest.approx(
        score, abs=0.01
    )  # the minutes are rounded, the published score is not made from those
    assert found["mean_samples"] == 2_800_000 and found["notes"] == []
    assert f"Score: {found['score_minutes']:.2f} minutes" in convergence_lib.format_score(found)


@pytest.mark.parametrize(
    "ruleset, mean, minimum", [("1.0.0", 2_621_696, 2_498_363), ("5.0.0", 2_414_421, 2_274_733)]
)
def test_reference_of_a_batch_size(tmp_path, ruleset, mean, minimum):
    found = convergence_lib.score(seeds(tmp_path, [3, 1, 2], [2_000_000, 2_700_000, 9_000_000]), ruleset)
    every, pruned = found["references"]
    assert (every["points"], every["batch_sizes"], round(every["mean"])) == ("full_rcps", [448], mean)
    assert (
        every["minimum"] == pytest.approx(minimum, abs=1)
        and every["accepted"]
        and every["normalization"] == 1
    )
    assert (
        pruned["batch_sizes"] == ([256, 3072] if ruleset == "1.0.0" else [448])
        and pruned["mean"] <= every["mean"]
    )
    assert (found["score_minutes"], found["mean_samples"]) == (2, 2_700_000)


@pytest.mark.parametrize(
    "samples, accepted, verdict",
    [
        (2_300_000, False, "FAILED: converges faster than the reference allows"),
        (2_550_000, True, "passed, faster than the reference: score normalized to 10.28 minutes"),
        (2_700_000, True, "passed"),
    ],
)
def test_verdict(tmp_path, samples, accepted, verdict):
    found = convergence_lib.score(seeds(tmp_path, [10] * 10, samples), "1.0.0")
    assert [reference["accepted"] for reference in found["references"]] == [accepted] * 2
    line = next(
        line for line in convergence_lib.format_score(found).splitlines() if line.startswith("all, batch 448")
    )
    assert line.endswith(f"{samples:,}  {verdict}")


@pytest.mark.parametrize("batch_size, batches", [(64, [256]), (1000, [448, 1536]), (20_000, None)])
def test_reference_of_other_batch_sizes(tmp_path, batch_size, batches):
    found = convergence_lib.score(seeds(tmp_path, [1, 2, 3], 3_000_000, batch_size=batch_size), "1.0.0")
    assert [reference["batch_sizes"] for reference in found["references"][:1]] == (
        [batches] if batches else []
    )
    assert "MLPerf" in convergence_lib.format_score(found)


def test_one_failure_is_the_slowest_run_and_two_leave_no_score(tmp_path):
    runs = seeds(tmp_path / "good", [1, 2, 3, 4], [10, 20, 30, 40])
    failed = [
        read(write_seed(tmp_path / name, 0.5, 10, **values))[0]
        for name, values in (("aborted", dict(success=False)), ("killed", dict(stopped=False)))
    ]
    found = convergence_lib.score(runs + failed[:1], "1.0.0")
    assert (found["score_minutes"], found["mean_samples"]) == (3, 30)
    assert found["runs"][-1]["samples"] is None and not found["runs"][-1]["success"]
    assert (
        found["notes"][0]
        == "aborted did not reach the target; one such run counts as the slowest, more leave no score."
    )
    found = convergence_lib.score(runs + failed, "1.0.0")
    assert (found["score_minutes"], found["references"], found["runs"][-1]["minutes"]) == (None, [], None)
    assert "aborted, killed did not reach the target" in convergence_lib.format_score(found)


def test_a_log_that_begins_in_the_middle_of_a_run_is_left_out(tmp_path):
    runs = seeds(tmp_path, [1, 2, 3], 3_000_000)
    whole, rest = (
        read(write_seed(tmp_path / name, 0.5, 3_000_000, first=first))[0]
        for name, first in (("whole", 0), ("rest", 448_000))
    )
    found = convergence_lib.score([*runs, rest], "1.0.0")
    assert found["notes"] == [
        "left out of the score, because the log begins in the middle of the run: rest.",
        "MLPerf asks for 10 runs of BERT; these are 3.",
    ]
    assert {name: value for name, value in found.items() if name not in ("runs", "notes")} == {
        name: value
        for name, value in convergence_lib.score(runs, "1.0.0").items()
        if name not in ("runs", "notes")
    }
    assert [(row["whole"], row["minutes"], row["samples"]) for row in found["runs"]][2:] == [
        (True, 3, 3_000_000),
        (False, None, None),
    ]
    assert "rest" in convergence_lib.format_score(found)
    assert convergence_lib.score([*runs, whole], "1.0.0")["score_minutes"] == 1.5
    assert convergence_lib.score([rest], "1.0.0")["score_minutes"] is None


def test_the_log_of_a_killed_run_ends_in_half_a_line(tmp_path):
    runs = seeds(tmp_path, [1, 2, 3], 3_000_000) + read(
        write_seed(tmp_path / "killed", 0.5, 10, stopped=False)
    )
    with open(runs[-1].log_path, "a", encoding="utf-8") as file:
        file.write(':::MLLOG {"key": "eval_accuracy", "val')
    assert not convergence_lib.score([*runs[:-1], *read(runs[-1].folder)], "1.0.0")["runs"][-1]["success"]


def test_what_is_in_doubt_is_said(tmp_path):
    runs = read(
        write_seed(tmp_path / "a", 1, 3_000_000),
        write_seed(tmp_path / "b", 2, 3_000_000, batch_size=512, learning_rate=1e-3),
    )
    found = convergence_lib.score(runs, "1.0.0")
    assert (
        found["score_minutes"] is None
        and found["references"] == []
        and found["notes"]
        == [
            "a score takes at least 3 runs that reached the target; these are 2.",
            "MLPerf asks for 10 runs of BERT; these are 2.",
            "the batch sizes differ (448, 512), so there is no score and no reference.",
            "not one recipe: the runs differ in learning_rate.",
        ]
    )
    found = convergence_lib.score(seeds(tmp_path, [1, 2, 3], 3_000_000, stop_threshold=0.712), "1.0.0")
    assert "the references are for a target of 0.720; these runs stop at 0.712." in found["notes"]


def test_the_library_is_kept_quiet(tmp_path, capfd):
    root = standard_logging.getLogger()
    handlers, root.handlers[:] = list(root.handlers), []
    try:
        runs = seeds(tmp_path, [1, 2, 3], 3_000_000) + read(
            write_seed(tmp_path / "failed", 1, 1, success=False)
        )
        convergence_lib.score(runs, "1.0.0")
        assert root.handlers == [] and root.manager.disable == 0
    finally:
        root.handlers[:] = handlers
    assert "".join(capfd.readouterr()) == ""


def test_a_run_without_a_usable_log_is_named(tmp_path):
    with pytest.raises(
        ConfigError, match=r"/a has no MLPerf log of its own with a run_start: .*/a/mllog.txt"
    ):
        convergence_lib.score(read(write_run(tmp_path / "a")), "1.0.0")
    events = [event("run_start", 1), event("run_stop", 2, status="success")]
    with pytest.raises(ConfigError, match=r"/b/mllog.txt is not a whole MLPerf log"):
        convergence_lib.score(read(write_run(tmp_path / "b", events=events)), "1.0.0")


# ----------------------------------------------------------------------------------------------------------
# the command


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda folder: None, "is not a folder"),
        (lambda folder: folder.mkdir(), "holds no metrics"),
        (
            lambda folder: (folder.mkdir(), (folder / "metrics.jsonl").write_text('{"half')),
            "holds no metrics",
        ),
    ],
)
def test_bad_folders(tmp_path, make, message):
    make(tmp_path / "bad")
    with pytest.raises(ConfigError, match=f"{tmp_path}/bad {message}"):
        read(write_run(tmp_path / "good"), tmp_path / "bad")


def test_a_run_that_did_no_step_is_a_run(tmp_path):
    folder = pathlib.Path(write_run(tmp_path / "stopped"))
    (folder / "metrics.jsonl").unlink()
    (folder / "config.json").write_text('{"model": {"hidden_size": 32}, "seed": 1}')
    (folder / "result.json").write_text('{"status": "interrupted", "step": 0}')
    done = command(folder, write_run(tmp_path / "other"), f"--output={tmp_path}/a.png")
    assert done.returncode == 0, done.stderr
    assert "interrupted" in done.stdout and "no step is in metrics.jsonl" in done.stdout
    alone = command(folder, f"--output={tmp_path}/b.png")
    assert alone.returncode == 0, alone.stderr


def command(*arguments):
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "compare_runs.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_command(tmp_path):
    folders = [
        write_seed(tmp_path / f"seed_{number}", number + 1, 3_000_000, seed=number) for number in range(3)
    ]
    picture, numbers = tmp_path / "out" / "picture.png", tmp_path / "out" / "numbers.json"
    done = command(*folders, "--mlperf", "--target=0.25", f"--output={picture}", f"--json={numbers}")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "0.25" in done.stdout
        and "Score: 2.00 minutes" in done.stdout
        and done.stdout.endswith(f"\n{picture}\n")
    )
    assert decoded(picture.read_bytes()).size
    values = json.loads(numbers.read_text())
    assert (
        values["settings"] == ["seed"]
        and values["runs"][0]["target_step"] == 200
        and values["mlperf"]["score_minutes"] == 2
    )
    done = command(*folders, f"--output={picture}")
    assert done.returncode == 2 and done.stderr.strip().endswith(
        f"compare_runs.py: --output={picture} exists. Give another --output, or replace it with --overwrite."
    )


@pytest.mark.parametrize("flag", ["--output=/proc/x.png", "--json=/proc/x.json"])
def test_an_unwritable_place_is_one_line(tmp_path, flag):
    done = command(write_run(tmp_path / "a"), flag)
    assert (
        done.returncode == 2
        and done.stderr == f"compare_runs.py: {flag}: No such file or directory.\n"
        and not done.stdout
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the following arguments are required: DIR"),
        (["x", "--target=72"], "--target=72.0 is out of range"),
        (["x", "--output=a.jpg"], "--output=a.jpg does not end with one of .png, .svg, .pdf"),
        (["x", f"--json={ROOT}", "--overwrite"], "is a folder. Give the name of a file"),
        (["x", "--mlperf", "--ruleset=0.7.0"], "--ruleset=0.7.0 is not one of 1.0.0,"),
    ],
)
def test_bad_flags(monkeypatch, arguments, message):
    from official.cli import runs as compare_runs

    monkeypatch.setattr("sys.argv", ["compare_runs.py", *arguments])
    with pytest.raises(ConfigError, match=message):
        compare_runs.run_compare()
