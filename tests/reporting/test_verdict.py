"""The judgement of a run, from curves made up to show one thing each."""

import dataclasses
import json
import re
import shlex

import numpy as np
import pytest

from official import config as config_lib
from official.cli import flags as cli_flags
from official.reporting import verdict
from official.reporting.result import TrainResult

STEPS = range(10, 1010, 10)


def lines(split, values, name="loss", steps=STEPS):
    return [{"split": split, "step": step, name: value} for step, value in zip(steps, values)]


def falling(last=0.0, noise=0.01):
    """A loss that comes down from 6 to 2 and then falls by `last`, relative, over the last fifth."""
    random = np.random.default_rng(0)
    steps = np.array(STEPS)
    loss = 2 + 4 * np.exp(-steps / 80)
    loss *= 1 - last * np.clip((steps - 800) / 200, 0, 1)
    return (loss + random.normal(0, noise, len(steps))).tolist()


def make_result(status="finished", **changes):
    config = {"do_train": True, "num_steps_per_epoch": 1000, "num_train_epochs": 1, "task": "pretrain"}
    values = dict(
        reason="all 1000 steps done",
        step=1000,
        samples=64_000,
        eval_accuracy=0.4,
        eval_loss=2.0,
        baseline_score=0.06,
        baseline_prediction="the",
        config=config,
        checkpoint="run/ckpt-1000",
    )
    return TrainResult(status, **{**values, **changes})


def judge(values, result=None, evaluations=()):
    return verdict.judge([*lines("train", values), *evaluations], result or make_result())


# ------------------------------------------------------------------------------------------------------------
# Curves


def points(values):
    return list(zip(STEPS, values))


def test_a_rise_that_stays_is_a_divergence():
    values = falling()
    values[60:] = np.linspace(2, 7, 40).tolist()
    assert 700 <= verdict.divergence(points(values)) <= 900
    assert verdict.divergence(points(values[:60] + [None] * 40)) == 610


def test_what_is_no_divergence():
    random, back = np.random.default_rng(0), falling()
    back[50:53] = [8.0, 12.0, 6.0]
    for name, values in {
        "falling": falling(),
        "noisy": falling(noise=0.3),
        "flat": [2.0] * 100,
        "not learning": random.normal(0.7, 0.05, 100).tolist(),
        "a spike at the end": falling()[:99] + [9.0],
        "a spike that comes back": back,
        "short": [3.0, None, 2.0],
        "empty": [],
    }.items():
        assert verdict.divergence(points(values)) is None, name


@pytest.mark.parametrize("last,falls", [(0.05, True), (0.0, False), (-0.05, False)])
def test_trend_over_the_last_fifth(last, falls):
    change = verdict.trend(points(falling(last)))
    assert change.falls == falls and change.change == pytest.approx(-last, abs=0.012)
    assert ("still falling" in change.describe()) == falls and ("rising" in change.describe()) == (last < 0)


def test_noise_is_no_trend_and_few_points_have_none():
    assert verdict.trend(points(np.random.default_rng(1).normal(2, 0.5, 100).tolist())).change == 0
    assert verdict.trend(points(falling()[:4])) is None and verdict.trend([]) is None


def test_a_run_of_few_long_loops_has_a_trend_too():
    found = verdict.trend(
        [(100 * number, loss) for number, loss in enumerate((7.0, 6.6, 6.4, 6.2, 6.05, 5.9), 1)]
    )
    assert found.describe() == (
        "The training loss was still falling: by 7.8 %, from 6.385 to 5.890, over the last 300 steps."
    )


def test_over_fitting_needs_both_curves():
    train, evaluations = points(falling(0.2)), [(250, 1.0), (500, 0.8), (750, 0.9), (1000, 1.1)]
    assert verdict.over_fitting(evaluations, train) == (500, 0.8, 1.1)
    assert (
        verdict.over_fitting(evaluations, points([2.0] * 50 + [3.0] * 50)) is None
    )  # training got worse, too
    assert verdict.over_fitting(evaluations[:2], train) is None
    scores = [(250, 0.5), (500, 0.6), (750, 0.58), (1000, 0.55)]
    assert verdict.over_fitting(scores, train, rises=True) == (500, 0.6, 0.55)
    assert verdict.over_fitting([*scores[:2], (1000, 0.595)], train, rises=True) is None


def test_one_evaluation_that_is_a_little_worse_is_chance():
    train = points(falling(0.2))
    assert verdict.over_fitting([(250, 0.6), (500, 0.548), (1000, 0.563)], train) is None
    assert verdict.over_fitting([(250, 0.6), (500, 0.548), (1000, 0.663)], train) == (500, 0.548, 0.663)
    assert (
        verdict.over_fitting([(250, 0.6), (500, 0.548), (750, 0.7), (1000, 0.55)], train) is None
    )  # it came back


def test_a_curve_is_sorted_and_a_later_line_of_a_step_counts():
    metrics = [
        *lines("train", [3.0, 2.0], steps=[20, 10]),
        *lines("train", [1.0], steps=[20]),
        *lines("eval", [9.0], steps=[20]),
    ]
    assert verdict.curve(metrics, "train", "loss") == [(10, 2.0), (20, 1.0)]


def test_smoothing_keeps_the_start_and_leaves_gaps():
    values = np.linspace(10, 0, 200).tolist()
    smooth = [
        value
        for _, value in verdict.smoothed(
            [(at, None if at == 100 else value) for at, value in enumerate(values)]
        )
    ]
    assert smooth[0] == 10 and smooth[100] is None
    np.testing.assert_allclose(smooth[:99], values[:99], atol=0.03)
    assert verdict.smoothed([(1, None)]) == [(1, None)]


# ------------------------------------------------------------------------------------------------------------
# Sentences


def test_still_falling():
    found = judge(falling(0.05))
    assert found.headline == "All steps done, training loss still falling"
    assert re.search(
        r"The training loss was still falling: by 4\.\d %, from 1\.99\d to 1\.89\d, over the last fifth",
        found.sentence,
    )
    assert "--num_train_epochs=2" in found.advice and found.tone == "good"


def test_levelled_off_after_the_target():
    found = judge(falling(), make_result("success", target=0.39))
    assert (found.headline, found.tone) == ("Target reached", "good")
    assert (
        "Masked-LM accuracy 0.400 at step 1,000; the target is 0.390; "
        "always predicting \u201cthe\u201d scores 0.060." in found.sentence
    )
    assert (
        "levelled off" in found.sentence or "no clear change" in found.sentence
    ) and "--init_checkpoint=run/ckpt-1000" in found.advice


def test_target_not_reached():
    still, flat = (judge(falling(last), make_result("aborted", target=0.5)) for last in (0.05, 0.0))
    assert still.headline == flat.headline == "Target not reached" and still.tone == "bad"
    assert "More steps would help" in still.advice and "hardly" in flat.advice


@pytest.mark.parametrize("status", ["finished", "aborted", "success"])
def test_no_better_than_a_constant_says_which(status):
    found = judge(falling(), make_result(status, eval_accuracy=0.064, target=0.05))
    assert found.headline == "No better than always predicting \u201cthe\u201d" and found.tone == "bad"
    assert "0.064" in found.sentence and "0.060" in found.sentence
    assert (
        judge(falling(), make_result(status, eval_accuracy=0.075)).headline
        == "Hardly better than always predicting \u201cthe\u201d"
    )
    older = verdict.judge(
        [], make_result(eval_accuracy=0.06, baseline_prediction=None, target_metric="accuracy")
    )
    assert older.headline == "No better than always predicting the most frequent label"


def test_diverged():
    values = falling()
    values[60:] = np.linspace(2, 7, 40).tolist()
    found = judge(values)
    assert (
        found.headline.startswith("Diverged at step ")
        and found.tone == "bad"
        and "--learning_rate" in found.advice
    )
    failed = judge(
        falling()[:40] + [None],
        make_result(
            "failed", reason="nsp_loss not finite at step 407; the newest checkpoint is from before it"
        ),
    )
    assert (
        failed.headline == "Diverged at step 407"
        and "lowest training loss" in failed.sentence
        and "ckpt-1000" in failed.advice
    )


def test_a_lost_process_is_no_divergence():
    found = judge(
        falling(), make_result("failed", reason="worker 1 on b:2 is gone", step=300, peer_lost=True)
    )
    assert found.headline == "A process was lost at step 300" and "Worker 1 on b:2" in found.sentence
    assert "go on from ckpt-1000" in found.advice


def test_over_fitted():
    evaluations = lines("eval", [1.0, 0.8, 0.9, 1.1], steps=[250, 500, 750, 1000])
    found = judge(falling(0.2), make_result(target_metric="accuracy", baseline_score=None), evaluations)
    assert found.headline == "Over-fitted after step 500" and "0.800 at step 500 to 1.100" in found.sentence
    assert judge(falling(0.2), make_result("success"), evaluations).headline == "Target reached"
    rising = make_result(target_metric="accuracy", baseline_score=None)
    better = judge(
        falling(0.2),
        rising,
        evaluations + lines("eval", [0.5, 0.6, 0.7, 0.71], "accuracy", [250, 500, 750, 1000]),
    )
    assert better.headline == "All steps done" and "though Accuracy still rose" in better.sentence
    worse = judge(
        falling(0.2), rising, lines("eval", [0.5, 0.7, 0.6, 0.5], "accuracy", [250, 500, 750, 1000])
    )
    assert (
        worse.headline == "Over-fitted after step 500"
        and "fell from 0.700 at step 500 to 0.500" in worse.sentence
    )


def test_a_task_that_keeps_its_best_is_judged_by_it():
    best = make_result(
        target_metric="f1",
        eval_accuracy=0.4,
        scores={"f1": 0.6, "best_step": 500},
        baseline_score=0.5,
        baseline_prediction="1",
    )
    assert judge(falling(), best).sentence.startswith(
        "F1 0.600 at step 500; always predicting \u201c1\u201d scores 0.500."
    )


def test_interrupted_evaluated_and_nothing_known():
    found = judge(
        falling()[:30],
        make_result(
            "interrupted",
            step=300,
            reason="saved at step 300 on SIGTERM",
            eval_accuracy=None,
            checkpoint="r/ckpt-300",
        ),
    )
    assert (
        found.headline == "Interrupted at step 300 of 1,000"
        and "ckpt-300" in found.sentence
        and "same command" in found.advice
    )
    evaluated = verdict.judge(
        [],
        make_result(
            config={"do_train": False}, reason="evaluated at step 60", target_metric="f1", baseline_score=None
        ),
    )
    assert evaluated.headline == "Evaluated at step 60" and evaluated.sentence == "F1 0.400 at step 1,000."
    assert (
        verdict.judge(
            [], make_result(eval_accuracy=None, eval_loss=None, baseline_score=None, config={})
        ).headline
        == "All steps done"
    )


@pytest.mark.parametrize("status", ["finished", "success"])
def test_a_low_f1_is_not_good(status):
    for score, tone in ((0.25, "fair"), (0.31, "good")):
        shared = dict(target_metric="f1", eval_accuracy=score, baseline_score=0.1, target=0.2)
        for result in (
            make_result(status, **shared),
            make_result(status, **shared, config={"do_train": False}),
        ):
            found = judge(falling(), result)
            assert found.tone == tone and ("An F1 below 0.3 is low" in found.sentence) == (tone == "fair")
        result = make_result(scores={"f1": score, "f1_std": 0.01}, target_metric="f1", baseline_score=0.1)
        assert verdict.judge_repeats(result, 3).tone == tone


def test_repeats_are_compared_with_a_constant_too():
    scores = {"accuracy": 0.70, "accuracy_std": 0.02}
    result = make_result(target_metric="accuracy", scores=scores, baseline_score=0.6, baseline_prediction="1")
    good = verdict.judge_repeats(result, 3)
    assert (
        good.headline == "3 runs done"
        and "0.700 \u00b1 0.020" in good.sentence
        and "\u201c1\u201d scores 0.600" in good.sentence
    )
    result = dataclasses.replace(result, baseline_score=0.68)
    assert verdict.judge_repeats(result, 3).headline == "Hardly better than always predicting \u201c1\u201d"


def test_the_next_step_is_a_complete_command(tmp_path, monkeypatch):
    """It is read as it stands, from where the run was started."""
    monkeypatch.chdir(tmp_path)
    shipped = ["--config=quickstart", "--input_files=x", "--vocab_file=", "--init_checkpoint="]
    config = cli_flags.parse([*shipped, "--eval_files=x", "--model_dir=my run"])
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "config.json").write_text(config_lib.to_json(config))
    settings = json.loads(config_lib.to_json(config))
    flat = [2.0] * 100
    for values, status, accuracy in (
        (falling(0.05), "finished", 0.4),
        (falling(), "success", 0.4),
        (falling(), "aborted", 0.4),
        (flat, "finished", 0.06),
        (falling()[:50] + [9.0] * 50, "finished", 0.4),
    ):
        result = make_result(status, target=0.39, eval_accuracy=accuracy, config=settings)
        advice = judge(values, result).advice
        found = re.search(r"bert train .*?(?= \u2013|$)", advice)
        assert found, (status, advice)
        words = shlex.split(found[0])[2:]
        told = cli_flags.parse([*words, "--plan"])
        assert told.model_dir not in (None, "my run"), advice
    interrupted = make_result("interrupted", reason="saved")
    again = "bert train --config=quickstart"
    assert verdict.judge([], interrupted, again).advice.endswith(f": {again}")
