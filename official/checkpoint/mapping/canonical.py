"""The names that stand between two formats: Google's TF1 names, which this project's variables have too."""

from __future__ import annotations

import dataclasses

EMBEDDINGS = (
    "bert/embeddings/word_embeddings",
    "bert/embeddings/token_type_embeddings",
    "bert/embeddings/position_embeddings",
    "bert/embeddings/LayerNorm/gamma",
    "bert/embeddings/LayerNorm/beta",
)
LAYER = tuple(
    f"bert/encoder/layer_{{layer}}/{name}"
    for name in (
        "attention/self/query/kernel",
        "attention/self/query/bias",
        "attention/self/key/kernel",
        "attention/self/key/bias",
        "attention/self/value/kernel",
        "attention/self/value/bias",
        "attention/output/dense/kernel",
        "attention/output/dense/bias",
        "attention/output/LayerNorm/gamma",
        "attention/output/LayerNorm/beta",
        "intermediate/dense/kernel",
        "intermediate/dense/bias",
        "output/dense/kernel",
        "output/dense/bias",
        "output/LayerNorm/gamma",
        "output/LayerNorm/beta",
    )
)
POOLER = ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")
TRANSFORM = (
    "cls/predictions/transform/dense/kernel",
    "cls/predictions/transform/dense/bias",
    "cls/predictions/transform/LayerNorm/gamma",
    "cls/predictions/transform/LayerNorm/beta",
)
OUTPUT_BIAS = "cls/predictions/output_bias"
NEXT_SENTENCE_HEAD = ("cls/seq_relationship/output_weights", "cls/seq_relationship/output_bias")
PRETRAINING_HEADS = (*TRANSFORM, OUTPUT_BIAS, *NEXT_SENTENCE_HEAD)
SQUAD_HEAD = ("cls/squad/output_weights", "cls/squad/output_bias")  # [2, H], [2]
CLASSIFIER_HEAD = ("output_weights", "output_bias")  # [C, H], [C]

ENCODER = (*EMBEDDINGS, *LAYER, *POOLER)
WEIGHTS = (*ENCODER, *PRETRAINING_HEADS, *SQUAD_HEAD, *CLASSIFIER_HEAD)

# Of a weight NAME: NAME/adam_m, in the shape of the weight.
SLOTS = ("adam_m", "adam_v", "lamb_m", "lamb_v", "Momentum")
# Ends the pattern of a name that may be a slot of it.
SLOT = f"(?P<slot>(?:/(?:{'|'.join(SLOTS)}))?)"
COUNTERS = ("global_step", "samples", "loss_scale/scale", "loss_scale/good_steps")

# Tensors with one row or value per word: cut and filled up together.
VOCABULARY = ("bert/embeddings/word_embeddings", OUTPUT_BIAS)

# (Where one of these is there, all of those must be.) A masked-LM head may be the bias alone, as Graphcore's
# without a transform.
HEAD_GROUPS = (
    (TRANSFORM, (*TRANSFORM, OUTPUT_BIAS)),
    ((OUTPUT_BIAS,), (OUTPUT_BIAS,)),
    (NEXT_SENTENCE_HEAD, NEXT_SENTENCE_HEAD),
    (SQUAD_HEAD, SQUAD_HEAD),
    (CLASSIFIER_HEAD, CLASSIFIER_HEAD),
)

# What a model may be without, in all of its layers: patterns of the names of what goes together.
QKV_BIAS = r"bert/encoder/layer_\d+/attention/self/(query|key|value)/bias"
PROJECTION_BIAS = r"bert/encoder/layer_\d+/attention/(output|projection)/dense/bias"
MIXER = r"bert/encoder/layer_\d+/feed_forward_\d/output/mixer/dense/(kernel|bias)"  # GroupBERT of one group

# GroupBERT. Google has no names for it; these are Graphcore's. Kernels [in, out]; dwconv/weight [kernel size,
# group size, H].
GROUPBERT_LAYER = tuple(
    f"bert/encoder/layer_{{layer}}/{name}"
    for name in (
        "convolution/prenorm/LayerNorm/gamma",
        "convolution/prenorm/LayerNorm/beta",
        "convolution/pre/glu/values/dense/kernel",
        "convolution/pre/glu/values/dense/bias",
        "convolution/pre/glu/gates/dense/kernel",
        "convolution/pre/glu/gates/dense/bias",
        "convolution/dwconv/weight",
        "convolution/dwconv/LayerNorm/gamma",
        "convolution/dwconv/LayerNorm/beta",
        "convolution/post/dense/kernel",
        "convolution/post/dense/bias",
        "feed_forward_1/prenorm/LayerNorm/gamma",
        "feed_forward_1/prenorm/LayerNorm/beta",
        "feed_forward_1/intermediate/dense/kernel",
        "feed_forward_1/intermediate/dense/bias",
        "feed_forward_1/output/dense/kernel",
        "feed_forward_1/output/dense/bias",
        "feed_forward_1/output/mixer/dense/kernel",
        "feed_forward_1/output/mixer/dense/bias",
        "attention/prenorm/LayerNorm/gamma",
        "attention/prenorm/LayerNorm/beta",
        "attention/self/query/kernel",
        "attention/self/query/bias",
        "attention/self/key/kernel",
        "attention/self/key/bias",
        "attention/self/value/kernel",
        "attention/self/value/bias",
        "attention/projection/dense/kernel",
        "attention/projection/dense/bias",
        "feed_forward_2/prenorm/LayerNorm/gamma",
        "feed_forward_2/prenorm/LayerNorm/beta",
        "feed_forward_2/intermediate/dense/kernel",
        "feed_forward_2/intermediate/dense/bias",
        "feed_forward_2/output/dense/kernel",
        "feed_forward_2/output/dense/bias",
        "feed_forward_2/output/mixer/dense/kernel",
        "feed_forward_2/output/mixer/dense/bias",
    )
)
FINAL_NORM = ("LayerNorm/gamma", "LayerNorm/beta")
GROUPBERT = (*EMBEDDINGS, *GROUPBERT_LAYER, *FINAL_NORM, *POOLER)  # its encoder


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a BERT: words of the vocabulary, hidden size, size between the feed-forward layers, positions,
    token types, classes."""

    words: int
    hidden: int
    inner: int
    positions: int
    types: int
    classes: int = 2


def shape_of(name: str, sizes: Sizes) -> tuple[int, ...]:
    """Returns the shape of a weight of WEIGHTS, with the number of a layer or with `{layer}`. Kernels are
    [in, out]."""
    hidden, inner = sizes.hidden, sizes.inner
    special = {
        "bert/embeddings/word_embeddings": (sizes.words, hidden),
        "bert/embeddings/position_embeddings": (sizes.positions, hidden),
        "bert/embeddings/token_type_embeddings": (sizes.types, hidden),
        OUTPUT_BIAS: (sizes.words,),
        "cls/seq_relationship/output_weights": (2, hidden),
        "cls/seq_relationship/output_bias": (2,),
        "cls/squad/output_weights": (2, hidden),
        "cls/squad/output_bias": (2,),
        "output_weights": (sizes.classes, hidden),
        "output_bias": (sizes.classes,),
    }
    if name in special:
        return special[name]
    if "/intermediate/dense/" in name:
        return (hidden, inner) if name.endswith("/kernel") else (inner,)
    if name.endswith("/output/dense/kernel") and "/attention/" not in name:
        return inner, hidden
    return (hidden, hidden) if name.endswith("/kernel") else (hidden,)


def rank_of(name: str) -> int:
    """Returns the number of dimensions of a weight of WEIGHTS or GROUPBERT."""
    if name.endswith("/dwconv/weight"):
        return 3
    return 2 if name.endswith(("kernel", "embeddings", "output_weights")) else 1
