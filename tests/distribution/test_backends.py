"""The back ends: each has its row, and nobody else asks which one it is."""

import ast
import json

from official.config.backends import BACKENDS
from official.distribution import strategy as strategy_lib
from tests.conftest import ROOT


def test_every_back_end_is_a_row(make_config):
    assert all(traits.name == name for name, traits in BACKENDS.items())
    assert BACKENDS.keys() == strategy_lib._MAKE.keys() == strategy_lib._NUM_REPLICAS.keys()
    strategy = strategy_lib.make_strategy(make_config(distribution_strategy="one_device"))
    assert strategy_lib.is_chief(strategy) and not strategy_lib.has_peers(strategy)


def test_replicas_that_a_run_would_have(make_config, monkeypatch):
    for backend, settings, replicas in (
        ("one_device", dict(num_gpus=1), 1),
        ("mirrored", dict(num_gpus=0), 1),
        ("mirrored", dict(num_gpus=4), 4),
        ("mirrored", dict(num_gpus=0, num_virtual_devices=3), 3),
        ("tpu", dict(num_tpu_cores=32), 32),
        ("tpu", dict(tpu="somewhere"), 8),  # a plan's, which says so
        ("pipeline", dict(pipeline_stages="2", num_gpus=8), 4),
        ("multi_worker_mirrored", dict(worker_hosts="a:1,b:2,c:3", task_index=0, num_gpus=2), 6),
    ):
        assert strategy_lib.num_replicas(make_config(distribution_strategy=backend, **settings)) == replicas
    cluster = {"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    config = make_config(distribution_strategy="multi_worker_mirrored", num_gpus=2)
    assert strategy_lib.num_replicas(config) == 4


# Files in which a back end may be called by its name.
OF_BACK_ENDS = {ROOT / "official/config/backends.py", ROOT / "official/distribution/strategy.py"}


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
