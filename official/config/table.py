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

# In order of --help and config.json.
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
# Removed settings, whose defaults saved files still hold: {name: (default, a sentence on the replacement)}.
REMOVED: dict[str, tuple[Any, str]] = {
    "machine_file": (None, "Use bert plan --measure, which times three steps"),
    "plan_all_reduce": (None, "--plan_hosts always plans a ring"),
    "plan_local_gbps": (None, "--plan_gbps is the speed of all links"),
    "plan_latency_usecs": (None, "--plan_hosts assumes 10 microseconds a message between hosts"),
    "plan_overlap": (None, "--plan_hosts adds the all-reduce after the backward pass"),
    "plan_update_secs": (None, "--measure times the whole step, the update included"),
    "plan_rows_per_sec": (None, "python benchmarks/data.py measures the input speed of a host"),
    "mllog_to_stdout": (False, "Read the log with tail -f mllog.txt"),
    "fused_ops": (True, "Use --kernels=auto, plain, fused or native"),
    "block_kernels": ("auto", "Use --kernels=auto, plain, fused or native"),
    "update_kernel": ("auto", "Use --kernels=auto, plain, fused or native"),
    "intra_op_threads": (None, "Set TF_NUM_INTRAOP_THREADS in the environment, which TensorFlow reads"),
    "inter_op_threads": (None, "Set TF_NUM_INTEROP_THREADS in the environment, which TensorFlow reads"),
    "lamb_bias_correction": (True, "--bias_correction applies to all optimizers with moments"),
    "adam_bias_correction": (True, "--bias_correction applies to all optimizers with moments"),
    "loss_scale_by_step": (None, "Give the numbers by step to --loss_scale"),
    "clear_caches": (True, "The page cache of a run's own files is always dropped"),
    "ipu_connection": ("always", "--compile_only compiles for IPUs that this machine does not have"),
    "ipu_version": ("ipu2", "--compile_only compiles for ipu2"),
    "max_cross_replica_sum_buffer_size": (0, "Poplar chooses the size of this buffer"),
    "max_reduce_scatter_buffer_size": (0, "Poplar chooses the size of this buffer"),
    "sync_replicas_independently": (False, "Set target.syncReplicasIndependently in POPLAR_ENGINE_OPTIONS"),
    "memory_profile": (False, "Set autoReport.all in POPLAR_ENGINE_OPTIONS"),
    "execution_profile": (False, "Set autoReport.all in POPLAR_ENGINE_OPTIONS"),
    "lr_schedule_by_step": (None, "Give the rates by step to --lr_schedule"),
    "lamb_variant": ("lamb", "Use --clip_scope=global --clip_norm=1 for nvlamb, replicas for mpclip"),
    "gradient_reduction": ("mean", "Use --loss_normalization=local_sum to add gradients up"),
    "count_records": (False, "Use --num_steps_per_epoch=0 to count the records"),
    "coordinator_address": (None, "Give the address of the first process to --worker_hosts"),
    "peer_silence_secs": (60, "It is a fifth of --peer_timeout_secs, 60 s at most"),
    "peer_stall_secs": (1800, "It is six times --peer_timeout_secs"),
    "narrow_last_block": (True, "The last block is always narrow"),
    "plan_config_file": (None, "--plan_file holds the configuration"),
    "wandb_project": (None, "Use --wandb_name=PROJECT/NAME"),
    "profile_dir": (None, "Set autoReport.directory in POPLAR_ENGINE_OPTIONS"),
    "matmul_precision": ("tf32", "Set NVIDIA_TF32_OVERRIDE=0 in the environment for `highest`"),
}
# Settings that became options of --ipu_options.
_IPU_SETTINGS = (
    "ipu_replicas device_iterations executable_cache_path stochastic_rounding fp_exceptions"
    " available_memory_proportion partials_type optimizer_state_offchip replicated_tensor_sharding"
    " min_remote_tensor_size no_outlining scheduler"
)
_IPU_OPTIONS = {name: name.replace("ipu_", "") for name in _IPU_SETTINGS.split()}
REMOVED.update(
    {
        name: (None, f'Use --ipu_options="{option}=VALUE" (docs/ipu.md)')
        for name, option in _IPU_OPTIONS.items()
    }
)


def upgraded(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns a saved configuration of an earlier version with removed settings translated to their
    replacements, such as the three settings that --kernels replaced."""
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
        given = saved.get("ipu_options")  # on top of a saved file: --config.ipu_options
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
    """The settings of a run, frozen. `official.config.build_config` makes and checks them.

    Attributes:
      model: the model's sizes.
    """

    model: BertConfig = cast(BertConfig, None)  # set by validation

    @functools.cached_property
    def ipu(self) -> Any:
        """The options of IPUs by name, `official.graphcore.rules.Options`. Raises ConfigError."""
        return _options_of_ipus().read(self.ipu_options)

    def __getitem__(self, name: str) -> Any:
        """Returns a setting by name. Raises KeyError if there is no such setting."""
        if name not in FIELDS:
            raise KeyError(name)
        return getattr(self, name)


def replaced(config: Config, **values: Any) -> Config:
    """Returns the configuration with some values replaced, without validation."""
    return dataclasses.replace(config, **values)
