"""Checks of where a run is computed."""

from __future__ import annotations

from official.config.backends import BACKENDS
from official.config.derived import initial_loss_scale
from official.config.table import FIELDS, Config
from official.io.errors import ConfigError


def check_batches(config: Config) -> None:
    """Refuses repeated runs and batches of several shapes where the back end has no place for them."""
    backend = BACKENDS[config.distribution_strategy]
    if config.num_runs > 1 and backend.several_processes:
        raise ConfigError(
            f"num_runs={config.num_runs} does not go with --distribution_strategy={backend.name}."
            " Start one run a seed."
        )
    if config.length_buckets == "always" and backend.static_shapes:
        raise ConfigError(
            f"length_buckets=always makes batches of different shapes, {backend.label} takes one. Use"
            " --length_buckets=never."
        )


def check_backend(config: Config) -> None:
    """Refuses what the back end does not take, and settings that only others know."""
    backend = BACKENDS[config.distribution_strategy]
    for name, field in FIELDS.items():
        if field.backends and backend.name not in field.backends and config[name] != field.default:
            raise ConfigError(
                f"{name}={config[name]} needs"
                f" --distribution_strategy={' or --distribution_strategy='.join(field.backends)}, received"
                f" {backend.name}."
            )
    if config.dtype in backend.refused_dtypes:
        raise ConfigError(
            f"dtype={config.dtype} does not go with --distribution_strategy={backend.name}:"
            f" {backend.refused_dtypes[config.dtype]}"
        )
    if config.block_kernels == "native" and (config.enable_xla or not config.fused_ops):
        which = "enable_xla" if config.enable_xla else "fused_ops=false"
        raise ConfigError(
            f"block_kernels=native is operations of --fused_ops that XLA does not know, which {which}"
            " excludes. Use --block_kernels=auto."
        )
    backend.check(config)


def check_all_reduce(config: Config) -> None:
    """Refuses an all-reduce that the back end does not have, or that excludes other settings."""
    backend = BACKENDS[config.distribution_strategy]
    if config.all_reduce_alg and config.all_reduce_alg not in backend.all_reduce_algorithms:
        raise ConfigError(
            f"all_reduce_alg={config.all_reduce_alg} does not go with distribution_strategy={backend.name},"
            f" which takes {' or '.join(backend.all_reduce_algorithms) or 'none'}. Change --all_reduce_alg."
        )
    if config.explicit_allreduce and config.clip_scope == "micro_batch":
        raise ConfigError(
            "explicit_allreduce clips the reduced gradient, clip_scope=micro_batch clips before the"
            " reduction. Use --clip_scope=global, or drop --explicit_allreduce."
        )
    if config.allreduce_bytes_per_pack and not config.explicit_allreduce:
        raise ConfigError(
            f"allreduce_bytes_per_pack={config.allreduce_bytes_per_pack} needs --explicit_allreduce."
        )
    _check_allreduce_dtype(config)


def _check_allreduce_dtype(config: Config) -> None:
    if config.allreduce_dtype != "float16":
        return
    backend = BACKENDS[config.distribution_strategy]
    if "fp16" in backend.refused_dtypes:
        raise ConfigError(
            f"allreduce_dtype=float16 does not go with --distribution_strategy={backend.name}, which knows"
            " bfloat16 numbers. Use --allreduce_dtype=bfloat16."
        )
    if initial_loss_scale(config) is None:
        raise ConfigError(
            "allreduce_dtype=float16 needs a loss scale: small gradients would become 0, and nothing would"
            " see an overflow. Add --loss_scale=dynamic, or use --allreduce_dtype=bfloat16."
        )
