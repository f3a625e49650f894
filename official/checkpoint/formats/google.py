"""Formats with canonical or nearly canonical names: Google's TF1 checkpoints, this project's, and its
exports.

Google's are name-based bundles (BERT, MLPerf's phase-1 file). Source: google-research/bert (slots adam_m,
adam_v), the MLPerf v0.7 reference (LAMB slots `LAMB`, `LAMB_1`), TensorFlow's MomentumOptimizer (slot
`Momentum`). The other formats' names for these, `lamb_m` and `lamb_v`, are read, too. Checkpoints of this
project also have the trainer's counters. Exports (`bert export`) are SavedModels and only read.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from official.checkpoint import canonical, mapping
from official.checkpoint.formats import Format, Options
from official.checkpoint.mapping import Mapped
from official.checkpoint.tensors import Tensors, changed
from official.config.model import FAMILIES

# -----------------------------------------------------------------------------------------------------------
# Google's

_SLOTS = dict(zip(canonical.SLOTS, canonical.SLOTS))
_OWN = {name: name for name in (*canonical.WEIGHTS, *canonical.ELECTRA)}
TABLE = {
    **mapping.with_slots(_OWN, {**_SLOTS, "lamb_m": "LAMB", "lamb_v": "LAMB_1"}),
    **dict.fromkeys(canonical.COUNTERS),
    "global_step": "global_step",
}
_OTHER_SLOT = r"(?i).*/(adam|lamb|adamw|momentum)(_[mv]|_step_counter)?(_1)?"
_DROPPED = {
    r"beta[12]_power": "a counter of Adam's, derived from the step",
    _OTHER_SLOT: "an optimizer slot of a kind that no other format has",
}


def to_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the canonical names; of two names for the same slot, the second is unmatched."""
    spelling = mapping.Spelling(
        tensors, lambda name: re.sub("/lamb_v$", "/LAMB_1", re.sub("/lamb_m$", "/LAMB", name))
    )
    mapped = mapping.to_canonical(TABLE, spelling.tensors, _DROPPED)
    spelling.restore(mapped)
    return mapped


def from_canonical(tensors: Tensors, options: Options) -> Mapped:
    return mapping.from_canonical(TABLE, tensors, "a counter of this project's trainer")


FORMAT = Format(
    "google", "Google TF1", "bundle", to_canonical, from_canonical, signature="bert/.*", precedence=1
)

# -----------------------------------------------------------------------------------------------------------
# Google's ELECTRA, with the generator that it was pre-trained with. Source: google-research/electra

_SCOPES = {
    f"{canonical.GENERATOR}bert/": "generator/",
    f"{canonical.GENERATOR}cls/predictions/transform/": "generator_predictions/",
    f"{canonical.GENERATOR}cls/predictions/": "generator_predictions/",
    "bert/": "electra/",
    "discriminator_predictions/dense_prediction/": "discriminator_predictions/dense_1/",
    "discriminator_predictions/": "discriminator_predictions/",
}


def _name_of_electra(name: str) -> str:
    scope = next(scope for scope in _SCOPES if name.startswith(scope))
    return _SCOPES[scope] + name[len(scope) :]


_OF_ELECTRA = {
    name: _name_of_electra(name)
    for name in (*canonical.ENCODER, *canonical.ELECTRA)
    if name not in canonical.POOLER
}
ELECTRA_TABLE = {
    **mapping.with_slots(_OF_ELECTRA, _SLOTS),
    **dict.fromkeys((*canonical.COUNTERS, *canonical.POOLER)),
    "global_step": "global_step",
}


def electra_to_canonical(tensors: Tensors, options: Options) -> Mapped:
    mapped = mapping.to_canonical(ELECTRA_TABLE, tensors, _DROPPED)
    mapped.family = "electra"
    return mapped


def electra_from_canonical(tensors: Tensors, options: Options) -> Mapped:
    mapped = mapping.from_canonical(ELECTRA_TABLE, tensors, "a counter of this project's trainer")
    poolers = mapped.dropped.keys() & {*canonical.POOLER}
    mapped.dropped |= dict.fromkeys(poolers, "ELECTRA has no pooler")
    return mapped


ELECTRA = Format(
    name="electra",
    title="Google TF1 ELECTRA",
    container="bundle",
    to_canonical=electra_to_canonical,
    from_canonical=electra_from_canonical,
    signature="electra/.*",
    families=("electra",),
)

# -----------------------------------------------------------------------------------------------------------
# This project's

_NATIVE = {**_OWN, **{name: name for name in (*canonical.GROUPBERT, *canonical.MODERNBERT)}}
NATIVE_TABLE = {**mapping.with_slots(_NATIVE, _SLOTS), **{name: name for name in canonical.COUNTERS}}
_SCALE = "adam_m_scale"  # factor of mpadamw's float16 first moments


def native_to_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the canonical names; scaled first moments are divided by their scale, in float32."""
    scale, dropped = tensors.get(_SCALE), {}
    if scale is not None:
        dropped = {_SCALE: "a factor of adam_m, by which it is divided"}
        moments, float32 = [name for name in tensors if name.endswith("/adam_m")], np.dtype(np.float32)

        def divided(values: np.ndarray, read: Callable[[], np.ndarray] = scale.read) -> np.ndarray:
            return values.astype(np.float32) / np.float32(read())

        tensors = tensors | {name: changed(tensors[name], divided, dtype=float32) for name in moments}
    mapped = mapping.to_canonical(NATIVE_TABLE, tensors, dropped)
    mapping.add_zero_output_bias(mapped)
    return mapped


NATIVE = Format(
    name="native",
    title="this project",
    container="bundle",
    to_canonical=native_to_canonical,
    from_canonical=lambda tensors, options: mapping.from_canonical(NATIVE_TABLE, tensors, ""),
    aliases=("keras",),
    name_in_reports="keras",
    signature="samples|.*/lamb_[mv]|.*/attention/self/qkv/kernel",
    precedence=2,
    may_lack_biases=True,
    families=tuple(FAMILIES),
)
_OF_EXPORT: dict[str, Any] = {"name": "saved_model", "title": "export", "container": "saved_model"}
_OF_EXPORT |= {"aliases": (), "name_in_reports": "", "signature": None, "precedence": 20}
EXPORT = replace(NATIVE, **_OF_EXPORT, is_only_read=True)
