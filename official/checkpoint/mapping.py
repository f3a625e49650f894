"""Tables of names, {canonical name: name in a format}, and functions for tensors that a format joins, splits
or lacks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping

from official.checkpoint import tensors as tensors_lib
from official.checkpoint.canonical import OUTPUT_BIAS, SLOT, TRANSFORM
from official.checkpoint.tensors import Tensor, Tensors
from official.config import nearest_multiples
from official.io.errors import ConfigError, shortened

# -----------------------------------------------------------------------------------------------------------
# Tables of names
# The canonical names are Google's TF1 names, which are also this project's variable names, and for GroupBERT
# Graphcore's. A value in a table is
#   a name                    the same tensor under that name,
#   Transposed(name)          the matrix with its axes swapped,
#   None                      deliberately dropped: the format has no such tensor.
# A name that is missing in the table is an error, on either side.


class Transposed(str):
    """Name of a matrix that the format stores with its axes swapped."""


Table = Mapping[str, "str | None"]


@dataclasses.dataclass
class Mapped:
    """Renamed tensors, and the names of the others.

    Attributes:
      tensors: {new name: tensor}.
      dropped: {old name: reason}, deliberately dropped.
      unmatched: old names without a rule.
      added: {new name: reason} of tensors that the source lacks, e.g. a zero bias.
      family: family of the model, of `config.model`, if tensor names identify it.
    """

    tensors: Tensors = dataclasses.field(default_factory=dict)
    dropped: dict[str, str] = dataclasses.field(default_factory=dict)
    unmatched: list[str] = dataclasses.field(default_factory=list)
    added: dict[str, str] = dataclasses.field(default_factory=dict)
    family: str | None = None


def from_canonical(table: Table, source: Tensors, reason: str) -> Mapped:
    """Renames canonical tensors. `reason` is why those with None are dropped."""
    mapped = Mapped()
    for name, tensor in source.items():
        pattern, layer = _pattern_of(name, table)
        if pattern is None:
            mapped.unmatched.append(name)
        elif (new := table[pattern]) is None:
            mapped.dropped[name] = reason
        else:
            tensor = tensors_lib.transposed(tensor) if isinstance(new, Transposed) else tensor
            mapped.tensors[new.replace("{layer}", layer)] = tensor
    return mapped


def to_canonical(table: Table, source: Tensors, dropped: dict[str, str]) -> Mapped:
    """Renames a format's tensors to canonical names. `dropped` is {pattern: reason} of names that only this
    format has."""
    back = {theirs: type(theirs)(ours) for ours, theirs in table.items() if theirs is not None}
    mapped = from_canonical(back, source, "")
    mapped.dropped = reasons(mapped.unmatched, dropped)
    mapped.unmatched = [name for name in mapped.unmatched if name not in mapped.dropped]
    return mapped


def _pattern_of(name: str, table: Table) -> tuple[str | None, str]:
    """Returns the key of a table that a name matches, and the number of its layer: the first number in the
    name for which it matches."""
    if name in table and "{layer}" not in name:
        return name, ""
    for match in re.finditer(r"(?<!\d)\d{1,4}(?!\d)", name):  # longer: not a layer
        pattern = f"{name[: match.start()]}{{layer}}{name[match.end() :]}"
        if pattern in table:
            return pattern, match.group()
    return None, ""


def with_slots(table: Table, slots: Mapping[str, str | None]) -> Table:
    """Adds the optimizer slots of every weight of a table, {canonical ending: ending in the format or None};
    the slots have the weights' shapes."""
    added = {
        f"{ours}/{slot}": type(theirs)(f"{theirs}/{ending}") if theirs and ending else None
        for ours, theirs in table.items()
        for slot, ending in slots.items()
    }
    return {**table, **added}


def reasons(names: Iterable[str], rules: Mapping[str, str]) -> dict[str, str]:
    """Returns {name: reason} of the names that match a pattern of {pattern: reason}; the first match
    counts."""
    found = {name: next((rules[one] for one in rules if re.fullmatch(one, name)), None) for name in names}
    return {name: reason for name, reason in found.items() if reason is not None}


def without(tensors: Tensors, rules: Mapping[str, str]) -> tuple[Tensors, dict[str, str]]:
    """Returns the tensors that no pattern of {pattern: reason} matches, and {name: reason} of the others."""
    dropped = reasons(tensors, rules)
    return {name: tensor for name, tensor in tensors.items() if name not in dropped}, dropped


class Spelling:
    """Tensors of a format with several spellings, in that of its table; of two, the first counts.

    Attributes:
      tensors: {name in the table: tensor}.
      doubled: names in the file that are a second spelling of another name.
    """

    def __init__(self, source: Tensors, common_name: Callable[[str], str]):
        self.tensors: Tensors = {}
        self.doubled: list[str] = []
        self._names: dict[str, str] = {}
        for name, tensor in source.items():
            common = common_name(name)
            if common in self.tensors:
                self.doubled.append(name)
            else:
                self.tensors[common], self._names[common] = tensor, name

    def restore(self, mapped: Mapped) -> None:
        """Restores the file's names of unmatched tensors."""
        mapped.dropped = {self._names[common]: reason for common, reason in mapped.dropped.items()}
        mapped.unmatched = [self._names[common] for common in mapped.unmatched] + self.doubled


# -----------------------------------------------------------------------------------------------------------
# Biases that some formats lack


def add_zero_biases(mapped: Mapped) -> None:
    """Adds zero biases, and zero slots, to attention kernels without a bias, under canonical names. An
    existing bias without slots is not trained."""
    kernel = rf"(bert/encoder/layer_\d+/attention/(?:self/\w+|(?:output|projection)/dense)/)kernel{SLOT}"
    there = dict(mapped.tensors)
    for name, tensor in there.items():
        match = re.fullmatch(kernel, name)
        if match and not {f"{match[1]}bias", f"{match[1]}bias{match['slot']}"} & there.keys():
            _add_zeros(mapped, f"{match[1]}bias{match['slot']}", tensor.shape[-1:], tensor)


def add_zero_output_bias(mapped: Mapped) -> None:
    """Adds a zero bias, one value per word, to a masked-LM head that consists of a transform alone."""
    words = mapped.tensors.get("bert/embeddings/word_embeddings")
    has_transform = mapped.tensors.keys() >= {*TRANSFORM}  # ModernBERT's, without biases, precedes all heads
    if has_transform and OUTPUT_BIAS not in mapped.tensors and words is not None:
        _add_zeros(mapped, OUTPUT_BIAS, words.shape[:1], words)


def _add_zeros(mapped: Mapped, name: str, shape: tuple[int, ...], like: Tensor) -> None:
    mapped.tensors[name] = tensors_lib.zeros(shape, like.dtype)
    mapped.added[name] = "zeros: the model of this checkpoint has no such bias, which is the same function"


# -----------------------------------------------------------------------------------------------------------
# Stacked tensors

# {name in a format, with a `{layer}` slot: names of the tensors that it stores side by side in one, along the
# last axis, in the order of the values}
Stacks = Mapping[str, tuple[str, ...]]
QKV_KERNELS, QKV_BIASES = (
    tuple(f"bert/encoder/layer_{{layer}}/attention/self/{part}/{kind}" for part in ("query", "key", "value"))
    for kind in ("kernel", "bias")
)


def unstack(tensors: Tensors, stacks: Stacks) -> tuple[Tensors, Tensors]:
    """Splits stacked tensors and their slots. A stack is unchanged if one of its parts also exists.

    Returns:
      The tensors that are not stacked, and the parts under canonical names.

    Raises:
      ConfigError: for a stack that cannot be split equally.
    """
    rest: Tensors = {}
    parts: Tensors = {}
    for name, tensor in tensors.items():
        names = next((found for whole, each in stacks.items() if (found := _fill(name, whole, each))), [])
        if not names or any(part in tensors for part in names):
            rest[name] = tensor
        elif not tensor.shape or tensor.shape[-1] % len(names):
            problem = f"{len(names)}, for {shortened(names)}. Is the checkpoint damaged?"
            shape = f"the shape {list(tensor.shape)}: its last dimension must be a multiple of"
            raise ConfigError(f"{name} has {shape} {problem}")
        else:
            for index, part in enumerate(names):
                parts[part] = tensors_lib.part(tensor, -1, index, len(names))
    return rest, parts


def stack(tensors: Tensors, stacks: Stacks) -> tuple[Tensors, Tensors]:
    """Joins the parts of stacks, and their slots, if all parts exist.

    Returns:
      The tensors that are not stacked, under their names, and the stacked ones under the format's.
    """
    rest, wholes = dict(tensors), {}
    for name in tensors:
        for whole, parts in stacks.items():
            names = _fill(name, parts[0], (whole, *parts))
            if names and all(part in tensors for part in names[1:]):
                wholes[names[0]] = tensors_lib.joined([rest.pop(part) for part in names[1:]], -1)
    return rest, wholes


def _fill(name: str, pattern: str, names: tuple[str, ...]) -> list[str]:
    """Returns `names` with the layer and the slot for which `name` matches `pattern`; an empty list if it
    does not match."""
    match = re.fullmatch(re.escape(pattern).replace(r"\{layer\}", r"(?P<layer>\d{1,4})") + SLOT, name)
    return [other.replace("{layer}", match["layer"]) + match["slot"] for other in names] if match else []


# -----------------------------------------------------------------------------------------------------------
# Word embeddings in blocks


def join_rows(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Joins word embeddings stored in blocks of rows s0, s1, ..., and their slots.

    Returns:
      The other tensors, and the joined ones under canonical names. Blocks are unchanged if the whole also
      exists.

    Raises:
      ConfigError: if a block is missing, not two-dimensional, or of another width.
    """
    rest: Tensors = {}
    blocks: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(rf"bert/embeddings/s(\d{{1,4}})/(?P<whole>word_embeddings{SLOT})", name)
        if match and f"bert/embeddings/{match['whole']}" not in tensors:
            blocks.setdefault(f"bert/embeddings/{match['whole']}", {})[int(match.group(1))] = tensor
        else:
            rest[name] = tensor
    return rest, {name: _join_blocks(name, numbered) for name, numbered in blocks.items()}


def _join_blocks(name: str, blocks: dict[int, Tensor]) -> Tensor:
    last = max(blocks)
    if missing := [f"s{number}" for number in range(last) if number not in blocks]:
        problem = f"of which are missing: {shortened(missing)}. The checkpoint must have all of them."
        raise ConfigError(f"{name} is in blocks s0 to s{last}, {problem}")
    ordered = [blocks[number] for number in range(last + 1)]
    flat = [f"s{number} {list(one.shape)}" for number, one in enumerate(ordered) if len(one.shape) != 2]
    widths = sorted({one.shape[1:] for one in ordered})
    if flat or len(widths) > 1:
        wrong = f"some are not rows: {shortened(flat)}" if flat else f"the widths are different: {widths}"
        raise ConfigError(f"{name} is in blocks, of which {wrong}. Is the checkpoint damaged?")
    return tensors_lib.joined(ordered, 0)


def split_rows(tensors: Tensors, count: int) -> Tensors:
    """Cuts word embeddings, and their slots, into `count` blocks of rows s0, s1, ...; a single block keeps
    the name of the whole.

    Raises:
      ConfigError: if the number of words is not a multiple of `count`.
    """
    if count < 1:
        raise ConfigError(f"--num_embeddings_splits={count} must be at least 1.")
    result: Tensors = {}
    for name, tensor in tensors.items():
        if count == 1 or not re.fullmatch(f"bert/embeddings/word_embeddings{SLOT}", name):
            result[name] = tensor
            continue
        words = tensor.shape[0]
        if words % count:
            problem = f"{words} words. Nearest valid --vocab_size: {nearest_multiples(words, count)}."
            raise ConfigError(f"--num_embeddings_splits={count} does not divide the vocabulary of {problem}")
        for index in range(count):
            block = name.replace("/word_", f"/s{index}/word_")
            result[block] = tensors_lib.part(tensor, 0, index, count)
    return result
