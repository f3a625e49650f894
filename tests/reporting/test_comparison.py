"""Comparing runs: names, settings, times to a target, table, picture, MLPerf score, references, bad input."""

import io
import itertools
import json
import logging as standard_logging
import os
import pathlib
import tempfile

import matplotlib.image
import pytest

from official import config as config_lib
from official.cli import runs as compare_runs
from official.io.errors import ConfigError
from official.reporting import comparison
from official.reporting import convergence as convergence_lib
from official.reporting import plots as plots_lib
from tests.refusals import assert_refused
from tests.reporting.test_reporting import save_metrics

COMPARISONS = pathlib.Path(__file__).parent / "pages" / "comparisons.json"
GPU_MINUTES = [193.85, 193.92, 195.21, 195.34, 196.35, 196.47, 196.47, 227.05, 228.38, 229.68]
TPU_MINUTES = [52.34, 52.41, 52.41, 52.42, 52.43, 61.05, 61.08, 61.08, 61.10, 61.11]


def event(key, time_ms, value=None, **metadata):
    head = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key}
    return {**head, "value": value, "metadata": metadata}


def evaluation(time_ms, samples, value, step):
    return event("eval_accuracy", time_ms, value, epoch_num=samples, samples_count=samples, step_num=step)


def write_run(
    folder,
    evaluations=((100, 3.0, 0.2), (200, 2.0, 0.3), (300, 1.9, 0.29)),
    metric="mlm_accuracy",
    events=None,
    result=None,
    **settings,
):
    """Writes the folder of a run.

    Args:
      evaluations: (step, loss, score).
      metric: name of the score.
      events: of the MLPerf log; None for no log.
      result: of result.json; None for none.
      settings: of config.json, over the defaults.
    """
    folder.mkdir(parents=True)
    settings = {"train_batch_size": 64, "model": {"hidden_size": 8}, **settings}
    defaults = {name: field.default for name, field in config_lib.FIELDS.items()}
    values = {**defaults, "model_dir": str(folder), "warmup_steps": 10000.0, **settings}
    (folder / "config.json").write_text(json.dumps(values))
    lines = []
    for step, loss, accuracy in evaluations:
        point = {"step": step, "samples": step * settings["train_batch_size"], metric: accuracy}
        lines.append({"split": "train", **point, "loss": loss - 0.1, "sequences_per_sec": 400.0})
        lines.append({"split": "eval", **point, "loss": loss})
    save_metrics(folder, lines)
    if events is not None:
        log = "".join(f":::MLLOG {json.dumps(line)}\n" for line in events)
        (folder / "mllog.txt").write_text(f"noise\n{log}")
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    return str(folder)


def read(*folders):
    return comparison.read_runs([str(folder) for folder in folders])


# ----------------------------------------------------------------------------------------------------------
# names and settings


def test_names_are_the_shortest_that_differ(tmp_path):
    for folders, names in (
        ("runs/a runs/b/", "a b"),
        ("x/run y/run", "x y"),
        ("x/1 y/1 y/2", "x/1 y/1 y/2"),
        ("gs://b/x/run gs://b/y/run", "x y"),
        ("runs/only", "only"),
    ):
        assert comparison.short_names(folders.split()) == names.split()
    twice = [str(tmp_path / "a"), str(tmp_path / "b"), f"{tmp_path}/a/"]
    assert_refused(comparison.short_names, [(twice, "/a/ is given twice")])


def test_only_settings_that_differ_are_listed(tmp_path):
    """A run older than a setting has its default."""
    old = write_run(tmp_path / "a", learning_rate=1e-3, wandb_name="x", bert_config_file="a.json")
    values = json.loads((tmp_path / "a" / "config.json").read_text())
    del values["beta_2"], values["enable_xla"]
    (tmp_path / "a" / "config.json").write_text(json.dumps(values))
    other = dict(learning_rate=2e-3, wandb=True, plan_file="p", mllog_file=None, beta_2=0.5)
    found = comparison.compare(read(old, write_run(tmp_path / "b", model={"hidden_size": 16}, **other)))
    assert sorted(found["settings"]) == ["beta_2", "learning_rate", "model.hidden_size"]
    assert [run["settings"]["beta_2"] for run in found["runs"]] == [0.999, 0.5]


# ----------------------------------------------------------------------------------------------------------
# numbers and table


EVENTS = [event("run_start", 10_000), evaluation(13_000, 6400, 0.2, 100), evaluation(16_500, 12800, 0.3, 200)]


def test_files_that_have_changed_between_runs_are_told(tmp_path):
    for name, digest in (("a", "1"), ("b", "2"), ("c", "2")):
        data = {"eval": {"files": 1, "sha256": digest}}
        write_run(tmp_path / name, result={"status": "finished", "data": data, "data_changed": name == "c"})
    notes = comparison.compare(read(*(tmp_path / name for name in "ab")))["notes"]
    assert notes == ["a, b: the files of eval have the same names in these settings, but different content."]
    notes = comparison.compare(read(*(tmp_path / name for name in "bc")))["notes"]
    assert notes == ["c resumed with data other than those at its start."]
    result = {"status": "finished", "data": {"eval": {"sha256": "3"}}}
    write_run(tmp_path / "d", input_files="other", result=result)
    assert comparison.compare(read(tmp_path / "a", tmp_path / "d"))["notes"] == []


def test_the_score_of_a_task_is_drawn(tmp_path):
    for metric, score, title, low in (("f1", 0.5, "F1", 0), ("matthews_correlation", -0.4, None, -0.4)):
        result = {"status": "finished", "target_metric": metric}
        runs = read(write_run(tmp_path / metric, [(2, 1.0, score)], metric, result=result))
        _, axes = comparison.plot_comparison(runs).axes
        assert title in (None, axes.get_title(loc="left")) and axes.get_ylim()[0] <= low


def test_a_log_elsewhere_is_found_and_one_of_several_runs_is_left_out(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "log")
    folders = [
        write_run(tmp_path / "a", events=EVENTS, mllog_file=str(tmp_path / "log")),
        write_run(tmp_path / "b", mllog_file=str(tmp_path / "link")),
        write_run(tmp_path / "c", events=EVENTS),
    ]
    os.rename(tmp_path / "a" / "mllog.txt", tmp_path / "log")
    assert comparison.summarize(read(folders[0])[0], 0.3)["target_secs"] == 6.5
    found = comparison.compare(read(*folders), target=0.3)
    assert [run["target_secs"] for run in found["runs"]] == [None, None, 6.5]
    note = f"a, b have the same --mllog_file, {tmp_path}/log, which logs only the last of them: left out."
    assert found["notes"] == [note] and comparison.format_comparison(found).endswith(f"\n\nNote: {note}")
    with pytest.raises(ConfigError, match=r"/a has no MLPerf log with a run_start: .*/log"):
        convergence_lib.score(read(*folders), "1.0.0")


def test_damaged_events(tmp_path):
    changes = [{"time_ms": None}, {"value": None}, {"metadata": None}, {"metadata": {}}, {"key": None}]
    for number, change in itertools.product(range(3), changes):
        events = [*EVENTS, event("run_stop", 17_000, status="success"), event("global_batch_size", 1, 64)]
        events[number] = {**events[number], **change}
        folder = tmp_path / f"{number}-{changes.index(change)}"
        (run,) = read(write_run(folder, events=events, stop_threshold=0.3))
        assert comparison.summarize(run)["target_step"] == 200
        try:
            assert len(convergence_lib.score([run], "1.0.0")["runs"]) == 1
        except ConfigError as error:
            assert str(folder) in str(error) and "\n" not in str(error)


# ----------------------------------------------------------------------------------------------------------
# picture


def test_picture(tmp_path):
    runs = read(
        write_run(tmp_path / "first", stop_threshold=0.3, learning_rate=1e-3),
        write_run(tmp_path / "second", stop_threshold=0.3, train_batch_size=256),
    )
    figure = comparison.plot_comparison(runs)
    loss, accuracy = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Loss", "Masked-LM accuracy"]
    assert loss.get_xlabel() == accuracy.get_xlabel() == "sequences" and loss.get_xlim() == (0, 76800)
    strong = [list(line.get_xdata()) for line in loss.lines if line.get_linewidth() > 1.5]
    assert strong == [[6400, 12800, 19200], [25600, 51200, 76800]]
    found = {text.get_text(): text.get_color() for text in accuracy.get_legend().get_texts()}
    assert [*found] == ["first 0.290", "second 0.290", "target 0.300"] and len(set(found.values())) == 3
    assert [text.get_text() for text in figure.texts][1::2] == [
        "train_batch_size 64, learning_rate 0.001",
        "train_batch_size 256, learning_rate 5e-05",
    ]
    stopped = comparison.plot_comparison(read(tmp_path / "first", write_run(tmp_path / "stopped", ())))
    for each in (figure, stopped):  # also of a run that did no step
        assert matplotlib.image.imread(io.BytesIO(plots_lib.render(each, "png")), format="png").shape[2] == 4


# ----------------------------------------------------------------------------------------------------------
# MLPerf score


def write_seed(folder, minutes, samples, success=True, batch_size=448, stopped=True, first=0, **settings):
    start = 1_700_000_000_000
    stop = start + round(minutes * 60_000)
    block = dict(first_epoch_num=first, epoch_count=samples - first, samples_count=first)
    events = [
        event("submission_benchmark", start, "bert"),
        event("global_batch_size", start, batch_size),
        event("run_start", start),
        event("block_start", start, **block, step_num=first // batch_size),
        evaluation(stop - 10, samples, 0.73, samples // batch_size),
    ]
    events += [event("run_stop", stop, status="success" if success else "aborted")] * stopped
    settings = {"train_batch_size": batch_size, "stop_threshold": 0.72, **settings}
    return write_run(folder, events=events, **settings)


def seeds(tmp_path, minutes, samples, **keywords):
    samples = samples if isinstance(samples, list) else [samples] * len(minutes)
    folders = [
        write_seed(tmp_path / f"seed_{number}", *values, seed=number, **keywords)
        for number, values in enumerate(zip(minutes, samples))
    ]
    return read(*folders)


def test_score_of_published_runs(tmp_path):
    for name, minutes, score in (("gpu", GPU_MINUTES, 203.65), ("tpu", TPU_MINUTES, 56.74)):
        found = convergence_lib.score(seeds(tmp_path / name, minutes, 2_800_000), "1.0.0")
        # The minutes are rounded, the published score is not made from those.
        assert found["score_minutes"] == pytest.approx(score, abs=0.01)
        assert found["mean_samples"] == 2_800_000 and found["notes"] == []
        assert f"Score: {found['score_minutes']:.2f} minutes" in convergence_lib.format_score(found)


# ----------------------------------------------------------------------------------------------------------
# whole comparisons and scores


def comparisons(folder: pathlib.Path) -> dict[str, dict]:
    """Returns {name: text and numbers of a comparison of runs}."""
    reached = {"status": "success", "sequences_per_sec": 512.5}
    many = dict(learning_rate=1e-3, warmup_steps=1.0, beta_1=0.8, beta_2=0.9, epsilon=1e-7, seed=1)
    large = dict(train_batch_size=256, stop_threshold=0.3, evaluations=[(1000, 2.5, 0.25)])
    f1 = dict(metric="f1", result={"status": "finished", "target_metric": "f1"}, stop_threshold=0.6)
    halves, more = [(2, 1.0, 0.25), (4, 1.0, 0.5)], [(2, 1.0, 0.375), (4, 1.0, 0.75)]
    runs = {
        "scores of a task": [dict(f1, evaluations=halves), dict(f1, evaluations=more)],
        "scores of a task, and of words": [dict(f1, evaluations=more), {}],
        "no step": [dict(evaluations=(), result={"status": "interrupted", "step": 0}), dict(seed=1)],
        "one that reached the target": [dict(events=EVENTS, result=reached, stop_threshold=0.3)],
        "two sizes of a batch": [dict(events=EVENTS, result=reached, stop_threshold=0.3), large],
        "no target": [{}, {}],
        "two targets": [dict(stop_threshold=0.2), dict(stop_threshold=0.3)],
        "not reached": [dict(evaluations=[(5, 3.0, None), (10, 2.0, 0.1)], stop_threshold=0.3)],
        "many settings": [many, {}],
    }
    found = {}
    for number, (name, settings) in enumerate(runs.items()):
        made = [write_run(folder / str(number) / f"run_{each}", **own) for each, own in enumerate(settings)]
        values = comparison.compare(read(*made))
        numbers = [{key: value for key, value in run.items() if key != "folder"} for run in values["runs"]]
        found[name] = {"text": comparison.format_comparison(values).splitlines(), "runs": numbers}
    return found


def scores(folder: pathlib.Path) -> dict[str, dict]:
    """Returns {name: text and numbers of an MLPerf score}."""
    three, samples = [1, 2, 3], 3_000_000
    good = seeds(folder / "good", [1, 2, 3, 4], [10, 20, 30, 40])
    (aborted,) = read(write_seed(folder / "aborted", 0.5, 10, success=False))
    (killed,) = read(write_seed(folder / "killed", 0.5, 10, stopped=False))
    whole = seeds(folder / "whole", three, samples)
    (rest,) = read(write_seed(folder / "rest", 0.5, samples, first=448_000))
    other = read(write_seed(folder / "b", 2, samples, batch_size=512, learning_rate=1e-3))
    runs = {
        "one failure is the slowest run": [*good, aborted],
        "two failures leave no score": [*good, aborted, killed],
        "a log that begins in the middle of its run is left out": [*whole, rest],
        "nothing but such a log": [rest],
        "two recipes": [whole[0], *other],
        "another target": seeds(folder / "target", three, samples, stop_threshold=0.712),
    }
    for count in (2_300_000, 2_550_000, 2_700_000):
        runs[f"{count:,} sequences to the target"] = seeds(folder / str(count), [10] * 10, count)
    for size in (64, 1000, 20_000):
        runs[f"batches of {size}"] = seeds(folder / f"batch_{size}", three, samples, batch_size=size)
    found = {name: convergence_lib.score(each, "1.0.0") for name, each in runs.items()}
    rounds = seeds(folder / "rounds", [3, 1, 2], [2_000_000, 2_700_000, 9_000_000])
    found |= {f"ruleset {rules}": convergence_lib.score(rounds, rules) for rules in ("1.0.0", "5.0.0")}
    text = convergence_lib.format_score
    return {name: {"text": text(each).splitlines(), "numbers": each} for name, each in found.items()}


def everything(folder: pathlib.Path) -> dict:
    found = {"comparisons": comparisons(folder / "compared"), "scores": scores(folder / "scored")}
    return json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 6))


@pytest.mark.slow
def test_comparisons_and_scores_are_those_that_people_have_read(tmp_path):
    """Rewritten by `python -m tests.reporting.test_comparison`; read the difference first."""
    expected, found = json.loads(COMPARISONS.read_text()), everything(tmp_path)
    for part, values in found.items():
        assert values.keys() == expected[part].keys()
        assert not {name: value for name, value in values.items() if value != expected[part][name]}


def test_the_library_is_kept_quiet(tmp_path, capfd):
    root = standard_logging.getLogger()
    handlers, root.handlers[:] = list(root.handlers), []
    try:
        failed = read(write_seed(tmp_path / "failed", 1, 1, success=False))
        convergence_lib.score(seeds(tmp_path, [1, 2, 3], 3_000_000) + failed, "1.0.0")
        assert root.handlers == [] and root.manager.disable == 0
    finally:
        root.handlers[:] = handlers
    assert "".join(capfd.readouterr()) == ""


# ----------------------------------------------------------------------------------------------------------
# the command


def test_bad_folders(tmp_path):
    good, bad = write_run(tmp_path / "good"), tmp_path / "bad"
    for make, message in (
        (lambda: None, "is not a folder"),
        (bad.mkdir, "holds no metrics"),
        (lambda: (bad / "metrics.jsonl").write_text('{"half'), "holds no metrics"),
    ):
        make()
        assert_refused(read, [(good, bad, f"{bad} {message}")])


def test_command(tmp_path, monkeypatch, capsys):
    folders = [write_seed(tmp_path / f"seed_{each}", each + 1, 3_000_000, seed=each) for each in range(3)]
    picture, numbers = tmp_path / "out" / "picture.png", tmp_path / "out" / "numbers.json"
    words = f"--mlperf --target=0.25 --output={picture} --json={numbers}"
    monkeypatch.setattr("sys.argv", ["bert compare", *folders, *words.split()])
    compare_runs.run_compare()
    printed, errors = capsys.readouterr()
    assert "0.25" in printed and "Score: 2.00 minutes" in printed and printed.endswith(f"\n{picture}\n")
    assert errors == "" and matplotlib.image.imread(picture).size
    values = json.loads(numbers.read_text())
    assert values["settings"] == ["seed"] and values["runs"][0]["target_step"] == 200
    assert values["mlperf"]["score_minutes"] == 2
    with pytest.raises(ConfigError, match=f"--output={picture} exists. Give another --output, or replace it"):
        compare_runs.run_compare()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        COMPARISONS.write_text(json.dumps(everything(pathlib.Path(path)), indent=1) + "\n")
