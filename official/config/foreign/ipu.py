"""Keys of Graphcore's that say how IPUs compute: settings of ours on IPUs, and nothing elsewhere."""

from __future__ import annotations

from typing import Any

from official.config.foreign import rows
from official.config.foreign.rows import Row, Table
from official.config.table import FIELDS
from official.io.errors import ConfigError

_IPU = ("ipu",)
_RECOMPUTATION = Row("@recomputation", rows.truth, backends=_IPU)


def _shares(value: Any) -> str:
    """Returns a number, a list of them or a text of them as our setting has it: 0.1,0.2."""
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    found = value if isinstance(value, list) else [value]
    if not found:
        raise ConfigError("expected a number, or one for each stage")
    return ",".join(f"{rows.number(each):g}" for each in found)


def _half_or_float(value: Any) -> str:
    return "half" if rows.truth(value) else "float"


TF1: Table = {
    **{
        name: Row(name, rows.truth)
        for name in """execution_profile memory_profile sync_replicas_independently replicated_tensor_sharding
        stochastic_rounding no_outlining fp_exceptions""".split()
    },
    **{
        name: Row(name, rows.whole)
        for name in """device_iterations min_remote_tensor_size max_cross_replica_sum_buffer_size
        max_reduce_scatter_buffer_size""".split()
    },
    "available_memory_proportion": Row("available_memory_proportion", _shares),
    "variable_offloading": Row("optimizer_state_offchip", rows.truth),
    "partials_type": Row("partials_type", rows.of({"half": "half", "float": "float"})),
    "scheduler": Row("scheduler", rows.of({name: name for name in FIELDS["scheduler"].choices})),
    "enable_recomputation": _RECOMPUTATION,
}
# What the program does where a file says nothing. Source: options.py of Graphcore's TF1 BERT.
TF1_DEFAULTS = {
    "available_memory_proportion": 0.23,
    "enable_recomputation": True,
    "max_cross_replica_sum_buffer_size": 10 << 20,
    "partials_type": "half",
    "scheduler": "CLUSTERING",
}
TF2: Table = {
    "ipu_config.matmul_available_memory_proportion_per_pipeline_stage": Row(
        "available_memory_proportion", _shares
    ),
    "ipu_config.replicated_tensor_sharding": Row("replicated_tensor_sharding", rows.truth),
    "use_outlining": Row("no_outlining", rows.inverse),
    "enable_recomputation": _RECOMPUTATION,
    "optimizer_state_offchip": Row("optimizer_state_offchip", rows.truth),
    "matmul_partials_type": TF1["partials_type"],
    "min_remote_tensor_size": Row("min_remote_tensor_size", rows.whole),
    "enable_stochastic_rounding": Row("stochastic_rounding", rows.truth),
    "fp_exceptions": Row("fp_exceptions", rows.truth),
}
# Source: options.py of Graphcore's TF2 BERT.
TF2_DEFAULTS = {
    "enable_recomputation": True,
    "matmul_partials_type": "half",
    "min_remote_tensor_size": 50000,
}
POPART: Table = {
    "device_iterations": Row("device_iterations", rows.count),
    "stochastic_rounding": Row("stochastic_rounding", rows.truth),
    "enable_half_partials": Row("partials_type", _half_or_float),
    "optimizer_state_offchip": Row("optimizer_state_offchip", rows.truth),
    "replicated_tensor_sharding": Row("replicated_tensor_sharding", rows.truth),
    "available_memory_proportion": Row("available_memory_proportion", _shares),
    "engine_cache": Row("executable_cache_path", rows.text),
    "recompute_checkpoint_every_layer": _RECOMPUTATION,
    "floating_point_exceptions": Row("fp_exceptions", rows.truth),
    "no_outlining": Row("no_outlining", rows.truth),
}
PYTORCH: Table = {
    "recompute_checkpoint_every_layer": _RECOMPUTATION,
    "replicated_tensor_sharding": Row("replicated_tensor_sharding", rows.truth),
    "optimizer_state_offchip": Row("optimizer_state_offchip", rows.truth),
    "enable_half_partials": Row("partials_type", _half_or_float),
    "matmul_proportion": Row("available_memory_proportion", _shares),
    "device_iterations": Row("device_iterations", rows.count),
    "executable_cache_dir": Row("executable_cache_path", rows.text),
}
# Of all programs, on a command line.
OPTIONS: Table = {
    "device_iterations": Row("device_iterations", rows.count),
    "replicated_tensor_sharding": Row("replicated_tensor_sharding", rows.truth),
    "available_memory_proportion": Row("available_memory_proportion", _shares),
}
