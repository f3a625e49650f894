"""Which formats there are, and which of them a path holds."""

import dataclasses
import math
import re
from types import ModuleType

import numpy as np

from official.checkpoint import reading
from official.checkpoint.formats import (
    bundle,
    canonical,
    garden,
    google,
    graphcore,
    hf_folder,
    huggingface,
    keras,
    object_bundle,
    onnx_file,
    popart,
    research,
    table,
)
from official.checkpoint.formats.options import Options
from official.checkpoint.formats.table import Mapped
from official.checkpoint.formats.tensors import Tensors, is_float
from official.config import BertConfig, ConfigError, suggest
from official.io.errors import describe_names, shortened

# {name: (names of tensors, kind of files)}
FORMATS: dict[str, tuple[ModuleType, ModuleType]] = {
    "google": (google, bundle),
    "graphcore": (graphcore, bundle),
    "research": (research, bundle),
    "keras": (keras, bundle),
    "garden": (garden, object_bundle),
    "huggingface": (huggingface, hf_folder),
    "popart": (popart, onnx_file),
}

# What tells bundles apart, tried from top to bottom: a name that only this format has.
_BUNDLES = (
    ("research", r"all/.*"),
    (
        "graphcore",
        r".*(/attention/projection/|/qkv_bias|/qkv_weight|embeddings/s\d+/|_step_counter$|/prenorm/|^glue_loss/).*",
    ),
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
          ConfigError: listing all names that the format does not have, or all tensors that an encoder, or a
            head that is there in part, needs and that are missing or of the wrong shape; also for weights
            that are no floating-point numbers.
        """
        mapped = FORMATS[self.format][0].to_canonical(self.tensors, options)
        if mapped.unmatched:
            unknown = sorted(mapped.unmatched)
            raise ConfigError(
                f"{self.location} is no {self.title} checkpoint of BERT: unknown names {shortened(unknown)}.",
                {"unknown": unknown},
            )
        check_types(mapped.tensors, self)
        problems = encoder_problems(mapped.tensors)
        if problems:
            raise ConfigError(
                f"{self.location} ({self.title}) is not a whole encoder. {describe_names(problems)}.",
                problems,
            )
        return mapped

    @property
    def title(self) -> str:
        return FORMATS[self.format][0].TITLE

    @property
    def heads(self) -> int | None:
        """The number of attention heads that shapes tell; None where they do not."""
        return getattr(FORMATS[self.format][0], "heads_of", lambda tensors: None)(self.tensors)

    @property
    def usual_activation(self) -> str:
        """The activation that models of this format have where no configuration says it."""
        return getattr(FORMATS[self.format][0], "ACTIVATION", BertConfig.hidden_act)


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
    shown = shortened(names) if names else "none"
    raise ConfigError(
        f"{location} is no BERT checkpoint of a known format; its tensors: {shown}.", {"tensors": names}
    )


def get_format(name: str) -> tuple[ModuleType, ModuleType]:
    if name not in FORMATS:
        raise ConfigError(
            f"unknown checkpoint format {name!r}{suggest(name, FORMATS)}. Allowed: {', '.join(FORMATS)}."
        )
    return FORMATS[name]


def check_types(mapped: Tensors, checkpoint: Checkpoint) -> None:
    """Raises ConfigError where a weight or an optimizer slot, under canonical names, is read from something
    else than floats."""
    wrong = [
        f"{name} ({tensor.dtype.name})"
        for name, tensor in _read_from(mapped, checkpoint).items()
        if not is_float(tensor)
    ]
    if wrong:
        raise ConfigError(
            f"{checkpoint.location}: weights must be floating-point numbers; these are not:"
            f" {shortened(sorted(wrong))}. Save the model unquantized where it comes from."
        )


def check_finite(mapped: Tensors, checkpoint: Checkpoint) -> None:
    """Reads the tensors that canonical ones are read from, one after the other. Raises ConfigError where one
    holds NaN or infinity."""
    bad = [
        name
        for name, tensor in _read_from(mapped, checkpoint).items()
        if not np.isfinite(tensor.read()).all()
    ]
    if bad:
        raise ConfigError(
            f"{checkpoint.location} holds NaN or infinite numbers in {shortened(sorted(bad))}. Give a"
            " checkpoint from before."
        )


def _read_from(mapped: Tensors, checkpoint: Checkpoint) -> Tensors:
    """Returns the file's own tensors behind canonical weights and slots; one that is not known by its name
    there stands for itself."""
    found = {}
    for name, tensor in mapped.items():
        if name not in canonical.COUNTERS:
            found |= {source: checkpoint.tensors.get(source, tensor) for source in tensor.sources or (name,)}
    return found


def size_of(tensors: Tensors) -> dict:
    """Returns {tensors, parameters, bytes}: how many tensors, numbers and bytes."""
    return {
        "tensors": len(tensors),
        "parameters": sum(math.prod(tensor.shape) for tensor in tensors.values()),
        "bytes": sum(tensor.nbytes for tensor in tensors.values()),
    }


def encoder_problems(tensors: Tensors) -> dict[str, list[str]]:
    """Returns what is missing or of the wrong shape, {what is wrong: names}: in the encoder, and in heads
    that are there in part.

    Of GroupBERT's layers, whose groups and inner sizes the names do not tell, names and numbers of dimensions
    are checked.
    """
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    layers = table.layers_of(tensors)
    expected = _expected_shapes(shapes, layers)
    gone = [name for name in canonical.EMBEDDINGS if name not in shapes]
    bent = [name for name in expected if len(shapes.get(name, expected[name])) != canonical.rank_of(name)]
    problems = {"Missing": gone} if gone else {}
    problems |= {} if layers else {"No layer": []}
    if bent:
        problems["of another number of dimensions"] = [
            f"{name} {list(shapes[name])} must have {canonical.rank_of(name)}" for name in sorted(bent)
        ]
    compared = {name: shape for name, shape in expected.items() if name not in gone and name not in bent}
    return problems | reading.compare_names(
        compared, {name: shapes[name] for name in compared if name in shapes}
    )


def _expected_shapes(shapes: dict[str, tuple], layers: int) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of what must be there; where a shape cannot be known, it is the one that the
    checkpoint has."""
    groupbert = any("/convolution/" in name for name in shapes)
    has_pooler = any(name in shapes for name in canonical.POOLER)  # Hugging Face's masked-LM models have none
    encoder = [
        name
        for name in (canonical.GROUPBERT if groupbert else canonical.ENCODER)
        if has_pooler or name not in canonical.POOLER
    ]
    names = [
        name.replace("{layer}", str(layer))
        for name in encoder
        for layer in (range(layers) if "{layer}" in name else (0,))
    ]
    names += [
        name
        for some, group in canonical.HEAD_GROUPS
        if any(member in shapes for member in some)
        for name in group
    ]
    sizes = _sizes(shapes)

    def is_known(name: str) -> bool:
        return sizes is not None and not (groupbert and name.startswith("bert/encoder/"))

    return {
        name: (
            canonical.shape_of(name, sizes)
            if is_known(name)
            else shapes.get(name, (0,) * canonical.rank_of(name))
        )
        for name in names
    }


def _sizes(shapes: dict[str, tuple]) -> canonical.Sizes | None:
    """Returns the sizes that the tensors tell; None where the word embeddings tell none."""
    if len(shapes.get("bert/embeddings/word_embeddings", ())) != 2:
        return None
    words, hidden = shapes["bert/embeddings/word_embeddings"]

    def rows(name: str, default: int) -> int:
        return (*shapes.get(name, ()), default)[0]

    return canonical.Sizes(
        words,
        hidden,
        inner=rows("bert/encoder/layer_0/intermediate/dense/bias", 4 * hidden),
        positions=rows("bert/embeddings/position_embeddings", 0),
        types=rows("bert/embeddings/token_type_embeddings", 0),
        classes=rows("output_weights", rows("output_bias", 2)),
    )
