"""How the time of a step grows with the number of hosts: arithmetic on the time of one replica."""

from __future__ import annotations

import math
from typing import NamedTuple

from official.config import Config, ConfigError, values
from official.config.backends import BACKENDS
from official.distribution import strategy

_LATENCY_USECS = 10.0  # of a message between hosts, where it is not said
_LOCAL_LATENCY = 0.1  # of that, inside a host


class Network(NamedTuple):
    """The links that replicas send over: bytes per second each way, and seconds of a message."""

    replicas_per_host: int
    host_bytes_per_sec: float
    local_bytes_per_sec: float
    host_latency_secs: float
    local_latency_secs: float


class Work(NamedTuple):
    """Cost of a step of one replica alone.

    Attributes:
      row_secs: forward and backward pass of a row.
      fill: micro batches that a pipeline could work on while it fills and empties; 0 without one.
      update_secs: the optimizer, and whatever a step costs beside its micro batches.
      backward_share: of a micro batch's time, the backward pass.
      gradient_bytes: that a replica adds to the all-reduce.
      packs: all-reduces that the gradients go in.
      small_sums: all-reduces of a few numbers that a step waits for.
    """

    row_secs: float
    fill: float
    update_secs: float
    backward_share: float
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

    In each of its 2 (n - 1) rounds every replica sends a part of n; a round is as slow as its slowest link.
    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    """
    links = [(network.host_bytes_per_sec, network.host_latency_secs)] * (hosts > 1)
    links += [(network.local_bytes_per_sec, network.local_latency_secs)] * (network.replicas_per_host > 1)
    rates, latencies = zip(*links or [(math.inf, 0.0)])
    replicas = hosts * network.replicas_per_host
    return 2 * (replicas - 1) * (num_bytes / replicas / min(rates) + max(latencies))


def step_time(
    work: Work,
    network: Network,
    hosts: int,
    batch: Batch,
    overlap: float = 0.0,
    rows_per_sec: float | None = None,
) -> dict[str, float]:
    """Returns {part: seconds} of a step: `step_secs` in all, `hidden_secs` of the all-reduce behind the last
    backward pass, and `input_secs` beside it.

    Micro batches follow each other. The gradients are summed once a step, after the last of them, but for
    what hides behind its backward pass. Reading goes on meanwhile: a step takes as long as it, if that is
    more.

    Args:
      work: of a replica.
      network: the links of the replicas.
      hosts: how many.
      batch: of a replica.
      overlap: share of the last backward pass behind which the all-reduce can hide, 0 to 1.
      rows_per_sec: that a host reads; None: as many as are wanted.
    """
    micro_secs = batch.rows * work.row_secs
    compute = (batch.accumulation + work.fill) * micro_secs
    gradients = work.packs * ring_secs(network, hosts, work.gradient_bytes / work.packs)
    hidden = min(gradients, overlap * work.backward_share * micro_secs)
    waited = gradients + work.small_sums * ring_secs(network, hosts, 0.0)
    read = network.replicas_per_host * batch.accumulation * batch.rows
    reading = read / rows_per_sec if rows_per_sec else 0.0
    return {
        "step_secs": max(compute + work.update_secs + waited - hidden, reading),
        "compute_secs": compute,
        "update_secs": work.update_secs,
        "all_reduce_secs": waited,
        "hidden_secs": hidden,
        "input_secs": reading,
    }


def divided(rows: int, replicas: int, most_rows: int) -> Batch | None:
    """Returns the batch of each replica where a step's rows are shared out anew: micro batches as large as
    they were, or the next smaller ones that divide it. None where the rows cannot be shared out evenly.

    Args:
      rows: of a step of all replicas.
      replicas: how many there are now.
      most_rows: of a micro batch.
    """
    if rows % replicas:
        return None
    own = rows // replicas
    micro = next(size for size in range(min(most_rows, own), 0, -1) if own % size == 0)
    return Batch(own // micro, micro)


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
      out anew, None where that is not even). Of each: sizes, seconds (see `step_time`), `sequences_per_sec`,
      `train_secs` of the run's sequences, and `efficiency`, the sequences a second over those of as many
      single hosts.

    Raises:
      ConfigError: where the all-reduce alone would take longer than the step that was measured.
    """
    if config.plan_hosts is None:
        return None
    network = _network(config, plan)
    work = work_of(config, plan, network)
    share = Batch(plan["num_accumulation_steps"], plan["micro_batch_size"])

    def step(hosts: int, batch: Batch | None, first: dict | None) -> dict | None:
        """Returns a step of some hosts, with its efficiency beside `first`, that of one."""
        if batch is None:
            return None
        secs = step_time(work, network, hosts, batch, config.plan_overlap or 0.0, config.plan_rows_per_sec)
        rows = hosts * network.replicas_per_host * batch.accumulation * batch.rows
        rate = rows * plan["sequences_per_row"] / secs["step_secs"]
        return {
            "global_batch_size": rows,
            "num_accumulation_steps": batch.accumulation,
            "micro_batch_size": batch.rows,
            "sequences_per_sec": rate,
            "efficiency": rate / hosts / first["sequences_per_sec"] if first else 1.0,
            "train_secs": plan["train_sequences"] / rate if plan["train_steps"] and rate else None,
            **secs,
        }

    def row(hosts: int, first: dict) -> dict:
        replicas = hosts * network.replicas_per_host
        same = divided(plan["global_batch_size"], replicas, plan["micro_batch_size"])
        return {
            "hosts": hosts,
            "replicas": replicas,
            "same_share": step(hosts, share, first.get("same_share")),
            "same_batch": step(hosts, same, first.get("same_batch")),
        }

    first = row(1, {})
    most = plan["global_batch_size"] // network.replicas_per_host
    lower = [hosts for hosts in range(1, math.isqrt(most) + 1) if most % hosts == 0]
    return {
        "source": "measure" if plan["measured"] else "plan_tflops",
        "replicas_per_host": network.replicas_per_host,
        "gradient_bytes": work.gradient_bytes,
        "gbps": network.host_bytes_per_sec / 1e9,
        "local_gbps": network.local_bytes_per_sec / 1e9,
        "latency_usecs": network.host_latency_secs * 1e6,
        "overlap": config.plan_overlap or 0.0,
        "rows_per_sec": config.plan_rows_per_sec,
        "sharing": sorted({*lower, *(most // hosts for hosts in lower)}),
        "hosts": [row(hosts, first) for hosts in values.read_host_counts(config.plan_hosts)],
    }


def _network(config: Config, plan: dict) -> Network:
    """Returns the links of a plan's replicas, by its settings."""
    assert config.plan_gbps is not None
    latency_usecs = config.plan_latency_usecs
    latency_secs = (_LATENCY_USECS if latency_usecs is None else latency_usecs) / 1e6
    return Network(
        plan["num_replicas"] // _hosts_of(config, plan),
        config.plan_gbps * 1e9,
        (config.plan_local_gbps or config.plan_gbps) * 1e9,
        latency_secs,
        latency_secs * _LOCAL_LATENCY,
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
    return plan["num_replicas"] // strategy.planned_replicas(config)


def work_of(config: Config, plan: dict, network: Network) -> Work:
    """Returns the cost of a step of one replica alone: by the step that was measured, else by --plan_tflops.

    Raises:
      ConfigError: where the all-reduce alone would take longer than the step that was measured.
    """
    accumulation = plan["num_accumulation_steps"]
    imbalance, fill = _pipeline(plan["pipeline"], accumulation)
    gradient_bytes = plan["all_reduce_bytes"]
    pack_bytes = config.allreduce_bytes_per_pack if config.explicit_allreduce else 0
    work = Work(
        row_secs=0.0,
        fill=fill,
        update_secs=config.plan_update_secs or 0.0,
        backward_share=3 / 4 if config.recompute == "block" else 2 / 3,
        gradient_bytes=gradient_bytes,
        packs=math.ceil(gradient_bytes / pack_bytes) if pack_bytes else 1,
        small_sums=_small_sums(config, plan),
    )
    if not plan["measured"]:
        row_secs = plan["expected"]["matmul_secs"] * imbalance / plan["replica_batch_size"]
        return work._replace(row_secs=row_secs)
    # The step that was measured has the bubble, the all-reduce inside its host and the update in it.
    step_secs = plan["measured"]["step_secs"]
    rest = step_time(work, network, 1, Batch(accumulation, plan["micro_batch_size"]))["step_secs"]
    if rest >= step_secs:
        raise ConfigError(
            f"the measured step took {step_secs:.3g} s, its all-reduce and --plan_update_secs alone would"
            f" take {rest:.3g} s. Raise --plan_local_gbps, or lower --plan_update_secs."
        )
    rows = (accumulation + fill) * plan["micro_batch_size"]
    return work._replace(row_secs=(step_secs - rest) / rows)


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
