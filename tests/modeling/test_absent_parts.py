"""BERT without biases of query, key, value, attention's projection and the masked-LM head, and without the
head's transform."""

import numpy as np
import pytest

from official.config import BertConfig
from official.modeling.models import BertPretrainer
from tests.conftest import TINY
from tests.modeling.models import OPERATIONS, assert_same, features, oracle, outputs_and_gradients, randomised

GONE = {
    "use_qkv_bias": "/attention/self/",
    "use_attention_projection_bias": "/attention/output/dense/",
    "use_cls_layer": "/transform/",
    "use_prediction_bias": "cls/predictions/output_bias",
}


def names(model) -> set[str]:
    return {variable.name.split(":")[0] for variable in model.variables}


def test_variables_are_absent_and_no_others():
    counts = {"use_qkv_bias": 6, "use_attention_projection_bias": 2, "use_cls_layer": 4}
    whole = names(BertPretrainer(BertConfig(**TINY)))
    for key, place in GONE.items():
        gone = {name for name in whole if place in name and (key == "use_cls_layer" or "bias" in name)}
        assert names(BertPretrainer(BertConfig(**TINY, **{key: False}))) == whole - gone
        assert len(gone) == counts.get(key, 1), key


@OPERATIONS
@pytest.mark.parametrize("key", ["use_qkv_bias", "use_attention_projection_bias", "use_prediction_bias"])
def test_an_absent_bias_is_a_bias_of_zeros(key, kernels):
    without = randomised(BertPretrainer(BertConfig(**TINY, **{key: False}), kernels))
    model = BertPretrainer(BertConfig(**TINY), kernels)
    own = {variable.name: variable for variable in without.variables}
    for variable in model.variables:
        variable.assign(own.get(variable.name, np.zeros(variable.shape)))
    found = outputs_and_gradients(without, features())
    outputs, gradients = outputs_and_gradients(model, features())
    assert_same(found, (outputs, {name: gradients[name] for name in found[1]}), 1e-5)


def test_without_the_transform_words_are_told_from_the_encoder_itself():
    model, batch = randomised(BertPretrainer(BertConfig(**TINY, use_cls_layer=False))), features()
    reference = oracle(model)
    sequence, _ = reference.encode(*(batch[name] for name in ("input_ids", "input_mask", "segment_ids")))
    picked = np.take_along_axis(sequence, batch["masked_lm_positions"][:, :, None], axis=1)
    weights = reference.weights
    expected = picked @ weights["bert/embeddings/word_embeddings"].T + weights["cls/predictions/output_bias"]
    np.testing.assert_allclose(model(batch)[0], expected, atol=1e-5)
