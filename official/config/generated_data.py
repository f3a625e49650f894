"""Fills in the files of a run on generated data."""

from __future__ import annotations

from official.config.table import Config, replaced
from official.io import files
from official.io.errors import ConfigError

_FILES = ("input_files", "eval_files", "train_file", "predict_file", "data_dir")


def with_made_up_data(config: Config) -> Config:
    """Returns the configuration without the files that --generated_data or --synthetic_input stand for.

    A configuration underneath may name files that are not on this machine. --compile_only without files that
    are there generates data: shapes and steps follow from them. A vocabulary that is there is kept; where it
    is not, words are made up, too.
    """
    is_made_up = config.use_synthetic_data or config.synthetic_input
    if config.compile_only and not is_made_up and not _has_files(config):
        config = replaced(config, generated_data=True)
    if not (config.generated_data or config.synthetic_input):
        return config
    config = replaced(config, **dict.fromkeys(_FILES))
    if config.synthetic_input:
        config = replaced(config, use_synthetic_data=True)
    if config.vocab_file and not _is_there(config.vocab_file):
        config = replaced(config, vocab_file=None, do_lower_case=None)
    return config


def _has_files(config: Config) -> bool:
    """Tells whether files of data are given, and all that are given are there."""
    given = [config[name] for name in _FILES if config[name]]
    try:
        return bool(given) and all(files.find_files(pattern, "") for pattern in given)
    except ConfigError:
        return False


def _is_there(path: str) -> bool:
    try:
        return files.is_file(path) or files.is_folder(path)
    except OSError:
        return False
