"""Google's TF1 checkpoints (BERT, MLPerf's phase-1 file): name-based bundles under the canonical names.

Source: google-research/bert (slots adam_m, adam_v), the MLPerf v0.7 reference (LAMB slots `LAMB`, `LAMB_1`),
TensorFlow's MomentumOptimizer (slot `Momentum`).
The names of the other formats for these, `lamb_m` and `lamb_v`, are read too.
"""

import re

from official.checkpoint.format import Format, Options
from official.checkpoint.mapping import canonical, table
from official.checkpoint.mapping.table import Mapped
from official.checkpoint.mapping.tensors import Tensors

_WEIGHTS = {name: name for name in canonical.WEIGHTS}
TABLE = {
    **table.with_slots(
        _WEIGHTS,
        {
            "adam_m": "adam_m",
            "adam_v": "adam_v",
            "lamb_m": "LAMB",
            "lamb_v": "LAMB_1",
            "Momentum": "Momentum",
        },
    ),
    "global_step": "global_step",
    "samples": None,
    "loss_scale/scale": None,
    "loss_scale/good_steps": None,
}
DROPPED = {
    r"beta[12]_power": "a counter of Adam's that the step gives",
    r"(?i).*/(adam|lamb|adamw|momentum)(_[mv]|_step_counter)?(_1)?": (
        "an optimizer slot of a kind that no other format has"
    ),
}


def to_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the canonical names; of two names for the same slot, the second is unmatched."""
    names, doubled = table.common_names(tensors, _common_name)
    mapped = table.to_canonical(TABLE, {common: tensors[name] for common, name in names.items()}, DROPPED)
    table.restore_names(mapped, names, doubled)
    return mapped


def from_canonical(tensors: Tensors, options: Options) -> Mapped:
    return table.from_canonical(TABLE, tensors, "a counter of this project's trainer")


def _common_name(name: str) -> str:
    return re.sub("/lamb_v$", "/LAMB_1", re.sub("/lamb_m$", "/LAMB", name))


FORMAT = Format(
    name="google",
    title="Google TF1",
    container="bundle",
    to_canonical=to_canonical,
    from_canonical=from_canonical,
    signature="bert/.*",
    precedence=1,
)
