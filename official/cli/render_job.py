"""Writes a Kubernetes manifest for a training command: JobSet, Job, TFJob, a Job on a TPU, or IPUJob.

  bert render-job --kind=jobset --image=registry.example.com/bert-gpu:0.1.0 --workers=4 --gpus=8 \
    --volume=bert-data:/data:ro --volume=bert-runs:/runs \
    -- bert train --config=pretrain_base_128_phase1 --model_dir=/runs/base | kubectl apply -f -

The command after -- runs in every pod. A `bert train` command is checked before the job is written: its
flags, its batch sizes over all replicas, and that --model_dir is in a writable volume.
"""

from __future__ import annotations

import dataclasses
import os
import sys

from official.cli import command_line, flags, launch, outputs
from official.config.backends import BACKENDS
from official.config.table import Config
from official.distribution.batch_plan import BatchPlan, lay_out, make_batch_plan
from official.graphcore.kubernetes import SDK_IMAGE
from official.io.errors import ConfigError, check_one_of
from official.io.files import is_remote
from official.io.writing import check_output_file
from official.launching import manifests

_INDENT = "  "


class Main(command_line.Flags):
    """Flags of the command.

    Attributes:
      kind: Kind of job: jobset, indexed_job, tfjob, tpu_job, ipujob.
      image: Image with this project, as built from deploy/docker.
      name: Name of the job.
      namespace: Namespace of the job. Unset: kubectl's current one.
      workers: Number of pods, with one process each; not for tpu_job and ipujob.
      gpus: Number of NVIDIA GPUs per worker.
      tpu_type: For tpu_job: label of the node.
      tpu_topology: For tpu_job: topology of the chips, of a single host.
      ipus: For ipujob: number of IPUs, a power of two, at most 64.
      ipus_per_replica: For ipujob: number of IPUs of the pipeline of a replica.
      instances: For ipujob: number of processes that share the replicas.
      ipu_image: For ipujob: image with Graphcore's SDK. Unset: graphcore/tensorflow:2.
      cpu: Cores per worker, such as 8. Unset: 32 for ipujob, else no request.
      memory: Memory per worker, such as 64Gi. Unset: 200Gi for ipujob, else no request.
      shm: Size of /dev/shm, which counts as memory. Unset: 10Gi for ipujob, else 16Gi.
      volume: CLAIM:/PATH or CLAIM:/PATH:ro: an existing PersistentVolumeClaim to mount. May be repeated.
      env: NAME=VALUE: environment variable of the pods. May be repeated.
      node_label: NAME=VALUE: label that a node must have. May be repeated.
      port: Port on which workers reach each other.
      max_restarts: Maximum number of restarts of the whole job after a lost worker; not for tfjob, which has
        no limit, and ipujob.
      grace_secs: Seconds between SIGTERM, on which a run saves, and SIGKILL. Unset: 120; for ipujob the
        cluster's default.
      check_command: Check a command of bert train before writing the job.
      output: File to write. Unset: standard output.
      overwrite: Replace an existing --output.
      command: After --: the command that each pod runs.
    """

    POSITIONAL = ("command",)
    RANGES = dict(workers=(1, 100_000), gpus=(0, 1024), instances=(1, manifests.MOST_IPUS))
    RANGES |= dict(port=(1, 2**16 - 1), max_restarts=(0, 10_000), grace_secs=(1, 86_400))
    OF = (manifests.Job,)
    kind: str
    name: str = "bert"
    tpu_type: str = "tpu-v3-device"
    tpu_topology: str = "2x2"
    shm: str | None = None
    volume: list[str] = []
    env: list[str] = []
    node_label: list[str] = []
    grace_secs: int | None = None
    check_command: bool = True
    output: str | None = None
    overwrite: bool = False
    command: list[str] = []


def main() -> None:
    own, after = command_line.before_dashes(sys.argv[1:])
    parser = Main.parser()
    flags = parser.parse(own)
    job = _read(flags, parser.given, after[1:] or flags.command)
    if flags.kind == "ipujob":
        job = with_sdk(job)
    documents = manifests.documents(flags.kind, job)
    plan = check_command(flags.kind, job) if flags.check_command else ""
    text = manifests.to_yaml(documents, _comments(flags, parser.given, job.command, plan))
    if flags.output is None:
        print(text, end="")
        return
    check_output_file(flags.output, "output", flags.overwrite)
    outputs.write_file(flags.output, text)
    print(f"kubectl {manifests.KINDS[flags.kind].submit} -f {flags.output}")


def _read(flags: Main, given: set[str], command: list[str]) -> manifests.Job:
    """Returns the job that flags ask for. Raises ConfigError."""
    kinds = manifests.KINDS
    check_one_of(f"--kind={flags.kind[:40]}", flags.kind, kinds)
    for name in sorted(given):
        others = [each for each, row in kinds.items() if name in row.takes]
        if others and flags.kind not in others:
            problem = f"--{name} is not for --kind={flags.kind}, but for {', '.join(others)}"
            raise ConfigError(f"{problem}. Drop it.")
    kind = kinds[flags.kind]
    taken = {name: getattr(flags, name) for name in ("name", "image", "namespace", *kind.takes)}
    for name, default in kind.defaults.items():
        taken[name] = default if getattr(flags, name) is None else getattr(flags, name)
    volumes = []
    for text in flags.volume:
        claim, _, place = text.partition(":")
        path = place.removesuffix(":ro")
        volumes.append(manifests.Volume(claim, path, is_read_only=path != place))
    variables, labels = _read_pairs(flags.env, "env"), _read_pairs(flags.node_label, "node_label")
    return manifests.Job(
        command=tuple(command), volumes=tuple(volumes), variables=variables, node_labels=labels, **taken
    )


def _read_pairs(texts: list[str], flag: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or name in pairs:
            twice = ", and it occurs twice" if name in pairs else ""
            raise ConfigError(f"--{flag}={text[:80]}, expected NAME=VALUE, each name once{twice}.")
        pairs[name] = value
    return pairs


def _comments(flags: Main, given: set[str], command: tuple[str, ...], plan: str) -> list[str]:
    """Returns the comment lines above the documents: batch sizes, and the command that reproduces them."""
    words = ["bert", "render-job"]
    for name, value in vars(flags).items():
        if name in given - {"output", "overwrite"}:
            words += [f"--{name}={each}" for each in (value if isinstance(value, list) else [value])]
    words += [] if flags.check_command else ["--no-check_command"]
    lines = [f"{line} \\" for line in manifests.wrapped([*words, "--", *command], _INDENT)]
    submit = f"{_INDENT}  | kubectl {manifests.KINDS[flags.kind].submit} -f -"
    return [*([plan, ""] if plan else []), *lines, submit, ""]


# -----------------------------------------------------------------------------------------------------------
# Checks of a `bert train` command, with the environment of a pod


def arguments(command: tuple[str, ...]) -> list[str] | None:
    """Returns the arguments of a `bert train` command; None for another command."""
    program, rest = launch.split(command)
    return rest if program == launch.TRAIN else None


def with_sdk(job: manifests.Job) -> manifests.Job:
    """Returns a job on IPUs with the image that runs `bert train`. Raises ConfigError if --ipu_image is set
    and the command is another one."""
    if arguments(job.command) is not None:
        return dataclasses.replace(job, ipu_image=job.ipu_image or SDK_IMAGE)
    if job.ipu_image:
        received = f"{' '.join(job.command)[:60]!r}, which runs in --image"
        flag = f"--ipu_image={job.ipu_image}"
        raise ConfigError(f"{flag} is for a bert train command, received {received}. Drop --ipu_image.")
    return job


def check_command(kind: str, job: manifests.Job) -> str:
    """Raises ConfigError for a `bert train` command that would fail in the pods, or whose results would be
    lost with them.

    Args:
      kind: in `manifests.KINDS`.
      job: with the command.

    Returns:
      A line about its batches; empty for another command, which is not checked.
    """
    from unittest import mock  # late: few commands need it

    given = arguments(job.command)
    if given is None:
        return ""
    # Environment of the job's first process: only the variables that set its rank and addresses.
    starts = ("TF_CONFIG", "BERT_", "JOB_", "SLURM_", "OMPI_", "PMI", "POPDIST_")
    left = {name: value for name, value in os.environ.items() if not name.startswith(starts)}
    try:
        with mock.patch.dict(os.environ, {**left, **manifests.place(kind, job, rank=0)}, clear=True):
            # --plan: the check needs neither data nor devices.
            config = flags.read([*given, "--plan"], os.environ).config
    except flags.HelpRequested:
        raise ConfigError("bert train --help trains nothing. Give the command of a run after --.") from None
    batches = _CHECKS.get(kind, _workers)(config, job)
    _check_written(config, job)
    return batches.describe()


def _workers(config: Config, job: manifests.Job) -> BatchPlan:
    """Returns the batch plan of workers. Raises ConfigError if they would not train together."""
    backend = BACKENDS[config.distribution_strategy]
    if config.worker_hosts is not None or config.task_index is not None:
        raise ConfigError("--worker_hosts and --task_index are set by the manifest. Drop them.")
    if job.workers > 1 and not backend.several_processes:
        alone = f"distribution_strategy={backend.name} is for one process: each of the {job.workers} workers"
        raise ConfigError(f"{alone} would train alone. Add --distribution_strategy=multi_worker_mirrored.")
    if config.num_gpus not in (None, job.gpus):
        ours, theirs = f"--gpus={job.gpus}", f"num_gpus={config.num_gpus}"
        differ = f"{ours} and {theirs} of the command differ. Give --gpus={config.num_gpus}, or add"
        raise ConfigError(f"{differ} --num_gpus={job.gpus} to the command.")
    return lay_out(config, job.workers, job.workers * max(job.gpus, 1), noted=None)[0]


def _tpu(config: Config, job: manifests.Job) -> BatchPlan:
    """Returns the batch plan of a TPU. Raises ConfigError if the command does not use it."""
    if config.tpu != "local" or not config.num_tpu_cores:  # settings that only go with TPUs
        raise ConfigError(
            "--kind=tpu_job trains on the TPU of its pod. Add --distribution_strategy=tpu --tpu=local"
            " --num_tpu_cores=N to the command."
        )
    return make_batch_plan(config, config.num_tpu_cores)


def _ipus(config: Config, job: manifests.Job) -> BatchPlan:
    """Returns the batch plan of IPUs. Raises ConfigError if the command has another number of them."""
    if not BACKENDS[config.distribution_strategy].graphcore_rules:
        raise ConfigError("--kind=ipujob trains on IPUs. Add --distribution_strategy=ipu to the command.")
    if config.ipu.replicas != job.ipu_replicas:
        raise ConfigError(
            f"--ipus={job.ipus} / --ipus_per_replica={job.ipus_per_replica} = {job.ipu_replicas} replicas,"
            f" the command has --ipu_options=replicas={config.ipu.replicas}. Give"
            f" --ipus={config.ipu.replicas * job.ipus_per_replica}, or"
            f' --ipu_options="replicas={job.ipu_replicas}".'
        )
    return make_batch_plan(config, config.ipu.replicas)


_CHECKS = {"tpu_job": _tpu, "ipujob": _ipus}


_WRITTEN = {"model_dir": "checkpoints", "export_dir": "the export", "mllog_file": "the log"}


def _check_written(config: Config, job: manifests.Job) -> None:
    """Raises ConfigError if the results of a run would be lost with its pod."""
    kept = [volume.path.rstrip("/") for volume in job.volumes if not volume.is_read_only]
    found = f"mounted for writing: {', '.join(kept)}" if kept else "none is mounted for writing"
    for name, what in _WRITTEN.items():
        path = config[name] or ""
        is_kept = any(f"{os.path.normpath(path)}/".startswith(f"{folder}/") for folder in kept)
        if is_kept or is_remote(path) or not path and name != "model_dir":
            continue
        raise ConfigError(
            f"{name}={path or 'unset'} is in no volume ({found}): {what} would be lost with the pod. Give"
            f" --volume=CLAIM:/PATH, and --{name}=/PATH/NAME in the command."
        )
