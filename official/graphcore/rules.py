"""Rules for the settings of a run on IPUs, and what follows from them: shares of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from official.io.errors import ConfigError, nearest_multiples

if TYPE_CHECKING:
    from official.config.table import Config


IPU_VERSION = "ipu2"  # for which --compile_only compiles
# Setting: its one value, and what there is instead of the others.
_ONLY = {
    "enable_xla": (False, "IPUs compile every step as a whole. Drop --enable_xla."),
    "explicit_allreduce": (False, "Drop --explicit_allreduce."),
    "pack_on_the_fly": (False, "Write packed records: scripts/pack_pretraining_data.py."),
    "num_runs": (1, "Start one run a seed."),
    "deterministic": (False, 'Add --ipu_options="stochastic_rounding=false" in its place.'),
    "device_warmup": (False, "The first call of the IPUs compiles: use --compile_only before. Drop it."),
    "mllog_file": (None, "metrics.jsonl has the same numbers. Drop --mllog_file."),
}


def memory_proportions(config: Config, devices: tuple[int, ...]) -> list[str | None]:
    """Returns the available_memory_proportion of each stage; None for all where the setting is unset.

    Args:
      config: of the run.
      devices: the IPU of each stage, within a replica, from 0.

    Raises:
      ConfigError: for what is no share, or as many of them as there are neither stages nor IPUs.
    """
    text = config.ipu.available_memory_proportion
    if text is None:
        return [None] * len(devices)
    shares: list[str | None] = [_share(part) for part in text.split(",")]
    if len(shares) == 1:
        return shares * len(devices)
    if len(shares) == len(devices):
        return list(shares)
    if len(shares) == max(devices) + 1:
        return [shares[device] for device in devices]
    raise ConfigError(
        f"available_memory_proportion={text} has {len(shares)} numbers. Allowed: 1, {max(devices) + 1} (one"
        f" an IPU of a replica) or {len(devices)} (one a stage of the pipeline)."
    )


def _share(text: str) -> str:
    try:
        if 0 < float(text) <= 1:
            return text.strip()
    except ValueError:
        pass
    raise ConfigError(f"available_memory_proportion={text.strip()[:40]}, expected numbers above 0, up to 1.")


def check_ipu(config: Config) -> None:
    """Refuses settings that a run on IPUs does not take."""
    if config.num_gpus:
        raise ConfigError(
            f"num_gpus={config.num_gpus} does not go with --distribution_strategy=ipu. Drop --num_gpus."
        )
    for name, (allowed, instead) in _ONLY.items():
        if config[name] != allowed and not config.plan:
            raise ConfigError(
                f"{name}={_shown(config[name])} does not go with --distribution_strategy=ipu, which takes"
                f" {_shown(allowed)}. {instead}"
            )
    if config.clip_scope == "micro_batch":
        raise ConfigError(
            "clip_scope=micro_batch does not go with --distribution_strategy=ipu: its pipelines add gradients"
            " up before anybody sees them. Use --clip_scope=global or none."
        )
    if config.loss_scale == "dynamic" or (config.dtype == "fp16" and config.loss_scale is None):
        raise ConfigError(
            f"loss_scale={config.loss_scale or 'unset (dynamic for fp16)'} does not go with"
            " --distribution_strategy=ipu, whose steps skip no update. Give a number, such as"
            " --loss_scale=512, or numbers by step."
        )
    if config.recompute not in ("none", "block"):
        raise ConfigError(
            f"recompute={config.recompute} does not go with --distribution_strategy=ipu, whose pipelines"
            " compute whole stages again or nothing. Use --recompute=block or none."
        )
    if config.ipu.replicated_tensor_sharding and not config.ipu.optimizer_state_offchip:
        raise ConfigError(
            "replicated_tensor_sharding shares out the state that is kept beside the IPUs, and"
            " optimizer_state_offchip=false keeps none there. Drop one of the two from --ipu_options."
        )
    replicas = config.ipu.replicas
    if replicas & (replicas - 1):
        below = 1 << (replicas.bit_length() - 1)
        raise ConfigError(
            f"ipu_options: replicas={replicas} is no power of two, and IPUs come in powers of two. Nearest"
            f" valid: {below} or {2 * below}."
        )
    if config.ipu.replicated_tensor_sharding and replicas == 1:
        raise ConfigError(
            "replicated_tensor_sharding shares state out to replicas, and replicas=1. Drop it from"
            " --ipu_options, or raise its replicas."
        )
    every = config.ipu.device_iterations
    if config.steps_per_loop and config.steps_per_loop % every:
        raise ConfigError(
            f"steps_per_loop={config.steps_per_loop} is not a multiple of device_iterations={every}. Nearest"
            f" valid: {nearest_multiples(config.steps_per_loop, every)}."
        )


def _shown(value: object) -> str:
    return str(value).lower() if value in (None, True, False) else str(value)
