"""Kubernetes manifests of a run: a JobSet, a Job with a Service, a TFJob, a Job on a TPU, an IPUJob."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from official.io.errors import ConfigError, printable

# -----------------------------------------------------------------------------------------------------------
# YAML


_WIDEST = 110


def to_yaml(documents: Iterable[dict[str, Any]], comments: Iterable[str] = ()) -> str:
    """Returns documents as YAML, with `comments` as comment lines on top."""
    import yaml  # late: few commands write it

    class Dumper(yaml.SafeDumper):
        """Indents lists, and writes no anchors for shared values."""

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else "'" if _is_other_than_text(value) else None
        style = style if value.replace("\n", "").isprintable() else '"'  # with escapes
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)

    Dumper.add_representer(str, text)
    parts = [
        yaml.dump(each, Dumper=Dumper, sort_keys=False, width=_WIDEST, allow_unicode=True)
        for each in documents
    ]
    # Line ends of any kind would end the comment.
    head = "".join(f"# {printable(line)}".rstrip() + "\n" for line in comments)
    return head + "---\n".join(parts)


def _is_other_than_text(value: str) -> bool:
    """Tells whether some YAML readers take a bare word for another type: Kubernetes reads y as a boolean and
    1e3 as a number, PyYAML does not."""
    if value.lower() in ("y", "n") or re.fullmatch(r"[-+]?0o[0-7_]+", value):
        return True
    try:
        return bool(float(value) or True)
    except ValueError:
        return False


def _quoted(word: str) -> str:
    """Quotes a word for bash, on one line even if it has line ends."""
    if word.isprintable():
        return shlex.quote(word)
    escapes = {"\\": "\\\\", "'": "\\'"}
    for letter in word:
        if not letter.isprintable():
            escapes[letter] = f"\\x{ord(letter):02x}" if letter.isascii() else f"\\U{ord(letter):08x}"
    return f"$'{''.join(escapes.get(letter, letter) for letter in word)}'"


def wrapped(words: Iterable[str], indent: str = "") -> list[str]:
    """Returns a command as lines that fit a comment; all but the last need a backslash at their end."""
    lines, room = [indent], _WIDEST - len("# ") - len(" \\")
    for word in map(_quoted, words):
        if len(lines[-1]) + 1 + len(word) > room and lines[-1].strip():
            lines.append(f"{indent}  ")
        lines[-1] += word if not lines[-1].strip() else f" {word}"
    return lines


# -----------------------------------------------------------------------------------------------------------
# Pods


Document = dict[str, Any]


def literal(word: str) -> str:
    """Returns a word of a command, escaped for Kubernetes, which would expand $(NAME)."""
    return word.replace("$(", "$$(")


def amount(text: str | None) -> str | int | None:
    """Returns a quantity for YAML: an int for a whole number."""
    return int(text) if text and text.isdigit() else text


def mounts(job: Job, memory: str) -> list[Document]:
    """Returns the volume mounts of a container; `memory` is the name of the volume of /dev/shm."""
    found: list[Document] = [{"name": memory, "mountPath": "/dev/shm"}]
    for claim, path, is_read_only in job.volumes:
        mount = {"name": _volume_names(job)[claim], "mountPath": path}
        found.append({**mount, "readOnly": True} if is_read_only else mount)
    return found


def volumes(job: Job, memory: str) -> list[Document]:
    """Returns the volumes of a pod: memory for /dev/shm, and the claims."""
    found: list[Document] = [{"name": memory, "emptyDir": {"medium": "Memory", "sizeLimit": job.shm}}]
    for claim, name in _volume_names(job).items():
        found.append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
    return found


def _volume_names(job: Job) -> dict[str, str]:
    """Returns {claim: volume name in the pod}: a volume name must be a DNS label, a claim's name need not."""
    claims = dict.fromkeys(volume.claim for volume in job.volumes)
    return {claim: f"volume-{number}" for number, claim in enumerate(claims)}


# -----------------------------------------------------------------------------------------------------------
# Jobs


MOST_IPUS = 64  # of a partition of the IPU operator
_LONGEST_NAME = 63  # of a host, and of a pod including the six characters that its Job appends
_APPENDED = 6
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUANTITY = re.compile(r"(?=.*[1-9])\d+(\.\d+)?(m|k|[KMGTPE]i?)?")
_IMAGE = re.compile(r"[^\s:@/-](\S*[^\s:@/])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Volume(NamedTuple):
    """An existing volume, mounted in every pod.

    Attributes:
      claim: name of its PersistentVolumeClaim.
      path: mount path.
      is_read_only: whether pods only read it.
    """

    claim: str
    path: str
    is_read_only: bool = False


@dataclasses.dataclass(frozen=True)
class Job:
    """Settings of a job. Fields that a kind does not use keep their defaults.

    Attributes:
      name: name of the job and its objects; for IPUJobs, the prefix of their names.
      image: container image with this project.
      command: command of each container.
      namespace: None: kubectl's current one.
      workers: number of pods, one process each.
      gpus: number of GPUs per worker.
      tpu_type, tpu_topology: the labels of the node, such as tpu-v3-device and 2x2.
      ipus, ipus_per_replica: number of IPUs of the job and of a replica; both are powers of two.
      instances: number of processes that share the replicas evenly, on IPUs.
      ipu_image: image with Graphcore's SDK, for `bert train` on IPUs.
      cpu, memory: resource requests of a worker in Kubernetes' notation: 8, 64Gi. None: no request.
      shm: size of /dev/shm, which counts as memory.
      volumes: mounted volumes.
      variables: environment variables, besides those of rank and addresses.
      node_labels: labels that a node must have.
      port: port at which the other processes reach a process.
      max_restarts: maximum number of restarts of the whole job.
      grace_secs: seconds from SIGTERM to SIGKILL.
    """

    name: str
    image: str
    command: tuple[str, ...]
    namespace: str | None = None
    workers: int = 1
    gpus: int = 0
    tpu_type: str = ""
    tpu_topology: str = ""
    ipus: int = 4
    ipus_per_replica: int = 4
    instances: int = 1
    ipu_image: str | None = None
    cpu: str | None = None
    memory: str | None = None
    shm: str = "16Gi"
    volumes: tuple[Volume, ...] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    node_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    port: int = 2222
    max_restarts: int = 10
    grace_secs: int | None = 120

    def __post_init__(self) -> None:
        """Raises ConfigError for values that no kind of job accepts."""
        _expect(_of_all(self))

    @property
    def ipu_replicas(self) -> int:
        """Returns the number of replicas of the IPUs."""
        return self.ipus // self.ipus_per_replica


def host_names(job: Job, middle: str) -> list[str]:
    """Returns the names of a job's hosts, without the name of their service.

    Args:
      job: the job.
      middle: text between the name of the job and the number of a host.

    Raises:
      ConfigError: if one of them, or the name of its pod, is too long for Kubernetes.
    """
    names = [f"{job.name}{middle}{rank}" for rank in range(job.workers)]
    too_many = len(names[-1]) + _APPENDED - _LONGEST_NAME
    if too_many > 0:
        raise ConfigError(
            f"--name={job.name[:80]} makes pods {names[-1][:90]}-XXXXX, but names in Kubernetes have at most"
            f" {_LONGEST_NAME} characters. Give a --name of at most {len(job.name) - too_many} characters."
        )
    return names


Refusals = Iterator[tuple[object, str]]  # (whether a value is valid, error message if not)


def _expect(rows: Refusals) -> None:
    for is_right, message in rows:
        if not is_right:
            raise ConfigError(message)


def _of_ipus(job: Job) -> Refusals:
    """Yields the rules on IPUs, replicas and instances."""
    allowed, own = [1 << power for power in range(MOST_IPUS.bit_length())], job.ipus_per_replica
    listed, replicas = ", ".join(map(str, allowed)), f"--ipus={job.ipus} / --ipus_per_replica={own}"
    yield job.ipus in allowed, f"--ipus={job.ipus}, expected a power of two: {listed}."
    yield own in allowed, f"--ipus_per_replica={own}, expected a power of two: {listed}."
    yield (
        own <= job.ipus,
        f"--ipus_per_replica={own} is more than --ipus={job.ipus}, expected as many at most.",
    )
    problem = f"--instances={job.instances} does not divide the replicas, {replicas} = {job.ipu_replicas}"
    yield job.ipu_replicas % job.instances == 0, f"{problem}. Expected a power of two up to that."


def _of_tpu(job: Job) -> Refusals:
    """Yields the rules on topologies and labels."""
    topology, label = job.tpu_topology, job.tpu_type
    fits = re.fullmatch(r"[1-9]\d?(x[1-9]\d?){1,2}", topology)
    yield fits, f"--tpu_topology={topology[:40]}, expected chips by chips, such as 2x2."
    fits = re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", label)
    yield fits, f"--tpu_type={label[:40]}, expected the node's label, such as tpu-v3-device."


def _of_all(job: Job) -> Refusals:
    """Yields the rules for every kind of job."""
    for flag, name in (("name", job.name), ("namespace", job.namespace)):
        letters = f"at most {_LONGEST_NAME} of a-z, 0-9 and -, the first a letter, the last no -"
        fits = name is None or _DNS_LABEL.fullmatch(name) and len(name) <= _LONGEST_NAME
        yield fits, f"--{flag}={str(name)[:80]}, expected {letters}."
    for flag, image in (("image", job.image), ("ipu_image", job.ipu_image)):
        fits = image is None or _IMAGE.fullmatch(image) and image.isprintable()
        yield fits, f"--{flag}={str(image)[:80]!r}, expected the name of an image, such as HOST/bert:1.0."
    for flag, text in (("cpu", job.cpu), ("memory", job.memory), ("shm", job.shm)):
        example = "an amount as Kubernetes writes it, such as 8 or 64Gi"
        yield text is None or _QUANTITY.fullmatch(text), f"--{flag}={str(text)[:40]}, expected {example}."
    paths = ["/dev/shm", *(volume.path for volume in job.volumes)]
    for claim, path, _ in job.volumes:
        is_path = path.startswith("/") and ".." not in path.split("/") and ":" not in path
        is_path = is_path and path.isprintable() and bool(path.strip("/"))
        message = f"--volume={claim[:60]}:{path[:60]}, expected CLAIM:/PATH or CLAIM:/PATH:ro."
        yield is_path and _DNS_NAME.fullmatch(claim), message
        yield paths.count(path) == 1, f"--volume: {path} is mounted twice, expected one volume per path."
    for name in job.variables:
        message = f"--env={name[:60]}: expected NAME=VALUE, with a name of letters, digits, _."
        yield _VARIABLE.fullmatch(name), message
    yield job.command, "no command. Give one after --, such as -- bert train --config=quickstart."


# -----------------------------------------------------------------------------------------------------------
# Kinds
#
# All kinds restart `bert train` after the same exit codes: 4 (a peer was lost), 143 (saved on SIGTERM) and
# kills by signals. 1, 2 and 3 would occur again, and end the job.
#
# Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy,
# https://jobset.sigs.k8s.io/docs/concepts/, kubeflow/trainer at v1.9: pkg/util/train/train_util.go


_CONTAINER = "bert"


class Kind(NamedTuple):
    """A kind of job.

    Attributes:
      make: job -> its documents.
      takes: the fields of a Job that this kind uses and others do not.
      defaults: values of unset fields.
      submit: arguments of kubectl, without -f FILE.
      middle: text between the name of the job and the number of a host; None for a single host.
    """

    make: Callable[[Job], list[Document]]
    takes: tuple[str, ...]
    defaults: Mapping[str, str | int | None]
    submit: str = "apply"
    middle: str | None = None


def documents(kind: str, job: Job) -> list[Document]:
    """Returns the documents of a job of a kind in KINDS. Raises ConfigError if the kind does not allow its
    values."""
    middle = KINDS[kind].middle
    if middle is not None:
        host_names(job, middle)
    return KINDS[kind].make(job)


@functools.lru_cache(maxsize=1)
def _templates() -> Document:
    """Returns jobs.yml: {name: document with $NAMES}."""
    import yaml  # late: few commands write it

    with open(os.path.join(os.path.dirname(__file__), "jobs.yml"), encoding="utf-8") as file:
        return yaml.safe_load(file)


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    """Fills in the $NAMES of a part of a template; drops keys whose value is None."""
    if isinstance(part, dict):
        filled = {key: _filled(each, values) for key, each in part.items()}
        return {key: value for key, value in filled.items() if value is not None}
    if isinstance(part, list):
        return [_filled(each, values) for each in part]
    return values[part[1:]] if isinstance(part, str) and part.startswith("$") else part


def made(
    kind: str, job: Job, variables: Mapping[str, str] | None = None, backoff_limit: int = 0, **more
) -> Any:
    """Returns the documents of a kind, or a part of them.

    Args:
      kind: its name in jobs.yml.
      job: settings of the job.
      variables: environment variables, in front of those of the job.
      backoff_limit: backoffLimit of the Job.
      more: values that replace the default ones of the template.
    """
    # Memory has a limit equal to its request, cores have none. For devices Kubernetes uses the limit as the
    # request; GKE's page on TPUs sets both.
    sides = job.tpu_topology.split("x") if job.tpu_type else ()
    tpu = {"google.com/tpu": math.prod(map(int, sides))} if sides else {}  # chips
    memory = {"memory": amount(job.memory)} if job.memory else {}
    cores = {"cpu": amount(job.cpu)} if job.cpu else {}
    gpus = {"nvidia.com/gpu": job.gpus} if job.gpus and not tpu else {}
    resources = {"requests": {**cores, **memory, **tpu}, "limits": {**memory, **gpus, **tpu}}
    labels, of_gke = dict(job.node_labels), "cloud.google.com/gke-tpu"
    if job.tpu_type:
        of_tpu = {f"{of_gke}-accelerator": job.tpu_type, f"{of_gke}-topology": job.tpu_topology}
        labels = of_tpu | labels
    environment = {**(variables or {}), **job.variables}
    usual: dict[str, Any] = dict(name=job.name, labels={"app.kubernetes.io/name": job.name})
    usual |= dict(namespace=job.namespace or None, container=_CONTAINER, image=job.image, port=job.port)
    usual["command"] = [literal(word) for word in job.command]
    usual["env"] = [{"name": each, "value": value} for each, value in environment.items()] or None
    usual["ports"] = [{"name": "peers", "containerPort": job.port, "protocol": "TCP"}]
    usual["resources"] = {name: part for name, part in resources.items() if part} or None
    usual |= dict(mounts=mounts(job, "shm"), volumes=volumes(job, "shm"), node_selector=labels or None)
    usual |= dict(pod_restarts="Never", grace_secs=job.grace_secs, subdomain=None, workers=job.workers)
    usual |= dict(max_restarts=job.max_restarts, backoff_limit=backoff_limit)
    return _filled(_templates()[kind], usual | more)


def _jobset(job: Job) -> list[Document]:
    """Returns a JobSet. Its Job does not retry: the first failed pod ends it, and the JobSet restarts all."""
    return made("jobset", job, _of_workers(job))


def _indexed_job(job: Job) -> list[Document]:
    """Returns a Service and a Job, which replaces pods one by one. After a lost pod the others exit with 4,
    so each restart of all counts as one failure per worker."""
    limit = job.workers * job.max_restarts
    return made("indexed_job", job, _of_workers(job), limit, subdomain=job.name)


def _tfjob(job: Job) -> list[Document]:
    command = ["/bin/bash", "-c", _templates()["tfjob_shell"], _CONTAINER, *job.command]
    ports = [{"name": "tfjob-port", "containerPort": job.port, "protocol": "TCP"}]
    words = [literal(word) for word in command]
    # The restartPolicy of the replicas decides when pods restart.
    return made("tfjob", job, {}, container="tensorflow", command=words, ports=ports, pod_restarts=None)


def _tpu_job(job: Job) -> list[Document]:
    _expect(_of_tpu(job))
    # Variables by which TensorFlow finds the TPU of its machine.
    variables = {
        "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": "/lib/libtpu.so",
    }
    return made("tpu_job", job, variables, job.max_restarts, ports=None)


def _of_workers(job: Job) -> dict[str, str]:
    """Returns the environment variables of a process of an Indexed Job, besides those that Kubernetes
    sets."""
    return {"BERT_WORKERS": str(job.workers), "BERT_SERVICE": job.name, "BERT_PORT": str(job.port)}


def place(kind: str, job: Job, rank: int) -> dict[str, str]:
    """Returns the environment variables with the rank and addresses of a process: the manifest's, and those
    that Kubernetes or the operator adds."""
    middle = KINDS[kind].middle
    if middle is None:
        return {}
    hosts = host_names(job, middle)
    if kind == "tfjob":
        workers = [f"{host}.{job.namespace or 'default'}.svc:{job.port}" for host in hosts]
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        return {"TF_CONFIG": json.dumps({**config, "environment": "cloud"})} if job.workers > 1 else {}
    return {"JOB_COMPLETION_INDEX": str(rank), "HOSTNAME": hosts[rank], **_of_workers(job)}


def _ipujob(job: Job) -> list[Document]:
    _expect(_of_ipus(job))
    return importlib.import_module("official.graphcore.kubernetes").documents(job)


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
