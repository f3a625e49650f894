"""Records as tests make and read them."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official.data.pretraining.examples import Examples
from official.data.records import encoding
from official.data.records.formats import packed
from official.data.records.schema import Feature


def serialize_example(values: dict[str, np.ndarray], schema: dict[str, Feature]) -> bytes:
    """Returns one record. Raises ValueError where a value is missing or of another length."""
    example = tf.train.Example()
    for name, feature in schema.items():
        array = np.asarray(values[name]).reshape(-1)
        if array.size != feature.length:
            raise ValueError(f"{name} has {array.size} values, the schema says {feature.length}")
        target = example.features.feature[name]
        if feature.dtype.is_integer:
            target.int64_list.value.extend(array.tolist())
        else:
            target.float_list.value.extend(array.tolist())
    return example.SerializeToString(deterministic=True)


def short_examples(
    count: int, seed: int = 0, length: int = 16, most: int = 3, shortest: int = 5, longest: int = 10
) -> Examples:
    """Returns examples of `shortest` to `longest` tokens in rows of `length`, no two the same, with one or
    two predicted tokens in `most` slots, which are less than `shortest` - 1."""
    rng = np.random.default_rng(seed)
    lengths, predictions = rng.integers(shortest, longest + 1, count), rng.integers(1, 3, count)
    is_used = np.arange(most) < predictions[:, None]
    ids = np.where(np.arange(length) < lengths[:, None], rng.integers(5, 50, (count, length)), 0)
    places = rng.permuted(np.tile(np.arange(1, shortest - 1), (count, 1)), axis=1)[:, :most]
    return Examples(
        ids.astype(np.uint16),
        lengths,
        lengths // 2,
        np.where(is_used, np.sort(places, axis=1), 0),
        np.where(is_used, rng.integers(5, 50, (count, most)), 0),
        predictions,
        rng.random(count) < 0.5,
    )


def encode(examples, kind: str) -> list[bytes]:
    """Returns records of examples; of packed ones a row for each."""
    if kind == "packed":
        return packed.encode_rows(examples, np.arange(len(examples))[:, None])
    return encoding.encode(examples, kind)


class Sequence(NamedTuple):
    """A sequence of a row, or an example: what a model sees of it."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    positions: tuple[int, ...]
    labels: tuple[int, ...]
    is_random: int


def sequences_of(examples: Examples) -> list[Sequence]:
    return [
        Sequence(
            tuple(examples.input_ids[number, :length].tolist()),
            tuple(int(place >= examples.first_lengths[number]) for place in range(length)),
            tuple(examples.positions[number, : examples.predictions[number]].tolist()),
            tuple(examples.labels[number, : examples.predictions[number]].tolist()),
            int(examples.is_random[number]),
        )
        for number, length in enumerate(examples.lengths)
    ]


def members_of(batch: dict[str, np.ndarray]) -> list[Sequence]:
    """Returns the sequences of a batch of packed rows, row by row, wherever in a row they stand."""
    found = []
    for index, number in np.argwhere(batch["example_weights"]):
        row = {name: values[index] for name, values in batch.items()}
        places = np.flatnonzero(row["sequence_ids"] == number + 1)
        order = places[np.argsort(row["position_ids"][places])]
        assert row["position_ids"][order].tolist() == list(range(len(order)))  # 0, 1, .. of a sequence
        assert row["cls_positions"][number] == order[0] and row["input_mask"][order].all()
        slots = row["masked_lm_sequences"] == number + 1
        assert (row["masked_lm_weights"][slots] == 1).all()
        assert set(row["masked_lm_positions"][slots]) <= set(places)
        values = (
            row["input_ids"][order],
            row["segment_ids"][order],
            row["position_ids"][row["masked_lm_positions"][slots]],
            row["masked_lm_ids"][slots],
        )
        label = int(row["next_sentence_labels"][number])
        found.append(Sequence(*(tuple(part.tolist()) for part in values), label))
    return found
