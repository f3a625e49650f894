"""The pod of a worker: its container, volumes, resources and rights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from official.launching.manifests.job import Job

Document = dict[str, Any]
_USER = 10001  # of the project's images


def labels(job: Job) -> Document:
    """Returns the labels of a job and its pods."""
    return {"app.kubernetes.io/name": job.name}


def metadata(job: Job, name: str = "name") -> Document:
    """Returns the metadata of a document: its `name`, or `generateName` for the server to make one of."""
    space = {"namespace": job.namespace} if job.namespace else {}
    return {name: job.name, **space, "labels": labels(job)}


def pod_template(job: Job, container: Document) -> Document:
    """Returns the template of pods that run one container as a user without rights.

    SIGTERM comes to the program itself, which saves; `grace_secs` later comes SIGKILL.
    """
    grace = {} if job.grace_secs is None else {"terminationGracePeriodSeconds": job.grace_secs}
    spec = {
        "restartPolicy": "Never",
        **grace,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **_node_selector(job),
        "containers": [container],
        "volumes": volumes(job, "shm"),
    }
    return {"metadata": {"labels": labels(job)}, "spec": spec}


def _node_selector(job: Job) -> Document:
    tpu = {
        "cloud.google.com/gke-tpu-accelerator": job.tpu_type,
        "cloud.google.com/gke-tpu-topology": job.tpu_topology,
    }
    wanted = {**(tpu if job.tpu_type else {}), **job.node_labels}
    return {"nodeSelector": wanted} if wanted else {}


def container(
    job: Job, name: str, command: list[str], variables: Mapping[str, str], port_name: str = ""
) -> Document:
    """Returns a container that runs the job's image.

    Args:
      job: what is asked for.
      name: of the container.
      command: its words, which Kubernetes takes as they are.
      variables: of the environment, before those of the job.
      port_name: of the port of the job; empty: others need not reach this container.
    """
    environment = {**variables, **job.variables}
    port = [{"name": port_name, "containerPort": job.port, "protocol": "TCP"}] if port_name else []
    found: Document = {"name": name, "image": job.image, "command": [literal(word) for word in command]}
    if environment:
        found["env"] = [{"name": each, "value": value} for each, value in environment.items()]
    if port:
        found["ports"] = port
    resources = _resources(job)
    if resources:
        found["resources"] = resources
    found["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    found["volumeMounts"] = mounts(job, "shm")
    return found


def literal(word: str) -> str:
    """Returns a word of a command as Kubernetes has to be given it: it would put variables in for $(NAME)."""
    return word.replace("$(", "$$(")


def _resources(job: Job) -> Document:
    """Returns the resources of a worker. Devices are whole; memory is not shared out twice, cores may be."""
    devices: Document = {"nvidia.com/gpu": job.gpus} if job.gpus else {}
    if job.tpu_type:
        devices = {"google.com/tpu": job.tpu_chips}
    memory = {"memory": amount(job.memory)} if job.memory else {}
    cores = {"cpu": amount(job.cpu)} if job.cpu else {}
    # Of devices Kubernetes takes the limit for the request; GKE's page of TPUs has both.
    requests, limits = {**cores, **memory, **(devices if job.tpu_type else {})}, {**memory, **devices}
    return {name: part for name, part in (("requests", requests), ("limits", limits)) if part}


def amount(text: str | None) -> str | int | None:
    """Returns a quantity as YAML has it: a whole number as one."""
    return int(text) if text and text.isdigit() else text


def mounts(job: Job, memory: str) -> list[Document]:
    """Returns the volume mounts of a container; `memory` is the name of the volume of /dev/shm."""
    found: list[Document] = [{"name": memory, "mountPath": "/dev/shm"}]
    for volume in job.volumes:
        read_only = {"readOnly": True} if volume.is_read_only else {}
        found.append({"name": _volume_name(job, volume.claim), "mountPath": volume.path, **read_only})
    return found


def volumes(job: Job, memory: str) -> list[Document]:
    """Returns the volumes of a pod: memory for /dev/shm, and the claims."""
    found: list[Document] = [{"name": memory, "emptyDir": {"medium": "Memory", "sizeLimit": job.shm}}]
    claims = list(dict.fromkeys(volume.claim for volume in job.volumes))
    for claim in claims:
        found.append({"name": _volume_name(job, claim), "persistentVolumeClaim": {"claimName": claim}})
    return found


def _volume_name(job: Job, claim: str) -> str:
    """Returns the name of a claim's volume within its pod: a label, which a claim's name need not be."""
    claims = list(dict.fromkeys(volume.claim for volume in job.volumes))
    return f"volume-{claims.index(claim)}"
