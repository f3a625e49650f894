"""This project's checkpoints: name-based bundles under the canonical names, with the trainer's counters."""

from official.checkpoint.format import Format
from official.checkpoint.mapping import canonical, table
from official.checkpoint.mapping.table import Mapped
from official.checkpoint.mapping.tensors import Tensors
from official.checkpoint.options import Options

TABLE = {
    **table.with_slots(
        {name: name for name in (*canonical.WEIGHTS, *canonical.GROUPBERT)},
        {slot: slot for slot in canonical.SLOTS},
    ),
    **{name: name for name in canonical.COUNTERS},
}


def to_canonical(tensors: Tensors, options: Options) -> Mapped:
    return table.to_canonical(TABLE, tensors, {})


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
