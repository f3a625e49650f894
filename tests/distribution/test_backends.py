"""The back ends, each with its row; NVIDIA_TF32_OVERRIDE: which products are rounded to TensorFloat-32."""

import ast
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from official import native
from official.config.backends import BACKENDS
from official.distribution import strategy as strategy_lib
from official.modeling import layers, models
from official.modeling.operations import fused
from tests.fixtures import ROOT
from tests.gpu.conftest import fixture_float32_products  # noqa: F401
from tests.test_architecture import parsed


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
    may_ask = re.compile("|".join(["Strategy", *(f"[\"']{name}[\"']" for name in BACKENDS)]))
    for folder in ("official", "tf2_bert", "scripts", "checkpoints_tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path not in OF_BACK_ENDS and may_ask.search(path.read_text(encoding="utf-8")):
                found = [node for node in ast.walk(parsed(path)) if _asks_for_a_back_end(node)]
                assert not found, f"{path}: {ast.unparse(found[0])}"


# ------------------------------------------------------------------------------------------------------------
# Products of float32


@pytest.mark.parametrize(
    "forbids, capability, rounds, said",
    [
        (False, (8, 0), True, "float32 products on NVIDIA A100: rounded to TensorFloat-32"),
        (True, (8, 0), False, "float32 products on NVIDIA A100: in full float32"),
        (False, (7, 0), False, None),
        (False, None, False, None),
        (True, None, False, None),
    ],
)
def test_the_variable_counts_where_a_gpu_can_round(
    make_config, monkeypatch, caplog, forbids, capability, rounds, said
):
    """In a process that looks as if it had a GPU of that compute capability, or has none."""
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0" if forbids else "")
    if capability:
        details = {"compute_capability": capability, "device_name": "NVIDIA A100"}
        monkeypatch.setattr(native, "on_gpus", lambda strategy=None: True)
        monkeypatch.setattr(native, "on_cpus", lambda strategy=None: False)
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"])
        monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: details)
    tf.config.experimental.enable_tensor_float_32_execution(not rounds)
    with caplog.at_level("INFO", logger="absl"):
        strategy_lib.make_strategy(make_config(num_gpus=0))
    assert tf.config.experimental.tensor_float_32_execution_enabled() is rounds
    lines = [record.getMessage() for record in caplog.records if "float32 products" in record.getMessage()]
    assert lines == ([f"{said} (NVIDIA_TF32_OVERRIDE=0 turns rounding off)."] if said else [])


def linear_of(x: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns logits, and the gradients of their weighted sum."""
    variables = [tf.constant(x), tf.constant(weights)]
    with tf.GradientTape() as tape:
        tape.watch(variables)
        logits = models.linear(models.LinearWeights(variables[1], tf.zeros([len(weights)])), variables[0])
        total = tf.reduce_sum(logits * tf.range(1.0, len(weights) + 1))
    return logits.numpy(), [gradient.numpy() for gradient in tape.gradient(total, variables)]


def test_heads_are_exact_where_products_are_rounded(monkeypatch):
    generator = np.random.default_rng(0)
    x, weights = generator.normal(size=(3, 5, 64)), generator.normal(size=(2, 64))
    x, weights = x.astype(np.float32), weights.astype(np.float32)
    here, gradients_here = linear_of(x, weights)
    np.testing.assert_array_equal(  # where nothing is rounded, it is the product as it was
        here, tf.reshape(tf.matmul(x.reshape(-1, 64), weights.T), [3, 5, 2]) + tf.zeros(2)
    )
    monkeypatch.setattr(layers, "rounds_products", lambda: True)
    monkeypatch.setattr(layers, "matmul_2d", with_rounded_factors(layers.matmul_2d))
    logits, gradients = linear_of(x, weights)
    exact = x.astype(np.float64) @ weights.astype(np.float64).T
    assert logits.dtype == np.float32
    np.testing.assert_array_equal(logits, exact.astype(np.float32))
    for found, expected in zip(gradients, gradients_here):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def with_rounded_factors(matmul_2d):
    """Returns a product as an Ampere GPU's: the factors of float32 ones lose 13 bits of their fraction."""

    def rounded(x):
        if x.dtype != tf.float32:
            return x
        bits = tf.bitcast(x, tf.int32)
        return tf.bitcast(tf.bitwise.bitwise_and(bits, tf.constant(~0x1FFF, tf.int32)), tf.float32)

    return lambda x, kernel: matmul_2d(rounded(x), rounded(tf.cast(kernel, x.dtype)))


def test_embeddings_are_exact_where_products_are_rounded(make_config, monkeypatch):
    config = make_config().model
    batch = {"input_ids": tf.constant([[5, 6, 7]]), "segment_ids": tf.constant([[0, 1, 1]])}
    layer = models.Embeddings(config)
    expected = models.embed(layer.tensors(), batch, None, config).numpy()
    monkeypatch.setattr(layers, "matmul_2d", with_rounded_factors(layers.matmul_2d))
    rounded = models.embed(layer.tensors(), batch, None, config).numpy()
    assert np.abs(rounded - expected).max() > 1e-5  # what the test would see
    monkeypatch.setattr(layers, "rounds_products", lambda: True)
    np.testing.assert_array_equal(models.embed(layer.tensors(), batch, None, config).numpy(), expected)


def test_sums_of_rows_are_no_products_where_these_are_rounded(monkeypatch):
    rows = tf.constant(np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32))
    kinds = []
    for rounds in (False, True):
        monkeypatch.setattr(fused, "rounds_products", lambda rounds=rounds: rounds)
        graph = tf.function(fused._sum_of_rows.python_function).get_concrete_function(rows).graph
        kinds.append({operation.type for operation in graph.get_operations()})
    assert any("MatMul" in kind for kind in kinds[0]) and not any("MatMul" in kind for kind in kinds[1])
    assert "Sum" in kinds[1]
