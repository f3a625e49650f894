"""Kinds of encoder blocks, one file each: `block_type` in the model's JSON is the name of the file.

A file has
  Block(config, index)
      the Keras layer with the variables of block `index`, under the scope layer_<index>; its `tensors()` are
      the block's weights, a NamedTuple of tensors
  run(weights, x_BLD, context, seed, config, ops) -> [B, L, D]
      the block's outputs for vectors, in their type; a function of its arguments alone
and optionally
  IS_PRENORM
      True: a LayerNorm follows the last block
  IS_NARROW
      True: with `reads_BR` in the context, `run` returns only the vectors at these positions, [B, R, D], and
      computes only what they need; for other types the encoder gathers them
  slots(features, config) -> slots, or None
      keeps the sequences of a row apart if the order of tokens matters; part of the context
  seen(features, config, by_sequence)
      the blocks' attention mask of a batch, instead of `attention.seen`; a block's `sees` then derives from
      it the value for its context
There is no other list of types: a new file is a new type.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

from official.modeling import attention

# Defaults of the optional names.
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
