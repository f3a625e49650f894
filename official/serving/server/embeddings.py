"""OpenAI's embeddings API: `POST /v1/embeddings`, its responses and its errors.

Source: https://platform.openai.com/docs/api-reference/embeddings
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from official.inference.methods import normalized
from official.serving.server import protocols
from official.serving.server.protocols import Call
from official.serving.server.settings import HTTPError, Limits, require

if TYPE_CHECKING:
    from official.serving.server.versions import Served

NAME = "embeddings"  # of a call: vectors with the number of their tokens
_KEYS = ("input", "model", "encoding_format", "dimensions", "user")  # the last identifies the end user
_FORMATS = ("float", "base64")
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Asked(NamedTuple):
    """A request, read from its body.

    Attributes:
      call: the call of the model.
      model: name of the model.
      encoding_format: `float`, or `base64` of little-endian float32.
      dimensions: number of first components to keep, then normalized to length 1; None: all.
    """

    call: Call
    model: str
    encoding_format: str
    dimensions: int | None


def read(body: bytes, model: str, served: Served, limits: Limits) -> Asked:
    """Reads the body of a request. Raises HTTPError."""
    require("embed" in served.methods, f"{model} does not serve embeddings (--methods).", 404)
    # Some clients send null for unset parameters.
    values = {key: value for key, value in protocols.read_object(body).items() if value is not None}
    for key in values:
        require(key in _KEYS, f"unknown parameter {key[:60]!r}. Allowed: {', '.join(_KEYS)}.")
    asked = values.get("model", model)
    require(asked == model, f"model={str(asked)[:60]!r} is not served, only {model!r} is.", 404)
    form = values.get("encoding_format", _FORMATS[0])
    require(form in _FORMATS, f"encoding_format={str(form)[:60]!r}, expected one of {', '.join(_FORMATS)}.")
    size, dimensions = served.vector_size, values.get("dimensions")
    if dimensions is not None:
        is_right = type(dimensions) is int and 1 <= dimensions <= size
        require(is_right, f"dimensions={str(dimensions)[:40]}, expected a number from 1 to {size}.")
    texts = _texts_of(values.get("input"), limits)
    costs = [len(text) // 4 + 4 for text in texts]
    return Asked(Call(NAME, texts, costs), model, form, dimensions)


def _texts_of(given: Any, limits: Limits) -> list[str]:
    texts, most = given if isinstance(given, list) else [given], limits.max_instances
    is_ids = any(isinstance(each, (int, list)) for each in texts)
    require(not is_ids, "input: token ids are not supported: they belong to OpenAI's tokenizers. Send texts.")
    limit = f"input: {len(texts):,} texts, allowed are 1 to {most:,} in a request (--max_instances)."
    require(1 <= len(texts) <= most, limit)
    read_texts = [protocols.read_text(text, "input", limits) for text in texts]
    require(all(map(str.strip, read_texts)), "input: a text is empty.")
    return read_texts


def write(asked: Asked, results: list[dict[str, Any]]) -> bytes:
    """Returns the body of a response; `results` are {vector, tokens, is_cut} of each text. If texts were
    truncated, `truncated` in it lists their indices."""
    vectors_ND = np.stack([result["vector"] for result in results])
    if asked.dimensions is not None:
        vectors_ND = normalized(vectors_ND[:, : asked.dimensions])
    if asked.encoding_format == "base64":
        written = [json.dumps(base64.b64encode(row.astype("<f4").tobytes()).decode()) for row in vectors_ND]
    else:
        written = [protocols.encode(row.astype(np.float32)) for row in vectors_ND]
    entries = (
        f'{{"object": "embedding", "index": {number}, "embedding": {vector}}}'
        for number, vector in enumerate(written)
    )
    tokens = int(sum(result["tokens"] for result in results))
    usage = json.dumps({"prompt_tokens": tokens, "total_tokens": tokens})
    head = f'{{"object": "list", "model": {json.dumps(asked.model)}, "usage": {usage}'
    if cut := [number for number, result in enumerate(results) if result["is_cut"]]:
        head += f', "truncated": {cut}'
    return f'{head}, "data": [{", ".join(entries)}]}}'.encode()


def describe_error(error: HTTPError) -> dict[str, Any]:
    """Returns an error in the form that OpenAI's clients expect."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"message": str(error), "type": kind, "param": None, "code": None}
