"""Fine-tuning end to end: what can be learned is learned, the best checkpoint counts, devices do not."""

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

from official import config as config_lib
from official.data.glue import tasks as glue_tasks
from official.data.pipeline import TrainingOrder
from official.io.errors import ConfigError
from official.reporting.metrics import read_metrics
from official.tasks import TASKS
from official.training import finish as finish_lib
from official.training import run as runner
from official.training.strategy_loop import Loop
from tests.conftest import ROOT
from tests.data.glue.test_glue_data import write_split
from tests.fine_tuning_files import COLOURS, synthetic_tasks


def run(config):
    return runner.run(config, TASKS[config.task])


# ------------------------------------------------------------------------------------------------------------
# SQuAD


@pytest.mark.parametrize("impossible", [False, True])
def test_squad_from_files_to_scores_and_predictions(squad, tmp_path, impossible):
    epochs = 2 if impossible else 20
    result = run(
        squad(impossible, num_train_epochs=epochs, do_predict=True, steps_per_loop=40, steps_between_eval=80)
    )
    assert result.status == "finished" and result.step == 8 * epochs  # steps of an epoch follow from the data
    assert impossible or 0.5 < result.scores["f1"] <= 1  # by chance: 0.33
    files = {"predictions.json", "nbest_predictions.json"} | ({"null_odds.json"} if impossible else set())
    assert (
        all((tmp_path / "run" / name).exists() for name in files)
        and ("best_f1_thresh" in result.scores) == impossible
    )
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["f1"] == result.scores["f1"] and written["exact_match"] == result.scores["exact_match"]
    assert (
        written["eval_accuracy"]
        == [line["f1"] for line in read_metrics(str(tmp_path / "run")) if line["split"] == "eval"][-1]
        <= 1
    )
    assert all(
        0 <= value <= 1 for rows in written["tables"].values() for row in rows[1:] for value in row[2:]
    )
    script = f"scripts/evaluate_squad_v{2 if impossible else 1}.py"
    official = subprocess.run(
        [sys.executable, script, tmp_path / "dev.json", tmp_path / "run" / "predictions.json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    in_percent = json.loads(official.stdout)  # as published
    for ours, theirs in (("f1", "f1"), ("exact_match", "exact" if impossible else "exact_match")):
        assert in_percent[theirs] == pytest.approx(100 * written[ours]) and 1 < in_percent[theirs] <= 100
    assert set(written["tables"]) == {"Score by question word", "Score by length of the answer"}
    predictions = json.loads((tmp_path / "run" / "predictions.json").read_text())
    page = (tmp_path / "run" / "report.html").read_text()
    assert len(predictions) == 20 and "Score by question word" in page
    shown = {group["title"]: group["items"] for group in written["examples"]}
    wrong, right = (len(shown.get(title, [])) for title in ("Wrong answers", "Right answers"))
    assert (
        set(shown) <= {"Wrong answers", "Right answers"}
        and max(wrong, right) >= 4
        and f"<h2>{written['examples'][0]['title']}</h2>" in page
    )
    rows = written["tables"]["Score by question word"][1:]
    assert all(0 <= value <= 1 for row in rows for value in row[2:])
    # Of "the red ball" red is the answer: 2 words that count, one of them right.
    assert result.baseline_prediction == "the whole sentence"
    answered = np.mean([bool(question["answers"]) for question in questions_of(tmp_path / "dev.json")])
    assert result.baseline_score == pytest.approx(2 / 3 * answered)


def questions_of(path) -> list[dict]:
    root = json.loads(path.read_text())
    return [
        question for article in root["data"] for part in article["paragraphs"] for question in part["qas"]
    ]


def test_squad_is_compared_with_no_answer_where_that_scores_better(squad, tmp_path):
    config = squad(True, version_2_with_negative=True)
    root = json.loads((tmp_path / "dev.json").read_text())
    asked = [part["qas"][0] for part in root["data"][0]["paragraphs"]]
    for question in asked[4:]:
        question |= {"answers": [], "is_impossible": True}
    (tmp_path / "dev.json").write_text(json.dumps(root))
    task = TASKS["squad"](config)
    task.find_data()
    right = np.mean([not question["answers"] for question in asked])
    assert task.constant_prediction() == ("no answer", pytest.approx(right)) and right > 2 / 3


def test_squad_stages_apart_are_the_stages_together(squad, tmp_path):
    together = run(squad(do_predict=True))
    predictions = (tmp_path / "run" / "predictions.json").read_bytes()
    run(squad(model_dir="apart", do_eval=False))
    evaluated = run(squad(model_dir="apart", do_train=False))
    run(squad(model_dir="apart", do_train=False, do_eval=False, do_predict=True))
    if together.scores["best_step"] == together.step:  # without evaluations there is no best one but the last
        assert evaluated.scores["f1"] == together.scores["f1"]
        assert (tmp_path / "apart" / "predictions.json").read_bytes() == predictions


@pytest.mark.parametrize("buckets", ["never", "always"])
def test_padding_in_the_loss_of_squad_is_trained_on(squad, buckets):
    found = {}
    for places in ("tokens", "row"):
        task = TASKS["squad"](squad(span_places=places, length_buckets=buckets))
        task.find_data()
        batch = next(iter(task.train_dataset(2, 2, TrainingOrder(0))))
        model = task.build_model()
        model(batch)
        for number, variable in enumerate(model.trainable_variables):
            variable.assign(tf.random.stateless_normal(variable.shape, [0, number], stddev=0.1))
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


def test_squad_resumes_to_the_same_score(squad, tmp_path, monkeypatch):
    whole = run(squad(checkpoint_every_steps=5))
    original, loops = Loop._train, iter(range(100))

    def train_and_signal(self, *arguments):
        if next(loops) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_train", train_and_signal)
        assert run(squad(model_dir="parts", checkpoint_every_steps=5)).status == "interrupted"
    parts = run(squad(model_dir="parts", checkpoint_every_steps=5))
    assert parts.scores == whole.scores and parts.step == whole.step
    lines = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("run", "parts")
    ]
    assert [line["loss"] for line in lines[0] if line["split"] == "train"] == [
        line["loss"] for line in lines[1] if line["split"] == "train"
    ]


@pytest.mark.parametrize("devices", [1, 2])
def test_squad_scores_do_not_depend_on_replicas_and_buckets(squad, devices):
    """A window's logits, and what it costs in training, do not depend on the padding of its batch."""
    settings = dict(num_train_epochs=1)
    plain = run(
        squad(
            model_dir="plain",
            length_buckets="never",
            do_train=True,
            stop_steps=1,
            num_steps_per_epoch=1,
            **settings,
        )
    )
    other = run(
        squad(
            model_dir="other",
            length_buckets="never",
            stop_steps=1,
            num_steps_per_epoch=1,
            distribution_strategy="mirrored",
            num_virtual_devices=2,
            num_gpus=0,
            all_reduce_alg="hierarchical_copy",
            num_accumulation_steps=devices,
            **settings,
        )
    )
    assert plain.scores["f1"] == pytest.approx(other.scores["f1"])
    bucketed = run(squad(model_dir="plain", length_buckets="always", do_train=False, **settings))
    assert bucketed.scores["f1"] == plain.scores["f1"]


def test_the_pooler_of_squad_comes_from_the_checkpoint_and_stays(squad, tmp_path):
    run(squad(model_dir="first"))
    run(squad(init_checkpoint=str(tmp_path / "first")))
    poolers = [
        tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path / name))).get_tensor(
            "bert/pooler/dense/kernel"
        )
        for name in ("first", "run")
    ]
    np.testing.assert_array_equal(*poolers)


def test_best_checkpoint_is_kept_and_scored(squad, tmp_path):
    result = run(squad(num_train_epochs=8, keep_checkpoints=1, learning_rate=2e-2))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    evaluations = {line["step"]: line["f1"] for line in lines if line["split"] == "eval"}
    assert sorted(evaluations) == list(range(8, 65, 8))
    assert result.scores["f1"] == pytest.approx(max(evaluations.values())) and evaluations[
        result.scores["best_step"]
    ] == max(evaluations.values())
    assert (tmp_path / "run" / f"ckpt-{result.scores['best_step']}.index").exists() and (
        tmp_path / "run" / "ckpt-64.index"
    ).exists()
    again = run(squad(num_train_epochs=8, keep_checkpoints=1, learning_rate=2e-2, do_train=False))
    assert again.step == result.scores["best_step"] and again.scores["f1"] == pytest.approx(
        result.scores["f1"]
    )


def test_other_predictions_are_set_aside(squad, tmp_path):
    run(squad(num_train_epochs=1, do_predict=True))
    first = (tmp_path / "run" / "predictions.json").read_bytes()
    run(squad(do_train=False, do_predict=True))  # the same again
    assert not list((tmp_path / "run").glob("predictions-*"))
    run(
        squad(
            do_train=False,
            do_predict=True,
            max_answer_length=1,
            n_best_size=1,
            predict_file=str(tmp_path / "train.json"),
        )
    )
    assert (tmp_path / "run" / "predictions-1.json").read_bytes() == first


def test_several_predictions_tell_throughput_and_latency_as_popart_does(squad, make, tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    run(squad(num_train_epochs=1))
    caplog.clear()
    run(squad(do_train=False, do_predict=True, predict_epochs=3))
    lines = [text for text in caplog.messages if text.startswith("Iteration: ")]
    assert [int(line.split()[1]) for line in lines] == [0, 1, 2]
    for line in lines:  # the patterns of its benchmarks.yml
        rate, latency = (
            float(re.search(pattern, line).group(1))
            for pattern in (r"Throughput\:\s*(.*) sequences/s", r"Per-sample: Mean Latency=\s*(\d\.\d*)")
        )
        assert rate > 0 and 0 < latency < float(re.search(r"Duration: +(\S+) s", line).group(1)) + 1e-4
    answers = json.loads((tmp_path / "run" / "predictions.json").read_text())
    assert len(answers) == 20
    with pytest.raises(ConfigError, match="predict_epochs=3 needs --do_predict"):
        squad(predict_epochs=3)


def test_a_timed_prediction_of_generated_data_needs_no_checkpoint(make, caplog):
    caplog.set_level("INFO", logger="absl")
    settings = dict(generated_data=True, do_train=False, do_eval=False, do_predict=True, max_query_length=16)
    run(make("squad", predict_epochs=2, **settings))
    assert len([text for text in caplog.messages if text.startswith("Iteration: ")]) == 2
    assert "what they predict of generated data means nothing" in caplog.text
    with pytest.raises(ConfigError, match="has no checkpoint to evaluate"):
        run(make("squad", model_dir="other", **settings))


def test_runs_over_seeds(squad, tmp_path):
    result = runner.run_seeds(squad(num_runs=2, num_train_epochs=1), TASKS["squad"])
    single = [
        json.loads((tmp_path / "run" / f"run-{number}" / "result.json").read_text()) for number in (1, 2)
    ]
    assert single[0]["config"]["seed"] + 1 == single[1]["config"]["seed"]
    assert result.scores["f1"] == pytest.approx(np.mean([run["f1"] for run in single]))
    assert result.scores["f1_std"] == pytest.approx(np.std([run["f1"] for run in single], ddof=1))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["f1"] == result.scores["f1"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert all(
        f'href="run-{number}/report.html"' in page
        and (tmp_path / "run" / f"run-{number}" / "report.html").exists()
        for number in (1, 2)
    )


def test_a_signal_while_a_run_finishes_stops_the_runs(squad, tmp_path, monkeypatch):
    config, predict = squad(num_runs=3, num_train_epochs=1), finish_lib._findings

    def finish_slowly(loop):
        os.kill(os.getpid(), signal.SIGTERM)
        while loop.interruption.signal is None:
            time.sleep(0.01)
        return predict(loop)

    monkeypatch.setattr(finish_lib, "_findings", finish_slowly)
    result = runner.run_seeds(config, TASKS["squad"])
    assert (result.status, result.exit_code, result.reason) == (
        "interrupted",
        143,
        "1 of 3 runs done on SIGTERM",
    )
    assert json.loads((tmp_path / "run" / "run-1" / "result.json").read_text())["status"] == "finished"
    assert not (tmp_path / "run" / "run-2").exists() and not (tmp_path / "run" / "result.json").exists()
    monkeypatch.undo()
    assert runner.run_seeds(config, TASKS["squad"]).reason == "3 runs done"


# ------------------------------------------------------------------------------------------------------------
# GLUE


def test_the_flag_names_the_tasks_of_the_table():
    assert config_lib.FIELDS["glue_task"].choices == tuple(glue_tasks.TASKS)


@pytest.mark.parametrize("name", list(glue_tasks.TASKS))
def test_every_glue_task_runs_from_files_to_predictions(make, tmp_path, name):
    task = glue_tasks.find_task(name)
    for split, rows in (("train", 10), ("dev", 9), ("test", 7)):
        write_split(tmp_path / "glue", task, split, rows=rows)
    result = run(
        make("glue", glue_task=name, data_dir=str(tmp_path / "glue"), num_train_epochs=1, do_predict=True)
    )
    assert (
        result.status == "finished"
        and set(task.metrics) <= set(result.scores)
        and np.isfinite(result.eval_loss)
    )
    lines = (tmp_path / "run" / task.submission_file).read_text().splitlines()
    assert lines[0] == "index\tprediction" and [line.split("\t")[0] for line in lines[1:]] == list(
        map(str, range(7))
    )
    assert bool(result.tables) != task.is_regression
    titles = [group["title"] for group in result.examples]
    assert titles == ["Largest errors"] if task.is_regression else titles in ([], ["Confident mistakes"])
    constant = float(result.baseline_prediction) if task.is_regression else result.baseline_prediction
    assert 0 <= constant <= 5 if task.is_regression else constant in task.labels
    if result.tables:
        assert sum(sum(row[1:]) for row in result.tables["Confusion matrix"][1:]) == 9


def test_glue_learns_and_replicas_do_not_matter(make, tmp_path):
    folder = tmp_path / "glue" / "SST-2"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name, count in (("train", 96), ("dev", 30)):
        rows = [
            (
                " ".join(generator.choice(["ball", "box", "sky", "sea", str(colour)], 4)) + f" {colour}",
                int(colour == "red"),
            )
            for colour in generator.choice(COLOURS[:2], count)
        ]
        (folder / f"{name}.tsv").write_text(
            "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)
        )
    settings = dict(glue_task="sst2", data_dir=str(tmp_path / "glue"))
    learned = run(make("glue", model_dir="learned", num_train_epochs=6, **settings))
    assert learned.scores["accuracy"] > learned.baseline_score + 0.2
    # A few small steps: later, rounding has grown into differences.
    settings |= dict(num_train_epochs=1, stop_steps=6, learning_rate=1e-4)
    one = run(make("glue", model_dir="one", **settings))
    two = run(
        make(
            "glue",
            model_dir="two",
            distribution_strategy="mirrored",
            num_virtual_devices=2,
            num_gpus=0,
            num_accumulation_steps=2,
            all_reduce_alg="hierarchical_copy",
            **settings,
        )
    )
    assert two.eval_loss == pytest.approx(one.eval_loss, abs=1e-5)


# ------------------------------------------------------------------------------------------------------------
# Settings


@pytest.mark.parametrize(
    "settings,message",
    [
        (dict(task="pretrain", do_predict=True), "do_predict=True needs --task=squad or --task=glue"),
        (dict(task="glue", glue_task="rte", data_dir="d", train_file="f"), "train_file=f needs --task=squad"),
        (dict(task="squad"), "train_file is not set"),
        (dict(task="squad", train_file="f"), "predict_file is not set"),
        (dict(task="glue"), "data_dir is not set"),
        (dict(task="glue", data_dir="d"), "glue_task is not set"),
        (dict(task="glue", data_dir="d", glue_task="sst"), "did you mean"),
        (
            dict(task="squad", train_file="f", predict_file="f", warmup_steps=3, warmup_proportion=0.1),
            "both set the warm-up",
        ),
        (
            dict(task="squad", train_file="f", predict_file="f", num_runs=2, do_train=False),
            "needs --do_train",
        ),
        (dict(task="squad", use_synthetic_data=True), "use_synthetic_data excludes do_eval"),
        *(
            (
                {"task": "squad", "train_file": "f", "predict_file": "f", "span_places": "row", name: True},
                f"span_places=row counts the padding behind a sequence, {name} leaves none",
            )
            for name in ("unpad", "pack")
        ),
        (
            dict(task="glue", data_dir="d", glue_task="rte", stop_threshold=3),
            "stop_threshold=3 is above the maximum of 1. Shares are fractions: 0.03",
        ),
    ],
)
def test_settings_that_do_not_fit(make, settings, message):
    with pytest.raises(ConfigError, match=message):
        make(**settings)


def test_predictions_leave_padding_out_whatever_was_trained(make):
    settings = dict(task="squad", train_file="f", predict_file="f", span_places="row", unpad=True)
    assert make(**settings, do_train=False, do_predict=True).unpad


def test_missing_head_is_not_predicted_with(squad, tmp_path, make):
    run(squad(model_dir="first", num_train_epochs=1))
    settings = dict(
        glue_task="rte",
        data_dir=str(tmp_path / "glue"),
        init_checkpoint=str(tmp_path / "first"),
        do_train=False,
    )
    for split in ("dev", "test"):
        write_split(tmp_path / "glue", glue_tasks.find_task("rte"), split)
    with pytest.raises(
        ConfigError, match="has no output_bias, output_weights: it was not fine-tuned for this task"
    ):
        run(make("glue", **settings))


def test_synthetic_sequences_are_trained_on(make):
    for config in synthetic_tasks(make, num_steps_per_epoch=5):
        assert run(config).step == 5
