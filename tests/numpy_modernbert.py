"""ModernBERT's forward pass in NumPy float64, from the papers, with this project's names: the oracle."""

import numpy as np

from tests.numpy_bert import gelu_erf, softmax


class NumpyModernBert:
    """`weights` is {variable name: array}; every n-th layer sees all tokens, others a window."""

    def __init__(self, weights: dict, layers: int, heads: int, every: int, window: int):
        self.weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
        self.layers, self.heads, self.every, self.reach = layers, heads, every, window // 2

    def layer_norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred / deviation * self.weights[f"{name}LayerNorm/gamma"]

    def encode(self, ids):
        """Returns the vectors of the tokens of one text, [L, D]."""
        x = self.layer_norm(self.weights["bert/embeddings/word_embeddings"][ids], "bert/embeddings/")
        for number in range(self.layers):
            scope = f"bert/encoder/layer_{number}"
            normal = self.layer_norm(x, f"{scope}/attention/prenorm/") if number else x
            attended = self.attend(normal @ self.weights[f"{scope}/attention/self/qkv/kernel"], number)
            x = x + attended @ self.weights[f"{scope}/attention/output/dense/kernel"]
            normal = self.layer_norm(x, f"{scope}/feed_forward/prenorm/")
            values, gates = np.split(normal @ self.weights[f"{scope}/intermediate/dense/kernel"], 2, axis=-1)
            x = x + (gelu_erf(values) * gates) @ self.weights[f"{scope}/output/dense/kernel"]
        return self.layer_norm(x, "")

    def attend(self, products, number):
        length, columns = products.shape
        is_whole = number % self.every == 0
        query, key, value = products.reshape(length, 3, self.heads, -1).transpose(1, 2, 0, 3)
        size = columns // (3 * self.heads)
        theta = 160_000 if is_whole else 10_000
        angles = np.arange(length)[:, None] * theta ** (-np.arange(0, size, 2) / size)
        turns = np.exp(1j * angles)  # a pair of numbers, half a head apart, is a complex one
        query, key = (turns * (x[..., : size // 2] + 1j * x[..., size // 2 :]) for x in (query, key))
        scores = np.einsum("hlk,hmk->hlm", query, key.conj()).real / np.sqrt(size)
        distances = np.abs(np.arange(length)[:, None] - np.arange(length))
        scores = np.where(is_whole | (distances <= self.reach), scores, -np.inf)
        return np.einsum("hlm,hmk->lhk", softmax(scores), value).reshape(length, -1)

    def predict(self, x):
        """Returns the outputs of the prediction head."""
        x = x @ self.weights["cls/predictions/transform/dense/kernel"]
        return self.layer_norm(gelu_erf(x), "cls/predictions/transform/")
