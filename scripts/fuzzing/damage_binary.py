"""Damages to records and checkpoints, as of `damage`."""

import os
import random
import re
import struct
from collections.abc import Mapping

from fuzzing.damage import ANY, NAMED, REFUSED, Done, read_bytes, write_bytes

# -----------------------------------------------------------------------------------------------------------
# Records

_FEATURES = {  # of Google's records: values that are none
    "input_ids": (-1, 10**6),
    "input_mask": (2, -1),
    "segment_ids": (9, -1),
    "masked_lm_positions": (-1, 10**4),
    "masked_lm_ids": (-5, 10**6),
    "next_sentence_labels": (7, -1),
    "masked_lm_weights": (float("nan"), float("inf"), -1.0),
}


_PACKED_FEATURES = {  # of packed rows
    "packed_input_ids": (-1, 10**6),
    "packed_input_mask": (-1, 99),
    "packed_segment_ids": (9, -1),
    "packed_position_ids": (-1, 10**4),
    "packed_masked_lm_positions": (-1, 10**4),
    "packed_masked_lm_ids": (-5, 10**6),
    "packed_masked_lm_mask": (float("nan"), float("inf"), -1.0, 0.5, 99.0),
    "packed_next_sentence_labels": (7, -1),
    "packed_next_sentence_mask": (float("nan"), -1.0, 0.5),
}


def damage_packed_rows(rng: random.Random, path: str) -> Done:
    """Damages a TFRecord file of packed rows."""
    return damage_records(rng, path, features=_PACKED_FEATURES)


def damage_records(
    rng: random.Random, path: str, reads_values: bool = True, features: Mapping[str, tuple] = _FEATURES
) -> Done:
    """Damages a TFRecord file, of Google's examples unless `features` says otherwise; where the command reads
    them, also a value or a feature."""
    import tensorflow as tf

    kind = rng.choice(
        ("cut", "checksum", "text", *["value", "value", "value", "missing", "length", "type"] * reads_values)
    )
    data = read_bytes(path)
    if kind in ("cut", "checksum", "text"):
        place = rng.randrange(13, len(data) - 4)
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        write_bytes(
            path, {"cut": data[:place], "checksum": bytes(flipped), "text": b"once upon a time\n" * 50}[kind]
        )
        return f"records {kind}", ANY if kind == "cut" and _is_whole(data[:place]) else REFUSED
    records = _split(data)
    number = rng.randrange(len(records))
    example = tf.train.Example.FromString(records[number])
    name = rng.choice(sorted(features))
    _change(rng, example.features.feature, name, kind, features[name])
    records[number] = example.SerializeToString()
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return f"records {kind} of {name}", REFUSED


def _change(rng: random.Random, features, name: str, kind: str, wrong: tuple) -> None:
    feature = features[name]
    values = feature.float_list.value if feature.HasField("float_list") else feature.int64_list.value
    if kind == "value":
        values[rng.randrange(len(values))] = rng.choice(wrong)
    elif kind == "missing":
        del features[name]
    elif kind == "length":
        if rng.random() < 0.5:
            del values[-1]
        else:
            values.append(values[-1])
    else:
        numbers = list(values)
        feature.Clear()
        feature.bytes_list.value.extend(str(number).encode() for number in numbers)


def _split(data: bytes) -> list[bytes]:
    """Returns the records of a TFRecord file: 8 bytes of length, 4 of checksum, the record, 4 of checksum."""
    records, place = [], 0
    while place < len(data):
        (length,) = struct.unpack("<Q", data[place : place + 8])
        records.append(data[place + 12 : place + 12 + length])
        place += length + 16
    return records


def _is_whole(data: bytes) -> bool:
    """Says whether a part of a file ends where a record does."""
    place = 0
    while place + 8 <= len(data):
        place += struct.unpack("<Q", data[place : place + 8])[0] + 16
    return place == len(data)


# -----------------------------------------------------------------------------------------------------------
# Checkpoints


def damage_checkpoint(rng: random.Random, path: str, format_name: str, reads_values: bool = True) -> Done:
    """Damages a checkpoint: one of its tensors, or its files.

    Args:
      path: prefix, file or folder, as the format has it.
      format_name: huggingface, popart, or one of TensorFlow's bundles.
      reads_values: whether the command reads the values of tensors, or names and shapes only.
    """
    from official.checkpoint.containers import bundle, hf_folder, onnx_file

    container = {"huggingface": hf_folder, "popart": onnx_file}.get(format_name, bundle)
    kind = rng.choice(
        ("cut", "removed", "head", *["not finite", "integers", "shape", "renamed", "missing"] * reads_values)
    )
    files = [file for file in container.files(path) if not file.endswith((".json", ".txt"))]
    if kind in ("cut", "removed", "head"):
        file = rng.choice(files)
        data = read_bytes(file)
        os.remove(file)
        if kind != "removed":
            write_bytes(file, data[: len(data) // 2] if kind == "cut" else rng.randbytes(64) + data[64:])
        if len(files) > 1 and kind == "head" and ".data-" in file and not reads_values:
            return f"checkpoint {kind}", ANY
        return f"checkpoint {kind}", REFUSED
    tensors = {name: tensor.read() for name, tensor in container.read(path).items()}
    name = rng.choice(
        sorted(
            name
            for name, values in tensors.items()
            if values.dtype.kind == "f" and values.size and _is_weight(name)
        )
    )
    _replace(rng, tensors, name, kind)
    _write_checkpoint(container, tensors, path)
    may_lack = (
        kind == "missing" and format_name == "graphcore"
    )  # whose models may have no biases; zeros are added and named
    return f"checkpoint {kind}: {name}", NAMED if kind == "not finite" or may_lack else REFUSED


def _is_weight(name: str) -> bool:
    """Says whether the tensor is the encoder's: no optimizer's slot, and none of a head, which may start
    fresh."""
    lowered = name.lower()
    return ("layer" in lowered or "embedding" in lowered) and not re.search(
        r"cls|predictions|lamb|adam|slot|/\.optimizer|moment|accl|_[mv]$", lowered
    )


def _replace(rng: random.Random, tensors: dict, name: str, kind: str) -> None:
    import numpy as np

    values = tensors[name]
    if kind == "not finite":
        values = values.copy()
        values.reshape(-1)[rng.randrange(values.size)] = rng.choice((np.nan, np.inf, -np.inf))
    elif kind == "integers":
        values = np.ones(values.shape, np.int32)
    elif kind == "shape":
        values = values.reshape(-1)[:-1] if values.size > 1 else values.reshape(1, 1)
    else:
        del tensors[name]
    if kind != "missing":
        tensors[name + "_other" * (kind == "renamed")] = values


def _write_checkpoint(container, tensors: dict, path: str) -> None:
    from official.checkpoint import tensors as tensors_lib

    container.write({name: tensors_lib.of_array(values, name) for name, values in tensors.items()}, path)
