"""cuDNN's attention on a GPU against plain attention; without a GPU, its modules as far as XLA reads them."""

import numpy as np
import pytest
import tensorflow as tf

from official.modeling.operations import flash, fused, plain

SIZES = 3, 4, 128, 64  # B, H, L, K
LENGTHS = 128, 1, 77


def made(dtype: tf.DType, size: int = 64) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns query, key, value and an upstream gradient, and the scores of rows of LENGTHS."""
    generator = np.random.default_rng(1)
    shape = (*SIZES[:3], size)
    tensors = [tf.cast(generator.normal(size=shape), dtype) for _ in range(4)]
    seen = tf.sequence_mask(LENGTHS, SIZES[2])[:, None, None]
    return tensors, (1 - tf.cast(seen, tf.float32)) * -10000.0


def passes(attend, tensors: list[tf.Tensor], scores: tf.Tensor) -> list[np.ndarray]:
    """Returns the outputs at tokens, and the gradients of query, key and value, given that of the outputs."""
    query, key, value, upstream = tensors
    is_token = tf.sequence_mask(LENGTHS, SIZES[2])[:, None, :, None]

    @tf.function(jit_compile=True, autograph=False)
    def run():
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            output = attend(query, key, value, scores)
            seen = tf.where(is_token, output, tf.zeros([], output.dtype))
        return [seen, *tape.gradient(seen, [query, key, value], upstream)]

    return [tf.cast(each, tf.float32).numpy() for each in run()]


@pytest.mark.gpu
@pytest.mark.parametrize("size", [64, 32, 128])
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_cudnn_attention_is_plain_attention(device, dtype, size):
    if not device.is_gpu:
        pytest.skip("cuDNN is on GPUs")
    tensors, scores = made(dtype, size)

    @tf.function(jit_compile=True, autograph=False)
    def takes(query, scores):
        return tf.constant(flash.takes(query, scores))

    with tf.distribute.OneDeviceStrategy(device.name).scope():
        assert takes(tensors[0], scores) and not flash.takes(tensors[0], scores)
        assert not takes(tf.cast(tensors[0], tf.float32), scores)
        assert not takes(tensors[0], tf.zeros([3, 1, 128, 128]))
        found = passes(lambda *given: fused.attend(*given, 0.1, None), tensors, scores)
    wide = [tf.cast(each, tf.float32) for each in tensors]
    expected = passes(lambda *given: plain.attend(*given, 0.0, None), wide, scores)
    tolerance = 2e-2 if dtype == tf.bfloat16 else 3e-3
    for name, ours, theirs in zip(("output", "query", "key", "value"), found, expected):
        assert np.abs(ours - theirs).max() < tolerance * np.abs(theirs).max(), name


@pytest.mark.gpu
def test_a_mask_with_a_gap_is_not_a_number(device):
    if not device.is_gpu:
        pytest.skip("cuDNN is on GPUs")
    (query, *_), scores = made(tf.bfloat16)
    gap = tf.tensor_scatter_nd_update(scores, [[0, 0, 0, 5]], [-10000.0])
    output = tf.cast(flash.attend(query, query, query, gap), tf.float32).numpy()
    assert np.isnan(output[0]).all() and np.isfinite(output[1:]).all()


def test_xla_reads_the_modules_and_cpus_do_not_take_them(monkeypatch, capfd):
    tensors, scores = made(tf.bfloat16)
    assert not tf.function(lambda: tf.constant(flash.takes(tensors[0], scores)), jit_compile=True)()
    monkeypatch.setattr(flash, "_PLATFORM", "CPU")
    with pytest.raises(tf.errors.OpError) as raised:
        passes(flash.attend, tensors, scores)
    assert "__cudnn$fmhaSoftmax" in str(raised.value) + capfd.readouterr().err  # it is what is missing
