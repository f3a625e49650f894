"""A profile of some steps: what it writes, that it changes no number, and what becomes of one that is cut."""

import json
import pathlib

import pytest
import tensorflow as tf

from official.config import values
from official.reporting import profile as tables
from official.reporting.metrics import read_metrics
from tests.distribution.test_processes import finish, start, workspace  # noqa: F401
from tests.run_folders import run
from tests.training.test_loop import interrupt_at

STEPS = dict(num_steps_per_epoch=8, steps_per_loop=4)


def files_of(config) -> set[str]:
    """Returns the names of the files of a profile in the folder of a run."""
    folder = pathlib.Path(config.model_dir)
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.name for path in found if "profile" in path.name or path.suffix == ".pb"}


def losses(config) -> list:
    return [(line["step"], line.get("loss")) for line in read_metrics(config.model_dir)]


def read(config, name: str) -> dict:
    return json.loads((pathlib.Path(config.model_dir) / name).read_text())


def products_in_layers(config) -> float:
    """Returns how many matrix products the layers make in a step, forward and backward."""
    rows = [row for row in read(config, "profile.json")["operations"] if row["part"] == "layer_{}"]
    return sum(row["count_per_step"] for row in rows if row["kind"] == tables.PRODUCTS)


@pytest.mark.slow
def test_a_profile_is_written_and_changes_no_number(make_config, tmp_path):
    """The steps of the window end within intervals and beyond one."""
    shared = dict(STEPS, model=dict(num_hidden_layers=2), do_eval=True)
    plain = make_config(**shared, model_dir=str(tmp_path / "plain"))
    profiled = make_config(**shared, profile_steps="3,6", profile_memory=True)
    run(plain)
    run(profiled)
    assert losses(plain) == losses(profiled) and len(losses(plain)) > 2
    assert files_of(plain) == set()
    found = read(profiled, "profile.json")
    assert found["steps"] == [3, 6] and found["secs_per_step"] > 0
    assert (pathlib.Path(profiled.model_dir) / found["trace"]).stat().st_size > 10_000
    assert found["trace"].startswith("tensorboard/plugins/profile/")
    by_kind = {row["kind"]: row for row in found["kinds"]}
    assert {tables.PRODUCTS, tables.BLOCKS, tables.UPDATE, tables.NORM, tables.ATTENTION} <= set(by_kind)
    assert sum(row["share"] for row in found["kinds"]) == pytest.approx(1)
    # Of two layers, twice as many backward; the evaluation's are none of them. The last layer asks for few
    # positions: queries have a product of their own.
    assert products_in_layers(profiled) == (4 + 5) * 3
    parts = {(row["part"], row["pass"]) for row in found["parts"]}
    assert {("layer_{}", "forward"), ("layer_{}", "backward"), ("optimizer", "")} <= parts
    report = (pathlib.Path(profiled.model_dir) / "report.html").read_text()
    assert "Where the time goes" in report and "matrix products" in report


@pytest.mark.slow
def test_memory_by_layer(make_config):
    """Large enough for the pool that tells of tensors of 256 KiB and more."""
    model = dict(vocab_size=2000, num_hidden_layers=2, hidden_size=64, intermediate_size=256)
    steps = dict(num_steps_per_epoch=3, steps_per_loop=3, train_batch_size=128)
    config = make_config(model, **steps, profile_memory=True)
    run(config)
    assert files_of(config) == {"profile_memory.json"}  # no trace: nobody asked for steps
    found = read(config, "profile_memory.json")
    assert found["steps"] == [1, 2]
    (weights,) = [row for row in found["variables"] if row["part"] == "layer_0"]
    norms, matrices = 4 * 64, 4 * 64 * 64 + 2 * 64 * 256
    assert weights["weights_bytes"] == 4 * (matrices + norms + 4 * 64 + 256 + 64)
    assert weights["slots_bytes"] == 2 * weights["weights_bytes"]
    memory = found["allocators"][0]
    parts = {(row["part"], row["pass"]): row for row in memory["parts"]}
    held = sum(row["held_at_peak_bytes"] for row in memory["parts"])
    assert 0 < held <= memory["peak_bytes"] == held + memory["resident_bytes"]
    kept = 4 * 128 * 16 * 256  # bytes of what a feed-forward layer makes, at least twice
    assert parts["layer_0", "forward"]["most_held_bytes"] >= 2 * kept
    assert ("layer_0", "backward") in parts and ("layer_1", "backward") in parts
    assert max(row["peak_while_running_bytes"] for row in memory["parts"]) <= memory["peak_bytes"]
    report = (pathlib.Path(config.model_dir) / "report.html").read_text()
    assert "Memory at the peak" in report and "layer_1" in report


@pytest.mark.slow
def test_a_run_that_is_stopped_within_the_window_leaves_nothing(make_config, monkeypatch, caplog):
    config = make_config(**STEPS, profile_steps="2,7", profile_memory=True)
    with monkeypatch.context() as patches:
        interrupt_at(patches, 3)
        patches.setattr("official.training.metrics_window.StepsPerCall.steps", lambda self, left, *_: 1)
        run(config)
    assert files_of(config) == set()
    lines = [record.getMessage() for record in caplog.records if "profile" in record.getMessage()]
    assert len(lines) == 1 and "No profile: the run ended at step" in lines[0]
    run(make_config(**STEPS, profile_steps="5,6"))  # the profiler is free again, and steps are the run's
    assert read(config, "profile.json")["steps"] == [5, 6]


def test_steps_that_are_over_are_told(make_config, caplog):
    run(make_config(**STEPS, stop_steps=4))
    config = make_config(**STEPS, profile_steps="2,6")
    run(config)
    assert "steps 2,6 do not begin after step 4" in caplog.text and files_of(config) == set()


def test_a_profiler_that_is_in_use_costs_a_line(make_config, tmp_path, caplog):
    config = make_config(**STEPS, profile_steps="2,6")
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        assert run(config).status == "finished"
    finally:
        tf.profiler.experimental.stop(save=False)
    assert "No profile:" in caplog.text and files_of(config) == set()


@pytest.mark.slow
def test_layers_of_a_pipeline_are_told_apart(make_config):
    """Micro batches after the first have other names, and devices functions of their own."""
    settings = dict(num_steps_per_epoch=2, steps_per_loop=2, num_accumulation_steps=2, profile_steps="1,2")
    settings |= dict(distribution_strategy="pipeline", num_virtual_devices=2, pipeline_stages="2")
    config = make_config(dict(num_hidden_layers=2), **settings)
    run(config)
    assert products_in_layers(config) == 2 * (4 + 5) * 3


def test_memory_is_that_of_a_step_after_the_first(make_config):
    for step, expected in ((0, (1, 2)), (8, (8, 9)), (9, None)):
        assert values.window(make_config(profile_memory=True), step, 9) == expected


@pytest.mark.slow
def test_the_pool_that_tells_of_all_memory_changes_no_bit(workspace, tmp_path):  # noqa: F811
    """In processes of their own: a pool is chosen once."""
    lines = {}
    for name, more in (("plain", []), ("profiled", ["--profile_memory"])):
        finish(start(workspace, tmp_path / name, *more, num_steps_per_epoch=4, steps_per_loop=1))
        metrics = read_metrics(str(tmp_path / name))
        lines[name] = [(line["step"], line["loss"], line["gradient_norm"]) for line in metrics]
    assert lines["plain"] == lines["profiled"] and len(lines["plain"]) == 4
    found = json.loads((tmp_path / "profiled" / "profile_memory.json").read_text())
    parts = {(row["part"], row["pass"]) for row in found["allocators"][0]["parts"]}
    assert {("layer_0", "forward"), ("layer_0", "backward"), ("masked_lm", "backward")} <= parts


def test_an_old_tensorflow_writes_the_trace_alone(make_config, monkeypatch, caplog):
    monkeypatch.setattr(tables, "read_space", lambda content: None)
    config = make_config(**STEPS, profile_steps="2,3")
    run(config)
    (trace,) = files_of(config)
    assert trace.endswith(".xplane.pb") and "No tables of the profile" in caplog.text
