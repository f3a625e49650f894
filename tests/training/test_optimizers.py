"""Runs with each kind of optimizer, schedule and loss scale: they go on to the same bits."""

import json

import pytest

from official import config as config_lib
from official.reporting import mllog
from official.training import resume, run_lock
from tests.run_folders import assert_resumes, run, state_of
from tests.training.test_training import make_loop, read_metrics

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
