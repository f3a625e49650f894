"""Checks of what is said about packed rows."""

from __future__ import annotations

from official.config.backends import BACKENDS
from official.config.derived import pack_depth
from official.config.table import Config
from official.io.errors import ConfigError


def check_packing(config: Config) -> None:
    """Refuses numbers of sequences a row that contradict each other, or that nothing would read, rows that
    are to be packed and cut short, and a static mask, or no padding, where that cannot be."""
    _check_static_mask(config)
    _check_unpad(config)
    _check_span_places(config)
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


def _check_span_places(config: Config) -> None:
    """Refuses to train with padding that is not there, or that lies between sequences."""
    for name in ("unpad", "pack"):
        if config.span_places == "row" and config.do_train and config[name]:
            raise ConfigError(
                f"span_places=row counts the padding behind a sequence, {name} leaves none there. Drop"
                f" --{name}, or give --span_places=tokens."
            )


def _check_unpad(config: Config) -> None:
    """Refuses to leave out padding where there is next to none, or where sizes cannot follow the tokens."""
    if not config.unpad:
        return
    for name in ("pack", "pack_on_the_fly"):
        if config[name]:
            raise ConfigError(
                f"unpad leaves out the padding of rows of one sequence, {name} fills rows with several. Drop"
                " one of the two flags."
            )
    backend = BACKENDS[config.distribution_strategy]
    packs = "--pack_on_the_fly" if config.task == "pretrain" else "--pack"
    if config.enable_xla or backend.whole_step:
        which = "enable_xla" if config.enable_xla else f"distribution_strategy={backend.name}"
        raise ConfigError(
            f"unpad gives each batch the size of its tokens, {which} compiles a step as a whole, for one"
            f" size. Drop --unpad; {packs} leaves little padding there."
        )
    if backend.spread_replicas:
        raise ConfigError(
            f"unpad gives each batch the size of its tokens, the parts of"
            f" distribution_strategy={backend.name} pass on batches of one size. Drop --unpad;"
            f" {packs} leaves little padding there."
        )


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
