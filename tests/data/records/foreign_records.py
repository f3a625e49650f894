"""Writers of other people's records, by hand from the published layouts; none of the product's encoders.

Rows are lists of numbers of examples. `FORMATS` has of each format how it is written and its sequences a row.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

import tensorflow as tf

from official.data.pretraining.examples import Examples
from tests.records import Sequence, sequences_of

DEPTH = 3
FLOATS = {
    "masked_lm_weights", "next_sentence_weights", "packed_masked_lm_mask", "packed_next_sentence_mask",
}  # fmt: skip


def filled(values: Iterable[int], size: int) -> list[int]:
    filling = size - len(list(values))
    assert filling >= 0
    return [*values, *[0] * filling]


def in_place(members: list[Sequence], length: int, most: int, depth: int = DEPTH) -> dict[str, list[int]]:
    """A row of Habana's: the sequences end to end."""
    row: dict[str, list[int]] = {name: [] for name in (
        "input_ids", "input_mask", "segment_ids", "positions",
        "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
        "next_sentence_positions", "next_sentence_labels", "next_sentence_weights",
    )}  # fmt: skip
    for number, member in enumerate(members, 1):
        offset, tokens = len(row["input_ids"]), len(member.ids)
        row["masked_lm_positions"] += [offset + place for place in member.positions]
        row["masked_lm_ids"] += member.labels
        row["masked_lm_weights"] += [number] * len(member.labels)
        row["next_sentence_positions"].append(offset)
        row["next_sentence_labels"].append(member.is_random)
        row["next_sentence_weights"].append(1)
        row["input_ids"] += member.ids
        row["input_mask"] += [number] * tokens
        row["segment_ids"] += member.segments
        row["positions"] += range(tokens)
    sizes = [length] * 4 + [most + depth] * 3 + [depth] * 3
    return {name: filled(values, size) for (name, values), size in zip(row.items(), sizes)}


def front_and_back(
    members: list[Sequence], length: int, slots: int, is_backwards: bool, keeps_order: bool = False
) -> dict[str, list[int]]:
    """A row of MLPerf's: predicted tokens in front, [CLS] at the end; of Graphcore's for PyTorch, which keeps
    the order of the others and says where the predicted ones are."""
    tokens = [
        (number, place, member.ids[place], member.segments[place])
        for number, member in enumerate(members, 1)
        for place in range(len(member.ids))
    ]
    masked = [(number, place) for number, member in enumerate(members, 1) for place in member.positions]
    front = [] if keeps_order else [token for key in masked for token in tokens if token[:2] == key]
    back = [token for token in tokens if token[1] == 0]
    body = [token for token in tokens if token[1] > 0 and token not in front]
    padding = [(0, 0, 0, 0)] * (length - len(tokens))
    labels = [member.is_random for member in members]
    if is_backwards:
        back, labels = back[::-1], labels[::-1]
    order = front + body + padding + back
    places = [token[:2] for token in order]
    positions = {"masked_lm_positions": filled([places.index(key) for key in masked], slots)}
    return {
        **(positions if keeps_order else {}),
        "input_ids": [token[2] for token in order],
        "input_mask": [token[0] for token in order],
        "segment_ids": [token[3] for token in order],
        "positions": [token[1] for token in order],
        "masked_lm_ids": filled([label for member in members for label in member.labels], slots),
        "masked_lm_weights": filled([number for number, _ in masked], slots),
        "next_sentence_labels": [0] * (DEPTH - len(labels)) + labels,
        "next_sentence_weights": [0] * (DEPTH - len(labels)) + [1] * len(labels),
    }


def static(member: Sequence, length: int, most: int) -> dict[str, list[int]]:
    """A record of `wiki_*_tokenised`: predicted tokens first, and id 0 left out, as the script does."""
    kept = [place for place, token in enumerate(member.ids) if token]
    front = [place for place in kept if place in member.positions]
    body = [place for place in kept if place not in member.positions]
    holes = [None] * (most - len(front))
    order = [*front, *holes, *body]
    order += [None] * (length - len(order))
    pick = dict(zip(member.positions, member.labels))
    return {
        "input_ids": [0 if place is None else member.ids[place] for place in order],
        "positions": [384 if place is None else place for place in order],
        "segment_ids": [0 if place is None else member.segments[place] for place in order],
        "predicted": [len(front)],
        "end": [most + len(body)],
        "masked_lm_ids": filled([pick[place] for place in front], most),
        "next_sentence_labels": [member.is_random],
    }


def plain(member: Sequence, length: int, most: int) -> dict[str, list[int]]:
    """A record of MLPerf's `record_to_binary`."""
    return {
        "input_ids": filled(member.ids, length),
        "input_mask": filled([1] * len(member.ids), length),
        "segment_ids": filled(member.segments, length),
        "masked_lm_positions": filled(member.positions, most),
        "masked_lm_ids": filled(member.labels, most),
        "masked_lm_weights": filled([1] * len(member.labels), most),
        "next_sentence_labels": [member.is_random],
    }


def binary(row: dict[str, list[int]]) -> bytes:
    words = [word for values in row.values() for word in values]
    return struct.pack(f"<{len(words)}i", *words)


def example(row: dict[str, list[int]]) -> bytes:
    record = tf.train.Example()
    for name, values in row.items():
        feature = record.features.feature[name]
        (feature.float_list if name in FLOATS else feature.int64_list).value.extend(values)
    return record.SerializeToString(deterministic=True)


def published(row: dict[str, list[int]]) -> bytes:
    """A record of Graphcore's for PyTorch, by the names of its features."""
    renamed = {"positions": "position_ids", "masked_lm_weights": "masked_lm_mask"}
    renamed["next_sentence_weights"] = "next_sentence_mask"
    return example({f"packed_{renamed.get(name, name)}": values for name, values in row.items()})


class Format(NamedTuple):
    """How a format is written.

    Attributes:
      name: of the reader.
      row: (members, L, M) -> fields of a record.
      encode: fields -> record.
      is_packed: whether rows hold several sequences.
      spare: K - M - P.
    """

    name: str
    row: Callable[[list[Sequence], int, int], dict[str, list[int]]]
    encode: Callable[[dict[str, list[int]]], bytes] = binary
    is_packed: bool = True
    spare: int = -1


def _front(is_backwards: bool, slots: int, keeps_order: bool = False) -> Callable:
    return lambda members, length, most: front_and_back(
        members, length, most + DEPTH - 1 + slots, is_backwards, keeps_order
    )


FORMATS = {
    "packed": Format("packed", _front(True, 0, keeps_order=True), published),
    "habana": Format("habana", in_place, example, spare=0),
    "popart_in_place": Format("popart_in_place", in_place, spare=0),
    "popart_packed, backwards": Format("popart_packed", _front(True, 0)),
    "popart_packed, forwards": Format("popart_packed", _front(False, 0)),
    "popart_packed, 79 slots": Format("popart_packed", _front(False, 1), spare=0),
    "popart_static": Format("popart_static", lambda some, *sizes: static(some[0], *sizes), is_packed=False),
    "popart_plain": Format("popart_plain", lambda some, *sizes: plain(some[0], *sizes), is_packed=False),
}


def rows_of(examples: Examples, packs: list[list[int]], kind: str, most: int) -> list[dict[str, list[int]]]:
    """Returns the fields of each record; of a format that is not packed, one for each member."""
    packs = packs if FORMATS[kind].is_packed else [[number] for pack in packs for number in pack]
    length = examples.input_ids.shape[1]
    sequences = sequences_of(examples)
    return [FORMATS[kind].row([sequences[number] for number in pack], length, most) for pack in packs]


def encoded(examples: Examples, packs: list[list[int]], kind: str, most: int) -> list[bytes]:
    return [FORMATS[kind].encode(row) for row in rows_of(examples, packs, kind, most)]


def write(path, kind: str, records: list[bytes]) -> str:
    """Writes records as files of the format have them, and returns the path."""
    if FORMATS[kind].encode is binary:
        with open(path, "wb") as file:
            file.write(b"".join(records))
    else:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)
    return str(path)
