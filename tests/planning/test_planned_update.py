"""What plans know of the update and the all-reduce that a run will have: kernels, copies, bytes."""

import json

import pytest
import tensorflow as tf

from official.optimization.native import library
from official.planning import kernels, machine, machine_kernels, native_cases, native_update
from official.planning import plan as plan_lib
from official.planning.flat_graph import FlatGraph
from official.planning.kernels import Work
from official.planning.machine import Rate
from official.planning.native_update import StandIn
from official.tasks import TASKS
from tests.planning.test_machine import file_of, made, product
from tests.training.test_training import make_loop, replicas

SHAPE = (30, 40)
NUMBERS = 1200


@pytest.fixture
def make_config(make_config):
    model = {"num_hidden_layers": 1}
    return lambda **settings: make_config(model, **{"num_gpus": 0, "train_batch_size": 8, **settings})


def plan_of(config) -> dict:
    return plan_lib.make_plan(config, TASKS["pretrain"])


def works_of(dtype: tf.DType, layerwise: bool) -> list[Work]:
    """Returns the kernels of the native norm and update of two variables, of which the second does not
    decay."""
    copied = dtype != tf.float32
    with tf.Graph().as_default() as graph:
        handles = [tf.compat.v1.placeholder(tf.resource, []) for _ in range(7)]
        gradients = [tf.compat.v1.placeholder(dtype, shape) for shape in (SHAPE, (40,))]
        operations = StandIn(dtype)
        operations.bert_global_norm(tensors=gradients)
        operations.bert_update(
            weights=handles[:2], m=handles[2:4], v=handles[4:6], copies=handles[6:] if copied else [],
            gradients=gradients, step=tf.ones([7]), layerwise=layerwise, decays=[True, False],
            copy_of=[0] if copied else [], beta_1=0.9,
        )  # fmt: skip
        flat = FlatGraph()
        flat.add(graph, graph.get_operations(), {})
    return [node.work for node in flat.nodes if node.work.kernel.startswith("native")]


@pytest.mark.parametrize("dtype,name", [(tf.float32, "fp32"), (tf.bfloat16, "bf16")])
def test_each_number_is_read_and_written_once_and_lamb_reads_and_writes_twice(dtype, name):
    step, copy = 7 * 4, NUMBERS * 2 * (name == "bf16")
    own = {True: 40, False: 28}
    narrow = 0 if name == "fp32" else 2
    norm, *updates = works_of(dtype, layerwise=True)
    assert norm == Work("native norm", "fp32", (NUMBERS + 40) * dtype.size + 4)
    lamb, adamw = updates
    assert lamb == Work("native lamb", name, NUMBERS * (own[True] - narrow) + copy + step)
    assert adamw == Work("native adamw", name, 40 * (own[False] - narrow) + step)
    _, both = works_of(dtype, layerwise=False)
    assert both == Work("native adamw", name, (NUMBERS + 40) * (own[False] - narrow) + copy + step)


def test_what_is_measured_of_tensorflows_update_has_the_bytes_of_what_is_planned():
    cases = {case.work.kernel: case.work.bytes for case in machine_kernels.of_weights(list(SHAPE))}
    assert cases["compiled update adamw"] == pytest.approx(28 * NUMBERS, abs=30)
    # LAMB's direction is written for the step, weights are read and not written.
    assert cases["compiled lamb direction"] == pytest.approx(28 * NUMBERS, abs=30)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_is_measured_has_the_names_and_bytes_of_what_is_planned(dtype, monkeypatch):
    monkeypatch.setattr(native_cases, "_SHAPES", (SHAPE,))
    cases = native_cases.native_cases(dtype)
    per_number = {"native norm": 4, "native adamw": 28, "native lamb": 40}
    for case in cases:
        case.run()
        narrow = {"native norm": 2}.get(case.work.kernel, 0) * (dtype != "fp32")
        assert case.work.bytes == pytest.approx((per_number[case.work.kernel] - narrow) * NUMBERS, abs=30)
        assert case.work.dtype == ("fp32" if case.work.kernel == "native norm" else dtype)
    assert [case.work.kernel for case in cases] == list(per_number)
    monkeypatch.setattr(library, "loaded", lambda: (_ for _ in ()).throw(library.NotBuilt("none")))
    assert native_cases.native_cases(dtype) == []


def measured(tmp_path, native_secs: float) -> str:
    """Returns the file of a machine whose native update takes so long for a byte."""
    works = [product(100), product(100, "bf16"), Work(kernels.ELEMENTWISE, "fp32", 1000)]
    rates = [Rate(work, 1e-5, 2.0) for work in works]
    rates += [
        Rate(Work(f"native {name}", "fp32", 1000), 1000 * native_secs, 2.0) for name in ("adamw", "lamb")
    ]
    here: machine.Machine = made(*rates, all_reduce=1.5)
    return file_of(here, tmp_path / f"{native_secs}.json")


@pytest.mark.parametrize("kind,bytes_", [("adamw", 28), pytest.param("lamb", 40, marks=pytest.mark.slow)])
def test_the_update_of_a_plan_is_that_of_the_run(make_config, tmp_path, monkeypatch, kind, bytes_):
    def secs(**settings) -> float:
        return plan_lib.predict_update(
            make_config(optimizer_type=kind, machine_file=measured(tmp_path, 1e-3), **settings),
            TASKS["pretrain"],
        )

    parameters = plan_of(make_config())["parameters"]
    # LAMB's vectors, which do not decay, are read once.
    assert secs() == pytest.approx(1e-3 * bytes_ * parameters, rel=0.05)
    assert secs(update_kernel="tensorflow") < secs() / 10
    monkeypatch.setenv("CXX", "/none")
    assert secs() == secs(update_kernel="tensorflow")
    assert secs(update_kernel="native") > 10 * secs()


def test_copies_and_narrow_gradients_of_a_plan_are_those_of_the_run(make_config):
    sizes = {}
    for name, settings in (
        ("fp32", {}),
        ("bf16", dict(dtype="bf16")),
        ("two", dict(dtype="bf16", **replicas(2))),
        ("added up", dict(dtype="bf16", num_accumulation_steps=2)),
        ("tensorflow", dict(dtype="bf16", update_kernel="tensorflow")),
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
    table = (
        2
        * TASKS["pretrain"](make_config()).build_model().encoder.stages()[0].variables[0].shape.num_elements()
    )
    assert sizes["bf16"]["gradients"] == parameters - copied + table


@pytest.mark.parametrize(
    "settings,device,expected",
    [
        ({}, "CPU", True),
        ({}, "GPU", False),
        (dict(plan_device="v100-16gb"), "CPU", False),
        (dict(plan_device="16GB"), "CPU", True),
        (dict(enable_xla=True), "CPU", False),
        (dict(distribution_strategy="tpu", num_tpu_cores=8, num_gpus=None), "CPU", False),
    ],
)
def test_a_plan_takes_the_native_update_on_cpus(make_config, settings, device, expected):
    assert native_update.is_taken(make_config(plan=True, **settings), device) == expected


@pytest.mark.parametrize("dtype,size", [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_the_all_reduce_of_a_plan_is_of_the_bytes_that_are_sent(make_config, tmp_path, dtype, size):
    config = make_config(
        **replicas(2), allreduce_dtype=dtype, loss_scale="dynamic", plan=True, plan_tflops=1e-6,
        plan_gbps=1e-3, plan_hosts="1,2", machine_file=measured(tmp_path, 1e-9),
    )  # fmt: skip
    plan = plan_of(config)
    sent = size * plan["parameters"]
    assert plan["all_reduce_bytes"] == plan["scaling"]["gradient_bytes"] == sent
    assert plan["expected"]["all_reduce_secs"] == pytest.approx(sent / 1e6)
    assert plan["predicted"]["parts"]["all-reduce"] == pytest.approx(sent / 1.5e9)
    assert json.loads(json.dumps(plan)) == plan
