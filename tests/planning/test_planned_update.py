"""What plans know of the update and the all-reduce that a run will have: kernels, copies, bytes."""

import json

import pytest
import tensorflow as tf

from official.planning import graph_cost
from official.planning import plan as plan_lib
from official.tasks import TASKS
from tests.training.test_training import make_loop, replicas


@pytest.fixture
def make_config(make_config):
    model = {"num_hidden_layers": 1}
    return lambda **settings: make_config(model, **{"num_gpus": 0, "train_batch_size": 8, **settings})


def plan_of(config) -> dict:
    return plan_lib.make_plan(config, TASKS["pretrain"])


def test_the_update_of_a_plan_is_that_of_the_run(make_config, monkeypatch):
    """The native update keeps bf16 copies of the weights; TensorFlow's has none."""

    def copies(**settings) -> int:
        return plan_of(make_config(dtype="bf16", **settings))["bytes"]["weight_copies"]

    assert copies() > 0 == copies(kernels="fused")
    monkeypatch.setenv("CXX", "/none")
    assert copies(kernels="native") > 0 == copies()


def test_copies_and_narrow_gradients_of_a_plan_are_those_of_the_run(make_config):
    sizes = {}
    for name, settings in (
        ("fp32", {}),
        ("bf16", dict(dtype="bf16")),
        ("two", dict(dtype="bf16", **replicas(2))),
        ("added up", dict(dtype="bf16", num_accumulation_steps=2)),
        ("tensorflow", dict(dtype="bf16", kernels="fused")),
        ("fp16", dict(dtype="fp16")),
    ):
        plan = plan_of(make_config(**settings))
        assert plan["total_bytes"] == sum(plan["bytes"].values())
        sizes[name] = plan["bytes"]
    loop = make_loop(make_config(dtype="bf16"))
    copies = loop.state.optimizer.make_copies([], tf.bfloat16)
    copied = sum(each.numpy().nbytes for each in copies.values())
    assert sizes["bf16"]["weight_copies"] == sizes["two"]["weight_copies"] == copied > 0
    assert sizes["fp16"]["weight_copies"] == copied
    assert sizes["fp32"]["weight_copies"] == sizes["tensorflow"]["weight_copies"] == 0
    parameters = sizes["fp32"]["parameters"]
    for name in ("fp32", "two", "added up", "tensorflow"):
        assert sizes[name]["gradients"] == parameters, name
    # The table's gradient is float32, since it is added up; others are those of the copies.
    embeddings = TASKS["pretrain"](make_config()).build_model().encoder.stages()[0].variables
    table = 2 * embeddings[0].shape.num_elements()
    assert sizes["bf16"]["gradients"] == parameters - copied + table


def test_a_plan_takes_the_native_update_on_cpus(make_config, monkeypatch):
    for settings, device, expected in (
        ({}, "CPU", True),
        ({}, "GPU", False),
        (dict(plan_device="v100-16gb"), "CPU", False),
        (dict(plan_device="16GB"), "CPU", True),
        (dict(enable_xla=True), "CPU", False),
        (dict(distribution_strategy="tpu", num_tpu_cores=8, num_gpus=None), "CPU", False),
    ):
        monkeypatch.setattr(graph_cost, "device_of", lambda config, device=device: device)
        assert graph_cost.updates_natively(make_config(plan=True, **settings)) == expected


@pytest.mark.parametrize("dtype,size", [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_the_all_reduce_of_a_plan_is_of_the_bytes_that_are_sent(make_config, dtype, size):
    config = make_config(
        **replicas(2), allreduce_dtype=dtype, loss_scale="dynamic", plan=True, plan_tflops=1e-6,
        plan_gbps=1e-3, plan_hosts="1,2",
    )  # fmt: skip
    plan = plan_of(config)
    sent = size * plan["parameters"]
    assert plan["all_reduce_bytes"] == plan["scaling"]["gradient_bytes"] == sent
    assert plan["expected"]["all_reduce_secs"] == pytest.approx(sent / 1e6)
    assert json.loads(json.dumps(plan)) == plan
