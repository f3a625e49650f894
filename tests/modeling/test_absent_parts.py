"""BERT without biases of query, key, value, attention's projection and the masked-LM head, and without the
head's transform."""

import numpy as np
import pytest

from official.config import BertConfig
from official.modeling.models import BertPretrainer
from tests.conftest import TINY
from tests.modeling.test_modeling import features, oracle, randomised
from tests.modeling.test_sequences_in_rows import OPERATIONS, outputs_and_gradients

GONE = {
    "use_qkv_bias": "/attention/self/",
    "use_attention_projection_bias": "/attention/output/dense/",
    "use_cls_layer": "/transform/",
    "use_prediction_bias": "cls/predictions/output_bias",
}
ABSENT = pytest.mark.parametrize("key", GONE)


def names(model) -> set[str]:
    return {variable.name.split(":")[0] for variable in model.variables}


@ABSENT
def test_variables_are_absent_and_no_others(key):
    whole, part = (names(BertPretrainer(BertConfig(**TINY, **one))) for one in ({}, {key: False}))
    gone = {name for name in whole if GONE[key] in name and (key == "use_cls_layer" or "bias" in name)}
    assert part == whole - gone
    counts = {"use_qkv_bias": 6, "use_attention_projection_bias": 2, "use_cls_layer": 4}
    assert len(gone) == counts.get(key, 1)


@OPERATIONS
@pytest.mark.parametrize("key", ["use_qkv_bias", "use_attention_projection_bias", "use_prediction_bias"])
def test_an_absent_bias_is_a_bias_of_zeros(key, fused_ops):
    without = randomised(BertPretrainer(BertConfig(**TINY, **{key: False}), fused_ops))
    model = BertPretrainer(BertConfig(**TINY), fused_ops)
    own = {variable.name: variable for variable in without.variables}
    for variable in model.variables:
        variable.assign(own.get(variable.name, np.zeros(variable.shape)))
    found, gradients = outputs_and_gradients(without, features())
    expected, expected_gradients = outputs_and_gradients(model, features())
    for output, other in zip(found, expected):
        np.testing.assert_allclose(output, other, atol=1e-6)
    for name, gradient in gradients.items():
        scale = 1.0 if "key/bias" in name else np.abs(gradient).max()
        np.testing.assert_allclose(gradient, expected_gradients[name], atol=1e-5 * scale, err_msg=name)


def test_without_the_transform_words_are_told_from_the_encoder_itself():
    model, batch = randomised(BertPretrainer(BertConfig(**TINY, use_cls_layer=False))), features()
    reference = oracle(model)
    sequence, _ = reference.encode(*(batch[name] for name in ("input_ids", "input_mask", "segment_ids")))
    picked = np.take_along_axis(sequence, batch["masked_lm_positions"][:, :, None], axis=1)
    weights = reference.weights
    expected = picked @ weights["bert/embeddings/word_embeddings"].T + weights["cls/predictions/output_bias"]
    np.testing.assert_allclose(model(batch)[0], expected, atol=1e-5)
