"""The back ends: each has its row and its module, and says what it is."""

import pytest
import tensorflow as tf

from official.config.backends import BACKENDS
from official.distribution import backends
from official.distribution import strategy as strategy_lib
from tests.conftest import ROOT


def test_every_back_end_is_a_row_and_a_module():
    files = {path.stem for path in (ROOT / "official/distribution/backends").glob("*.py")}
    assert files - {"__init__", "backend"} == set(BACKENDS)
    for name, traits in BACKENDS.items():
        assert traits.name == name
        assert backends._load(name).has_peers == traits.several_processes


def test_the_back_end_of_a_strategy(make_config):
    strategy = strategy_lib.make_strategy(make_config(distribution_strategy="one_device"))
    assert backends.of_strategy(strategy) is backends._load("one_device")
    assert strategy_lib.is_chief(strategy) and not strategy_lib.has_peers(strategy)
    with pytest.raises(TypeError, match="one_device, mirrored"):
        backends.of_strategy(tf.distribute.get_strategy())


@pytest.mark.parametrize(
    "settings,replicas",
    [
        (dict(distribution_strategy="one_device", num_gpus=1), 1),
        (dict(distribution_strategy="mirrored", num_gpus=0), 1),
        (dict(distribution_strategy="mirrored", num_gpus=4), 4),
        (dict(distribution_strategy="mirrored", num_gpus=0, num_virtual_devices=3), 3),
        (dict(distribution_strategy="tpu", num_tpu_cores=8), 8),
    ],
)
def test_replicas_that_a_run_would_have(make_config, settings, replicas):
    assert strategy_lib.num_replicas(make_config(**settings)) == replicas
