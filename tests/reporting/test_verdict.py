"""The judgement of a run, from curves made up to show one thing each."""

import dataclasses
import json
import pathlib
import re
import shlex

import numpy as np

from official import config as config_lib
from official.cli import flags as cli_flags
from official.reporting import verdict
from official.reporting.result import TrainResult

VERDICTS = pathlib.Path(__file__).parent / "pages" / "verdicts.json"
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
    values = dict(reason="all 1000 steps done", step=1000, samples=64_000, eval_accuracy=0.4, eval_loss=2.0)
    values |= dict(baseline_score=0.06, baseline_prediction="the", checkpoint="run/ckpt-1000", config=config)
    return TrainResult(status, **{**values, **changes})


def judge(values, result=None, evaluations=()):
    return verdict.judge([*lines("train", values), *evaluations], result or make_result())


# ------------------------------------------------------------------------------------------------------------
# Curves


def test_a_curve_is_sorted_and_a_later_line_of_a_step_counts():
    metrics = lines("train", [3.0, 2.0, 1.0], steps=[20, 10, 20]) + lines("eval", [9.0], steps=[20])
    assert verdict.curve(metrics, "train", "loss") == [(10, 2.0), (20, 1.0)]


def test_smoothing_keeps_the_start_and_leaves_gaps():
    values = np.linspace(10, 0, 200).tolist()
    given = [(at, None if at == 100 else value) for at, value in enumerate(values)]
    smooth = [value for _, value in verdict.smoothed(given)]
    assert smooth[0] == 10 and smooth[100] is None
    np.testing.assert_allclose(smooth[:99], values[:99], atol=0.03)
    assert verdict.smoothed([(1, None)]) == [(1, None)]


# ------------------------------------------------------------------------------------------------------------
# Sentences


def diverging() -> list:
    return falling()[:60] + np.linspace(2, 7, 40).tolist()


def without_divergence() -> dict[str, list]:
    """Returns {name: losses} that do not rise for good."""
    back = falling()
    back[50:53] = [8.0, 12.0, 6.0]
    return {
        "noisy": falling(noise=0.3),
        "flat": [2.0] * 100,
        "not learning": np.random.default_rng(0).normal(0.7, 0.05, 100).tolist(),
        "a spike at the end": falling()[:99] + [9.0],
        "a spike that comes back": back,
        "short": [3.0, None, 2.0],
    }


def evaluations(values, name="loss") -> list[dict]:
    return lines("eval", values, name, steps=[250, 500, 750, 1000])


def cases() -> dict[str, tuple[list, TrainResult]]:
    """Returns {name: (losses and other lines of the metrics, result)} of runs of every kind."""
    accuracy = dict(target_metric="accuracy", baseline_score=None)
    f1, evaluated = dict(target_metric="f1", target=0.2), {"do_train": False}
    over_fitted, better = evaluations([1.0, 0.8, 0.9, 1.1]), evaluations([0.5, 0.6, 0.7, 0.71], "accuracy")
    lost = dict(reason="worker 1 on b:2 is gone", step=300, peer_lost=True)
    stopped = dict(reason="saved at step 300 on SIGTERM", step=300, checkpoint="r/ckpt-300")
    best = dict(target_metric="f1", scores={"f1": 0.6, "best_step": 500}, baseline_score=0.5)
    nothing = dict(eval_accuracy=None, eval_loss=None, baseline_score=None, config={})
    bad = "nsp_loss not finite at step 407; the newest checkpoint is from before it"
    return {
        "still falling": (falling(0.05), make_result()),
        "target reached": (falling(), make_result("success", target=0.39)),
        "target not reached, falling": (falling(0.05), make_result("aborted", target=0.5)),
        "target not reached, flat": (falling(), make_result("aborted", target=0.5)),
        "no better": (falling(), make_result(eval_accuracy=0.064)),
        "no better, aborted": (falling(), make_result("aborted", eval_accuracy=0.064, target=0.05)),
        "no better, success": (falling(), make_result("success", eval_accuracy=0.064, target=0.05)),
        "hardly better": (falling(), make_result(eval_accuracy=0.075)),
        "no better, older": (
            [],
            make_result(eval_accuracy=0.06, baseline_prediction=None, **accuracy | {"baseline_score": 0.06}),
        ),
        "diverged": (diverging(), make_result()),
        "no number since step 610": (falling()[:60] + [None] * 40, make_result()),
        "not finite": (falling()[:40] + [None], make_result("failed", reason=bad)),
        "a process was lost": (falling(), make_result("failed", **lost)),
        **{
            f"no divergence, {name}": (values, make_result()) for name, values in without_divergence().items()
        },
        "falling in few long loops": ([7.0, 6.6, 6.4, 6.2, 6.05, 5.9], make_result()),
        "rising": (falling(-0.05), make_result()),
        **{
            f"evaluations {values}": ([losses, evaluations(values)], make_result(**accuracy))
            for values, losses in (
                ([1.0, 0.8, 0.9, 1.1], [2.0] * 50 + [2.1] * 50),  # training got worse, too
                ([1.0, 0.8], falling(0.2)),
                ([0.6, 0.548, 0.563], falling(0.2)),  # a little worse is chance
                ([0.6, 0.548, 0.663], falling(0.2)),
                ([0.6, 0.548, 0.7, 0.55], falling(0.2)),  # it came back
            )
        },
        "over-fitted": ([falling(0.2), over_fitted], make_result(**accuracy)),
        "over-fitted, success": ([falling(0.2), over_fitted], make_result("success")),
        "over-confident": ([falling(0.2), over_fitted + better], make_result(**accuracy)),
        **{
            f"scores {values}": ([falling(0.2), evaluations(values, "accuracy")], make_result(**accuracy))
            for values in ([0.5, 0.7, 0.6, 0.5], [0.5, 0.6, 0.595])
        },
        "best weights": (falling(), make_result(**best, baseline_prediction="1")),
        "interrupted": (falling()[:30], make_result("interrupted", eval_accuracy=None, **stopped)),
        "evaluated": ([], make_result(config=evaluated, reason="evaluated at step 60", **accuracy)),
        "nothing known": ([], make_result(**nothing)),
        "low F1": (falling(), make_result(eval_accuracy=0.25, **f1)),
        "low F1, success": (falling(), make_result("success", eval_accuracy=0.25, **f1)),
        "low F1, evaluated": ([], make_result(eval_accuracy=0.25, config=evaluated, **f1)),
        "good F1": (falling(), make_result("success", eval_accuracy=0.31, **f1)),
    }


def seeds() -> dict[str, TrainResult]:
    """Returns {name: result of several seeds}."""
    both, f1 = {"accuracy": 0.70, "accuracy_std": 0.02}, {"f1": 0.25, "f1_std": 0.01}
    shared = dict(target_metric="accuracy", scores=both, baseline_prediction="1")
    return {
        "seeds": make_result(**shared, baseline_score=0.6),
        "seeds, hardly better": make_result(**shared, baseline_score=0.68),
        "seeds, low F1": make_result(target_metric="f1", scores=f1, baseline_score=0.1),
    }


def verdicts() -> dict[str, dict]:
    found = {}
    for name, (values, result) in cases().items():
        losses, others = values if values and isinstance(values[0], list) else (values, [])
        found[name] = dataclasses.asdict(judge(losses, result, others))
    found |= {name: dataclasses.asdict(verdict.judge_repeats(each, 3)) for name, each in seeds().items()}
    return found


def test_verdicts_are_those_that_people_have_read():
    """Rewritten by `python -m tests.reporting.test_verdict`; read the difference before it is committed."""
    expected, wrong = json.loads(VERDICTS.read_text()), {}
    for name, found in verdicts().items():
        if found != expected.get(name):
            wrong[name] = found
    assert not wrong and expected.keys() == verdicts().keys()


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


if __name__ == "__main__":
    VERDICTS.write_text(json.dumps(verdicts(), indent=1) + "\n")
