"""Initial weights from a checkpoint: the encoder strictly, heads where the checkpoint has them."""

import dataclasses

import tensorflow as tf

from official.checkpoint import reading
from official.config import ConfigError

ENCODER_SCOPE = "bert/"
_COUNTERS = ("global_step", "samples", "loss_scale/")


@dataclasses.dataclass(frozen=True)
class InitReport:
    """What an initial checkpoint gave: its prefix, names read, names that started fresh, names that it had and are not used."""

    prefix: str
    read: list[str]
    fresh: list[str]
    dropped: list[str]

    def describe(self) -> str:
        text = f"Initial weights: {len(self.read)} variables from {self.prefix}"
        if self.fresh:
            text += f"; started fresh: {', '.join(self.fresh)}"
        if self.dropped:
            text += f"; not used: {len(self.dropped)} optimizer slots, counters or other heads"
        return text


def initialize(variables: dict[str, tf.Variable], path: str) -> InitReport:
    """Assigns the model's variables from a checkpoint.

    Args:
      variables: {name: variable} of the model.
      path: prefix or folder.

    Raises:
      ConfigError: where a variable of the encoder is missing, unexpected or of another shape; all such names are listed.
        Also where a head is there with another shape, or the file is unreadable.
    """
    prefix = reading.find_prefix(path, "init_checkpoint")
    wanted = {name: tuple(variable.shape) for name, variable in variables.items()}
    try:
        with reading.open_checkpoint(prefix) as reader:
            found = reading.shapes(reader)
            fresh = _check(wanted, found, prefix)
            values = {name: reader.get_tensor(name) for name in wanted if name not in fresh}
    except reading.DamagedError as error:
        raise ConfigError(f"--init_checkpoint={path}: unreadable checkpoint ({error}).") from None
    for name, value in values.items():
        variables[name].assign(tf.cast(value, variables[name].dtype))
    return InitReport(prefix, sorted(values), sorted(fresh), sorted(set(found) - set(values)))


def _check(wanted: dict, found: dict, prefix: str) -> set[str]:
    """Returns the names outside the encoder that the checkpoint lacks; raises for everything that does not fit."""
    weights = {name: shape for name, shape in found.items() if not _is_state(name)}
    encoder = {name: shape for name, shape in wanted.items() if name.startswith(ENCODER_SCOPE)}
    problems = reading.compare_names(encoder, {name: shape for name, shape in weights.items() if name.startswith(ENCODER_SCOPE)})
    heads = {name: shape for name, shape in wanted.items() if name not in encoder}
    shared = {name: weights[name] for name in heads if name in weights}
    problems += reading.compare_names({name: heads[name] for name in shared}, shared)
    if problems:
        raise ConfigError(f"init_checkpoint {prefix} does not fit the model. {'. '.join(problems)}. Change --init_checkpoint or "
                          "--bert_config_file.")
    return set(heads) - set(shared)


def _is_state(name: str) -> bool:
    return name.startswith(_COUNTERS) or bool(reading.OPTIMIZER_SLOT.search(name))
