"""One record of packed rows, read and checked by itself; `packed` says what is in it."""

from __future__ import annotations

import numpy as np

from official.data.records.formats import packed_rows
from official.data.records.schema import INTEGER_LIMIT, Feature, describe_range, read_example

IDS = "packed_input_ids"
# What a step looks up, in padding and empty slots, too: what it must be below, without a vocabulary.
LOOKED_UP = {"input_ids": INTEGER_LIMIT, "masked_lm_ids": INTEGER_LIMIT, "next_sentence_labels": 2}


def read(record: bytes) -> dict[str, np.ndarray]:
    """Returns the features of a record. Raises ValueError where one is missing, or of another type or
    length.
    """
    features = read_example(record) or {}
    values = {}
    for name in packed_rows.NAMES:
        if name not in features:
            raise ValueError(f"feature {name} is missing (it has {', '.join(sorted(features)) or 'none'})")
        kind = "float_list" if name in packed_rows.FLOATS else "int64_list"
        if features[name].WhichOneof("kind") != kind:
            raise ValueError(f"feature {name} is a {features[name].WhichOneof('kind')}, expected a {kind}")
        values[name] = np.array([getattr(features[name], kind).value])
    packed_rows.check_sizes(values)
    return values


def sizes_of(record: bytes) -> tuple[int, int]:
    try:
        row = read(record)
    except ValueError:
        return 0, 0
    return packed_rows.sizes_of(row)


def describe_mismatch(record: bytes, schema: dict[str, Feature]) -> str | None:
    expected = schema["input_ids"].length, schema["masked_lm_ids"].length
    try:
        row = read(record)
        found = packed_rows.sizes_of(row)
        if found != expected:
            return (
                f"it is a row of {found[0]} tokens with up to {found[1]} predicted ones an example, expected"
                f" {expected[0]} and {expected[1]}"
            )
        values = packed_rows.members_of(row).features()
        values.update({name: row[f"packed_{name}"] for name in LOOKED_UP})
    except ValueError as error:
        return str(error)
    return next(
        filter(None, (describe_range(name, values[name].ravel(), schema[name]) for name in values)), None
    )
