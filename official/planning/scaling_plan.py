"""What a plan says of other numbers of hosts."""

from __future__ import annotations

import math
from typing import NamedTuple

from official.config import Config, ConfigError, host_counts
from official.config.backends import BACKENDS
from official.distribution import local_devices
from official.planning import scaling
from official.planning.all_reduce import Network
from official.planning.scaling import Batch, StepTime, Work
from official.planning.speed import ALL_REDUCE
from official.planning.timeline import OPTIMIZER

_LATENCY_USECS = 10.0  # of a message between hosts, where it is not said
_LOCAL_LATENCY = 0.1  # of that, inside a host


class _Planned(NamedTuple):
    """What the steps of all numbers of hosts have in common.

    Attributes:
      config: of the run.
      plan: of the hosts that it names.
      work: of one of its replicas.
      network: between and inside its hosts.
    """

    config: Config
    plan: dict
    work: Work
    network: Network


def scaling_of(config: Config, plan: dict) -> dict | None:
    """Returns the plan's `scaling`, ready for JSON; None without --plan_hosts.

    A host is what the plan describes, or its part of one process where it describes several.

    Args:
      config: of the run.
      plan: what `plan.make_plan` returns, up to here.

    Returns:
      What was assumed; `sharing`, the numbers of hosts that can share the batch of the run out evenly; and
      `hosts`, a row for each number of them: `hosts`, `replicas`, and what a step is with the batch of each
      host as it is (`same_share`: it grows in all) and with the batch of the run (`same_batch`: it is shared
      out anew, None where that is not even). Of each: sizes, seconds (see `scaling.StepTime`),
      `sequences_per_sec`, `train_secs` of the run's sequences, and `efficiency`, the sequences a second over
      those of as many single hosts.

    Raises:
      ConfigError: where nothing says how long a step takes.
    """
    if config.plan_hosts is None:
        return None
    planned = _Planned(config, plan, work_of(config, plan), network_of(config, plan))
    counts = host_counts.read(config.plan_hosts)
    first = _row(planned, 1, None)
    return {
        "source": "plan_tflops" if plan["expected"] else "machine_file",
        "replicas_per_host": planned.network.replicas_per_host,
        "gradient_bytes": planned.work.gradient_bytes,
        "gbps": planned.network.host_bytes_per_sec / 1e9,
        "local_gbps": planned.network.local_bytes_per_sec / 1e9,
        "latency_usecs": planned.network.host_latency_secs * 1e6,
        "all_reduce": planned.network.algorithm,
        "overlap": config.plan_overlap or 0.0,
        "rows_per_sec": config.plan_rows_per_sec,
        "sharing": _sharing(plan["global_batch_size"], planned.network.replicas_per_host),
        "hosts": [_row(planned, hosts, first) for hosts in counts],
    }


def _sharing(rows: int, replicas_per_host: int) -> list[int]:
    """Returns the numbers of hosts that can share a step's rows out evenly."""
    most = rows // replicas_per_host
    lower = [hosts for hosts in range(1, math.isqrt(most) + 1) if most % hosts == 0]
    return sorted({*lower, *(most // hosts for hosts in lower)})


def network_of(config: Config, plan: dict) -> Network:
    """Returns what the replicas of a plan send over, by its settings."""
    assert config.plan_gbps is not None
    latency_usecs = config.plan_latency_usecs
    latency_secs = (_LATENCY_USECS if latency_usecs is None else latency_usecs) / 1e6
    return Network(
        plan["num_replicas"] // _hosts_of(config, plan),
        config.plan_gbps * 1e9,
        (config.plan_local_gbps or config.plan_gbps) * 1e9,
        latency_secs,
        latency_secs * _LOCAL_LATENCY,
        config.plan_all_reduce,
    )


def gbps_of(config: Config, plan: dict) -> float | None:
    """Returns the GB/s at which the replicas of a plan send: those inside a host where it is one, and they
    are told."""
    is_one = config.plan_local_gbps is not None and _hosts_of(config, plan) == 1
    return config.plan_local_gbps if is_one else config.plan_gbps


def _hosts_of(config: Config, plan: dict) -> int:
    """Returns the hosts that the plan describes, a process each."""
    if not BACKENDS[config.distribution_strategy].several_processes:
        return 1
    return plan["num_replicas"] // local_devices.planned_replicas(config)


def work_of(config: Config, plan: dict) -> Work:
    """Returns what a step of one replica costs alone. Raises ConfigError where nothing says it."""
    compute_secs, update_secs = _replica_secs(config, plan)
    accumulation = plan["num_accumulation_steps"]
    imbalance, fill = _pipeline(plan["pipeline"], accumulation)
    gradient_bytes = plan["all_reduce_bytes"]
    pack_bytes = config.allreduce_bytes_per_pack if config.explicit_allreduce else 0
    return Work(
        row_secs=compute_secs * imbalance / plan["replica_batch_size"],
        fill=fill,
        update_secs=update_secs,
        backward_share=3 / 4 if config.recompute == "block" else 2 / 3,
        gradient_bytes=gradient_bytes,
        packs=math.ceil(gradient_bytes / pack_bytes) if pack_bytes else 1,
        small_sums=_small_sums(config, plan),
    )


def _replica_secs(config: Config, plan: dict) -> tuple[float, float]:
    """Returns the seconds of (all micro batches of a replica, what a step costs beside them and the
    all-reduce)."""
    if plan["expected"]:
        return plan["expected"]["matmul_secs"], config.plan_update_secs or 0.0
    if not plan["predicted"]:
        raise ConfigError(
            f"plan_hosts={config.plan_hosts} needs the time of a step. Add --plan_tflops=N, TFLOP/s of a"
            " replica, or measure this machine: bert benchmark machine."
        )
    parts = plan["predicted"]["parts"]
    update_secs = parts.get(OPTIMIZER, 0.0)
    compute_secs = plan["predicted"]["step_secs"] - update_secs - parts.get(ALL_REDUCE, 0.0)
    return compute_secs, update_secs if config.plan_update_secs is None else config.plan_update_secs


def _pipeline(pipeline: dict | None, accumulation: int) -> tuple[float, float]:
    """Returns (work of a replica's busiest device over the mean, micro batches that fit into the time in
    which the pipeline fills and empties).

    A pipeline of k micro batches takes k + fill times as long as its busiest device for one: the bubble of
    its schedule is what both make together.
    """
    if pipeline is None:
        return 1.0, 0.0
    flops = [0.0] * len(pipeline["bytes_per_device"])
    for device, passes in zip(pipeline["devices"], pipeline["stage_flops"]):
        flops[device] += sum(passes)
    imbalance = max(flops) * len(flops) / sum(flops)
    return imbalance, max(0.0, accumulation / ((1 - pipeline["bubble"]) * imbalance) - accumulation)


def _small_sums(config: Config, plan: dict) -> int:
    """Returns how often the replicas add up a few numbers in a step: the weights of the losses, the sums of
    the metrics where the gradients go in packs or in another type, and the sequences of packed rows."""
    is_packed = plan["sequences_per_row"] != 1
    apart = config.explicit_allreduce or config.allreduce_dtype != "float32"
    return (config.loss_normalization == "global") + apart + is_packed


def _row(planned: _Planned, hosts: int, first: dict | None) -> dict:
    """Returns the row of a number of hosts; `first` is that of one host, None for itself."""
    plan = planned.plan
    replicas = hosts * planned.network.replicas_per_host
    share = Batch(plan["num_accumulation_steps"], plan["micro_batch_size"])
    same = scaling.divided(plan["global_batch_size"], replicas, plan["micro_batch_size"])
    return {
        "hosts": hosts,
        "replicas": replicas,
        "same_share": _step(planned, hosts, share, first and first["same_share"]),
        "same_batch": _step(planned, hosts, same, first and first["same_batch"]) if same else None,
    }


def _step(planned: _Planned, hosts: int, batch: Batch, first: dict | None) -> dict:
    """Returns a step of a number of hosts, with its efficiency beside `first`, that of one."""
    config, plan = planned.config, planned.plan
    time = scaling.step_time(
        planned.work, planned.network, hosts, batch, config.plan_overlap or 0.0, config.plan_rows_per_sec
    )
    rows = hosts * planned.network.replicas_per_host * batch.accumulation * batch.rows
    rate = rows * plan["sequences_per_row"] / time.secs
    return {
        "global_batch_size": rows,
        "num_accumulation_steps": batch.accumulation,
        "micro_batch_size": batch.rows,
        "sequences_per_sec": rate,
        "efficiency": rate / hosts / first["sequences_per_sec"] if first else 1.0,
        "train_secs": plan["train_sequences"] / rate if plan["train_steps"] and rate else None,
        **_seconds(time),
    }


def _seconds(time: StepTime) -> dict:
    return {
        "step_secs": time.secs,
        "compute_secs": time.compute_secs,
        "update_secs": time.update_secs,
        "all_reduce_secs": time.all_reduce_secs,
        "hidden_secs": time.hidden_secs,
        "input_secs": time.input_secs,
        "all_reduce": time.algorithm,
    }
