"""The time of an all-reduce, by algorithm: what is sent, and how many messages follow each other."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

RING, TREE, HIERARCHICAL = "ring", "tree", "hierarchical"


@dataclasses.dataclass(frozen=True)
class Network:
    """What replicas send over.

    Attributes:
      replicas_per_host: at least 1.
      host_bytes_per_sec: of a host's link to the others, each way.
      local_bytes_per_sec: of a replica's link to the others of its host, each way.
      host_latency_secs: of a message between hosts.
      local_latency_secs: of a message inside a host.
      algorithm: ring, tree or hierarchical; None: the fastest of them for each amount.
    """

    replicas_per_host: int
    host_bytes_per_sec: float
    local_bytes_per_sec: float
    host_latency_secs: float
    local_latency_secs: float
    algorithm: str | None = None


class AllReduce(NamedTuple):
    """How long an all-reduce takes.

    Attributes:
      secs: of it.
      algorithm: that takes so long.
    """

    secs: float
    algorithm: str


def all_reduce(network: Network, hosts: int, num_bytes: float) -> AllReduce:
    """Returns how long it takes until every replica has the sum of all.

    Additions take no time beside the sending.

    Args:
      network: what replicas send over.
      hosts: how many.
      num_bytes: that every replica adds.
    """
    names = (network.algorithm,) if network.algorithm else tuple(_ALGORITHMS)
    found = [AllReduce(_ALGORITHMS[name](network, hosts, num_bytes), name) for name in names]
    return min(found, key=lambda each: each.secs)


def _ring(network: Network, hosts: int, num_bytes: float) -> float:
    """Returns the seconds of one ring through all replicas, which crosses each host's link once.

    In each of its 2 (n - 1) rounds every replica sends a part of n; a round is as slow as its slowest link.
    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    """
    replicas = hosts * network.replicas_per_host
    return _rounds(replicas, num_bytes, *_slowest(network, hosts))


def _slowest(network: Network, hosts: int) -> tuple[float, float]:
    """Returns (bytes per second, latency) of the slowest link of a ring through all replicas."""
    links = [(network.host_bytes_per_sec, network.host_latency_secs)] * (hosts > 1)
    links += [(network.local_bytes_per_sec, network.local_latency_secs)] * (network.replicas_per_host > 1)
    rates, latencies = zip(*links or [(math.inf, 0.0)])
    return min(rates), max(latencies)


def _rounds(members: int, num_bytes: float, bytes_per_sec: float, latency_secs: float) -> float:
    """Returns the seconds of the 2 (n - 1) rounds of a ring of n members."""
    return 2 * (members - 1) * (num_bytes / members / bytes_per_sec + latency_secs)


def _tree(network: Network, hosts: int, num_bytes: float) -> float:
    """Returns the seconds of two trees of hosts, each of which sums and sends out half, in small pieces; the
    replicas of a host are a chain.

    Source: Sanders, Speck and Traeff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and
    scan".
    """
    if hosts * network.replicas_per_host == 1:
        return 0.0
    depth = math.ceil(math.log2(hosts)) * network.host_latency_secs
    depth += (network.replicas_per_host - 1) * network.local_latency_secs
    return 2 * (num_bytes / _slowest(network, hosts)[0] + depth)


def _hierarchical(network: Network, hosts: int, num_bytes: float) -> float:
    """Returns the seconds of a ring inside each host, whose replicas then have a part of the host's sum each,
    and of rings between the hosts, a part each, which share the hosts' links."""
    local = _rounds(
        network.replicas_per_host, num_bytes, network.local_bytes_per_sec, network.local_latency_secs
    )
    return local + _rounds(hosts, num_bytes, network.host_bytes_per_sec, network.host_latency_secs)


_ALGORITHMS = {RING: _ring, TREE: _tree, HIERARCHICAL: _hierarchical}
ALGORITHMS = tuple(_ALGORITHMS)
