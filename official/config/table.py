"""The configuration as one typed object: the rows of all sections, and the model's sizes."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
from typing import Any, cast

from official.config.backends import BACKENDS
from official.config.model import BertConfig
from official.config.settings import data, devices, optimization, run

# In the order of --help and config.json.
SECTIONS = (
    run.JOB,
    devices.MODEL,
    data.DATA,
    data.PACKING,
    data.FINE_TUNING_SECTION,
    optimization.BATCH,
    optimization.OPTIMIZATION,
    devices.DEVICES,
    devices.PIPELINE,
    run.MLPERF,
    run.PLAN,
    run.PROFILING,
    run.MESSAGES,
)
FIELDS = {field.name: field for section in SECTIONS for field in section.fields}
# Settings of earlier versions, whose defaults saved files hold: {name: (default, what there is now)}.
REMOVED: dict[str, tuple[Any, str]] = {
    "machine_file": (None, "bert plan --measure runs three steps"),
    "plan_all_reduce": (None, "--plan_hosts is of a ring"),
    "plan_local_gbps": (None, "--plan_gbps is of all links"),
    "plan_latency_usecs": (None, "--plan_hosts counts 10 microseconds a message between hosts"),
    "plan_overlap": (None, "--plan_hosts counts the all-reduce after the backward pass"),
    "plan_update_secs": (None, "--measure has the whole step in it"),
    "plan_rows_per_sec": (None, "python benchmarks/data.py measures what the input of a host makes"),
    "mllog_to_stdout": (False, "tail -f mllog.txt shows the log"),
    "fused_ops": (True, "--kernels=auto, plain, fused or native"),
    "block_kernels": ("auto", "--kernels=auto, plain, fused or native"),
    "update_kernel": ("auto", "--kernels=auto, plain, fused or native"),
    "intra_op_threads": (None, "TF_NUM_INTRAOP_THREADS in the environment is read by TensorFlow"),
    "inter_op_threads": (None, "TF_NUM_INTEROP_THREADS in the environment is read by TensorFlow"),
    "lamb_bias_correction": (True, "--bias_correction is of all optimizers that have moments"),
    "adam_bias_correction": (True, "--bias_correction is of all optimizers that have moments"),
    "loss_scale_by_step": (None, "--loss_scale takes the numbers by step"),
    "clear_caches": (True, "the page cache of a run's own files is always dropped"),
    "ipu_connection": ("always", "--compile_only compiles for IPUs that are not here"),
    "ipu_version": ("ipu2", "--compile_only compiles for ipu2"),
    "max_cross_replica_sum_buffer_size": (0, "Poplar decides how much is added up at once"),
    "max_reduce_scatter_buffer_size": (0, "Poplar decides how much is added up at once"),
    "sync_replicas_independently": (False, "POPLAR_ENGINE_OPTIONS takes target.syncReplicasIndependently"),
    "memory_profile": (False, "POPLAR_ENGINE_OPTIONS takes autoReport.all"),
    "execution_profile": (False, "POPLAR_ENGINE_OPTIONS takes autoReport.all"),
    "lr_schedule_by_step": (None, "--lr_schedule takes the rates by step"),
    "lamb_variant": ("lamb", "--clip_scope=global --clip_norm=1 is nvlamb, --clip_scope=replicas mpclip"),
    "gradient_reduction": ("mean", "--loss_normalization=local_sum adds gradients up"),
    "count_records": (False, "--num_steps_per_epoch=0 counts the records"),
    "coordinator_address": (None, "--worker_hosts takes the address of the first process alone"),
    "peer_silence_secs": (60, "--peer_timeout_secs says it: a fifth, a minute at most"),
    "peer_stall_secs": (1800, "--peer_timeout_secs says it: six times as long"),
    "narrow_last_block": (True, "the last block is always narrow"),
    "plan_config_file": (None, "--plan_file holds the configuration"),
    "wandb_project": (None, "--wandb_name takes PROJECT/NAME"),
    "profile_dir": (None, "POPLAR_ENGINE_OPTIONS takes autoReport.directory"),
    "matmul_precision": ("tf32", "NVIDIA_TF32_OVERRIDE=0 in the environment is `highest`"),
}
# Options of IPUs, which were settings of their own.
_IPU_SETTINGS = (
    "ipu_replicas device_iterations executable_cache_path stochastic_rounding fp_exceptions"
    " available_memory_proportion partials_type optimizer_state_offchip replicated_tensor_sharding"
    " min_remote_tensor_size no_outlining scheduler"
)
_IPU_OPTIONS = {name: name.replace("ipu_", "") for name in _IPU_SETTINGS.split()}
REMOVED.update(
    {name: (None, f'--ipu_options="{option}=VALUE", docs/ipu.md') for name, option in _IPU_OPTIONS.items()}
)


def upgraded(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns a saved configuration of an earlier version with --kernels in place of the three settings that
    it has replaced, and likewise for what other settings say now."""
    saved = dict(saved)
    rates, project = saved.pop("lr_schedule_by_step", None), saved.pop("wandb_project", None)
    if saved.get("lr_schedule") == "custom":
        saved["lr_schedule"] = rates
    if project:
        saved["wandb_name"] = f"{project}/{saved.get('wandb_name') or ''}"
    variant, address = saved.pop("lamb_variant", None), saved.pop("coordinator_address", None)
    if variant in ("nvlamb", "mpclip"):
        saved.update(clip_scope="global" if variant == "nvlamb" else "replicas", clip_norm=1.0)
    if saved.pop("gradient_reduction", None) == "sum":
        saved["loss_normalization"] = "local_sum"
    if saved.pop("count_records", False) and saved.get("num_steps_per_epoch") is None:
        saved["num_steps_per_epoch"] = 0
    if address and not saved.get("worker_hosts"):
        saved["worker_hosts"] = address
    for name in ("peer_silence_secs", "peer_stall_secs", "narrow_last_block", "plan_config_file"):
        saved.pop(name, None)
    options = {option: saved.pop(name) for name, option in _IPU_OPTIONS.items() if name in saved}
    backend = BACKENDS.get(str(saved.get("distribution_strategy")))
    if options and backend and backend.graphcore_rules:
        given = saved.get("ipu_options")  # over a saved file: --config.ipu_options
        saved["ipu_options"] = " ".join(filter(None, (_options_of_ipus().written(options), given)))
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        saved.pop("matmul_precision", None)
    left = {name: value for name, value in saved.items() if name not in _BEFORE_KERNELS}
    before = [saved[name] for name in _BEFORE_KERNELS if name in saved]
    if not before:
        return saved
    if False in before:
        kernels = "plain"
    elif "compiled" in before or "tensorflow" in before:
        kernels = "fused"
    else:
        kernels = "native" if "native" in before else "auto"
    return {"kernels": kernels, **left}


def _options_of_ipus() -> Any:
    return importlib.import_module("official.graphcore.rules")


_BEFORE_KERNELS = ("fused_ops", "block_kernels", "update_kernel")


@dataclasses.dataclass(frozen=True)
class Config(
    run.Job,
    devices.Model,
    data.Data,
    data.Packing,
    data.FineTuning,
    optimization.Batch,
    optimization.Optimization,
    devices.Devices,
    devices.Pipeline,
    run.MLPerf,
    run.Plan,
    run.Profiling,
    run.Messages,
):
    """The settings of a run. Made by `official.config.build_config`, which checks them; then nothing changes.

    Attributes:
      model: the model's sizes.
    """

    model: BertConfig = cast(BertConfig, None)  # validation demands it

    @functools.cached_property
    def ipu(self) -> Any:
        """The options of IPUs by name, `official.graphcore.rules.Options`. Raises ConfigError."""
        return _options_of_ipus().read(self.ipu_options)

    def __getitem__(self, name: str) -> Any:
        """Returns the setting of a name. Raises KeyError for what is none."""
        if name not in FIELDS:
            raise KeyError(name)
        return getattr(self, name)


def replaced(config: Config, **values: Any) -> Config:
    """Returns the configuration with some other values, which are not checked."""
    return dataclasses.replace(config, **values)
