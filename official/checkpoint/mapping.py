"""Tables of names, {canonical name: name in a format}, and tensors that a format joins, cuts or lacks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

from official.checkpoint import tensors as tensors_lib
from official.checkpoint.canonical import OUTPUT_BIAS, SLOT, TRANSFORM
from official.checkpoint.tensors import Tensor, Tensors
from official.config import nearest_multiples
from official.io.errors import ConfigError, shortened

# -----------------------------------------------------------------------------------------------------------
# Biases that some formats lack


_SAME = "zeros: the model of this checkpoint has no such bias, which is the same function"


def add_zero_biases(mapped: Mapped) -> None:
    """Adds biases of zeros, and slots of zeros, to the attention's kernels that have none, in canonical
    names. A bias that is there without slots is not trained."""
    there = set(mapped.tensors)
    for name, tensor in list(mapped.tensors.items()):
        match = re.fullmatch(
            rf"(bert/encoder/layer_\d+/attention/(?:self/\w+|(?:output|projection)/dense)/)kernel{SLOT}",
            name,
        )
        bias = f"{match.group(1)}bias" if match else name
        slot = match["slot"] if match else ""
        if bias not in there and bias + slot not in there:
            mapped.tensors[bias + slot] = tensors_lib.zeros(tensor.shape[-1:], tensor.dtype)
            mapped.added[bias + slot] = _SAME


def add_zero_output_bias(mapped: Mapped) -> None:
    """Adds a bias of zeros, one for each word, to a masked-LM head that is a transform alone."""
    words = mapped.tensors.get("bert/embeddings/word_embeddings")
    if TRANSFORM[0] in mapped.tensors and OUTPUT_BIAS not in mapped.tensors and words is not None:
        mapped.tensors[OUTPUT_BIAS] = tensors_lib.zeros(words.shape[:1], words.dtype)
        mapped.added[OUTPUT_BIAS] = _SAME


# -----------------------------------------------------------------------------------------------------------
# Stacked tensors


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


def unstack(tensors: Tensors, stacks: tuple[Stack, ...]) -> tuple[Tensors, Tensors]:
    """Takes stacked tensors apart, and their slots. A whole beside one of its own parts is left as it is.

    Returns:
      The tensors that are not stacked, and the parts under canonical names.

    Raises:
      ConfigError: for a whole that has no equal parts.
    """
    rest: Tensors = {}
    parts: Tensors = {}
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


def stack(tensors: Tensors, stacks: Sequence[Stack]) -> tuple[Tensors, Tensors]:
    """Joins the parts of stacks, and their slots, where all parts are there.

    Returns:
      The tensors that are not stacked, under their names, and the wholes under the format's.
    """
    rest = dict(tensors)
    wholes: Tensors = {}
    for name in tensors:
        for one in stacks:
            names = _fill(name, one.parts[0], (one.whole, *one.parts))
            if names and all(part in tensors for part in names[1:]):
                wholes[names[0]] = tensors_lib.joined([rest.pop(part) for part in names[1:]], -1)
    return rest, wholes


def _fill(name: str, pattern: str, names: tuple[str, ...]) -> list[str]:
    """Returns `names` with the layer and the slot with which `name` fits `pattern`; an empty list where it
    does not fit."""
    match = re.fullmatch(re.escape(pattern).replace(r"\{layer\}", r"(?P<layer>\d+)") + SLOT, name)
    return [other.replace("{layer}", match["layer"]) + match["slot"] for other in names] if match else []


# -----------------------------------------------------------------------------------------------------------
# Word embeddings in blocks


def join_rows(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Joins word embeddings that are in blocks of rows s0, s1, ..., and their slots.

    Returns:
      The other tensors, and the joined ones under canonical names. Blocks beside the whole are left as they
      are.

    Raises:
      ConfigError: where a block is missing, not of two dimensions, or of another width.
    """
    rest: Tensors = {}
    blocks: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(rf"bert/embeddings/s(\d+)/(?P<whole>word_embeddings{SLOT})", name)
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
    result: Tensors = {}
    for name, tensor in tensors.items():
        if re.fullmatch(f"bert/embeddings/word_embeddings{SLOT}", name):
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


# -----------------------------------------------------------------------------------------------------------
# Tables of names
#
# The canonical names are Google's TF1 names, which are this project's variable names, and for GroupBERT
# Graphcore's. A value in a table is
#   a name                    the same tensor under that name,
#   Transposed(name)          the matrix with its axes swapped,
#   None                      knowingly dropped: the format has no such tensor.
# What is in no table is an error, on either side.


@dataclasses.dataclass(frozen=True)
class Transposed:
    """A matrix that the format stores with its axes swapped."""

    name: str


@dataclasses.dataclass
class Mapped:
    """Tensors under new names, and what did not get one.

    Attributes:
      tensors: {new name: tensor}.
      dropped: {old name: reason}, knowingly left out.
      unmatched: old names that no rule knows.
      added: {new name: reason}, made up because the source has no such tensor, e.g. a bias of zeros.
    """

    tensors: Tensors = dataclasses.field(default_factory=dict)
    dropped: dict[str, str] = dataclasses.field(default_factory=dict)
    unmatched: list[str] = dataclasses.field(default_factory=list)
    added: dict[str, str] = dataclasses.field(default_factory=dict)


Table = Mapping[str, str | Transposed | None]
_Rule = tuple[str | None, bool]  # the new name, None for none, and whether the axes are swapped


def from_canonical(table: Table, source: Tensors, reason: str) -> Mapped:
    """Renames canonical tensors. `reason` says why those with None are dropped."""
    return _rename([(canonical, _rule(value)) for canonical, value in table.items()], source, reason)


def to_canonical(table: Table, source: Tensors, dropped: dict[str, str]) -> Mapped:
    """Renames a format's tensors to canonical names. `dropped` is {pattern: reason} of names that only this
    format has."""
    rules = [(_rule(value), canonical) for canonical, value in table.items()]
    back = [(name, (canonical, transpose)) for (name, transpose), canonical in rules if name is not None]
    mapped = _rename(back, source, "")
    for name in list(mapped.unmatched):
        why = next((why for pattern, why in dropped.items() if re.fullmatch(pattern, name)), None)
        if why:
            mapped.unmatched.remove(name)
            mapped.dropped[name] = why
    return mapped


def _rule(value: str | Transposed | None) -> _Rule:
    return (value.name, True) if isinstance(value, Transposed) else (value, False)


def _rename(rules: Sequence[tuple[str, _Rule]], source: Tensors, reason: str) -> Mapped:
    exact = {pattern: rule for pattern, rule in rules if "{layer}" not in pattern}
    layered = {pattern.replace("{layer}", "*"): rule for pattern, rule in rules if "{layer}" in pattern}
    mapped = Mapped()
    for name, tensor in source.items():
        rule, layer = (exact[name], None) if name in exact else _find_layered(layered, name)
        if rule is None:
            mapped.unmatched.append(name)
        elif rule[0] is None:
            mapped.dropped[name] = reason
        else:
            new_name = rule[0] if layer is None else rule[0].replace("{layer}", layer)
            mapped.tensors[new_name] = tensors_lib.transposed(tensor) if rule[1] else tensor
    return mapped


def _find_layered(layered: dict[str, _Rule], name: str) -> tuple[_Rule | None, str | None]:
    """Returns the rule and the number of the layer: the first number in the name that makes it fit."""
    for match in re.finditer(r"\d+", name):
        rule = layered.get(name[: match.start()] + "*" + name[match.end() :])
        if rule is not None:
            return rule, match.group()
    return None, None


def with_slots(table: Table, slots: Mapping[str, str | None]) -> Table:
    """Adds the optimizer slots of every weight of a table, e.g. {"adam_m": "adam_m"}; the slots have the
    weights' shapes.

    Args:
      table: of weights.
      slots: {canonical suffix: suffix in the format or None}.
    """
    extended = dict(table)
    for canonical, value in table.items():
        for ours, theirs in slots.items():
            name, transpose = _rule(value)
            new = None if name is None or theirs is None else f"{name}/{theirs}"
            extended[f"{canonical}/{ours}"] = Transposed(new) if new and transpose else new
    return extended


def common_names(source: Tensors, common_name: Callable[[str], str]) -> tuple[dict[str, str], list[str]]:
    """Returns {name in a table: name in the file} for a format with several spellings, and names whose place
    another has taken.

    Args:
      source: {name in the file: tensor}; of two spellings, the first counts.
      common_name: gives the spelling of the table.
    """
    names, doubled = {}, []
    for name in source:
        common = common_name(name)
        if common in names:
            doubled.append(name)
        else:
            names[common] = name
    return names, doubled


def restore_names(mapped: Mapped, names: dict[str, str], doubled: list[str]) -> None:
    """Names what found no place as the file does, with what `common_names` gave."""
    mapped.dropped = {names[common]: reason for common, reason in mapped.dropped.items()}
    mapped.unmatched = [names[common] for common in mapped.unmatched] + doubled


def without(tensors: Tensors, rules: dict[str, str]) -> tuple[Tensors, dict[str, str]]:
    """Returns the tensors that no pattern of {pattern: reason} matches, and {name: reason} of the others."""
    dropped = {
        name: reason for name in tensors for pattern, reason in rules.items() if re.fullmatch(pattern, name)
    }
    return {name: tensor for name, tensor in tensors.items() if name not in dropped}, dropped
