"""Canonical names, the intermediate of all conversions: Google's TF1 names, which are also this project's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

Value = TypeVar("Value")

# -----------------------------------------------------------------------------------------------------------
# Names and shapes


def _dense(*layers: str) -> tuple[str, ...]:
    return tuple(f"{layer}/{part}" for layer in layers for part in ("kernel", "bias"))


def _norm(layer: str) -> tuple[str, ...]:
    return f"{layer}/LayerNorm/gamma", f"{layer}/LayerNorm/beta"


def _in_layer(*names: str) -> tuple[str, ...]:
    return tuple(f"bert/encoder/layer_{{layer}}/{name}" for name in names)


_QKV = _dense("attention/self/query", "attention/self/key", "attention/self/value")
SEGMENTS = "bert/embeddings/token_type_embeddings"
EMBEDDINGS = (
    "bert/embeddings/word_embeddings",
    SEGMENTS,
    "bert/embeddings/position_embeddings",
    *_norm("bert/embeddings"),
)
LAYER = _in_layer(
    *_QKV,
    *_dense("attention/output/dense"),
    *_norm("attention/output"),
    *_dense("intermediate/dense", "output/dense"),
    *_norm("output"),
)
POOLER = _dense("bert/pooler/dense")
TRANSFORM = (*_dense("cls/predictions/transform/dense"), *_norm("cls/predictions/transform"))
OUTPUT_BIAS = "cls/predictions/output_bias"
NEXT_SENTENCE_HEAD = ("cls/seq_relationship/output_weights", "cls/seq_relationship/output_bias")
PRETRAINING_HEADS = (*TRANSFORM, OUTPUT_BIAS, *NEXT_SENTENCE_HEAD)
SQUAD_HEAD = ("cls/squad/output_weights", "cls/squad/output_bias")  # [2, H], [2]
CLASSIFIER_HEAD = ("output_weights", "output_bias")  # [C, H], [C]

ENCODER = (*EMBEDDINGS, *LAYER, *POOLER)
WEIGHTS = (*ENCODER, *PRETRAINING_HEADS, *SQUAD_HEAD, *CLASSIFIER_HEAD)

# Additional weights of ELECTRA, named as in its code: the projection of narrower tables [W] to vectors [H],
# and the head that detects replaced tokens. GENERATOR/NAME is the weight NAME of its generator, including
# separate embeddings.
PROJECTION = _dense("bert/embeddings_project")  # [W, H], [H]
DISCRIMINATOR_HEAD = _dense(*(f"discriminator_predictions/{name}" for name in ("dense", "dense_prediction")))
GENERATOR = "generator/"
OF_GENERATOR = tuple(GENERATOR + name for name in (*LAYER, *PROJECTION, *TRANSFORM, OUTPUT_BIAS))
ELECTRA = (*PROJECTION, *DISCRIMINATOR_HEAD, *OF_GENERATOR)

# Optimizer slots of a weight NAME: NAME/adam_m, with the shape of the weight.
SLOTS = ("adam_m", "adam_v", "lamb_m", "lamb_v", "Momentum")
# End of a pattern that also matches the slots of a weight.
SLOT = f"(?P<slot>(?:/(?:{'|'.join(SLOTS)}))?)"
COUNTERS = ("global_step", "samples", "loss_scale/scale", "loss_scale/good_steps")

# Tensors with one row or value per word, cut and padded together.
VOCABULARY = ("bert/embeddings/word_embeddings", OUTPUT_BIAS, GENERATOR + OUTPUT_BIAS)

# If one of a group exists, all must. A masked-LM head may consist of the bias alone, as in Graphcore's models
# without a transform.
HEAD_GROUPS = (
    (TRANSFORM, (*TRANSFORM, OUTPUT_BIAS)),
    ((OUTPUT_BIAS,), (OUTPUT_BIAS,)),
    (NEXT_SENTENCE_HEAD, NEXT_SENTENCE_HEAD),
    (SQUAD_HEAD, SQUAD_HEAD),
    (CLASSIFIER_HEAD, CLASSIFIER_HEAD),
    (PROJECTION, PROJECTION),
    (DISCRIMINATOR_HEAD, DISCRIMINATOR_HEAD),
)

# Optional weights, absent in all layers or none: patterns of names.
QKV_BIAS = r"bert/encoder/layer_\d+/attention/self/(query|key|value)/bias"
PROJECTION_BIAS = r"bert/encoder/layer_\d+/attention/(output|projection)/dense/bias"
MIXER = r"bert/encoder/layer_\d+/feed_forward_\d/output/mixer/dense/(kernel|bias)"  # GroupBERT of one group

# GroupBERT. Google has no names for it; these are Graphcore's. Kernels [in, out]; dwconv/weight [kernel size,
# group size, H].
_FEED_FORWARD = (
    *_norm("feed_forward_N/prenorm"),
    *_dense(*(f"feed_forward_N/{name}/dense" for name in ("intermediate", "output", "output/mixer"))),
)
GROUPBERT_LAYER = _in_layer(
    *_norm("convolution/prenorm"),
    *_dense("convolution/pre/glu/values/dense", "convolution/pre/glu/gates/dense"),
    "convolution/dwconv/weight",
    *_norm("convolution/dwconv"),
    *_dense("convolution/post/dense"),
    *(name.replace("_N", "_1") for name in _FEED_FORWARD),
    *_norm("attention/prenorm"),
    *_QKV,
    *_dense("attention/projection/dense"),
    *(name.replace("_N", "_2") for name in _FEED_FORWARD),
)
FINAL_NORM = ("LayerNorm/gamma", "LayerNorm/beta")
GROUPBERT = (*EMBEDDINGS, *GROUPBERT_LAYER, *FINAL_NORM, *POOLER)  # GroupBERT's encoder

# ModernBERT. Google has no names for it; these are this project's. Kernels [in, out]: qkv has query, key and
# value side by side, intermediate has values and gates. The attention of the first layer has no LayerNorm.
MODERNBERT_FIRST_NORM = "bert/encoder/layer_0/attention/prenorm/LayerNorm/gamma"
MODERNBERT = (  # ModernBERT's encoder
    "bert/embeddings/word_embeddings",
    "bert/embeddings/LayerNorm/gamma",
    *_in_layer(
        "attention/prenorm/LayerNorm/gamma",
        "attention/self/qkv/kernel",
        "attention/output/dense/kernel",
        "feed_forward/prenorm/LayerNorm/gamma",
        "intermediate/dense/kernel",
        "output/dense/kernel",
    ),
    FINAL_NORM[0],
)
PREDICTION_HEAD = (TRANSFORM[0], TRANSFORM[2])  # in front of all its output layers
MODERNBERT_HEADS = (*PREDICTION_HEAD, OUTPUT_BIAS, *SQUAD_HEAD, *CLASSIFIER_HEAD)
MODERNBERT_HEAD_GROUPS = (((*PREDICTION_HEAD, OUTPUT_BIAS), PREDICTION_HEAD), *HEAD_GROUPS[1:])


class Sizes(NamedTuple):
    """Sizes of a BERT: words of the vocabulary, hidden size, feed-forward size, positions, token types,
    classes, width of the tables (0: hidden size), and whether the first feed-forward layer also computes
    gates."""

    words: int
    hidden: int
    inner: int
    positions: int
    types: int
    classes: int = 2
    width: int = 0
    gated: bool = False


# {pattern of a weight's name: its sizes}; the first match counts. Kernels are [in, out].
_SHAPES = {
    "bert/embeddings/word_embeddings": "words width",
    "bert/embeddings/position_embeddings": "positions width",
    SEGMENTS: "types width",
    "bert/embeddings/.*": "width",
    PROJECTION[0]: "width hidden",
    ".*/self/qkv/kernel": "hidden qkv",
    ".*/attention/output/dense/kernel": "hidden hidden",
    ".*/intermediate/dense/kernel": "hidden up",
    ".*/intermediate/dense/bias": "up",
    ".*/output/dense/kernel": "inner hidden",
    TRANSFORM[0]: "hidden width",
    "|".join(TRANSFORM): "width",
    OUTPUT_BIAS: "words",
    "cls/(seq_relationship|squad)/output_weights": "2 hidden",
    "cls/(seq_relationship|squad)/output_bias": "2",
    CLASSIFIER_HEAD[0]: "classes hidden",
    CLASSIFIER_HEAD[1]: "classes",
    DISCRIMINATOR_HEAD[2]: "hidden 1",
    DISCRIMINATOR_HEAD[3]: "1",
    ".*/kernel": "hidden hidden",
    ".*": "hidden",
}


def shape_of(name: str, sizes: Sizes) -> tuple[int, ...]:
    """Returns the shape of a weight of WEIGHTS, ELECTRA or MODERNBERT; the layer is a number or
    `{layer}`."""
    derived = {"width": sizes.width or sizes.hidden, "qkv": 3 * sizes.hidden}
    known = {**sizes._asdict(), **derived, "up": sizes.inner * (1 + sizes.gated)}
    shape = next(shape for pattern, shape in _SHAPES.items() if re.fullmatch(pattern, name))
    return tuple(known[size] if size in known else int(size) for size in shape.split())


def rank_of(name: str) -> int:
    """Returns the number of dimensions of a weight of WEIGHTS, ELECTRA, GROUPBERT or MODERNBERT."""
    if name.endswith("/dwconv/weight"):
        return 3
    return 2 if name.endswith(("kernel", "embeddings", "output_weights")) else 1


# -----------------------------------------------------------------------------------------------------------
# Comparison of names and shapes


def compare_names(
    expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]
) -> dict[str, list[str]]:
    """Returns {kind of difference: names} between two {name: shape}; an empty dict without any."""
    both = sorted(expected.keys() & found.keys())
    bent = [name for name in both if tuple(found[name]) != tuple(expected[name])]
    kinds = {
        "missing": sorted(expected.keys() - found.keys()),
        "unexpected": sorted(found.keys() - expected.keys()),
        "of another shape": [f"{name} {list(found[name])} for {list(expected[name])}" for name in bent],
    }
    return {kind: names for kind, names in kinds.items() if names}


# -----------------------------------------------------------------------------------------------------------
# Completeness: encoder, heads and shapes


def layers_of(names: Iterable[str]) -> int:
    """Returns one more than the highest layer number in canonical names."""
    found = (re.match(r"bert/encoder/layer_(\d+)/", name) for name in names)
    return max((int(match[1]) for match in found if match), default=-1) + 1


def in_scope(named: Mapping[str, Value], scope: str) -> tuple[dict[str, Value], dict[str, Value]]:
    """Splits {name: value} into the names outside of a scope and those inside, without its prefix."""
    own = {name: value for name, value in named.items() if not name.startswith(scope)}
    return own, {name[len(scope) :]: named[name] for name in named if name not in own}


def apart(named: Mapping[str, Value]) -> tuple[dict[str, Value], dict[str, Value]]:
    """Splits {canonical name: value} into the model and its generator, which also gets the shared embeddings;
    the second is empty without a generator."""
    own, generator = in_scope(named, GENERATOR)
    tables = {name: named[name] for name in EMBEDDINGS if name in named} if generator else {}
    return own, {**tables, **generator}


def encoder_problems(shapes: dict[str, tuple[int, ...]], has_segments: bool = True) -> dict[str, list[str]]:
    """Returns {problem: names} of missing and misshapen tensors: of the encoder, of its generator, and of
    incomplete heads. Only families without segments lack the table of segment embeddings.

    For GroupBERT's layers, whose groups and inner sizes are not in the names, only names and numbers of
    dimensions are checked.
    """
    shapes, generator = apart(shapes)
    problems = _encoder_problems(shapes, has_segments)
    for kind, names in (_encoder_problems(generator, has_segments) if generator else {}).items():
        problems.setdefault(kind, []).extend(GENERATOR + name for name in names)
    return problems


def _encoder_problems(shapes: dict[str, tuple[int, ...]], has_segments: bool) -> dict[str, list[str]]:
    layers = layers_of(shapes)
    expected = _expected_shapes(shapes, layers)
    if not has_segments:
        expected.pop(SEGMENTS, None)
    gone = [name for name in EMBEDDINGS if name in expected and name not in shapes]
    bent = [name for name in expected if len(shapes.get(name, expected[name])) != rank_of(name)]
    problems = {"Missing": gone} if gone else {}
    if not layers:
        problems["No layer"] = []
    if bent:
        messages = [f"{name} {list(shapes[name])} must have {rank_of(name)}" for name in sorted(bent)]
        problems["of another number of dimensions"] = messages
    compared = {name: shape for name, shape in expected.items() if name not in (*gone, *bent)}
    found = {name: shapes[name] for name in compared if name in shapes}
    return {**problems, **compare_names(compared, found)}


def is_modernbert(names: Iterable[str]) -> bool:
    """Returns whether canonical names are those of a ModernBERT."""
    return any("/attention/self/qkv/" in name for name in names)


def _expected_shapes(shapes: dict[str, tuple[int, ...]], layers: int) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of the required tensors; an unknown shape is taken from the checkpoint."""
    modernbert, groupbert = is_modernbert(shapes), any("/convolution/" in name for name in shapes)
    has_pooler = any(name in shapes for name in POOLER)  # missing in Hugging Face's masked-LM models
    names = [
        name.replace("{layer}", str(layer))
        for name in (MODERNBERT if modernbert else GROUPBERT if groupbert else ENCODER)
        for layer in (range(layers) if "{layer}" in name else (0,))
        if has_pooler or name not in POOLER
    ]
    for some, group in MODERNBERT_HEAD_GROUPS if modernbert else HEAD_GROUPS:
        names += group if any(member in shapes for member in some) else ()
    for pattern in (QKV_BIAS, PROJECTION_BIAS, MODERNBERT_FIRST_NORM if modernbert else MIXER):
        if not any(re.fullmatch(pattern, name) for name in shapes):
            names = [name for name in names if not re.fullmatch(pattern, name)]
    own = {name: shapes.get(name, (0,) * rank_of(name)) for name in names}
    if len(shapes.get("bert/embeddings/word_embeddings", ())) != 2:
        return own
    words, width = shapes["bert/embeddings/word_embeddings"]

    def rows(name: str, default: int) -> int:
        return (*shapes.get(name, ()), default)[0]

    hidden = rows(PROJECTION[1], width)
    of_inner = "output/dense/kernel" if modernbert else "intermediate/dense/bias"
    inner = rows(f"bert/encoder/layer_0/{of_inner}", 4 * hidden)
    parts = ("position", "token_type")
    positions, types = (rows(f"bert/embeddings/{part}_embeddings", 0) for part in parts)
    classes = rows("output_weights", rows("output_bias", 2))
    sizes = Sizes(words, hidden, inner, positions, types, classes, width, modernbert)
    known = (name for name in names if not (groupbert and name.startswith("bert/encoder/")))
    return {**own, **{name: shape_of(name, sizes) for name in known}}
