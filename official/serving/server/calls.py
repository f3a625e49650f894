"""Calls: the inputs of a signature, checked, as rows for the model, and what it gives as columns."""

import base64
import binascii
import functools
from typing import Any, NamedTuple

import numpy as np

from official.inference import signatures
from official.inference.signatures import Signature
from official.serving.server.settings import HTTPError, Limits, require

MAX_NUMBERS = 2**22  # of an answer: the logits of a vocabulary are many
_CHARS_A_TOKEN = 4
_MASK_COST = 32  # tokens whose memory the logits of one mask take, about


class Sizes(NamedTuple):
    """Bounds of token ids: the words, segments and positions that the model has; and the number of values
    that its main head gives for a token."""

    words: int
    segments: int
    positions: int
    values_a_token: int


class Call(NamedTuple):
    """A call of a signature.

    Attributes:
      name: of the signature.
      rows: for `versions.Served.compute`, one for each of N: a text, texts, or (ids, segments).
      costs: of each row, in tokens, about.
      length: L, of rows of token ids; else 0.
    """

    name: str
    rows: list[Any]
    costs: list[int]
    length: int = 0


def make(name: str, signature: Signature, columns: dict[str, Any], sizes: Sizes, limits: Limits) -> Call:
    """Checks the inputs of a call.

    Args:
      name: of the signature.
      signature: see `signatures`.
      columns: {input: a list of N values}, from the body of a request.
      sizes: of the model.
      limits: of the server.

    Raises:
      HTTPError: where inputs are unknown, missing, of another type or number, or too large.
    """
    known = [field.name for field in signature.inputs]
    takes = f"{name} takes {', '.join(known)}."
    for given in columns:
        require(given in known, f"unknown input {given[:60]!r}: {takes}")
    for field in known:
        is_given = field in columns or field in signature.optional
        require(is_given, f"the input {field!r} is missing: {takes}")
    numbers = {field: len(values) for field, values in columns.items()}
    counts = ", ".join(f"{count} of {field}" for field, count in numbers.items())
    require(len(set(numbers.values())) == 1, f"inputs of different numbers: {counts}.")
    number, most = next(iter(numbers.values())), limits.max_instances
    require(1 <= number <= most, f"{number:,} instances, allowed are 1 to {most:,} in a request.")
    if name == signatures.TENSORS:
        return _call_of_ids(signature, columns, sizes, number)
    texts = [
        [read_text(value, field, limits) for value in columns.get(field, [""] * number)] for field in known
    ]
    rows: list[Any] = list(zip(*texts))
    costs = [sum(map(len, row)) // _CHARS_A_TOKEN + 4 for row in rows]
    if signature.method == "classify":
        rows = [[a, b] if b else [a] for a, b in rows]
    elif len(known) == 1:
        rows = texts[0]
    if signature.method == "fill_mask":
        costs = [cost + _MASK_COST * row.count("[MASK]") for cost, row in zip(costs, rows)]
    return Call(name, rows, costs)


def read_text(value: Any, name: str, limits: Limits) -> str:
    """Returns a text that is given as itself, as its bytes in UTF-8, or as {"b64": ...}. Raises HTTPError."""
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            value = base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError):
            raise HTTPError(400, f"{name}: b64 is no base64.") from None
    try:
        if isinstance(value, str):
            value.encode()
        elif isinstance(value, bytes):
            value = value.decode()
        else:
            raise HTTPError(400, f"{name}: expected a text, got {_kind_of(value)}.")
    except UnicodeError:
        raise HTTPError(400, f"{name}: not a text of Unicode.") from None
    number, most = len(value), limits.max_text_chars
    require(number <= most, f"{name}: {number:,} characters, allowed are {most:,} in a text.")
    return value


def _kind_of(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", type(None): "null"}
    return kinds.get(type(value), "an object")


def _call_of_ids(signature: Signature, columns: dict[str, Any], sizes: Sizes, number: int) -> Call:
    names = [field.name for field in signature.inputs]
    ids_NL, mask_NL, segments_NL = (read_integers(columns[name], name) for name in names)
    _, length = ids_NL.shape
    is_even = ids_NL.shape == mask_NL.shape == segments_NL.shape
    require(is_even and length, "input_ids, input_mask and segment_ids are to be rows of one length.")
    for name, values, end in (
        ("input_ids", ids_NL, sizes.words),
        ("segment_ids", segments_NL, sizes.segments),
    ):
        low, high = values.min(), values.max()
        wrong = low if low < 0 else high
        require(0 <= wrong < end, f"{name}: {wrong} is out of range. Allowed: 0 to {end - 1:,}.")
    lengths_N = mask_NL.sum(axis=1)
    is_right = (mask_NL == (np.arange(length) < lengths_N[:, None])).all() and lengths_N.all()
    require(is_right, "input_mask: each row is to be ones, one at least, and then zeros.")
    longest, positions = lengths_N.max(), sizes.positions
    require(longest <= positions, f"{longest:,} tokens in a row, the model takes {positions:,} at most.")
    total = number * length * sizes.values_a_token
    told = f"an answer of {total:,} numbers, at most {MAX_NUMBERS:,}. Send fewer rows."
    require(total <= MAX_NUMBERS, told)
    rows = [(ids_NL[n, :end], segments_NL[n, :end]) for n, end in enumerate(lengths_N)]
    # Of logits over the vocabulary each token is one mask.
    cost = 1 + _MASK_COST * (sizes.values_a_token >= sizes.words)
    return Call(signatures.TENSORS, rows, [int(end) * cost for end in lengths_N], length)


def read_integers(values: Any, name: str) -> np.ndarray:
    """Returns whole numbers, rows of a list or an array of integers, as an array [N, L]. Raises HTTPError."""
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return values
    # Looked at one by one: of texts NumPy would make an array that gives each the memory of the longest.
    is_rows = isinstance(values, list) and all(isinstance(row, list) for row in values)
    is_whole = is_rows and all(type(value) is int for row in values for value in row)
    is_right = is_whole and len(set(map(len, values))) == 1
    require(is_right, f"{name}: expected rows of whole numbers, all of one length.")
    return np.array(values, np.int64)


def columns_of(call: Call, signature: Signature, results: list[Any]) -> dict[str, np.ndarray]:
    """Returns the outputs of a call: {name: [N, ...]}, in the order of the signature.

    Args:
      call, signature: what was asked.
      results: of `versions.Served.compute`, one for each row.
    """
    names = [field.name for field in signature.outputs]
    if call.name == signatures.TENSORS:
        stack = np.stack if signature.method == "classify" else functools.partial(_padded, length=call.length)
        return {name: stack([result[name] for result in results]) for name in names}
    if signature.method == "embed":
        return {names[0]: np.stack(results)}
    if signature.method == "fill_mask":
        return dict(zip(names, _words(results)))
    if signature.method == "answer":
        texts, scores, starts, ends = zip(*results)
        columns: list[Any] = [texts, starts, ends, scores]
    else:
        labels, scores = zip(*results)
        of_all = [list(result.scores) for result in results], [list(r.scores.values()) for r in results]
        columns = [[label or "" for label in labels], scores, *of_all]
    kinds = {"string": object, "int32": np.int32, "float32": np.float32}
    return {
        field.name: np.array(column, kinds[field.dtype]) for field, column in zip(signature.outputs, columns)
    }


def _words(results: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the words of each mask and their probabilities, '' and 0 for masks that a text has not."""
    shape = len(results), max(map(len, results)), signatures.TOP_WORDS
    tokens, scores = np.full(shape, "", object), np.zeros(shape, np.float32)
    for number, masks in enumerate(results):
        for mask, words in enumerate(masks):
            tokens[number, mask, : len(words)] = [word for word, _ in words]
            scores[number, mask, : len(words)] = [probability for _, probability in words]
    return tokens, scores


def _padded(rows: list[np.ndarray], length: int) -> np.ndarray:
    """Returns the outputs of tokens as an array, 0 behind the end of each row."""
    padded = np.zeros((len(rows), length, *rows[0].shape[1:]), np.float32)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded
