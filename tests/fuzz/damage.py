"""Damages to files. Each is a function (draw, path, **details) -> (description, expectation). Hypothesis
draws its choices; a failure shrinks to those that come first.

The expectation is "refused", exit code 2 (or 3, where a model computes what is not finite); "named", refused,
or the output tells what was left out; "any", whatever ends in order, since the damaged file may be a valid
one.
"""

import json
import os
import pathlib
import random
import re
import struct
from collections.abc import Callable, Iterator

from hypothesis import strategies as st

from tests.fuzz import processes
from tests.fuzz.commands import KINDS

REFUSED, NAMED, ANY = "refused", "named", "any"
Draw = Callable
Done = tuple[str, str]


def pick(draw: Draw, *options):
    return draw(st.sampled_from(options))


def below(draw: Draw, end: int) -> int:
    return draw(st.integers(0, max(end, 1) - 1))


def noise(draw: Draw, size: int) -> bytes:
    """Returns bytes that are too many to be drawn one by one."""
    return random.Random(draw(st.integers(0, 2**32))).randbytes(size)


# -----------------------------------------------------------------------------------------------------------
# Bytes, of any file


def damage_bytes(draw: Draw, path: pathlib.Path) -> Done:
    """Replaces or cuts a file, flips bits in it, repeats or overwrites a part of it."""
    data = bytearray(path.read_bytes())
    place = below(draw, len(data))
    kind = pick(draw, "replaced", "cut", "flipped", "repeated", "overwritten")
    if kind == "replaced":
        data[:] = pick(draw, b"", b"text\n", b"\0" * 100, bytes(range(256)))
    elif kind == "cut":
        del data[place:]
    elif kind == "flipped" and data:
        bits = st.tuples(st.integers(0, len(data) - 1), st.integers(0, 7))
        for number, bit in draw(st.lists(bits, min_size=1, max_size=30)):
            data[number] ^= 1 << bit
    elif kind == "repeated":
        data[place:place] = data[: below(draw, 200)]
    else:
        data[place : place + below(draw, 200)] = draw(st.binary(max_size=200))
    path.write_bytes(data)
    return f"bytes {kind}", ANY


# -----------------------------------------------------------------------------------------------------------
# JSON

# Values of another type than the one that is there.
_WRONG = {
    str: ([], {}, True),
    list: ({}, "text", 3),
    dict: ([], "text", 3),
    int: ("text", [], {}),
    float: ("text", [], {}),
    bool: ("yes", [], 7),
}


def damage_json(
    draw: Draw,
    path: pathlib.Path,
    checked: list[str] = (),
    required: list[str] = (),
    ranges: dict[str, list] | None = None,
    found: dict[str, list] | None = None,
    seen: str = REFUSED,
    any_number: bool = False,
) -> Done:
    """Damages a JSON object.

    Args:
      draw: of hypothesis.
      path: the file.
      checked: values whose types are checked.
      required: keys that must be there.
      ranges: {value: others that are out of range}.
      found: {value: others that are left out and named}.
      seen: the expectation of all but `found`.
      any_number: another program writes the file, with numbers of any size.
    """
    others = {**(ranges or {}), **(found or {})}
    changes = {"type": checked, "missing": required, "range": list(ranges or ()), "found": list(found or ())}
    weights = {"type": 4, "missing": 3, "range": 4, "found": 4}
    possible = [name for name, places in changes.items() for _ in range(weights[name]) if places]
    kind = pick(draw, *possible, "whole", "cut", "latin-1", "constant", "digits", "nested")
    text = path.read_bytes()
    if kind not in changes:
        path.write_bytes(_other_json(draw, kind, text))
        return f"JSON {kind}", ANY if any_number and kind in ("constant", "digits") else seen
    values = json.loads(text)
    place = pick(draw, *changes[kind])
    wrong = others.get(place, ())
    holders = [
        (holder, key)
        for holder, key in _places(values, place.split("."))
        if (key in holder if kind in ("type", "missing") else holder.get(key) not in wrong)
    ]
    holder, key = pick(draw, *holders)
    if kind == "missing":
        del holder[key]
    else:
        holder[key] = pick(draw, *(_WRONG[type(holder[key])] if kind == "type" else wrong))
    path.write_text(json.dumps(values))
    return f"JSON {kind} of {place}", NAMED if kind == "found" else seen


def _places(values, keys: list[str]) -> Iterator[tuple[dict, str]]:
    """Yields (object, key) of all values that keys lead to: "*" to any of a list, "?" to any of an object."""
    key, *rest = keys
    if not rest:
        yield from ((values, name) for name in (sorted(values) if key == "?" else [key]))
    elif key == "*":
        for value in values:
            yield from _places(value, rest)
    else:
        yield from _places(values[key], rest)


def _other_json(draw: Draw, kind: str, text: bytes) -> bytes:
    """Returns a whole file in the place of an object of JSON."""
    if kind == "whole":
        return pick(draw, b"[]", b"", b"3", b'"text"', b"null", b"true", b"[{}]")
    if kind == "cut":
        return text[: below(draw, len(text.strip()))]
    if kind == "nested":
        begin, end = pick(draw, (b"[", b"]"), (b'{"a":', b"}"))
        around = pick(draw, b"%s", b'{"data": %s}', b'{"vocab_size": %s}')
        return around % (begin * 200_000 + b"1" + end * 200_000)
    surplus = {
        "latin-1": [b'"caf\xe9"'],
        "constant": [b"NaN", b"Infinity", b"-Infinity", b"1e999"],
        "digits": [b"9" * 30, b"9" * 5_000],
    }
    return b'{"surplus": %s, %s' % (pick(draw, *surplus[kind]), text.strip()[1:])


def damage_json_lines(draw: Draw, path: pathlib.Path) -> Done:
    """Damages one of a file's lines of JSON; the others stay as they are."""
    lines = path.read_bytes().splitlines(keepends=True)
    number = below(draw, len(lines))
    values = json.loads(lines[number])
    kind = pick(draw, "list", "type", "NaN", "garbage", "nested")
    if kind == "type":
        name = pick(draw, *(name for name, value in values.items() if type(value) in (int, float)))
        values[name] = pick(draw, "text", [], {})
    others = {
        "garbage": noise(draw, 30).replace(b"\n", b""),
        "nested": b"[" * 200_000,
        "type": json.dumps(values).encode(),
        "NaN": b'{"split": "train", "step": 1, "loss": NaN}',
        "list": b"[1, 2]",
    }
    lines[number] = others[kind] + b"\n"
    path.write_bytes(b"".join(lines))
    return f"JSON line {kind}", NAMED


# -----------------------------------------------------------------------------------------------------------
# Text, tables and vocabularies


def damage_text(draw: Draw, path: pathlib.Path, kinds: list[str]) -> Done:
    """Makes something else of a text, of some kinds, or a part of it undecodable."""
    text = path.read_bytes()
    kind = pick(draw, *kinds)
    place = below(draw, len(text))
    others = {
        "one byte": text[:place] + b"\xe9 " + text[place:],
        "NUL": text[:place] + b"\0" * 40 + text[place:],
        "UTF-16": text.decode().encode("utf-16"),
        "picture": b"\x89PNG\r\n\x1a\n" + noise(draw, 5_000),
        "gzip": b"\x1f\x8b\x08" + noise(draw, 200),
        "bzip2": b"BZh91AY&SY" + noise(draw, 200),
        "Parquet": b"PAR1" + noise(draw, 200) + b"PAR1",
        "random": noise(draw, 20_000),
        "blank": b" \n",
        "latin-1": text + b"\ncaf\xe9\n",
        "no bytes of UTF-8": text + b"\xff\xfe\n",
    }
    path.write_bytes(others[kind])
    return f"text {kind}", NAMED if kind == "one byte" else REFUSED


def damage_vocabulary(
    draw: Draw, path: pathlib.Path, of_model: bool = False, of_run: bool = False, handed_on: bool = False
) -> Done:
    """Damages a vocabulary.

    Args:
      draw: of hypothesis.
      path: the file.
      of_model: its size has to be the model's.
      of_run: it is in the folder of a run that answers: lost words are told of.
      handed_on: it is not used, and left out where it is damaged.
    """
    words = path.read_bytes().splitlines()
    kinds = [
        "empty",
        "latin-1",
        "twice",
        *["special"] * (not handed_on),
        *["short", "long"] * (of_model or of_run),
    ]
    kind = pick(draw, *kinds)
    if kind == "special":
        words[below(draw, 5)] = b"other"
    elif kind == "short":
        del words[10 + below(draw, len(words) - 10) :]
    elif kind == "long":
        words += [b"surplus%d" % number for number in range(1 + below(draw, 8))]
    else:
        others = {"empty": b"", "latin-1": b"caf\xe9", "twice": words[-1]}
        words[5 + below(draw, len(words) - 6)] = others[kind]
    path.write_bytes(b"\n".join(words) + b"\n")
    return f"vocabulary {kind}", NAMED if handed_on or of_run and kind == "short" else REFUSED


def damage_table(draw: Draw, path: pathlib.Path, label: int | None = None, strict: bool = False) -> Done:
    """Damages a file of rows with tabs.

    Args:
      draw: of hypothesis.
      path: the file.
      label: number of the column with the label.
      strict: a row that is not right ends the reading; else it is left out and named.
    """
    lines = path.read_bytes().rstrip(b"\n").split(b"\n")
    labels = ["label"] * 3 * (label is not None)
    kind = pick(draw, "nothing", "header", "short", "long", *labels, *["row"] * strict, "latin-1", "binary")
    number = 1 + below(draw, len(lines) - 1)
    fields = lines[number].split(b"\t")
    if kind == "label":
        fields[label] = pick(draw, b"2", b"", b"maybe", b"-1", b"nan")
    changed = {
        "short": fields[0],
        "long": lines[number] + b"\tmore\tmore",
        "latin-1": lines[number] + b"caf\xe9",
        "label": b"\t".join(fields),
    }
    lines[number] = changed.get(kind, lines[number])
    if kind == "header":
        lines[0] = b"other\tcolumns"
    if kind == "row":
        del lines[number]
    content = b"\n".join(lines) + b"\n"
    if kind in ("nothing", "binary"):
        content = noise(draw, 2_000).replace(b"\n", b"") if kind == "binary" else b""
    path.write_bytes(content)
    return f"table {kind}", REFUSED if strict or kind in ("header", "label", "nothing", "binary") else NAMED


# -----------------------------------------------------------------------------------------------------------
# Records


def damage_records(draw: Draw, path: pathlib.Path, ranges: dict[str, list] | None = None) -> Done:
    """Damages a TFRecord file; where the command reads its values, also one of {feature: values that it does
    not have}."""
    import tensorflow as tf

    data = path.read_bytes()
    inside = ["missing", "value", "value", "value", "length", "type"] * bool(ranges)
    kind = pick(draw, "text", "cut", "checksum", *inside)
    if kind not in inside:
        place = 13 + below(draw, len(data) - 17)
        flipped = bytearray(data)
        flipped[place] ^= 1 << below(draw, 8)
        others = {"text": b"once upon a time\n" * 50, "cut": data[:place], "checksum": bytes(flipped)}
        path.write_bytes(others[kind])
        return f"records {kind}", ANY if kind == "cut" and place in _ends(data) else REFUSED
    ends = _ends(data)
    records = [data[start + 12 : end - 4] for start, end in zip([0, *ends], ends)]
    number = below(draw, len(records))
    example = tf.train.Example.FromString(records[number])
    name = pick(draw, *sorted(ranges))
    _change_feature(draw, example.features.feature, name, kind, ranges[name])
    records[number] = example.SerializeToString()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return f"records {kind} of {name}", REFUSED


def _change_feature(draw: Draw, features, name: str, kind: str, wrong: list) -> None:
    feature = features[name]
    values = feature.float_list.value if feature.HasField("float_list") else feature.int64_list.value
    if kind == "missing":
        del features[name]
    elif kind == "value":
        values[below(draw, len(values))] = pick(draw, *wrong)
    elif kind == "length":
        if draw(st.booleans()):
            values.append(values[-1])
        else:
            del values[-1]
    else:
        numbers = list(values)
        feature.Clear()
        feature.bytes_list.value.extend(str(number).encode() for number in numbers)


def _ends(data: bytes) -> list[int]:
    """Returns the ends of the records of a TFRecord file: 8 bytes of length, 4 of checksum, the record, 4 of
    checksum."""
    ends = [0]
    while ends[-1] < len(data):
        (length,) = struct.unpack_from("<Q", data, ends[-1])
        ends.append(ends[-1] + length + 16)
    return ends[1:]


# -----------------------------------------------------------------------------------------------------------
# Checkpoints

_NO_WEIGHT = re.compile(r"cls|predictions|lamb|adam|slot|/\.optimizer|moment|accl|_[mv]$")


def damage_checkpoint(draw: Draw, path: pathlib.Path, format_name: str) -> Done:
    """Damages a checkpoint: one of its tensors, or its files.

    Args:
      draw: of hypothesis.
      path: prefix, file or folder, as the format has it.
      format_name: huggingface, popart, or one of TensorFlow's bundles.
    """
    from official.checkpoint import tensors as tensors_lib
    from official.checkpoint.containers import bundle, hf_folder, onnx_file

    container = {"huggingface": hf_folder, "popart": onnx_file}.get(format_name, bundle)
    kind = pick(draw, "removed", "cut", "head", "missing", "renamed", "shape", "integers", "not finite")
    if kind in ("removed", "cut", "head"):
        files = [name for name in container.files(str(path)) if not name.endswith((".json", ".txt", ".md"))]
        file = pathlib.Path(pick(draw, *sorted(files)))
        data = file.read_bytes()
        others = {"removed": b"", "cut": data[: len(data) // 2], "head": noise(draw, 64) + data[64:]}
        file.write_bytes(others[kind])
        if kind == "removed":
            file.unlink()
        return f"checkpoint {kind}", REFUSED
    tensors = {name: tensor.read() for name, tensor in container.read(str(path)).items()}
    name = pick(draw, *(name for name in sorted(tensors) if _is_weight(name, tensors[name])))
    _change_tensor(draw, tensors, name, kind)
    written = {name: tensors_lib.of_array(values, name) for name, values in tensors.items()}
    # In a process of its own: TensorFlow has threads from its first operation on, and none can be forked.
    processes.in_child(lambda: container.write(written, str(path)))
    # Graphcore's models may have no biases: zeros are added and named.
    may_lack = kind == "missing" and format_name in ("graphcore", "popart")
    return f"checkpoint {kind}: {name}", NAMED if kind == "not finite" or may_lack else REFUSED


def _is_weight(name: str, values) -> bool:
    """Tells whether a tensor is the encoder's: no optimizer's slot, and none of a head, which may start
    fresh."""
    lowered = name.lower()
    is_of_encoder = ("layer" in lowered or "embedding" in lowered) and not _NO_WEIGHT.search(lowered)
    return bool(is_of_encoder and values.dtype.kind == "f" and values.size)


def _change_tensor(draw: Draw, tensors: dict, name: str, kind: str) -> None:
    import numpy as np

    values = tensors[name]
    if kind == "missing":
        del tensors[name]
    elif kind == "renamed":
        tensors[f"{name}_other"] = tensors.pop(name)
    elif kind == "shape":
        tensors[name] = values.reshape(-1)[:-1] if values.size > 1 else values.reshape(1, 1)
    elif kind == "integers":
        tensors[name] = np.ones(values.shape, np.int32)
    elif kind == "not finite":
        tensors[name] = values.copy()
        tensors[name].flat[below(draw, values.size)] = pick(draw, np.nan, np.inf, -np.inf)


# -----------------------------------------------------------------------------------------------------------
# Damages by name


def damage_file(draw: Draw, folder: pathlib.Path, pattern: str, kind: str) -> Done:
    """Damages a file of a folder, one of those of a pattern, in a way of `commands.KINDS`."""
    details = dict(KINDS[kind])
    function = globals()[f"damage_{details.pop('do')}"]
    path = folder / pattern
    if "*" in pattern:
        paths = sorted(folder.glob(pattern))
        path = pick(draw, *(found for found in paths if os.path.isfile(found)))
    done, expected = function(draw, path, **details)
    return f"{path.relative_to(folder)}: {done}", expected
