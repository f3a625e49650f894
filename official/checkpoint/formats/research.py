"""GroupBERT checkpoints of Graphcore's research code: name-based bundles, all names in the scope `all/`,
GroupNorm for LayerNorm.

The values are those of `graphcore` under other names: TABLE has GroupBERT's, BASELINE_TABLE (`baseline`)
those of the plain BERT that it was compared with. Joined are query, key and value kernels
(`attention/qkv/weight` [H, 3H]), and values and gates of the gated unit (`conv/pre/weight` [H, 2H],
`conv/pre/bias` [2H]). Word embeddings are whole or in blocks s0, s1, ..., as in `graphcore`.

Decided where the published converter leaves it open:
  Scope           the published reader strips `all/` where it is there. So does this one: names without it are
                  read too.
  Baseline        the published converter reads it and refuses to write it. Its reader tells the names, and
                  they are written here: one feed-forward layer `boom` without a number, no mixer, and
                  `postnorm` after attention and `boom`. `boom1` is no baseline name: the published reader
                  makes `layer_01` of it.
  Key bias        the published GroupBERT files have none (it adds the same to all scores of a query, so the
                  softmax takes it out again). It is dropped on writing and zeros on reading. Of the baseline
                  it is kept: nothing published forbids it, and BERT's own is not zero.
  global_step     dropped both ways, as published: with it go the optimizer slots, whose names here are not
                  published, and a run that starts from weights alone starts at step 0.
  Classifier      as in `graphcore`, under `all/`.
"""

import re

from official.checkpoint.format import Format, Options
from official.checkpoint.formats import graphcore
from official.checkpoint.mapping import canonical, table
from official.checkpoint.mapping.table import Mapped, Stack
from official.checkpoint.mapping.tensors import Tensors
from official.io.errors import ConfigError, shortened

_SCOPE = "all/"
_LAYER = {
    "convolution/prenorm/LayerNorm/gamma": "conv/prenorm/GroupNorm/gamma",
    "convolution/prenorm/LayerNorm/beta": "conv/prenorm/GroupNorm/beta",
    "convolution/dwconv/weight": "conv/dwconv/weight",
    "convolution/dwconv/LayerNorm/gamma": "conv/dwconv/GroupNorm/gamma",
    "convolution/dwconv/LayerNorm/beta": "conv/dwconv/GroupNorm/beta",
    "convolution/post/dense/kernel": "conv/post/weight",
    "convolution/post/dense/bias": "conv/post/bias",
    "feed_forward_1/prenorm/LayerNorm/gamma": "boom1/prenorm/GroupNorm/gamma",
    "feed_forward_1/prenorm/LayerNorm/beta": "boom1/prenorm/GroupNorm/beta",
    "feed_forward_1/intermediate/dense/kernel": "boom1/up/weight",
    "feed_forward_1/intermediate/dense/bias": "boom1/up/bias",
    "feed_forward_1/output/dense/kernel": "boom1/down/weight",
    "feed_forward_1/output/dense/bias": "boom1/down/bias",
    "feed_forward_1/output/mixer/dense/kernel": "boom1/mixer/weight",
    "feed_forward_1/output/mixer/dense/bias": "boom1/mixer/bias",
    "attention/prenorm/LayerNorm/gamma": "attention/prenorm/GroupNorm/gamma",
    "attention/prenorm/LayerNorm/beta": "attention/prenorm/GroupNorm/beta",
    "attention/projection/dense/kernel": "attention/output/weight",
    "attention/projection/dense/bias": "attention/output/bias",
    "feed_forward_2/prenorm/LayerNorm/gamma": "boom2/prenorm/GroupNorm/gamma",
    "feed_forward_2/prenorm/LayerNorm/beta": "boom2/prenorm/GroupNorm/beta",
    "feed_forward_2/intermediate/dense/kernel": "boom2/up/weight",
    "feed_forward_2/intermediate/dense/bias": "boom2/up/bias",
    "feed_forward_2/output/dense/kernel": "boom2/down/weight",
    "feed_forward_2/output/dense/bias": "boom2/down/bias",
    "feed_forward_2/output/mixer/dense/kernel": "boom2/mixer/weight",
    "feed_forward_2/output/mixer/dense/bias": "boom2/mixer/bias",
}
_BASELINE_LAYER = {
    "attention/output/dense/kernel": "attention/output/weight",
    "attention/output/dense/bias": "attention/output/bias",
    "attention/output/LayerNorm/gamma": "attention/postnorm/GroupNorm/gamma",
    "attention/output/LayerNorm/beta": "attention/postnorm/GroupNorm/beta",
    "intermediate/dense/kernel": "boom/up/weight",
    "intermediate/dense/bias": "boom/up/bias",
    "output/dense/kernel": "boom/down/weight",
    "output/dense/bias": "boom/down/bias",
    "output/LayerNorm/gamma": "boom/postnorm/GroupNorm/gamma",
    "output/LayerNorm/beta": "boom/postnorm/GroupNorm/beta",
}
_BIASES = {f"attention/self/{part}/bias": f"attention/qkv/{part}/bias" for part in ("query", "key", "value")}
_REST = {
    "bert/embeddings/word_embeddings": "bert/embeddings/word_embeddings",
    "bert/embeddings/token_type_embeddings": "bert/embeddings/token_type_embeddings",
    "bert/embeddings/position_embeddings": "bert/embeddings/position_embeddings",
    "bert/embeddings/LayerNorm/gamma": "bert/embeddings/GroupNorm/gamma",
    "bert/embeddings/LayerNorm/beta": "bert/embeddings/GroupNorm/beta",
    "bert/pooler/dense/kernel": "bert/pooler/dense/kernel",
    "bert/pooler/dense/bias": "bert/pooler/dense/bias",
    "cls/predictions/transform/dense/kernel": "cls/predictions/transform/dense/kernel",
    "cls/predictions/transform/dense/bias": "cls/predictions/transform/dense/bias",
    "cls/predictions/transform/LayerNorm/gamma": "cls/predictions/transform/GroupNorm/gamma",
    "cls/predictions/transform/LayerNorm/beta": "cls/predictions/transform/GroupNorm/beta",
    "cls/predictions/output_bias": "cls/predictions/output_bias",
    "cls/seq_relationship/output_weights": "cls/seq_relationship/output_weights",
    "cls/seq_relationship/output_bias": "cls/seq_relationship/output_bias",
    "cls/squad/output_weights": "cls/squad/output_weights",
    "cls/squad/output_bias": "cls/squad/output_bias",
    "output_weights": "glue_loss/output_weights",
    "output_bias": "glue_loss/output_bias",
}
_FINAL_NORM = {
    "LayerNorm/gamma": "bert/encoder/post_layers/GroupNorm/gamma",
    "LayerNorm/beta": "bert/encoder/post_layers/GroupNorm/beta",
}


def _table(rest: table.Table, layer: table.Table) -> table.Table:
    prefix = "bert/encoder/layer_{layer}"
    layers = {f"{prefix}/{ours}": f"{prefix}/{theirs}" for ours, theirs in {**layer, **_BIASES}.items()}
    return {**rest, **layers, **dict.fromkeys(canonical.COUNTERS)}


# Names within the scope.
TABLE = _table({**_REST, **_FINAL_NORM}, _LAYER)
BASELINE_TABLE = _table(_REST, _BASELINE_LAYER)

_GLU = "bert/encoder/layer_{layer}/convolution/pre/glu"
_STACKS = (
    Stack("bert/encoder/layer_{layer}/attention/qkv/weight", table.QKV_KERNELS),
    Stack(
        "bert/encoder/layer_{layer}/conv/pre/weight",
        (f"{_GLU}/values/dense/kernel", f"{_GLU}/gates/dense/kernel"),
    ),
    Stack(
        "bert/encoder/layer_{layer}/conv/pre/bias", (f"{_GLU}/values/dense/bias", f"{_GLU}/gates/dense/bias")
    ),
)
_STATE = {
    r"(all/)?global_step": "a run that starts from weights alone starts at step 0",
    r"(?i).*(adam|momentum|lamb|accum).*": "optimizer state, whose names are not published",
}
_KEY_BIAS = {
    r"bert/encoder/layer_\d+/attention/self/key/bias": (
        "GroupBERT's research files have none, and the softmax takes it out"
    )
}


def to_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the canonical names.

    Raises:
      ConfigError: for parts that do not make a whole, a whole that cannot be parted, and where `baseline` is
        on for GroupBERT's names.
    """
    weights, dropped = table.without(tensors, _STATE)
    inside = _strip_scope(weights)
    rest, words = table.join_rows(inside)
    rest, parts = table.unstack(rest, _STACKS)
    names, patterns = graphcore.with_classifier_pooler(
        _names_in_file(inside, options), graphcore.METRICS, rest
    )
    mapped = table.to_canonical(names, rest, patterns)
    _restore_scope(mapped, weights)
    mapped.tensors |= {**words, **parts}
    mapped.dropped |= dropped
    table.add_zero_biases(mapped)
    return mapped


def from_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the research code's names.

    Raises:
      ConfigError: for a vocabulary that is not a multiple of `num_embeddings_splits`, and where `baseline` is
        not what the model is.
    """
    weights, dropped = table.without(
        tensors,
        _STATE | graphcore.left_out(options) | ({} if options.get(graphcore.PLAIN_BERT) else _KEY_BIAS),
    )
    rest, wholes = table.stack(weights, _STACKS)
    mapped = table.from_canonical(_names(tensors, options), rest, "a counter of this project's trainer")
    mapped.tensors = table.split_rows(
        {**mapped.tensors, **wholes}, options.get(graphcore.NUM_EMBEDDINGS_SPLITS)
    )
    mapped.dropped |= dropped
    graphcore.copy_pooler(mapped)
    mapped.tensors = {_SCOPE + name: tensor for name, tensor in mapped.tensors.items()}
    mapped.added = {_SCOPE + name: reason for name, reason in mapped.added.items()}
    return mapped


def keeps_float32(name: str) -> bool:
    """Returns whether a tensor is always float32, also where the source has float16: the masked-LM head's
    bias, as published."""
    return name == f"{_SCOPE}cls/predictions/output_bias"


def _names_in_file(tensors: Tensors, options: Options) -> table.Table:
    """Returns the table to read with. The names tell plain BERT, so that reading needs no option. Raises
    ConfigError as `_names`."""
    plain = options.get(graphcore.PLAIN_BERT) or any(
        re.match(r"bert/encoder/layer_\d+/(boom/|\w+/postnorm/)", name) for name in tensors
    )
    if plain and not _has_convolutions(tensors):
        return BASELINE_TABLE
    return _names(tensors, options) if options.get(graphcore.PLAIN_BERT) else TABLE


def _has_convolutions(tensors: Tensors) -> bool:
    return any(re.match(r"bert/encoder/layer_\d+/conv(olution)?/", name) for name in tensors)


def _names(tensors: Tensors, options: Options) -> table.Table:
    """Returns the table for GroupBERT or the baseline. Raises ConfigError where the option says one and the
    layers are the other's."""
    plain = options.get(graphcore.PLAIN_BERT)
    groupbert = _has_convolutions(tensors)
    if table.layers_of(tensors) and groupbert == plain:
        found, advice = (
            ("convolutions: it is GroupBERT", "Leave out")
            if groupbert
            else ("no convolutions: it is BERT", "Add")
        )
        raise ConfigError(
            f"The checkpoint's layers have {found}, and --baseline is {'on' if plain else 'off'}."
            f" {advice} --baseline."
        )
    return BASELINE_TABLE if plain else TABLE


def _strip_scope(tensors: Tensors) -> Tensors:
    """Removes the scope from names. Raises ConfigError where a name is there with and without it."""
    twice = sorted(name for name in tensors if _SCOPE + name in tensors)
    if twice:
        raise ConfigError(
            f"The checkpoint has these names with and without {_SCOPE}, and one of each is wanted:"
            f" {shortened(twice)}."
        )
    return {name.removeprefix(_SCOPE): tensor for name, tensor in tensors.items()}


def _restore_scope(mapped: Mapped, tensors: Tensors) -> None:
    """Names what found no place as the file does."""
    in_file = {name.removeprefix(_SCOPE): name for name in tensors}
    mapped.unmatched = [in_file[name] for name in mapped.unmatched]
    mapped.dropped = {in_file[name]: reason for name, reason in mapped.dropped.items()}


FORMAT = Format(
    name="research",
    title="Graphcore's GroupBERT research",
    container="bundle",
    to_canonical=to_canonical,
    from_canonical=from_canonical,
    signature=f"{_SCOPE}.*",
    precedence=4,
    partners={"graphcore": "apps"},  # research2apps and apps2research, as published
    options=(*graphcore.OPTIONS, graphcore.PLAIN_BERT),
    as_source={"precision": 16},
    as_target={"precision": 16},
    usual_epsilon=graphcore.EPSILON,
    keeps_float32=keeps_float32,
    may_lack_biases=True,
)
