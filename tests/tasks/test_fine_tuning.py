"""Fine-tuning end to end: what can be learned is learned, the best checkpoint counts, devices do not."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from official.config import FIELDS, replaced
from official.data.glue import tasks as glue_tasks
from official.data.pipeline import TrainingOrder
from official.io.errors import ConfigError
from official.reporting.metrics import read_metrics
from official.tasks import TASKS
from official.training import finish as finish_lib
from official.training import run as runner
from official.training import task as task_lib
from tests.fine_tuning_files import WORDS
from tests.fixtures import ROOT, slow
from tests.modeling.models import randomised
from tests.run_folders import run

MIRRORED = dict(
    distribution_strategy="mirrored", num_virtual_devices=2, num_gpus=0, all_reduce_alg="hierarchical_copy"
)


def found_task(config):
    """Returns the task of a configuration, which has found its data."""
    task = TASKS[config.task](config)
    task.find_data()
    return task


# ------------------------------------------------------------------------------------------------------------
# SQuAD


ONE_GRAPH = dict(impossible=True, num_train_epochs=4, learning_rate=2e-2)  # of all runs with these settings


@pytest.mark.parametrize("impossible", [slow(False), True])
def test_squad_from_files_to_scores_and_predictions(squad, tmp_path, impossible):
    folder, settings = tmp_path / "run", ONE_GRAPH if impossible else dict(num_train_epochs=20)
    steps = 8 * settings["num_train_epochs"]  # those of an epoch follow from the data
    settings = dict(settings, keep_checkpoints=1, steps_per_loop=8, steps_between_eval=steps // 4)
    result = run(squad(do_predict=True, **settings))
    assert result.status == "finished" and result.step == steps
    assert impossible or 0.5 < result.scores["f1"] <= 1  # by chance: 0.33
    files = {"predictions.json", "nbest_predictions.json"} | ({"null_odds.json"} if impossible else set())
    assert files <= {path.name for path in folder.iterdir()}
    assert ("best_f1_thresh" in result.scores) == impossible
    written = json.loads((folder / "result.json").read_text())
    assert all(written[name] == result.scores[name] for name in ("f1", "exact_match"))
    evaluations = {line["step"]: line["f1"] for line in read_metrics(str(folder)) if line["split"] == "eval"}
    assert written["eval_accuracy"] == evaluations[steps] <= 1
    command = [sys.executable, f"scripts/evaluate_squad_v{2 if impossible else 1}.py", tmp_path / "dev.json"]
    done = subprocess.run([*command, folder / "predictions.json"], cwd=ROOT, capture_output=True, check=True)
    in_percent = json.loads(done.stdout)  # as published
    for ours, theirs in (("f1", "f1"), ("exact_match", "exact" if impossible else "exact_match")):
        assert in_percent[theirs] == pytest.approx(100 * written[ours]) and 1 < in_percent[theirs] <= 100
    assert set(written["tables"]) == {"Score by question word", "Score by length of the answer"}
    page = (folder / "report.html").read_text()
    assert len(json.loads((folder / "predictions.json").read_text())) == 20
    shown = {group["title"]: group["items"] for group in written["examples"]}
    assert set(shown) <= {"Wrong answers", "Right answers"} and max(map(len, shown.values())) >= 4
    assert "Score by question word" in page and all(f"<h2>{title}</h2>" in page for title in shown)
    # Of "the red ball" red is the answer: 2 words that count, one of them right.
    assert result.baseline_prediction == "the whole sentence"
    root = json.loads((tmp_path / "dev.json").read_text())
    asked = [each for article in root["data"] for part in article["paragraphs"] for each in part["qas"]]
    answered = np.mean([bool(question["answers"]) for question in asked])
    assert result.baseline_score == pytest.approx(2 / 3 * answered)
    # The best checkpoint is kept and scored.
    assert sorted(evaluations) == [steps // 4 * part for part in (1, 2, 3, 4)]
    f1, best_step = result.scores["f1"], result.scores["best_step"]
    assert f1 == pytest.approx(max(evaluations.values())) and evaluations[best_step] == pytest.approx(f1)
    assert all((folder / f"ckpt-{step}.index").exists() for step in (best_step, steps))
    again = run(squad(**settings, do_train=False))
    assert again.step == best_step and again.scores["f1"] == pytest.approx(f1)


def test_squad_is_compared_with_no_answer_where_that_scores_better(squad, tmp_path):
    config = squad(True, version_2_with_negative=True)
    root = json.loads((tmp_path / "dev.json").read_text())
    asked = [part["qas"][0] for part in root["data"][0]["paragraphs"]]
    for question in asked[4:]:
        question |= {"answers": [], "is_impossible": True}
    (tmp_path / "dev.json").write_text(json.dumps(root))
    task = found_task(config)
    right = np.mean([not question["answers"] for question in asked])
    assert task.constant_prediction() == ("no answer", pytest.approx(right)) and right > 2 / 3


def test_questions_that_are_trained_on_and_scored_are_told(squad, tmp_path, caplog):
    for name, is_told in (("dev", False), ("train", True)):
        caplog.clear()
        found_task(squad(predict_file=str(tmp_path / f"{name}.json")))
        assert ("64 of 64 questions are in --train_file, too" in caplog.text) == is_told, name


@pytest.mark.slow
def test_squad_stages_apart_are_the_stages_together(squad, tmp_path):
    together = run(squad(do_predict=True))
    predictions = (tmp_path / "run" / "predictions.json").read_bytes()
    run(squad(model_dir="apart", do_eval=False))
    evaluated = run(squad(model_dir="apart", do_train=False))
    run(squad(model_dir="apart", do_train=False, do_eval=False, do_predict=True))
    if together.scores["best_step"] == together.step:  # without evaluations there is no best one but the last
        assert evaluated.scores["f1"] == together.scores["f1"]
        assert (tmp_path / "apart" / "predictions.json").read_bytes() == predictions


def test_padding_in_the_loss_of_squad_is_trained_on(squad):
    found = {}
    for places in ("tokens", "row"):
        task = found_task(squad(span_places=places, length_buckets="always"))
        batch = next(iter(task.train_dataset(2, 2, TrainingOrder(0))))
        model = randomised(task.build_model())
        outputs = [np.where(batch["input_mask"], part, -np.inf) for part in model(batch)]
        outputs = outputs if places == "tokens" else list(map(np.asarray, model(batch)))
        expected = sum(
            np.log(np.exp(part).sum(axis=1)) - part[np.arange(2), batch[name]]
            for part, name in zip(outputs, ("start_positions", "end_positions"))
        )
        total, weight = task.terms(model(batch), batch)["span_loss"]
        np.testing.assert_allclose(total / weight, expected.mean() / 2, rtol=1e-4)
        found[places] = float(total / weight)
    is_padded = bool((batch["input_mask"].numpy() == 0).any())
    assert (found["row"] > found["tokens"] + 1e-3) == is_padded and is_padded


def test_the_pooler_of_squad_comes_from_the_checkpoint_and_a_head_that_it_lacks_predicts_nothing(
    squad, glue, tmp_path
):
    settings = dict(ONE_GRAPH, do_eval=False, stop_steps=1)
    run(squad(model_dir="first", **settings))
    run(squad(init_checkpoint=str(tmp_path / "first"), **settings))
    newest = [tf.train.latest_checkpoint(str(tmp_path / name)) for name in ("first", "run")]
    readers = map(tf.train.load_checkpoint, newest)
    np.testing.assert_array_equal(*(reader.get_tensor("bert/pooler/dense/kernel") for reader in readers))
    settings = dict(model_dir="rte", do_train=False, init_checkpoint=str(tmp_path / "first"))
    with pytest.raises(ConfigError, match="has no output_bias, output_weights: it was not fine-tuned for"):
        run(glue("rte", dict(dev=4, test=4), **settings))


@pytest.mark.slow
def test_predictions_are_timed_as_popart_does_and_other_ones_set_aside(squad, tmp_path, caplog):
    """Several rounds tell throughput and latency."""
    caplog.set_level("INFO", logger="absl")
    run(squad(num_train_epochs=1, do_predict=True))
    first = (tmp_path / "run" / "predictions.json").read_bytes()
    caplog.clear()
    run(squad(do_train=False, do_predict=True, predict_epochs=3))  # the same again
    assert not list((tmp_path / "run").glob("predictions-*"))
    lines = [text for text in caplog.messages if text.startswith("Iteration: ")]
    assert [int(line.split()[1]) for line in lines] == [0, 1, 2]
    for line in lines:  # the patterns of its benchmarks.yml
        rate, latency = (
            float(re.search(pattern, line).group(1))
            for pattern in (r"Throughput\:\s*(.*) sequences/s", r"Per-sample: Mean Latency=\s*(\d\.\d*)")
        )
        assert rate > 0 and 0 < latency < float(re.search(r"Duration: +(\S+) s", line).group(1)) + 1e-4
    other = dict(max_answer_length=1, n_best_size=1, predict_file=str(tmp_path / "train.json"))
    run(squad(do_train=False, do_predict=True, **other))
    assert (tmp_path / "run" / "predictions-1.json").read_bytes() == first


@pytest.mark.slow
def test_a_timed_prediction_of_generated_data_needs_no_checkpoint(make, caplog):
    caplog.set_level("INFO", logger="absl")
    settings = dict(generated_data=True, do_train=False, do_eval=False, do_predict=True, max_query_length=16)
    run(make("squad", predict_epochs=2, **settings))
    assert len([text for text in caplog.messages if text.startswith("Iteration: ")]) == 2
    assert "their predictions for generated data are meaningless" in caplog.text
    with pytest.raises(ConfigError, match="has no checkpoint to evaluate"):
        run(make("squad", model_dir="other", **settings))


@pytest.mark.slow
def test_a_signal_while_a_run_finishes_stops_the_runs(squad, tmp_path, monkeypatch):
    config, predict = squad(num_runs=3, num_train_epochs=1), finish_lib.findings

    def finish_slowly(loop):
        os.kill(os.getpid(), signal.SIGTERM)
        while loop.processes.signal is None:
            time.sleep(0.01)
        return predict(loop)

    monkeypatch.setattr(finish_lib, "findings", finish_slowly)
    result = runner.run_seeds(config, TASKS["squad"])
    found = result.status, result.exit_code, result.reason
    assert found == ("interrupted", 143, "1 of 3 runs done on SIGTERM")
    assert json.loads((tmp_path / "run" / "run-1" / "result.json").read_text())["status"] == "finished"
    assert not (tmp_path / "run" / "run-2").exists() and not (tmp_path / "run" / "result.json").exists()
    monkeypatch.undo()
    assert runner.run_seeds(config, TASKS["squad"]).reason == "3 runs done"


# ------------------------------------------------------------------------------------------------------------
# GLUE


@pytest.mark.parametrize("name", ["stsb", *(slow(name) for name in glue_tasks.TASKS if name != "stsb")])
def test_every_glue_task_runs_from_files_to_predictions(glue, tmp_path, name):
    task, learns = glue_tasks.find_task(name), name in ("ax", "stsb")  # the first is tested on other files
    settings = dict(num_train_epochs=30, steps_per_loop=60, steps_between_eval=60) if learns else {}
    config = glue(name, dict(train=10, dev=9, test=7), do_predict=True, **settings)
    for path in (tmp_path / "glue").rglob("*.tsv"):  # a word for each label
        word = lambda cell: WORDS[5 + int(cell[1]) % (len(task.labels or WORDS[5:15]))]  # noqa: E731
        path.write_text(re.sub(r"cell (\d+) \d+", word, path.read_text()))
    result = run(config)
    assert not learns or result.scores[result.target_metric] > 0.6
    assert result.status == "finished" and np.isfinite(result.eval_loss)
    assert set(task.metrics) <= set(result.scores)
    lines = (tmp_path / "run" / task.submission_file).read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["index", *map(str, range(7))]
    assert bool(result.tables) != task.is_regression
    titles = [group["title"] for group in result.examples]
    assert titles == ["Largest errors"] if task.is_regression else titles in ([], ["Confident mistakes"])
    constant = float(result.baseline_prediction) if task.is_regression else result.baseline_prediction
    assert 0 <= constant <= 5 if task.is_regression else constant in task.labels
    if result.tables:
        assert sum(sum(row[1:]) for row in result.tables["Confusion matrix"][1:]) == 9


# ------------------------------------------------------------------------------------------------------------
# Settings


def test_predictions_leave_padding_out_whatever_was_trained(make):
    settings = dict(task="squad", train_file="f", predict_file="f", span_places="row", unpad=True)
    assert make(**settings, do_train=False, do_predict=True).unpad


# ------------------------------------------------------------------------------------------------------------
# Every task


def members(protocol: type) -> dict[str, object]:
    """Returns the names of a protocol, those of its bases among them, with what they are."""
    found = {}
    for base in reversed(protocol.__mro__):
        if base.__module__.startswith("official."):
            found |= dict.fromkeys(base.__annotations__)
            found |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    return found


def test_tasks_have_every_member_with_the_same_parameters(make_config):
    for name in TASKS:
        task = TASKS[name](replaced(make_config(), task=name, glue_task="rte"))
        asked = members(task_lib.ScoredTask if task_lib.is_scored(task) else task_lib.ExampleTask)
        assert {"terms", "train_dataset", "local_epsilon", "is_scored"} <= set(asked)
        for member in asked:
            if member == "write_predictions" and name not in (FIELDS["do_predict"].tasks or TASKS):
                continue
            if inspect.isfunction(asked[member]):
                expected = list(inspect.signature(asked[member]).parameters)[1:]
                found = list(inspect.signature(getattr(task, member)).parameters)
                assert found == expected, (name, member)
            assert hasattr(task, member), (name, member)
