"""Predicts the time of a step on several hosts from the time of one replica."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from official.config import Config, ConfigError, values
from official.config.backends import BACKENDS
from official.distribution.strategy import planned_replicas

_LATENCY_USECS = 10.0  # per message between hosts: an assumption
_LOCAL_LATENCY = 0.1  # factor for messages inside a host


class Network(NamedTuple):
    """The links of replicas: bytes per second each way, and the seconds of a message between hosts."""

    replicas_per_host: int
    bytes_per_sec: float
    latency_secs: float = _LATENCY_USECS / 1e6


class Work(NamedTuple):
    """Cost of a step of a single replica.

    Attributes:
      row_secs: seconds of the forward and backward pass per row.
      fill: micro batches that a pipeline loses while it fills and drains; 0 without one.
      gradient_bytes: a replica's contribution to the all-reduce.
      packs: number of gradient all-reduces per step.
      small_sums: number of all-reduces of a few numbers that block a step.
    """

    row_secs: float
    fill: float
    gradient_bytes: float
    packs: int = 1
    small_sums: int = 0


class Batch(NamedTuple):
    """The rows of a step of one replica: accumulation x micro batch."""

    accumulation: int
    rows: int


def ring_secs(network: Network, hosts: int, num_bytes: float) -> float:
    """Returns the seconds of an all-reduce: one ring through all replicas, which crosses each host's link
    once.

    In each of its 2 (n - 1) rounds every replica sends one n-th of the data.
    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    """
    replicas = hosts * network.replicas_per_host
    latency = network.latency_secs * (_LOCAL_LATENCY if hosts == 1 else 1.0)
    return 2 * (replicas - 1) * (num_bytes / replicas / network.bytes_per_sec + latency)


def step_time(work: Work, network: Network, hosts: int, batch: Batch) -> dict[str, float]:
    """Returns {part: seconds} of a step; their sum is `step_secs`.

    Micro batches run one after the other. The gradients are summed once per step, after the last one.

    Args:
      work: cost of a replica's step.
      network: the links of the replicas.
      hosts: number of hosts.
      batch: batch of a replica.
    """
    compute = (batch.accumulation + work.fill) * batch.rows * work.row_secs
    gradients = work.packs * ring_secs(network, hosts, work.gradient_bytes / work.packs)
    waited = gradients + work.small_sums * ring_secs(network, hosts, 0.0)
    return {"step_secs": compute + waited, "compute_secs": compute, "all_reduce_secs": waited}


def divided(rows: int, replicas: int, most_rows: int) -> Batch | None:
    """Returns the batch of each replica when a step's rows are redistributed: micro batches of the previous
    size, or the next smaller divisor. None if the rows cannot be distributed evenly.

    Args:
      rows: rows per step of all replicas.
      replicas: new number of replicas.
      most_rows: maximum rows of a micro batch.
    """
    if rows % replicas:
        return None
    own = rows // replicas
    micro = next(size for size in range(min(most_rows, own), 0, -1) if own % size == 0)
    return Batch(own // micro, micro)


def scaling_of(config: Config, plan: dict) -> dict | None:
    """Returns the plan's `scaling`, JSON-serializable; None without --plan_hosts.

    A host is the run of the plan, or one process of it if the plan has several.

    Args:
      config: configuration of the run.
      plan: the plan of `plan.make_plan` so far.

    Returns:
      The assumptions; `sharing`, the numbers of hosts that can share the batch of the run evenly; and
      `hosts`, a row for each number of hosts: `hosts`, `replicas`, and a step with a constant batch per host
      (`same_share`: the global batch grows) and with the batch of the run (`same_batch`: it is redistributed,
      None if that is not even). For each step: sizes, seconds (see `step_time`), `sequences_per_sec`,
      `train_secs` of the run's sequences, and `efficiency`, the throughput relative to as many independent
      hosts.

    Raises:
      ConfigError: if the all-reduce alone would take longer than the measured step.
    """
    if config.plan_hosts is None:
        return None
    assert config.plan_gbps is not None
    replicas_per_host = plan["num_replicas"]
    if BACKENDS[config.distribution_strategy].several_processes:  # the plan describes several hosts
        replicas_per_host = planned_replicas(config)
    network = Network(replicas_per_host, config.plan_gbps * 1e9)
    work = work_of(config, plan, network)
    rows, micro_batch_size = plan["global_batch_size"], plan["micro_batch_size"]

    def step(hosts: int, batch: Batch | None) -> dict | None:
        if batch is None:
            return None
        secs = step_time(work, network, hosts, batch)
        global_batch_size = hosts * network.replicas_per_host * batch.accumulation * batch.rows
        rate = global_batch_size * plan["sequences_per_row"] / secs["step_secs"]
        return {
            "global_batch_size": global_batch_size,
            "num_accumulation_steps": batch.accumulation,
            "micro_batch_size": batch.rows,
            "sequences_per_sec": rate,
            "train_secs": plan["train_sequences"] / rate if plan["train_steps"] and rate else None,
            **secs,
        }

    found: list[dict[str, Any]] = []
    for hosts in (1, *values.read_host_counts(config.plan_hosts)):
        replicas = hosts * network.replicas_per_host
        steps = {
            "same_share": step(hosts, Batch(plan["num_accumulation_steps"], micro_batch_size)),
            "same_batch": step(hosts, divided(rows, replicas, micro_batch_size)),
        }
        found.append({"hosts": hosts, "replicas": replicas, **steps})
        for name, values_of_step in steps.items():
            if values_of_step:
                of_one_host = found[0][name]["sequences_per_sec"]
                values_of_step["efficiency"] = values_of_step["sequences_per_sec"] / hosts / of_one_host
    most = rows // network.replicas_per_host
    lower = [hosts for hosts in range(1, math.isqrt(most) + 1) if most % hosts == 0]
    return {
        "source": "measure" if plan["measured"] else "plan_tflops",
        "replicas_per_host": network.replicas_per_host,
        "gradient_bytes": work.gradient_bytes,
        "gbps": config.plan_gbps,
        "latency_usecs": _LATENCY_USECS,
        "sharing": sorted({*lower, *(most // hosts for hosts in lower)}),
        "hosts": found[1:],
    }


def work_of(config: Config, plan: dict, network: Network) -> Work:
    """Returns the cost of a step of a single replica, from the measured step, otherwise from --plan_tflops.

    A pipeline of k micro batches takes (k + fill) times the time of its busiest device for one. `fill` and
    the imbalance of the devices together make the bubble of its schedule.

    Raises:
      ConfigError: if the all-reduce alone would take longer than the measured step.
    """
    accumulation, pipeline = plan["num_accumulation_steps"], plan["pipeline"]
    imbalance, fill = 1.0, 0.0  # work of a replica's busiest device, relative to the mean
    if pipeline is not None:
        flops = [0.0] * len(pipeline["bytes_per_device"])
        for device, passes in zip(pipeline["devices"], pipeline["stage_flops"]):
            flops[device] += sum(passes)
        imbalance = max(flops) * len(flops) / sum(flops)
        fill = max(0.0, accumulation / ((1 - pipeline["bubble"]) * imbalance) - accumulation)
    gradient_bytes = plan["all_reduce_bytes"]
    pack_bytes = config.allreduce_bytes_per_pack if config.explicit_allreduce else 0
    sums_apart = config.explicit_allreduce or config.allreduce_dtype != "float32"
    work = Work(
        row_secs=0.0,
        fill=fill,
        gradient_bytes=gradient_bytes,
        packs=math.ceil(gradient_bytes / pack_bytes) if pack_bytes else 1,
        # All-reduces of the loss weights, the metrics, and the numbers of sequences of packed rows.
        small_sums=(config.loss_normalization == "global") + sums_apart + (plan["sequences_per_row"] != 1),
    )
    if not plan["measured"]:
        row_secs = plan["expected"]["matmul_secs"] * imbalance / plan["replica_batch_size"]
        return work._replace(row_secs=row_secs)
    # The measured step includes the bubble and the all-reduce inside its host.
    step_secs = plan["measured"]["step_secs"]
    rest = step_time(work, network, 1, Batch(accumulation, plan["micro_batch_size"]))["step_secs"]
    if rest >= step_secs:
        raise ConfigError(
            f"the measured step took {step_secs:.3g} s, its all-reduce alone would take {rest:.3g} s. Raise"
            " --plan_gbps."
        )
    rows = (accumulation + fill) * plan["micro_batch_size"]
    return work._replace(row_secs=(step_secs - rest) / rows)
