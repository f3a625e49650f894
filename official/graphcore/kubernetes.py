"""The IPUJob of Graphcore's operator, with the fields of its published manifests and no others.

A configuration of this project runs in two steps, since Graphcore's SDK has another Python: the project's
image writes the configuration and copies the package next to it, then the SDK's image runs both.

Source: https://docs.graphcore.ai/projects/kubernetes-user-guide/en/latest/creating-ipujob.html,
https://epcced.github.io/eidf-docs/services/graphcore/training/L2_multiple_IPU/
"""

from __future__ import annotations

import shlex

from official.graphcore import poprun
from official.graphcore.poprun import DIALECTS
from official.launching.manifests import Document, Job, amount, literal, made, mounts, volumes

SDK_IMAGE = "graphcore/tensorflow:2"
_FOLDER = "/job"
_CONFIG = f"{_FOLDER}/run.json"
_SHARED, _HANDED_ON = "devshm", "job"
# Files of the package in the configuration, such as a model, are copied, too, to the same path in both
# images.
_COPY = f"""\
import official, pathlib, shutil
shutil.copytree(official.__path__[0], "{_FOLDER}/official")
file = pathlib.Path("{_CONFIG}")
file.write_text(file.read_text().replace(official.__path__[0], "{_FOLDER}/official"))
"""


def documents(job: Job) -> list[Document]:
    """Returns the IPUJob; its number of IPUs has already been checked."""
    mounted, volumed = mounts(job, _SHARED), volumes(job, _SHARED)
    command, where, writers = job.command, "", None
    if job.ipu_image:
        handed_on = {"name": _HANDED_ON, "mountPath": _FOLDER}
        command, where = ("python3", "-m", "official.graphcore", _CONFIG), f"cd {_FOLDER}\n"
        mounted.append(handed_on)
        volumed.append({"name": _HANDED_ON, "emptyDir": {}})
        plan = shlex.join([*job.command, "--plan", f"--plan_file={_CONFIG}"])
        lines = literal(f"set -e\n{plan}\npython - <<'END'\n{_COPY}END\n")
        writers = [made("ipujob_writer", job, script=lines, handed_on=handed_on)]
    limits = {name: amount(text) for name, text in (("cpu", job.cpu), ("memory", job.memory)) if text}
    return made(
        "ipujob",
        job,
        prefix=f"{job.name}-",
        image=job.ipu_image or job.image,
        script=f"{where}{_launched(job, command)}\n",
        writers=writers,
        resources={"limits": limits} if limits else None,
        mounts=mounted,
        volumes=volumed,
        ipus=str(job.ipus),
        replicas=str(job.ipu_replicas) if job.ipu_replicas > 1 else None,
    )


def _launched(job: Job, command: tuple[str, ...]) -> str:
    """Returns a shell line: the command itself for one replica, otherwise under poprun, as published."""
    if job.ipu_replicas == 1:
        return f"exec {shlex.join(command)}"
    domains = poprun.link_domains(job.ipus)
    plan = poprun.PodPlan((), job.instances, job.ipu_replicas, job.ipus_per_replica, domains)
    line = poprun.command_line(plan, DIALECTS["pytorch"], command)
    return line.replace(" poprun ", " exec poprun ", 1)  # exec, so that poprun receives SIGTERM
