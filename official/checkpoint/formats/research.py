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

from official.checkpoint import canonical, mapping
from official.checkpoint.formats import Format, Options, graphcore
from official.checkpoint.mapping import Mapped, Stack
from official.checkpoint.tensors import Tensors
from official.io.errors import ConfigError, shortened

_SCOPE = "all/"
# What of a name in this project is another word here, in this order; of what follows a scope alone, too.
_WORDS = {
    r"^LayerNorm/": "bert/encoder/post_layers/GroupNorm/",
    r"^output_(weights|bias)": r"glue_loss/output_\1",
    "LayerNorm": "GroupNorm",
    "attention/self/(query|key|value)/bias": r"attention/qkv/\1/bias",
    "attention/(output|projection)/dense/kernel": "attention/output/weight",
    "attention/(output|projection)/dense/bias": "attention/output/bias",
    "attention/output/GroupNorm": "attention/postnorm/GroupNorm",
    "/convolution/": "/conv/",
    "/post/dense/kernel": "/post/weight",
    "/post/dense/bias": "/post/bias",
    r"/feed_forward_(\d)/": r"/boom\1/",
    "/layer_{layer}/(?=intermediate|output/)": "/layer_{layer}/boom/",
    "/boom/output/GroupNorm": "/boom/postnorm/GroupNorm",
    "/intermediate/dense/kernel": "/up/weight",
    "/intermediate/dense/bias": "/up/bias",
    "/output/mixer/dense/kernel": "/mixer/weight",
    "/output/mixer/dense/bias": "/mixer/bias",
    r"(/boom\d?)/output/dense/kernel": r"\1/down/weight",
    r"(/boom\d?)/output/dense/bias": r"\1/down/bias",
}
_JOINED = "/pre/glu/|/attention/self/(query|key|value)/kernel"  # in _STACKS


def _their_name(name: str) -> str:
    for ours, theirs in _WORDS.items():
        name = re.sub(ours, theirs, name)
    return name


def _table(encoder: tuple[str, ...]) -> mapping.Table:
    names = (*encoder, *canonical.PRETRAINING_HEADS, *canonical.SQUAD_HEAD, *canonical.CLASSIFIER_HEAD)
    theirs = {name: _their_name(name) for name in names if not re.search(_JOINED, name)}
    return {**theirs, **dict.fromkeys(canonical.COUNTERS)}


# Names within the scope.
TABLE = _table(canonical.GROUPBERT)
BASELINE_TABLE = _table(canonical.ENCODER)

_GLU = "bert/encoder/layer_{layer}/convolution/pre/glu"
_STACKS = (
    Stack("bert/encoder/layer_{layer}/attention/qkv/weight", mapping.QKV_KERNELS),
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
    weights, dropped = mapping.without(tensors, _STATE)
    inside = _strip_scope(weights)
    rest, words = mapping.join_rows(inside)
    rest, parts = mapping.unstack(rest, _STACKS)
    names, patterns = graphcore.with_classifier_pooler(
        _names_in_file(inside, options), graphcore.METRICS, rest
    )
    mapped = mapping.to_canonical(names, rest, patterns)
    _restore_scope(mapped, weights)
    mapped.tensors |= {**words, **parts}
    mapped.dropped |= dropped
    mapping.add_zero_biases(mapped)
    return mapped


def from_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the research code's names.

    Raises:
      ConfigError: for a vocabulary that is not a multiple of `num_embeddings_splits`, and where `baseline` is
        not what the model is.
    """
    weights, dropped = mapping.without(
        tensors,
        _STATE | graphcore.left_out(options) | ({} if options.get(graphcore.PLAIN_BERT) else _KEY_BIAS),
    )
    rest, wholes = mapping.stack(weights, _STACKS)
    mapped = mapping.from_canonical(_names(tensors, options), rest, "a counter of this project's trainer")
    mapped.tensors = mapping.split_rows(
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


def _names_in_file(tensors: Tensors, options: Options) -> mapping.Table:
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


def _names(tensors: Tensors, options: Options) -> mapping.Table:
    """Returns the table for GroupBERT or the baseline. Raises ConfigError where the option says one and the
    layers are the other's."""
    plain = options.get(graphcore.PLAIN_BERT)
    groupbert = _has_convolutions(tensors)
    if canonical.layers_of(tensors) and groupbert == plain:
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
