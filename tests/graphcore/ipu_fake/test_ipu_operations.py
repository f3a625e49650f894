"""The small modules of the fake: operations, application files, export, popdist."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.graphcore import ipu_fake
from tests.graphcore.ipu_fake.two_stages import TwoStages, configure, rows

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.delenv("TF_POPLAR_FLAGS", raising=False)
    with ipu_fake.installed(ipus=8) as made:
        yield made


@pytest.fixture
def ipu():
    from tensorflow.python import ipu

    return ipu


def test_operations_compute_what_tensorflow_computes(ipu):
    a, b = tf.random.stateless_normal([4, 6], [1, 2]), tf.random.stateless_normal([6, 4], [3, 4])
    for dimension, factor in (("a_columns", 4), ("a_rows_b_columns", 3), ("b_rows", 2)):
        found = ipu.math_ops.serialized_matmul(a, b, factor, dimension)
        np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-6)
    found = ipu.math_ops.serialized_matmul(a, a, 2, "b_rows", transpose_b=True)
    np.testing.assert_allclose(found, a @ tf.transpose(a), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ipu.nn_ops.gelu(a), tf.nn.gelu(a, approximate=True), rtol=1e-5, atol=1e-6)
    ids = tf.constant([[1, 0]])
    np.testing.assert_array_equal(
        ipu.embedding_ops.embedding_lookup(a, ids, serialization_factor=2), [[a[1], a[0]]]
    )
    assert ipu.outlined_function(lambda x: 2 * x)(3) == 6
    assert ipu.outlined_function(name="f")(lambda x: 2 * x)(3) == 6


def test_operations_refuse(ipu):
    a = tf.ones([4, 6])
    product = ipu.math_ops.serialized_matmul
    for factor, dimension in ((3, "a_columns"), (4, "a_rows_b_columns"), (5, "b_rows"), (0, "b_rows")):
        with pytest.raises(ValueError, match="serialization_factor"):
            product(a, tf.ones([6, 4]), factor, dimension)
    with pytest.raises(ValueError, match="serialization_dimension=rows"):
        product(a, tf.ones([6, 4]), 2, "rows")
    with pytest.raises(ValueError, match="rank of 2"):
        product(a, tf.ones([6]), 2, "b_rows")
    lookup = ipu.embedding_ops.embedding_lookup
    with pytest.raises(ValueError, match="must divide"):
        lookup(a, tf.constant([1]), serialization_factor=3)
    with pytest.raises(TypeError, match="int32"):
        lookup(a, tf.constant([1], tf.int64))
    with pytest.raises(TypeError, match="one tensor"):
        lookup([a], tf.constant([1]))
    with pytest.raises(ValueError, match="at least one tensor"):
        ipu.outlined_function(lambda: None)()


def test_seeds_are_noted(ipu, machine):
    configure()
    ipu.utils.reset_ipu_seed(42, experimental_identical_replicas=True)
    assert machine.seeds == [(42, "/device:IPU:0", True)]
    with pytest.raises(TypeError, match="must be an int"):
        ipu.utils.reset_ipu_seed("42")


def compiled(small, path, **arguments):
    compile_it = small.ipu.application_compile_op.experimental_application_compile_op
    return compile_it(small.program().python_function, output_path=str(path), **arguments)


def wanted_of(small, x, y):
    return small.second(*small.first(x, y)).numpy()


@pytest.mark.parametrize("form", [list, tuple, dict])
def test_an_application_runs_apart_from_its_program(tmp_path, form):
    small = TwoStages(configure())
    path = compiled(small, tmp_path / "model.poplar_exec").numpy().decode()
    runtime, (x, y) = small.ipu.embedded_runtime, rows(2)
    doubled = {"w0": 2 * small.weights[0], "w1": 2 * small.weights[1]}
    context = runtime.embedded_runtime_start(
        path, doubled if form is dict else form(doubled.values()), "engine"
    )
    found = runtime.embedded_runtime_call([x, y], context)
    for weight in small.weights:
        weight.assign(2 * weight)
    np.testing.assert_allclose(found[0], wanted_of(small, x, y), rtol=1e-5)
    assert context.output_types() == [tf.float32] and context.name() == "engine"
    assert [each.name for each in context.signature().inputs] == ["w0", "w1"]


def test_frozen_variables_and_several_threads(tmp_path):
    small = TwoStages(configure())
    path = compiled(small, tmp_path / "model.poplar_exec", freeze_variables=True)
    runtime, (x, y) = small.ipu.embedded_runtime, rows(2)
    wanted, found = wanted_of(small, x, y), []

    @tf.function
    def call(x, y):
        context = runtime.embedded_runtime_start(path.numpy().decode(), [], "engine", timeout=100)
        return runtime.embedded_runtime_call([x, y], context)

    small.weights[0].assign(tf.zeros([3, 4]))
    threads = [threading.Thread(target=lambda: found.append(call(x, y)[0].numpy())) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    np.testing.assert_allclose(found, [wanted] * 4, rtol=1e-5)


def test_inputs_of_an_application(tmp_path):
    small = TwoStages(configure())
    path = compiled(small, tmp_path / "model.poplar_exec")
    start, call = (
        small.ipu.embedded_runtime.embedded_runtime_start,
        small.ipu.embedded_runtime.embedded_runtime_call,
    )
    first, second = [tf.constant(each) for each in small.values()]
    for inputs, message in (
        ([first], "expects 2 inputs, but 1"),
        ([second, first], "Mismatched input shape at position 0"),
        ([tf.cast(first, tf.float16), second], "Mismatched input dtype"),
        ({"w0": first}, "'w1'"),
        (3, "to be a list"),
    ):
        with pytest.raises(Exception, match=message):
            start(path, inputs, "engine")
    with pytest.raises(ValueError, match="timeout"):
        start(path, [first, second], "engine", timeout=0)
    context, (x, y) = start(path, [first, second], "engine"), rows(2)
    with pytest.raises(Exception, match="expects 2 inputs, but 1"):
        call([x], context)
    with pytest.raises(Exception, match="Mismatched input shape"):
        call([x[:1], y], context)
    with pytest.raises(TypeError, match="Mismatched input dtype"):
        call([x.astype(np.float16), y], context)
    with pytest.raises(NotImplementedError):
        small.ipu.embedded_runtime.embedded_runtime_stop(context)


def test_files_and_engines_of_applications(tmp_path):
    small = TwoStages(configure())
    other = tmp_path / "text.poplar_exec"
    other.write_text("nothing", encoding="utf-8")
    start = small.ipu.embedded_runtime.embedded_runtime_start
    with pytest.raises(Exception, match="not a TensorFlow Poplar binary"):
        start(str(other), [], "engine")
    start(compiled(small, tmp_path / "one.poplar_exec", freeze_variables=True), [], "engine")
    small.weights[0].assign(tf.zeros([3, 4]))
    with pytest.raises(Exception, match="another executable"):
        start(compiled(small, tmp_path / "two.poplar_exec", freeze_variables=True), [], "engine")


def test_applications_do_not_train(tmp_path):
    small = TwoStages(configure())
    function = small.optimizer_function(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    program = small.program(optimizer_function=function).python_function
    with pytest.raises(NotImplementedError, match="inference"):
        small.ipu.application_compile_op.experimental_application_compile_op(program)


def test_export(tmp_path):
    small, spec = TwoStages(configure()), [tf.TensorSpec([2, 3]), tf.TensorSpec([2, 1])]
    serving, (x, y) = small.ipu.serving, rows(2)
    stages, folder = [small.first, small.second], str(tmp_path / "model")
    serving.export_pipeline(stages, folder, 4, predict_step_signature=spec)
    served = tf.saved_model.load(folder).signatures["serving_default"](x=tf.constant(x), y=tf.constant(y))
    np.testing.assert_allclose(served["output_0"], wanted_of(small, x, y), rtol=1e-5)
    assert list((tmp_path / "model" / "assets").glob("*.poplar_exec"))
    with pytest.raises(ValueError, match="not empty"):
        serving.export_pipeline(stages, folder, 4, predict_step_signature=spec)
    step = lambda x, y: small.second(*small.first(x, y))
    halved = dict(postprocessing_step=lambda loss: loss / 2, output_names=["half"], purge_export_dir=True)
    serving.export_single_step(step, folder, 4, predict_step_signature=spec, **halved)
    served = tf.saved_model.load(folder).signatures["serving_default"](x=tf.constant(x), y=tf.constant(y))
    np.testing.assert_allclose(served["half"], wanted_of(small, x, y) / 2, rtol=1e-5)


def test_export_refuses(tmp_path):
    small, spec = TwoStages(configure()), [tf.TensorSpec([2, 3]), tf.TensorSpec([2, 1])]
    export = lambda **given: small.ipu.serving.export_pipeline(
        [small.first, small.second], str(tmp_path / "model"), 4, **given
    )
    with pytest.raises(ValueError, match="Both"):
        export(predict_step_signature=spec, input_dataset=tf.data.Dataset.range(1))
    with pytest.raises(ValueError, match="Missing"):
        export()
    with pytest.raises(ValueError, match="Length"):
        export(predict_step_signature=spec[:1])
    with pytest.raises(TypeError, match="tuple or a list"):
        export(predict_step_signature=spec[0])
    with pytest.raises(TypeError, match="instance of tf.Dataset"):
        export(input_dataset=[1])


def under_poprun(monkeypatch, total=2, local=2, offset=0):
    values = dict(
        NUM_TOTAL_REPLICAS=total,
        NUM_IPUS_PER_REPLICA=2,
        NUM_LOCAL_REPLICAS=local,
        UNIFORM_REPLICAS_PER_INSTANCE=1,
        REPLICA_INDEX_OFFSET=offset,
        LOCAL_INSTANCE_INDEX=0,
    )
    for name, value in values.items():
        monkeypatch.setenv(f"POPDIST_{name}", str(value))


def poprun_strategy(ipu, ipus):
    configured = ipu.config.IPUConfig()
    configured.auto_select_ipus = ipus
    import popdist.tensorflow

    popdist.tensorflow.set_ipu_config(configured, 2, configure_device=False)
    configured.configure_ipu_system()
    return ipu.distributed.popdist_strategy.PopDistStrategy(), configured


def test_without_poprun(ipu):
    import popdist

    configure()
    assert not popdist.isPopdistEnvSet()
    with pytest.raises(RuntimeError, match="poprun"):
        popdist.getNumTotalReplicas()
    with pytest.raises(RuntimeError, match="poprun"):
        ipu.distributed.popdist_strategy.PopDistStrategy()


def test_under_poprun(ipu, monkeypatch):
    import popdist
    import popdist.tensorflow

    under_poprun(monkeypatch, total=8, local=2, offset=4)
    assert popdist.isPopdistEnvSet()
    found = popdist.getNumTotalReplicas(), popdist.getNumInstances(), popdist.getInstanceIndex()
    assert found == (8, 4, 2) and popdist.getDeviceId() == 12  # 8 single ones and 4 pairs come first
    configured = ipu.config.IPUConfig()
    popdist.tensorflow.set_ipu_config(configured, 2)
    part = configured.experimental.multi_replica_distribution
    assert (part.process_count, part.process_index, configured.select_ipus) == (4, 2, 12)
    with pytest.raises(ValueError, match="--ipus-per-replica 2"):
        popdist.tensorflow.set_ipu_config(configured, 4)
    with pytest.raises(TypeError, match="IPUConfig"):
        popdist.tensorflow.set_ipu_config({}, 2)


def test_a_program_under_poprun(ipu, monkeypatch):
    under_poprun(monkeypatch)
    strategy, _ = poprun_strategy(ipu, 4)
    assert strategy.num_replicas_in_sync == 2
    small = TwoStages(strategy)
    plain = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    given = dict(optimizer_function=small.optimizer_function(plain))
    with pytest.raises(NotImplementedError, match="replicated_optimizer_state_sharding"):
        strategy.run(small.program(replicated_optimizer_state_sharding=True, **given))
    small.run(small.program(**given))  # the strategy adds the gradients up
    assert small.outfeed.dequeue()[0].shape == [4, 2]


def test_other_replicas_than_poprun_was_told(ipu, monkeypatch):
    under_poprun(monkeypatch)
    small = TwoStages(poprun_strategy(ipu, 8)[0])
    with pytest.raises(RuntimeError, match="has 4 replicas, but poprun gave this instance 2"):
        small.run(small.program())
    under_poprun(monkeypatch, total=4)
    small = TwoStages(poprun_strategy(ipu, 4)[0])
    with pytest.raises(NotImplementedError, match="one instance"):
        small.run(small.program())
