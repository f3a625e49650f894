"""The v2 inference protocol, with its extension for binary data: bodies to calls and back.

Source: https://github.com/kserve/kserve/blob/master/docs/predict-api/v2/required_api.md and
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

import json
import math
import struct
from typing import Any, NamedTuple

import numpy as np

from official.inference.signatures import Field, Signature
from official.io.json_files import is_of_kind
from official.serving.server import calls
from official.serving.server.calls import Call
from official.serving.server.encoding import encode
from official.serving.server.limits import Limits
from official.serving.server.refusals import Refused
from official.serving.server.rest import read_object
from official.serving.server.served import Served

SERVER = {"name": "bert", "version": "2", "extensions": ["binary_tensor_data"]}
HEADER = "Inference-Header-Content-Length"
_TYPES = {"string": "BYTES", "int32": "INT32", "float32": "FP32"}
_INTEGERS = {"INT32": "<i4", "INT64": "<i8"}  # of token ids
_LINE = 1024  # numbers of an output that are written at once


class Asked(NamedTuple):
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
    Refused."""
    if asked == model:
        return served.methods[0]
    name = asked.removeprefix(f"{model}_")
    if name == asked or name not in served.signatures:
        known = ", ".join(names_of(model, served))
        raise Refused(404, f"no model {asked[:60]!r}. There are {known}.")
    return name


def read(body: bytes, json_length: str | None, name: str, served: Served, limits: Limits) -> Asked:
    """Reads the body of an inference.

    Args:
      body: JSON, and behind it binary tensors.
      json_length: the header that says how long the JSON is; None: all of it.
      name: of a signature.
      served: the version that is asked.
      limits: of the server.

    Raises:
      Refused: where it is not what the protocol or the signature say.
    """
    end = _json_end(json_length, len(body))
    values, binary = read_object(body[:end]), memoryview(body)[end:]
    signature = served.signatures[name]
    if not isinstance(values.get("inputs"), list) or not values["inputs"]:
        raise Refused(400, '"inputs" is to be a list with one tensor or more.')
    columns: dict[str, Any] = {}
    for tensor in values["inputs"]:
        field, column, binary = _read_tensor(tensor, signature, binary)
        if field in columns:
            raise Refused(400, f"the input {field!r} is there twice.")
        columns[field] = column
    if len(binary):
        raise Refused(400, f"{len(binary):,} bytes too many behind the tensors.")
    identity = values.get("id")
    if not is_of_kind(identity, (str, type(None))):
        raise Refused(400, '"id" is to be a text.')
    call = calls.make(name, signature, columns, served.sizes, limits)
    return Asked(call, signature, identity, _wanted(values, signature))


def _json_end(json_length: str | None, length: int) -> int:
    if json_length is None:
        return length
    if not (json_length.isascii() and json_length.isdigit() and len(json_length) < 19):
        raise Refused(400, f"{HEADER} is to be a whole number.")
    if int(json_length) > length:
        raise Refused(400, f"{HEADER}={json_length}: the body has {length:,} bytes.")
    return int(json_length)


def _read_tensor(tensor: Any, signature: Signature, binary: memoryview) -> tuple[str, Any, memoryview]:
    """Returns the name of an input, its column, and the binary data of the next ones."""
    name, datatype, shape = (
        _member(tensor, *each) for each in (("name", str), ("datatype", str), ("shape", list))
    )
    field = next((each for each in signature.inputs if each.name == name), None)
    if field is None:
        known = ", ".join(each.name for each in signature.inputs)
        raise Refused(400, f"unknown input {name[:60]!r}. Allowed: {known}.")
    allowed = ["BYTES"] if field.dtype == "string" else list(_INTEGERS)
    if datatype not in allowed:
        raise Refused(400, f"{name}: datatype={datatype[:20]!r}, expected {' or '.join(allowed)}.")
    number = _size_of(shape, field)
    size = _parameters(tensor).get("binary_data_size")
    if size is None:
        return name, _from_list(tensor, name, shape, number, field), binary
    if not is_of_kind(size, int) or not 0 <= size <= len(binary):
        raise Refused(400, f"{name}: binary_data_size={str(size)[:20]}, {len(binary):,} bytes are there.")
    return name, _from_bytes(bytes(binary[:size]), datatype, shape, name), binary[size:]


def _member(tensor: Any, name: str, kind: type) -> Any:
    if not isinstance(tensor, dict) or not is_of_kind(tensor.get(name), kind):
        told = "a text" if kind is str else "a list"
        raise Refused(400, f'each tensor is to be an object whose "{name}" is {told}.')
    return tensor[name]


def _parameters(values: dict) -> dict:
    parameters = values.get("parameters", {})
    if not isinstance(parameters, dict):
        raise Refused(400, '"parameters" is to be an object.')
    return parameters


def _size_of(shape: list, field: Field) -> int:
    """Returns the number of elements of a tensor. Raises Refused for shapes that an input cannot have."""
    is_right = all(type(size) is int and 0 < size < 2**31 for size in shape) and len(shape) in (1, 2)
    is_rows = len(shape) == 2 if field.shape else shape[1:] in ([], [1])
    if not (is_right and is_rows):
        expected = "[N, L]" if field.shape else "[N] or [N, 1]"
        raise Refused(400, f"{field.name}: shape={str(shape)[:60]}, expected {expected}.")
    return math.prod(shape)


def _from_list(tensor: dict, name: str, shape: list[int], number: int, field: Field) -> Any:
    """Returns the column of `data`, which may be flat or nested as the shape says."""
    values = tensor.get("data")
    if not isinstance(values, list):
        raise Refused(400, f'{name} has neither "data" nor "binary_data_size".')
    if values and len(shape) == 2 and all(isinstance(row, list) and len(row) == shape[1] for row in values):
        values = [value for row in values for value in row]
    if len(values) != number:
        raise Refused(400, f"{name}: {len(values):,} values for shape={shape}.")
    if not field.shape:
        return values
    return [values[first : first + shape[1]] for first in range(0, number, shape[1])]


def _from_bytes(data: bytes, datatype: str, shape: list[int], name: str) -> Any:
    number = math.prod(shape)
    if datatype == "BYTES":
        return _split(data, number, name)
    kind = np.dtype(_INTEGERS[datatype])
    if len(data) != number * kind.itemsize:
        raise Refused(400, f"{name}: {len(data):,} bytes for shape={shape} of {datatype}.")
    return np.frombuffer(data, kind).reshape(shape)


def _split(data: bytes, number: int, name: str) -> list[bytes]:
    """Returns elements, before each of which its length stands in four bytes."""
    found, place = [], 0
    while place + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, place)
        found.append(data[place + 4 : place + 4 + size])
        place += 4 + size
    if place != len(data) or len(found) != number:
        raise Refused(400, f"{name}: the binary data are not {number:,} elements, each behind its length.")
    return found


def _wanted(values: dict, signature: Signature) -> dict[str, bool]:
    """Returns the outputs that a request asks for, and whether each is to be binary."""
    default = _parameters(values).get("binary_data_output", False)
    names = [field.name for field in signature.outputs]
    asked = values.get("outputs") or [{"name": name} for name in names]
    if not isinstance(asked, list) or not is_of_kind(default, bool):
        raise Refused(400, '"outputs" is to be a list, and "binary_data_output" true or false.')
    found = {}
    for output in asked:
        name = _member(output, "name", str)
        if name not in names:
            raise Refused(400, f"unknown output {name[:60]!r}. Allowed: {', '.join(names)}.")
        found[name] = _parameters(output).get("binary_data", default) is True
    return found


def write(asked: Asked, results: list[Any], model: str, version: int) -> tuple[bytes, int | None]:
    """Returns the body of an answer, and how long its JSON is where binary tensors follow.

    Raises:
      ValueError: for numbers that JSON does not have.
    """
    columns = calls.columns_of(asked.call, asked.signature, results)
    fields = {field.name: field for field in asked.signature.outputs}
    outputs, binary = [], []
    for name, is_binary in asked.outputs.items():
        column, datatype = columns[name], _TYPES[fields[name].dtype]
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


def metadata(model: str, name: str, served: Served) -> dict:
    """Returns the metadata of a model, for a signature."""
    signature = served.signatures[name]
    return {
        "name": model,
        "versions": [str(served.version)],
        "platform": "bert",
        "inputs": [_described(field) for field in signature.inputs],
        "outputs": [_described(field) for field in signature.outputs],
    }


def names_of(model: str, served: Served) -> list[str]:
    """Returns the names that a model goes by."""
    return [model, *(f"{model}_{name}" for name in served.signatures)]


def _described(field: Field) -> dict:
    sizes = [-1, *(-1 if size is None else size for size in field.shape)]
    return {"name": field.name, "datatype": _TYPES[field.dtype], "shape": sizes}
