"""Settings and checks of GPUs, on a machine that has none: --gpu_memory, the all-reduce before a run."""

import ctypes
import os
import sys
import types

import pytest
import tensorflow as tf

from official.config import ConfigError, replaced
from official.distribution import allreduce_check
from official.distribution import strategy as strategy_lib
from tests import programs
from tests.training.test_training import replicas

GB = 10**9


class Driver:
    """Driver of GPUs with some memory, as libcuda.so.1 has it."""

    def __init__(self, *sizes: int):
        self.sizes = sizes

    def cuInit(self, flags):  # noqa: N802
        return 0 if self.sizes else 100  # CUDA_ERROR_NO_DEVICE

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = len(self.sizes)
        return 0

    def cuDeviceGet(self, device, ordinal):  # noqa: N802
        device._obj.value = ordinal
        return 0

    def cuDeviceTotalMem_v2(self, total, device):  # noqa: N802
        total._obj.value = self.sizes[device.value]
        return 0


@pytest.fixture
def machine(monkeypatch):
    """Returns a function that makes this process look as if it had GPUs of some memory that TensorFlow has
    not set up; it returns {GPU: its logical devices}, which is filled."""

    def pretend(*sizes: int, is_set_up: bool = False) -> dict:
        limits, found = {}, [types.SimpleNamespace(name=f"GPU:{index}") for index in range(len(sizes))]

        def limit(gpu, devices):
            if is_set_up:
                raise RuntimeError("Virtual devices cannot be modified after being initialized")
            limits[gpu.name] = devices

        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: found)
        monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda gpu: limits.get(gpu.name))
        monkeypatch.setattr(tf.config, "set_logical_device_configuration", limit)
        monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(*sizes))
        return limits

    return pretend


def test_gpu_memory(make_config, machine, monkeypatch, caplog):
    for value, before, grows, megabytes in (
        ("grow", "true", "true", None),
        ("grow", "false", "true", None),  # of the environment: the flag overrides it, and a warning says so
        ("all", "true", "false", None),
        ("7.5", "true", "true", 7152),
        (16, "false", "true", 15258),
    ):
        caplog.clear()
        monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", before)
        limits = machine(16 * GB, 16 * GB, 16 * GB)
        config = make_config(distribution_strategy="mirrored", gpu_memory=value, num_gpus=2)
        assert strategy_lib.replica_devices(config) == ["/gpu:0", "/gpu:1"]
        strategy_lib.replica_devices(config)  # of the next run of the process
        assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == grows, value
        one = [tf.config.LogicalDeviceConfiguration(memory_limit=megabytes)]
        assert limits == ({"GPU:0": one, "GPU:1": one} if megabytes else {}), value
        told = [record.getMessage() for record in caplog.records]
        expected = f"--gpu_memory={value} overrides TF_FORCE_GPU_ALLOW_GROWTH=false."
        assert told == ([expected] if before == "false" else []), value


def test_memory_that_is_not_there_is_refused(make_config, machine):
    def devices(*sizes, is_set_up=False, **settings):
        machine(*sizes, is_set_up=is_set_up)
        config = make_config(distribution_strategy="mirrored", gpu_memory="40", **settings)
        return strategy_lib.replica_devices(config)

    assert devices(80 * GB, 24 * GB, num_gpus=1) == ["/gpu:0"]
    with pytest.raises(ConfigError, match=r"gpu_memory=40 but GPU 1 has 24.0 GB. .* number up to 24\."):
        devices(80 * GB, 24 * GB)
    with pytest.raises(ConfigError, match="has set up its GPUs already .* Start a new process"):
        devices(80 * GB, is_set_up=True)
    with pytest.raises(ConfigError, match="num_gpus=2 but this machine has 0 GPUs"):
        devices(num_gpus=2)
    assert devices() == ["/cpu:0"]  # "CPU-only": nothing


# -----------------------------------------------------------------------------------------------------------
# All-reduce


@pytest.fixture
def pair(make_config):
    """Returns a configuration of two replicas, and its strategy."""
    config = make_config(**replicas(2))
    return config, strategy_lib.make_strategy(config)


def test_an_all_reduce_is_timed_and_added_up(pair, caplog):
    config, strategy = pair
    with caplog.at_level("INFO", logger="absl"):
        found = allreduce_check.check(strategy, config)
    assert (found.replicas, found.bytes) == (2, 64 * 2**20)
    assert found.gb_per_sec * found.secs == pytest.approx(64 * 2**20 / 1e9)  # 2 (n - 1) / n is 1
    assert "All-reduce of 64 MiB: " in caplog.text
    assert allreduce_check.measure(strategy, "float16", size_bytes=2048).bytes == 2048


def test_an_all_reduce_that_fails_says_what_to_do(pair, monkeypatch):
    config, strategy = pair
    failed = tf.errors.InternalError(None, None, "NCCL: unhandled system error (run with NCCL_DEBUG=INFO)")

    def fails(*arguments):
        raise failed

    monkeypatch.setattr(allreduce_check, "measure", fails)
    with pytest.raises(ConfigError, match="2 GPUs fails .NCCL: unhandled.*NCCL_DEBUG.*NCCL_P2P_DISABLE=1"):
        allreduce_check.check(strategy, config)
    workers = dict(distribution_strategy="multi_worker_mirrored", worker_hosts="a:1,b:1", task_index=0)
    config = replaced(config, **workers)
    with pytest.raises(ConfigError, match="--all_reduce_alg=ring"):
        allreduce_check.check(strategy, config)
    failed = tf.errors.UnavailableError(None, None, "Collective ops is aborted by: Socket closed")
    with pytest.raises(tf.errors.UnavailableError):  # a lost peer, which has a line of its own
        allreduce_check.check(strategy, config)


def test_a_wrong_sum_is_seen(pair, monkeypatch):
    config, strategy = pair
    context = tf.distribute.ReplicaContext
    monkeypatch.setattr(context, "all_reduce", lambda self, operation, value: value)
    with pytest.raises(ConfigError, match="the sum of 2 ones is wrong by 1"):
        allreduce_check.check(strategy, config)


HANGS = """
import sys, time, types
from official.distribution import allreduce_check

allreduce_check.measure = lambda *arguments: time.sleep(30)
allreduce_check.LIMIT_SECS = 0.2
config = types.SimpleNamespace(
    distribution_strategy=sys.argv[1], all_reduce_alg="nccl", allreduce_dtype="float32"
)
allreduce_check.check(types.SimpleNamespace(num_replicas_in_sync=8), config)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="timers of Linux")
def test_an_all_reduce_that_hangs_ends_the_run():
    for backend, code, use in (("mirrored", 2, "hierarchical_copy"), ("multi_worker_mirrored", 4, "ring")):
        done = programs.call(sys.executable, "-c", HANGS, backend)
        last = done.stderr.strip().splitlines()[-1]
        assert (done.returncode, f"Use --all_reduce_alg={use}. NCCL_DEBUG=INFO" in last) == (code, True), last
        assert "all-reduce of 8 GPUs is not done after 0.2 s" in last and len(last) < 300
