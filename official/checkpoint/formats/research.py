"""GroupBERT checkpoints of Graphcore's research code: name-based bundles, all names in the scope `all/`,
GroupNorm for LayerNorm.

The values are those of `graphcore` under other names: TABLE has GroupBERT's, BASELINE_TABLE (`baseline`)
those of the plain BERT baseline. Joined are query, key and value kernels
(`attention/qkv/weight` [H, 3H]), and values and gates of the gated unit (`conv/pre/weight` [H, 2H],
`conv/pre/bias` [2H]). Word embeddings are whole or in blocks s0, s1, ..., as in `graphcore`.

Decisions that the published converter leaves open:
  Scope           the published reader strips `all/` if present. So does this one: names without it are read,
                  too.
  Baseline        the published converter reads it and refuses to write it. The names in its reader are
                  written here: one feed-forward layer `boom` without a number, no mixer, and `postnorm` after
                  attention and `boom`. `boom1` is not a baseline name: the published reader makes `layer_01`
                  of it.
  Key bias        the published GroupBERT files have none (it adds the same to all scores of a query, so the
                  softmax cancels it). It is dropped on writing and zeros on reading. In the baseline it is
                  kept: nothing published forbids it, and BERT's is not zero.
  global_step     dropped both ways, as published. So are the optimizer slots, whose names here are not
                  published; a run that starts from weights alone starts at step 0.
  Classifier      as in `graphcore`, under `all/`.
"""

import re

from official.checkpoint import canonical, mapping
from official.checkpoint.formats import Format, Options, graphcore
from official.checkpoint.mapping import Mapped
from official.checkpoint.tensors import Tensors
from official.io.errors import ConfigError, shortened

_SCOPE = "all/"
# Replacements of parts of names, in order.
_WORDS = {
    r"^LayerNorm/": "bert/encoder/post_layers/GroupNorm/",
    r"^output_(weights|bias)": r"glue_loss/output_\1",
    "LayerNorm": "GroupNorm",
    "attention/self/(query|key|value)/bias": r"attention/qkv/\1/bias",
    "attention/(output|projection)/dense/": "attention/output/",
    "attention/output/GroupNorm": "attention/postnorm/GroupNorm",
    "/convolution/": "/conv/",
    "/post/dense/": "/post/",
    r"/feed_forward_(\d)/": r"/boom\1/",
    "/layer_{layer}/(?=intermediate|output/)": "/layer_{layer}/boom/",
    "/boom/output/GroupNorm": "/boom/postnorm/GroupNorm",
    "/intermediate/dense/": "/up/",
    "/output/mixer/dense/": "/mixer/",
    r"(/boom\d?)/output/dense/": r"\1/down/",
    "/(output|post|up|mixer|down)/kernel": r"/\1/weight",
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
TABLE, BASELINE_TABLE = _table(canonical.GROUPBERT), _table(canonical.ENCODER)
_STACKS = {
    "bert/encoder/layer_{layer}/attention/qkv/weight": mapping.QKV_KERNELS,
    **{
        f"bert/encoder/layer_{{layer}}/conv/pre/{theirs}": tuple(
            f"bert/encoder/layer_{{layer}}/convolution/pre/glu/{part}/dense/{ours}"
            for part in ("values", "gates")
        )
        for ours, theirs in (("kernel", "weight"), ("bias", "bias"))
    },
}
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
      ConfigError: for incomplete parts, a whole that cannot be split, names with and without the scope, and
        if `baseline` is on for GroupBERT's names.
    """
    weights, dropped = mapping.without(tensors, _STATE)
    spelling = mapping.Spelling(weights, lambda name: name.removeprefix(_SCOPE))
    if spelling.doubled:
        twice = shortened(sorted(name.removeprefix(_SCOPE) for name in spelling.doubled))
        problem = f"both with and without {_SCOPE}: {twice}."
        raise ConfigError(f"The checkpoint has these variables {problem}")
    rest, words = mapping.join_rows(spelling.tensors)
    rest, parts = mapping.unstack(rest, _STACKS)
    names, patterns = graphcore.with_classifier_pooler(
        _names_in_file(spelling.tensors, options), graphcore.METRICS, rest
    )
    mapped = mapping.to_canonical(names, rest, patterns)
    spelling.restore(mapped)
    mapped.tensors |= {**words, **parts}
    mapped.dropped |= dropped
    mapping.add_zero_biases(mapped)
    return mapped


def from_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the research code's names.

    Raises:
      ConfigError: for a vocabulary that is not a multiple of `num_embeddings_splits`, and if `baseline` does
        not fit the model.
    """
    key_bias = {} if options.get(graphcore.PLAIN_BERT) else _KEY_BIAS
    weights, dropped = mapping.without(tensors, {**key_bias, **graphcore.left_out(options), **_STATE})
    rest, wholes = mapping.stack(weights, _STACKS)
    mapped = mapping.from_canonical(_names(tensors, options), rest, "a counter of this project's trainer")
    splits = options.get(graphcore.NUM_EMBEDDINGS_SPLITS)
    mapped.tensors = mapping.split_rows({**mapped.tensors, **wholes}, splits)
    mapped.dropped |= dropped
    graphcore.copy_pooler(mapped)
    mapped.tensors = {_SCOPE + name: tensor for name, tensor in mapped.tensors.items()}
    mapped.added = {_SCOPE + name: reason for name, reason in mapped.added.items()}
    return mapped


def _names_in_file(tensors: Tensors, options: Options) -> mapping.Table:
    """Returns the table for reading. The names identify plain BERT, so that no option is needed. Raises
    ConfigError as `_names`."""
    if options.get(graphcore.PLAIN_BERT):
        return _names(tensors, options)
    plain = any(re.match(r"bert/encoder/layer_\d+/(boom/|\w+/postnorm/)", name) for name in tensors)
    return BASELINE_TABLE if plain and not graphcore.is_groupbert(tensors) else TABLE


def _names(tensors: Tensors, options: Options) -> mapping.Table:
    """Returns the table for GroupBERT or the baseline. Raises ConfigError if the option and the layers
    disagree."""
    plain = options.get(graphcore.PLAIN_BERT)
    groupbert = graphcore.is_groupbert(tensors)
    if canonical.layers_of(tensors) and groupbert == plain:
        problem = "no convolutions: it is BERT, but --baseline is off. Add --baseline."
        if groupbert:
            problem = "convolutions: it is GroupBERT, but --baseline is on. Drop --baseline."
        raise ConfigError(f"The checkpoint's layers have {problem}")
    return BASELINE_TABLE if plain else TABLE


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
    float32_names=f"{_SCOPE}cls/predictions/output_bias",  # as published
    may_lack_biases=True,
)
