"""Initial weights from a checkpoint of any known format: the encoder strictly, heads where the checkpoint has them."""

import dataclasses
import re

import tensorflow as tf

from official.checkpoint import reading
from official.checkpoint.formats import canonical, registry
from official.checkpoint.formats.options import Options
from official.config import ConfigError
from official.io.errors import describe_names

ENCODER_SCOPE = "bert/"
CLASSIFIER = ("output_weights", "output_bias")  # the head of a GLUE task, [C, D] and [C]; its classes are those of one task
_ENCODER_NAME = re.compile(r"(^|[/.])(bert|encoder|embeddings|transformer)[/.]|^(Layer\d+|Embedding)/")  # in any format


@dataclasses.dataclass(frozen=True)
class InitReport:
    """What an initial checkpoint gave: its format and place, names read, names that started fresh, names that it had and are not used."""

    title: str
    location: str
    read: list[str]
    fresh: list[str]
    dropped: list[str]

    def describe(self) -> str:
        text = f"Initial weights: {len(self.read)} variables from {self.location} ({self.title})"
        if self.fresh:
            text += f"; started fresh: {', '.join(self.fresh)}"
        if self.dropped:
            text += f"; not used: {len(self.dropped)} optimizer slots, counters or other heads"
        return text


def initialize(variables: dict[str, tf.Variable], path: str, num_attention_heads: int | None = None) -> InitReport:
    """Assigns the model's variables from a checkpoint.

    Args:
      variables: {name: variable} of the model.
      path: prefix, file or folder, of any format of `registry.FORMATS`.
      num_attention_heads: of the model; compared with the checkpoint's where that tells them, as Model Garden's does.

    Raises:
      ConfigError: where a variable of the encoder is missing, unexpected or of another shape; all such names are in its details.
        Also where a head other than a classifier's is there with another shape, the attention heads differ in number, or the file is unreadable.
    """
    checkpoint = registry.open_checkpoint(path, "--init_checkpoint")
    try:
        return _assign(variables, checkpoint, num_attention_heads)
    except reading.DamagedError as error:
        raise ConfigError(f"--init_checkpoint={path}: unreadable checkpoint ({error}).") from None


def _assign(variables: dict[str, tf.Variable], checkpoint: registry.Checkpoint, num_attention_heads: int | None) -> InitReport:
    names = registry.FORMATS[checkpoint.format][0]
    _check_heads(getattr(names, "heads_of", lambda tensors: None)(checkpoint.tensors), num_attention_heads, checkpoint.location)
    mapped = names.to_canonical(checkpoint.tensors, Options())
    found = {name: tensor for name, tensor in mapped.tensors.items() if not _is_state(name)}
    strange = {name: checkpoint.tensors[name].shape for name in mapped.unmatched if _ENCODER_NAME.search(name)}
    wanted = {name: tuple(variable.shape) for name, variable in variables.items()}
    fresh = _check(wanted, {name: tensor.shape for name, tensor in found.items()}, strange, checkpoint.location)
    read = sorted(set(wanted) - fresh)
    for name in read:
        variables[name].assign(tf.cast(found[name].read(), variables[name].dtype))
    unused = {*mapped.tensors, *mapped.dropped, *mapped.unmatched} - set(read)
    return InitReport(checkpoint.title, checkpoint.location, read, sorted(fresh), sorted(unused))


def _check_heads(found: int | None, wanted: int | None, location: str) -> None:
    """Raises where the attention is split otherwise: the shapes would fit, and the model would compute something else."""
    if found is not None and wanted is not None and found != wanted:
        raise ConfigError(f"init_checkpoint {location} has {found} attention heads, the model has num_attention_heads={wanted}. Change "
                          "--init_checkpoint or --bert_config_file.")


def _check(wanted: dict, found: dict, strange: dict, location: str) -> set[str]:
    """Returns the names outside the encoder that the checkpoint lacks, or has for another number of classes; raises for all else that does not fit."""
    encoder = {name: shape for name, shape in wanted.items() if name.startswith(ENCODER_SCOPE)}
    unexpected = {name: shape for name, shape in strange.items() if name not in encoder}
    problems = reading.compare_names(encoder, {name: shape for name, shape in found.items() if name.startswith(ENCODER_SCOPE)} | unexpected)
    heads = {name: shape for name, shape in wanted.items() if name not in encoder}
    same_classes = all(tuple(found[name]) == tuple(heads[name]) for name in CLASSIFIER if name in heads and name in found)
    shared = {name: found[name] for name in heads if name in found and (same_classes or name not in CLASSIFIER)}
    for kind, names in reading.compare_names({name: heads[name] for name in shared}, shared).items():
        problems[kind] = problems.get(kind, []) + names
    if problems:
        raise ConfigError(f"init_checkpoint {location} does not fit the model. {describe_names(problems)}. Change --init_checkpoint or "
                          "--bert_config_file.", problems)
    return set(heads) - set(shared)


def _is_state(name: str) -> bool:
    return name in canonical.COUNTERS or name.rpartition("/")[2] in canonical.SLOTS
