"""What a pipeline of the fake refuses: wrong arguments, and what its schedules cannot run."""

import pytest
import tensorflow as tf

from tests.graphcore import ipu_fake
from tests.graphcore.ipu_fake import pipeline_limits
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


def test_schedules_and_serialization(small):
    schedule = small.ipu.pipelining_ops.PipelineSchedule
    function = small.optimizer_function(SGD(0.1))
    grouped = dict(batch_serialization_iterations=2, pipeline_schedule=schedule.Grouped)
    refused(small, NotImplementedError, "Sequential", **grouped)
    together = dict(device_mapping=[0, 0], pipeline_schedule=schedule.Interleaved)
    refused(small, NotImplementedError, "multiple pipeline stages", optimizer_function=function, **together)


def test_parallel_stages(small):
    def twice(x, y):
        return x

    run = dict(computational_stages=[[small.first, twice], small.second])
    refused(small, ValueError, "must also be a list", device_mapping=[0, 1], **run)
    refused(small, ValueError, "same length", device_mapping=[[0], 1], **run)
    nested = dict(computational_stages=[[small.first, [twice]], small.second])
    refused(small, NotImplementedError, "nested levels", device_mapping=[[0, 1], 1], **nested)


def test_the_last_element_cannot_be_accumulated():
    from tensorflow.python import ipu

    small = TwoStages(configure(), outfeed_mode=ipu.ipu_outfeed_queue.IPUOutfeedMode.LAST)
    refused(small, ValueError, "IPUOutfeedMode ALL", accumulate_outfeed=True)


def test_options_of_a_stage_are_strings(small):
    options = small.ipu.pipelining_ops.PipelineStageOptions
    made = options(matmul_options={"availableMemoryProportion": "0.15"})
    assert made.matmul_options == {"availableMemoryProportion": "0.15"} and made.slice_options == {}
    for name in ("convolution_options", "matmul_options", "slice_options"):
        with pytest.raises(TypeError, match=f"{name} must be dictionary"):
            options(**{name: [1]})
        with pytest.raises(TypeError, match="must be strings"):
            options(**{name: {"availableMemoryProportion": 0.15}})


@pytest.mark.parametrize(
    "options",
    [{"availableMemoryProportion": "much"}, {"availableMemoryProportion": "0"}, {"partialsType": "fp16"}],
)
def test_values_of_options(options):
    from tensorflow.python import ipu

    small = TwoStages(configure(matmuls__poplar_options=options))
    with pytest.raises(tf.errors.InvalidArgumentError, match="matmuls.poplar_options"):
        small.run(small.program())
    small = TwoStages(configure())
    stages = [ipu.pipelining_ops.PipelineStageOptions(matmul_options=each) for each in ({}, options)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"options\[1\].matmul_options"):
        small.run(small.program(forward_propagation_stages_poplar_options=stages))
    update = ipu.pipelining_ops.PipelineStageOptions(slice_options=options)
    given = dict(optimizer_function=small.optimizer_function(SGD(0.1)), weight_update_poplar_options=update)
    with pytest.raises(tf.errors.InvalidArgumentError, match="weight_update_poplar_options"):
        small.run(small.program(**given))


@pytest.mark.parametrize(
    "text, message",
    [
        ("{autoReport.all: true}", "not JSON"),
        ('{"autoReport.all": true}', "object of strings"),
        ('{"autoreport.all": "true"}', "unrecognised option autoreport.all"),
    ],
)
def test_engine_options(small, monkeypatch, text, message):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all": "true", "target.hostSyncTimeout": "600"}')
    small.run(small.program())
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", text)
    with pytest.raises(RuntimeError, match=message):
        small.run(small.program(outfeed_queue=small.ipu.ipu_outfeed_queue.IPUOutfeedQueue()))


def test_what_an_optimizer_function_gives(small):
    made = small.ipu.pipelining_ops.OptimizerFunctionOutput
    loss, legacy = tf.constant(1.0), getattr(tf.keras.optimizers, "legacy", tf.keras.optimizers)
    with pytest.raises(TypeError, match="opt must be"):
        made(0.1, loss)
    with pytest.raises(TypeError, match="loss must be"):
        made(SGD(0.1), 1.0)
    with pytest.raises(ValueError, match="OptimizerV2"):
        made(legacy.SGD(0.1), loss, compute_gradients_kwargs={"var_list": []})
    with pytest.raises(ValueError, match="exclude"):
        made(legacy.SGD(0.1), loss, variables=small.weights, tape=tf.GradientTape())
    refused(small, RuntimeError, "No variables", optimizer_function=lambda loss: made(legacy.SGD(0.1), loss))


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


def test_rotations():
    for ipus in range(2, 9):
        mapping = list(range(ipus))
        assert (
            pipeline_limits.rotations(mapping + mapping[::-1]) == ipus == pipeline_limits.rotations(mapping)
        )
    assert pipeline_limits.rotations([0, 0, 1]) == 1  # any other rotation meets itself


def test_io_tiles_need_two_more():
    small = TwoStages(configure(2, io_tiles__num_io_tiles=32, io_tiles__place_ops_on_io_tiles=True))
    with pytest.raises(tf.errors.FailedPreconditionError, match="at least 4"):
        small.run(small.program(3))
    small.run(small.program(5))


def test_a_count_that_only_the_run_knows(small):
    queues = dict(infeed_queue=small.infeed, outfeed_queue=small.outfeed)

    @tf.function(jit_compile=True)
    def program(count):
        small.ipu.pipelining_ops.pipeline([small.first, small.second], count, **queues)

    small.infeed.initializer
    small.strategy.run(program, [tf.constant(4)])
    assert small.outfeed.dequeue().shape == [4]
    with pytest.raises(tf.errors.InvalidArgumentError):
        small.strategy.run(program, [tf.constant(3)])


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


def test_checkpoints_of_recomputation_need_the_grouped_schedule(machine):
    small = TwoStages(configure(allow_recompute=True))

    def first(x, y):
        return small.ipu.pipelining_ops.recomputation_checkpoint(small.first(x, y))

    given = dict(
        computational_stages=[first, small.second], optimizer_function=small.optimizer_function(SGD(0.1))
    )
    with pytest.raises(tf.errors.FailedPreconditionError, match="recomputation_checkpoint"):
        small.run(small.program(4, pipeline_schedule=schedule_of(small, "Interleaved"), **given))
    small.run(small.program(4, **given))
    assert machine.compiled[-1].settings["recompute"]


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
