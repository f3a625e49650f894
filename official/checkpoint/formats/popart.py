"""Graphcore's PopART BERT: names of the initializers in its ONNX files.

The written names are those of Graphcore's loader of TensorFlow checkpoints, with the word embeddings in rows
[V, H] and query, key and value side by side. Files of PopART's own training are read, too. Depending on its
settings, they differ:

  QKV               or separate, as Q, K and V; the bias endings are `_bias` or `_Bias`.
  Embedding_Dict    [V, H], or [H, V] after pre-training, or blocks of rows Embedding_Dict/split0, .... The
                    size H of Embedding/Gamma determines the orientation; [V, H] if V = H.
  Absent biases     in the attention (PopART's default) are read as zeros, which are the same function.
  Epsilon           of LayerNorm is 0.001 by default in its program (bert_model.py).

The optimizer's moments (Accl1___NAME, Accl2___NAME) are read as LAMB's for loss scale 1: PopART multiplies
them by the loss scale and its square while training, and a file does not store the scale.
"""

import re

from official.checkpoint import canonical, mapping
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.formats import ENCODER_NAMES, Format, Options, graphcore
from official.checkpoint.mapping import Mapped, Transposed
from official.checkpoint.tensors import Tensor, Tensors

# {layer of a block: (name in the format, endings of its two weights)}
_NORM_ENDS = {"gamma": "Gamma", "beta": "Beta"}
_QKV_ENDS, _DENSE_ENDS = {"kernel": "", "bias": "_bias"}, {"kernel": "W", "bias": "B"}
_OF_LAYER = {
    "attention/self/query": ("Attention/Q", _QKV_ENDS),
    "attention/self/key": ("Attention/K", _QKV_ENDS),
    "attention/self/value": ("Attention/V", _QKV_ENDS),
    "attention/output/dense": ("Attention/Out", _QKV_ENDS),
    "attention/output/LayerNorm": ("Attention/", _NORM_ENDS),
    "intermediate/dense": ("FF/1/", _DENSE_ENDS),
    "output/dense": ("FF/2/", _DENSE_ENDS),
    "output/LayerNorm": ("FF/", _NORM_ENDS),
}
_WEIGHTS: mapping.Table = {
    "bert/embeddings/word_embeddings": "Embedding/Embedding_Dict",
    "bert/embeddings/position_embeddings": "Embedding/Positional_Dict",
    "bert/embeddings/token_type_embeddings": "Embedding/Segment_Dict",
    "bert/embeddings/LayerNorm/gamma": "Embedding/Gamma",
    "bert/embeddings/LayerNorm/beta": "Embedding/Beta",
    **{
        f"bert/encoder/layer_{{layer}}/{ours}/{part}": f"Layer{{layer}}/{theirs}{end}"
        for ours, (theirs, ends) in _OF_LAYER.items()
        for part, end in ends.items()
    },
    "bert/pooler/dense/kernel": "NSP/PoolW",
    "bert/pooler/dense/bias": "NSP/PoolB",
    "cls/predictions/transform/dense/kernel": "CLS/LMPredictionW",
    "cls/predictions/transform/dense/bias": "CLS/LMPredictionB",
    "cls/predictions/transform/LayerNorm/gamma": "CLS/Gamma",
    "cls/predictions/transform/LayerNorm/beta": "CLS/Beta",
    "cls/predictions/output_bias": "MLM/ProjectionB",
    "cls/seq_relationship/output_weights": Transposed("NSP/NspW"),
    "cls/seq_relationship/output_bias": "NSP/NspB",
    "cls/squad/output_weights": Transposed("Squad/SquadW"),
    "cls/squad/output_bias": "Squad/SquadB",
    **dict.fromkeys(canonical.CLASSIFIER_HEAD),
}
# Slots are suffixes here and prefixes in the file.
_SLOTS = {**dict.fromkeys(canonical.SLOTS), "lamb_m": "lamb_m", "lamb_v": "lamb_v"}
TABLE = {**mapping.with_slots(_WEIGHTS, _SLOTS), **dict.fromkeys(canonical.COUNTERS)}
_SLOT_PREFIXES = {"lamb_m": "Accl1___", "lamb_v": "Accl2___"}
_STACKS = {
    f"Layer{{layer}}/Attention/QKV{end}": tuple(f"Layer{{layer}}/Attention/{part}{end}" for part in "QKV")
    for end in ("", "_bias")
}
_DROPPED = {
    r"Step___.*": "a counter, derived from the step",
    r"Accum___.*": "gradients of a step that was not finished",
    r"Accl___.*": "momentum of PopART's SGD, which no other format has in these units",
}


def to_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the canonical names. Raises ConfigError for blocks of words that are incomplete, or a
    stacked tensor that cannot be split."""
    spelling = mapping.Spelling(tensors, lambda name: _common_name(name, tensors))
    gamma = tensors.get("Embedding/Gamma")
    upright = dict(spelling.tensors)
    if gamma is not None and len(gamma.shape) == 1:
        upright = {name: _upright(name, tensor, gamma.shape[0]) for name, tensor in upright.items()}
    rest, words = mapping.join_rows(upright)
    rest, parts = mapping.unstack(rest, _STACKS)
    mapped = mapping.to_canonical(TABLE, {**rest, **parts}, _DROPPED)
    spelling.restore(mapped)
    mapped.tensors |= words
    mapping.add_zero_biases(mapped)
    return mapped


def from_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to PopART's names."""
    mapped = mapping.from_canonical(TABLE, tensors, "")
    mapped.dropped = {name: _reason(name) for name in mapped.dropped}
    rest, wholes = mapping.stack(mapped.tensors, _STACKS)
    mapped.tensors = {_file_name(name): tensor for name, tensor in {**rest, **wholes}.items()}
    return mapped


def _common_name(name: str, tensors: Tensors) -> str:
    """Returns the name with its slot at the end, in the spelling of TABLE; for a block of words, in the
    spelling of `mapping.join_rows`."""
    common = name
    for slot, prefix in _SLOT_PREFIXES.items():
        if name.startswith(prefix):
            common = f"{name.removeprefix(prefix)}/{slot}"
    common = re.sub(r"(/Attention/\w+)_Bias\b", r"\1_bias", common)
    if re.sub(r"/split\d+$", "", name) in tensors:  # the file also has the whole, or it is not a block
        return common
    return re.sub(r"^Embedding/Embedding_Dict/split(\d+)", r"bert/embeddings/s\1/word_embeddings", common)


def _upright(common: str, tensor: Tensor, hidden: int) -> Tensor:
    """Returns an embedding table as rows of the hidden size."""
    is_table = re.match(r"Embedding/(Embedding|Positional)_Dict\b|bert/embeddings/s\d+/", common)
    if is_table and len(tensor.shape) == 2 and tensor.shape[0] == hidden != tensor.shape[1]:
        return tensors_lib.transposed(tensor)
    return tensor


def _file_name(name: str) -> str:
    weight, _, slot = name.rpartition("/")
    return _SLOT_PREFIXES[slot] + weight if slot in _SLOT_PREFIXES else name


def _reason(name: str) -> str:
    if name in canonical.COUNTERS:
        return "a counter of the trainer, which PopART's files do not have"
    if name.startswith(canonical.CLASSIFIER_HEAD):
        return "PopART's BERT has no classifier"
    return "moments of Adam; PopART's are read as LAMB's"


FORMAT = Format(
    name="popart",
    title="Graphcore PopART",
    container="onnx_file",
    to_canonical=to_canonical,
    from_canonical=from_canonical,
    precedence=12,
    encoder_names=rf"{ENCODER_NAMES}|^(Layer\d+|Embedding)/",
    usual_epsilon=graphcore.EPSILON,
    float32_names="Accl[12]___.*",  # the optimizer's moments
)
