"""Weights & Biases: what an offline run holds, one run over all processes, errors that do no harm."""

import logging as standard_logging
import pathlib
import sys
import types

import pytest

from official.graphcore.log_style import Tags
from official.reporting import wandb_run as wandb_lib
from official.reporting.callback import Evaluation, Start
from tests.refusals import assert_refused


def train(config, steps, status="finished"):
    """Tells W&B of what a process that trains the steps does; without a status it crashes."""
    run = wandb_lib.WandbRun(config)
    for step in steps:
        numbers = {"loss": 10 / step, "learning_rate": 1e-3, "loss_scale": float("nan")}
        run.on_interval(step, {"samples": 8 * step, **numbers})
    last = steps[-1]
    values = {"samples": 8 * last, "loss": 2.5, "mlm_accuracy": 0.25}
    run.on_evaluation(Evaluation(last, 8 * last, 16, values, "mlm_accuracy", target=None, secs=1.0))
    if status:
        numbers = {"step": last, "eval_accuracy": 0.25, "target": None}
        run.on_result(status, {"status": status, "config": {"seed": 1}, **numbers})
    run.close()


@pytest.mark.slow
def test_the_package_keeps_an_offline_run_that_a_later_process_goes_on_with(monkeypatch, make_config, capfd):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = make_config(wandb=True, wandb_name="some-project/")
    train(config, [1, 2, 3, 4], status=None)  # crashed
    first_id = pathlib.Path(config.model_dir, wandb_lib.ID_FILE_NAME).read_text().strip()
    train(config, [3, 4, 5])
    wandb.teardown()  # its own process writes the last block of a file after `finish`, at the latest here
    files = sorted(pathlib.Path(config.model_dir).glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2 and all(first_id in file.name for file in files)
    names = (b"train/loss", b"eval/mlm_accuracy", b"some-project", b"model.hidden_size")
    contents = {file.parent.name: file.read_bytes() for file in files}
    missing = [(at, len(data), name) for at, data in contents.items() for name in names if name not in data]
    assert not missing
    assert "wandb" not in "".join(capfd.readouterr()).replace("wandb sync", "").replace("/wandb/", "")


@pytest.fixture
def fake(monkeypatch):
    """Returns a stand-in for the package whose `run` the test may break."""
    run = types.SimpleNamespace(id="x", url="https://example.invalid/x", dir="d", summary={})
    run.logged, run.codes, run.metrics = [], [], {}
    run.define_metric = lambda name, step_metric=None: run.metrics.update({name: step_metric})
    run.log, run.finish = run.logged.append, lambda exit_code: run.codes.append(exit_code)

    def init(**arguments):
        package.arguments = arguments
        return run

    errors = types.SimpleNamespace(UsageError=type("UsageError", (Exception,), {}))
    package = types.SimpleNamespace(run=run, init=init, errors=errors)
    package.setup, package.teardown = lambda **_: None, lambda: None
    package.Settings = lambda **values: values
    monkeypatch.setitem(sys.modules, "wandb", package)
    return package


def fail(*_, **__):
    raise ConnectionError("no\nnetwork")


def test_values_are_sent_over_the_step(fake, make_config):
    train(make_config(wandb=True, wandb_name="some-project/"), [1, 2, 5])
    names = ("step", "samples", "train/loss", "eval/mlm_accuracy")
    assert [tuple(line.get(name) for name in names) for line in fake.run.logged] == [
        (1, 8, 10, None),
        (2, 16, 5, None),
        (5, 40, 2, None),
        (5, 40, None, 0.25),
    ]
    assert fake.run.logged[0]["train/learning_rate"] == 1e-3
    assert not {"train/loss_scale", "train/samples"} & fake.run.logged[0].keys()
    assert fake.run.metrics == {"step": None, "train/*": "step", "eval/*": "step"}
    assert (fake.arguments["project"], fake.arguments["name"]) == ("some-project", "run")
    expected = {"train_batch_size": 8, "model.hidden_size": 32, "optimizer_type": "lamb"}
    assert expected.items() <= fake.arguments["config"].items()
    assert fake.run.summary == {"status": "finished", "step": 5, "eval_accuracy": 0.25}


def test_the_tags_of_graphcores_program_are_beside_ours(fake, make_config):
    config = make_config(wandb=True, log_style="graphcore", num_steps_per_epoch=20)
    run = wandb_lib.WandbRun(config, Tags(config))
    run.on_compiling(1, 1, 7.5)
    run.on_start(Start(0, 0, 10, (), 0.0, False))
    run.on_interval(5, {"samples": 40, "loss": 3.0, "mlm_loss": 2.5, "mlm_accuracy": 0.25})
    first, second = fake.run.logged
    assert first == {"step": 0, "poplar/compile_time": 7.5}
    expected = {"step": 5, "samples": 40, "epoch": 0.25, "loss/MLM": 2.5, "train/mlm_loss": 2.5}
    assert expected.items() <= second.items()
    assert fake.run.metrics["loss/*"] == fake.run.metrics["train/*"] == "step"
    assert fake.arguments["project"] == "tf-bert"


def test_a_failure_during_the_run_is_one_warning(fake, make_config, caplog):
    for broken in ("finish", "log"):
        setattr(fake.run, broken, fail)
        caplog.clear()
        with caplog.at_level(standard_logging.WARNING):
            train(make_config(wandb=True), [1, 2, 3])
        (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
        expected = "W&B failed and gets no further metrics of this run; metrics.jsonl has them: no network"
        assert warning == expected


def test_a_server_that_cannot_be_reached_leaves_an_offline_run(fake, make_config, caplog):
    working = fake.init
    fake.init = lambda **arguments: working(**arguments) if arguments.get("mode") == "offline" else fail()
    config = make_config(wandb=True)
    with caplog.at_level(standard_logging.WARNING):
        train(config, [1, 2])
    names = {"project": "bert-tf2", "name": "run", "resume": "allow", "dir": config.model_dir}
    assert names.items() <= fake.arguments.items()
    assert fake.arguments["settings"]["console"] == "off" and fake.arguments["settings"]["silent"]
    assert f"kept in {config.model_dir}/wandb: no network" in caplog.text
    assert len(fake.run.logged) == 3 and fake.run.codes == [0] and fake.run.summary["status"] == "finished"


def test_a_missing_key_or_package_is_found_out_before_training(fake, make_config, monkeypatch):
    def init(**_):
        raise fake.errors.UsageError("No API key configured. Use `wandb login` to log in.")

    fake.init, config = init, make_config(wandb=True)
    no_key = "Use `wandb login` to log in. Or set WANDB_MODE=offline, or drop --wandb"
    assert_refused(wandb_lib.WandbRun, [(config, no_key)])
    monkeypatch.setitem(sys.modules, "wandb", None)
    missing = "package is not installed: pip install '.[wandb]'"
    assert_refused(wandb_lib.WandbRun, [(config, missing)])


def test_the_exit_code_is_that_of_the_run(fake, make_config):
    for status, code in {"success": 0, "finished": 0, "aborted": 1, "failed": 3, "crashed": 1}.items():
        run = wandb_lib.WandbRun(make_config(wandb=True))
        if status != "crashed":
            run.on_result(status, {})
        run.close()
        assert fake.run.codes.pop() == code and not fake.run.codes
