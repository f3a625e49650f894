"""float16 on a GPU: an overflow skips the update and halves the scale, and training goes on."""

import numpy as np
import pytest
import tensorflow as tf

from tests.fixtures import TINY
from tests.gpu.devices import small_config
from tests.gpu.steps import make_step

pytestmark = pytest.mark.gpu

SIZES = dict(model=TINY, max_seq_length=16, max_predictions_per_seq=3)
TOO_LARGE = 2.0**30  # a loss times this is finite in float32; its gradients are not in float16


@pytest.mark.parametrize("xla", [False, True], ids=["", "xla"])
def test_an_overflow_skips_a_step_and_halves_the_scale(device, xla):
    step = make_step(
        small_config(**SIZES, dtype="fp16", loss_scale="dynamic", enable_xla=xla, **device.settings)
    )
    scale, before = step.state.loss_scale.scale, step.weights()
    scale.assign(TOO_LARGE)
    loop, batches = step.loop(), step.batches()
    first = loop(batches, tf.constant(1), step.nothing())
    assert int(first["skipped"]) == 1 and step.state.step == 1
    assert float(scale) == TOO_LARGE / 2
    for name, weights in step.weights().items():
        np.testing.assert_array_equal(weights, before[name], err_msg=name)
    later = loop(batches, tf.constant(29), first)
    skipped = int(later["skipped"])
    assert 1 < skipped < 30 and float(scale) == TOO_LARGE / 2**skipped
    assert int(later["bad_step"]) == -1 and step.state.step == 30
    after = step.weights()
    assert all(np.isfinite(weights).all() for weights in after.values())
    assert any((after[name] != before[name]).any() for name in before)
