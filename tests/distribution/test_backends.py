"""The back ends: each has its row, and nobody else asks which one it is."""

import ast

import pytest
import tensorflow as tf

from official.config.backends import BACKENDS
from official.distribution import backends
from official.distribution import strategy as strategy_lib
from tests.conftest import ROOT


def test_every_back_end_is_a_row(make_config):
    for name, traits in BACKENDS.items():
        assert traits.name == name and backends._BACKENDS[name].has_peers == traits.several_processes
    assert list(backends._BACKENDS.keys() ^ BACKENDS.keys()) == []


def test_the_back_end_of_a_strategy(make_config):
    strategy = strategy_lib.make_strategy(make_config(distribution_strategy="one_device"))
    assert backends.of_strategy(strategy) is backends.of_config(make_config())
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
        (dict(distribution_strategy="tpu", num_tpu_cores=32), 32),
        (dict(distribution_strategy="tpu", tpu="somewhere"), 8),  # a plan's, which says so
        (dict(distribution_strategy="pipeline", pipeline_stages="2", num_gpus=8), 4),
    ],
)
def test_replicas_that_a_run_would_have(make_config, settings, replicas):
    assert strategy_lib.num_replicas(make_config(**settings)) == replicas


# Files in which a back end may be called by its name.
OF_BACK_ENDS = {ROOT / "official/config/backends.py", ROOT / "official/distribution/backends.py"}


def _asks_for_a_back_end(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        parts = [part for side in sides for part in (side, *getattr(side, "elts", ()))]
        return any(isinstance(part, ast.Constant) and part.value in BACKENDS for part in parts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
        return ast.unparse(node.args[1]).endswith("Strategy")
    return False


def test_only_a_back_end_knows_which_one_it_is():
    for folder in ("official", "tf2_bert", "scripts", "checkpoints_tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path not in OF_BACK_ENDS:
                found = [node for node in ast.walk(ast.parse(path.read_text())) if _asks_for_a_back_end(node)]
                assert not found, f"{path}: {ast.unparse(found[0])}"
