"""The processes of a run: who they are, and which of them this one is. No TensorFlow.

Whoever starts the processes says so, each in its own words; a file here reads the words of one of them.
`finding` asks all of them, and has the last word where they contradict each other.
"""

from official.config.cluster.finding import find_cluster, read_cluster
from official.config.cluster.processes import Cluster

__all__ = ["Cluster", "find_cluster", "read_cluster"]
