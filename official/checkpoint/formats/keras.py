"""This project's checkpoints: name-based bundles under the canonical names, with the counters of the trainer."""

from official.checkpoint.formats import canonical, table
from official.checkpoint.formats.options import Options
from official.checkpoint.formats.table import Mapped
from official.checkpoint.formats.tensors import Tensors

TITLE = "this project"

TABLE = {
    **table.with_slots({name: name for name in canonical.WEIGHTS}, {slot: slot for slot in canonical.SLOTS}),
    **{name: name for name in canonical.COUNTERS},
}


def to_canonical(tensors: Tensors, options: Options) -> Mapped:
    return table.to_canonical(TABLE, tensors, {})


def from_canonical(tensors: Tensors, options: Options) -> Mapped:
    return table.from_canonical(TABLE, tensors, "")
