"""TensorFlow Serving's REST contract: bodies to calls and back.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

from typing import Any, NamedTuple

from official.inference.signatures import Field, Signature
from official.io import json_files
from official.io.errors import ConfigError
from official.serving.server import calls
from official.serving.server.calls import Call
from official.serving.server.encoding import encode, encode_object
from official.serving.server.limits import Limits
from official.serving.server.refusals import Refused
from official.serving.server.served import Served
from official.serving.server.versions import State

DEFAULT = "serving_default"
_TYPES = {"string": "DT_STRING", "int32": "DT_INT32", "float32": "DT_FLOAT"}
_LIST = "type.googleapis.com/google.protobuf.ListValue"
_METHOD = "tensorflow/serving/predict"


class Asked(NamedTuple):
    """Request of a body.

    Attributes:
      call: of the model.
      signature: of the call.
      by_rows: whether it has `instances` and wants `predictions`, else `inputs` and `outputs`.
    """

    call: Call
    signature: Signature
    by_rows: bool


def read(body: bytes, served: Served, limits: Limits) -> Asked:
    """Reads the body of a prediction. Raises Refused."""
    values = read_object(body)
    name = values.get("signature_name") or DEFAULT
    name = served.methods[0] if name == DEFAULT else name
    if not isinstance(name, str) or name not in served.signatures:
        known = ", ".join(served.signatures)
        raise Refused(400, f"signature_name={str(name)[:60]!r} is unknown. Allowed: {known}.")
    if ("instances" in values) == ("inputs" in values):
        raise Refused(400, 'expected either "instances" or "inputs" in the request.')
    signature, by_rows = served.signatures[name], "instances" in values
    columns = (_of_instances if by_rows else _of_inputs)(values, name, signature)
    return Asked(calls.make(name, signature, columns, served.sizes, limits), signature, by_rows)


def read_object(body: bytes | str) -> dict[str, Any]:
    """Returns the object that a body is in JSON. Raises Refused."""
    try:
        return json_files.parse_json(body, "the request")
    except ConfigError as error:
        raise Refused(400, str(error).replace("not a JSON file", "not JSON")) from None


def _of_instances(values: dict[str, Any], name: str, signature: Signature) -> dict[str, list]:
    rows = values["instances"]
    if not isinstance(rows, list) or not rows:
        raise Refused(400, '"instances" is to be a list with one instance or more.')
    if not _is_named(rows[0]):
        return {_only_input(name, signature): rows}
    names = rows[0].keys()
    if not all(_is_named(row) and row.keys() == names for row in rows):
        raise Refused(400, "all instances are to be objects with the same inputs.")
    if not names:
        raise Refused(400, f"instances without inputs: {name} takes {_names(signature)}.")
    return {field: [row[field] for row in rows] for field in names}


def _of_inputs(values: dict[str, Any], name: str, signature: Signature) -> dict[str, list]:
    given = values["inputs"]
    columns = given if _is_named(given) else {_only_input(name, signature): given}
    if not columns:
        raise Refused(400, f'"inputs" is empty: {name} takes {_names(signature)}.')
    for field, column in columns.items():
        if not isinstance(column, list):
            raise Refused(400, f"{field[:60]}: expected a list with a value for each instance.")
    return columns


def _is_named(value: Any) -> bool:
    """Whether a value is an object of inputs; {"b64": ...} is a text."""
    return isinstance(value, dict) and value.keys() != {"b64"}


def _only_input(name: str, signature: Signature) -> str:
    """Returns the input that values without a name are for. Raises Refused where there are several."""
    needed = [field.name for field in signature.inputs if field.name not in signature.optional]
    if len(needed) > 1:
        raise Refused(400, f"{name} takes {_names(signature)}: give an object with their names.")
    return needed[0]


def _names(signature: Signature) -> str:
    return ", ".join(field.name for field in signature.inputs)


def write(asked: Asked, results: list[Any]) -> bytes:
    """Returns the body of an answer. Raises ValueError for numbers that JSON does not have."""
    columns = calls.columns_of(asked.call, asked.signature, results)
    only = next(iter(columns.values())) if len(columns) == 1 else None
    if not asked.by_rows:
        text = encode_object(columns) if only is None else encode(only)
        return f'{{"outputs": {text}}}'.encode()
    number = len(results)
    if only is not None:
        rows = [encode(only[n]) for n in range(number)]
    else:
        rows = [encode_object({name: column[n] for name, column in columns.items()}) for n in range(number)]
    return f'{{"predictions": [{", ".join(rows)}]}}'.encode()


def status(states: dict[int, State]) -> dict:
    """Returns a GetModelStatusResponse."""
    return {
        "model_version_status": [
            {
                "version": str(version),
                "state": state.state,
                "status": {"error_code": "UNKNOWN" if state.error else "OK", "error_message": state.error},
            }
            for version, state in states.items()
        ]
    }


def metadata(model: str, served: Served) -> dict:
    """Returns a GetModelMetadataResponse. Its signatures are a SignatureDefMap; the names of a classifier's
    labels, where it has some, a ListValue."""
    named = {**served.signatures, DEFAULT: served.signatures[served.methods[0]]}
    described = {
        name: {
            "inputs": {field.name: _tensor(name, field) for field in signature.inputs},
            "outputs": {field.name: _tensor(name, field) for field in signature.outputs},
            "method_name": _METHOD,
        }
        for name, signature in named.items()
    }
    found: dict[str, dict] = {"signature_def": {"signature_def": described}}
    if served.labels:
        found["labels"] = {"@type": _LIST, "value": list(served.labels)}
    return {
        "model_spec": {"name": model, "signature_name": "", "version": str(served.version)},
        "metadata": found,
    }


def _tensor(signature: str, field: Field) -> dict:
    sizes = [-1, *(-1 if size is None else size for size in field.shape)]
    return {
        "dtype": _TYPES[field.dtype],
        "tensor_shape": {
            "dim": [{"size": str(size), "name": ""} for size in sizes],
            "unknown_rank": False,
        },
        "name": f"{signature}_{field.name}:0",
    }
