"""Tests of GPUs: `pytest -m gpu`. Without a GPU each is skipped; BERT_GPU_TESTS_ON_CPU=1 rehearses them."""

import pytest
import tensorflow as tf

from tests.gpu.devices import Device, find_device


@pytest.fixture(scope="session", name="device")
def fixture_device() -> Device:
    return find_device()


@pytest.fixture(autouse=True, name="float32_products")
def fixture_float32_products():
    """Puts back what a run has set for the process."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    yield
    tf.config.experimental.enable_tensor_float_32_execution(before)
