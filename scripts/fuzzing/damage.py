"""Damages to files. Each kind is a function (rng, path, **details of the file) -> (what was done, what is expected).

What is expected: "refused", exit code 2 (or 3, where a model computes what is not finite); "named", refused, or the output says what
was left out; "any", whatever ends in order, since the damaged file may be a valid one.
"""

import json
import os
import random
import re
import struct
from collections.abc import Callable

REFUSED, NAMED, ANY = "refused", "named", "any"
Done = tuple[str, str]

# ---------------------------------------------------------------------------------------------------------------------
# Bytes, of any file


def damage_bytes(rng: random.Random, path: str) -> Done:
    """Cuts a file, flips bits in it, repeats, inserts or empties a part of it."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    place = rng.randrange(max(len(data), 1))
    kind = rng.choice(("cut", "flipped", "repeated", "overwritten", "replaced"))
    if kind == "cut":
        del data[place:]
    elif kind == "flipped" and data:
        for _ in range(rng.choice((1, 3, 30))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "repeated":
        data[place:place] = data[:rng.randrange(200)]
    elif kind == "overwritten":
        data[place:place + rng.randrange(200)] = rng.randbytes(rng.randrange(200))
    else:
        data = rng.choice((b"", b"\0" * 100, b"text\n", bytes(range(256))))
    _write(path, bytes(data))
    return f"bytes {kind}", ANY


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


# ---------------------------------------------------------------------------------------------------------------------
# JSON

# What stands in the place of a value of a type, and is none of it.
_WRONG = {str: ([], {}, True), list: ({}, "text", 3), dict: ([], "text", 3), int: ("text", [], {}), float: ("text", [], {}), bool: ("yes", [], 7)}
Path = tuple  # keys and numbers that lead to a value; "*" for any of a list, "?" for any key of an object


def damage_json(rng: random.Random, path: str, checked: list[Path] = (), required: list[Path] = (), ranges: dict[Path, tuple] | None = None,
                found: dict[Path, tuple] | None = None, seen: str = REFUSED) -> Done:
    """Damages a JSON object.

    Args:
      checked: values whose types are checked; required: keys that must be there; ranges: {value: others that are out of range};
      found: {value: others that are left out and named}; seen: what is expected otherwise.
    """
    kinds = {"nested": _nested, "whole": _other_whole, "constant": _constant, "latin-1": _latin1, "cut": _cut_json, "digits": _digits}
    chosen = rng.choice([*kinds, *["type"] * 4 * bool(checked), *["missing"] * 3 * bool(required), *["range"] * 4 * bool(ranges),
                         *["found"] * 4 * bool(found)])
    text = _read(path)
    if chosen in kinds:
        _write(path, kinds[chosen](rng, text))
        return f"JSON {chosen}", seen
    values = json.loads(text)
    place = rng.choice({"type": list(checked), "missing": list(required), "range": list(ranges or ()), "found": list(found or ())}[chosen])
    holder, key = _find(rng, values, place)
    if chosen == "missing":
        del holder[key]
    elif chosen == "type":
        holder[key] = rng.choice(_WRONG[type(holder[key])])
    else:
        holder[key] = rng.choice((ranges if chosen == "range" else found)[place])
    _write(path, json.dumps(values).encode())
    return f"JSON {chosen} of {'.'.join(map(str, place))}", NAMED if chosen == "found" else seen


def _find(rng: random.Random, values, place: Path) -> tuple:
    """Returns (object or list, key) of a value."""
    for number, key in enumerate(place):
        key = rng.randrange(len(values)) if key == "*" else rng.choice(sorted(values)) if key == "?" else key
        if number == len(place) - 1:
            return values, key
        values = values[key]
    raise ValueError("an empty path")


def _nested(rng: random.Random, text: bytes) -> bytes:
    begin, end = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return rng.choice((b"%s", b'{"data": %s}', b'{"vocab_size": %s}')) % (begin * 200_000 + b"1" + end * 200_000)


def _other_whole(rng: random.Random, text: bytes) -> bytes:
    return rng.choice((b"[]", b"3", b'"text"', b"null", b"true", b"", b"[{}]"))


def _constant(rng: random.Random, text: bytes) -> bytes:
    return b'{"surplus": %s, %s' % (rng.choice((b"NaN", b"Infinity", b"-Infinity", b"1e999")), text.strip()[1:])


def _digits(rng: random.Random, text: bytes) -> bytes:
    return b'{"surplus": %s, %s' % (b"9" * rng.choice((5_000, 30)), text.strip()[1:])


def _latin1(rng: random.Random, text: bytes) -> bytes:
    return b'{"surplus": "caf\xe9", ' + text.strip()[1:]


def _cut_json(rng: random.Random, text: bytes) -> bytes:
    return text[:rng.randrange(len(text.strip()))]


def damage_json_lines(rng: random.Random, path: str, mark: bytes = b"") -> Done:
    """Damages one of a file's lines of JSON after a mark; the others stay as they are."""
    lines = _read(path).splitlines(keepends=True)
    number = rng.randrange(len(lines))
    values = json.loads(lines[number].removeprefix(mark))
    kind = rng.choice(("garbage", "nested", "type", "NaN", "list"))
    if kind == "type":
        name = rng.choice([name for name, value in values.items() if type(value) in (int, float)])
        values[name] = rng.choice(("text", [], {}))
    others = {"garbage": rng.randbytes(30).replace(b"\n", b"") , "nested": b"[" * 200_000, "type": json.dumps(values).encode(),
              "NaN": b'{"split": "train", "step": 1, "loss": NaN}', "list": b"[1, 2]"}
    lines[number] = mark + others[kind] + b"\n"
    _write(path, b"".join(lines))
    return f"JSON line {kind}", NAMED


# ---------------------------------------------------------------------------------------------------------------------
# Text, tables and vocabularies


def damage_text(rng: random.Random, path: str) -> Done:
    """Makes something else of a text file, or a part of it undecodable."""
    text = _read(path)
    kind = rng.choice(("random", "NUL", "UTF-16", "picture", "one byte", "gzip"))
    place = rng.randrange(len(text))
    others = {
        "random": rng.randbytes(20_000), "NUL": text[:place] + b"\0" * 40 + text[place:], "UTF-16": text.decode().encode("utf-16"),
        "picture": b"\x89PNG\r\n\x1a\n" + rng.randbytes(5_000), "one byte": text[:place] + b"\xe9 " + text[place:],
        "gzip": b"\x1f\x8b\x08" + rng.randbytes(200)}
    _write(path, others[kind])
    return f"text {kind}", NAMED if kind == "one byte" else REFUSED


def damage_small_text(rng: random.Random, path: str) -> Done:
    """Takes from a text that is read as a whole what makes it one."""
    kind = rng.choice(("latin-1", "blank"))
    _write(path, _read(path) + b"\ncaf\xe9\n" if kind == "latin-1" else b" \n")
    return f"text {kind}", REFUSED


def damage_typed_text(rng: random.Random, path: str) -> Done:
    """Puts Latin-1 into what is typed."""
    _write(path, rng.choice((b"caf\xe9\n", _read(path) + b"\xff\xfe\n")))
    return "typed Latin-1", REFUSED


def damage_vocabulary(rng: random.Random, path: str, of_model: bool = False, handed_on: bool = False) -> Done:
    """Damages a vocabulary; `of_model`: its size has to be the model's; `handed_on`: it is not used, and left out where it is damaged."""
    words = _read(path).splitlines()
    kind = rng.choice(("twice", "empty", "latin-1", *["special"] * (not handed_on), *["short", "long"] * of_model))
    if kind == "twice":
        words[rng.randrange(5, len(words))] = words[5 if words[5] != words[-1] else 6]
        words[-1] = words[6]
    elif kind == "special":
        words[rng.randrange(5)] = b"other"
    elif kind == "empty":
        words[rng.randrange(5, len(words) - 1)] = b""
    elif kind == "latin-1":
        words[rng.randrange(5, len(words))] = b"caf\xe9"
    elif kind == "short":
        del words[rng.randrange(10, len(words)):]
    else:
        words += [b"surplus%d" % number for number in range(rng.randrange(1, 9))]
    _write(path, b"\n".join(words) + b"\n")
    return f"vocabulary {kind}", NAMED if handed_on else REFUSED


def damage_table(rng: random.Random, path: str, label: int | None = None, strict: bool = False) -> Done:
    """Damages a file of rows with tabs.

    Args:
      label: number of the column with the label.
      strict: whether a row that is not right ends the reading; else it is left out and named.
    """
    lines = _read(path).rstrip(b"\n").split(b"\n")
    kind = rng.choice(("header", "short", "long", "latin-1", "nothing", "binary", *["label"] * 3 * (label is not None), *["row"] * strict))
    number = rng.randrange(1, len(lines))
    fields = lines[number].split(b"\t")
    if kind == "label":
        fields[label] = rng.choice((b"2", b"", b"maybe", b"-1", b"nan"))
    lines[number] = {"short": fields[0], "long": lines[number] + b"\tmore\tmore", "latin-1": lines[number] + b"caf\xe9",
                     "label": b"\t".join(fields)}.get(kind, lines[number])
    if kind == "header":
        lines[0] = b"other\tcolumns"
    if kind == "row":
        del lines[number]
    content = {"nothing": b"", "binary": rng.randbytes(2_000).replace(b"\n", b"")}.get(kind, b"\n".join(lines) + b"\n")
    _write(path, content)
    return f"table {kind}", REFUSED if strict or kind in ("header", "label", "nothing", "binary") else NAMED


# ---------------------------------------------------------------------------------------------------------------------
# Records

_FEATURES = {  # of Google's records: values that are none
    "input_ids": (-1, 10**6), "input_mask": (2, -1), "segment_ids": (9, -1), "masked_lm_positions": (-1, 10**4), "masked_lm_ids": (-5, 10**6),
    "next_sentence_labels": (7, -1), "masked_lm_weights": (float("nan"), float("inf"), -1.0)}


def damage_records(rng: random.Random, path: str, reads_values: bool = True) -> Done:
    """Damages a TFRecord file of Google's examples: the file or, where the command reads them, one value or one feature."""
    import tensorflow as tf

    kind = rng.choice(("cut", "checksum", "text", *["value", "value", "value", "missing", "length", "type"] * reads_values))
    data = _read(path)
    if kind in ("cut", "checksum", "text"):
        place = rng.randrange(13, len(data) - 4)
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        _write(path, {"cut": data[:place], "checksum": bytes(flipped), "text": b"once upon a time\n" * 50}[kind])
        return f"records {kind}", ANY if kind == "cut" and _is_whole(data[:place]) else REFUSED
    records = _split(data)
    number = rng.randrange(len(records))
    example = tf.train.Example.FromString(records[number])
    name = rng.choice(sorted(_FEATURES))
    _change(rng, example.features.feature, name, kind)
    records[number] = example.SerializeToString()
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return f"records {kind} of {name}", REFUSED


def _change(rng: random.Random, features, name: str, kind: str) -> None:
    feature = features[name]
    values = feature.float_list.value if feature.HasField("float_list") else feature.int64_list.value
    if kind == "value":
        values[rng.randrange(len(values))] = rng.choice(_FEATURES[name])
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
        length, = struct.unpack("<Q", data[place:place + 8])
        records.append(data[place + 12:place + 12 + length])
        place += length + 16
    return records


def _is_whole(data: bytes) -> bool:
    return sum(len(record) + 16 for record in _split(data + b"\0" * (-len(data) % 8))) == len(data)


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints


def damage_checkpoint(rng: random.Random, path: str, format_name: str, reads_values: bool = True) -> Done:
    """Damages a checkpoint: one of its tensors, or its files.

    Args:
      path: prefix, file or folder, as the format has it.
      format_name: huggingface, popart, or one of TensorFlow's bundles.
      reads_values: whether the command reads the values of tensors, or names and shapes only.
    """
    from official.checkpoint.formats import bundle, hf_folder, onnx_file

    container = {"huggingface": hf_folder, "popart": onnx_file}.get(format_name, bundle)
    kind = rng.choice(("cut", "removed", "head", *["not finite", "integers", "shape", "renamed", "missing"] * reads_values))
    files = [file for file in container.files(path) if not file.endswith((".json", ".txt"))]
    if kind in ("cut", "removed", "head"):
        file = rng.choice(files)
        data = _read(file)
        os.remove(file)
        if kind != "removed":
            _write(file, data[:len(data) // 2] if kind == "cut" else rng.randbytes(64) + data[64:])
        if len(files) > 1 and kind == "head" and ".data-" in file and not reads_values:
            return f"checkpoint {kind}", ANY
        return f"checkpoint {kind}", REFUSED
    tensors = {name: tensor.read() for name, tensor in container.read(path).items()}
    name = rng.choice(sorted(name for name, values in tensors.items() if values.dtype.kind == "f" and values.size and _is_weight(name)))
    _replace(rng, tensors, name, kind)
    _write_checkpoint(container, tensors, path)
    return f"checkpoint {kind}: {name}", NAMED if kind == "not finite" else REFUSED


def _is_weight(name: str) -> bool:
    """Says whether the tensor is the encoder's: no slot of an optimizer, and none of a head, which may start fresh."""
    lowered = name.lower()
    return ("layer" in lowered or "embedding" in lowered) and not re.search(r"cls|predictions|lamb|adam|slot|/\.optimizer|moment|accl|_[mv]$", lowered)


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
    from official.checkpoint.formats import hf_folder, tensors as tensors_lib

    made = {name: tensors_lib.of_array(values, name) for name, values in tensors.items()}
    if container is hf_folder:
        hf_folder._write_weights(made, os.path.join(path, hf_folder.WEIGHTS), lambda size: None)  # pylint: disable=protected-access
    else:
        container.write(made, path)


DAMAGES: dict[str, Callable[..., Done]] = {
    "bytes": damage_bytes, "json": damage_json, "json_lines": damage_json_lines, "text": damage_text, "small_text": damage_small_text,
    "typed": damage_typed_text, "vocabulary": damage_vocabulary, "table": damage_table, "records": damage_records,
    "checkpoint": damage_checkpoint}
