"""What the tests of GPUs run on: a GPU, or in a rehearsal of their code the CPU."""

import dataclasses
import os
from unittest import mock

import pytest
import tensorflow as tf

from official import config as config_lib
from official.config import Config
from official.distribution import strategy as strategy_lib

REHEARSAL = "BERT_GPU_TESTS_ON_CPU"
MODEL = dict(vocab_size=500, hidden_size=128, num_hidden_layers=2, num_attention_heads=2)
MODEL |= dict(intermediate_size=512, max_position_embeddings=64)
CPU = dict(distribution_strategy="one_device", num_gpus=0)


@dataclasses.dataclass(frozen=True)
class Device:
    """What a test runs on.

    Attributes:
      is_gpu: false in a rehearsal.
    """

    is_gpu: bool

    @property
    def name(self) -> str:
        """Returns what TensorFlow calls it."""
        return "/gpu:0" if self.is_gpu else "/cpu:0"

    @property
    def settings(self) -> dict:
        """Returns the settings of a run on it."""
        return dict(distribution_strategy="one_device", num_gpus=1) if self.is_gpu else CPU


def find_device() -> Device:
    """Returns the device of the tests; skips the test where there is none."""
    gpus = tf.config.list_physical_devices("GPU")
    if not (gpus or os.environ.get(REHEARSAL) == "1"):
        pytest.skip(f"TensorFlow finds no GPU; {REHEARSAL}=1 rehearses this on the CPU")
    return Device(bool(gpus))


def pair_settings(device: Device) -> dict:
    """Returns the settings of a run on two devices; skips the test on a machine with one GPU."""
    if not device.is_gpu:
        return dict(
            distribution_strategy="mirrored", num_virtual_devices=2, all_reduce_alg="hierarchical_copy"
        )
    found = len(tf.config.list_physical_devices("GPU"))
    if found < 2:
        pytest.skip(f"needs two GPUs, TensorFlow finds {found}")
    return dict(distribution_strategy="mirrored", num_gpus=2, all_reduce_alg="nccl")


def full_float32():
    """Returns a context in which strategies are made as if no GPU could round float32 products. The variable
    that forbids it would do so for the whole process."""
    return mock.patch.object(strategy_lib, "_gpus_with_tf32", list)


def small_config(model: dict | None = None, **settings) -> Config:
    """Returns the configuration of a small pre-training on made-up records; arguments override it."""
    defaults = dict(model={**MODEL, **(model or {})}, model_dir="unused", use_synthetic_data=True, **CPU)
    defaults |= dict(max_seq_length=64, max_predictions_per_seq=10, train_batch_size=8)
    defaults |= dict(num_steps_per_epoch=100, num_train_epochs=1, warmup_steps=0)
    defaults |= dict(learning_rate=1e-3, optimizer_type="lamb")
    return config_lib.build_config([("test", {**defaults, **settings})])
