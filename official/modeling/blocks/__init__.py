"""Kinds of encoder blocks, one file each: `block_type` in the model's JSON is the name of the file.

A file has
  Block(config, index)
      the Keras layer with the variables of block `index`, under the scope layer_<index>; its `tensors()` are
      the block's weights, a NamedTuple of tensors
  run(weights, x_BLD, context, seed, config, ops) -> [B, L, D]
      the block's outputs for vectors, in their type; a function of its arguments alone
and, where the kind wants them,
  IS_PRENORM
      true: a LayerNorm follows the last block
  IS_NARROW
      true: where the context has `reads_BR`, `run` gives only the vectors there, [B, R, D], and does no more
      than they need; of other kinds the encoder picks them
  slots(features, config) -> its slots, or None
      keeps the sequences of a row apart where the order of tokens counts; it is put into the context
  seen(features, config, by_sequence)
      what its blocks see of a batch, in place of `attention.seen`; a block's `sees` then makes of that what
      is put into its context
Nothing else names the kinds: a new file is a new kind.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf

from official.config import BertConfig
from official.modeling import attention


def find(block_type: str) -> ModuleType:
    """Returns the module of a kind of block, one of `official.config.model.block_types()`."""
    return importlib.import_module(f"{__name__}.{block_type}")


def is_prenorm(kind: ModuleType) -> bool:
    """Tells whether a LayerNorm follows the last block of a kind."""
    return getattr(kind, "IS_PRENORM", False)


def is_narrow(kind: ModuleType) -> bool:
    """Tells whether a kind computes only the vectors that are read."""
    return getattr(kind, "IS_NARROW", False)


def seen_function(kind: ModuleType) -> Callable:
    """Returns (features, config, by_sequence) -> the view of a batch that all blocks of a kind have."""
    return getattr(kind, "seen", attention.seen)


def seen_by(block: Any, seen: Any) -> Any:
    """Returns the view of a batch that a block has, of that of all of its kind."""
    return block.sees(seen) if hasattr(block, "sees") else seen


def find_slots(kind: ModuleType, features: dict[str, tf.Tensor], config: BertConfig) -> Any:
    """Returns the slots of a batch's tokens; None for a kind that needs none."""
    function = getattr(kind, "slots", None)
    return None if function is None else function(features, config)
