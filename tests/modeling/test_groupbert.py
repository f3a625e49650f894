"""GroupBERT: against its NumPy oracle, its sizes, packed rows, and both sets of operations."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official.config import BertConfig
from official.modeling.blocks import groupbert
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel
from tests.fixtures import TINY, slow
from tests.modeling import models
from tests.numpy_groupbert import NumpyGroupBert, convolve

GROUPBERT = {**TINY, "block_type": "groupbert", "groupbert_conv_group_size": 8, "layer_norm_eps": 1e-3}


def config(**changes) -> BertConfig:
    return BertConfig(**{**GROUPBERT, **changes})


@models.OPERATIONS
@pytest.mark.parametrize("groups", [4, 1])
def test_forward_pass_agrees_with_numpy(groups, kernels):
    sizes, batch = config(groupbert_ffn_output_groups=groups), models.features()
    model = models.randomised(BertPretrainer(sizes, kernels))
    reference = NumpyGroupBert(models.weights_of(model), 2, TINY["num_attention_heads"], groups, 1e-3)
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    for found, other in zip(model(batch), reference.pretrain_logits(*(batch[name] for name in names))):
        np.testing.assert_allclose(found, other, atol=1e-5, rtol=1e-5)


def test_a_layer_of_the_base_model_has_11_314_944_parameters():
    base = BertConfig(block_type="groupbert")
    one = dataclasses.replace(base, num_hidden_layers=1, vocab_size=7)
    layer = [v for v in BertPretrainer(one).variables if "/layer_0/" in v.name]
    assert sum(np.prod(variable.shape) for variable in layer) == 11_314_944


def test_key_bias_stays_zero_and_the_rest_is_trained():
    model = BertPretrainer(config())
    frozen = {variable.name for variable in model.non_trainable_variables}
    assert frozen == {f"bert/encoder/layer_{layer}/attention/self/key/bias:0" for layer in (0, 1)}
    with tf.GradientTape() as tape:
        masked, relation = model(models.features())
        loss = tf.reduce_sum(tf.sin(masked)) + tf.reduce_sum(relation**2)
    assert all(gradient is not None for gradient in tape.gradient(loss, model.trainable_variables))


@pytest.mark.parametrize("taps,size,length", [(7, 8, 13), (7, 4, 2), (3, 16, 8), (1, 8, 5), (11, 2, 12)])
def test_convolution_agrees_with_numpy_and_its_gradient_with_differences(taps, size, length):
    generator = np.random.default_rng(0)
    x, weight = generator.normal(size=[2, length, 16]), generator.normal(size=[taps, size, 16])
    upstream = generator.normal(size=x.shape)
    inputs = [tf.constant(value, tf.float64) for value in (x, weight)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        found = groupbert.convolution(*inputs)
        loss = tf.reduce_sum(found * upstream)
    np.testing.assert_allclose(found, convolve(x, weight), atol=1e-12)
    for place, gradient in enumerate(tape.gradient(loss, inputs)):
        # It is linear in both: a difference of any length is the derivative.
        direction = generator.normal(size=gradient.shape)
        moved = [x, weight]
        moved[place] = moved[place] + direction
        difference = ((convolve(*moved) - convolve(x, weight)) * upstream).sum()
        np.testing.assert_allclose((gradient.numpy() * direction).sum(), difference, rtol=1e-9)


def with_first_tokens_at_the_end(row: dict) -> tuple[dict, np.ndarray]:
    """Returns a packed row whose sequence k has its [CLS] at place -k, as published packed records, and the
    old place of what stands at each."""
    firsts = models.STARTS[::-1]
    body = np.setdiff1d(np.flatnonzero(row["sequence_ids"][0]), firsts)
    padding = np.flatnonzero(row["sequence_ids"][0] == 0)
    order = np.concatenate([body, padding, firsts])
    moved = {name: row[name][:, order] for name in row if row[name].shape == (1, models.ROW)}
    place = np.argsort(order).astype(np.int32)
    moved |= {name: place[row[name]] for name in ("cls_positions", "masked_lm_positions")}
    return moved, order


@pytest.mark.slow
@models.OPERATIONS
def test_first_tokens_at_the_end_of_the_row_are_neighbours_of_their_own_sequence(kernels):
    model = models.randomised(BertPretrainer(config(num_hidden_layers=1), kernels))
    moved, order = with_first_tokens_at_the_end(models.packed())
    assert (moved["position_ids"][0, -len(models.LENGTHS) :] == 0).all()
    found, expected = (models.outputs_and_gradients(model, batch) for batch in (moved, models.packed()))
    models.assert_same(found, expected, 1e-5)


@pytest.mark.parametrize("kernels", [slow("plain"), "fused"])
@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_sequence_sees_neither_its_neighbours_nor_padding(at_the_end, kernels):
    model = models.randomised(SpanModel(config(), kernels))
    batch = with_first_tokens_at_the_end(models.packed())[0] if at_the_end else models.packed()
    changed = (batch["sequence_ids"] == 2) | (batch["sequence_ids"] == 0)
    other = {**batch, "input_ids": np.where(changed, 7, batch["input_ids"])}
    for found, before in zip(model(other), model(batch)):
        np.testing.assert_array_equal(found.numpy()[~changed], before.numpy()[~changed])
        assert not np.allclose(found.numpy()[changed], before.numpy()[changed])


@pytest.mark.parametrize("kernels", [slow("plain"), "fused"])
def test_a_row_of_one_sequence_does_not_see_its_padding(kernels):
    batch, tokens = models.separate(), models.separate()["input_mask"] > 0
    other = {**batch, "input_ids": np.where(tokens, batch["input_ids"], 7)}
    spans = models.randomised(SpanModel(config(), kernels))
    for found, before in zip(spans(other), spans(batch)):
        np.testing.assert_array_equal(found.numpy()[tokens], before.numpy()[tokens])
    classes = models.randomised(SequenceModel(config(), 3, kernels))
    np.testing.assert_allclose(classes(models.packed())[0], classes(batch), atol=1e-5)
