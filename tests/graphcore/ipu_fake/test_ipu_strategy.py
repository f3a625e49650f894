"""The strategy of the fake: what it runs, and in what order things must be made."""

import pytest
import tensorflow as tf

from tests.graphcore import ipu_fake
from tests.graphcore.ipu_fake.two_stages import TwoStages, configure

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.delenv("TF_POPLAR_FLAGS", raising=False)
    with ipu_fake.installed(ipus=4) as made:
        yield made


def test_the_configuration_comes_first():
    from tensorflow.python import ipu

    with pytest.raises(RuntimeError, match="not been configured"):
        ipu.ipu_strategy.IPUStrategy()
    with pytest.raises(RuntimeError, match="not been configured"):
        ipu.utils.reset_ipu_seed(1)
    strategy = configure()
    assert strategy.num_replicas_in_sync == 1 and strategy.supports_loss_scaling
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy


def test_only_a_compiled_function_runs():
    strategy = configure()
    with pytest.raises(ValueError, match="does not support eager"):
        strategy.run(lambda: tf.constant(1))
    with pytest.raises(ValueError, match="jit_compile"):
        strategy.run(tf.function(lambda: tf.constant(1)))
    with pytest.raises(RuntimeError, match="Use `run`"):
        strategy.experimental_run_v2(lambda: None)
    with pytest.raises(ValueError, match="not an IPU device"):
        type(strategy)("/device:GPU:0")
    assert strategy.run(tf.function(lambda x: x + 1, jit_compile=True), [tf.constant(2)]) == 3


def test_a_pipeline_outside_of_a_program():
    small = TwoStages(configure())
    with pytest.raises(RuntimeError, match="strategy.run"):
        small.program().python_function()
    with pytest.raises(RuntimeError, match="strategy.run"):
        tf.function(small.program().python_function)()


@pytest.mark.parametrize(
    "body, error, message",
    [
        (lambda x: tf.cast(x, tf.float64), TypeError, "output: float64"),
        (lambda x: tf.strings.length(tf.strings.as_string(x)), tf.errors.InvalidArgumentError, "string"),
        (lambda x: tf.unique(x)[0], tf.errors.InvalidArgumentError, "output of the program"),
        (lambda x: tf.reduce_sum(tf.where(x > 1)), tf.errors.InvalidArgumentError, "depends on values"),
        (lambda x: tf.numpy_function(abs, [x], tf.float32), tf.errors.InvalidArgumentError, "program"),
    ],
)
def test_programs_that_cannot_be_compiled(body, error, message):
    strategy = configure()
    with pytest.raises(error, match=message):
        strategy.run(tf.function(body, jit_compile=True), [tf.constant([1.0, 2.0])])


def test_inputs_that_ipus_do_not_have():
    with pytest.raises(TypeError, match="input: float64"):
        configure().run(
            tf.function(lambda x: tf.cast(x, tf.int32), jit_compile=True), [tf.constant(1.0, tf.float64)]
        )


def test_variables_from_outside_of_the_scope():
    small = TwoStages(configure())
    small.weights[1] = tf.Variable(small.weights[1], name="outside")
    with pytest.raises(
        ValueError, match=r"stage 1 .* uses outside:0, which is no variable created in the scope"
    ):
        small.run(small.program())


def test_an_update_with_variables_from_outside_of_the_scope():
    small, steps = TwoStages(configure()), tf.Variable(0, name="steps")

    class Counting(tf.compat.v1.train.GradientDescentOptimizer):
        def apply_gradients(self, *args, **kwargs):
            steps.assign_add(1)
            return super().apply_gradients(*args, **kwargs)

    with pytest.raises(ValueError, match="apply_gradients uses .*created in the scope"):
        small.run(small.program(optimizer_function=small.optimizer_function(Counting(0.1))))


def test_compile_only_gives_zeros_and_changes_nothing(monkeypatch, tmp_path, machine):
    from tensorflow.python import ipu

    monkeypatch.setenv("TF_POPLAR_FLAGS", f"--executable_cache_path={tmp_path}")
    kinds = ipu.config.DeviceConnectionType
    strategy = configure(64, device_connection__type=kinds.PRE_COMPILE, device_connection__version="ipu2")
    small = TwoStages(strategy)
    before = small.values()
    opt = small.ipu.optimizers.CrossReplicaOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    program = small.program(4, optimizer_function=small.optimizer_function(opt))
    small.run(program)
    assert machine.compiled[-1].replicas == 32
    result = small.outfeed.dequeue()[0]
    assert result.shape == [4, 32] and not result.numpy().any()
    assert all((a == b).all() for a, b in zip(small.values(), before))
    assert len(list(tmp_path.glob("*.poplar_exec"))) == 1
    value = strategy.run(tf.function(lambda x: x + 1, jit_compile=True), [tf.constant(2)])
    assert value == 0


def test_an_executable_is_found_in_the_cache(monkeypatch, tmp_path, machine):
    monkeypatch.setenv("TF_POPLAR_FLAGS", f"--executable_cache_path={tmp_path}")
    for _ in range(2):
        small = TwoStages(configure())
        small.run(small.program())
    small = TwoStages(configure())
    small.run(small.program(8))
    assert [each.from_cache for each in machine.compiled] == [False, True, False]


def test_no_device_is_ever_attached():
    from tensorflow.python import ipu

    kinds = ipu.config.DeviceConnectionType
    small = TwoStages(configure(2, device_connection__type=kinds.NEVER, device_connection__version="ipu2"))
    with pytest.raises(RuntimeError, match="NEVER"):
        small.run(small.program())
