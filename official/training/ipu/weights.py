"""Initial weights from a checkpoint by names: this project's, or Google's."""

from __future__ import annotations

from absl import logging

from official.checkpoint import DamagedError, bundle_reader
from official.checkpoint.canonical import compare_names
from official.io.errors import ConfigError, describe_names

_ENCODER = ("bert/", "LayerNorm/")  # the latter is the norm behind prenorm blocks


def initialize(variables: dict, path: str) -> list[str]:
    """Assigns the model's variables from a checkpoint. Returns the names of those that it does not have:
    heads, which stay fresh.

    Args:
      variables: {name: variable} of the model.
      path: prefix of a TensorFlow checkpoint that has its variables by Google's names.

    Raises:
      ConfigError: where a variable of the encoder is missing or has another shape, or there is no such
        checkpoint.
    """
    try:
        with bundle_reader.open_reader(path) as reader:
            found = bundle_reader.shapes(reader)
            wanted = {name: tuple(variable.shape) for name, variable in variables.items()}
            fresh = [name for name in wanted if name not in found and not name.startswith(_ENCODER)]
            wanted = {name: shape for name, shape in wanted.items() if name not in fresh}
            problems = compare_names(wanted, {name: found[name] for name in wanted if name in found})
            if problems:
                raise ConfigError(
                    f"init_checkpoint {path} does not fit the model. {describe_names(problems)}. Change"
                    " --init_checkpoint, or convert it with bert convert.",
                    problems,
                )
            for name in wanted:
                variables[name].assign(reader.get_tensor(name))
    except DamagedError as error:
        raise ConfigError(
            f"--init_checkpoint={path}: no checkpoint by names ({error}). Convert other formats with bert"
            " convert first."
        ) from None
    logging.info(
        "Initial weights: %d variables from %s; started fresh: %s", len(wanted), path, fresh or "none"
    )
    return fresh
