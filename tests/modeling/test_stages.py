"""The model as a list of stages: it can be cut, and a stage computed again; a kind of block is a file."""

import numpy as np
import pytest
import tensorflow as tf

from official.config.model import ACTIVATIONS, BertConfig
from official.modeling import blocks, stages
from official.modeling import layers as layers_lib
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel
from tests.fixtures import TINY
from tests.modeling.models import RATES, copy_weights, features, randomised

SIZES = BertConfig(**{**TINY, **RATES})
HEADS = {
    "pretrainer": (BertPretrainer, ["pooler", "masked_lm", "next_sentence"]),
    "span": (SpanModel, ["span"]),
    "sequence": (lambda config: SequenceModel(config, 3), ["pooler", "classifier"]),
}


@pytest.mark.parametrize("make,heads", HEADS.values(), ids=HEADS)
def test_the_stages_have_every_weight_that_is_trained(make, heads):
    model = make(SIZES)
    found = model.stages()
    assert [stage.name for stage in found] == ["embeddings", "layer_0", "layer_1", *heads]
    assert len(model.seeds(tf.constant([1, 2]))) == len(found)
    values = [value for stage in found for value in tf.nest.flatten(stage.weights())]
    assert all(value is None or isinstance(value, tf.Tensor) for value in values)
    names = [variable.name for stage in found for variable in stage.variables]
    assert set(names) == {variable.name for variable in model.trainable_variables}
    tied = heads.count("masked_lm")  # the word embeddings are in two stages
    assert len(names) - len(set(names)) == tied


def test_a_new_file_is_a_new_kind_of_block(tmp_path, monkeypatch):
    """The file here stands for official/modeling/blocks/doubled.py."""
    (tmp_path / "doubled.py").write_text(
        "from official.modeling.blocks.bert import Block, run as once\n"
        "def run(weights, x, context, seed, config, ops):\n"
        "    return once(weights, once(weights, x, context, seed, config, ops), context, seed, config, ops)\n"
    )
    monkeypatch.setattr(blocks, "__path__", [*blocks.__path__, str(tmp_path)])
    model = randomised(BertPretrainer(BertConfig(**TINY, block_type="doubled"), shared=True))
    plain = copy_weights(model, BertPretrainer(BertConfig(**TINY)))
    embeddings, *layers = plain.encoder.stages()[:-1]
    carried = embeddings.run(embeddings.weights(), {}, features(), None)
    for layer in [layers[0], layers[0], layers[1], layers[1]]:
        carried |= layer.run(layer.weights(), carried, features(), None)
    found = stages.run(model.encoder, features(), None)["sequence"]
    np.testing.assert_allclose(found, carried["sequence"], atol=1e-5)


def test_every_activation_has_its_function_and_its_slope():
    assert set(ACTIVATIONS) == set(layers_lib.ACTIVATIONS)
    x = tf.constant(np.linspace(-4, 4, 80), tf.float32)  # not 0, where ReLU has no slope
    for activation in layers_lib.ACTIVATIONS.values():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = activation.function(x)
        np.testing.assert_allclose(activation.slope(x), tape.gradient(y, x), atol=1e-5)
