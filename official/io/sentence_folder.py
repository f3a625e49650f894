"""Reads and writes folders of sentence-transformers: the modules that turn token vectors into an embedding,
prompts, length and similarity.

A folder has modules.json (Transformer, Pooling, any number of Dense, Normalize), a folder with a config.json
of each module, sentence_bert_config.json and config_sentence_transformers.json. Modules go by the names of
all versions: `sentence_transformers.models.Pooling`, and from 5 on longer ones that end in the same word.

Source: https://github.com/UKPLab/sentence-transformers, Transformer, Pooling, Dense and Normalize.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import os
import pickletools
import struct
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np

from official.io import files
from official.io.errors import ConfigError, check_one_of, shortened, suggest
from official.io.json_files import expect, written
from official.io.model_folder import (
    CONFIG,
    MODULES,
    SENTENCE_SETTINGS,
    SENTENCE_TRANSFORMERS,
    check_keys,
    check_model_arguments,
    check_values,
    folder_of,
    kind_of_module,
    read,
    read_where_there,
)

FILES = (SENTENCE_TRANSFORMERS, SENTENCE_SETTINGS[0])  # beside it
POOLINGS = ("mean", "cls", "max")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
# {name of an activation of a Dense module: its class in PyTorch}
ACTIVATIONS = {
    "identity": "torch.nn.modules.linear.Identity",
    **{
        name.lower(): f"torch.nn.modules.activation.{name}"
        for name in ("Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
    },
}
NAMES_OF_PASSAGES = ("document", "passage", "corpus")  # of a prompt, in the order of sentence-transformers
_MODES = {"cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean"}
_WEIGHTS, _PICKLE = "model.safetensors", "pytorch_model.bin"


@dataclasses.dataclass(frozen=True)
class Dense:
    """Dense module: a matrix product, a bias and an activation on the vector of a text.

    Attributes:
      in_features, out_features: sizes of the vector before and behind it.
      bias: whether it has one.
      activation: one of ACTIVATIONS.
      folder: with its weights.
    """

    in_features: int
    out_features: int
    bias: bool = True
    activation: str = "tanh"
    folder: str = ""

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns kernel [I, O] and bias [O], zeros where there is none, float32. Raises ConfigError where
        they are missing, damaged, or of other sizes."""
        path = os.path.join(self.folder, _WEIGHTS)
        if files.is_file(path):
            found = _safetensors(path)
        else:
            path = os.path.join(self.folder, _PICKLE)
            if not files.is_file(path):
                raise ConfigError(f"{self.folder} has neither {_WEIGHTS} nor {_PICKLE}. Restore the weights.")
            found = _torch_tensors(path)
        sizes: dict[str, tuple[int, ...]] = {"linear.weight": (self.out_features, self.in_features)}
        sizes |= {"linear.bias": (self.out_features,)} if self.bias else {}
        shapes = {name: values.shape for name, values in found.items()}
        if shapes != sizes:
            raise ConfigError(f"{path} holds {shapes}, its {CONFIG} says {sizes}. Restore one of them.")
        if not all(np.isfinite(values).all() for values in found.values()):
            raise ConfigError(f"{path} holds NaN or infinite numbers. Restore the file.")
        return found["linear.weight"].T, found.get("linear.bias", np.zeros(self.out_features, np.float32))


@dataclasses.dataclass(frozen=True)
class EmbeddingSettings:
    """Settings of an embedding, as stored in a folder of sentence-transformers.

    Attributes:
      pooling: of the vectors of a text's tokens, [CLS] and [SEP] included: their mean, that of [CLS] (cls),
        or the maximum of each component (max).
      normalize: divides vectors by their length, last: the product of two is the cosine between them.
      max_seq_length: tokens that a text is truncated to. None: as the model's other files say.
      similarity: of two vectors, one of SIMILARITIES.
      prompts: {name: text set before the texts of a kind}, such as query and passage.
      default_prompt_name: of the prompt that texts get by default; None: none.
      dense: modules between pooling and normalization.
      lower_case: texts are lower-cased before a tokenizer that does not do so.
      include_prompt: whether tokens of a prompt take part in the pooling.
    """

    pooling: str = "mean"
    normalize: bool = False
    max_seq_length: int | None = None
    similarity: str = "cosine"
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt_name: str | None = None
    dense: tuple[Dense, ...] = ()
    lower_case: bool = False
    include_prompt: bool = True

    def __post_init__(self) -> None:
        for name, allowed in (("pooling", POOLINGS), ("similarity", SIMILARITIES)):
            if (value := getattr(self, name)) not in allowed:
                raise ConfigError(f"{name}={str(value)[:60]!r}, expected one of {', '.join(allowed)}.")

    def size(self, hidden_size: int) -> int:
        """Returns the size of the vectors of an encoder."""
        return self.dense[-1].out_features if self.dense else hidden_size

    def prompt(self, text: str | None = None, name: str | None = None) -> str:
        """Returns the prompt to prepend to texts.

        Args:
          text: the prompt itself; None: the one called `name`.
          name: key of `prompts`; None: the default prompt. `passage` also finds one called document or
            corpus.

        Raises:
          ConfigError: if there is no such prompt, or its tokens would have to be left out of the pooling.
        """
        names = NAMES_OF_PASSAGES if name in NAMES_OF_PASSAGES else (name or self.default_prompt_name,)
        found = [each for each in (name, *names) if each in self.prompts]
        if text is None and name is not None and not found:
            allowed = f"Allowed: {', '.join(self.prompts)}" if self.prompts else "The model has no prompts"
            raise ConfigError(f"prompt_name={name[:60]!r}{suggest(name, self.prompts)}. {allowed}.")
        text = text if text is not None else self.prompts[found[0]] if found else ""
        if text and not self.include_prompt:
            raise ConfigError(f"prompt={text[:40]!r} with include_prompt=false is not supported, only true.")
        return text


# -----------------------------------------------------------------------------------------------------------
# Reading


def lower_cased(text: str) -> str:
    """Returns a text in lower case as `EmbeddingSettings.lower_case` asks for, letter by letter: a capital
    sigma at the end of a word becomes the ordinary small sigma, not the final one."""
    return text.lower() if "\u03a3" not in text else "".join(map(str.lower, text))


def modules_folder(location: str) -> str | None:
    """Returns the folder of the modules.json for the weights at a location: their folder, or its parent if
    that names it as its Transformer. None if there is none."""
    folder = folder_of(location)
    if files.is_file(os.path.join(folder, MODULES)):
        return folder
    above = os.path.dirname(os.path.abspath(folder))
    is_module = "://" not in folder and files.is_file(os.path.join(above, MODULES))
    return above if is_module and transformer_folder(above) == os.path.abspath(folder) else None


def transformer_folder(folder: str) -> str:
    """Returns the folder of the Transformer in modules.json: a subfolder in older ones."""
    return next((place for kind, place in _modules(folder) if kind == "Transformer"), folder)


def _modules(folder: str) -> list[tuple[str, str]]:
    """Returns (class, with its package unless it is sentence-transformers' own; folder) of each module in
    modules.json. Raises ConfigError for a folder outside of the model's: a downloaded model could name any
    folder of this machine."""
    source, found = os.path.join(folder, MODULES), []
    modules = read(source, kind=list)
    names = [str(expect(module, "name", (str, type(None)), source, None)) for module in modules]
    if len(set(names)) < len(names):  # of which the last takes the place of the first
        raise ConfigError(f"{source}: modules have the same name: {', '.join(names)[:80]}. Rename one.")
    for module in modules:
        path = expect(module, "path", str, source, "")
        inside = os.path.normpath(path)
        if os.path.isabs(inside) or inside.split(os.sep)[0] == os.pardir:
            raise ConfigError(
                f"{source}: the path {path[:60]!r} leads out of the folder. Put the module into it."
            )
        place = folder if inside == os.curdir else os.path.join(folder, inside)
        found.append((kind_of_module(module), place))
    return found


def read_settings(location: str, lower_case: bool = False) -> EmbeddingSettings | None:
    """Reads the settings in the folder of a checkpoint; None if it is not an embedding model.

    Args:
      location: folder, file or prefix.
      lower_case: whether the tokenizer lower-cases.

    Raises:
      ConfigError: for unsupported modules, poolings or activations.
    """
    folder = modules_folder(location)
    if folder is None:
        return None
    values, path = read_where_there(folder, SENTENCE_TRANSFORMERS), os.path.join(folder, MODULES)
    if values.get("model_type") == "CrossEncoder":  # which computes scores, not vectors
        return None
    modules = _modules(folder)
    for module in read(path, kind=list):
        check_keys(module, MODULES, path)
    kinds, paths = [kind for kind, _ in modules], [place for _, place in modules]
    count = kinds.count("Dense")
    if kinds not in (usual := ["Transformer", "Pooling", *["Dense"] * count], [*usual, "Normalize"]):
        raise ConfigError(
            f"{path}: the modules {', '.join(kinds)[:200] or 'none'} are not supported, only Transformer,"
            " Pooling, any number of Dense and, last, Normalize."
        )
    pooling = read(os.path.join(paths[1], CONFIG), "Pooling/config.json")
    if kinds[-1] == "Normalize":  # whose folder is empty in older versions
        own = os.path.join(paths[-1], CONFIG)
        check_values(read_where_there(paths[-1], CONFIG, False), "Normalize/config.json", own)
    length, lowers = _transformer_settings(transformer_folder(folder))
    return EmbeddingSettings(
        pooling=_pooling_mode(pooling, os.path.join(paths[1], CONFIG)),
        normalize="Normalize" in kinds,
        max_seq_length=length,
        dense=tuple(map(_read_dense, paths[2 : 2 + count])),
        lower_case=lowers and not lower_case,
        include_prompt=pooling.get("include_prompt") is not False,
        **_prompts(values, os.path.join(folder, SENTENCE_TRANSFORMERS)),
    )


def _prompts(values: dict, path: str) -> dict[str, Any]:
    """Returns the settings `prompts`, `default_prompt_name` and `similarity` of a
    config_sentence_transformers.json."""
    prompts = expect(values, "prompts", (dict, type(None)), path, None) or {}
    prompts = {name: text or "" for name, text in prompts.items()}
    if wrong := [name for name, text in prompts.items() if not isinstance(text, str)]:
        raise ConfigError(f"{path}: the prompt {wrong[0][:60]!r} is not a text. Correct it.")
    default = expect(values, "default_prompt_name", (str, type(None)), path, None)
    if default is not None and default not in prompts:
        problem = f"is none of the prompts ({shortened(list(prompts)) or 'the file has none'})"
        raise ConfigError(f"{path}: default_prompt_name={default[:60]!r} {problem}. Correct it.")
    similarity = values.get("similarity_fn_name") or "cosine"
    check_one_of(f"{path}: similarity_fn_name={str(similarity)[:60]!r}", str(similarity), SIMILARITIES)
    return {"prompts": prompts, "default_prompt_name": default, "similarity": similarity}


def _pooling_mode(values: dict, path: str) -> str:
    asked = [mode for key, mode in _MODES.items() if values.get(f"pooling_mode_{key}") is True]
    told = values.get("pooling_mode", asked)
    modes = told if isinstance(told, list) else [told]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        shown = ", ".join(map(str, modes))[:90] or "no pooling"
        raise ConfigError(f"{path}: {shown}, expected one of {', '.join(POOLINGS)}.")
    return modes[0]


def _transformer_settings(folder: str) -> tuple[int | None, bool]:
    """Returns the maximum length of the Transformer, None if unset, and whether it lower-cases texts."""
    path = next(filter(files.is_file, (os.path.join(folder, name) for name in SENTENCE_SETTINGS)), None)
    values = read(path, SENTENCE_SETTINGS[0]) if path else {}
    check_model_arguments(values, str(path))
    length = values.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 3):
        raise ConfigError(
            f"{path}: max_seq_length={str(length)[:40]}, expected a number of tokens from 3 on."
        )
    return length, bool(expect(values, "do_lower_case", (bool, type(None)), str(path), None))


def _read_dense(folder: str) -> Dense:
    path = os.path.join(folder, CONFIG)
    values = read(path, "Dense/config.json")
    before, behind = (expect(values, key, int, path) for key in ("in_features", "out_features"))
    told = values.get("activation_function", ACTIVATIONS["tanh"])  # the module's own default
    name = next((name for name, own in ACTIVATIONS.items() if own == told), None)
    if name is None:
        allowed = ", ".join(own.rpartition(".")[2] for own in ACTIVATIONS.values())
        raise ConfigError(f"{path}: activation_function={str(told)[:80]} is not supported, only {allowed}.")
    return Dense(before, behind, expect(values, "bias", bool, path, True), name, folder)


# -----------------------------------------------------------------------------------------------------------
# Writing


def contents(settings: EmbeddingSettings, hidden_size: int) -> dict[str, bytes]:
    """Returns {path in a folder: content} of the files with the settings, without the encoder's own.

    Args:
      settings: its Dense modules name the folders of their weights, which are read.
      hidden_size: of the encoder.

    Raises:
      ConfigError: where the weights of a Dense module cannot be read.
    """
    kinds = ["Transformer", "Pooling", *["Dense"] * len(settings.dense), *["Normalize"] * settings.normalize]
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    modes = {f"pooling_mode_{key}": mode == settings.pooling for key, mode in _MODES.items()}
    length = {"max_seq_length": settings.max_seq_length} if settings.max_seq_length else {}
    values: dict[str, Any] = {
        MODULES: modules,
        f"1_Pooling/{CONFIG}": {
            "word_embedding_dimension": hidden_size,
            **modes,
            "include_prompt": settings.include_prompt,
        },
        SENTENCE_SETTINGS[0]: {**length, "do_lower_case": settings.lower_case},
        SENTENCE_TRANSFORMERS: {
            "prompts": dict(settings.prompts),
            "default_prompt_name": settings.default_prompt_name,
            "similarity_fn_name": settings.similarity,
        },
    }
    weights: dict[str, bytes] = {}
    for number, dense in enumerate(settings.dense, 2):
        kernel_IO, bias_O = dense.weights()
        tensors = {"linear.weight": kernel_IO.T, **({"linear.bias": bias_O} if dense.bias else {})}
        weights[f"{number}_Dense/{_WEIGHTS}"] = _safetensors_of(tensors)
        values[f"{number}_Dense/{CONFIG}"] = {
            "in_features": dense.in_features,
            "out_features": dense.out_features,
            "bias": dense.bias,
            "activation_function": ACTIVATIONS[dense.activation],
        }
    texts = {name: written(content).encode() for name, content in values.items()}
    return {**texts, **weights}


# -----------------------------------------------------------------------------------------------------------
# Weights of Dense modules
#
# PyTorch's pickles are parsed as lists of operations, and none of them is run: a call becomes its arguments.

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_STORAGES = {
    f"torch {name}Storage": kind for name, kind in zip(("Double", "Float", "Half", "BFloat16"), _TYPES)
}


def _numbers(content: bytes, kind: str) -> np.ndarray:
    """Returns float32 numbers of bytes of one of _TYPES."""
    values = np.frombuffer(content, _TYPES[kind])
    if kind == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def _safetensors(path: str) -> dict[str, np.ndarray]:
    import safetensors  # late: only Dense modules need it

    content = files.read_bytes(path, path)
    try:
        return {
            name: _numbers(entry["data"], entry["dtype"]).reshape(entry["shape"])
            for name, entry in safetensors.deserialize(content)
        }
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ConfigError(f"{path} is damaged ({str(error)[:100]}). Restore the file.") from None


def _safetensors_of(tensors: Mapping[str, np.ndarray]) -> bytes:
    from safetensors.numpy import save  # late: only Dense modules need it

    return save({name: np.ascontiguousarray(values) for name, values in tensors.items()}, {"format": "pt"})


_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_STORED = ("BINPUT", "LONG_BINPUT", "MEMOIZE")
_SKIPPED = ("PROTO", "STOP", "BINPERSID")  # the last names a storage by the tuple that is on the stack


def _unpickled(stream: BinaryIO) -> Any:
    """Returns the value of one pickle, with calls (except of an empty dictionary) as tuples of their
    arguments, and names as texts. Raises ValueError for operations that weights do not need."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def behind_mark() -> list[Any]:
        first = marks.pop()
        found = stack[first:]
        del stack[first:]
        return found

    value: Any
    for operation, value, _ in pickletools.genops(stream):
        name = operation.name
        if name in _SKIPPED:
            continue
        if name in _STORED:
            memo[len(memo) if value is None else value] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(behind_mark()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack[-int(name[-1]) :] = [tuple(stack[-int(name[-1]) :])]
        elif name in ("SETITEM", "SETITEMS"):
            pairs = behind_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            stack[-1].update(zip(_texts(pairs[::2]), pairs[1::2]))
        elif name in ("APPEND", "APPENDS"):
            values = behind_mark() if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(values)
        elif name == "REDUCE":
            arguments, called = stack.pop(), stack.pop()
            stack.append({} if called == "collections OrderedDict" else arguments)
        elif name == "BUILD":  # attributes: of versions of modules
            stack.pop()
        elif value is not None:
            stack.append(value)
        else:
            raise ValueError(f"it has the operation {name}, which no weights need")
    return stack[-1]


def _texts(names: list[Any]) -> list[str]:
    """Returns names. Raises ValueError for what is no text: tuples of tuples may take forever to hash."""
    if not all(isinstance(name, str) for name in names):
        raise ValueError("a name is not a text")
    return names


def _torch_tensors(path: str) -> dict[str, np.ndarray]:
    """Reads a state_dict that PyTorch saved: a ZIP file, or before 1.6 pickles one behind the other."""
    stream = io.BytesIO(files.read_bytes(path, path))
    storages: dict[str, np.ndarray] = {}
    try:
        if zipfile.is_zipfile(stream):
            with zipfile.ZipFile(stream) as archive:
                if any(file.compress_type or file.flag_bits & 1 for file in archive.infolist()):
                    raise ValueError("it is compressed or encrypted")  # and may become any size
                name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
                found = _unpickled(io.BytesIO(archive.read(name)))
                for key, kind in _types_of_storages(found).items():
                    content = archive.read(f"{name.removesuffix('.pkl')}/{key}")
                    storages[key] = _numbers(content, kind)
        else:
            stream.seek(0)
            for _ in range(3):  # a magic number, the version, sizes of types
                _unpickled(stream)
            found, keys = _unpickled(stream), _unpickled(stream)
            kinds = _types_of_storages(found)
            for key in _texts(keys):
                (count,) = struct.unpack("<q", stream.read(8))
                content = stream.read(count * np.dtype(_TYPES[kinds[key]]).itemsize)
                storages[key] = _numbers(content, kinds[key])
        return {
            name: _strided(storages[key], offset, shape, strides)
            for name, ((_, _, key, *_), offset, shape, strides, *_) in found.items()
        }
    except (zipfile.BadZipFile, struct.error, *_DAMAGED) as error:
        raise ConfigError(f"{path} cannot be read ({str(error)[:100]}). Save it as {_WEIGHTS}.") from None


def _types_of_storages(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Returns {key of a storage: its type, of _TYPES}."""
    named = [_texts([key, kind]) for (_, kind, key, *_), *_ in tensors.values()]
    return {key: _STORAGES[kind] for key, kind in named}


_DAMAGED = (
    *(ValueError, KeyError, TypeError, AttributeError, EOFError, IndexError, StopIteration),
    *(OverflowError, RuntimeError),
)


def _strided(values: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """Returns a strided view of a storage. Raises ValueError if it is empty or goes beyond the storage."""
    if min(shape, default=1) < 1 or math.prod(shape) > len(values):
        raise ValueError("a tensor is empty, or larger than its storage")
    places = [np.arange(size) * stride for size, stride in zip(shape, strides, strict=True)]
    found = functools.reduce(np.add.outer, places, np.array(offset))
    if not 0 <= found.min() <= found.max() < len(values):
        raise ValueError("a tensor reaches beyond its storage")
    return values[found]
