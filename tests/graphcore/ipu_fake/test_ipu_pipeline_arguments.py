"""What a pipeline of the fake refuses: wrong arguments, and what its schedules cannot run."""

import pytest
import tensorflow as tf

from tests.graphcore import ipu_fake
from tests.graphcore.ipu_fake.two_stages import TwoStages, configure

pytestmark = pytest.mark.nightly

SGD = tf.compat.v1.train.GradientDescentOptimizer


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.delenv("TF_POPLAR_FLAGS", raising=False)
    with ipu_fake.installed(ipus=4) as made:
        yield made


@pytest.fixture
def small():
    return TwoStages(configure())


def refused(small, error, message, **arguments):
    with pytest.raises(error, match=message):
        small.run(small.program(**arguments))


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"gradient_accumulation_count": None}, ValueError, "must be specified"),
        ({"gradient_accumulation_count": -1}, ValueError, ">= 0"),
        ({"gradient_accumulation_count": 2**31}, ValueError, "max int32"),
        ({"repeat_count": 0}, ValueError, "repeat_count"),
        ({"computational_stages": [abs]}, ValueError, "at least two"),
        ({"computational_stages": abs}, TypeError, "list or a tuple"),
        ({"computational_stages": [abs, 1]}, TypeError, "not a function"),
        ({"device_mapping": [0]}, ValueError, "1 mappings != 2 stages"),
        ({"device_mapping": {0: 0, 1: 1}}, TypeError, "list or a tuple"),
        ({"device_mapping": [0, -1]}, TypeError, "ints from 0"),
        ({"device_mapping": [0, [1, 2]]}, ValueError, "several IPUs"),
        ({"pipeline_schedule": 1}, TypeError, "pipeline_schedule"),
        ({"recomputation_mode": "Auto"}, TypeError, "recomputation_mode"),
        ({"infeed_queue": 3}, TypeError, "infeed_queue"),
        ({"outfeed_queue": 3}, TypeError, "outfeed_queue"),
        ({"outfeed_queue": None}, ValueError, "no outfeed_queue"),
        ({"continuous_weight_updates": True}, NotImplementedError, "Continuous"),
        ({"outfeed_loss": True}, ValueError, "optimizer_function"),
        ({"outfeed_mask": [True]}, ValueError, "optimizer_function"),
        ({"accumulate_outfeed": True, "outfeed_queue": None}, ValueError, "outfeed_queue"),
        ({"offload_activations": "yes"}, TypeError, "offload_activations"),
        ({"forward_propagation_stages_poplar_options": {}}, TypeError, "list or a tuple"),
        ({"forward_propagation_stages_poplar_options": []}, ValueError, "length 2"),
        ({"forward_propagation_stages_poplar_options": [{}, {}]}, TypeError, "PipelineStageOptions"),
        ({"batch_serialization_iterations": 2, "reduction_method": "mean"}, ValueError, "SUM"),
        ({"batch_serialization_iterations": 2, "device_mapping": [0, 1]}, NotImplementedError, "single IPU"),
    ],
)
def test_arguments(small, arguments, error, message):
    refused(small, error, message, **arguments)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"reduction_method": "median"}, ValueError, "Cannot parse median"),
        ({"outfeed_loss": True, "outfeed_mask": [True]}, ValueError, "Only one of"),
        ({"outfeed_loss": True, "outfeed_queue": None}, ValueError, "outfeed_queue"),
        ({"outfeed_mask": [True, False]}, ValueError, "match in size"),
        ({"backward_propagation_stages_poplar_options": [None, None]}, TypeError, "PipelineStageOptions"),
        ({"weight_update_poplar_options": {}}, TypeError, "weight_update_poplar_options"),
        ({"optimizer_function": lambda loss: loss}, TypeError, "OptimizerFunctionOutput"),
    ],
)
def test_arguments_of_training(small, arguments, error, message):
    given = {"optimizer_function": small.optimizer_function(SGD(0.1)), **arguments}
    refused(small, error, message, **given)


def schedule_of(small, name):
    return small.ipu.pipelining_ops.PipelineSchedule[name]


@pytest.mark.parametrize(
    "schedule, training, wrong, right",
    [
        ("Grouped", True, [0, 2, 6], 4),
        ("Grouped", False, [0, 1, 3], 2),
        ("Interleaved", True, [1, 3], 2),
        ("Interleaved", False, [3], 2),
        ("Sequential", True, [0], 1),
    ],
)
def test_micro_batches_of_each_schedule(small, schedule, training, wrong, right):
    given = {"pipeline_schedule": schedule_of(small, schedule)}
    if training:
        given["optimizer_function"] = small.optimizer_function(SGD(0.1))
    for count in wrong:
        with pytest.raises(tf.errors.FailedPreconditionError, match="multiple of"):
            small.run(small.program(count, **given))
    small.run(small.program(right, **given))


def test_recomputation_modes_of_each_schedule():
    small = TwoStages(configure(allow_recompute=True))
    modes = small.ipu.pipelining_ops.RecomputationMode
    function = small.optimizer_function(SGD(0.1))
    for schedule, mode in (
        ("Sequential", modes.RecomputeThenBackpropagate),
        ("Interleaved", modes.RecomputeAndBackpropagateInterleaved),
    ):
        given = dict(pipeline_schedule=schedule_of(small, schedule), optimizer_function=function)
        with pytest.raises(tf.errors.FailedPreconditionError, match="not supported by the schedule"):
            small.run(small.program(4, recomputation_mode=mode, **given))


def test_ipus_of_a_pipeline(small):
    with pytest.raises(tf.errors.InvalidArgumentError, match="needs 4 IPUs, but 2"):
        small.run(small.program(4, device_mapping=[0, 2]))


def test_a_variable_of_two_stages_needs_one_ipu(small):
    def second(hidden, y):
        return small.second(hidden + tf.reduce_sum(small.weights[0]), y)

    stages = dict(computational_stages=[small.first, second])
    with pytest.raises(tf.errors.UnimplementedError, match="same IPU"):
        small.run(small.program(4, **stages))
    small.run(small.program(4, device_mapping=[1, 1], **stages))


def test_stages_capture_nothing_but_variables(small):
    many = tf.ones([200])  # TensorFlow makes constants of fewer
    stages = [lambda x, y: (tf.reduce_sum(many) + x, y), lambda x, y: tf.reduce_sum(x) + tf.reduce_sum(y)]
    refused(small, ValueError, "Trying to capture", computational_stages=stages)

    @tf.function(jit_compile=True)
    def program():
        scale = small.weights[0] * 2
        stages = [lambda x, y: (x @ scale, y), small.second]
        queues = dict(infeed_queue=small.infeed, outfeed_queue=small.outfeed)
        small.ipu.pipelining_ops.pipeline(stages, 4, **queues)

    with pytest.raises(ValueError, match="Trying to capture"):
        small.run(program)


def test_stages_create_no_variables(small):
    def first(x, y):
        return x @ tf.Variable(tf.ones([3, 4]), name="late"), y

    refused(small, ValueError, "creates the variable late", computational_stages=[first, small.second])


@pytest.mark.parametrize(
    "stage, message",
    [
        (lambda x, y: (tf.py_function(tf.abs, [x], tf.float32), y), "Python on the host"),
        (lambda x, y: (tf.cast(x, tf.float64), y), "float64"),
        (lambda x, y: (tf.strings.as_string(x), y), "string"),
        (lambda x, y: (tf.boolean_mask(x, x > 0), y), "depends on values"),
        (lambda x, y: (tf.cond(y[0, 0] > 0, lambda: tf.where(x > 0), lambda: tf.where(x < 0)), y), "depends"),
    ],
)
def test_stages_that_cannot_be_compiled(small, stage, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        small.run(small.program(4, computational_stages=[stage, small.second]))


def test_stages_give_flat_outputs(small):
    stages = [lambda x, y: (x, (y, y)), small.second]
    refused(small, TypeError, "flat list", computational_stages=stages)


def test_offloading_needs_remote_buffers():
    from tensorflow.python import ipu

    kinds = ipu.config.DeviceConnectionType
    small = TwoStages(configure(2, device_connection__type=kinds.ON_DEMAND))
    given = dict(optimizer_function=small.optimizer_function(SGD(0.1)), offload_weight_update_variables=True)
    with pytest.raises(tf.errors.FailedPreconditionError, match="enable_remote_buffers"):
        small.run(small.program(4, **given))
    buffers = dict(device_connection__type=kinds.ON_DEMAND, device_connection__enable_remote_buffers=True)
    small = TwoStages(configure(2, **buffers))
    given["optimizer_function"] = small.optimizer_function(SGD(0.1))
    small.run(small.program(4, **given))


def bytes_needed(machine, offload):
    small = TwoStages(configure())
    adam = tf.compat.v1.train.AdamOptimizer(0.1)
    function = small.optimizer_function(adam)
    small.run(small.program(4, optimizer_function=function, offload_weight_update_variables=offload))
    return machine.compiled[-1].bytes_per_ipu


def test_memory_of_each_ipu(machine):
    weights = {0: 3 * 4 * 4, 1: 4 * 4}
    powers = 2 * 4  # of Adam: one number each, on the first IPU
    assert bytes_needed(machine, True) == {0: 2 * weights[0], 1: 2 * weights[1]}
    assert bytes_needed(machine, False) == {0: 4 * weights[0] + powers, 1: 4 * weights[1]}


def test_what_does_not_fit(machine):
    machine.bytes_per_ipu = 150
    bytes_needed(machine, True)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="Out of memory on IPU 0: 200 bytes"):
        bytes_needed(machine, False)
