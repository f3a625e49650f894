"""Runs with each kind of optimizer, schedule and loss scale: they go on to the same bits."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official import config as config_lib
from official.data.records import encoding
from official.planning import plan as plan_lib
from official.reporting import mllog
from official.tasks.pretraining import PretrainingTask
from official.training import resume, run_lock
from tests.data.records.test_records import LENGTH, MOST, static_mask_examples
from tests.run_folders import assert_resumes, run, state_of
from tests.training.test_training import make_loop, read_metrics, replicas

KINDS = {
    "sgd": dict(optimizer_type="sgd", lr_schedule="cosine"),
    "momentum": dict(optimizer_type="momentum", lr_schedule="up_down", warmup_steps=2),
    "mpadamw": dict(
        optimizer_type="mpadamw", loss_scale='{"0": 64, "5": 256}',
        lr_schedule='{"0": 1e-3, "5": 1e-2}', learning_rate=None, warmup_steps=None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_bit_identical(make_config, record_files, tmp_path, kind):
    shared = dict(input_files=record_files(), num_steps_per_epoch=8, steps_per_loop=2)
    assert_resumes(make_config, 4, 8, **shared, checkpoint_every_steps=2, **KINDS[kind])
    state = state_of(tmp_path / "whole", 8)
    assert ("adam_m_scale" in state) == (kind == "mpadamw")
    if kind == "mpadamw":
        lines = read_metrics(str(tmp_path / "whole"))
        assert state["adam_m_scale"] == 64 and [line["loss_scale"] for line in lines] == [64, 64, 256, 256]
        assert [line["learning_rate"] for line in lines] == pytest.approx([1e-3, 1e-3, 1e-2, 1e-2])


@pytest.mark.parametrize(
    "asked,expected", [(dict(loss_scale="256"), 256), (dict(loss_scale='{"0": 8, "3": 32}'), 32)]
)
def test_a_run_that_goes_on_takes_the_loss_scale_that_is_asked_for(make_config, asked, expected):
    run(make_config(num_steps_per_epoch=8, steps_per_loop=4, loss_scale="1024", stop_steps=4))
    config = make_config(num_steps_per_epoch=8, steps_per_loop=4, **asked)
    loop = make_loop(config)
    resume.restore(config, loop.manager, loop.state, run_lock.PreviousRun(config.model_dir), loop.task, list)
    assert loop.state.step == 4 and loop.state.loss_scale.scale.numpy() == expected


@pytest.mark.slow
def test_a_run_with_a_static_mask_on_two_replicas(make_config, tmp_path):
    path = str(tmp_path / "remask.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for record in encoding.encode(static_mask_examples(32), "remask"):
            writer.write(record)
    shared = dict(
        input_files=path, max_seq_length=LENGTH, max_predictions_per_seq=MOST, num_steps_per_epoch=2,
        steps_per_loop=2, do_eval=True, num_eval_samples=20, **replicas(2), num_accumulation_steps=2,
    )  # fmt: skip
    losses = []
    for static_mask in (False, True):
        folder = str(tmp_path / str(static_mask))
        run(make_config(**shared, static_mask=static_mask, model_dir=folder))
        losses.append([line["loss"] for line in read_metrics(folder)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


@pytest.mark.parametrize(
    "kind,num_bytes", [("sgd", 0), ("momentum", 4), ("adam", 8), ("mpadamw", 6), ("lamb", 8)]
)
def test_the_plan_has_the_slots_and_the_corners(make_config, kind, num_bytes):
    config = make_config(
        optimizer_type=kind, lr_schedule="cosine", warmup_steps=4, plan=True, learning_rate=1.0
    )
    plan = plan_lib.make_plan(config, PretrainingTask)
    assert plan["bytes"]["optimizer_slots"] == num_bytes * plan["parameters"]
    assert plan["learning_rates"]["4"] == 1.0
    assert plan["learning_rates"]["10"] == pytest.approx(0.5 * (1 + np.cos(np.pi * 6 / 16)))


def test_the_plan_knows_the_steps_of_a_custom_schedule(make_config):
    config = make_config(**KINDS["mpadamw"], plan=True)
    assert plan_lib.learning_rates(config)["5"] == pytest.approx(1e-2)


@pytest.mark.parametrize("kind", config_lib.FIELDS["optimizer_type"].choices)
def test_the_mlperf_log_has_the_keys_that_exist(make_config, kind):
    from mlperf_logging.mllog import constants

    known = {value for value in vars(constants).values() if isinstance(value, str)}
    for settings in (dict(), dict(lr_schedule="cosine"), KINDS["mpadamw"]):
        config = make_config(**{**settings, "optimizer_type": kind})
        found = dict(mllog.run_settings(config, "cpu-1", 8, 1))
        json.dumps(found)
        assert found["opt_name"] == kind
        ours = {name for name in found if name.startswith("opt_")}
        ours -= {"opt_epsilon", "opt_gradient_accumulation_steps", "opt_adamw_learning_rate_decay_poly_power"}
        assert ours <= known
        assert ("opt_learning_rate_decay_schedule" in found) == bool(settings)


def test_the_mlperf_log_has_the_rates_that_are_read(make_config):
    changes = dict(lr_schedule='{"0": 2e-3, "5": 4e-3, "7": 1e-3}')
    config = make_config(**changes, learning_rate=None, warmup_steps=None)
    found = dict(mllog.run_settings(config, "cpu-1", 8, 1))
    assert (found["opt_base_learning_rate"], found["opt_end_learning_rate"]) == (4e-3, 1e-3)
