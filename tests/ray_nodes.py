"""A Ray cluster of two nodes on this machine, for tests: python -m tests.ray_nodes

Writes, in a line each, the address and the process of the second node's raylet; ends all when stdin does.
"""

import sys

from official.io import ray_engine


def main() -> None:
    with ray_engine.ending_all_children():
        from ray.cluster_utils import Cluster

        settings = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=settings)
        second = cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
        cluster.wait_for_nodes()
        (raylet,) = second.all_processes["raylet"]
        print(cluster.address, raylet.process.pid, sep="\n", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
