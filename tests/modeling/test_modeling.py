"""The model against its NumPy oracle, its names and sizes, and what must not change its output."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from official.config import BertConfig, bert_config_from_dict, read_json
from official.modeling import layers, objectives
from official.modeling.models import BertPretrainer
from official.modeling.stages import symbolic_model
from tests import numpy_bert
from tests.fixtures import ROOT, TINY, slow
from tests.modeling import models
from tests.modeling.models import features, named, oracle, randomised


@models.OPERATIONS
@pytest.mark.parametrize("activation,epsilon", [("gelu_tanh", 1e-12), ("gelu_erf", 1e-12), ("gelu_erf", 0.3)])
def test_forward_pass_agrees_with_numpy(activation, epsilon, kernels):
    sizes, batch = BertConfig(**TINY, hidden_act=activation, layer_norm_eps=epsilon), features()
    model = randomised(BertPretrainer(sizes, kernels))
    for variable in model.trainable_variables:
        if variable.name.endswith("dense/kernel:0"):  # so that the activation sees large numbers
            variable.assign(variable * 3)
    arguments = [batch[name] for name in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")]
    masked, relation = model(batch)
    forms = [numpy_bert.gelu_tanh, numpy_bert.gelu_erf]
    if activation == "gelu_erf":
        forms.reverse()
    (expected_masked, expected_relation), (other, _) = (
        oracle(model, activation=form, epsilon=epsilon).pretrain_logits(*arguments) for form in forms
    )
    assert np.abs(other - expected_masked).max() > 1e-4
    np.testing.assert_allclose(masked, expected_masked, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(relation, expected_relation, atol=1e-5, rtol=1e-5)


def test_encoder_agrees_with_numpy_and_padding_changes_nothing():
    model, batch = randomised(BertPretrainer(BertConfig(**TINY))), features(seed=3)
    arguments = [batch[name] for name in ("input_ids", "input_mask", "segment_ids")]
    for ours, expected in zip(model.encoder(*arguments), oracle(model).encode(*arguments)):
        np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=1e-5)
    other = {**batch, "input_ids": np.where(batch["input_mask"], batch["input_ids"], 7)}
    np.testing.assert_allclose(model(batch)[0], model(other)[0], atol=1e-6)


def test_variable_names_are_googles():
    variables = BertPretrainer(BertConfig(**TINY)).trainable_variables
    kernels = [each.numpy().ravel()[:20].tobytes() for each in variables if "kernel" in each.name]
    assert len(set(kernels)) == len(kernels)  # initial weights differ
    googles = (ROOT / "tests/modeling/google_names.txt").read_text(encoding="utf-8").split()
    assert named(variables).keys() == {name.format(layer) for name in googles for layer in range(2)}


def test_parameter_count_of_bert_large():
    sizes = bert_config_from_dict(read_json(str(ROOT / "configs/models/bert_large.json")), "bert_large.json")
    variables = symbolic_model(lambda: BertPretrainer(sizes)).trainable_variables
    assert len(variables) == 398
    assert sum(variable.shape.num_elements() for variable in variables) == 336_226_108


def test_initial_weights_are_truncated_normal_and_follow_from_the_seed():
    def draw(seed):
        tf.keras.utils.set_random_seed(seed)
        draws = layers.normal_initializer(0.02)
        return [draws(shape, dtype=tf.float32).numpy() for shape in ((300, 128), (300, 128), (7,))]

    first, second, few = draw(1)
    both = np.concatenate([first, second]).ravel()
    assert stats.kstest(both / 0.02, stats.truncnorm(-2, 2).cdf).pvalue > 0.01
    for left, right in ((first, second), (first[:-1], first[1:]), (first[:, :-1], first[:, 1:])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.02
    for again, other, expected in zip(draw(1), draw(2), (first, second, few)):
        np.testing.assert_array_equal(again, expected)
        assert not (other == expected).any()


def test_split_seeds_are_the_same_in_compiled_functions_and_differ():
    split = lambda seed: tf.stack(layers.split_seed(seed, 50))
    seeds = [tf.constant(seed) for seed in ([1, 2], [2, 1], [1, 2, 0], [-1, 2**31 - 1])]
    found, compiled = [split(seed).numpy() for seed in seeds], tf.function(split, jit_compile=True)
    for seed, expected in zip(seeds, found):
        np.testing.assert_array_equal(compiled(seed), expected)
    halves = np.concatenate(found).T  # 200 numbers of each: two of 2^32 hardly are the same
    assert all(len(np.unique(half)) == 200 for half in halves)
    assert layers.split_seed(None, 2) == [None, None]


@pytest.mark.slow
def test_a_shared_block_is_traced_once():
    model = BertPretrainer(BertConfig(**{**TINY, "num_hidden_layers": 5}), shared=True)
    graph = tf.function(lambda batch: model(batch)[0]).get_concrete_function(features()).graph
    calls = [each.get_attr("f").name for each in graph.get_operations() if "PartitionedCall" in each.type]
    assert len(calls) == 5 and len(set(calls)) == 1


@pytest.mark.parametrize("rate", [0.1, 0.5, 1e-4])
def test_masks_are_fair_coins(rate):
    seeds = [tf.constant([seed, 7]) for seed in range(4)]
    x = tf.zeros([500, 20, 100])
    masks = np.stack([layers.keep_mask(x, rate, seed).numpy().reshape(-1) for seed in seeds])
    count = masks.shape[1]
    deviation = (rate * (1 - rate) / count) ** 0.5
    assert (abs((~masks).mean(axis=1) - rate) < 5 * deviation).all()
    assert abs((~masks).mean(axis=0).mean() - rate) < 5 * deviation
    dropped = (~masks - rate) / (rate * (1 - rate)) ** 0.5  # of mean 0 and variance 1
    apart = [1, 2, 3, 16, 100, 2000]  # neighbours, columns, rows and pages
    assert all(abs((dropped[0, gap:] * dropped[0, :-gap]).mean()) < 5 / count**0.5 for gap in apart)
    assert all(abs((dropped[0] * dropped[other]).mean()) < 5 / count**0.5 for other in (1, 2, 3))


@pytest.mark.parametrize("other", [[5, 4], [6, 3], [-5, 3], [5, 123456789]])
def test_masks_of_near_seeds_have_nothing_in_common(other):
    first, second = (
        layers.keep_mask(tf.zeros([2**16]), 0.5, tf.constant(seed)).numpy() for seed in ([5, 3], other)
    )
    if other[1] == 3:  # the same stride: found again elsewhere, which 2^32 possible strides make rare
        first, second = first[: 2**15], second[2**15 :]
    for shift in range(-3, 4):
        assert abs((first == np.roll(second, shift)).mean() - 0.5) < 5 * 0.5 / first.size**0.5


def test_dropout_is_a_mask_and_a_scale():
    x, seed = tf.ones([100, 100]), tf.constant([5, 6])
    expected = np.where(layers.keep_mask(x, 0.1, seed), 1 / 0.9, 0.0)
    np.testing.assert_allclose(layers.dropout(x, 0.1, seed), expected, rtol=1e-6)


def test_losses_agree_with_numpy():
    model, batch = randomised(BertPretrainer(BertConfig(**TINY))), features()
    masked, _ = model(batch)
    told = batch["masked_lm_ids"], batch["masked_lm_weights"]
    expected = numpy_bert.cross_entropy_sum(np.asarray(masked, np.float64), *told)
    np.testing.assert_allclose(objectives.cross_entropy(masked, *told), expected, rtol=1e-5)
    hits = (np.argmax(masked, -1) == told[0]) * told[1]
    np.testing.assert_allclose(objectives.correct(masked, *told), hits.sum(), rtol=1e-6)


def test_gather_gradient_is_that_of_tf_gather():
    table, indices = tf.random.normal([6, 4]), tf.constant([[0, 3, 3], [5, 0, 0]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(table)
        gathers = layers.gather_rows, tf.gather
        losses = [tf.reduce_sum(gather(table, indices) ** 3) for gather in gathers]
    ours, theirs = (tf.convert_to_tensor(tape.gradient(loss, table)) for loss in losses)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


GONE = dict(use_qkv_bias="/attention/self/", use_attention_projection_bias="/attention/output/dense/")
GONE |= dict(use_cls_layer="/transform/", use_prediction_bias="cls/predictions/output_bias")


def test_variables_are_absent_and_no_others():
    counts = {"use_qkv_bias": 6, "use_attention_projection_bias": 2, "use_cls_layer": 4}
    names = lambda **settings: {*named(BertPretrainer(BertConfig(**TINY, **settings)).variables)}
    whole = names()
    for key, place in GONE.items():
        gone = {name for name in whole if place in name and (key == "use_cls_layer" or "bias" in name)}
        assert names(**{key: False}) == whole - gone
        assert len(gone) == counts.get(key, 1), key


BIASES = ("use_qkv_bias", "use_attention_projection_bias", "use_prediction_bias")


@pytest.mark.parametrize("kernels", [slow("plain"), "fused"])
@pytest.mark.parametrize("keys", [BIASES, *(slow([key]) for key in BIASES)], ids="+".join)
def test_an_absent_bias_is_a_bias_of_zeros(keys, kernels):
    without = randomised(BertPretrainer(BertConfig(**TINY, **dict.fromkeys(keys, False)), kernels))
    model = BertPretrainer(BertConfig(**TINY), kernels)
    own = {variable.name: variable for variable in without.variables}
    for variable in model.variables:
        variable.assign(own.get(variable.name, np.zeros(variable.shape)))
    found = models.outputs_and_gradients(without, features())
    outputs, gradients = models.outputs_and_gradients(model, features())
    models.assert_same(found, (outputs, {name: gradients[name] for name in found[1]}), 1e-5)


def test_without_the_transform_words_are_told_from_the_encoder_itself():
    model, batch = randomised(BertPretrainer(BertConfig(**TINY, use_cls_layer=False))), features()
    reference = oracle(model)
    sequence, _ = reference.encode(*(batch[name] for name in ("input_ids", "input_mask", "segment_ids")))
    picked = np.take_along_axis(sequence, batch["masked_lm_positions"][:, :, None], axis=1)
    weights = reference.weights
    expected = picked @ weights["bert/embeddings/word_embeddings"].T + weights["cls/predictions/output_bias"]
    np.testing.assert_allclose(model(batch)[0], expected, atol=1e-5)
