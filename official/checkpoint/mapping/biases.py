"""Biases that the models of some formats do not have."""

import re

from official.checkpoint.mapping import tensors as tensors_lib
from official.checkpoint.mapping.canonical import OUTPUT_BIAS, SLOT, TRANSFORM
from official.checkpoint.mapping.table import Mapped

_SAME = "zeros: the model of this checkpoint has no such bias, which is the same function"


def add_zero_biases(mapped: Mapped) -> None:
    """Adds biases of zeros, and slots of zeros, to the attention's kernels that have none, in canonical
    names. A bias that is there without slots is not trained."""
    there = set(mapped.tensors)
    for name, tensor in list(mapped.tensors.items()):
        match = re.fullmatch(
            rf"(bert/encoder/layer_\d+/attention/(?:self/\w+|(?:output|projection)/dense)/)kernel{SLOT}",
            name,
        )
        bias = f"{match.group(1)}bias" if match else name
        slot = match["slot"] if match else ""
        if bias not in there and bias + slot not in there:
            mapped.tensors[bias + slot] = tensors_lib.zeros(tensor.shape[-1:], tensor.dtype)
            mapped.added[bias + slot] = _SAME


def add_zero_output_bias(mapped: Mapped) -> None:
    """Adds a bias of zeros, one for each word, to a masked-LM head that is a transform alone."""
    words = mapped.tensors.get("bert/embeddings/word_embeddings")
    if TRANSFORM[0] in mapped.tensors and OUTPUT_BIAS not in mapped.tensors and words is not None:
        mapped.tensors[OUTPUT_BIAS] = tensors_lib.zeros(words.shape[:1], words.dtype)
        mapped.added[OUTPUT_BIAS] = _SAME
