"""Options of IPUs alone, the values of --ipu_options. Graphcore's names, where these have one."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from official.config.setting import Section, setting
from official.io.errors import ConfigError, suggest


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of IPUs. The number of IPUs of a replica follows from its pipeline: a power of two.

    Attributes:
      replicas: Replicas of the pipeline, over all instances: a power of two.
      device_iterations: Steps of one call of the IPUs; divides --steps_per_loop.
      executable_cache_path: Folder in which compiled programs are kept and looked for.
      stochastic_rounding: Round to float16 up or down at random, right on average.
      fp_exceptions: Stop at invalid operations, divisions by 0 and overflows.
      available_memory_proportion: Share of an IPU's memory that matrix products may take for themselves: a
        number for all, or one for each stage of the pipeline or each IPU of a replica, comma-separated.
        Unset: Poplar's own.
      partials_type: Type in which matrix products of float16 add up.
      optimizer_state_offchip: Keep what only the optimizer reads in the memory beside the IPUs.
      replicated_tensor_sharding: Share that state out to the replicas; each reads and updates its part.
      min_remote_tensor_size: Bytes of a tensor that is kept beside the IPUs, at least.
      no_outlining: Compile equal parts of the model each by itself: more memory, less copying.
      scheduler: How the compiler orders operations.
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
_TRUTHS = {"true": True, "false": False}


def read(text: str | None) -> Options:
    """Returns the options of a text such as `replicas=4 partials_type=half`; of a name twice, the last one.

    Raises:
      ConfigError: for an unknown name, and a value of the wrong type or range.
    """
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise ConfigError(f"ipu_options={(text or '')[:100]}: {error}.") from None
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in OPTIONS or not equals:
            raise ConfigError(
                f"ipu_options: {word[:100]!r}{suggest(name, OPTIONS)}, expected NAME=VALUE with a name of"
                f" {', '.join(OPTIONS)}."
            )
        values[name] = OPTIONS[name].checked(_typed(value, OPTIONS[name].type), "ipu_options")
    return Options(**values)


def _typed(value: str, kind: type) -> Any:
    """Returns a value in the type of its option, as far as it reads so."""
    if kind is bool:
        return _TRUTHS.get(value.lower(), value)
    try:
        return int(value) if kind is int else value
    except ValueError:
        return value


def written(values: Mapping[str, Any]) -> str:
    """Returns {name: value} as a text that `read` reads; None is left out."""
    said = {name: value for name, value in values.items() if value is not None}
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in said.items()}
    return " ".join(shlex.quote(f"{name}={text}") for name, text in texts.items())
