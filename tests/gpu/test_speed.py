"""How many sequences a second a GPU trains on: printed, and more than the CPU beside it does."""

import time

import pytest

from official.tasks.pretraining import PretrainingTask
from official.training import step_benchmark
from tests.gpu.devices import CPU, small_config
from tests.gpu.test_memory import MINI, SIZES

pytestmark = pytest.mark.gpu

BASE = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
KINDS = {
    "fp32, plain": dict(kernels="plain"),
    "fp32": {},
    "fp32, XLA": dict(enable_xla=True),
    "fp16, XLA": dict(dtype="fp16", enable_xla=True),
    "bf16, XLA": dict(dtype="bf16", enable_xla=True),
}


def sequences_per_sec(settings: dict, steps: int) -> float:
    """Returns the speed of some training steps, after some that compile."""
    config = small_config(**settings)
    run = step_benchmark.make_step(config, PretrainingTask, steps)
    run()
    started = time.monotonic()
    assert 5 < run() < 15
    return steps * config.train_batch_size / (time.monotonic() - started)


def test_a_gpu_is_faster_than_the_cpu_beside_it(device, capsys):
    sizes = {**SIZES, "model": {**MINI, **(BASE if device.is_gpu else {})}}
    steps, kinds = (10, KINDS) if device.is_gpu else (1, {"fp32": {}})
    of_cpu = sequences_per_sec({**sizes, "train_batch_size": 1, **CPU}, steps=1)
    rates = {
        name: sequences_per_sec({**sizes, **device.settings, **kind}, steps) for name, kind in kinds.items()
    }
    with capsys.disabled():
        print(f"\n{device.name}: " + ", ".join(f"{name} {rate:,.1f}" for name, rate in rates.items()))
        print(f"CPU: fp32 {of_cpu:,.1f} sequences/s")
    assert all(rate > of_cpu * (1 if device.is_gpu else 0.1) for rate in rates.values())
