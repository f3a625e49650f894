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
from types import SimpleNamespace
from typing import Any

from official.modeling import attention

# What the file of a kind may leave out.
_USUAL: dict[str, Any] = {
    "IS_PRENORM": False,
    "IS_NARROW": False,
    "slots": lambda features, config: None,
    "seen": attention.seen,
}


def find(block_type: str) -> SimpleNamespace:
    """Returns the module of a block type, one of `official.config.model.block_types()`, with defaults for the
    names that it does not define."""
    return SimpleNamespace(**{**_USUAL, **vars(importlib.import_module(f"{__name__}.{block_type}"))})
