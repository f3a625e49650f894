"""Which formats there are, and which of them a path holds."""

import dataclasses
import math
import re
from types import ModuleType

from official.checkpoint import reading
from official.checkpoint.formats import (
    bundle, canonical, garden, google, graphcore, hf_folder, huggingface, keras, object_bundle, onnx_file, popart, research, table)
from official.checkpoint.formats.options import Options
from official.checkpoint.formats.table import Mapped
from official.checkpoint.formats.tensors import Tensors
from official.config import ConfigError, suggest

# {name: (names of tensors, kind of files)}
FORMATS: dict[str, tuple[ModuleType, ModuleType]] = {
    "google": (google, bundle), "graphcore": (graphcore, bundle), "research": (research, bundle), "keras": (keras, bundle),
    "garden": (garden, object_bundle), "huggingface": (huggingface, hf_folder), "popart": (popart, onnx_file),
}

# What tells bundles apart, tried from top to bottom: a name that only this format has.
_BUNDLES = (
    ("research", r"all/.*"),
    ("graphcore", r".*(/attention/projection/|/qkv_bias|/qkv_weight|embeddings/s\d+/|_step_counter$|/prenorm/|^glue_loss/).*"),
    ("keras", r"samples|.*/lamb_[mv]"),
    ("google", r"bert/.*"),
)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose tensors have not been read yet.

    Attributes:
      format: its name in FORMATS.
      location: prefix, folder or file.
      tensors: under the format's own names.
    """

    format: str
    location: str
    tensors: Tensors

    def to_canonical(self, options: Options = Options()) -> Mapped:
        """Returns the tensors under canonical names.

        Raises:
          ConfigError: listing all names that the format does not have, or all tensors that an encoder needs and that are missing
            or of the wrong shape.
        """
        mapped = FORMATS[self.format][0].to_canonical(self.tensors, options)
        if mapped.unmatched:
            raise ConfigError(f"{self.location} is no {self.title} checkpoint of BERT: unknown names {', '.join(sorted(mapped.unmatched))}.")
        problems = encoder_problems(mapped.tensors)
        if problems:
            raise ConfigError(f"{self.location} ({self.title}) is not a whole encoder. {'. '.join(problems)}.")
        return mapped

    @property
    def title(self) -> str:
        return FORMATS[self.format][0].TITLE


def open_checkpoint(path: str, label: str, format_name: str | None = None) -> Checkpoint:
    """Finds out what a path holds and opens it, without reading a tensor.

    Args:
      path: prefix, folder or file; of a folder of TensorFlow checkpoints, the newest.
      label: what gave the path, for messages: --init_checkpoint or PATH.
      format_name: of FORMATS, where it is known.

    Raises:
      ConfigError: where there is no checkpoint, or it is damaged.
    """
    try:
        return _open(path, label, format_name)
    except reading.DamagedError as error:
        raise ConfigError(f"{label}={path}: unreadable checkpoint ({error}).") from None


def _open(path: str, label: str, format_name: str | None) -> Checkpoint:
    if format_name is not None:
        container = get_format(format_name)[1]
        location = container.locate(path)
        if location is None:
            raise ConfigError(f"{label}={path} has no checkpoint in the form of {format_name}.")
        return Checkpoint(format_name, location, container.read(location))
    for name in ("huggingface", "popart", "garden"):
        container = FORMATS[name][1]
        location = container.locate(path)
        if location is not None:
            return Checkpoint(name, location, container.read(location))
    location = reading.find_prefix(path, label)
    tensors = bundle.read(location)
    return Checkpoint(_kind_of_bundle(tensors, location), location, tensors)


def _kind_of_bundle(tensors: Tensors, location: str) -> str:
    for name, pattern in _BUNDLES:
        if any(re.fullmatch(pattern, tensor) for tensor in tensors):
            return name
    names = sorted(tensors)
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    raise ConfigError(f"{location} is no BERT checkpoint of a known format; its tensors: {shown or 'none'}.")


def get_format(name: str) -> tuple[ModuleType, ModuleType]:
    if name not in FORMATS:
        raise ConfigError(f"unknown checkpoint format {name!r}{suggest(name, FORMATS)}. Allowed: {', '.join(FORMATS)}.")
    return FORMATS[name]


def size_of(tensors: Tensors) -> dict:
    """Returns {tensors, parameters, bytes}: how many tensors, numbers and bytes."""
    return {"tensors": len(tensors), "parameters": sum(math.prod(tensor.shape) for tensor in tensors.values()),
            "bytes": sum(tensor.nbytes for tensor in tensors.values())}


def encoder_problems(tensors: Tensors) -> list[str]:
    """Returns what is missing or of the wrong shape in the encoder, one phrase each; BERT only, GroupBERT's layers are not checked."""
    layers = table.layers_of(tensors)
    missing = [name for name in canonical.EMBEDDINGS if name not in tensors]
    if missing or any("/convolution/" in name for name in tensors):
        return [f"Missing: {', '.join(missing)}"] if missing else []
    expected = _expected_shapes(tensors, layers)
    found = {name: tensor.shape for name, tensor in tensors.items() if name in expected}
    if not any(name in tensors for name in canonical.POOLER):  # Hugging Face's masked-LM models have none
        expected = {name: shape for name, shape in expected.items() if name not in canonical.POOLER}
    return reading.compare_names(expected, found) if layers else ["No layer"]


def _expected_shapes(tensors: Tensors, layers: int) -> dict[str, tuple[int, ...]]:
    words, hidden = tensors["bert/embeddings/word_embeddings"].shape
    inner_name = "bert/encoder/layer_0/intermediate/dense/bias"
    inner = tensors[inner_name].shape[0] if inner_name in tensors else 4 * hidden
    shapes = {
        "bert/embeddings/word_embeddings": (words, hidden),
        "bert/embeddings/token_type_embeddings": (tensors["bert/embeddings/token_type_embeddings"].shape[0], hidden),
        "bert/embeddings/position_embeddings": (tensors["bert/embeddings/position_embeddings"].shape[0], hidden),
        "bert/pooler/dense/kernel": (hidden, hidden),
    }
    for name in canonical.ENCODER:
        if "intermediate/dense" in name:
            shape = (inner,) if name.endswith("bias") else (hidden, inner)
        elif "/output/dense/kernel" in name:
            shape = (hidden, hidden) if "attention" in name else (inner, hidden)
        else:
            shape = (hidden, hidden) if name.endswith("kernel") else (hidden,)
        for layer in range(layers) if "{layer}" in name else (0,):
            shapes.setdefault(name.replace("{layer}", str(layer)), shape)
    return shapes
