"""What the MLPerf log says of each kind of optimizer, schedule and loss scale."""

import json

import pytest

from official import config as config_lib
from official.reporting import mllog
from tests.training.test_resume import KINDS


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
