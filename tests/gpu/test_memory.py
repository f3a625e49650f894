"""The memory of a step on a GPU: what the plan says, and less with --recompute."""

import functools
import json

import pytest
import tensorflow as tf

from official.config import Config
from official.planning import plan as plan_lib
from official.tasks.pretraining import PretrainingTask
from official.training import step_benchmark
from tests.fixtures import ROOT
from tests.gpu.devices import Device, small_config

pytestmark = pytest.mark.gpu

MINI = json.loads((ROOT / "configs/models/bert_mini.json").read_text())
SIZES = dict(model=MINI, max_seq_length=512, max_predictions_per_seq=76, train_batch_size=8)
SPARE = 256 * 2**20  # bytes of libraries' work space, whatever the model


@functools.cache
def planned_bytes(recompute: str) -> int:
    """Returns the most bytes that live at once in a step, by the plan."""
    config = small_config(**SIZES, recompute=recompute, plan=True)
    return plan_lib.make_plan(config, PretrainingTask)["total_bytes"]


def peak_bytes(config: Config, device: Device) -> int:
    """Returns the most bytes that lived at once in a step. TensorFlow does not count those of CPUs: in a
    rehearsal the plan's number stands for them, so that all but the measuring runs."""
    step = step_benchmark.make_step(config, PretrainingTask, steps=1)
    assert 5 < step() < 15  # compiles
    if not device.is_gpu:
        return planned_bytes(config.recompute)
    name = device.name.strip("/").upper()
    tf.config.experimental.reset_memory_stats(name)
    step()
    return tf.config.experimental.get_memory_info(name)["peak"]


def test_the_peak_is_what_the_plan_says_and_recomputing_lowers_it(device, capsys):
    planned, peaks = {}, {}
    for recompute in ("none", "attention", "block"):
        tf.keras.backend.clear_session()
        config = small_config(**SIZES, recompute=recompute, **device.settings)
        planned[recompute], peaks[recompute] = planned_bytes(recompute), peak_bytes(config, device)
    with capsys.disabled():
        for recompute, peak in peaks.items():
            print(f"\n{device.name} --recompute={recompute}: {peak:,} bytes, planned {planned[recompute]:,}")
    for recompute, peak in peaks.items():
        assert 0.7 * planned[recompute] < peak < 1.3 * planned[recompute] + SPARE, recompute
    for more, less in (("none", "attention"), ("attention", "block")):
        assert peaks[more] - peaks[less] > 0.5 * (planned[more] - planned[less]) > 0, (more, less)
