"""Checks of what is exported when a run has ended."""

from __future__ import annotations

from official.config.backends import BACKENDS
from official.config.table import Config
from official.io import record_paths
from official.io.errors import ConfigError


def check_export(config: Config) -> None:
    """Refuses an export of what has no text, of several runs, and of runs by a program of its own."""
    if not config.export_dir:
        return
    if not (config.plan or config.vocab_file or _have_records_one(config)):
        raise ConfigError(
            "export_dir needs the vocabulary: an export takes text. Give --vocab_file=PATH, or drop"
            " --export_dir."
        )
    if config.num_runs > 1:
        raise ConfigError(
            f"export_dir takes the weights of one run, num_runs={config.num_runs}. Drop one of the two flags,"
            " and export the run that you choose with bert export."
        )
    if BACKENDS[config.distribution_strategy].program:
        raise ConfigError(
            f"export_dir is not for --distribution_strategy={config.distribution_strategy}. Drop it, and"
            " export the run with bert export."
        )


def _have_records_one(config: Config) -> bool:
    """Tells whether a vocabulary lies beside the records of a run."""
    if config.task != "pretrain" or not config.input_files:
        return False
    files = record_paths.find_files(config.input_files, "input_files")
    return record_paths.find_vocabulary(files) is not None
