"""Fine-tuning on a fake of the IPUs' API: SQuAD and GLUE train, evaluate and predict as on one device."""

import json
import os
import pathlib
import re
import signal
import sys

import numpy as np
import pytest

from official import config as config_lib
from official.cli import flags
from official.data.glue import tasks as glue_tasks
from official.distribution import pipeline_plan as plan_lib
from official.distribution.batch_plan import make_batch_plan
from official.graphcore import __main__ as command
from official.graphcore import pipeline
from official.io.errors import ConfigError
from official.reporting.metrics import read_metrics
from official.reporting.result import read_result
from tests.data.glue.test_glue_data import write_split
from tests.fixtures import ROOT, TINY
from tests.graphcore import ipu_fake
from tests.graphcore.conftest import REFUSED, with_ipu_options
from tests.graphcore.test_run import FEWER_STAGES, interrupted_after, on_one_device, run_on_fake
from tests.refusals import assert_refused
from tests.run_folders import assert_same_state, state_of

pytestmark = pytest.mark.nightly

MODEL = {**TINY, "max_position_embeddings": 48}
GROUPED = dict(pipeline_stages="emb+pos / hid*2 / {head}", device_mapping="0,1,0")
GROUPED |= dict(num_accumulation_steps=6, train_batch_size=24, replicas=2)
INTERLEAVED = dict(pipeline_stages="emb+pos / hid / hid+{head}", device_mapping="0,1,2")
INTERLEAVED |= dict(pipeline_schedule="interleaved", num_accumulation_steps=3, train_batch_size=12)
SEQUENTIAL = dict(pipeline_stages="emb+pos+hid / hid+{head}", device_mapping="0,1")
SEQUENTIAL |= dict(pipeline_schedule="sequential", num_accumulation_steps=4, train_batch_size=16)
SEQUENTIAL |= dict(loss_normalization="local")
OFFICIAL = ("predictions.json", "nbest_predictions.json", "null_odds.json")


@pytest.fixture(name="configured")
def fixture_configured(make, squad, tmp_path):
    """Returns a function that builds the configuration of a run of a task: squad, squad-2, or one of GLUE."""

    def configured(task: str, layout: dict, **settings):
        head = "loc" if task.startswith("squad") else "glu"
        parts = {**layout, "pipeline_stages": layout["pipeline_stages"].format(head=head)}
        defaults = dict(distribution_strategy="ipu", learning_rate=1e-3, num_train_epochs=2, steps_per_loop=2)
        defaults |= dict(eval_batch_size=config_lib.FIELDS["eval_batch_size"].default)
        defaults |= dict(length_buckets="never", do_predict=True)
        model = {**MODEL, **settings.pop("model", {})}
        settings = with_ipu_options({**defaults, **parts, **settings, "model": model})
        if task.startswith("squad"):
            return squad(impossible=task == "squad-2", **settings)
        folder = tmp_path / "glue"
        if not folder.exists():
            for split, rows in (("train", 10 if task == "stsb" else 40), ("dev", 9), ("test", 7)):
                write_split(folder, glue_tasks.find_task(task), split, rows=rows)
        return make("glue", glue_task=task, data_dir=str(folder), **settings)

    return configured


@pytest.fixture(name="pretraining")
def fixture_pretraining(make_config):
    defaults = dict(stop_steps=4, steps_per_loop=2, eval_batch_size=12, **FEWER_STAGES)
    return lambda **settings: make_config(**{**defaults, **settings})


def evaluations(config) -> list[dict]:
    return [line for line in read_metrics(config.model_dir) if line["split"] == "eval"]


NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?|-?\d+e[-+]\d+")


def assert_same_numbers(one: str, other: str, what: str, rtol=2e-4, atol=2e-5) -> None:
    """Compares two texts, such as JSON: numbers with a point nearly, all else as it is."""
    assert NUMBER.sub("#", one) == NUMBER.sub("#", other), what
    found, expected = (np.array(NUMBER.findall(text), float) for text in (one, other))
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=what)


def assert_same_values(one, other, what: str) -> None:
    assert_same_numbers(json.dumps(one), json.dumps(other), what)


TOLD = ("split", "step", "samples", "loss", "learning_rate")
# Of a run, not of its results.
OWN = set(
    """config environment report pipeline data examples predictions wall_secs startup_secs first_step_secs
    sequences_per_sec predicted_sequences_per_sec compilations compilation_secs peak_memory_bytes
    checkpoint checkpoints_written checkpoint_wait_secs checkpoint_write_secs""".split()
)


def assert_same_run(config, own) -> None:
    """Compares metrics, scores, predictions and weights of a run on IPUs with those of one on a CPU."""
    found, expected = read_result(config.model_dir), read_result(own.model_dir)
    for line, other in zip(read_metrics(config.model_dir), read_metrics(own.model_dir), strict=True):
        names = {*TOLD, *found} - {"sequences_per_sec"}
        told = {name: other[name] for name in other if name in names or name.endswith("_loss")}
        assert_same_values({name: line.get(name) for name in told}, told, str(other))
    scores = sorted(set(expected) - OWN)
    ours, theirs = ({name: each.get(name) for name in scores} for each in (found, expected))
    assert_same_values(ours, theirs, "result.json")
    assert found["data"] == expected["data"]
    for path, other in zip(found["predictions"], expected["predictions"], strict=True):
        assert os.path.basename(path) == os.path.basename(other)
        texts = (pathlib.Path(each).read_text(encoding="utf-8") for each in (path, other))
        assert_same_numbers(*texts, path, atol=2e-5 if path.endswith(".json") else 2e-3)
    theirs = state_of(own.model_dir, expected["step"])
    for name, value in state_of(config.model_dir, found["step"]).items():
        atol = 0.05 if "key/bias" in name else 2e-4  # its gradient is rounding noise
        np.testing.assert_allclose(value, theirs[name], rtol=1e-3, atol=atol, err_msg=name)


# ------------------------------------------------------------------------------------------------------------
# Equal to one device


@pytest.mark.parametrize(
    ("task", "layout", "settings"),
    [
        ("squad", GROUPED, {}),
        ("sst2", INTERLEAVED, dict(pack=True, max_sequences_per_pack=3)),
        ("stsb", SEQUENTIAL, dict(optimizer_type="adamw")),
        pytest.param("squad-2", GROUPED, dict(recompute="block", loss_scale="64"), marks=pytest.mark.slow),
        pytest.param("mnli", GROUPED, dict(model=dict(block_type="groupbert")), marks=pytest.mark.slow),
    ],
)
def test_it_trains_evaluates_and_predicts_as_one_device(configured, task, layout, settings):
    config = configured(task, layout, **settings)
    code, fake = run_on_fake(config)
    assert code == 0
    _, own = on_one_device(config, eval_batch_size=8)
    assert_same_run(config, own)
    # The training, and each set once, however often it is evaluated.
    assert len(fake.compiled) == (2 if task.startswith("squad") else 3)


@pytest.mark.parametrize("kind", ["plain", "packed", "generated"])
def test_pretraining_is_evaluated_as_on_one_device(pretraining, record_files, packed_files, kind):
    """The last batch of the evaluation is not full, and of packed rows the last one counts in part."""
    files = {"plain": record_files(records=30), "packed": packed_files, "generated": None}[kind]
    settings = dict(do_eval=True, steps_between_eval=2, num_eval_samples=21)
    config = pretraining(input_files=files, generated_data=files is None, **settings)
    code, fake = run_on_fake(config)
    assert code == 0 and len(fake.compiled) == 2
    _, own = on_one_device(config)
    found, expected = evaluations(config), evaluations(own)
    assert [line["step"] for line in found] == [2, 4]
    assert [list(line) for line in found] == [list(line) for line in expected]
    assert_same_values(found, expected, "evaluations")
    (found, expected) = (read_result(each.model_dir)["eval_accuracy"] for each in (config, own))
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_finished_run_is_evaluated_and_predicts_again(configured):
    first = configured("squad", GROUPED, num_train_epochs=1)
    assert run_on_fake(first)[0] == 0
    scores, path = read_result(first.model_dir), pathlib.Path(first.model_dir)
    predictions = {name: (path / name).read_bytes() for name in OFFICIAL[:2]}
    (path / OFFICIAL[0]).unlink()
    again = configured("squad", GROUPED, num_train_epochs=1, do_train=False)
    assert run_on_fake(again)[0] == 0
    assert {name: (path / name).read_bytes() for name in predictions} == predictions
    found = read_result(again.model_dir)
    (entry,) = found.pop("evaluations")
    assert {**found, "evaluations": []} == scores
    assert (entry["reason"], entry["report"]) == (f"evaluated at step {scores['step']}", None)
    assert all(entry[name] == scores[name] for name in ("f1", "exact_match", "best_step", "checkpoint"))

    settings = dict(do_train=False, do_eval=False, init_checkpoint=scores["checkpoint"])
    other = configured("squad", GROUPED, model_dir="other", **settings)
    assert run_on_fake(other)[0] == 0
    assert read_result(other.model_dir)["reason"] == "predicted at step 0"
    assert (pathlib.Path(other.model_dir) / OFFICIAL[0]).read_bytes() == predictions[OFFICIAL[0]]


def test_another_steps_per_loop_gives_the_same_weights(pretraining, tmp_path):
    configs = [pretraining(model_dir=str(tmp_path / str(count)), steps_per_loop=count) for count in (1, 2)]
    assert [run_on_fake(config)[0] for config in configs] == [0, 0]
    assert_same_state(*(state_of(config.model_dir, 4) for config in configs))


@pytest.mark.slow
def test_it_goes_on_after_a_signal_with_the_evaluations_that_there_are(configured):
    whole, config = (configured("sst2", INTERLEAVED, model_dir=name) for name in ("whole", "cut"))
    assert run_on_fake(whole)[0] == 0
    with interrupted_after(5):  # behind the evaluation of the first epoch
        assert run_on_fake(config)[0] == 128 + signal.SIGTERM
    assert run_on_fake(config)[0] == 0
    assert_same_values(evaluations(config), evaluations(whole), "evaluations")
    assert read_result(config.model_dir)["best_step"] == read_result(whole.model_dir)["best_step"]
    step = read_result(whole.model_dir)["step"]
    assert_same_state(*(state_of(each.model_dir, step) for each in (config, whole)))


# ------------------------------------------------------------------------------------------------------------
# Commands, and what is refused


def test_the_command_of_the_sdk_trains_and_exports(configured, tmp_path, capsys):
    config = configured("stsb", SEQUENTIAL, num_train_epochs=1)
    path, program = tmp_path / "config.json", tmp_path / "glue.poplar_exec"
    path.write_text(config_lib.to_json(config), encoding="utf-8")
    with ipu_fake.installed(ipus=2):
        assert command.main([str(path)]) == 0
        assert command.main([str(path), f"--export={program}"]) == 0
        assert command.main([str(path), f"--run={program}", "--num-iter=4"]) == 0
    about = json.loads((tmp_path / "glue.poplar_exec.json").read_text(encoding="utf-8"))
    assert about["outputs"] == ["logits"] and about["step"] == read_result(config.model_dir)["step"]
    assert "throughput" in capsys.readouterr().out.splitlines()[-1]


def test_wrong_combinations_are_one_line(configured):
    assert_refused(
        lambda task, settings: run_on_fake(configured(task, GROUPED, **settings)), REFUSED["fine-tuning"]
    )


def test_packages_that_are_missing_are_named_before_anything_is_trained(configured, monkeypatch):
    config = configured("sst2", INTERLEAVED)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match="task=glue needs packages that this Python lacks: sklearn"):
        run_on_fake(config)


def test_pipelines_of_published_configurations_train_and_evaluate():
    """Those of one stage, for inference on one IPU, need no pipeline."""
    known = set()
    asked = "--distribution_strategy=ipu --generated_data --do_train --do_eval --do_predict --model_dir=run"
    for path in sorted((ROOT / "configs" / "graphcore").rglob("*.json")):
        if "squad" not in path.name and "glue" not in path.name or path.name.endswith("_128_inf.json"):
            continue
        settings = [f"--config={path}", "--num_steps_per_epoch=100", *asked.split()]
        if "glue" in path.name:
            settings.append(f"--glue_task={'stsb' if 'regression' in path.name else 'mrpc'}")
        config = flags.parse(settings)
        plan = plan_lib.make_plan(config, pipeline.names_of(config))
        pipeline.check_plan(config, plan)
        training = config_lib.replaced(config, do_eval=False, do_predict=False)
        batches = make_batch_plan(training, config.ipu.replicas)
        evaluation, whole = pipeline.evaluation_plan(config, plan, batches)
        assert whole.eval_batch_size >= 32 and evaluation.stages == plan.stages, path
        known.add((config.task, plan.notation))
    assert len(known) >= 10
