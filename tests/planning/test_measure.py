"""--measure: what a plan says of steps that were run; that they are steps, and leave nothing behind."""

import json
import os

import pytest

from official.cli import flags
from official.config import ConfigError
from official.planning import plan as plan_lib
from official.tasks import TASKS
from official.training import step_benchmark
from tests import programs
from tests.conftest import TINY


def test_the_hours_of_a_run_are_those_of_its_steps(make_config):
    config = make_config(plan=True, measure=True, do_eval=True, num_eval_samples=16)
    plan = plan_lib.make_plan(config, TASKS["pretrain"], lambda *_: [7.0, 2.0, 3.0])
    measured = plan["measured"]
    assert (measured["steps"], measured["step_secs"]) == (3, 3.0)
    assert measured["sequences_per_sec"] == pytest.approx(8 / 3)
    assert measured["train_secs"] == pytest.approx(20 * 3)
    # An evaluation is forward passes, each a third of a step.
    assert measured["eval_secs"] == pytest.approx(len(plan["eval_steps"]) * 16 / 8 * 3 / 3)
    assert measured["total_secs"] == measured["train_secs"] + measured["eval_secs"]
    assert measured["hours"] == pytest.approx(measured["total_secs"] / 3600)
    text = plan_lib.describe(plan)
    assert "not known" not in text
    for told in ("measured step", "3 s, the median of 3", "2.667 sequences/s", "training 60.0 s"):
        assert told in text, told
    assert json.loads(json.dumps(plan)) == plan


def test_without_it_a_plan_runs_nothing(make_config):
    plan = plan_lib.make_plan(make_config(plan=True), TASKS["pretrain"], lambda *_: pytest.fail("it ran"))
    assert plan["measured"] is None and "--measure runs three steps here" in plan_lib.describe(plan)


def test_real_steps_of_every_task_are_run_without_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model.json"
    model.write_text(json.dumps({**TINY, "num_hidden_layers": 1}))
    steps = []
    own = step_benchmark.make_step

    def noted(*arguments):
        run = own(*arguments)
        return lambda: steps.append(run())

    monkeypatch.setattr(step_benchmark, "make_step", noted)
    shared = [f"--bert_config_file={model}", "--max_seq_length=32", "--distribution_strategy=one_device"]
    shared += ["--plan", "--measure", "--num_gpus=0", "--kernels=plain"]
    for task in (
        ["--input_files=none.tfrecord", "--train_batch_size=4", "--pack_on_the_fly"],
        ["--task=squad", "--train_file=none.json", "--predict_file=none.json", "--train_batch_size=4"],
        ["--task=glue", "--glue_task=sst2", "--data_dir=none", "--train_batch_size=4"],
    ):
        steps.clear()
        config = flags.parse([*shared, *task])
        plan = plan_lib.make_plan(config, TASKS[config.task], step_benchmark.measure_steps)
        assert len(steps) == 4 and plan["measured"]["step_secs"] > 0, task
        # Only the data of fine-tuning say how many steps it has.
        known = config.task == "pretrain"
        assert (plan["measured"]["hours"] is not None) == (plan["train_steps"] is not None) == known
        assert all(0 < loss < 100 for loss in steps), task
    assert os.listdir(tmp_path) == ["model.json"]


def test_the_program_measures_on_the_devices_of_the_run(tmp_path):
    model, file = tmp_path / "model.json", tmp_path / "plan.json"
    model.write_text(json.dumps(TINY))
    done = programs.run(
        "train.py", "--plan", "--measure", f"--bert_config_file={model}", "--use_synthetic_data",
        "--max_seq_length=16", "--max_predictions_per_seq=3", "--train_batch_size=8",
        "--distribution_strategy=mirrored", "--num_virtual_devices=2", "--plan_hosts=1,2", "--plan_gbps=10",
        f"--plan_file={file}", "--num_steps_per_epoch=9",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = json.loads(file.read_text())
    assert plan["num_replicas"] == 2 and plan["scaling"]["source"] == "measure"
    assert "measured run" in done.stdout and "Traceback" not in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["model.json", "plan.json"]


def test_what_this_process_cannot_run_is_refused(make_config):
    workers = dict(distribution_strategy="multi_worker_mirrored", worker_hosts="a:1,b:1", task_index=0)
    for settings, message in (
        (dict(plan=False), "measure=True needs --plan"),
        (dict(do_train=False, do_eval=True), "measure=True needs --do_train"),
        (workers, "multi_worker_mirrored of 2 processes needs others.*--plan_hosts"),
        (dict(distribution_strategy="ipu", pipeline_stages="1"), "distribution_strategy=ipu needs others"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_config(**{"plan": True, "measure": True, **settings})


def test_settings_of_earlier_versions_are_refused_by_name_unless_unset(make_config):
    assert make_config(machine_file=None, plan_all_reduce=None)
    with pytest.raises(ConfigError, match="test: machine_file=a.json is of earlier versions. Now bert plan"):
        make_config(machine_file="a.json")
    with pytest.raises(ConfigError, match="--plan_all_reduce is of earlier versions. Now --plan_hosts"):
        flags.parse(["--plan_all_reduce=tree"])
