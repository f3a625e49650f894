"""A model as what an export is made of: variables, tables, and a function for each signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official.inference import embedding, questions, sentences
from official.inference.graph import methods
from official.inference.graph import network as network_lib
from official.inference.graph.methods import Sizes, Special
from official.inference.graph.network import Network, Weights
from official.inference.graph.tokenizer import Splitter
from official.inference.signatures import SIGNATURES, TENSOR_INPUTS, TENSORS, Field, main_method
from official.inference.source import Source


class GraphModel(tf.Module):
    """A model whose methods are functions of TensorFlow.

    Each method that it has is an attribute with the name of its signature, and so is `tensors`.
    """

    def __init__(self, source: Source, vocabulary_file: str, dtype: str = "fp32"):
        """Builds it.

        Args:
          source: the model.
          vocabulary_file: its words, a line each: what becomes an asset.
          dtype: one of `weights.DTYPES`.

        Raises:
          ConfigError: where a weight is missing or cannot be read, or the vocabulary cannot be taken.
        """
        super().__init__(name="bert")
        self.vocabulary = tf.saved_model.Asset(vocabulary_file)
        self.words = _words(vocabulary_file)
        reads = {method: _stages(source, method, dtype) for method in source.abilities()}
        leaves = network_lib.leaves_of([each for stages in reads.values() for each in stages])
        self.weights = Weights(leaves, source.values, dtype)
        networks = {method: Network(source.bert, self.weights, stages) for method, stages in reads.items()}
        functions = _functions(source, networks, self.words)
        self._names = tuple(functions)
        for name, function in functions.items():
            setattr(self, name, function)

    @property
    def functions(self) -> dict[str, Any]:
        """Returns {name of a signature: function of its inputs}."""
        return {name: getattr(self, name) for name in self._names}


def _words(vocabulary_file: str) -> Any:
    lines = tf.lookup.TextFileInitializer(
        vocabulary_file,
        tf.int64,
        tf.lookup.TextFileIndex.LINE_NUMBER,
        tf.string,
        tf.lookup.TextFileIndex.WHOLE_LINE,
    )
    return tf.lookup.StaticHashTable(lines, "[UNK]")


def _stages(source: Source, method: str, dtype: str) -> list[network_lib.Read]:
    classes = source.tensors["output_weights"].shape[0] if method == "classify" else 0
    return network_lib.stages_of(source.bert, method, classes, dtype)


def _functions(source: Source, networks: dict[str, Network], words: Any) -> dict[str, Any]:
    """Returns {name of a signature: function}."""
    vocabulary = source.vocabulary
    special = Special(*map(vocabulary.id_of, ("[CLS]", "[SEP]", "[MASK]")))
    bert = source.bert
    sizes = Sizes(min(vocabulary.size, bert.vocab_size), bert.max_position_embeddings, bert.hidden_size)
    split = Splitter(vocabulary, bert.vocab_size)
    make: dict[str, Callable] = {
        "answer": lambda net: methods.answer(net, split, special, *questions.rules_of(source)),
        "classify": lambda net: methods.classify(
            net, split, special, sentences.classes_of(source), bert.type_vocab_size
        ),
        "embed": lambda net: methods.embed(net, split, special, embedding.pooling_of_source(source), sizes),
        "fill_mask": lambda net: methods.fill_mask(net, split, special, words, sizes),
    }
    if "answer" in networks:
        source.check_pairs()
    functions = {
        name: _function(make[name](network), SIGNATURES[name].inputs) for name, network in networks.items()
    }
    main = main_method(list(networks))
    return {**functions, TENSORS: _function(methods.tensors(networks[main], main), TENSOR_INPUTS)}


def _function(call: Callable, inputs: tuple[Field, ...]) -> Any:
    """Returns a function of N of everything, each input by its name."""
    kinds = [
        tf.TensorSpec([None, *field.shape], tf.dtypes.as_dtype(field.dtype), name=field.name)
        for field in inputs
    ]
    return tf.function(call, input_signature=kinds, autograph=False)
