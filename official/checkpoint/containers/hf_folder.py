"""Hugging Face folders (model.safetensors, config.json, vocab.txt): reading lazily, writing tensor by tensor.

Weights may be in parts (model.safetensors.index.json), and a single .safetensors file is read too. Pickle
files (pytorch_model.bin, *.pt) are refused unopened: loading one can run any code. A LoRA adapter that lies
beside the weights is merged into them.

The head of a file is written here, as the library takes all tensors at once. Measured with BERT-large
(1.34 GB): the most memory of a conversion beyond its imports is 0.6 GB, and 1.4 GB with
`safetensors.numpy.save_file`.
"""

import json
import os
import re
import struct
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
from absl import logging

from official.checkpoint import DamagedError, hf_config, naming_damaged
from official.checkpoint.containers import Progress
from official.checkpoint.tensors import Tensor, Tensors
from official.io import files as io_files
from official.io import json_files, model_folder
from official.io.errors import ConfigError, shortened
from official.io.vocabulary_files import TOKENIZER, TOKENIZER_CONFIG, VOCABULARY

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LAST = WEIGHTS
IS_FOLDER = True
# The files of a checkpoint; others in its folder, whatever they end in, are not its own.
_OTHER_FILES = (INDEX, hf_config.CONFIG, VOCABULARY, TOKENIZER, TOKENIZER_CONFIG)
_FILES = re.compile(r"model(-\d+-of-\d+)?\.safetensors|" + "|".join(map(re.escape, _OTHER_FILES)))
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle")
_OTHER_FORMATS = (".index", ".onnx")

_DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def locate(path: str) -> str | None:
    """Returns the folder or the .safetensors file that a path means; None where there is none.

    Raises:
      ConfigError: where a path means a pickle file, or a folder that has nothing else to read.
    """
    pickle = None
    if os.path.isdir(path):
        names = sorted(os.listdir(path))
        if WEIGHTS in names or INDEX in names:
            return path
        if model_folder.MODULES in names and (below := model_folder.transformer_folder(path)) != path:
            return locate(below)
        if model_folder.ADAPTER_CONFIG in names:
            base = json_files.read_json(os.path.join(path, model_folder.ADAPTER_CONFIG), any_number=True)
            raise ConfigError(
                f"{path}: an adapter and no model. The weights of {base.get('base_model_name_or_path')} are"
                f" missing. Put their {WEIGHTS} and {hf_config.CONFIG} into the folder, or merge the adapter"
                " into them where it comes from (merge_and_unload)."
            )
        if not any(name.endswith(_OTHER_FORMATS) for name in names):
            pickle = next((os.path.join(path, name) for name in names if name.endswith(_PICKLES)), None)
    elif os.path.isfile(path):
        if path.endswith(INDEX):
            return os.path.dirname(path) or "."
        if path.endswith(".safetensors"):
            return path
        pickle = path if path.endswith(_PICKLES) else None
    if pickle:
        raise ConfigError(
            f"{pickle}: pickle files are not read, since loading one can run any code. Save the model as"
            f" safetensors instead ({WEIGHTS}): model.save_pretrained(FOLDER, safe_serialization=True)."
        )
    return None


def read(location: str) -> Tensors:
    """Returns the tensors of a folder or file.

    Raises:
      DamagedError: also when one of them is read.
      ConfigError: where config.json, if there is one, is of a model that this project does not compute.
    """
    hf_config.sizes(location)
    model_folder.check_files(location)
    whole = os.path.join(location, WEIGHTS)
    if not os.path.isdir(location):
        tensors = read_file(location)
    else:
        tensors = read_file(whole) if os.path.exists(whole) else _read_parts(location)
    adapter = model_folder.adapter_of(location)
    return _merged(tensors, adapter) if adapter else tensors


_PEFT = "base_model.model."  # begins the names in an adapter
_MATRIX_A, _MATRIX_B = ".lora_A.weight", ".lora_B.weight"


def _merged(tensors: Tensors, adapter: model_folder.Adapter) -> Tensors:
    """Returns weights with a LoRA adapter added to them: W + scale B A. Weights that the adapter holds
    whole, such as a classifier's, take the place of the model's.

    Raises:
      ConfigError: where it has tensors that belong to none of the weights.
    """
    found = {
        re.sub(r"\.(base_layer|modules_to_save)\.", ".", name.removeprefix(_PEFT)): tensor
        for name, tensor in read_file(adapter.path).items()
        if ".original_module." not in name  # the model's own, which is replaced
    }
    merged, strange = dict(tensors), []
    for name, tensor in found.items():
        module = name.removesuffix(_MATRIX_A)
        if name.endswith(_MATRIX_A):
            weight, other = _name_in(tensors, f"{module}.weight"), found.get(module + _MATRIX_B)
            if weight not in tensors or other is None:
                strange.append(name)
            else:
                scale = adapter.scale(module, tensor.shape[0])
                merged[weight] = _with_product(tensors[weight], other, tensor, scale, adapter.path)
        elif name.endswith(_MATRIX_B) and name.removesuffix(_MATRIX_B) + _MATRIX_A in found:
            continue
        elif "lora_" in name or name.rpartition(".")[2] not in ("weight", "bias"):
            strange.append(name)
        else:
            whole = _name_in(tensors, name)
            if whole in tensors and tensors[whole].shape != tensor.shape:
                strange.append(name)
            merged[whole] = tensor
    if strange:
        raise ConfigError(
            f"{adapter.path}: {shortened(sorted(strange))} belong to none of the weights that lie beside."
            " Merge the adapter where it comes from (merge_and_unload), or remove it."
        )
    changed = [name for name in merged if merged[name] is not tensors.get(name)]
    logging.info("%s is merged into %d weights", adapter.path, len(changed))
    return merged


def _name_in(tensors: Tensors, name: str) -> str:
    """Returns the name that a weight has in the model's file, with or without the prefix of models with
    heads."""
    other = name.removeprefix("bert.") if name.startswith("bert.") else f"bert.{name}"
    return other if name not in tensors and other in tensors else name


def _with_product(weight: Tensor, b: Tensor, a: Tensor, scale: float, path: str) -> Tensor:
    if (b.shape[0], a.shape[1]) != weight.shape or b.shape[1] != a.shape[0]:
        raise ConfigError(
            f"{path}: matrices {b.shape} and {a.shape} do not make the shape {weight.shape} of"
            f" {weight.sources[0]}."
        )

    def read() -> np.ndarray:
        product = b.read().astype(np.float32) @ a.read().astype(np.float32)
        return (weight.read().astype(np.float32) + np.float32(scale) * product).astype(weight.dtype)

    return replace(weight, read=read)


def _read_parts(folder: str) -> Tensors:
    path = os.path.join(folder, INDEX)
    try:  # {name of tensor: file in the folder}
        parts = json_files.expect(json_files.read_json(path), "weight_map", dict, path)
    except ConfigError as error:
        raise DamagedError(f"{INDEX} cannot be read ({error})") from None
    outside = [part for part in parts.values() if not isinstance(part, str) or os.path.basename(part) != part]
    if outside:
        raise DamagedError(f"{INDEX} names files outside its folder: {outside[0]}")
    gone = sorted({part for part in parts.values() if not os.path.exists(os.path.join(folder, part))})
    if gone:
        raise DamagedError(f"{shortened(gone)}: No such file in the folder, though {INDEX} lists it")
    tensors: Tensors = {}
    for part in sorted(set(parts.values())):
        found = read_file(os.path.join(folder, part))
        tensors |= {name: tensor for name, tensor in found.items() if parts.get(name, part) == part}
    missing = sorted(parts.keys() - tensors.keys())
    if missing:
        raise DamagedError(f"{INDEX} lists tensors that are not in their files: {shortened(missing)}")
    return tensors


def read_file(path: str) -> Tensors:
    """Returns the tensors of a .safetensors file. Raises DamagedError, also when one of them is read."""
    with _open(path) as file:
        views = {name: file.get_slice(name) for name in sorted(file.keys())}
        types = {name: view.get_dtype() for name, view in views.items()}
        unknown = [name for name in types if types[name] not in _DTYPES]
        if unknown:
            raise DamagedError(f"{unknown[0]} is of type {types[unknown[0]]}; read are {', '.join(_DTYPES)}")
        return {
            name: _lazy(path, name, tuple(view.get_shape()), _DTYPES[types[name]])
            for name, view in views.items()
        }


def _lazy(path: str, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    def get() -> np.ndarray:
        # Opened for every tensor: the library maps the file, and pages that were read would count as memory
        # until it is closed.
        with _open(path) as file:
            try:
                return file.get_tensor(name)
            except safetensors.SafetensorError as error:
                raise DamagedError(f"{name}: {_one_line(error)}") from None

    return Tensor(shape, dtype, get, (name,))


def _open(path: str) -> Any:
    try:
        with naming_damaged(path):
            io_files.check_readable(path)
            return safetensors.safe_open(path, framework="np")
    except (safetensors.SafetensorError, ValueError) as error:
        raise DamagedError(f"{os.path.basename(path)}: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def target(output_dir: str, source: str) -> str:
    """Returns OUTPUT_DIR: a checkpoint is a folder."""
    return output_dir


def files(location: str) -> list[str]:
    """Returns the files of a folder, or the file, that are there."""
    if os.path.isfile(location):
        return [location]
    names = sorted(os.listdir(location)) if os.path.isdir(location) else []
    return [os.path.join(location, name) for name in names if _FILES.fullmatch(name)]


def write(
    tensors: Tensors,
    folder: str,
    progress: Progress = lambda size: None,
    others: dict[str, bytes] | None = None,
) -> None:
    """Writes a folder of weights.

    Args:
      tensors: {name: tensor}, read here one after the other.
      folder: made where it is not there.
      progress: called with the bytes written since the last call.
      others: {name: content} of other files in the folder.
    """
    os.makedirs(folder, exist_ok=True)
    # Wide types first, as the library writes them: every tensor then begins at a multiple of its type's size.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _DTYPE_NAMES:
            raise ConfigError(
                f"{name} is of type {tensor.dtype}, which is not written. Allowed:"
                f" {', '.join(map(str, _DTYPE_NAMES))}."
            )
        entries[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + tensor.nbytes],
        }
        place += tensor.nbytes
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(os.path.join(folder, WEIGHTS), "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for name in names:
            values = np.ascontiguousarray(tensors[name].read(), tensors[name].dtype)
            file.write(values.reshape(-1).view(np.uint8).data)
            progress(tensors[name].nbytes)
    for name, content in (others or {}).items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
