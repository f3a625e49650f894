"""Word embeddings in blocks of rows s0, s1, ..., as Graphcore has them: joined and cut, with their slots."""

from __future__ import annotations

import re

from official.checkpoint.mapping import tensors as tensors_lib
from official.checkpoint.mapping.canonical import SLOT
from official.checkpoint.mapping.tensors import Tensor, Tensors
from official.config import ConfigError, nearest_multiples
from official.io.errors import shortened


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
