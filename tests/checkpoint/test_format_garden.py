"""TF2 object checkpoints: read what a Keras model of the published tree has saved, write what it restores."""

import os

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from official.checkpoint import DamagedError, canonical
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.containers import bundle, object_bundle
from official.checkpoint.formats import NOTHING_GIVEN, Options, garden
from official.io.errors import ConfigError
from tests.checkpoint.tensors import (
    arrays_of,
    assert_same,
    of_arrays,
    random_tensors,
    shapes,
    shapes_of,
    with_slots,
    zeros,
)
from tests.fixtures import slow

HIDDEN, HEADS, LAYERS, WORDS, INNER, POSITIONS = 12, 3, 2, 20, 16, 8
SPLIT = (HEADS, HIDDEN // HEADS)
OPTIONS = Options(num_attention_heads=HEADS)


class Weights(tf.keras.layers.Layer):
    """A layer with variables, {name: shape}, that passes its input on."""

    def __init__(self, name: str, **shapes):
        super().__init__(name=name)
        self._shapes = shapes

    def build(self, input_shape):
        for name, shape in self._shapes.items():
            self.add_weight(name, shape=shape, initializer="random_normal")

    def call(self, x):
        return x


def dense(name: str, inputs: int = HIDDEN, outputs: int = HIDDEN) -> Weights:
    return Weights(name, kernel=(inputs, outputs), bias=(outputs,))


def layer_norm(name: str) -> Weights:
    return Weights(name, gamma=(HIDDEN,), beta=(HIDDEN,))


def heads(name: str) -> Weights:
    return Weights(name, kernel=(HIDDEN, *SPLIT), bias=SPLIT)


class Attention(tf.keras.layers.Layer):
    def __init__(self, name: str):
        super().__init__(name=name)
        self._query_dense, self._key_dense, self._value_dense = heads("query"), heads("key"), heads("value")

    def call(self, x):
        return self._value_dense(self._key_dense(self._query_dense(x)))


class Transformer(tf.keras.layers.Layer):
    def __init__(self, name: str):
        super().__init__(name=name)
        self._attention_layer = Attention("self_attention")
        shapes = dict(kernel=(*SPLIT, HIDDEN), bias=(HIDDEN,))
        self._attention_output_dense = Weights("self_attention_output", **shapes)
        self._attention_layer_norm = layer_norm("self_attention_layer_norm")
        self._intermediate_dense = dense("intermediate", HIDDEN, INNER)
        self._output_dense = dense("output", INNER, HIDDEN)
        self._output_layer_norm = layer_norm("output_layer_norm")

    def call(self, x):
        x = self._attention_layer_norm(self._attention_output_dense(self._attention_layer(x)))
        return self._output_layer_norm(self._output_dense(self._intermediate_dense(x)))


def make_encoder() -> tf.keras.Model:
    x = words = tf.keras.Input((HIDDEN,))
    x = Weights("word_embeddings", embeddings=(WORDS, HIDDEN))(x)
    x = Weights("position_embedding", embeddings=(POSITIONS, HIDDEN))(x)
    x = Weights("type_embeddings", embeddings=(2, HIDDEN))(x)
    x = tf.keras.layers.Dropout(0.0)(layer_norm("embeddings/layer_norm")(x))
    for number in range(LAYERS):
        x = Transformer(f"transformer/layer_{number}")(x)
    return tf.keras.Model(words, [x, dense("pooler_transform")(x)], name="transformer_encoder")


def make_masked_lm() -> tf.keras.Model:
    sequence, positions = tf.keras.Input((HIDDEN,)), tf.keras.Input((HIDDEN,))
    x = tf.keras.layers.Lambda(lambda pair: pair[0] + pair[1])([sequence, positions])
    x = layer_norm("cls/predictions/transform/LayerNorm")(dense("cls/predictions/transform/dense")(x))
    x = Weights("cls/predictions/output_bias", bias=(WORDS,))(tf.keras.layers.Lambda(lambda x: x)(x))
    return tf.keras.Model([sequence, positions], x, name="masked_lm")


def make_pretrainer() -> tf.keras.Model:
    """Returns a model with the variables of the submission's pretrainer, their names and their places in the
    tree of objects."""
    encoder, masked_lm = make_encoder(), make_masked_lm()
    pooled = tf.keras.Input((HIDDEN,))
    logits = dense("predictions/transform/logits", HIDDEN, 2)(pooled)
    classification = tf.keras.Model(pooled, logits, name="classification")
    positions = tf.keras.Input((HIDDEN,))
    sequence, summary = encoder(encoder.inputs)
    outputs = [masked_lm([sequence, positions]), classification(summary)]
    return tf.keras.Model([*encoder.inputs, positions], outputs)


class Namespace(tf.Module):
    """An object with attributes."""


def make_later_pretrainer() -> tf.Module:
    """Returns the tree of Model Garden 2.3's pretrainer: the heads swapped, the masked-LM head one layer."""
    model = make_pretrainer()
    encoder, masked_lm, classification = (layer for layer in model.layers if layer.weights)
    weights = [layer for layer in masked_lm.layers if layer.weights]
    head, root = Namespace(), Namespace()
    head.dense, head.layer_norm, head.bias = weights[0], weights[1], weights[2].weights[0]
    for number, child in enumerate((encoder, classification, head)):
        setattr(root, f"layer_with_weights-{number}", child)
    root.weights = model.weights
    return root


MODELS = {
    "pretrainer": (make_pretrainer, (*canonical.ENCODER, *canonical.PRETRAINING_HEADS)),
    "encoder": (make_encoder, canonical.ENCODER),
}
SIZES = canonical.Sizes(WORDS, HIDDEN, INNER, POSITIONS, types=2)


def random_canonical(names=canonical.ENCODER, dtype=np.float32) -> tensors_lib.Tensors:
    return random_tensors(shapes_of(names, SIZES), dtype)


def write(tensors, prefix) -> str:
    mapped = garden.from_canonical(tensors, OPTIONS)
    assert not mapped.unmatched
    garden.write(mapped.tensors, str(prefix), OPTIONS, lambda size: None)
    return str(prefix)


def read(prefix, options=NOTHING_GIVEN) -> garden.Mapped:
    return garden.to_canonical(object_bundle.read(str(prefix)), options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_reads_what_the_model_saves(kind, tmp_path):
    make, names = MODELS[kind]
    tf.keras.backend.clear_session()
    model = make()
    prefix = tf.train.Checkpoint(model=model).save(str(tmp_path / "bert_model.ckpt"))
    assert object_bundle.locate(str(tmp_path)) == object_bundle.locate(f"{prefix}.index") == prefix
    found = arrays_of(object_bundle.read(prefix))
    assert garden.heads_of(object_bundle.read(prefix)) == HEADS
    assert found.pop("save_counter") == 1
    assert_same(found, {variable.name.removesuffix(":0"): variable.numpy() for variable in model.variables})
    mapped = read(prefix)
    assert not mapped.unmatched and mapped.dropped.keys() == {"save_counter"}
    assert shapes(mapped.tensors) == shapes(arrays_of(mapped.tensors)) == shapes_of(names, SIZES)
    kernel = found["transformer/layer_1/self_attention/query/kernel"]
    ours = mapped.tensors["bert/encoder/layer_1/attention/self/query/kernel"].read()
    assert kernel.shape == (HIDDEN, *SPLIT) and np.array_equal(ours, kernel.reshape(HIDDEN, HIDDEN))
    if kind == "pretrainer":
        ours = mapped.tensors["cls/seq_relationship/output_weights"].read()
        assert np.array_equal(ours, found["predictions/transform/logits/kernel"].T)


@pytest.mark.parametrize(
    "make, names",
    [slow(*MODELS["pretrainer"]), MODELS["encoder"], (make_later_pretrainer, MODELS["pretrainer"][1])],
    ids=["pretrainer", "encoder", "later pretrainer"],
)
def test_the_model_restores_what_is_written(make, names, tmp_path):
    tensors = random_canonical(names)
    prefix = write(tensors, tmp_path / "bert_model.ckpt")
    assert sorted(os.listdir(tmp_path)) == ["bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"]
    model = make()
    status = tf.train.Checkpoint(model=model).restore(prefix)
    status.assert_existing_objects_matched()
    status.assert_consumed()
    found = {
        variable.name.removesuffix(":0").replace("embedding_1/", "embedding/"): variable.numpy()
        for variable in model.weights
    }
    assert_same(found, arrays_of(garden.from_canonical(tensors, OPTIONS).tensors))
    if make is make_encoder:  # other people's tools read the keys without a model
        theirs = tf.train.Checkpoint(model=model).save(str(tmp_path / "theirs"))
        assert tf.train.list_variables(prefix) == tf.train.list_variables(theirs)


def test_number_of_heads(tmp_path):
    said = "--num_attention_heads=5 must be an integer that divides hidden_size=12"
    with pytest.raises(ConfigError, match=said):
        garden.from_canonical(random_canonical(), Options(num_attention_heads=5))
    name = "bert/encoder/layer_0/attention/output/dense/kernel"
    with pytest.raises(ConfigError, match="Give --num_attention_heads=N, a divisor of hidden_size=384"):
        garden.from_canonical(zeros(name, shape=(384, 384)), Options())  # 12 heads, not 384 / 64
    mapped = garden.from_canonical(zeros(name, shape=(384, 384)), Options(num_attention_heads=12))
    assert mapped.tensors["transformer/layer_0/self_attention_output/kernel"].shape == (12, 32, 384)
    prefix = write(random_canonical(), tmp_path / "ckpt")
    assert not read(prefix, OPTIONS).unmatched
    with pytest.raises(ConfigError, match="is split into 3 heads, but --num_attention_heads=4"):
        read(prefix, Options(num_attention_heads=4))
    names = garden.from_canonical(random_canonical(), OPTIONS).tensors
    assert garden.heads_of({name: names[name] for name in names if "query" not in name}) is None


@pytest.mark.parametrize(
    "make, slot",
    [
        (lambda: tf.keras.optimizers.Adam(0.1), "adam"),
        (lambda: tf.keras.optimizers.legacy.Adam(0.1, name="AdamWeightDecay"), "adam"),
        slow(lambda: pytest.importorskip("tensorflow_addons").optimizers.LAMB(0.1), "lamb"),
        slow(lambda: tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9), None),
    ],
    ids=["new adam", "adam with weight decay", "lamb", "sgd"],
)
def test_slots_of_optimizers(make, slot, tmp_path):
    """Those of another one than Adam and LAMB are dropped."""
    tf.keras.backend.clear_session()
    model, optimizer = make_encoder(), make()
    optimizer.apply_gradients([(tf.ones_like(variable), variable) for variable in model.trainable_variables])
    mapped = read(tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(tmp_path / "ckpt")))
    assert not mapped.unmatched and mapped.tensors["global_step"].read() == 1
    slots = (f"{slot}_m", f"{slot}_v") if slot else ()
    assert mapped.tensors.keys() == with_slots(shapes_of(canonical.ENCODER), *slots).keys() | {"global_step"}
    if slot is None:
        assert "neither Adam nor LAMB" in mapped.dropped["pooler_transform/kernel/SGD/momentum"]
        return
    moment = mapped.tensors[f"bert/encoder/layer_0/attention/self/key/kernel/{slot}_m"]
    assert moment.shape == moment.read().shape == (HIDDEN, HIDDEN) and np.allclose(moment.read(), 0.1)


def test_names_of_a_second_model_in_a_process():
    tensors = zeros("position_embedding_3/embeddings", shape=(8, HIDDEN))
    tensors |= zeros("transformer/layer_11/self_attention/attention_output/bias", shape=(HIDDEN,))
    assert garden.to_canonical(tensors, Options()).tensors.keys() == {
        "bert/embeddings/position_embeddings",
        "bert/encoder/layer_11/attention/output/dense/bias",
    }
    both = tensors | zeros("position_embedding/embeddings", shape=(8, HIDDEN))
    assert garden.to_canonical(both, Options()).unmatched == ["position_embedding_3/embeddings"]


def test_checkpoints_of_other_models(tmp_path):
    model = tf.keras.Sequential([make_encoder().layers[-1], dense("predictions/transform/logits", HIDDEN, 2)])
    model(tf.zeros((1, HIDDEN)))
    mapped = read(tf.train.Checkpoint(model=model).save(str(tmp_path / "fine_tuned")))
    assert "fine-tuned" in mapped.dropped["predictions/transform/logits/kernel"]  # no next-sentence head
    assert mapped.tensors.keys() == set(canonical.POOLER)
    root = Namespace()
    root.first, root.second = tf.Variable(1.0, name="conv/kernel"), tf.Variable(2.0, name="conv/kernel")
    root.third = tf.Variable(3.0, name="head")
    mapped = read(tf.train.Checkpoint(net=root).save(str(tmp_path / "ckpt")))
    assert not mapped.tensors and sorted(mapped.unmatched) == ["head", "net/first", "net/second"]
    bundle.write(zeros("bert/a"), str(tmp_path / "by_name"))
    assert object_bundle.locate(str(tmp_path / "by_name")) is None
    assert object_bundle.locate(str(tmp_path / "none")) is None
    with pytest.raises(DamagedError, match="it has no object graph"):
        object_bundle.read(str(tmp_path / "by_name"))


def test_a_damaged_graph(tmp_path):
    missing, wrong = (trackable_object_graph_pb2.TrackableObjectGraph() for _ in range(2))
    missing.nodes.add().attributes.add(name="VARIABLE_VALUE", checkpoint_key="gone")
    wrong.nodes.add().children.add(node_id=7, local_name="gone")
    for content in (b"\xff\xff\xff", missing.SerializeToString(), wrong.SerializeToString()):
        graph = of_arrays({"_CHECKPOINTABLE_OBJECT_GRAPH": np.array(content, object)})
        bundle.write(graph, str(tmp_path / "ckpt"))
        with pytest.raises(DamagedError):
            object_bundle.read(str(tmp_path / "ckpt"))
