"""TensorFlow Serving's REST API and the v2 protocol: request bodies to checked calls, results to response
bodies."""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from official.inference import signatures
from official.inference.signatures import Field, Signature
from official.io import json_files
from official.io.errors import ConfigError
from official.io.json_files import is_of_kind
from official.serving.server.settings import HTTPError, Limits, require, whole_number

if TYPE_CHECKING:
    from official.serving.server.versions import Served, State

# -----------------------------------------------------------------------------------------------------------
# Calls: inputs as rows for the model, and its results as columns


MAX_NUMBERS = 2**22  # of a response, since logits over the vocabulary are large
_MASK_COST = 32  # approximate memory of one mask's logits, in tokens


class Sizes(NamedTuple):
    """Limits of token ids: numbers of words, segments and positions of the model; and the number of values
    per token that its main head returns."""

    words: int
    segments: int
    positions: int
    values_a_token: int


class Asked(NamedTuple):
    """A request, read from its body.

    Attributes:
      call: the checked call.
      signature: signature of the call.
      by_rows: REST: True for `instances` and `predictions`, False for `inputs` and `outputs`.
      identity: v2: the request's `id`, or None.
      outputs: v2: {requested output: whether it is binary}, in the requested order.
    """

    call: Call
    signature: Signature
    by_rows: bool
    identity: str | None
    outputs: dict[str, bool]


class Call(NamedTuple):
    """A call of a signature.

    Attributes:
      name: name of the signature.
      rows: N rows for `versions.Served.compute`: a text, several texts, or (ids, segments) each.
      costs: approximate number of tokens of each row.
      length: L for rows of token ids; else 0.
    """

    name: str
    rows: list[Any]
    costs: list[int]
    length: int = 0


def make_call(name: str, signature: Signature, columns: dict[str, Any], sizes: Sizes, limits: Limits) -> Call:
    """Checks the inputs of a call.

    Args:
      name: name of the signature.
      signature: see `signatures`.
      columns: {input: list of N values}, from the body of a request.
      sizes: limits of token ids.
      limits: limits of the server.

    Raises:
      HTTPError: if inputs are unknown, missing, of another type or number, or too large.
    """
    known = [field.name for field in signature.inputs]
    for given in columns:
        require(given in known, f"unknown input {given[:60]!r}: {_takes(name, signature)}.")
    for field in known:
        is_given = field in columns or field in signature.optional
        require(is_given, f"the input {field!r} is missing: {_takes(name, signature)}.")
    counts = ", ".join(f"{len(values)} of {field}" for field, values in columns.items())
    require(len(set(map(len, columns.values()))) == 1, f"inputs of different numbers: {counts}.")
    number, most = len(next(iter(columns.values()))), limits.max_instances
    limit = f"{number:,} instances, allowed are 1 to {most:,} in a request (--max_instances)."
    require(1 <= number <= most, limit)
    if name == signatures.TENSORS:
        return _call_of_ids(signature, columns, sizes, number)
    texts = {
        field: [read_text(value, field, limits) for value in columns.get(field, [""] * number)]
        for field in known
    }
    return call_of_texts(name, signature, texts)


def call_of_texts(name: str, signature: Signature, texts: dict[str, list[str]]) -> Call:
    """Returns the call of a signature with {input: texts} of all its inputs, '' for a text that is left
    out."""
    rows: list[Any] = list(zip(*texts.values()))
    costs = [sum(map(len, row)) // 4 + 4 for row in rows]
    if signature.method == "classify":
        rows = [[a, b] if b else [a] for a, b in rows]
    elif len(texts) == 1:
        (rows,) = texts.values()
    if signature.method == "fill_mask":
        costs = [cost + _MASK_COST * row.count("[MASK]") for cost, row in zip(costs, rows)]
    return Call(name, rows, costs)


def read_text(value: Any, name: str, limits: Limits) -> str:
    """Returns a text given as str, as UTF-8 bytes, or as {"b64": ...}. Raises HTTPError."""
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            value = base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError):
            raise HTTPError(400, f"{name}: b64 is not base64.") from None
    try:
        if isinstance(value, str):
            value.encode()
        elif isinstance(value, bytes):
            value = value.decode()
        else:
            raise HTTPError(400, f"{name}: expected a text, got {_kind_of(value)}.")
    except UnicodeError:
        raise HTTPError(400, f"{name}: not Unicode text.") from None
    number, most = len(value), limits.max_text_chars
    limit = f"{name}: {number:,} characters, allowed are {most:,} in a text (--max_text_chars)."
    require(number <= most, limit)
    return value


def _kind_of(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", type(None): "null"}
    return kinds.get(type(value), "an object")


def _call_of_ids(signature: Signature, columns: dict[str, Any], sizes: Sizes, number: int) -> Call:
    names = [field.name for field in signature.inputs]
    ids_NL, mask_NL, segments_NL = (read_integers(columns[name], name) for name in names)
    _, length = ids_NL.shape
    is_even = ids_NL.shape == mask_NL.shape == segments_NL.shape
    require(is_even and length, "input_ids, input_mask and segment_ids must be rows of one length.")
    bounds = {"input_ids": (ids_NL, sizes.words), "segment_ids": (segments_NL, sizes.segments)}
    for name, (values, end) in bounds.items():
        low, high = values.min(), values.max()
        wrong = low if low < 0 else high
        require(0 <= wrong < end, f"{name}: {wrong} is out of range. Allowed: 0 to {end - 1:,}.")
    lengths_N = mask_NL.sum(axis=1)
    is_right = (mask_NL == (np.arange(length) < lengths_N[:, None])).all() and lengths_N.all()
    require(is_right, "input_mask: each row must be one or more ones, then zeros.")
    longest, positions = lengths_N.max(), sizes.positions
    require(longest <= positions, f"{longest:,} tokens in a row, the model takes {positions:,} at most.")
    total = number * length * sizes.values_a_token
    too_large = f"the response would have {total:,} numbers, allowed are {MAX_NUMBERS:,}. Send fewer rows."
    require(total <= MAX_NUMBERS, too_large)
    rows = [(ids_NL[n, :end], segments_NL[n, :end]) for n, end in enumerate(lengths_N)]
    # With logits over the vocabulary, each token costs as much as a mask.
    cost = 1 + _MASK_COST * (sizes.values_a_token >= sizes.words)
    return Call(signatures.TENSORS, rows, [int(end) * cost for end in lengths_N], length)


def read_integers(values: Any, name: str) -> np.ndarray:
    """Returns rows of integers, given as lists or as an array, as an array [N, L]. Raises HTTPError."""
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return values
    # Checked one by one: NumPy would turn texts into an array in which each takes the memory of the longest.
    is_rows = isinstance(values, list) and all(isinstance(row, list) for row in values)
    is_whole = is_rows and all(type(value) is int for row in values for value in row)
    is_right = is_whole and len(set(map(len, values))) == 1
    require(is_right, f"{name}: expected rows of whole numbers, all of one length.")
    return np.array(values, np.int64)


def columns_of(call: Call, signature: Signature, results: Sequence[Any]) -> dict[str, np.ndarray]:
    """Returns the outputs of a call: {name: [N, ...]}, in the order of the signature; `results` are the
    values of `versions.Served.compute`, one for each row."""
    fields, kinds = signature.outputs, {"string": object, "int32": np.int32, "float32": np.float32}
    if call.name == signatures.TENSORS:
        rows = {field.name: [result[field.name] for result in results] for field in fields}
        if signature.method == "classify":
            return {name: np.stack(values) for name, values in rows.items()}
        return {
            name: _padded(each, call.length, np.float32, each[0].shape[1:]) for name, each in rows.items()
        }
    if signature.method == "embed":
        return {fields[0].name: np.stack(results)}
    columns: list[Any]
    if signature.method in ("fill_mask", "tag"):
        if signature.method == "fill_mask":
            columns = [
                [[[word[n] for word in words] for words in masks] for masks in results] for n in (0, 1)
            ]
        else:
            keys = ("type", "text", "start", "end", "probability")
            columns = [[[one[key] for one in found] for found in results] for key in keys]
        most = max(map(len, results))
        pairs = zip(fields, columns)
        return {field.name: _padded(rows, most, kinds[field.dtype], field.shape[1:]) for field, rows in pairs}
    if signature.method == "answer":
        texts, scores, starts, ends = zip(*results)
        columns = [texts, starts, ends, scores]
    else:
        labels, scores = zip(*results)
        of_all = [list(result.scores) for result in results], [list(r.scores.values()) for r in results]
        columns = [[label or "" for label in labels], scores, *of_all]
    return {field.name: np.array(column, kinds[field.dtype]) for field, column in zip(fields, columns)}


def _padded(rows: Sequence[Any], most: int, dtype: Any, shape: tuple[Any, ...]) -> np.ndarray:
    """Returns rows of values as an array, padded with '' or 0."""
    padded = np.full((len(rows), most, *shape), "" if dtype is object else 0, dtype)
    for number, row in enumerate(rows):
        if len(row):
            padded[number, : len(row)] = row
    return padded


# -----------------------------------------------------------------------------------------------------------
# TensorFlow Serving's REST contract
#
# Source: https://www.tensorflow.org/tfx/serving/api_rest


DEFAULT = "serving_default"
_REST_KEYS = ("signature_name", "instances", "inputs")
_REST_TYPES = {"string": "DT_STRING", "int32": "DT_INT32", "float32": "DT_FLOAT"}


def read_rest(body: bytes, served: Served, limits: Limits) -> Asked:
    """Reads the body of a prediction. Raises HTTPError."""
    values = read_object(body)
    check_keys(values, _REST_KEYS, "the request")
    name = values.get("signature_name")
    name = served.methods[0] if name in (None, "", DEFAULT) else name
    is_known, known = isinstance(name, str) and name in served.signatures, ", ".join(served.signatures)
    require(is_known, f"signature_name={str(name)[:60]!r} is unknown. Allowed: {known}.")
    by_rows = "instances" in values
    require(by_rows != ("inputs" in values), 'expected either "instances" or "inputs" in the request.')
    signature = served.signatures[name]
    columns = (_of_instances if by_rows else _of_inputs)(values, name, signature)
    call = make_call(name, signature, columns, served.sizes, limits)
    return Asked(call, signature, by_rows, None, {})


def read_object(body: bytes | str) -> dict[str, Any]:
    """Parses a body as a JSON object. Raises HTTPError."""
    try:
        return json_files.parse_json(body, "the request", once=True)
    except ConfigError as error:
        raise HTTPError(400, str(error).replace("not a JSON file", "not JSON")) from None


def check_keys(values: dict[str, Any], known: Sequence[str], where: str) -> None:
    """Raises HTTPError for an unknown key, unless its value is empty or false."""
    for key, value in values.items():
        unknown = f"unknown key {key[:60]!r} in {where}. Allowed: {', '.join(known)}."
        require(key in known or value in (None, "", [], {}) or value is False, unknown)


def _of_instances(values: dict[str, Any], name: str, signature: Signature) -> dict[str, list]:
    rows = values["instances"]
    require(isinstance(rows, list) and rows, '"instances" must be a list with one instance or more.')
    if not _is_named(rows[0]):
        return {_only_input(name, signature): rows}
    names = rows[0].keys()
    are_alike = all(_is_named(row) and row.keys() == names for row in rows)
    require(are_alike, "all instances must be objects with the same inputs.")
    require(names, f"instances without inputs: {_takes(name, signature)}.")
    return {field: [row[field] for row in rows] for field in names}


def _of_inputs(values: dict[str, Any], name: str, signature: Signature) -> dict[str, list]:
    given = values["inputs"]
    columns = given if _is_named(given) else {_only_input(name, signature): given}
    require(columns, f'"inputs" is empty: {_takes(name, signature)}.')
    for field, column in columns.items():
        require(isinstance(column, list), f"{field[:60]}: expected a list with a value for each instance.")
    return columns


def _is_named(value: Any) -> bool:
    """Whether a value is an object of inputs; {"b64": ...} is a text."""
    return isinstance(value, dict) and value.keys() != {"b64"}


def _only_input(name: str, signature: Signature) -> str:
    """Returns the signature's only input, which unnamed values belong to. Raises HTTPError if it has
    several."""
    needed = [field.name for field in signature.inputs if field.name not in signature.optional]
    require(len(needed) == 1, f"{_takes(name, signature)}: give an object with their names.")
    return needed[0]


def _sizes_of(field: Field) -> list[int]:
    return [-1, *(-1 if size is None else size for size in field.shape)]


def _takes(name: str, signature: Signature) -> str:
    return f"{name} takes {', '.join(field.name for field in signature.inputs)}"


def write_rest(asked: Asked, results: list[Any]) -> bytes:
    """Returns the body of a response. Raises ValueError for NaN and infinite numbers."""
    columns = columns_of(asked.call, asked.signature, results)

    def encoded(values: dict[str, Any]) -> str:
        if len(values) == 1:
            return encode(*values.values())
        return "{" + ", ".join(f"{json.dumps(name)}: {encode(each)}" for name, each in values.items()) + "}"

    if not asked.by_rows:
        return f'{{"outputs": {encoded(columns)}}}'.encode()
    rows = (encoded({name: column[n] for name, column in columns.items()}) for n in range(len(results)))
    return f'{{"predictions": [{", ".join(rows)}]}}'.encode()


def rest_status(states: dict[int, State]) -> dict:
    """Returns a GetModelStatusResponse."""
    found = []
    for version, (state, error) in states.items():
        status = {"error_code": "UNKNOWN" if error else "OK", "error_message": error}
        found.append({"version": str(version), "state": state, "status": status})
    return {"model_version_status": found}


def rest_metadata(model: str, served: Served) -> dict:
    """Returns a GetModelMetadataResponse. Its signatures are a SignatureDefMap; the names of a classifier's
    labels, and the thresholds of several, where it has some, a ListValue each."""
    named = {**served.signatures, DEFAULT: served.signatures[served.methods[0]]}
    described = {
        name: {
            "inputs": {field.name: _rest_tensor(name, field) for field in signature.inputs},
            "outputs": {field.name: _rest_tensor(name, field) for field in signature.outputs},
            "method_name": "tensorflow/serving/predict",
        }
        for name, signature in named.items()
    }
    found: dict[str, dict] = {"signature_def": {"signature_def": described}}
    kind = "type.googleapis.com/google.protobuf.ListValue"
    for name, values in (("labels", served.labels), ("thresholds", served.thresholds)):
        if values:
            found[name] = {"@type": kind, "value": list(values)}
    spec = {"name": model, "signature_name": "", "version": str(served.version)}
    return {"model_spec": spec, "metadata": found}


def _rest_tensor(signature: str, field: Field) -> dict:
    sizes = [{"size": str(size), "name": ""} for size in _sizes_of(field)]
    shape = {"dim": sizes, "unknown_rank": False}
    return {"dtype": _REST_TYPES[field.dtype], "tensor_shape": shape, "name": f"{signature}_{field.name}:0"}


# -----------------------------------------------------------------------------------------------------------
# The v2 inference protocol, with its extension for binary data
#
# Source: https://github.com/kserve/kserve/blob/master/docs/predict-api/v2/required_api.md and
# https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md


V2_SERVER = {"name": "bert", "version": "2", "extensions": ["binary_tensor_data"]}
V2_HEADER = "Inference-Header-Content-Length"
_V2_TYPES = {"string": "BYTES", "int32": "INT32", "float32": "FP32"}
_INTEGERS = {"INT32": "<i4", "INT64": "<i8"}  # of token ids
_LINE = 1024  # numbers of an output that are encoded at once
# Known parameters. The last ones are ignored, since they change no result: the URL selects the model.
_V2_KEYS = ("inputs", "outputs", "id", "parameters", "model_name", "model_version")
_V2_PARAMETERS = ("binary_data_output", "content_type", "priority", "timeout")
_TENSOR_KEYS = ("name", "datatype", "shape", "data", "parameters")
_TENSOR_PARAMETERS = ("binary_data_size", "content_type")
_OUTPUT_KEYS, _OUTPUT_PARAMETERS = ("name", "parameters"), ("binary_data", "content_type")
_CONTENT_TYPES = ("str", "np", "pd", "hf")  # MLServer's types of unconverted elements


def find_signature(model: str, asked: str, served: Served) -> str:
    """Returns the signature that a v2 model name selects: MODEL the default one, MODEL_SIGNATURE another one.
    Raises HTTPError."""
    if asked == model:
        return served.methods[0]
    names = {f"{model}_{name}": name for name in served.signatures}
    require(asked in names, f"unknown model {asked[:60]!r}. Allowed: {', '.join([model, *names])}.", 404)
    return names[asked]


def read_v2(body: bytes, json_length: str | None, name: str, served: Served, limits: Limits) -> Asked:
    """Reads the body of an inference.

    Args:
      body: JSON, followed by binary tensors.
      json_length: the header with the length of the JSON; None: the whole body is JSON.
      name: name of the signature.
      served: the model version.
      limits: limits of the server.

    Raises:
      HTTPError: if the body does not follow the protocol or the signature.
    """
    end = len(body)
    if json_length is not None:
        length = whole_number(json_length)
        if length is None:
            raise HTTPError(400, f"{V2_HEADER} must be a whole number.")
        require(length <= end, f"{V2_HEADER}={json_length}: the body has {end:,} bytes.")
        end = length
    values, binary = read_object(body[:end]), memoryview(body)[end:]
    check_keys(values, _V2_KEYS, "the request")
    signature = served.signatures[name]
    inputs: Any = values.get("inputs")
    require(inputs and isinstance(inputs, list), '"inputs" must be a list with one tensor or more.')
    columns: dict[str, Any] = {}
    for tensor in inputs:
        field, column, binary = _read_tensor(tensor, signature, binary)
        require(field not in columns, f"the input {field!r} occurs twice.")
        columns[field] = column
    require(not len(binary), f"the body has {len(binary):,} bytes too many after the tensors.")
    identity = values.get("id")
    require(is_of_kind(identity, (str, type(None))), '"id" must be a text.')
    call = make_call(name, signature, columns, served.sizes, limits)
    return Asked(call, signature, False, identity, _requested_outputs(values, signature))


def _read_tensor(tensor: Any, signature: Signature, binary: memoryview) -> tuple[str, Any, memoryview]:
    """Returns the name of an input, its column, and the binary data of the next ones."""
    kinds = {"name": str, "datatype": str, "shape": list}
    name, datatype, shape = (_member(tensor, *each) for each in kinds.items())
    check_keys(tensor, _TENSOR_KEYS, f"the input {name[:60]!r}")
    fields = {field.name: field for field in signature.inputs}
    require(name in fields, f"unknown input {name[:60]!r}. Allowed: {', '.join(fields)}.")
    field = fields[name]
    allowed = ["BYTES"] if field.dtype == "string" else list(_INTEGERS)
    require(datatype in allowed, f"{name}: datatype={datatype[:20]!r}, expected {' or '.join(allowed)}.")
    is_right = all(type(size) is int and 0 < size < 2**31 for size in shape) and len(shape) in (1, 2)
    is_rows = len(shape) == 2 if field.shape else shape[1:] in ([], [1])
    expected = "[N, L]" if field.shape else "[N] or [N, 1]"
    require(is_right and is_rows, f"{name}: shape={str(shape)[:60]}, expected {expected}.")
    size, there = _parameters(tensor, _TENSOR_PARAMETERS).get("binary_data_size"), len(binary)
    if size is None:
        return name, _from_list(tensor, name, shape, field), binary
    is_there = is_of_kind(size, int) and 0 <= size <= there
    require(is_there, f"{name}: binary_data_size={str(size)[:20]}, but {there:,} bytes are left.")
    column = _from_bytes(bytes(binary[:size]), datatype, shape, name)
    require(tensor.get("data") is None, f'{name} has both "data" and "binary_data_size".')
    return name, column, binary[size:]


def _member(tensor: Any, name: str, kind: type) -> Any:
    is_right = isinstance(tensor, dict) and is_of_kind(tensor.get(name), kind)
    expected = f'"{name}" is {"a text" if kind is str else "a list"}.'
    require(is_right, f"each tensor must be an object whose {expected}")
    return tensor[name]


def _parameters(values: dict, known: Sequence[str]) -> dict:
    """Returns the parameters of a request or tensor that are set: null stands for one that is not."""
    parameters = {} if values.get("parameters") is None else values["parameters"]
    require(isinstance(parameters, dict), '"parameters" must be an object.')
    check_keys(parameters, known, '"parameters"')
    kind = parameters.get("content_type")
    allowed = ", ".join(_CONTENT_TYPES)
    require(kind in (None, *_CONTENT_TYPES), f"content_type={str(kind)[:40]!r}, expected one of {allowed}.")
    return {name: value for name, value in parameters.items() if value is not None}


def _from_list(tensor: dict, name: str, shape: list[int], field: Field) -> Any:
    """Returns the column of `data`, which may be flat or nested according to the shape."""
    number = math.prod(shape)
    values: Any = tensor.get("data")
    require(isinstance(values, list), f'{name} has neither "data" nor "binary_data_size".')
    if values and len(shape) == 2 and all(isinstance(row, list) and len(row) == shape[1] for row in values):
        values = [value for row in values for value in row]
    require(len(values) == number, f"{name}: {len(values):,} values for shape={shape}.")
    if not field.shape:
        return values
    return [values[first : first + shape[1]] for first in range(0, number, shape[1])]


def _from_bytes(data: bytes, datatype: str, shape: list[int], name: str) -> Any:
    """Returns the column of binary data; each text follows its length in four bytes."""
    number = math.prod(shape)
    if datatype != "BYTES":
        kind = np.dtype(_INTEGERS[datatype])
        received = f"{len(data):,} bytes for shape={shape} of {datatype}."
        require(len(data) == number * kind.itemsize, f"{name}: {received}")
        return np.frombuffer(data, kind).reshape(shape)
    found, place = [], 0
    while place + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, place)
        found.append(data[place + 4 : place + 4 + size])
        place += 4 + size
    expected = f"{name}: expected {number:,} elements in the binary data, each after its length."
    require(place == len(data) and len(found) == number, expected)
    return found


def _requested_outputs(values: dict, signature: Signature) -> dict[str, bool]:
    """Returns the outputs that a request asks for, and whether each must be binary."""
    default = _parameters(values, _V2_PARAMETERS).get("binary_data_output", False)
    names = [field.name for field in signature.outputs]
    asked = values.get("outputs")
    asked = [{"name": name} for name in names] if asked in (None, []) else asked
    is_right = isinstance(asked, list) and is_of_kind(default, bool)
    require(is_right, '"outputs" must be a list, and "binary_data_output" true or false.')
    found = {}
    for output in asked:
        name = _member(output, "name", str)
        require(name in names, f"unknown output {name[:60]!r}. Allowed: {', '.join(names)}.")
        require(name not in found, f"the output {name!r} is asked for twice.")
        check_keys(output, _OUTPUT_KEYS, f"the output {name!r}")
        found[name] = _parameters(output, _OUTPUT_PARAMETERS).get("binary_data", default)
        require(is_of_kind(found[name], bool), f'{name}: "binary_data" must be true or false.')
    return found


def write_v2(asked: Asked, results: list[Any], model: str, version: int) -> tuple[bytes, int | None]:
    """Returns the response body, and the length of its JSON if binary tensors follow.

    Raises:
      ValueError: for numbers that JSON does not have.
    """
    columns = columns_of(asked.call, asked.signature, results)
    fields = {field.name: field for field in asked.signature.outputs}
    outputs, binary = [], []
    for name, is_binary in asked.outputs.items():
        column, datatype = columns[name], _V2_TYPES[fields[name].dtype]
        described = {"name": name, "datatype": datatype, "shape": list(column.shape)}
        if is_binary:
            binary.append(_to_bytes(column, datatype))
            outputs.append(json.dumps({**described, "parameters": {"binary_data_size": len(binary[-1])}}))
        else:
            outputs.append(f'{json.dumps(described)[:-1]}, "data": {_flat(column)}}}')
    head = {"model_name": model, "model_version": str(version)}
    if asked.identity is not None:
        head["id"] = asked.identity
    text = f'{json.dumps(head)[:-1]}, "outputs": [{", ".join(outputs)}]}}'.encode()
    return b"".join([text, *binary]), len(text) if binary else None


def _flat(column: np.ndarray) -> str:
    """Returns the elements row by row as JSON. Raises ValueError as `encode` does."""
    flat = column.reshape(-1)
    lines = (encode(flat[first : first + _LINE])[1:-1] for first in range(0, len(flat), _LINE))
    return f"[{', '.join(lines)}]"


def _to_bytes(column: np.ndarray, datatype: str) -> bytes:
    if datatype != "BYTES":
        return column.astype(column.dtype.newbyteorder("<")).tobytes()
    texts = (text.encode() for text in column.reshape(-1))
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def v2_metadata(model: str, name: str, served: Served) -> dict:
    """Returns the metadata of a model, for a signature."""
    signature = served.signatures[name]
    inputs, outputs = (
        [
            {"name": field.name, "datatype": _V2_TYPES[field.dtype], "shape": _sizes_of(field)}
            for field in fields
        ]
        for fields in (signature.inputs, signature.outputs)
    )
    versions = [str(served.version)]
    return {"name": model, "versions": versions, "platform": "bert", "inputs": inputs, "outputs": outputs}


# -----------------------------------------------------------------------------------------------------------
# Arrays as JSON


def encode(values: Any) -> str:
    """Returns an array, or a value of one, as JSON.

    Raises:
      ValueError: for numbers that JSON does not have: NaN and infinite ones.
    """
    # More numbers at once would block other threads for long.
    if isinstance(values, np.ndarray) and values.ndim > 1 and values.size > 4096:
        return f"[{', '.join(map(encode, values))}]"
    plain = values.tolist() if isinstance(values, (np.ndarray, np.generic)) else values
    return json.dumps(plain, allow_nan=False)
