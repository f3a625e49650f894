"""Batches without padding: what comes out is what comes out of padded ones, gradients too."""

import numpy as np
import pytest
import tensorflow as tf

from official.config import BertConfig
from official.modeling import stages, varlen
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel

LENGTH = 12
CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=LENGTH,
    groupbert_ffn_output_groups=2,
    groupbert_conv_group_size=8,
)
MODELS = {
    "span": SpanModel,
    "sequence": lambda config: SequenceModel(config, 3),
    "pretrainer": BertPretrainer,
}
COMPARED = ("start_logits", "end_logits", "logits", "masked_lm_logits", "next_sentence_logits")


def batch_of(lengths: list[int]) -> dict[str, tf.Tensor]:
    """Returns a random batch; the last masked position is padding where there is some."""
    generator = np.random.default_rng(len(lengths))
    shape = (len(lengths), LENGTH)
    counts = np.array(lengths)[:, None]
    mask = (np.arange(LENGTH) < counts).astype(np.int32)
    positions = generator.integers(0, LENGTH, (len(lengths), 3)) % np.maximum(counts, 1)
    features = {
        "input_ids": generator.integers(1, CONFIG.vocab_size, shape) * mask,
        "input_mask": mask,
        "segment_ids": generator.integers(0, 2, shape) * mask,
        "masked_lm_positions": positions,
    }
    return {name: tf.constant(values, tf.int32) for name, values in features.items()}


def weights_of(name: str, features: dict[str, tf.Tensor], rank: int) -> tf.Tensor:
    """Returns 1 for outputs of tokens, and of rows that have some."""
    mask = tf.cast(features["input_mask"], tf.float32)
    if name in ("start_logits", "end_logits"):
        return mask
    return tf.reshape(tf.reduce_max(mask, axis=1), [-1] + [1] * (rank - 1))


def outputs_and_gradients(model, features, run) -> tuple[dict, list]:
    with tf.GradientTape() as tape:
        carried = run()
        outputs = {
            name: value * weights_of(name, features, len(value.shape))
            for name, value in carried.items()
            if name in COMPARED
        }
        loss = tf.add_n([tf.reduce_sum(tf.sin(value)) for value in outputs.values()])
    gradients = tape.gradient(loss, model.trainable_variables, unconnected_gradients="zero")
    return outputs, [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("block_type", ["bert", "groupbert"])
def test_outputs_and_gradients_are_those_of_the_padded_batch(kind, block_type):
    config = BertConfig(**{**CONFIG.__dict__, "block_type": block_type})
    model = MODELS[kind](config)
    for lengths in ([9, 3, 1, 12, 0, 12], [12, 12], [5]):
        features = batch_of(lengths)
        padded, laid = (
            outputs_and_gradients(model, features, run)
            for run in (
                lambda: stages.run(model, features, None),  # noqa: B023  # called at once
                lambda: varlen.run(model, features, config),  # noqa: B023
            )
        )
        assert padded[0].keys() == laid[0].keys() != set()
        for name, value in padded[0].items():
            np.testing.assert_allclose(laid[0][name], value, atol=1e-5)
        for expected, gradient in zip(padded[1], laid[1]):
            np.testing.assert_allclose(gradient, expected, atol=1e-4)


def test_no_dense_layer_sees_padding():
    """The rows of all products are counted, in the graph of a batch of which five sixths are padding."""
    features = batch_of([2, 2, 2, 2])
    laid = varlen.lay_end_to_end(features, CONFIG.num_attention_heads)
    assert laid.features["input_ids"].shape == (1, 8)
    widths = [is_token.shape[1] for is_token in laid.features["sequence_layout"].is_token_NW]
    assert max(widths) == 8 < LENGTH


def test_shapes_may_be_unknown_and_dropout_is_drawn():
    model = SpanModel(CONFIG)
    names = ("input_ids", "input_mask", "segment_ids")
    signature = {name: tf.TensorSpec([None, None], tf.int32) for name in names}

    @tf.function(autograph=False, input_signature=[signature, tf.TensorSpec([2], tf.int32)])
    def compute(features, seed):
        return varlen.run(model, features, CONFIG, seed)["start_logits"]

    features = {name: batch_of([4, 12, 7])[name] for name in names}
    first, again, other = (compute(features, tf.constant([1, seed])) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (3, LENGTH) and not np.allclose(first, other)
