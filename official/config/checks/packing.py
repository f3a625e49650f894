"""Checks of what is said about packed rows."""

from __future__ import annotations

from official.config.derived import pack_depth
from official.config.table import Config
from official.io.errors import ConfigError


def check_packing(config: Config) -> None:
    """Refuses numbers of sequences a row that contradict each other, or that nothing would read, rows that
    are to be packed and cut short, and a static mask where it cannot be."""
    _check_static_mask(config)
    if config.pack and config.length_buckets == "always":
        raise ConfigError(
            "pack fills rows of --max_seq_length tokens, length_buckets=always cuts rows to their longest"
            " sequence. Drop --pack, or --length_buckets."
        )
    average = config.average_sequences_per_pack
    packs = config.pack or config.pack_on_the_fly
    if packs and average and average > pack_depth(config):
        raise ConfigError(
            f"average_sequences_per_pack={average:g} is above max_sequences_per_pack={pack_depth(config)}."
            " Lower the one or raise the other."
        )
    may_be_packed = config.task == "pretrain" and not config.use_synthetic_data  # the files tell
    for name in ("max_sequences_per_pack", "average_sequences_per_pack"):
        if config[name] and not (packs or may_be_packed):
            flag = "--pack_on_the_fly" if config.task == "pretrain" else "--pack"
            raise ConfigError(f"{name}={config[name]:g} needs {flag}. Give it, or drop --{name}.")


def _check_static_mask(config: Config) -> None:
    if not config.static_mask:
        return
    if config.pack_on_the_fly:
        raise ConfigError(
            "static_mask takes rows as they stand, pack_on_the_fly joins them. Drop one of the two flags."
        )
    if config.model.block_type != "bert":
        raise ConfigError(
            "static_mask takes the predicted tokens from between their neighbours, which"
            f" block_type={config.model.block_type} looks at. Drop --static_mask."
        )
    for name in ("max_sequences_per_pack", "average_sequences_per_pack"):
        if config[name]:
            raise ConfigError(
                f"{name}={config[name]:g}, but static_mask reads rows of one sequence. Drop --{name}."
            )
