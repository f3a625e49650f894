"""Options of IPUs (--ipu_options), under Graphcore's names if these exist, and rules for the settings of a
run on IPUs."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from official.config.setting import Section, setting
from official.io.errors import ConfigError, nearest_multiples, suggest

if TYPE_CHECKING:
    from official.config.table import Config

# -----------------------------------------------------------------------------------------------------------
# Options


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of IPUs. The number of IPUs of a replica follows from its pipeline: a power of two.

    Attributes:
      replicas: Replicas of the pipeline, over all instances: a power of two.
      device_iterations: Steps per call of the IPUs; divides --steps_per_loop.
      executable_cache_path: Folder in which compiled programs are cached.
      stochastic_rounding: Round to float16 up or down at random, right on average.
      fp_exceptions: Stop at invalid operations, divisions by 0 and overflows.
      available_memory_proportion: Share of an IPU's memory that matrix products may use: one number, or one
        per stage of the pipeline or per IPU of a replica, comma-separated. Unset: Poplar's default.
      partials_type: Type in which float16 matrix products accumulate.
      optimizer_state_offchip: Keep the optimizer's state in memory outside the IPUs.
      replicated_tensor_sharding: Shard that state among the replicas; each reads and updates its part.
      min_remote_tensor_size: Minimum size in bytes of a tensor outside the IPUs.
      no_outlining: Compile equal parts of the model separately: more memory, less copying.
      scheduler: Method by which the compiler orders operations.
    """

    replicas: int = setting(1, minimum=1)
    device_iterations: int = setting(1, minimum=1)
    executable_cache_path: str | None = setting(None)
    stochastic_rounding: bool = setting(True)
    fp_exceptions: bool = setting(False)
    available_memory_proportion: str | None = setting(None)
    partials_type: str = setting("float", choices=("half", "float"))
    optimizer_state_offchip: bool = setting(True)
    replicated_tensor_sharding: bool = setting(False)
    min_remote_tensor_size: int = setting(128, minimum=0)
    no_outlining: bool = setting(False)
    scheduler: str = setting(
        "choose_best", choices=("choose_best", "clustering", "post_order", "look_ahead", "shortest_path")
    )


OPTIONS = {field.name: field for field in Section("IPUs", Options, evaluation=False).fields}
_TRUTHS = {word: word in "true t 1 yes".split() for word in "true t 1 yes false f 0 no".split()}


def read(text: str | None) -> Options:
    """Returns the options in a text, see `given`. Raises ConfigError."""
    return Options(**given(text))


def given(text: str | None) -> dict[str, Any]:
    """Parses a text such as `replicas=4 partials_type=half` to {name: value}; the last of equal names counts.

    Raises:
      ConfigError: for an unknown name, and a value of the wrong type or range.
    """
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise ConfigError(f"ipu_options={(text or '')[:100]}: {error}.") from None
    values: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in OPTIONS or not equals:
            raise ConfigError(
                f"ipu_options: {word[:100]!r}{suggest(name, OPTIONS)}, expected NAME=VALUE with a name of"
                f" {', '.join(OPTIONS)}."
            )
        values[name] = OPTIONS[name].checked(_typed(value, OPTIONS[name].type), "ipu_options")
    return values


def _typed(value: str, kind: type) -> Any:
    """Converts a value to the type of its option, if possible."""
    if kind is bool:
        return _TRUTHS.get(value.lower(), value)
    try:
        return int(value) if kind is int else value
    except ValueError:
        return value


def written(values: Mapping[str, Any]) -> str:
    """Inverse of `read`: returns {name: value} as text; None is left out."""
    known = {name: value for name, value in values.items() if value is not None}
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in known.items()}
    return " ".join(shlex.quote(f"{name}={text}") for name, text in texts.items())


# -----------------------------------------------------------------------------------------------------------
# Rules


IPU_VERSION = "ipu2"  # target of --compile_only
# {setting: (only supported value, alternative)}
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
    """Returns the available_memory_proportion of each stage; None for all if the setting is unset.

    Args:
      config: configuration of the run.
      devices: the IPU of each stage, within a replica, from 0.

    Raises:
      ConfigError: for an invalid share, or a number of shares that equals neither the stages nor the IPUs.
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
    """Raises ConfigError for settings that a run on IPUs does not support."""
    if config.num_gpus:
        raise ConfigError(
            f"num_gpus={config.num_gpus} does not go with --distribution_strategy=ipu. Drop --num_gpus."
        )
    for name, (allowed, instead) in _ONLY.items():
        if config[name] is not None and config[name] != allowed and not config.plan:
            raise ConfigError(
                f"{name}={_shown(config[name])} does not go with --distribution_strategy=ipu, which takes"
                f" {_shown(allowed)}. {instead}"
            )
    if config.clip_scope == "micro_batch":
        raise ConfigError(
            "clip_scope=micro_batch does not go with --distribution_strategy=ipu: its pipelines sum gradients"
            " before they can be clipped. Use --clip_scope=global or none."
        )
    if config.loss_scale == "dynamic" or (config.dtype == "fp16" and config.loss_scale is None):
        raise ConfigError(
            f"loss_scale={config.loss_scale or 'unset (dynamic for fp16)'} does not go with"
            " --distribution_strategy=ipu, which never skips an update. Give a number, such as"
            " --loss_scale=512, or numbers by step."
        )
    if config.recompute not in ("none", "block"):
        raise ConfigError(
            f"recompute={config.recompute} does not go with --distribution_strategy=ipu, whose pipelines"
            " recompute whole stages or nothing. Use --recompute=block or none."
        )
    if config.ipu.replicated_tensor_sharding and not config.ipu.optimizer_state_offchip:
        raise ConfigError(
            "replicated_tensor_sharding shards off-chip optimizer state, but optimizer_state_offchip=false"
            " keeps it on chip. Drop one of the two from --ipu_options."
        )
    replicas = config.ipu.replicas
    if replicas & (replicas - 1):
        below = 1 << (replicas.bit_length() - 1)
        raise ConfigError(
            f"ipu_options: replicas={replicas} is not a power of two, as IPUs require. Nearest valid:"
            f" {below} or {2 * below}."
        )
    if config.ipu.replicated_tensor_sharding and replicas == 1:
        raise ConfigError(
            "replicated_tensor_sharding shards state among replicas, but replicas=1. Drop it from"
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
