"""This project's checkpoints: name-based bundles under the canonical names, with the trainer's counters."""

import numpy as np

from official.checkpoint.format import Format, Options
from official.checkpoint.mapping import canonical, table
from official.checkpoint.mapping.table import Mapped
from official.checkpoint.mapping.tensors import Tensor, Tensors

TABLE = {
    **table.with_slots(
        {name: name for name in (*canonical.WEIGHTS, *canonical.GROUPBERT)},
        {slot: slot for slot in canonical.SLOTS},
    ),
    **{name: name for name in canonical.COUNTERS},
}


_SCALE = "adam_m_scale"  # what mpadamw's first moments, float16, are multiplied by


def to_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the canonical names; first moments that are kept scaled are divided, to float32."""
    mapped = _named(tensors)
    table.add_zero_output_bias(mapped)
    return mapped


def _named(tensors: Tensors) -> Mapped:
    scale = tensors.get(_SCALE)
    if scale is None:
        return table.to_canonical(TABLE, tensors, {})
    true = {
        name: _divided(tensor, scale) if name.endswith("/adam_m") else tensor
        for name, tensor in tensors.items()
    }
    return table.to_canonical(TABLE, true, {_SCALE: "a factor of adam_m, by which it is divided"})


def _divided(tensor: Tensor, scale: Tensor) -> Tensor:
    return Tensor(
        tensor.shape,
        np.dtype(np.float32),
        lambda: tensor.read().astype(np.float32) / np.float32(scale.read()),
        tensor.sources,
    )


def from_canonical(tensors: Tensors, options: Options) -> Mapped:
    return table.from_canonical(TABLE, tensors, "")


FORMAT = Format(
    name="native",
    title="this project",
    container="bundle",
    to_canonical=to_canonical,
    from_canonical=from_canonical,
    aliases=("keras",),
    name_in_reports="keras",
    signature="samples|.*/lamb_[mv]",
    precedence=2,
    may_lack_biases=True,
)
