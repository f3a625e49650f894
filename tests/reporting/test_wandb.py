"""Weights & Biases: what an offline run holds, one run over all processes, errors that do no harm."""

import logging as standard_logging
import pathlib
import struct
import sys
import time
import types

import pytest

from official.graphcore.log_style import Tags
from official.io.errors import ConfigError
from official.reporting import wandb_run as wandb_lib
from official.reporting.callback import Evaluation, Start


@pytest.fixture
def offline(monkeypatch, make_config):
    """Returns a configuration of an offline run."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    return make_config(wandb=True, wandb_name="some-project/")


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
        result = {
            "status": status,
            "step": last,
            "eval_accuracy": 0.25,
            "target": None,
            "config": {"seed": 1},
        }
        run.on_result(status, result)
    run.close()


def read_wandb_file(path):
    """Returns {kind: [records]} of a .wandb file, whose end W&B's own process may write a moment after it has
    said that it is done."""
    deadline = time.monotonic() + 20
    while "exit" not in (records := parse_wandb_file(path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return records


def parse_wandb_file(path):
    """Returns {kind: [records]}."""
    from wandb.proto import wandb_internal_pb2

    records = {}
    for data in leveldb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        records.setdefault(record.WhichOneof("record_type"), []).append(record)
    return records


def leveldb_records(content):
    """Yields the records of a log of LevelDB, which a .wandb file is after its first 7 bytes: blocks of 32
    KiB, in them pieces of (checksum, length, kind), the kinds 1 for a whole record, 2, 3, 4 for its first,
    middle and last pieces."""
    position, record = 7, b""
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:  # no room for the head of a piece
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (0, 1, 4):
            if kind:
                yield record
            record = b""


def values_of(items):
    return {item.key or "/".join(item.nested_key): item.value_json for item in items}


def offline_files(model_dir):
    return sorted(pathlib.Path(model_dir).glob("wandb/offline-run-*/*.wandb"))


def test_an_offline_run_holds_the_values_over_the_step(offline, capfd):
    train(offline, [1, 2, 5])
    (path,) = offline_files(offline.model_dir)
    records = read_wandb_file(path)
    lines = [values_of(record.history.item) for record in records["history"]]
    names = ("step", "samples", "train/loss", "eval/mlm_accuracy")
    assert [tuple(line.get(name) for name in names) for line in lines] == [
        ("1", "8", "10", None),
        ("2", "16", "5", None),
        ("5", "40", "2", None),
        ("5", "40", None, "0.25"),
    ]
    assert lines[0]["train/learning_rate"] == "0.001"
    assert not {"train/loss_scale", "train/samples"} & lines[0].keys()
    steps = {each.metric.name or each.metric.glob_name: each.metric.step_metric for each in records["metric"]}
    assert steps["train/*"] == steps["eval/*"] == "step"
    run = records["run"][0].run
    assert (run.project, run.display_name) == ("some-project", "run")
    config = values_of(run.config.update)
    names = ("train_batch_size", "model.hidden_size", "optimizer_type")
    assert [config[name] for name in names] == ["8", "32", '"lamb"']
    summary = {}
    for record in records["summary"]:
        summary |= values_of(record.summary.update)
    assert summary["status"] == '"finished"' and summary["eval_accuracy"] == "0.25"
    assert "config" not in summary
    assert records["exit"][0].exit.exit_code == 0
    assert "wandb" not in "".join(capfd.readouterr()).replace("wandb sync", "").replace("/wandb/", "")


def test_the_tags_of_graphcores_program_are_beside_ours(offline, make_config):
    config = make_config(wandb=True, log_style="graphcore", num_steps_per_epoch=20)
    run = wandb_lib.WandbRun(config, Tags(config))
    run.on_compiling(1, 1, 7.5)
    run.on_start(Start(0, 0, 10, (), 0.0, False))
    run.on_interval(5, {"samples": 40, "loss": 3.0, "mlm_loss": 2.5, "mlm_accuracy": 0.25})
    run.on_result("finished", {"status": "finished"})
    run.close()
    (path,) = offline_files(offline.model_dir)
    records = read_wandb_file(path)
    first, second = (values_of(record.history.item) for record in records["history"])
    assert (first["step"], first["poplar/compile_time"]) == ("0", "7.5")
    names = ("step", "epoch", "loss/MLM", "train/mlm_loss", "accuracy/MLM", "samples")
    assert [second[name] for name in names] == ["5", "0.25", "2.5", "2.5", "0.25", "40"]
    metrics = {record.metric.glob_name: record.metric.step_metric for record in records["metric"]}
    assert metrics["loss/*"] == metrics["train/*"] == "step"
    assert records["run"][0].run.project == "tf-bert"


def test_a_resumed_process_goes_on_with_the_same_run(offline):
    train(offline, [1, 2, 3, 4], status=None)  # crashed
    kept = pathlib.Path(offline.model_dir, wandb_lib.ID_FILE_NAME)
    first_id = kept.read_text()
    train(offline, [3, 4, 5], status="aborted")
    assert kept.read_text() == first_id
    records = [read_wandb_file(path) for path in offline_files(offline.model_dir)]
    assert {record["run"][0].run.run_id for record in records} == {first_id.strip()}
    steps = [[values_of(line.history.item)["step"] for line in record["history"]] for record in records]
    assert sorted(steps) == [["1", "2", "3", "4", "4"], ["3", "4", "5", "5"]]
    assert [record["exit"][0].exit.exit_code for record in records] == [1, 1]


@pytest.fixture
def fake(monkeypatch):
    """Returns a stand-in for the package whose `run` the test may break."""
    run = types.SimpleNamespace(id="x", url="https://example.invalid/x", dir="d", summary={})
    run.logged, run.codes = [], []
    run.define_metric = lambda *_, **__: None
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


def test_a_failure_during_the_run_is_one_warning(fake, make_config, caplog):
    for broken in ("finish", "log"):
        setattr(fake.run, broken, fail)
        caplog.clear()
        with caplog.at_level(standard_logging.WARNING):
            train(make_config(wandb=True), [1, 2, 3])
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
            "W&B failed and gets no more of this run's metrics, which go on in metrics.jsonl: no network"
        ]


def test_a_server_that_cannot_be_reached_leaves_an_offline_run(fake, make_config, caplog):
    working = fake.init
    fake.init = lambda **arguments: working(**arguments) if arguments.get("mode") == "offline" else fail()
    config = make_config(wandb=True)
    with caplog.at_level(standard_logging.WARNING):
        train(config, [1, 2])
    assert f"kept in {config.model_dir}/wandb: no network" in caplog.text
    assert len(fake.run.logged) == 3 and fake.run.codes == [0] and fake.run.summary["status"] == "finished"


def test_a_missing_key_or_package_is_found_out_before_training(fake, make_config, monkeypatch):
    def init(**_):
        raise fake.errors.UsageError("No API key configured. Use `wandb login` to log in.")

    fake.init = init
    with pytest.raises(ConfigError, match="Use `wandb login` to log in. Or set WANDB_MODE=offline, or drop"):
        wandb_lib.WandbRun(make_config(wandb=True))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        ConfigError, match="package is not installed: pip install '.\\[wandb\\]'.*drop --wandb"
    ):
        wandb_lib.WandbRun(make_config(wandb=True))


def test_names_have_defaults(fake, make_config):
    config = make_config(wandb=True)
    wandb_lib.WandbRun(config).close()
    arguments = {"project": "bert-tf2", "name": "run", "resume": "allow", "dir": config.model_dir}
    assert arguments.items() <= fake.arguments.items()
    assert fake.arguments["settings"]["console"] == "off" and fake.arguments["settings"]["silent"]


def test_the_exit_code_is_that_of_the_run(fake, make_config):
    for status, code in {"success": 0, "finished": 0, "aborted": 1, "failed": 3, "crashed": 1}.items():
        run = wandb_lib.WandbRun(make_config(wandb=True))
        if status != "crashed":
            run.on_result(status, {})
        run.close()
        assert fake.run.codes.pop() == code and not fake.run.codes
