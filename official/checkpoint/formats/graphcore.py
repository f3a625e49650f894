"""Graphcore's TF1 checkpoints (v2.5 and later): name-based bundles, for BERT and GroupBERT.

Most names are canonical or differ in one word; see TABLE. The others are the same values split or joined
differently; optimizer slots are split and joined like their weights:

  Word embeddings   whole, or in blocks of rows s0, s1, ... (in numeric order: s10 after s9). Both are read;
                    `num_embeddings_splits` chooses the written form.
  Kernels           of query, key and value: three, or one [H, 3H]. Both are read; `fused_qkv` chooses the
                    written form.
  Biases            of query, key and value: the published converter, and this one, write BERT's as one
                    `qkv_bias` [3H]. Graphcore's model reads `query/bias`, `key/bias`, `value/bias`, which are
                    also in its own checkpoints. Both are read; if a file has both, those that the model reads
                    count. GroupBERT's, and BERT's with `baseline`, are written separately, as by the
                    published converter.
  Absent biases     the shipped models have no biases at query, key, value and the attention's projection.
                    They are read as zeros, which are the same function.
  Classifier        has its own pooler, `glue_loss/pooler`. It is read as the pooler, even if the file has
                    `bert/pooler`, which the classifier does not use. With a classifier's head the pooler is
                    written under both names, since the model would otherwise start from a random pooler.
  Step counters     one per weight, `lamb_step_counter` or `adam_step_counter`, int32 [1], one more than the
                    steps done (it starts at 1). They follow from `global_step`, so they are dropped on
                    reading and made on writing.
  Published defects The published converter to Graphcore does not cut the masked-LM head's bias with the
                    words, and casts `global_step` with the weights. On reading, the bias is cut and the step
                    made an integer.
"""

import re

import ml_dtypes
import numpy as np

from official.checkpoint import canonical, mapping
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.formats import Format, Option, Options
from official.checkpoint.mapping import Mapped
from official.checkpoint.tensors import Tensor, Tensors
from official.config.model import LARGEST

NUM_EMBEDDINGS_SPLITS = Option(
    "num_embeddings_splits", 1, "parts of the word embeddings (unset: 1).", most=LARGEST
)
USE_CLS_LAYER = Option("use_cls_layer", True, "keep the transform of the masked-LM head (unset: no).")
USE_QKV_BIAS = Option("use_qkv_bias", True, "keep the biases of query, key and value (unset: yes).")
USE_ATTENTION_BIAS = Option("use_attention_bias", True, "keep the attention projection's bias (unset: yes).")
FUSED_QKV = Option("fused_qkv", False, "one kernel [H, 3H] for query, key and value.")
EPSILON = 1e-3  # of LayerNorm in Graphcore's code, BERT's and GroupBERT's: no file sets it
OPTIONS = (NUM_EMBEDDINGS_SPLITS, USE_CLS_LAYER, USE_QKV_BIAS, USE_ATTENTION_BIAS, FUSED_QKV)
PLAIN_BERT = Option("baseline", False, "BERT and not GroupBERT.")  # defined for `research`

_HEADS = {
    **{name: name for name in (*canonical.PRETRAINING_HEADS, *canonical.SQUAD_HEAD)},
    **{name: f"glue_loss/{name}" for name in canonical.CLASSIFIER_HEAD},
}


def _table(encoder: mapping.Table) -> mapping.Table:
    return {
        **mapping.with_slots({**encoder, **_HEADS}, dict(zip(canonical.SLOTS, canonical.SLOTS))),
        **dict.fromkeys(canonical.COUNTERS),
        "global_step": "global_step",
    }


TABLE = _table({name: name.replace("attention/output", "attention/projection") for name in canonical.ENCODER})
GROUPBERT_TABLE = _table({name: name for name in canonical.GROUPBERT})
_CLASSIFIER_POOLER = {
    f"{name}{ending}": f"glue_loss/pooler/{name.removeprefix('bert/pooler/')}{ending}"
    for name in canonical.POOLER
    for ending in ("", *(f"/{slot}" for slot in canonical.SLOTS))
}

METRICS = {r"cls/(predictions/mlm_acc|seq_relationship/nsp_acc)": "a metric, not a weight"}
_DROPPED = {
    r".*/(lamb|adam)_step_counter": "a counter, derived from global_step",
    r"(?i).*/(adam|lamb|momentum|accum)\w*": "optimizer state that has no canonical name",
    r".*/attention/self/qkv_bias(/\w+)?": "the model reads the separate biases, which the file also has",
    **METRICS,
}


_FUSED_KERNEL = {"bert/encoder/layer_{layer}/attention/self/kernel/qkv_weight": mapping.QKV_KERNELS}
_FUSED_BIAS = {"bert/encoder/layer_{layer}/attention/self/qkv_bias": mapping.QKV_BIASES}


def to_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the canonical names. Reads `global_step` if it is a float.

    Raises:
      ConfigError: for incomplete parts of a joined tensor, or one that cannot be split.
      DamagedError: if `global_step` cannot be read.
    """
    rest, words = mapping.join_rows(tensors)
    rest, parts = mapping.unstack(rest, {**_FUSED_KERNEL, **_FUSED_BIAS})
    table = GROUPBERT_TABLE if is_groupbert(tensors) else TABLE
    names, dropped = with_classifier_pooler(table, _DROPPED, rest)
    mapped = mapping.to_canonical(names, rest, dropped)
    mapped.tensors |= {**words, **parts}
    _cut_output_bias(mapped)
    _make_step_an_integer(mapped)
    mapping.add_zero_biases(mapped)
    mapping.add_zero_output_bias(mapped)
    return mapped


def from_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to Graphcore's names. Raises ConfigError for a vocabulary that is not a multiple of
    `num_embeddings_splits`."""
    groupbert = is_groupbert(tensors)
    kept, dropped = mapping.without(tensors, left_out(options))
    fused = _FUSED_KERNEL if options.get(FUSED_QKV) else {}
    fused = fused if groupbert or options.get(PLAIN_BERT) else {**fused, **_FUSED_BIAS}
    rest, wholes = mapping.stack(kept, fused)
    table = GROUPBERT_TABLE if groupbert else TABLE
    mapped = mapping.from_canonical(table, rest, "a counter of this project's trainer")
    mapped.tensors = mapping.split_rows({**mapped.tensors, **wholes}, options.get(NUM_EMBEDDINGS_SPLITS))
    mapped.dropped |= dropped
    copy_pooler(mapped)
    _add_step_counters(mapped)
    return mapped


def is_groupbert(tensors: Tensors) -> bool:
    """Returns whether the model is a GroupBERT, by its convolutions, under the names of any format."""
    return any(re.match(r"bert/encoder/layer_\d+/conv(olution)?/", name) for name in tensors)


def _cut_output_bias(mapped: Mapped) -> None:
    """Cuts the masked-LM head's bias, and its slots, to the number of words: the published converter only
    cuts the word embeddings."""
    words = mapped.tensors.get("bert/embeddings/word_embeddings")
    if words is None or len(words.shape) != 2:
        return
    count = words.shape[0]
    for name, tensor in mapped.tensors.items():
        if name.startswith(canonical.OUTPUT_BIAS) and len(tensor.shape) == 1 and tensor.shape[0] > count:
            mapped.tensors[name] = tensors_lib.with_rows(tensor, count)
            reason = "values beyond the last word: the published converter cuts the word embeddings alone"
            mapped.dropped[f"{name}[{count}:]"] = reason


def _make_step_an_integer(mapped: Mapped) -> None:
    """Makes a float `global_step` an integer, since the published converter casts it with the weights. A
    value that the cast has lost is dropped."""
    step = mapped.tensors.get("global_step")
    if step is None or not tensors_lib.is_float(step):
        return
    value = np.asarray(step.read(), np.float64)
    if not (np.abs(value) < 2.0**63).all():  # infinite or NaN
        del mapped.tensors["global_step"]
        mapped.dropped["global_step"] = f"{step.dtype.name} could not hold it"
        return
    exact = 2 ** (ml_dtypes.finfo(step.dtype).nmant + 1)
    mapped.tensors["global_step"] = tensors_lib.cast(step, np.int64)
    mapped.added["global_step"] = f"was {step.dtype.name}, which rounds above {exact}; made an integer again"


def left_out(options: Options) -> dict[str, str]:
    """Returns {pattern: reason} of the canonical names that the target excludes."""
    rules = {
        canonical.QKV_BIAS + canonical.SLOT: USE_QKV_BIAS,
        # Only the attention's bias: the feed-forward layer's `output/dense/bias` is not an attention bias.
        canonical.PROJECTION_BIAS + canonical.SLOT: USE_ATTENTION_BIAS,
        r"cls/predictions/transform/.*": USE_CLS_LAYER,
    }
    return {pattern: f"{one.name} is off" for pattern, one in rules.items() if not options.get(one)}


def with_classifier_pooler(
    names: mapping.Table, dropped: dict[str, str], tensors: Tensors
) -> tuple[mapping.Table, dict[str, str]]:
    """Returns table and patterns for reading; in a classifier's checkpoint, glue_loss/pooler is the
    pooler."""
    if any(name in tensors for name in _CLASSIFIER_POOLER.values()):
        return {**names, **_CLASSIFIER_POOLER}, {
            **dropped,
            r"bert/pooler/.*": "the classifier uses glue_loss/pooler",
        }
    return names, dropped


def copy_pooler(mapped: Mapped) -> None:
    """Copies the pooler of a classifier's checkpoint to the name in the classifier."""
    if "glue_loss/output_weights" not in mapped.tensors:
        return
    for ours, theirs in _CLASSIFIER_POOLER.items():
        if ours in mapped.tensors:
            mapped.tensors[theirs] = mapped.tensors[ours]
            mapped.added[theirs] = f"a copy of {ours}: the classifier has a pooler of its own"


def _add_step_counters(mapped: Mapped) -> None:
    """Adds the step counters of all weights that have slots, if the step is known."""
    step = mapped.tensors.get("global_step")
    if step is None:
        return

    def read() -> np.ndarray:
        return np.reshape(step.read() + 1, [1]).astype(np.int32)

    counter = Tensor((1,), np.dtype(np.int32), read, step.sources)
    names = [f"{name[:-2]}_step_counter" for name in mapped.tensors if name.endswith(("/lamb_m", "/adam_m"))]
    mapped.tensors |= dict.fromkeys(names, counter)
    mapped.added |= dict.fromkeys(names, "global_step + 1")


FORMAT = Format(
    name="graphcore",
    title="Graphcore TF1",
    container="bundle",
    to_canonical=to_canonical,
    from_canonical=from_canonical,
    signature=r".*(/attention/projection/|/qkv_bias|/qkv_weight|embeddings/s\d+/|_step_counter$|/prenorm/|^glue_loss/).*",
    # Of this project's checkpoints, whose GroupBERT has the same names, and of its ModernBERT.
    foreign="samples|.*/attention/self/qkv/kernel",
    precedence=3,
    options=OPTIONS,
    as_source={"precision": 32},
    # Defaults of the published google2graphcore, which Graphcore's model configurations need.
    as_target={"vocab_size": 30400, "precision": 16, "use_cls_layer": False},
    usual_epsilon=EPSILON,
    float32_names=rf"cls/squad/.*|.*/({'|'.join(canonical.SLOTS)})",
    may_lack_biases=True,
)
