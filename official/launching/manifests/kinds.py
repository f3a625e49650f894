"""Kinds of Kubernetes jobs: a JobSet, a Job with a Service, a TFJob, a Job on a TPU, an IPUJob.

Which exit codes of `bert train` start it again is the same for all of them: 4 (a peer was lost), 143 (saved
on SIGTERM) and what kills a process do; 1, 2 and 3 would come again, and end the job.

Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy,
https://jobset.sigs.k8s.io/docs/concepts/, kubeflow/trainer at v1.9: pkg/util/train/train_util.go
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from official.launching.manifests.job import (
    Document,
    Job,
    check_ipus,
    check_tpu,
    container,
    host_names,
    metadata,
    pod_template,
)

_FINAL_CODES = [1, 2, 3]  # the target was not reached, bad input, a loss that is not finite
_SAVED_CODE = 143
_CONTAINER = "bert"
# Kubeflow starts a process again whose code is 128 or above, and no other: 4 becomes 138, which its pages
# leave to programs that want it. SIGTERM is handed on.
_TFJOB_SHELL = """\
process= early=
trap 'if [ -n "$process" ]; then kill -TERM "$process"; else early=1; fi' TERM INT
"$@" & process=$!
[ -z "$early" ] || kill -TERM "$process"
wait "$process"; code=$?
while kill -0 "$process" 2>/dev/null; do wait "$process"; code=$?; done
[ "$code" -ne 4 ] || code=138
exit "$code"
"""


class Kind(NamedTuple):
    """A kind of job.

    Attributes:
      make: job -> its documents.
      takes: what not all kinds take, by the names of a Job.
      defaults: what is taken where nothing is said.
      submit: what kubectl is told, beside -f FILE.
      middle: what stands between the name of the job and the number of a host; None: it is one host.
    """

    make: Callable[[Job], list[Document]]
    takes: tuple[str, ...]
    defaults: Mapping[str, str | int | None]
    submit: str = "apply"
    middle: str | None = None


def documents(kind: str, job: Job) -> list[Document]:
    """Returns the documents of a job of a kind in KINDS. Raises ConfigError for what it cannot be."""
    middle = KINDS[kind].middle
    if middle is not None:
        host_names(job, middle)
    return KINDS[kind].make(job)


def _jobset(job: Job) -> list[Document]:
    """Returns a JobSet with one Job: it starts all pods again where one is lost, and has the Service."""
    final = {
        "name": "trying_again_is_no_use",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": job.max_restarts, "rules": [final]},
        "replicatedJobs": [
            # Without a second try of its own: the first pod that fails ends the Job, and so starts all again.
            {"name": "worker", "replicas": 1, "template": {"spec": _indexed(job, backoff_limit=0)}}
        ],
    }
    head = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    return [{**head, "metadata": metadata(job), "spec": spec}]


def _indexed_job(job: Job) -> list[Document]:
    """Returns a Job and the Service by which its pods find each other.

    A Job replaces pods one by one. The others of a lost one exit with 4, so each restart of all is as many
    failures as there are workers.
    """
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"job-name": job.name},
        "ports": [{"name": "peers", "port": job.port}],
    }
    spec = _indexed(job, backoff_limit=job.workers * job.max_restarts)
    spec["template"]["spec"]["subdomain"] = job.name
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata(job), "spec": service},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(job), "spec": spec},
    ]


def _indexed(job: Job, backoff_limit: int) -> Document:
    """Returns the specification of a Job whose pods are numbered."""
    worker = container(job, _CONTAINER, list(job.command), _of_workers(job), port_name="peers")
    return {
        "completionMode": "Indexed",
        "completions": job.workers,
        "parallelism": job.workers,
        "backoffLimit": backoff_limit,
        "podFailurePolicy": _pod_failure_policy(),
        "template": pod_template(job, worker),
    }


def _of_workers(job: Job) -> dict[str, str]:
    """Returns the variables of a process of an Indexed Job, beside those that Kubernetes sets."""
    return {"BERT_WORKERS": str(job.workers), "BERT_SERVICE": job.name, "BERT_PORT": str(job.port)}


def place(kind: str, job: Job, rank: int) -> dict[str, str]:
    """Returns the variables from which a process of a job learns its place: the manifest's, and those that
    Kubernetes or the operator set beside them."""
    middle = KINDS[kind].middle
    if middle is None:
        return {}
    hosts = host_names(job, middle)
    if kind == "tfjob":
        workers = [f"{host}.{job.namespace or 'default'}.svc:{job.port}" for host in hosts]
        told = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        return {"TF_CONFIG": json.dumps({**told, "environment": "cloud"})} if job.workers > 1 else {}
    return {"JOB_COMPLETION_INDEX": str(rank), "HOSTNAME": hosts[rank], **_of_workers(job)}


def _pod_failure_policy() -> Document:
    """Returns the pod failure policy of a Job. An end that no rule names is a failure: code 4, or SIGKILL."""

    def codes(action: str, values: list[int]) -> Document:
        told = {"containerName": _CONTAINER, "operator": "In", "values": values}
        return {"action": action, "onExitCodes": told}

    moved = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {"rules": [codes("FailJob", _FINAL_CODES), codes("Ignore", [_SAVED_CODE]), moved]}


def _tfjob(job: Job) -> list[Document]:
    """Returns a TFJob, which has a TF_CONFIG for each worker; names of its container and port are the
    operator's."""
    command = ["/bin/bash", "-c", _TFJOB_SHELL, _CONTAINER, *job.command]
    template = pod_template(job, container(job, "tensorflow", command, {}, port_name="tfjob-port"))
    del template["spec"]["restartPolicy"]  # it follows from the policy of the replicas
    workers = {"replicas": job.workers, "restartPolicy": "ExitCode", "template": template}
    spec = {
        "runPolicy": {"cleanPodPolicy": "Running"},
        "successPolicy": "AllWorkers",
        "tfReplicaSpecs": {"Worker": workers},
    }
    head = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob"}
    return [{**head, "metadata": metadata(job), "spec": spec}]


def _tpu_job(job: Job) -> list[Document]:
    """Returns a Job of one pod, on one host with a TPU."""
    check_tpu(job)
    # How TensorFlow finds a TPU of its own machine.
    variables = {
        "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": "/lib/libtpu.so",
    }
    spec = {
        "backoffLimit": job.max_restarts,
        "podFailurePolicy": _pod_failure_policy(),
        "template": pod_template(job, container(job, _CONTAINER, list(job.command), variables)),
    }
    return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(job), "spec": spec}]


def _ipujob(job: Job) -> list[Document]:
    check_ipus(job)
    return [importlib.import_module("official.graphcore.kubernetes").document(job)]


_WORKERS = ("workers", "gpus", "port")
_USUAL = {"cpu": None, "memory": None, "shm": "16Gi", "grace_secs": 120}
_OF_IPUS = {"cpu": "32", "memory": "200Gi", "shm": "10Gi", "grace_secs": None}  # as published
KINDS = {
    "jobset": Kind(_jobset, (*_WORKERS, "max_restarts"), _USUAL, middle="-worker-0-"),
    "indexed_job": Kind(_indexed_job, (*_WORKERS, "max_restarts"), _USUAL, middle="-"),
    "tfjob": Kind(_tfjob, _WORKERS, _USUAL, middle="-worker-"),
    "tpu_job": Kind(_tpu_job, ("tpu_type", "tpu_topology", "max_restarts"), _USUAL),
    "ipujob": Kind(_ipujob, ("ipus", "ipus_per_replica", "instances", "ipu_image"), _OF_IPUS, "create"),
}
