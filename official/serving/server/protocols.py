"""Protocols: bodies to calls, and results to bodies."""

import json
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from official.inference.signatures import Field, Signature
from official.io import json_files
from official.io.errors import ConfigError
from official.io.json_files import is_of_kind
from official.serving.server import calls
from official.serving.server.calls import Call
from official.serving.server.settings import HTTPError, Limits, require
from official.serving.server.versions import Served, State

# -----------------------------------------------------------------------------------------------------------
# TensorFlow Serving's REST contract
#
# Source: https://www.tensorflow.org/tfx/serving/api_rest


DEFAULT = "serving_default"
_REST_TYPES = {"string": "DT_STRING", "int32": "DT_INT32", "float32": "DT_FLOAT"}


class RestRequest(NamedTuple):
    """Request of a body.

    Attributes:
      call: of the model.
      signature: of the call.
      by_rows: whether it has `instances` and wants `predictions`, else `inputs` and `outputs`.
    """

    call: Call
    signature: Signature
    by_rows: bool


def read_rest(body: bytes, served: Served, limits: Limits) -> RestRequest:
    """Reads the body of a prediction. Raises HTTPError."""
    values = read_object(body)
    name = values.get("signature_name") or DEFAULT
    name = served.methods[0] if name == DEFAULT else name
    is_known, known = isinstance(name, str) and name in served.signatures, ", ".join(served.signatures)
    require(is_known, f"signature_name={str(name)[:60]!r} is unknown. Allowed: {known}.")
    by_rows = "instances" in values
    require(by_rows != ("inputs" in values), 'expected either "instances" or "inputs" in the request.')
    signature = served.signatures[name]
    columns = (_of_instances if by_rows else _of_inputs)(values, name, signature)
    return RestRequest(calls.make(name, signature, columns, served.sizes, limits), signature, by_rows)


def read_object(body: bytes | str) -> dict[str, Any]:
    """Returns the object that a body is in JSON. Raises HTTPError."""
    try:
        return json_files.parse_json(body, "the request")
    except ConfigError as error:
        raise HTTPError(400, str(error).replace("not a JSON file", "not JSON")) from None


def _of_instances(values: dict[str, Any], name: str, signature: Signature) -> dict[str, list]:
    rows = values["instances"]
    is_right = isinstance(rows, list) and rows
    require(is_right, '"instances" is to be a list with one instance or more.')
    if not _is_named(rows[0]):
        return {_only_input(name, signature): rows}
    names = rows[0].keys()
    are_alike = all(_is_named(row) and row.keys() == names for row in rows)
    require(are_alike, "all instances are to be objects with the same inputs.")
    require(names, f"instances without inputs: {name} takes {_names(signature.inputs)}.")
    return {field: [row[field] for row in rows] for field in names}


def _of_inputs(values: dict[str, Any], name: str, signature: Signature) -> dict[str, list]:
    given = values["inputs"]
    columns = given if _is_named(given) else {_only_input(name, signature): given}
    require(columns, f'"inputs" is empty: {name} takes {_names(signature.inputs)}.')
    for field, column in columns.items():
        is_right = isinstance(column, list)
        require(is_right, f"{field[:60]}: expected a list with a value for each instance.")
    return columns


def _is_named(value: Any) -> bool:
    """Whether a value is an object of inputs; {"b64": ...} is a text."""
    return isinstance(value, dict) and value.keys() != {"b64"}


def _only_input(name: str, signature: Signature) -> str:
    """Returns the input that values without a name are for. Raises HTTPError where there are several."""
    needed = [field.name for field in signature.inputs if field.name not in signature.optional]
    told = f"{name} takes {_names(signature.inputs)}: give an object with their names."
    require(len(needed) == 1, told)
    return needed[0]


def _sizes_of(field: Field) -> list[int]:
    return [-1, *(-1 if size is None else size for size in field.shape)]


def _names(fields: Sequence[Field]) -> str:
    return ", ".join(field.name for field in fields)


def write_rest(asked: RestRequest, results: list[Any]) -> bytes:
    """Returns the body of an answer. Raises ValueError for numbers that JSON does not have."""
    columns = calls.columns_of(asked.call, asked.signature, results)
    only = next(iter(columns.values())) if len(columns) == 1 else None
    if not asked.by_rows:
        return f'{{"outputs": {encode_object(columns) if only is None else encode(only)}}}'.encode()
    rows = (
        encode_object({name: column[n] for name, column in columns.items()})
        if only is None
        else encode(only[n])
        for n in range(len(results))
    )
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
    labels, where it has some, a ListValue."""
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
    if served.labels:
        kind = "type.googleapis.com/google.protobuf.ListValue"
        found["labels"] = {"@type": kind, "value": list(served.labels)}
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
_LINE = 1024  # numbers of an output that are written at once


class V2Request(NamedTuple):
    """An inference request, read from its body.

    Attributes:
      call: of the model.
      signature: of the call.
      identity: the request's `id`; None where it has none.
      outputs: {name: whether it is to be binary}, in the order wanted.
    """

    call: Call
    signature: Signature
    identity: str | None
    outputs: dict[str, bool]


def find_signature(model: str, asked: str, served: Served) -> str:
    """Returns the signature that a name of a model stands for: the main one, or MODEL_SIGNATURE. Raises
    HTTPError."""
    if asked == model:
        return served.methods[0]
    names = {f"{model}_{name}": name for name in served.signatures}
    require(asked in names, f"no model {asked[:60]!r}. There are {', '.join([model, *names])}.", 404)
    return names[asked]


def read_v2(body: bytes, json_length: str | None, name: str, served: Served, limits: Limits) -> V2Request:
    """Reads the body of an inference.

    Args:
      body: JSON, and behind it binary tensors.
      json_length: the header that says how long the JSON is; None: all of it.
      name: of a signature.
      served: the version that is asked.
      limits: of the server.

    Raises:
      HTTPError: where it is not what the protocol or the signature say.
    """
    end = len(body)
    if json_length is not None:
        is_number = json_length.isascii() and json_length.isdigit() and len(json_length) < 19
        require(is_number, f"{V2_HEADER} is to be a whole number.")
        require(int(json_length) <= end, f"{V2_HEADER}={json_length}: the body has {end:,} bytes.")
        end = int(json_length)
    values, binary = read_object(body[:end]), memoryview(body)[end:]
    signature = served.signatures[name]
    inputs: Any = values.get("inputs")
    require(inputs and isinstance(inputs, list), '"inputs" is to be a list with one tensor or more.')
    columns: dict[str, Any] = {}
    for tensor in inputs:
        field, column, binary = _read_tensor(tensor, signature, binary)
        require(field not in columns, f"the input {field!r} is there twice.")
        columns[field] = column
    require(not len(binary), f"{len(binary):,} bytes too many behind the tensors.")
    identity = values.get("id")
    require(is_of_kind(identity, (str, type(None))), '"id" is to be a text.')
    call = calls.make(name, signature, columns, served.sizes, limits)
    return V2Request(call, signature, identity, _requested_outputs(values, signature))


def _read_tensor(tensor: Any, signature: Signature, binary: memoryview) -> tuple[str, Any, memoryview]:
    """Returns the name of an input, its column, and the binary data of the next ones."""
    members = ("name", str), ("datatype", str), ("shape", list)
    name, datatype, shape = (_member(tensor, *each) for each in members)
    fields = {field.name: field for field in signature.inputs}
    require(name in fields, f"unknown input {name[:60]!r}. Allowed: {', '.join(fields)}.")
    field = fields[name]
    allowed = ["BYTES"] if field.dtype == "string" else list(_INTEGERS)
    told = f"{name}: datatype={datatype[:20]!r}, expected {' or '.join(allowed)}."
    require(datatype in allowed, told)
    is_right = all(type(size) is int and 0 < size < 2**31 for size in shape) and len(shape) in (1, 2)
    is_rows = len(shape) == 2 if field.shape else shape[1:] in ([], [1])
    expected = "[N, L]" if field.shape else "[N] or [N, 1]"
    require(is_right and is_rows, f"{name}: shape={str(shape)[:60]}, expected {expected}.")
    size, there = _parameters(tensor).get("binary_data_size"), len(binary)
    if size is None:
        return name, _from_list(tensor, name, shape, field), binary
    is_there = is_of_kind(size, int) and 0 <= size <= there
    require(is_there, f"{name}: binary_data_size={str(size)[:20]}, {there:,} bytes are there.")
    return name, _from_bytes(bytes(binary[:size]), datatype, shape, name), binary[size:]


def _member(tensor: Any, name: str, kind: type) -> Any:
    is_right, expected = isinstance(tensor, dict), "a text" if kind is str else "a list"
    is_right = is_right and is_of_kind(tensor.get(name), kind)
    require(is_right, f'each tensor is to be an object whose "{name}" is {expected}.')
    return tensor[name]


def _parameters(values: dict) -> dict:
    parameters = values.get("parameters", {})
    require(isinstance(parameters, dict), '"parameters" is to be an object.')
    return parameters


def _from_list(tensor: dict, name: str, shape: list[int], field: Field) -> Any:
    """Returns the column of `data`, which may be flat or nested as the shape says."""
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
    """Returns the column of binary data; before each text stands its length in four bytes."""
    number = math.prod(shape)
    if datatype != "BYTES":
        kind = np.dtype(_INTEGERS[datatype])
        is_right = len(data) == number * kind.itemsize
        require(is_right, f"{name}: {len(data):,} bytes for shape={shape} of {datatype}.")
        return np.frombuffer(data, kind).reshape(shape)
    found, place = [], 0
    while place + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, place)
        found.append(data[place + 4 : place + 4 + size])
        place += 4 + size
    is_right = place == len(data) and len(found) == number
    require(is_right, f"{name}: the binary data are not {number:,} elements, each behind its length.")
    return found


def _requested_outputs(values: dict, signature: Signature) -> dict[str, bool]:
    """Returns the outputs that a request asks for, and whether each is to be binary."""
    default = _parameters(values).get("binary_data_output", False)
    names = [field.name for field in signature.outputs]
    asked = values.get("outputs") or [{"name": name} for name in names]
    is_right = isinstance(asked, list) and is_of_kind(default, bool)
    require(is_right, '"outputs" is to be a list, and "binary_data_output" true or false.')
    found = {}
    for output in asked:
        name = _member(output, "name", str)
        require(name in names, f"unknown output {name[:60]!r}. Allowed: {', '.join(names)}.")
        found[name] = _parameters(output).get("binary_data", default) is True
    return found


def write_v2(asked: V2Request, results: list[Any], model: str, version: int) -> tuple[bytes, int | None]:
    """Returns the body of an answer, and how long its JSON is where binary tensors follow.

    Raises:
      ValueError: for numbers that JSON does not have.
    """
    columns = calls.columns_of(asked.call, asked.signature, results)
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
    return {
        "name": model,
        "versions": [str(served.version)],
        "platform": "bert",
        "inputs": [_v2_tensor(field) for field in signature.inputs],
        "outputs": [_v2_tensor(field) for field in signature.outputs],
    }


def _v2_tensor(field: Field) -> dict:
    return {"name": field.name, "datatype": _V2_TYPES[field.dtype], "shape": _sizes_of(field)}


# -----------------------------------------------------------------------------------------------------------
# Arrays as JSON


_AT_ONCE = 4096  # numbers; more would keep other threads from running for long


def encode(values: Any) -> str:
    """Returns an array, or a value of one, as JSON.

    Raises:
      ValueError: for numbers that JSON does not have: NaN and infinite ones.
    """
    if isinstance(values, np.ndarray) and values.ndim > 1 and values.size > _AT_ONCE:
        return f"[{', '.join(map(encode, values))}]"
    plain = values.tolist() if isinstance(values, (np.ndarray, np.generic)) else values
    return json.dumps(plain, allow_nan=False)


def encode_object(columns: dict[str, Any]) -> str:
    """Returns arrays, or values, by their names as JSON. Raises ValueError as `encode` does."""
    return "{" + ", ".join(f"{json.dumps(name)}: {encode(values)}" for name, values in columns.items()) + "}"
