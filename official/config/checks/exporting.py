"""Checks of what is exported when a run has ended."""

from __future__ import annotations

from official.config.backends import BACKENDS
from official.config.table import Config
from official.io.errors import ConfigError


def check_export(config: Config) -> None:
    """Refuses an export of what has no text, of several runs, and of runs by a program of its own."""
    if not config.export_dir:
        return
    may_lie_beside_records = config.task == "pretrain" and config.input_files  # the task looks there
    if not (config.plan or config.vocab_file or may_lie_beside_records):
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
