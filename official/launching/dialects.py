"""Dialects of the published command lines of poprun, one for each program.

Sources: README_Benchmarks.md of PopART BERT, the README of packed BERT (MLPerf Training 2.0), the Kubernetes
tutorial "Distributed training on multiple IPUs" (PyTorch), and pretrain_distributed.sh of the programs for
TensorFlow 1 and 2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

_CACHE = "--executable_cache_path=${LOCAL_HOME:-/localdata/${USER:-}}/exec_cache"


@dataclasses.dataclass(frozen=True)
class Dialect:
    """Spelling of the published command line of a program.

    Attributes:
      label: of the program, for people.
      options: of poprun, in their order; {names} are values of a plan.
      global_args: of mpirun as a whole.
      local_args: of mpirun for each instance.
      values: of {names} that a plan leaves open; $NAMES are variables of the shell that starts it.
      exports: variables that are set before.
      prefix: variables in front of the command.
      counts_local_replicas: whether the program's own number of replicas is that of one instance.
    """

    label: str
    options: tuple[str, ...]
    global_args: str = ""
    local_args: str = ""
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    exports: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prefix: Mapping[str, str] = dataclasses.field(default_factory=dict)
    counts_local_replicas: bool = False


GLOBAL_ARGS, LOCAL_ARGS = "--mpi-global-args={global_args}", "--mpi-local-args={local_args}"
_OF_BENCHMARKS = {
    "hosts": "$HOSTS",
    "vipu_server_host": "$VIPU_SERVER_HOST",
    "tcp_if_include": "$TCP_IF_INCLUDE",
}
_OF_SCRIPTS = _OF_BENCHMARKS | {"vipu_server_host": "$VIPU_HOST", "vipu_partition": "$VIPU_PARTITION_NAME"}
_BTL, _OOB = "--mca btl_tcp_if_include {tcp_if_include}", "--mca oob_tcp_if_include {tcp_if_include}"
DIALECTS = {
    "popart": Dialect(
        "PopART",
        (
            "-vv",
            "--num-instances={num_instances}",
            "--num-replicas={num_replicas}",
            "--num-ilds={num_ilds}",
            "--ipus-per-replica={ipus_per_replica}",
            "--vipu-server-host={vipu_server_host}",
            "--host={hosts}",
            "--vipu-partition={vipu_partition}",
            "--vipu-cluster={vipu_cluster}",
            "--update-partition=yes",
            "--remove-partition=no",
            "--reset-partition=no",
            "--print-topology=yes",
            "--vipu-server-timeout=1200",
            GLOBAL_ARGS,
            LOCAL_ARGS,
        ),
        global_args=f"--tag-output --allow-run-as-root {_BTL} {_OOB}",
        local_args=(
            "-x OPAL_PREFIX -x CPATH -x IPUOF_VIPU_API_TIMEOUT=1200 -x POPLAR_ENGINE_OPTIONS"
            " -x HOROVOD_STALL_CHECK_TIME_SECONDS -x HOROVOD_POPART_BROADCAST_TIMEOUT"
        ),
        values=_OF_BENCHMARKS | {"vipu_partition": "gcl128", "vipu_cluster": "c128"},
        exports={
            "POPLAR_ENGINE_OPTIONS": (
                '{"target.hostSyncTimeout": "1200", "target.syncReplicasIndependently": "true"}'
            ),
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "120",
            "HOROVOD_POPART_BROADCAST_TIMEOUT": "120",
        },
        counts_local_replicas=True,
    ),
    "packed": Dialect(
        "packed PopART (MLPerf 2.0)",
        (
            "-vv",
            "--remove-partition=0",
            "--num-instances {num_instances}",
            "--num-replicas {num_replicas}",
            "--num-ilds={num_ilds}",
            "--ipus-per-replica {ipus_per_replica}",
            "--numa-aware=yes",
            "--host {hosts}",
            "--vipu-server-host={vipu_server_host}",
            "--vipu-server-timeout=600",
            "--vipu-partition={vipu_partition}",
            "--vipu-cluster={vipu_cluster}",
            "--reset-partition=no",
            "--update-partition=no",
            GLOBAL_ARGS,
            LOCAL_ARGS,
        ),
        global_args=f"--tag-output --allow-run-as-root {_OOB} {_BTL}",
        local_args=(
            "-x SHARED_EXECUTABLE_CACHE -x LD_LIBRARY_PATH -x OPAL_PREFIX -x PATH"
            " -x HOROVOD_STALL_CHECK_TIME_SECONDS=600 -x HOROVOD_LOG_LEVEL=OFF"
            " -x HOROVOD_POPART_BROADCAST_TIMEOUT=600 -x CPATH -x PYTHONPATH -x IPUOF_VIPU_API_TIMEOUT=600"
            " -x POPLAR_ENGINE_OPTIONS -x POPLAR_LOG_LEVEL=OFF -x POPART_LOG_LEVEL=OFF -x GCL_LOG_LEVEL=OFF"
        ),
        values=_OF_BENCHMARKS | {"vipu_partition": "$PARTITION_NAME", "vipu_cluster": "$CLUSTER_NAME"},
        exports={
            "NUM_INSTANCE": "{num_instances}",
            "NUM_REPLICAS": "{num_replicas}",
            "NUM_ILDS": "{num_ilds}",
            "IPUS_PER_REPLICA": "{ipus_per_replica}",
        },
    ),
    "pytorch": Dialect(
        "PyTorch (Kubernetes tutorial)",
        (
            "--allow-run-as-root 1",
            "--vv",
            "--num-instances {num_instances}",
            "--num-replicas {num_replicas}",
            GLOBAL_ARGS,
            "--ipus-per-replica {ipus_per_replica}",
        ),
        global_args="--tag-output",
        prefix={"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1"},
        counts_local_replicas=True,
    ),
    "tf1": Dialect(
        "TensorFlow 1",
        (
            "--host {hosts}",
            "--num-ilds {num_ilds}",
            "--num-instances {num_instances}",
            "--num-replicas {num_replicas}",
            "--ipus-per-replica {ipus_per_replica}",
            "--vipu-server-host={vipu_server_host}",
            "--reset-partition=yes",
            "--update-partition=yes",
            "--remove-partition=no",
            "--vipu-partition={vipu_partition}",
            "--print-topology=yes",
            GLOBAL_ARGS,
            LOCAL_ARGS,
        ),
        global_args=f"{_BTL} {_OOB}",
        local_args=(
            "-x TF_CPP_VMODULE='poplar_compiler=0, poplar_executor=0' -x HOROVOD_LOG_LEVEL=WARN"
            " -x IPUOF_LOG_LEVEL=WARN -x POPLAR_LOG_LEVEL=WARN -x CPATH -x GCL_LOG_LEVEL=WARN"
            f" -x TF_POPLAR_FLAGS={_CACHE}"
        ),
        values=_OF_SCRIPTS,
    ),
    "tf2": Dialect(
        "TensorFlow 2",
        (
            "-vv",
            "--host {hosts}",
            "--num-ilds {num_ilds}",
            "--num-instances {num_instances}",
            "--num-replicas {num_replicas}",
            "--ipus-per-replica {ipus_per_replica}",
            "--vipu-server-host={vipu_server_host}",
            "--vipu-cluster={vipu_cluster}",
            "--vipu-allocation={vipu_allocation}",
            "--reset-partition=yes",
            "--update-partition=yes",
            "--remove-partition=no",
            "--vipu-partition={vipu_partition}",
            GLOBAL_ARGS,
        ),
        global_args=f"{_BTL} {_OOB}",
        values=_OF_SCRIPTS | {"vipu_allocation": "$VIPU_ALLOCATION_NAME"},
        prefix={"TF_POPLAR_FLAGS": _CACHE},
    ),
}
