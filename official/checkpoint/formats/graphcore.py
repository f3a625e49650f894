"""Graphcore's TF1 checkpoints (v2.5 and later): name-based bundles, for BERT and GroupBERT.

Most names are the canonical ones or differ in a word; TABLE has them. The rest is the same values cut or joined otherwise, and
optimizer slots are cut and joined with their weights:

  Word embeddings   whole, or in blocks of rows s0, s1, ... (in the order of numbers: s10 after s9). Both are read;
                    `num_embeddings_splits` says which is written.
  Kernels           of query, key and value: three, or one [H, 3H]. Both are read; `fused_qkv` says which is written.
  Biases            of query, key and value: the published converter writes BERT's as one `qkv_bias` [3H], and so does this one.
                    Graphcore's model reads `query/bias`, `key/bias`, `value/bias`: what it trained has these. Both are read; where both
                    are in one file, those that the model reads count. GroupBERT's, and BERT's with `baseline`, are written apart, as
                    the published converter does.
  Absent biases     the shipped models have no biases at query, key, value and the attention's projection. Zeros, which are the same
                    function, take their place.
  Classifier        has a pooler of its own, `glue_loss/pooler`. It is read as the pooler, also where `bert/pooler` is there, which
                    the classifier does not use. With a classifier's head the pooler is written under both names: under the one
                    alone the model would start from a random pooler.
  Step counters     one for each weight, `lamb_step_counter` or `adam_step_counter`, int32 [1], one more than the steps done
                    (it starts at 1). `global_step` gives them: left out on reading, made on writing.
  Published defects The published converter to Graphcore leaves the masked-LM head's bias as long as it was where it cuts the words,
                    and casts `global_step` with the weights. On reading, such a bias is cut and such a step made an integer.
"""

import dataclasses
import re

import ml_dtypes
import numpy as np

from official.checkpoint.formats import canonical, table
from official.checkpoint.formats import tensors as tensors_lib
from official.checkpoint.formats.options import Options
from official.checkpoint.formats.table import Mapped
from official.checkpoint.formats.tensors import Tensor, Tensors
from official.config import ConfigError, nearest_multiples
from official.io.errors import shortened

TITLE = "Graphcore TF1"

_LAYER = {
    "attention/self/query/kernel": "attention/self/query/kernel",
    "attention/self/query/bias": "attention/self/query/bias",
    "attention/self/key/kernel": "attention/self/key/kernel",
    "attention/self/key/bias": "attention/self/key/bias",
    "attention/self/value/kernel": "attention/self/value/kernel",
    "attention/self/value/bias": "attention/self/value/bias",
    "attention/output/dense/kernel": "attention/projection/dense/kernel",
    "attention/output/dense/bias": "attention/projection/dense/bias",
    "attention/output/LayerNorm/gamma": "attention/projection/LayerNorm/gamma",
    "attention/output/LayerNorm/beta": "attention/projection/LayerNorm/beta",
    "intermediate/dense/kernel": "intermediate/dense/kernel",
    "intermediate/dense/bias": "intermediate/dense/bias",
    "output/dense/kernel": "output/dense/kernel",
    "output/dense/bias": "output/dense/bias",
    "output/LayerNorm/gamma": "output/LayerNorm/gamma",
    "output/LayerNorm/beta": "output/LayerNorm/beta",
}
_HEADS = {
    **{name: name for name in (*canonical.PRETRAINING_HEADS, *canonical.SQUAD_HEAD)},
    "output_weights": "glue_loss/output_weights",
    "output_bias": "glue_loss/output_bias",
}
_COUNTERS = {
    "global_step": "global_step",
    "samples": None,
    "loss_scale/scale": None,
    "loss_scale/good_steps": None,
}
_SLOTS = {slot: slot for slot in canonical.SLOTS}

TABLE = {
    **table.with_slots(
        {
            **{name: name for name in (*canonical.EMBEDDINGS, *canonical.POOLER)},
            **{
                f"bert/encoder/layer_{{layer}}/{ours}": f"bert/encoder/layer_{{layer}}/{theirs}"
                for ours, theirs in _LAYER.items()
            },
            **_HEADS,
        },
        _SLOTS,
    ),
    **_COUNTERS,
}
GROUPBERT_TABLE = {
    **table.with_slots({**{name: name for name in canonical.GROUPBERT}, **_HEADS}, _SLOTS),
    **_COUNTERS,
}
CLASSIFIER_POOLER = table.with_slots(
    {
        "bert/pooler/dense/kernel": "glue_loss/pooler/dense/kernel",
        "bert/pooler/dense/bias": "glue_loss/pooler/dense/bias",
    },
    _SLOTS,
)

POOLER_UNUSED = {r"bert/pooler/.*": "the classifier uses glue_loss/pooler"}
METRICS = {r"cls/(predictions/mlm_acc|seq_relationship/nsp_acc)": "a metric, not a weight"}
_DROPPED = {
    r".*/(lamb|adam)_step_counter": "a counter that global_step gives",
    r"(?i).*/(adam|lamb|momentum|accum)\w*": "optimizer state that has no canonical name",
    r".*/attention/self/qkv_bias(/\w+)?": "the model reads the separate biases, which are there too",
    **METRICS,
}
_SLOT = f"(?P<slot>(?:/(?:{'|'.join(canonical.SLOTS)}))?)"


@dataclasses.dataclass(frozen=True)
class Stack:
    """Tensors that a format keeps side by side in one, along the last axis.

    Attributes:
      whole: the format's name, with a `{layer}` slot.
      parts: canonical names, in the order of the values.
    """

    whole: str
    parts: tuple[str, ...]


QKV_KERNELS = tuple(
    f"bert/encoder/layer_{{layer}}/attention/self/{part}/kernel" for part in ("query", "key", "value")
)
QKV_BIASES = tuple(
    f"bert/encoder/layer_{{layer}}/attention/self/{part}/bias" for part in ("query", "key", "value")
)
_FUSED_KERNEL = Stack("bert/encoder/layer_{layer}/attention/self/kernel/qkv_weight", QKV_KERNELS)
_FUSED_BIAS = Stack("bert/encoder/layer_{layer}/attention/self/qkv_bias", QKV_BIASES)


def to_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Gives the canonical names. Reads `global_step` where it is a float.

    Raises:
      ConfigError: for parts that do not make a whole, or a whole that cannot be parted.
      DamagedError: where `global_step` cannot be read.
    """
    rest, words = join_rows(tensors)
    rest, parts = unstack(rest, (_FUSED_KERNEL, _FUSED_BIAS))
    names, dropped = with_classifier_pooler(
        GROUPBERT_TABLE if is_groupbert(tensors) else TABLE, _DROPPED, rest
    )
    mapped = table.to_canonical(names, rest, dropped)
    mapped.tensors |= {**words, **parts}
    _cut_output_bias(mapped)
    _make_step_an_integer(mapped)
    add_zero_biases(mapped)
    return mapped


def from_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Gives Graphcore's names. Raises ConfigError for a vocabulary that is not a multiple of
    `num_embeddings_splits`."""
    groupbert = is_groupbert(tensors)
    kept, dropped = without(tensors, left_out(options))
    rest, fused = stack(kept, _stacks(options, groupbert))
    mapped = table.from_canonical(
        GROUPBERT_TABLE if groupbert else TABLE, rest, "a counter of this project's trainer"
    )
    mapped.tensors = split_rows({**mapped.tensors, **fused}, options.num_embeddings_splits)
    mapped.dropped |= dropped
    copy_pooler(mapped)
    _add_step_counters(mapped)
    return mapped


def keeps_float32(name: str) -> bool:
    """Returns whether a tensor is always float32, also where the source has float16: the SQuAD head and
    optimizer slots."""
    return name.startswith("cls/squad/") or name.rpartition("/")[2] in canonical.SLOTS


def is_groupbert(tensors: Tensors) -> bool:
    """Tells GroupBERT from BERT by its convolutions, in Graphcore's or canonical names."""
    return any(re.match(r"bert/encoder/layer_\d+/convolution/", name) for name in tensors)


def _cut_output_bias(mapped: Mapped) -> None:
    """Cuts the masked-LM head's bias, and its slots, to the words: the published converter cuts the word
    embeddings alone."""
    words = mapped.tensors.get("bert/embeddings/word_embeddings")
    if words is None or len(words.shape) != 2:
        return
    for name, tensor in mapped.tensors.items():
        if (
            name.startswith(canonical.OUTPUT_BIAS)
            and len(tensor.shape) == 1
            and tensor.shape[0] > words.shape[0]
        ):
            mapped.tensors[name] = tensors_lib.with_rows(tensor, words.shape[0])
            mapped.dropped[f"{name}[{words.shape[0]}:]"] = (
                "values beyond the last word: the published converter cuts the word embeddings alone"
            )


def _make_step_an_integer(mapped: Mapped) -> None:
    """Makes a float `global_step` an integer: the published converter casts it with the weights. One that it
    lost is dropped."""
    step = mapped.tensors.get("global_step")
    if step is None or not tensors_lib.is_float(step):
        return
    value = np.asarray(step.read(), np.float64)
    if not (np.abs(value) < 2.0**63).all():  # infinite, or no number
        del mapped.tensors["global_step"]
        mapped.dropped["global_step"] = f"{step.dtype.name} could not hold it"
    else:
        mapped.tensors["global_step"] = tensors_lib.cast(step, np.int64)
        exact = 2 ** (ml_dtypes.finfo(step.dtype).nmant + 1)
        mapped.added["global_step"] = (
            f"was {step.dtype.name}, which rounds above {exact}; made an integer again"
        )


def _stacks(options: Options, groupbert: bool) -> list[Stack]:
    """Returns what is fused on writing."""
    stacks = [_FUSED_KERNEL] if options.fused_qkv else []
    return stacks if groupbert or options.baseline else [*stacks, _FUSED_BIAS]


def left_out(options: Options) -> dict[str, str]:
    """Returns {pattern: reason} of the canonical names that the target shall not have."""
    rules = {
        rf"bert/encoder/layer_\d+/attention/self/(query|key|value)/bias{_SLOT}": (
            "use_qkv_bias",
            options.use_qkv_bias,
        ),
        # The attention's bias alone: the feed-forward layer's `output/dense/bias` is no attention bias.
        rf"bert/encoder/layer_\d+/attention/(output|projection)/dense/bias{_SLOT}": (
            "use_attention_bias",
            options.use_attention_bias,
        ),
        r"cls/predictions/transform/.*": ("use_cls_layer", options.use_cls_layer),
    }
    return {pattern: f"{flag} is off" for pattern, (flag, kept) in rules.items() if not kept}


def without(tensors: Tensors, rules: dict[str, str]) -> tuple[Tensors, dict[str, str]]:
    """Returns the tensors that no pattern of {pattern: reason} matches, and {name: reason} of the others."""
    dropped = {
        name: reason for name in tensors for pattern, reason in rules.items() if re.fullmatch(pattern, name)
    }
    return {name: tensor for name, tensor in tensors.items() if name not in dropped}, dropped


def unstack(tensors: Tensors, stacks: tuple[Stack, ...]) -> tuple[Tensors, Tensors]:
    """Takes stacked tensors apart, and their slots. A whole beside one of its own parts is left as it is.

    Returns:
      The tensors that are not stacked, and the parts under canonical names.

    Raises:
      ConfigError: for a whole that has no equal parts.
    """
    rest, parts = {}, {}
    for name, tensor in tensors.items():
        names = next((found for one in stacks if (found := _fill(name, one.whole, one.parts))), [])
        if not names or any(part in tensors for part in names):
            rest[name] = tensor
        elif not tensor.shape or tensor.shape[-1] % len(names):
            raise ConfigError(
                f"{name} has the shape {list(tensor.shape)}: its last dimension must be a multiple of"
                f" {len(names)}, for {shortened(names)}. Is the checkpoint damaged?"
            )
        else:
            parts |= {
                part: tensors_lib.part(tensor, -1, index, len(names)) for index, part in enumerate(names)
            }
    return rest, parts


def stack(tensors: Tensors, stacks: list[Stack]) -> tuple[Tensors, Tensors]:
    """Joins the parts of stacks, and their slots, where all parts are there.

    Returns:
      The tensors that are not stacked, under their names, and the wholes under the format's.
    """
    rest, wholes = dict(tensors), {}
    for name in tensors:
        for one in stacks:
            names = _fill(name, one.parts[0], (one.whole, *one.parts))
            if names and all(part in tensors for part in names[1:]):
                wholes[names[0]] = tensors_lib.joined([rest.pop(part) for part in names[1:]], -1)
    return rest, wholes


def _fill(name: str, pattern: str, names: tuple[str, ...]) -> list[str]:
    """Returns `names` with the layer and the slot with which `name` fits `pattern`; an empty list where it
    does not fit."""
    match = re.fullmatch(re.escape(pattern).replace(r"\{layer\}", r"(?P<layer>\d+)") + _SLOT, name)
    return [other.replace("{layer}", match["layer"]) + match["slot"] for other in names] if match else []


def join_rows(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Joins word embeddings that are in blocks of rows s0, s1, ..., and their slots.

    Returns:
      The other tensors, and the joined ones under canonical names. Blocks beside the whole are left as they
      are.

    Raises:
      ConfigError: where a block is missing, not of two dimensions, or of another width.
    """
    rest, blocks = {}, {}
    for name, tensor in tensors.items():
        match = re.fullmatch(rf"bert/embeddings/s(\d+)/(?P<whole>word_embeddings{_SLOT})", name)
        if match and f"bert/embeddings/{match['whole']}" not in tensors:
            blocks.setdefault(f"bert/embeddings/{match['whole']}", {})[int(match.group(1))] = tensor
        else:
            rest[name] = tensor
    return rest, {name: _join_blocks(name, numbered) for name, numbered in blocks.items()}


def _join_blocks(name: str, blocks: dict[int, Tensor]) -> Tensor:
    numbers = sorted(blocks)
    missing = sorted(set(range(numbers[-1] + 1)) - set(numbers))
    if missing:
        raise ConfigError(
            f"{name} is in blocks s0 to s{numbers[-1]}, of which are missing: "
            f"{shortened([f's{number}' for number in missing])}. The checkpoint must have all of them."
        )
    flat = [f"s{number} {list(blocks[number].shape)}" for number in numbers if len(blocks[number].shape) != 2]
    if flat:
        raise ConfigError(
            f"{name} is in blocks, of which some are not rows: {shortened(flat)}. Is the checkpoint damaged?"
        )
    widths = {blocks[number].shape[1:] for number in numbers}
    if len(widths) > 1:
        raise ConfigError(
            f"{name} is in blocks of different widths {sorted(widths)}; they must be the same. Is the"
            " checkpoint damaged?"
        )
    return tensors_lib.joined([blocks[number] for number in numbers], 0)


def split_rows(tensors: Tensors, count: int) -> Tensors:
    """Cuts word embeddings, and their slots, into `count` blocks of rows s0, s1, ...; one block is the whole
    under its name.

    Raises:
      ConfigError: where the words are not a multiple of `count`.
    """
    if count == 1:
        return tensors
    result = {}
    for name, tensor in tensors.items():
        if re.fullmatch(f"bert/embeddings/word_embeddings{_SLOT}", name):
            _check_splits(tensor.shape[0], count)
            result |= {
                name.replace("/word_", f"/s{index}/word_"): tensors_lib.part(tensor, 0, index, count)
                for index in range(count)
            }
        else:
            result[name] = tensor
    return result


def _check_splits(words: int, count: int) -> None:
    if count < 1:
        raise ConfigError(f"--num_embeddings_splits={count} must be at least 1.")
    if words % count:
        raise ConfigError(
            f"--num_embeddings_splits={count} does not divide the vocabulary of {words} words. Nearest valid"
            f" --vocab_size: {nearest_multiples(words, count)}."
        )


def with_classifier_pooler(
    names: table.Table, dropped: dict[str, str], tensors: Tensors
) -> tuple[table.Table, dict[str, str]]:
    """Returns table and patterns to read with: of a classifier's checkpoint, glue_loss/pooler is the
    pooler."""
    if any(name in tensors for name in CLASSIFIER_POOLER.values()):
        return {**names, **CLASSIFIER_POOLER}, {**dropped, **POOLER_UNUSED}
    return names, dropped


def copy_pooler(mapped: Mapped) -> None:
    """Gives a classifier's checkpoint the pooler under the classifier's name too."""
    if "glue_loss/output_weights" not in mapped.tensors:
        return
    for ours, theirs in CLASSIFIER_POOLER.items():
        if ours in mapped.tensors:
            mapped.tensors[theirs] = mapped.tensors[ours]
            mapped.added[theirs] = f"a copy of {ours}: the classifier has a pooler of its own"


def add_zero_biases(mapped: Mapped) -> None:
    """Adds biases of zeros, and slots of zeros, to the attention's kernels that have none, in canonical
    names."""
    for name, tensor in list(mapped.tensors.items()):
        match = re.fullmatch(
            rf"(bert/encoder/layer_\d+/attention/(?:self/\w+|(?:output|projection)/dense)/)kernel{_SLOT}",
            name,
        )
        bias = match and f"{match.group(1)}bias{match['slot']}"
        if bias and bias not in mapped.tensors:
            mapped.tensors[bias] = tensors_lib.zeros(tensor.shape[-1:], tensor.dtype)
            mapped.added[bias] = (
                "zeros: the model of this checkpoint has no such bias, which is the same function"
            )


def _add_step_counters(mapped: Mapped) -> None:
    """Adds the step counters of all weights that have slots, where the step is known."""
    step = mapped.tensors.get("global_step")
    for name in list(mapped.tensors) if step else []:
        weight, _, slot = name.rpartition("/")
        if slot in ("lamb_m", "adam_m"):
            counter = f"{weight}/{slot.removesuffix('_m')}_step_counter"
            mapped.tensors[counter] = _counter(step)
            mapped.added[counter] = "global_step + 1"


def _counter(step: Tensor) -> Tensor:
    return Tensor(
        (1,), np.dtype(np.int32), lambda: np.reshape(step.read() + 1, [1]).astype(np.int32), step.sources
    )
