"""Two GPUs with NCCL train the same weights as one with their batches together."""

import numpy as np
import pytest
import tensorflow as tf

from official.data.pipeline import TrainingOrder
from official.distribution import strategy as strategy_lib
from official.training import feeding
from tests.fixtures import TINY, make_records, write_records
from tests.gpu.devices import full_float32, pair_settings, small_config
from tests.gpu.steps import make_step

pytestmark = pytest.mark.gpu

STEPS = 5


@pytest.fixture
def settings(tmp_path, schema) -> dict:
    """Returns the settings of a run on 40 records, without dropout, whose masks are each replica's own."""
    for number in range(2):
        write_records(tmp_path / f"part-{number}", make_records(20, seed=number, schema=schema))
    files = dict(use_synthetic_data=False, input_files=str(tmp_path / "part-*"))
    return dict(model=TINY, max_seq_length=16, max_predictions_per_seq=3, **files)


def trained(**settings) -> tuple[int, dict[str, np.ndarray]]:
    """Returns the number of replicas, and the weights after some steps."""
    with full_float32():
        step = make_step(small_config(**settings))
    step.task.find_data()
    order = TrainingOrder(step.config.seed)
    batches = feeding.training_batches(step.task, step.plan, order, step.strategy)
    step.loop()(batches, tf.constant(STEPS), step.nothing())
    return len(strategy_lib.device_names(step.strategy)), step.weights()


@pytest.mark.parametrize("explicit", [False, True], ids=["", "explicit"])
def test_two_devices_are_one_with_twice_the_batch(device, settings, explicit):
    pair = {**settings, **pair_settings(device), "explicit_allreduce": explicit}
    replicas, ours = trained(**pair)
    _, expected = trained(**{**settings, **device.settings})
    assert replicas == 2
    for name, weights in expected.items():
        # The gradient of a key's bias is rounding alone, which LAMB makes large.
        most = 0.2 if "key/bias" in name else 1e-5
        np.testing.assert_allclose(ours[name], weights, rtol=1e-4, atol=most, err_msg=name)
