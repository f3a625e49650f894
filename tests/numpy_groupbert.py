"""GroupBERT's forward pass in NumPy float64, with Graphcore's names: the oracle."""

import numpy as np

from tests.numpy_bert import NumpyBert, gelu_tanh


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def convolve(x, weight):
    """Returns the grouped convolution, channel by channel, of x [B, L, D] with weight [taps, group, D]."""
    taps, size, hidden = weight.shape
    length, reach = x.shape[1], taps // 2
    padded = np.pad(x, [(0, 0), (reach, reach), (0, 0)])
    y = np.zeros(x.shape)
    for channel in range(hidden):
        first = channel // size * size
        for tap in range(taps):
            y[:, :, channel] += padded[:, tap : tap + length, first : first + size] @ weight[tap, :, channel]
    return y


class NumpyGroupBert(NumpyBert):
    """`weights` is {Graphcore's variable name: array}."""

    def __init__(self, weights: dict, num_layers: int, num_heads: int, groups: int, epsilon: float):
        super().__init__(weights, num_layers, num_heads, gelu_tanh, epsilon)
        self.groups = groups

    def convolution(self, x, mask, scope):
        glu = f"{scope}/pre/glu"
        x = self.dense(x, f"{glu}/values/dense") * sigmoid(self.dense(x, f"{glu}/gates/dense"))
        y = convolve(x * mask[:, :, None], self.weights[f"{scope}/dwconv/weight"])
        y = self.layer_norm(y, f"{scope}/dwconv/LayerNorm")
        return self.dense(y * sigmoid(y), f"{scope}/post/dense")

    def feed_forward(self, x, scope):
        inner = self.activation(self.dense(x, f"{scope}/intermediate/dense"))
        if self.groups == 1:
            return self.dense(inner, f"{scope}/output/dense")
        kernel = self.weights[f"{scope}/output/dense/kernel"]
        pairs = zip(np.split(inner, self.groups, axis=-1), np.split(kernel, self.groups, axis=1))
        parts = np.concatenate([part @ own for part, own in pairs], axis=-1)
        return self.dense(parts + self.weights[f"{scope}/output/dense/bias"], f"{scope}/output/mixer/dense")

    def mix(self, x, mask, scope):
        return self.dense(self.mixed(x, mask, scope, -1000.0), f"{scope}/projection/dense")

    def encode(self, ids, mask, segments):
        x = self.embed(ids, segments)
        for layer in range(self.num_layers):
            scope = f"bert/encoder/layer_{layer}"
            parts = {
                "convolution": lambda x, scope: self.convolution(x, mask, scope),
                "feed_forward_1": self.feed_forward,
                "attention": lambda x, scope: self.mix(x, mask, scope),
                "feed_forward_2": self.feed_forward,
            }
            for name, function in parts.items():
                normal = self.layer_norm(x, f"{scope}/{name}/prenorm/LayerNorm")
                x = x + function(normal, f"{scope}/{name}")
        x = self.layer_norm(x, "LayerNorm")
        return x, np.tanh(self.dense(x[:, 0], "bert/pooler/dense"))
