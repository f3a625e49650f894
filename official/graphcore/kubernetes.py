"""The IPUJob of Graphcore's operator, with the fields of its published manifests and no others.

A configuration of ours runs in two steps, since Graphcore's SDK has another Python: in the first the
project's image writes the configuration and puts the package beside it, in the second the SDK's image runs
them.

Source: https://docs.graphcore.ai/projects/kubernetes-user-guide/en/latest/creating-ipujob.html,
https://epcced.github.io/eidf-docs/services/graphcore/training/L2_multiple_IPU/
"""

from __future__ import annotations

import shlex

from official.graphcore import poprun
from official.graphcore.poprun import DIALECTS
from official.launching.manifests import Document, Job, amount, literal, mounts, volumes

SDK_IMAGE = "graphcore/tensorflow:2"
_FOLDER = "/job"
_CONFIG = f"{_FOLDER}/run.json"
_SHELL = ["/bin/bash", "-c", "--"]
_SHARED, _HANDED_ON = "devshm", "job"
# What the configuration names of the package, such as a model, is there, too, and in the same place for both.
_COPY = f"""\
import official, pathlib, shutil
shutil.copytree(official.__path__[0], "{_FOLDER}/official")
file = pathlib.Path("{_CONFIG}")
file.write_text(file.read_text().replace(official.__path__[0], "{_FOLDER}/official"))
"""


def document(job: Job) -> Document:
    """Returns the IPUJob; its number of IPUs is known to be right."""
    mounted, volumed = mounts(job, _SHARED), volumes(job, _SHARED)
    command, where, writers = list(job.command), "", None
    if job.ipu_image:
        handed_on = {"name": _HANDED_ON, "mountPath": _FOLDER}
        command, where = ["python3", "-m", "official.graphcore", _CONFIG], f"cd {_FOLDER}\n"
        mounted.append(handed_on)
        volumed.append({"name": _HANDED_ON, "emptyDir": {}})
        plan = shlex.join([*job.command, "--plan", f"--plan_file={_CONFIG}"])
        lines = literal(f"set -e\n{plan}\npython - <<'END'\n{_COPY}END\n")
        writer = {"name": "configuration", "image": job.image, "command": _SHELL, "args": [lines]}
        writers = [{**writer, "volumeMounts": [handed_on]}]
    limits = _said({"cpu": amount(job.cpu), "memory": amount(job.memory)})
    trainer = {
        "name": job.name,
        "image": job.ipu_image or job.image,
        "command": _SHELL,
        "args": [f"{where}{_launched(job, command)}\n"],
        "env": [{"name": name, "value": value} for name, value in job.variables.items()] or None,
        "resources": {"limits": limits} if limits else None,
        # It may lock memory, which the IPUs' network reads and writes.
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": mounted,
    }
    pod = {
        "initContainers": writers,
        "containers": [_said(trainer)],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.grace_secs,
        "nodeSelector": dict(job.node_labels) or None,
        "hostIPC": True,
        "volumes": volumed,
    }
    spec = {
        "jobInstances": 1,
        "modelReplicasPerWorker": str(job.ipu_replicas) if job.ipu_replicas > 1 else None,
        "ipusPerJobInstance": str(job.ipus),
        "workers": {"template": {"spec": _said(pod)}},
    }
    metadata = {"generateName": f"{job.name}-", "namespace": job.namespace or None}
    head = {"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": _said(metadata)}
    return {**head, "spec": _said(spec)}


def _said(values: Document) -> Document:
    return {name: value for name, value in values.items() if value is not None}


def _launched(job: Job, command: list[str]) -> str:
    """Returns a line of a shell: the command itself for one replica, else under poprun, as published."""
    if job.ipu_replicas == 1:
        return f"exec {shlex.join(command)}"
    domains = poprun.link_domains(job.ipus)
    plan = poprun.PodPlan((), job.instances, job.ipu_replicas, job.ipus_per_replica, domains)
    line = poprun.command_line(plan, DIALECTS["pytorch"], tuple(command))
    return line.replace(" poprun ", " exec poprun ", 1)  # which then gets SIGTERM
