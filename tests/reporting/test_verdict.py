"""The judgement of a run, from curves made up to show one thing each."""

import dataclasses
import json
import pathlib
import re
import shlex

import numpy as np
import yaml

from official import config as config_lib
from official.cli import flags as cli_flags
from official.reporting import verdict
from official.reporting.result import TrainResult

RUNS = pathlib.Path(__file__).parent / "pages" / "runs.yaml"
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


def losses_of(told: dict | list) -> list:
    """Returns the losses of the training of a run in runs.yaml."""
    if isinstance(told, list):
        return told
    if "normal" in told:
        return np.random.default_rng(0).normal(*told["normal"], 100).tolist()
    values = falling(told.get("falls", 0.0), told.get("noise", 0.01))
    for at, value in told.get("spikes", {}).items():
        values[at] = value
    end = [value for value, times in told.get("then", ()) for _ in range(times)]
    return values[: told.get("until")] + end + np.linspace(*told.get("ramp", (0, 0, 0))).tolist()


def judged(losses=None, loss=(), accuracy=(), status="finished", **fields) -> verdict.Verdict:
    """Returns the verdict of a run in runs.yaml."""
    metrics = lines("train", [] if losses is None else losses_of(losses))
    for name, values in (("loss", loss), ("accuracy", accuracy)):
        metrics += lines("eval", values, name, steps=[250, 500, 750, 1000])
    return verdict.judge(metrics, make_result(status, **fields))


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
    runs = yaml.safe_load(RUNS.read_text())
    found = {name: dataclasses.asdict(judged(**told)) for name, told in runs.items()}
    found |= {name: dataclasses.asdict(verdict.judge_repeats(each, 3)) for name, each in seeds().items()}
    return found


def test_verdicts_are_those_that_people_have_read():
    """Rewritten by `python -m tests.reporting.test_verdict`; read the difference before it is committed."""
    expected, found = json.loads(VERDICTS.read_text()), verdicts()
    assert {name: each for name, each in found.items() if each != expected.get(name)} == {}
    assert expected.keys() == found.keys()


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
        (falling(), "aborted", 0.4),
        (flat, "finished", 0.06),
        (falling()[:50] + [9.0] * 50, "finished", 0.4),
    ):
        result = make_result(status, target=0.39, eval_accuracy=accuracy, config=settings)
        advice = verdict.judge(lines("train", values), result).advice
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
