"""TF2 object checkpoints of the MLPerf v0.7 submission: `tf.train.Checkpoint(model=...)` of Model Garden's
BertPretrainer or its encoder, tensors under the full names of the Keras variables.

Their attention kernels are split by head: H is the hidden size, A the number of heads, K the head size.
Source: tensorflow/models of TensorFlow 2.2, official/nlp/modeling, and its converter of TF1 checkpoints.
"""

import re

from official.checkpoint import canonical, mapping
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.containers import Progress
from official.checkpoint.formats import Format, Options
from official.checkpoint.mapping import Mapped, Transposed
from official.checkpoint.tensors import Tensor, Tensors
from official.io.errors import ConfigError

_LAYER = "transformer/layer_{layer}"
# {layer of a block: (name in the format, path from the block in the tree of objects)}
_OF_LAYER = {
    # kernel [H, H] and [H, A, K], bias [H] and [A, K]
    "attention/self/query": ("self_attention/query", "_attention_layer/_query_dense"),
    "attention/self/key": ("self_attention/key", "_attention_layer/_key_dense"),
    "attention/self/value": ("self_attention/value", "_attention_layer/_value_dense"),
    # kernel [H, H] and [A, K, H]
    "attention/output/dense": ("self_attention_output", "_attention_output_dense"),
    "attention/output/LayerNorm": ("self_attention_layer_norm", "_attention_layer_norm"),
    "intermediate/dense": ("intermediate", "_intermediate_dense"),
    "output/dense": ("output", "_output_dense"),
    "output/LayerNorm": ("output_layer_norm", "_output_layer_norm"),
}
_WEIGHTS = {
    "bert/embeddings/word_embeddings": "word_embeddings/embeddings",
    "bert/embeddings/token_type_embeddings": "type_embeddings/embeddings",
    "bert/embeddings/position_embeddings": "position_embedding/embeddings",
    "bert/embeddings/LayerNorm/gamma": "embeddings/layer_norm/gamma",
    "bert/embeddings/LayerNorm/beta": "embeddings/layer_norm/beta",
    **{
        f"bert/encoder/layer_{{layer}}/{ours}/{part}": f"{_LAYER}/{theirs}/{part}"
        for ours, (theirs, _) in _OF_LAYER.items()
        for part in (("gamma", "beta") if ours.endswith("LayerNorm") else ("kernel", "bias"))
    },
    "bert/pooler/dense/kernel": "pooler_transform/kernel",
    "bert/pooler/dense/bias": "pooler_transform/bias",
    **{name: name for name in canonical.TRANSFORM},
    "cls/predictions/output_bias": "cls/predictions/output_bias/bias",
    "cls/seq_relationship/output_weights": Transposed("predictions/transform/logits/kernel"),
    "cls/seq_relationship/output_bias": "predictions/transform/logits/bias",
    **dict.fromkeys((*canonical.SQUAD_HEAD, *canonical.CLASSIFIER_HEAD)),
}
TABLE = {**mapping.with_slots(_WEIGHTS, dict.fromkeys(canonical.SLOTS)), **dict.fromkeys(canonical.COUNTERS)}
# A file of a whole training job also has the optimizer. It is read, but not written, since it belongs to an
# optimizer object of Model Garden.
_READ_SLOTS = {"adam_m": "Adam/m", "adam_v": "Adam/v", "lamb_m": "LAMB/m", "lamb_v": "LAMB/v"}
_READ_TABLE = {**mapping.with_slots(_WEIGHTS, _READ_SLOTS), "global_step": "iter"}
_NOT_WRITTEN = (
    "the model of this format has no such variable: it has weights and the pre-training heads, no optimizer"
    " and no counters"
)
_DROPPED = {
    "save_counter": "the number of times that the file was saved",
    r".*\.OPTIMIZER_SLOT/.*": "slot of an optimizer of unknown kind",
    r".*/\w+/(m|v|vhat|momentum|rms|accumulator)": "slot of an optimizer that is neither Adam nor LAMB",
    r"(\w+/)?(learning_rate|beta_[12]|(weight_)?decay|epsilon|momentum|rho)": "a setting of the optimizer",
    r"current_loss_scale|good_steps|.*/(current_loss_scale|good_steps)": "state of the loss scale",
    r"(.*/)?(total|count)": "state of a metric",
    r".*\.ATTRIBUTES/OBJECT_CONFIG_JSON": "settings of a layer, not a tensor",
}
_OTHER_HEAD = "the head of a fine-tuned model, of an unknown task and without a masked-LM head"

# Path of a layer in the tree of objects. {place}: 4 + its number in the stack; the pooler comes after the
# stack.
_ENCODER_OBJECTS = {
    "word_embeddings": "layer_with_weights-0",
    "position_embedding": "layer_with_weights-1",
    "type_embeddings": "layer_with_weights-2",
    "embeddings/layer_norm": "layer_with_weights-3",
    **{f"{_LAYER}/{theirs}": f"layer_with_weights-{{place}}/{path}" for theirs, path in _OF_LAYER.values()},
    "pooler_transform": "layer_with_weights-{place}",
}
# In the submission (Model Garden 2.2), and in 2.3, which has the two heads in reverse order. Both are
# written. The first path uses the number among all layers, since layer_with_weights-1/layer_with_weights-0
# would be the dense layer of either head.
_HEAD_OBJECTS = {
    layer: (f"layer_with_weights-{first}", f"layer_with_weights-{later}")
    for layer, first, later in (
        ("cls/predictions/transform/dense", "1/layer-3", "2/dense"),
        ("cls/predictions/transform/LayerNorm", "1/layer-4", "2/layer_norm"),
        ("cls/predictions/output_bias", "1/layer-6", "2"),
        ("predictions/transform/logits", "2/layer-1", "1/layer-1"),
    )
}


def to_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the canonical names and joins the heads.

    Raises:
      ConfigError: if `num_attention_heads` is given and the kernels are split into another number of heads.
    """
    plain = _with_plain_names(tensors)
    fine_tuned = not any(name.startswith("cls/predictions/") for name in plain)
    other_head = r"predictions/transform/logits/(kernel|bias)" if fine_tuned else ""
    kept, dropped = mapping.without(plain, {other_head: _OTHER_HEAD})
    joined = {name: _joined_heads(name, tensor, options) for name, tensor in kept.items()}
    mapped = mapping.to_canonical(_READ_TABLE, joined, _DROPPED)
    mapped.dropped |= dropped
    return mapped


def from_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the names of this format and splits the tensors of the attention by head.

    Raises:
      ConfigError: if the number of heads is unknown, or does not divide the hidden size.
    """
    mapped = mapping.from_canonical(TABLE, tensors, _NOT_WRITTEN)
    mapped.tensors = {name: _split_heads(name, tensor, options) for name, tensor in mapped.tensors.items()}
    return mapped


def heads_of(tensors: Tensors) -> int | None:
    """Returns the number of attention heads from the shape [H, A, K] of a query kernel; None without one.
    Names are the format's."""
    query = r"transformer/layer_\d+/self_attention/query/kernel"
    plain = _with_plain_names(tensors)
    kernels = [tensor.shape for name, tensor in plain.items() if re.fullmatch(query, name)]
    return next((shape[1] for shape in kernels if len(shape) == 3), None)


def _with_plain_names(tensors: Tensors) -> Tensors:
    """Normalizes names that depend on the process that wrote the file; a name that would clash with another
    tensor is kept."""
    plain: Tensors = {}
    for name, tensor in tensors.items():
        new = _plain_name(name)
        plain[name if new != name and (new in plain or new in tensors) else new] = tensor
    return plain


def _plain_name(name: str) -> str:
    # Keras numbers the layers and optimizers that it names: position_embedding_1 if the process had already
    # made one.
    name = re.sub(r"(?<!layer)_\d+(?=/)", "", name)
    name = name.replace("/self_attention/attention_output/", "/self_attention_output/")  # Model Garden 2.3
    name = re.sub(r"^(\w+)/(m|v)/(.+)$", r"\3/\1/\2", name)  # slots of Keras' newer optimizers
    name = re.sub(r"AdamWeightDecay/(\w+)$", r"Adam/\1", name)  # Model Garden's Adam with weight decay
    return re.sub(r"^(\w+/iter|iteration)$", "iter", name)


def _axis_of_heads(name: str) -> int | None:
    """Returns the axis of a tensor, or of one of its slots, that is (or will be) split by head; None for
    others."""
    parts = r"(/(query|key|value)/(kernel|bias)|_output/kernel)(/\w+/[mv])?"
    found = re.fullmatch(rf"transformer/layer_\d+/self_attention{parts}", name)
    return None if found is None else int(found[3] == "kernel")


def _joined_heads(name: str, tensor: Tensor, options: Options) -> Tensor:
    """[H, A, K] -> [H, H], [A, K] -> [H], [A, K, H] -> [H, H]; tensors without heads are kept."""
    axis, shape = _axis_of_heads(name), tensor.shape
    if axis is None or len(shape) != (2 if "/bias" in name else 3):
        return tensor
    heads, size = shape[axis : axis + 2]
    if options.num_attention_heads not in (None, heads):
        given = f"--num_attention_heads={options.num_attention_heads}"
        advice = f"Change --num_attention_heads to {heads} or drop it."
        raise ConfigError(f"{name} {list(shape)} is split into {heads} heads, but {given}. {advice}")
    return tensors_lib.reshaped(tensor, (*shape[:axis], heads * size, *shape[axis + 2 :]))


def _split_heads(name: str, tensor: Tensor, options: Options) -> Tensor:
    axis, shape = _axis_of_heads(name), tensor.shape
    if axis is None:
        return tensor
    hidden = shape[axis]
    heads = options.heads_of(hidden)
    if heads is None:  # no default: readers take it from the shapes, and another number is a different model
        raise ConfigError(
            "the number of attention heads is unknown, and the kernels of this format are split by it. Give"
            f" --num_attention_heads=N, a divisor of hidden_size={hidden}, or put the model's config.json or"
            " bert_config.json next to the checkpoint."
        )
    return tensors_lib.reshaped(tensor, (*shape[:axis], heads, hidden // heads, *shape[axis + 1 :]))


def write(tensors: Tensors, prefix: str, options: Options, progress: Progress) -> None:
    """Writes tensors of this format in the tree of objects of the published models."""
    from official.checkpoint.containers import object_bundle  # late: imports TensorFlow

    object_bundle.write(tensors, prefix, progress, object_paths(list(tensors)))


def object_paths(names: list[str]) -> dict[str, tuple[str, ...]]:
    """Returns the paths of variables in the tree of objects under `model`: those of a pretrainer if there are
    heads, otherwise those of an encoder.

    Args:
      names: names of this format's variables.

    Returns:
      {name: paths of the variable}, e.g. (layer_with_weights-0/layer_with_weights-3/gamma,).
    """
    numbers = {name: re.match(r"transformer/layer_(\d+)/", name) for name in names}
    layers = max((int(number[1]) + 1 for number in numbers.values() if number), default=0)
    has_heads = any(name.rpartition("/")[0] in _HEAD_OBJECTS for name in names)
    paths = {}
    for name, number in numbers.items():
        layer, _, variable = name.rpartition("/")
        ways: tuple[str, ...] = _HEAD_OBJECTS.get(layer, ())
        if not ways:
            path = _ENCODER_OBJECTS[re.sub(r"^transformer/layer_\d+", _LAYER, layer)]
            place = 4 + (int(number[1]) if number else layers)
            ways = (f"{'layer_with_weights-0/' if has_heads else ''}{path.format(place=place)}",)
        paths[name] = tuple(f"{way}/{variable}" for way in ways)
    return paths


FORMAT = Format(
    name="garden",
    title="Model Garden TF2",
    container="object_bundle",
    to_canonical=to_canonical,
    from_canonical=from_canonical,
    precedence=11,
    heads_of=heads_of,
    writer=write,
)
