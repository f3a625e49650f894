"""Exports of this project: SavedModels whose variables have the names of weights, with the model's
configuration in assets.extra/.

A weight in 8 bits is two variables, NAME and NAME/scale, read as their product. The location of an export is
its folder assets.extra, next to whose files the weights are.
"""

import os

import numpy as np

from official.checkpoint.containers import object_bundle
from official.checkpoint.tensors import Tensor, Tensors, changed
from official.io.errors import ConfigError

LAST, IS_FOLDER = "saved_model.pb", True
EXTRA, MANIFEST = "assets.extra", "export.json"
_SCALE = "/scale"


def locate(path: str) -> str | None:
    """Returns the folder assets.extra of an export, given its folder or its saved_model.pb; None for anything
    else. Raises ConfigError for an export that is not a SavedModel."""
    folder = os.path.dirname(path) if os.path.basename(path) in (LAST, EXTRA) else path
    if os.path.isfile(os.path.join(folder, MANIFEST)) and not os.path.isfile(os.path.join(folder, LAST)):
        advice = "Give the model that was exported, or an export with --format=saved_model."
        raise ConfigError(f"{path} is an ONNX export, whose weights cannot be read back. {advice}")
    extra = os.path.join(folder, EXTRA)
    is_there = os.path.isfile(os.path.join(extra, MANIFEST)) and os.path.isfile(os.path.join(folder, LAST))
    return extra if is_there else None


def read(location: str) -> Tensors:
    """Returns the weights under canonical names. Raises DamagedError, also when one of them is read."""
    found = object_bundle.read(os.path.join(os.path.dirname(location), "variables", "variables"))
    weights = {name: tensor for name, tensor in found.items() if not name.endswith(_SCALE)}
    whole = {name: tensor for name, tensor in weights.items() if name + _SCALE in found}
    return weights | {name: _multiplied(tensor, found[name + _SCALE]) for name, tensor in whole.items()}


def _multiplied(whole: Tensor, scale: Tensor) -> Tensor:
    float32 = np.dtype(np.float32)
    return changed(whole, lambda values: values.astype(float32) * scale.read(), dtype=float32)
