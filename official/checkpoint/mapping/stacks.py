"""Tensors that some formats keep in one, as query, key and value: joined, taken apart, with slots."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from official.checkpoint.mapping import tensors as tensors_lib
from official.checkpoint.mapping.canonical import SLOT
from official.checkpoint.mapping.tensors import Tensors
from official.io.errors import ConfigError, shortened


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
