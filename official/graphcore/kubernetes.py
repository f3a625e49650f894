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
    space = {"namespace": job.namespace} if job.namespace else {}
    replicas = {"modelReplicasPerWorker": str(job.ipu_replicas)} if job.ipu_replicas > 1 else {}
    spec = {
        "jobInstances": 1,
        **replicas,
        "ipusPerJobInstance": str(job.ipus),
        "workers": {"template": {"spec": _pod(job)}},
    }
    head = {"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob"}
    return {**head, "metadata": {"generateName": f"{job.name}-", **space}, "spec": spec}


def _pod(job: Job) -> Document:
    grace = {} if job.grace_secs is None else {"terminationGracePeriodSeconds": job.grace_secs}
    labels = {"nodeSelector": dict(job.node_labels)} if job.node_labels else {}
    parts: Document = {"containers": [_trainer(job)]}
    found = volumes(job, _SHARED)
    if job.ipu_image:
        parts = {"initContainers": [_writer(job)], **parts}
        found.append({"name": _HANDED_ON, "emptyDir": {}})
    return {**parts, "restartPolicy": "Never", **grace, **labels, "hostIPC": True, "volumes": found}


def _writer(job: Job) -> Document:
    """Returns the container that writes the configuration, and copies the package."""
    plan = shlex.join([*job.command, "--plan", f"--plan_config_file={_CONFIG}"])
    lines = f"set -e\n{plan}\npython - <<'END'\n{_COPY}END\n"
    found: Document = {"name": "configuration", "image": job.image, "command": _SHELL}
    return {**found, "args": [literal(lines)], "volumeMounts": [_handed_on()]}


def _handed_on() -> Document:
    return {"name": _HANDED_ON, "mountPath": _FOLDER}


def _trainer(job: Job) -> Document:
    """Returns the container that has the IPUs. It may lock memory, which their network reads and writes."""
    command, where = list(job.command), ""
    mounted = mounts(job, _SHARED)
    if job.ipu_image:
        command, where = ["python3", "-m", "official.graphcore", _CONFIG], f"cd {_FOLDER}\n"
        mounted.append(_handed_on())
    line = f"{where}{_launched(job, command)}\n"
    found: Document = {
        "name": job.name,
        "image": job.ipu_image or job.image,
        "command": _SHELL,
        "args": [line],
    }
    if job.variables:
        found["env"] = [{"name": name, "value": value} for name, value in job.variables.items()]
    asked = {"cpu": amount(job.cpu), "memory": amount(job.memory)}
    limits = {name: value for name, value in asked.items() if value is not None}
    if limits:
        found["resources"] = {"limits": limits}
    found["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    found["volumeMounts"] = mounted
    return found


def _launched(job: Job, command: list[str]) -> str:
    """Returns a line of a shell: the command itself for one replica, else under poprun, as published."""
    if job.ipu_replicas == 1:
        return f"exec {shlex.join(command)}"
    domains = poprun.link_domains(job.ipus)
    plan = poprun.PodPlan((), job.instances, job.ipu_replicas, job.ipus_per_replica, domains)
    line = poprun.command_line(plan, DIALECTS["pytorch"], tuple(command))
    return line.replace(" poprun ", " exec poprun ", 1)  # which then gets SIGTERM
