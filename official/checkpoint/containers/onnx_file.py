"""ONNX files as containers of tensors (initializers), read lazily and written one by one."""

import collections
import math
import os
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from official.checkpoint import DamagedError, naming_damaged
from official.checkpoint.containers import Progress, stem
from official.checkpoint.tensors import Tensor, Tensors
from official.io import files as io_files
from official.io.errors import ConfigError, check_installed, shortened

# -----------------------------------------------------------------------------------------------------------
# Fields of protocol buffers
#
# A field is a key (its number and kind), for some kinds a length, and its bytes. Keys and lengths are numbers
# with 7 bits per byte.


_VARINT, _BYTES = 0, 2  # kinds of fields
_FIXED = {1: 8, 5: 4}  # {kind of fixed length: its length}


class Field(NamedTuple):
    """Position of a field in a protocol buffer: its number, the offset of the whole field, the offset of its
    content, and the end of both, in bytes."""

    number: int
    start: int
    inside: int
    end: int


def walk(file: BinaryIO, start: int, end: int) -> Iterator[Field]:
    """Yields the fields between two offsets of a file. Raises DamagedError if they do not end at `end`."""
    place = start
    while place < end:
        file.seek(place)
        key = _read_varint(file)
        kind = key & 7
        if kind not in (_VARINT, _BYTES, *_FIXED):
            raise DamagedError(f"not an ONNX model, or damaged at byte {place}")
        number = _read_varint(file) if kind in (_VARINT, _BYTES) else 0
        length = number if kind == _BYTES else _FIXED.get(kind, 0)
        inside = file.tell()
        if inside + length > end:
            beyond = f"{inside + length - end} bytes beyond the end of the file"
            raise DamagedError(f"truncated: the field at byte {place} ends {beyond}")
        yield Field(key >> 3, place, inside, inside + length)
        place = inside + length


def inside(file: BinaryIO, fields: list[Field], number: int) -> list[Field]:
    """Returns the fields with a number that are directly inside these fields. Raises DamagedError as
    `walk`."""
    found = (one for field in fields for one in walk(file, field.inside, field.end))
    return [one for one in found if one.number == number]


def _read_varint(file: BinaryIO) -> int:
    """Reads a number with 7 bits per byte, the lowest first; the top bit means that more follow."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise DamagedError(f"truncated or damaged at byte {file.tell()}")


def bytes_of(file: BinaryIO, start: int, end: int) -> bytes:
    """Returns the bytes between two offsets of a file."""
    file.seek(start)
    return file.read(end - start)


def head_of(number: int, length: int) -> bytes:
    """Returns the encoded key and length of a field of bytes."""
    return _varint(number << 3 | _BYTES) + _varint(length)


def _varint(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


# -----------------------------------------------------------------------------------------------------------
# ONNX files as containers
#
# The onnx package parses the pieces. This module reads and writes the file around them, since the package
# would hold all of it in memory, more than once. Measured with BERT-large (1.34 GB), as the most memory of a
# conversion beyond its imports: from a file 0.6 GB, and 2.6 GB with `onnx.load`; to a file 0.8 GB, and 8.2 GB
# with `onnx.helper.make_model` and `onnx.save`.


LAST = ".onnx"
IS_FOLDER = False
_MAX_BYTES = 2_000_000_000  # a protocol buffer holds less than 2 GiB; larger models have a second file
_IR_VERSION, _OPSET = 8, 9  # written into the model; opset 9 is PopART's
_DTYPES: dict[str, np.dtype] = {
    "FLOAT": np.dtype(np.float32),
    "DOUBLE": np.dtype(np.float64),
    "BFLOAT16": np.dtype(ml_dtypes.bfloat16),
    **{name.upper(): np.dtype(name) for name in "float16 int64 int32 uint32 int8 uint8 bool".split()},
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def _library() -> Any:
    """Imports the onnx package, needed only by this format."""
    check_installed("an .onnx file", "onnx", "onnx")
    import onnx

    return onnx


def locate(path: str) -> str | None:
    """Returns the .onnx file for a path: the path itself, or in a folder the file with the highest number;
    None without one."""
    if not os.path.isdir(path):
        return path if path.endswith(".onnx") and os.path.isfile(path) else None
    names = [name for name in os.listdir(path) if name.endswith(".onnx")]
    names.sort(key=lambda name: (list(map(int, re.findall(r"\d+", name))) or [-1], name))
    return os.path.join(path, names[-1]) if names else None


def target(output_dir: str, source: str) -> str:
    """Returns OUTPUT_DIR/<basename of the source>.onnx."""
    return os.path.join(output_dir, f"{stem(source)}.onnx")


def files(location: str) -> list[str]:
    """Returns the existing files of a model."""
    return [path for path in (location, _data_path(location)) if os.path.exists(path)]


def _data_path(location: str) -> str:
    return f"{location}.data"


def read(location: str) -> Tensors:
    """Returns the initializers of a model. Raises DamagedError, also when one of them is read, and
    ConfigError without onnx."""
    onnx = _library()
    name = os.path.basename(location)
    with naming_damaged(location), io_files.open_binary(location) as file:
        graphs, initializers = _initializers(onnx, file, location)
        found = [_tensor(onnx, file, location, field) for field in initializers]
    if not graphs:
        raise DamagedError(f"{name} is not an ONNX model: it has no graph")
    counts = collections.Counter(tensor.sources[0] for tensor in found)
    if doubled := sorted(one for one, count in counts.items() if count > 1):
        raise DamagedError(f"{name} has initializers twice: {shortened(doubled)}")
    return {tensor.sources[0]: tensor for tensor in sorted(found, key=lambda tensor: tensor.sources)}


def _tensor(onnx: Any, file: BinaryIO, location: str, field: Field) -> Tensor:
    """Returns the tensor of an initializer; its values stay in the file, or in a second one."""
    parts = list(walk(file, field.inside, field.end))
    head = _read_head(onnx, file, parts)
    name, shape, types = head.name, tuple(head.dims), onnx.TensorProto.DataType
    kind = types.Name(head.data_type) if head.data_type in types.values() else str(head.data_type)
    if kind not in _DTYPES:
        raise DamagedError(f"{name} has type {kind}. Supported are {', '.join(_DTYPES)}")
    dtype = _DTYPES[kind]
    raw = next((part for part in parts if part.number == onnx.TensorProto.RAW_DATA_FIELD_NUMBER), None)
    path, offset, size = location, 0, None
    is_external = head.data_location == onnx.TensorProto.EXTERNAL
    is_inline = raw is None and not is_external  # numeric fields instead of raw bytes
    if is_external:
        path, offset = _second_file(location, head)
        _check_size(path, shape, dtype, offset)
    elif raw is not None:
        offset, size = raw.inside, raw.end - raw.inside

    def read() -> np.ndarray:
        if is_inline:
            values = _from_numbers(onnx, location, field, shape, dtype)
        else:
            _check_size(path, shape, dtype, offset, size)
            with naming_damaged(path):
                values = np.fromfile(path, dtype, math.prod(shape), offset=offset)
        if values.size != math.prod(shape):
            raise DamagedError(f"{name}: truncated, {values.size} of {math.prod(shape)} numbers are there")
        return values.reshape(shape)

    return Tensor(shape, dtype, read, (name,))


def _read_head(onnx: Any, file: BinaryIO, parts: list[Field]) -> Any:
    """Returns an initializer without its values. Raises DamagedError if its strings are invalid."""
    needed = ("NAME", "DIMS", "DATA_TYPE", "DATA_LOCATION", "EXTERNAL_DATA")
    numbers = {getattr(onnx.TensorProto, f"{name}_FIELD_NUMBER") for name in needed}
    described = [bytes_of(file, part.start, part.end) for part in parts if part.number in numbers]
    head = _parse(onnx, b"".join(described))
    places = [text for entry in head.external_data for text in (entry.key, entry.value)]
    # Invalid UTF-8 is returned as bytes.
    if not all(isinstance(text, str) and text.isprintable() for text in (head.name, *places)):
        raise DamagedError(f"the initializer {head.name!r} or its location, {places}, is not text")
    offsets = [entry.value for entry in head.external_data if entry.key == "offset"]
    # Python would raise its own error for thousands of digits.
    if not all(offset.isdecimal() and len(offset) < 25 for offset in offsets):
        raise DamagedError(f"the values of {head.name} have no valid offset: {shortened(places)}")
    return head


def check_second_files(location: str) -> None:
    """Raises DamagedError if values of a model are in files that `read` refuses, such as links. Called
    before another library opens the model."""
    onnx = _library()
    with naming_damaged(location), io_files.open_binary(location) as file:
        for field in _initializers(onnx, file, location)[1]:
            head = _read_head(onnx, file, list(walk(file, field.inside, field.end)))
            if head.data_location == onnx.TensorProto.EXTERNAL:
                path, _ = _second_file(location, head)
                with naming_damaged(path):
                    io_files.check_readable(path)


def _initializers(onnx: Any, file: BinaryIO, location: str) -> tuple[list[Field], list[Field]]:
    """Returns the graphs of a model, and their initializers."""
    whole = Field(0, 0, 0, os.path.getsize(location))
    graphs = inside(file, [whole], onnx.ModelProto.GRAPH_FIELD_NUMBER)
    return graphs, inside(file, graphs, onnx.GraphProto.INITIALIZER_FIELD_NUMBER)


def _check_size(
    path: str, shape: tuple[int, ...], dtype: np.dtype, offset: int, size: int | None = None
) -> None:
    """Raises DamagedError if a file is too short for a tensor at an offset, or if the tensor's size is not
    the stored `size`."""
    needed = math.prod(shape) * dtype.itemsize
    with naming_damaged(path):
        io_files.check_readable(path)
        there = os.path.getsize(path) - offset if size is None else size
    if there < needed or (size is not None and size != needed):
        raise DamagedError(
            f"{os.path.basename(path)}: truncated or damaged, {there} bytes for {list(shape)} of {dtype}"
        )


def _from_numbers(
    onnx: Any, location: str, field: Field, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Reads values stored as numeric fields instead of raw bytes."""
    with open(location, "rb") as file:
        tensor = _parse(onnx, bytes_of(file, field.inside, field.end))
    if dtype.itemsize == 2:
        # One 16-bit float per int32, as ONNX specifies, or two, as PopART writes them.
        numbers, count = np.array(tensor.int32_data, np.int64).astype(np.int32), math.prod(shape)
        packed = count > 1 and len(numbers) == (count + 1) // 2
        return numbers.view(dtype)[:count] if packed else numbers.astype(np.uint16).view(dtype)
    try:
        return onnx.numpy_helper.to_array(tensor).astype(dtype, copy=False)
    except (ValueError, TypeError) as error:
        raise DamagedError(f"{tensor.name}: {error}") from None


def _second_file(location: str, head: Any) -> tuple[str, int]:
    """Returns the path of a model's second file, and the offset of an initializer's values in it. Only the
    model's folder is searched. Raises DamagedError if the file is a link, or behind one: a model from
    elsewhere could name any file of this machine."""
    place = {entry.key: entry.value for entry in head.external_data}
    name = place.get("location", "")
    folder, path = os.path.dirname(os.path.abspath(location)), os.path.normpath(name)
    is_inside = not os.path.isabs(path) and path.split(os.sep)[0] != os.pardir
    inside = path if is_inside else os.path.basename(path)
    found, problem = os.path.join(folder, inside), ""
    if os.path.realpath(found) != os.path.normpath(os.path.join(os.path.realpath(folder), inside)):
        problem = f"{inside}, which is a link. Put the file itself there"
    elif not is_inside and not os.path.exists(found):
        problem = f"{name}, outside of the model's folder, which has no {inside}"
    if problem:
        raise DamagedError(f"{os.path.basename(location)}: its values are in {problem}")
    return found, int(place.get("offset", 0))


def _parse(onnx: Any, content: bytes) -> Any:
    from google.protobuf.message import DecodeError  # comes with onnx

    try:
        return onnx.TensorProto.FromString(content)
    except DecodeError as error:
        raise DamagedError(f"an initializer cannot be parsed ({error})") from None


def write(tensors: Tensors, location: str, progress: Progress = lambda size: None) -> None:
    """Writes a model of initializers and no nodes, from which PopART's BERT loads weights.

    Args:
      tensors: {name: lazy tensor}, read one after the other.
      location: path of the .onnx file. From 2 GB on, the values are in `LOCATION.data`.
      progress: called with the bytes written since the last call.

    Raises:
      ConfigError: without the onnx package, and for a type that ONNX lacks.
    """
    onnx = _library()
    tensors = dict(sorted(tensors.items()))
    is_external = sum(tensor.nbytes for tensor in tensors.values()) > _MAX_BYTES
    data_path = _data_path(location)
    # Per tensor, the bytes before its values: its field of the graph, up to the raw data or complete.
    heads: list[bytes] = []
    place = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPE_NAMES:
            allowed = f"Allowed: {', '.join(map(str, _DTYPE_NAMES))}."
            raise ConfigError(
                f"{name} is of type {tensor.dtype}, which PopART's files do not have. {allowed}"
            )
        kind = onnx.TensorProto.DataType.Value(_DTYPE_NAMES[tensor.dtype])
        proto, length = onnx.TensorProto(name=name, dims=tensor.shape, data_type=kind), 0
        if is_external:
            set_external(proto, os.path.basename(data_path), place, tensor.nbytes)
        content = proto.SerializeToString()
        if not is_external:
            content, length = content + head_of(proto.RAW_DATA_FIELD_NUMBER, tensor.nbytes), tensor.nbytes
        number = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
        heads.append(head_of(number, len(content) + length) + content)
        place += tensor.nbytes
    graph = onnx.GraphProto(name="bert").SerializeToString()
    length = len(graph) + sum(map(len, heads)) + (0 if is_external else place)
    model = onnx.ModelProto(
        ir_version=_IR_VERSION, producer_name="bert-tf2", opset_import=[onnx.helper.make_opsetid("", _OPSET)]
    )
    with open(location, "wb") as file, open(data_path if is_external else os.devnull, "wb") as data:
        file.write(model.SerializeToString() + head_of(onnx.ModelProto.GRAPH_FIELD_NUMBER, length) + graph)
        for head, tensor in zip(heads, tensors.values()):
            file.write(head)
            values = np.ascontiguousarray(tensor.read(), tensor.dtype)
            (data if is_external else file).write(values.reshape(-1).view(np.uint8).data)
            progress(tensor.nbytes)


def set_external(proto: Any, location: str, offset: int, length: int) -> None:
    """Makes the values of an onnx.TensorProto external, in a second file."""
    proto.data_location = proto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        proto.external_data.add(key=key, value=str(value))
