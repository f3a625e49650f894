"""Calls: the inputs of a signature, checked, as rows for the model, and what it gives as columns."""

import base64
import binascii
from typing import Any, NamedTuple

import numpy as np

from official.inference import signatures
from official.inference.signatures import Signature
from official.serving.server.settings import HTTPError, Limits

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
    _check_names(name, signature, columns)
    number = _number_of_rows(columns, limits)
    if name == signatures.TENSORS:
        return _call_of_ids(signature, columns, sizes, number)
    texts = {
        field.name: [read_text(value, field.name, limits) for value in columns.get(field.name, [""] * number)]
        for field in signature.inputs
    }
    costs = [sum(map(len, row)) // _CHARS_A_TOKEN + 4 for row in zip(*texts.values())]
    return Call(name, *_rows_of_texts(signature, texts, costs))


def _check_names(name: str, signature: Signature, columns: dict[str, Any]) -> None:
    known = [field.name for field in signature.inputs]
    for given in columns:
        if given not in known:
            raise HTTPError(400, f"unknown input {given[:60]!r}: {name} takes {', '.join(known)}.")
    for field in known:
        if field not in columns and field not in signature.optional:
            raise HTTPError(400, f"the input {field!r} is missing: {name} takes {', '.join(known)}.")


def _number_of_rows(columns: dict[str, Any], limits: Limits) -> int:
    numbers = {name: len(values) for name, values in columns.items()}
    if len(set(numbers.values())) > 1:
        counts = ", ".join(f"{count} of {name}" for name, count in numbers.items())
        raise HTTPError(400, f"inputs of different numbers: {counts}.")
    number = next(iter(numbers.values()))
    if not 1 <= number <= limits.max_instances:
        raise HTTPError(400, f"{number:,} instances, allowed are 1 to {limits.max_instances:,} in a request.")
    return number


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
    if len(value) > limits.max_text_chars:
        most = f"{limits.max_text_chars:,}"
        raise HTTPError(400, f"{name}: {len(value):,} characters, allowed are {most} in a text.")
    return value


def _kind_of(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", type(None): "null"}
    return kinds.get(type(value), "an object")


def _rows_of_texts(
    signature: Signature, texts: dict[str, list[str]], costs: list[int]
) -> tuple[list[Any], list[int]]:
    """Returns the rows that the method takes, and their costs."""
    rows: list[Any] = list(zip(*texts.values()))
    if signature.method == "classify":
        rows = [[a, b] if b else [a] for a, b in rows]
    elif len(signature.inputs) == 1:
        rows = [row[0] for row in rows]
    if signature.method == "fill_mask":
        costs = [cost + _MASK_COST * row.count("[MASK]") for cost, row in zip(costs, rows)]
    return rows, costs


def _call_of_ids(signature: Signature, columns: dict[str, Any], sizes: Sizes, number: int) -> Call:
    ids_NL, mask_NL, segments_NL = (
        read_integers(columns[field.name], field.name) for field in signature.inputs
    )
    _, length = ids_NL.shape
    if not ids_NL.shape == mask_NL.shape == segments_NL.shape or not length:
        raise HTTPError(400, "input_ids, input_mask and segment_ids are to be rows of one length.")
    for name, values, end in (
        ("input_ids", ids_NL, sizes.words),
        ("segment_ids", segments_NL, sizes.segments),
    ):
        if values.min() < 0 or values.max() >= end:
            wrong = values.min() if values.min() < 0 else values.max()
            raise HTTPError(400, f"{name}: {wrong} is out of range. Allowed: 0 to {end - 1:,}.")
    lengths_N = mask_NL.sum(axis=1)
    if (mask_NL != (np.arange(length) < lengths_N[:, None])).any() or not lengths_N.all():
        raise HTTPError(400, "input_mask: each row is to be ones, one at least, and then zeros.")
    if lengths_N.max() > sizes.positions:
        raise HTTPError(
            400, f"{lengths_N.max():,} tokens in a row, the model takes {sizes.positions:,} at most."
        )
    if number * length * sizes.values_a_token > MAX_NUMBERS:
        total = number * length * sizes.values_a_token
        raise HTTPError(400, f"an answer of {total:,} numbers, at most {MAX_NUMBERS:,}. Send fewer rows.")
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
    if not is_whole or len(set(map(len, values))) != 1:
        raise HTTPError(400, f"{name}: expected rows of whole numbers, all of one length.")
    return np.array(values, np.int64)


def columns_of(call: Call, signature: Signature, results: list[Any]) -> dict[str, np.ndarray]:
    """Returns the outputs of a call: {name: [N, ...]}, in the order of the signature.

    Args:
      call, signature: what was asked.
      results: of `versions.Served.compute`, one for each row.
    """
    makers = {
        "answer": _answers,
        "classify": _labels,
        "fill_mask": _words,
        "embed": lambda vectors: (np.stack(vectors),),
    }
    if call.name == signatures.TENSORS:
        return {
            field.name: np.stack(rows) if signature.method == "classify" else _padded(rows, call.length)
            for field in signature.outputs
            for rows in [[result[field.name] for result in results]]
        }
    columns = makers[signature.method](results)
    return {field.name: column for field, column in zip(signature.outputs, columns)}


def _answers(results: list[Any]) -> tuple[np.ndarray, ...]:
    texts, scores, starts, ends = zip(*results)
    return (
        np.array(texts, object),
        np.array(starts, np.int32),
        np.array(ends, np.int32),
        np.array(scores, np.float32),
    )


def _labels(results: list[Any]) -> tuple[np.ndarray, ...]:
    labels, scores = zip(*results)
    names = np.array([list(result.scores) for result in results], object)
    all_scores = np.array([list(result.scores.values()) for result in results], np.float32)
    return (
        np.array([label or "" for label in labels], object),
        np.array(scores, np.float32),
        names,
        all_scores,
    )


def _words(results: list[Any]) -> tuple[np.ndarray, ...]:
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
