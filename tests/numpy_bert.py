"""BERT's forward pass and losses in NumPy float64, from the paper, with Google's names: the oracle."""

import numpy as np
from scipy import special


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    return x * special.ndtr(x)  # the normal distribution function


def softmax(x):
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


class NumpyBert:
    """`weights` is {Google variable name: array}, `activation` a function of this module."""

    def __init__(
        self, weights: dict, num_layers: int, num_heads: int, activation=gelu_tanh, epsilon: float = 1e-12
    ):
        self.weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
        self.num_layers, self.num_heads = num_layers, num_heads
        self.activation, self.epsilon = activation, epsilon

    def dense(self, x, name):
        return x @ self.weights[f"{name}/kernel"] + self.weights[f"{name}/bias"]

    def layer_norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred
            / np.sqrt((centred**2).mean(-1, keepdims=True) + self.epsilon)
            * self.weights[f"{name}/gamma"]
            + self.weights[f"{name}/beta"]
        )

    def mixed(self, x, mask, scope, masked_score):
        """Returns the heads' outputs side by side."""
        batch, length, hidden = x.shape
        size = hidden // self.num_heads
        query, key, value = (
            self.dense(x, f"{scope}/self/{part}").reshape(batch, length, self.num_heads, size)
            for part in ("query", "key", "value")
        )
        scores = np.einsum("blhk,bmhk->bhlm", query, key) / np.sqrt(size)
        weights = softmax(scores + (1.0 - mask)[:, None, None, :] * masked_score)
        return np.einsum("bhlm,bmhk->blhk", weights, value).reshape(batch, length, hidden)

    def attention(self, x, mask, scope):
        mixed = self.mixed(x, mask, scope, -10000.0)
        return self.layer_norm(x + self.dense(mixed, f"{scope}/output/dense"), f"{scope}/output/LayerNorm")

    def embed(self, ids, segments):
        w = self.weights
        x = (
            w["bert/embeddings/word_embeddings"][ids]
            + w["bert/embeddings/token_type_embeddings"][segments]
            + w["bert/embeddings/position_embeddings"][: ids.shape[1]]
        )
        return self.layer_norm(x, "bert/embeddings/LayerNorm")

    def encode(self, ids, mask, segments):
        x = self.embed(ids, segments)
        for layer in range(self.num_layers):
            scope = f"bert/encoder/layer_{layer}"
            x = self.attention(x, mask, f"{scope}/attention")
            inner = self.activation(self.dense(x, f"{scope}/intermediate/dense"))
            x = self.layer_norm(x + self.dense(inner, f"{scope}/output/dense"), f"{scope}/output/LayerNorm")
        return x, np.tanh(self.dense(x[:, 0], "bert/pooler/dense"))

    def pretrain_logits(self, ids, mask, segments, positions):
        sequence, pooled = self.encode(ids, mask, segments)
        picked = np.take_along_axis(sequence, positions[:, :, None], axis=1)
        picked = self.layer_norm(
            self.activation(self.dense(picked, "cls/predictions/transform/dense")),
            "cls/predictions/transform/LayerNorm",
        )
        masked = (
            picked @ self.weights["bert/embeddings/word_embeddings"].T
            + self.weights["cls/predictions/output_bias"]
        )
        relation = (
            pooled @ self.weights["cls/seq_relationship/output_weights"].T
            + self.weights["cls/seq_relationship/output_bias"]
        )
        return masked, relation


def cross_entropy_sum(logits, labels, weights):
    log_probabilities = np.log(softmax(logits))
    picked = np.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]
    return -(picked * weights).sum()
