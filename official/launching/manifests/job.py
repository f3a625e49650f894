"""A job that people ask for, whatever kind it becomes, and what of it can be wrong by itself."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from official.io.errors import ConfigError

MOST_IPUS = 64  # of a partition that the IPU operator makes
_LONGEST_NAME = 63  # of a host, and of a pod with the six characters that its Job appends
_APPENDED = 6
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUANTITY = re.compile(r"(?=.*[1-9])\d+(\.\d+)?(m|k|[KMGTPE]i?)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True)
class Volume:
    """A volume that is there, mounted in every pod.

    Attributes:
      claim: name of its PersistentVolumeClaim.
      path: where it is mounted.
      is_read_only: whether pods only read it.
    """

    claim: str
    path: str
    is_read_only: bool = False


@dataclasses.dataclass(frozen=True)
class Job:
    """A job. What a kind does not take is left at its default.

    Attributes:
      name: of the job and all that it makes; of IPUJobs what their names begin with.
      image: of the container, with this project in it.
      command: what each container runs.
      namespace: None: the one that kubectl is set to.
      workers: pods, one process each.
      gpus: of each worker.
      tpu_type, tpu_topology: the labels of the node, such as tpu-v3-device and 2x2.
      ipus, ipus_per_replica: IPUs of the job and of a replica; both are powers of two.
      instances: processes that share the replicas out among themselves, on IPUs.
      ipu_image: image with Graphcore's SDK, in which a configuration of ours runs.
      cpu, memory: what a worker asks for, as Kubernetes writes it: 8, 64Gi. None: nothing is asked for.
      shm: size of /dev/shm, which is memory.
      volumes: what is mounted.
      variables: of the environment, beside those that tell a process its place.
      node_labels: that a node must have.
      port: on which a process is reached by the others.
      max_restarts: of the whole job.
      grace_secs: from SIGTERM to SIGKILL.
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
        """Raises ConfigError for what no kind of job takes."""
        _check_names(self)
        _check_quantities(self)
        _check_volumes(self.volumes)
        for name in self.variables:
            if not _VARIABLE.fullmatch(name):
                raise ConfigError(
                    f"--env={name[:60]}: expected NAME=VALUE, with a name of letters, digits, _."
                )
        if not self.command:
            raise ConfigError("no command. Give one after --, such as -- bert train --config=quickstart.")

    @property
    def tpu_chips(self) -> int:
        """Returns the chips of the TPU: the product of its topology."""
        return math.prod(int(side) for side in self.tpu_topology.split("x"))

    @property
    def ipu_replicas(self) -> int:
        """Returns the replicas that the IPUs are for."""
        return self.ipus // self.ipus_per_replica


def host_names(job: Job, middle: str) -> list[str]:
    """Returns the names of a job's hosts, without the name of their service.

    Args:
      job: with its number of workers.
      middle: what stands between the name of the job and the number of a host.

    Raises:
      ConfigError: where one of them, or the name of its pod, is longer than Kubernetes takes.
    """
    names = [f"{job.name}{middle}{rank}" for rank in range(job.workers)]
    longest = len(names[-1]) + _APPENDED
    if longest > _LONGEST_NAME:
        room = len(job.name) - (longest - _LONGEST_NAME)
        raise ConfigError(
            f"--name={job.name[:80]} makes {names[-1][:90]} with {_APPENDED} characters more, Kubernetes"
            f" takes {_LONGEST_NAME}. Give a --name of at most {room} characters."
        )
    return names


def check_ipus(job: Job) -> None:
    """Raises ConfigError where IPUs, replicas and instances do not go together."""
    allowed = [1 << power for power in range(MOST_IPUS.bit_length())]
    listed = ", ".join(map(str, allowed))
    for name, value in (("ipus", job.ipus), ("ipus_per_replica", job.ipus_per_replica)):
        if value not in allowed:
            raise ConfigError(f"--{name}={value}, expected a power of two: {listed}.")
    if job.ipus_per_replica > job.ipus:
        raise ConfigError(
            f"--ipus_per_replica={job.ipus_per_replica} is more than --ipus={job.ipus}, expected as many at"
            " most."
        )
    if job.ipu_replicas % job.instances:
        raise ConfigError(
            f"--instances={job.instances} does not divide the replicas, --ipus={job.ipus} /"
            f" --ipus_per_replica={job.ipus_per_replica} = {job.ipu_replicas}. Expected a power of two up to"
            " that."
        )


def check_tpu(job: Job) -> None:
    """Raises ConfigError for what is no topology."""
    if not re.fullmatch(r"[1-9]\d?(x[1-9]\d?){1,2}", job.tpu_topology):
        raise ConfigError(f"--tpu_topology={job.tpu_topology[:40]}, expected chips by chips, such as 2x2.")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", job.tpu_type):
        raise ConfigError(
            f"--tpu_type={job.tpu_type[:40]}, expected the node's label, such as tpu-v3-device."
        )


def _check_names(job: Job) -> None:
    for flag, name in (("name", job.name), ("namespace", job.namespace)):
        if name is not None and not (_DNS_LABEL.fullmatch(name) and len(name) <= _LONGEST_NAME):
            raise ConfigError(
                f"--{flag}={name[:80]}, expected at most {_LONGEST_NAME} of a-z, 0-9 and -, the first a"
                " letter, the last no -."
            )
    for flag, image in (("image", job.image), ("ipu_image", job.ipu_image)):
        is_name = image and re.fullmatch(r"[^\s:@/-](\S*[^\s:@/])?", image) and image.isprintable()
        if image is not None and not is_name:
            raise ConfigError(
                f"--{flag}={image[:80]!r}, expected the name of an image, such as HOST/bert:1.0."
            )


def _check_quantities(job: Job) -> None:
    for flag, text in (("cpu", job.cpu), ("memory", job.memory), ("shm", job.shm)):
        if text is not None and not _QUANTITY.fullmatch(text):
            raise ConfigError(
                f"--{flag}={text[:40]}, expected an amount as Kubernetes writes it, such as 8 or 64Gi."
            )


def _check_volumes(volumes: tuple[Volume, ...]) -> None:
    paths = [volume.path for volume in volumes]
    for volume in volumes:
        is_path = (
            volume.path.startswith("/") and ".." not in volume.path.split("/") and ":" not in volume.path
        )
        is_path = is_path and volume.path.isprintable() and bool(volume.path.strip("/"))
        if not (_DNS_NAME.fullmatch(volume.claim) and is_path):
            raise ConfigError(
                f"--volume={volume.claim[:60]}:{volume.path[:60]}, expected CLAIM:/PATH or CLAIM:/PATH:ro."
            )
        if paths.count(volume.path) > 1 or volume.path == "/dev/shm":
            raise ConfigError(f"--volume: {volume.path} is mounted twice, expected one volume a path.")
