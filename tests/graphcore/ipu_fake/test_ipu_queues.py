"""Infeed and outfeed queues of the fake."""

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


def infeed(*args, **kwargs):
    from tensorflow.python.ipu import ipu_infeed_queue

    return ipu_infeed_queue.IPUInfeedQueue(*args, **kwargs)


def outfeed(*args, **kwargs):
    from tensorflow.python.ipu import ipu_outfeed_queue

    return ipu_outfeed_queue.IPUOutfeedQueue(*args, **kwargs)


NUMBERS = tf.data.Dataset.range(10)


@pytest.mark.parametrize(
    "dataset, message",
    [
        (NUMBERS.batch(3), "drop_remainder"),
        (NUMBERS.map(lambda x: (x, (x, x))), "Nested"),
        (NUMBERS.map(lambda x: {"a": {"b": x}}), "Nested"),
        (NUMBERS.map(tf.strings.as_string), "string"),
        (NUMBERS.map(lambda x: tf.cast(x, tf.float64)), "float64"),
    ],
)
def test_elements_must_be_flat_with_known_shapes(dataset, message):
    with pytest.raises(ValueError, match=message):
        infeed(dataset)


def test_depth_and_ordinal():
    for depth in (0, -1, 256):
        with pytest.raises(ValueError, match="prefetch_depth"):
            infeed(NUMBERS, prefetch_depth=depth)
    infeed(NUMBERS, prefetch_depth=255)
    for ordinal in (-1, "0"):
        with pytest.raises(ValueError, match="ordinal"):
            infeed(NUMBERS, device_ordinal=ordinal)
        with pytest.raises(ValueError, match="ordinal"):
            outfeed(device_ordinal=ordinal)
    with pytest.raises(ValueError, match="outfeed_mode"):
        outfeed("all")
    with pytest.raises(ValueError, match="buffer_depth"):
        outfeed(buffer_depth=0)


def test_the_initializer_is_read_once_and_get_next_is_gone():
    queue = infeed(NUMBERS.map(lambda x: (x, x)))
    assert queue.number_of_tuple_elements == 2 and not queue.dequeued
    queue.initializer
    with pytest.raises(ValueError, match="only be accessed once"):
        queue.initializer
    with pytest.raises(ValueError, match="obsolete"):
        queue.get_next()
    queue.deleter
    with pytest.raises(tf.errors.NotFoundError):
        queue.deleter


def test_a_program_needs_an_initialized_infeed():
    small = TwoStages(configure())
    with pytest.raises(RuntimeError, match="not initialized"):
        small.strategy.run(small.program())
    small.infeed.initializer
    small.infeed.deleter
    with pytest.raises(RuntimeError, match="deleted"):
        small.strategy.run(small.program())


def test_an_infeed_can_run_out():
    small = TwoStages(configure(), num_batches=7)
    with pytest.raises(tf.errors.OutOfRangeError):
        small.run(small.program(), times=2)


def test_dequeue_before_a_program_fills_it():
    with pytest.raises(ValueError, match="has not been enqueued"):
        outfeed().dequeue(wait_for_completion=True)


def test_all_elements_come_once():
    small = TwoStages(configure())
    small.run(small.program(4), times=2)
    assert small.outfeed.dequeue().shape == [8]
    assert small.outfeed.dequeue().shape == [0]


def test_the_last_element_alone():
    from tensorflow.python import ipu

    small = TwoStages(configure(), outfeed_mode=ipu.ipu_outfeed_queue.IPUOutfeedMode.LAST)
    every = TwoStages(configure())
    small.run(small.program(4))
    every.run(every.program(4))
    assert every.outfeed.dequeue()[-1] == small.outfeed.dequeue()
    with pytest.raises(tf.errors.OpError, match="no element"):
        small.outfeed.dequeue()
    with pytest.raises(ValueError, match="mode IPUOutfeedMode.ALL"):
        list(small.outfeed)


def test_iteration():
    small = TwoStages(configure())
    small.run(small.program(4))
    assert [each.shape for each in small.outfeed] == [[]] * 4
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="eager"):
        list(small.outfeed)


def test_an_outfeed_serves_one_pipeline_of_a_program():
    small = TwoStages(configure())
    queues = dict(infeed_queue=small.infeed, outfeed_queue=small.outfeed)

    @tf.function(jit_compile=True)
    def program():
        for _ in range(2):
            small.ipu.pipelining_ops.pipeline([small.first, small.second], 2, **queues)

    with pytest.raises(ValueError, match="only be enqueued once"):
        small.run(program)


def test_synthetic_data_and_the_last_element_exclude_each_other(monkeypatch):
    from tensorflow.python import ipu

    monkeypatch.setenv("TF_POPLAR_FLAGS", "--use_synthetic_data")
    small = TwoStages(configure(), outfeed_mode=ipu.ipu_outfeed_queue.IPUOutfeedMode.LAST)
    with pytest.raises(ValueError, match="Synthetic data"):
        small.run(small.program(4))


def test_queues_of_another_device():
    small = TwoStages(configure([2, 2]))
    small.infeed = infeed(NUMBERS, device_ordinal=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="IPU:1"):
        small.run(small.program(4))
