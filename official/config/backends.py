"""Table of the back ends: one row for each value of --distribution_strategy, with its traits.

`official.distribution.strategy` finds and uses the devices of each. Settings that only some back ends support
list these in their rows (`backends=`).
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from official.config.cluster import read_cluster
from official.io.errors import ConfigError
from official.io.files import is_remote

if TYPE_CHECKING:
    from official.config.table import Config


@dataclasses.dataclass(frozen=True)
class BackendTraits:
    """Traits of a back end, and its supported settings.

    Attributes:
      name: value of --distribution_strategy.
      label: description in messages.
      all_reduce_algorithms: supported values of --all_reduce_alg.
      refused_dtypes: {unsupported value of --dtype: reason, and what to use}.
      takes_gpus: whether it computes on GPUs if the machine has any.
      several_processes: whether a run has several processes, one per worker.
      whole_step: whether a step is compiled as a whole, so that all batches must have the same shape.
      fused_operations: whether it supports other kernels than the plain ones (--kernels).
      spread_replicas: whether the weights of a replica are on several devices of this process.
      graphcore_rules: whether pipelines follow the rules of Graphcore's compiler: a variable is on one
        device, and a grouped schedule needs a multiple of its passes.
      program: module whose `run(config, command)` executes a run, if not the usual one.
      check: function of the configuration that raises ConfigError for other unsupported settings.
    """

    name: str
    label: str
    all_reduce_algorithms: tuple[str, ...] = ()
    refused_dtypes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    takes_gpus: bool = True
    several_processes: bool = False
    whole_step: bool = False
    fused_operations: bool = True
    spread_replicas: bool = False
    graphcore_rules: bool = False
    program: str = ""
    check: Callable[[Any], object] = lambda config: None


def _check_one_device(config: Config) -> None:
    if (config.num_gpus or 0) > 1:
        raise ConfigError(
            f"num_gpus={config.num_gpus} needs --distribution_strategy=mirrored; one_device takes 0 or 1."
        )


def _check_pipeline(config: Config) -> None:
    if config.clip_scope == "micro_batch":
        raise ConfigError(
            "clip_scope=micro_batch needs the whole gradient of a micro batch on one device, but"
            " distribution_strategy=pipeline splits it among devices. Use --clip_scope=global."
        )


def _check_tpu(config: Config) -> None:
    if config.num_gpus:
        raise ConfigError(
            f"num_gpus={config.num_gpus} does not go with --distribution_strategy=tpu. Drop --num_gpus."
        )
    if config.plan or config.tpu in (None, "local"):
        return
    for name in ("input_files", "eval_files"):
        paths = map(str.strip, (config[name] or "").split(","))
        local = [path for path in paths if path and not is_remote(path)]
        if local:
            raise ConfigError(
                f"{name}={local[0][:100]} is a local path, which the hosts of tpu={config.tpu} cannot read."
                f" Copy the files to a bucket: --{name}=gs://BUCKET/PATH."
            )


_ROWS = (
    BackendTraits("one_device", "a single device", check=_check_one_device),
    BackendTraits(
        "mirrored",
        "a group of devices",
        all_reduce_algorithms=("nccl", "hierarchical_copy"),
    ),
    BackendTraits(
        "multi_worker_mirrored",
        "a group of processes",
        all_reduce_algorithms=("nccl", "ring"),
        several_processes=True,
        check=read_cluster,
    ),
    BackendTraits("pipeline", "a pipeline of devices", spread_replicas=True, check=_check_pipeline),
    BackendTraits(
        "tpu",
        "a TPU",
        takes_gpus=False,
        refused_dtypes={"fp16": "TPUs multiply bfloat16 numbers. Use --dtype=bf16."},
        whole_step=True,
        check=_check_tpu,
    ),
    BackendTraits(
        "ipu",
        "IPUs",
        takes_gpus=False,
        refused_dtypes={"bf16": "IPUs multiply float16 and float32 numbers. Use --dtype=fp16 or fp32."},
        whole_step=True,
        fused_operations=False,
        graphcore_rules=True,
        program="official.graphcore.__main__",
        check=lambda config: importlib.import_module("official.graphcore.rules").check_ipu(config),
    ),
)
BACKENDS = {row.name: row for row in _ROWS}
