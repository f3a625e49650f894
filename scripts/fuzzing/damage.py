"""Damages to files. Each kind is a function (rng, path, **details) -> (what was done, what is expected).

What is expected: "refused", exit code 2 (or 3, where a model computes what is not finite); "named",
refused, or the output says what was left out; "any", whatever ends in order, since the damaged file may be
a valid one.
"""

import json
import random

REFUSED, NAMED, ANY = "refused", "named", "any"
Done = tuple[str, str]

# -----------------------------------------------------------------------------------------------------------
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
        data[place:place] = data[: rng.randrange(200)]
    elif kind == "overwritten":
        data[place : place + rng.randrange(200)] = rng.randbytes(rng.randrange(200))
    else:
        data = rng.choice((b"", b"\0" * 100, b"text\n", bytes(range(256))))
    write_bytes(path, bytes(data))
    return f"bytes {kind}", ANY


def write_bytes(path: str, data: bytes) -> None:
    """Writes a file."""
    with open(path, "wb") as file:
        file.write(data)


def read_bytes(path: str) -> bytes:
    """Returns what a file holds."""
    with open(path, "rb") as file:
        return file.read()


# -----------------------------------------------------------------------------------------------------------
# JSON

# What stands in the place of a value of a type, and is none of it.
_WRONG = {
    str: ([], {}, True),
    list: ({}, "text", 3),
    dict: ([], "text", 3),
    int: ("text", [], {}),
    float: ("text", [], {}),
    bool: ("yes", [], 7),
}
Path = tuple  # keys and numbers that lead to a value; "*" for any of a list, "?" for any key of an object


def damage_json(
    rng: random.Random,
    path: str,
    checked: list[Path] = (),
    required: list[Path] = (),
    ranges: dict[Path, tuple] | None = None,
    found: dict[Path, tuple] | None = None,
    seen: str = REFUSED,
    any_number: bool = False,
) -> Done:
    """Damages a JSON object.

    Args:
      checked: values whose types are checked; required: keys that must be there;
      ranges: {value: others that are out of range};
      found: {value: others that are left out and named}; seen: what is expected otherwise.
      any_number: another program writes the file, with numbers of any size.
    """
    changes = {"type": checked, "missing": required, "range": ranges or (), "found": found or ()}
    weights = {"type": 4, "missing": 3, "range": 4, "found": 4}
    possible = [name for name, places in changes.items() for _ in range(weights[name]) if places]
    chosen = rng.choice([*_OF_WHOLE_FILES, *possible])
    text = read_bytes(path)
    if chosen in _OF_WHOLE_FILES:
        write_bytes(path, _OF_WHOLE_FILES[chosen](rng, text))
        return f"JSON {chosen}", ANY if any_number and chosen in ("constant", "digits") else seen
    values = json.loads(text)
    place = rng.choice(list(changes[chosen]))
    _change(rng, values, place, chosen, dict(ranges or {}) | dict(found or {}))
    write_bytes(path, json.dumps(values).encode())
    return f"JSON {chosen} of {'.'.join(map(str, place))}", NAMED if chosen == "found" else seen


def _change(rng: random.Random, values, place: Path, kind: str, others: dict[Path, tuple]) -> None:
    """Takes a value away, or puts another one in its place."""
    holder, key = _find(rng, values, place)
    while kind in ("range", "found") and holder.get(key) in others[place]:  # it would stay what it is
        holder, key = _find(rng, values, place)
    if kind == "missing":
        del holder[key]
    else:
        holder[key] = rng.choice(_WRONG[type(holder[key])] if kind == "type" else others[place])


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
    return rng.choice((b"%s", b'{"data": %s}', b'{"vocab_size": %s}')) % (
        begin * 200_000 + b"1" + end * 200_000
    )


def _other_whole(rng: random.Random, text: bytes) -> bytes:
    return rng.choice((b"[]", b"3", b'"text"', b"null", b"true", b"", b"[{}]"))


def _constant(rng: random.Random, text: bytes) -> bytes:
    return b'{"surplus": %s, %s' % (
        rng.choice((b"NaN", b"Infinity", b"-Infinity", b"1e999")),
        text.strip()[1:],
    )


def _digits(rng: random.Random, text: bytes) -> bytes:
    return b'{"surplus": %s, %s' % (b"9" * rng.choice((5_000, 30)), text.strip()[1:])


def _latin1(rng: random.Random, text: bytes) -> bytes:
    return b'{"surplus": "caf\xe9", ' + text.strip()[1:]


def _cut_json(rng: random.Random, text: bytes) -> bytes:
    return text[: rng.randrange(len(text.strip()))]


_OF_WHOLE_FILES = {
    "nested": _nested,
    "whole": _other_whole,
    "constant": _constant,
    "latin-1": _latin1,
    "cut": _cut_json,
    "digits": _digits,
}


def damage_json_lines(rng: random.Random, path: str, mark: bytes = b"") -> Done:
    """Damages one of a file's lines of JSON after a mark; the others stay as they are."""
    lines = read_bytes(path).splitlines(keepends=True)
    number = rng.randrange(len(lines))
    values = json.loads(lines[number].removeprefix(mark))
    kind = rng.choice(("garbage", "nested", "type", "NaN", "list"))
    if kind == "type":
        name = rng.choice([name for name, value in values.items() if type(value) in (int, float)])
        values[name] = rng.choice(("text", [], {}))
    others = {
        "garbage": rng.randbytes(30).replace(b"\n", b""),
        "nested": b"[" * 200_000,
        "type": json.dumps(values).encode(),
        "NaN": b'{"split": "train", "step": 1, "loss": NaN}',
        "list": b"[1, 2]",
    }
    lines[number] = mark + others[kind] + b"\n"
    write_bytes(path, b"".join(lines))
    return f"JSON line {kind}", NAMED


# -----------------------------------------------------------------------------------------------------------
# Text, tables and vocabularies


def damage_text(rng: random.Random, path: str) -> Done:
    """Makes something else of a text file, or a part of it undecodable."""
    text = read_bytes(path)
    kind = rng.choice(("random", "NUL", "UTF-16", "picture", "one byte", "gzip", "bzip2", "Parquet"))
    place = rng.randrange(len(text))
    others = {
        "random": rng.randbytes(20_000),
        "NUL": text[:place] + b"\0" * 40 + text[place:],
        "UTF-16": text.decode().encode("utf-16"),
        "picture": b"\x89PNG\r\n\x1a\n" + rng.randbytes(5_000),
        "one byte": text[:place] + b"\xe9 " + text[place:],
        "gzip": b"\x1f\x8b\x08" + rng.randbytes(200),
        "bzip2": b"BZh91AY&SY" + rng.randbytes(200),
        "Parquet": b"PAR1" + rng.randbytes(200) + b"PAR1",
    }
    write_bytes(path, others[kind])
    return f"text {kind}", NAMED if kind == "one byte" else REFUSED


def damage_small_text(rng: random.Random, path: str) -> Done:
    """Takes from a text that is read as a whole what makes it one."""
    kind = rng.choice(("latin-1", "blank"))
    write_bytes(path, read_bytes(path) + b"\ncaf\xe9\n" if kind == "latin-1" else b" \n")
    return f"text {kind}", REFUSED


def damage_typed_text(rng: random.Random, path: str) -> Done:
    """Puts Latin-1 into what is typed."""
    write_bytes(path, rng.choice((b"caf\xe9\n", read_bytes(path) + b"\xff\xfe\n")))
    return "typed Latin-1", REFUSED


def damage_vocabulary(rng: random.Random, path: str, of_model: bool = False, handed_on: bool = False) -> Done:
    """Damages a vocabulary.

    Args:
      of_model: its size has to be the model's.
      handed_on: it is not used, and left out where it is damaged.
    """
    words = read_bytes(path).splitlines()
    kind = rng.choice(
        ("twice", "empty", "latin-1", *["special"] * (not handed_on), *["short", "long"] * of_model)
    )
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
        del words[rng.randrange(10, len(words)) :]
    else:
        words += [b"surplus%d" % number for number in range(rng.randrange(1, 9))]
    write_bytes(path, b"\n".join(words) + b"\n")
    return f"vocabulary {kind}", NAMED if handed_on else REFUSED


def damage_table(rng: random.Random, path: str, label: int | None = None, strict: bool = False) -> Done:
    """Damages a file of rows with tabs.

    Args:
      label: number of the column with the label.
      strict: whether a row that is not right ends the reading; else it is left out and named.
    """
    lines = read_bytes(path).rstrip(b"\n").split(b"\n")
    kind = rng.choice(
        (
            "header",
            "short",
            "long",
            "latin-1",
            "nothing",
            "binary",
            *["label"] * 3 * (label is not None),
            *["row"] * strict,
        )
    )
    number = rng.randrange(1, len(lines))
    fields = lines[number].split(b"\t")
    if kind == "label":
        fields[label] = rng.choice((b"2", b"", b"maybe", b"-1", b"nan"))
    lines[number] = {
        "short": fields[0],
        "long": lines[number] + b"\tmore\tmore",
        "latin-1": lines[number] + b"caf\xe9",
        "label": b"\t".join(fields),
    }.get(kind, lines[number])
    if kind == "header":
        lines[0] = b"other\tcolumns"
    if kind == "row":
        del lines[number]
    content = {"nothing": b"", "binary": rng.randbytes(2_000).replace(b"\n", b"")}.get(
        kind, b"\n".join(lines) + b"\n"
    )
    write_bytes(path, content)
    return f"table {kind}", REFUSED if strict or kind in ("header", "label", "nothing", "binary") else NAMED
