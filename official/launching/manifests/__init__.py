"""Kubernetes manifests for a run: the documents of a job, as one reads and keeps them. No TensorFlow."""

from official.launching.manifests.job import MOST_IPUS, Job, Volume, host_names, to_yaml, wrapped
from official.launching.manifests.kinds import KINDS, Kind, documents, place

__all__ = [
    "KINDS",
    "MOST_IPUS",
    "Job",
    "Kind",
    "Volume",
    "documents",
    "host_names",
    "place",
    "to_yaml",
    "wrapped",
]
