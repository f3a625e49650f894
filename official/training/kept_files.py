"""Files kept beside the weights in a run's folder: vocabulary and label names, which give the weights their
meaning, and the settings."""

from __future__ import annotations

import os
import shlex

import tensorflow as tf

from official import config as config_lib
from official.config import Config
from official.io import writing
from official.io.errors import ConfigError
from official.io.json_files import parse_json

_FLAGS = {"vocab.txt": "vocab_file", "tokenizer_config.json": "do_lower_case", "labels.json": "glue_task"}


def missing(model_dir: str, wanted: dict[str, bytes]) -> dict[str, bytes]:
    """Returns the part of {name: content} that a run's folder lacks.

    Raises:
      ConfigError: where a file is there with other content: the weights there belong to another vocabulary,
        or other labels.
    """
    found = {name: b"".join(writing.read_lines(os.path.join(model_dir, name))) for name in wanted}
    for name, content in found.items():
        if content and not _says_the_same(name, content, wanted[name]):
            flag = _FLAGS[name]
            raise ConfigError(
                f"--{flag} is not that of the run in --model_dir={model_dir}, which keeps its own in {name}."
                f" Change --{flag}, or give another --model_dir; where there is no run, remove {name}."
            )
    return {name: wanted[name] for name, content in found.items() if not content}


def write(model_dir: str, contents: dict[str, bytes]) -> None:
    """Writes files, each whole or not at all. Raises OSError."""
    for name, content in contents.items():
        writing.replace_file(os.path.join(model_dir, name), content)


def write_settings(config: Config, command: list[str]) -> None:
    """Writes the settings asked for and the command line. An evaluation leaves the settings of the run
    alone."""
    path = os.path.join(config.model_dir, "config.json")
    if config.do_train or not tf.io.gfile.exists(path):
        writing.replace_file(path, config_lib.to_json(config))
        writing.replace_file(os.path.join(config.model_dir, "command.txt"), shlex.join(command) + "\n")


def _says_the_same(name: str, there: bytes, wanted: bytes) -> bool:
    """Compares text byte by byte, and JSON by the keys that both have: another version may write more."""
    if not name.endswith(".json"):
        return there == wanted
    old, new = parse_json(there, name), parse_json(wanted, name)
    return all(old[key] == new[key] for key in old.keys() & new.keys())
