"""Records as tests make and read them."""

import dataclasses
import functools
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


def make_examples(
    count: int,
    seed: int = 0,
    length: int = 24,
    most: int = 4,
    words: int = 50,
    pad: int = 0,
    shortest: int = 9,
    longest: int | None = None,
    most_used: int | None = None,
) -> Examples:
    """Returns examples of random lengths from `shortest` to `longest`, in rows of `length`, with up to
    `most_used` predicted tokens in `most` slots, which are less than `shortest` - 1. Without `longest` they
    may fill their rows, and the first one does."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, (longest or length) + 1, count)
    lengths[: longest is None] = length
    predictions = rng.integers(1, (most_used or most) + 1, count)
    column, used = np.arange(length), np.arange(most) < predictions[:, None]
    ids = np.where(column < lengths[:, None], rng.integers(5, words, (count, length)), pad)
    places = rng.permuted(np.tile(np.arange(1, shortest - 1), (count, 1)), axis=1)[:, :most]
    return Examples(
        ids.astype(np.uint16 if words <= 1 << 16 else np.int32),
        lengths,
        lengths // 2,
        np.where(used, np.sort(places, axis=1), 0),
        np.where(used, rng.integers(5, words, (count, most)), 0),
        predictions,
        rng.random(count) < 0.5,
    )


def without_masks(examples: Examples) -> Examples:
    """Returns the examples as texts without masks."""
    empty, count = np.zeros((len(examples), 0), np.int32), len(examples)
    return dataclasses.replace(
        examples,
        first_lengths=examples.lengths,
        is_random=np.zeros(count, bool),
        positions=empty,
        labels=empty,
        predictions=np.zeros(count, int),
    )


# Of one or two predicted tokens each, of which several fit into a row.
short_examples = functools.partial(make_examples, length=16, most=3, shortest=5, longest=10, most_used=2)


def encode(examples, kind: str) -> list[bytes]:
    """Returns records of examples; of packed ones a row for each."""
    if kind == "packed":
        return packed.encode_rows(examples, np.arange(len(examples))[:, None])
    return encoding.encode(examples, kind)


def read_records(*paths) -> list[bytes]:
    return list(tf.data.TFRecordDataset(list(map(str, paths))).as_numpy_iterator())


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
