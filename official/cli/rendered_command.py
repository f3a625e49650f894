"""A command of `bert train` before it goes into a manifest: checked here as it would be in a pod."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from official.cli import flags
from official.config import Config
from official.config.backends import BACKENDS
from official.distribution.batch_plan import BatchPlan, lay_out, make_batch_plan
from official.graphcore.kubernetes import SDK_IMAGE
from official.io.errors import ConfigError
from official.io.files import is_remote
from official.launching import manifests

_PYTHONS = ("python", "python3")


def arguments(command: tuple[str, ...]) -> list[str] | None:
    """Returns the arguments of a command of `bert train`; None where it is another one."""
    if command[:2] == ("bert", "train"):
        return list(command[2:])
    is_script = (
        command[:1] and command[0] in _PYTHONS and os.path.basename("".join(command[1:2])) == "train.py"
    )
    return list(command[2:]) if is_script else None


def with_sdk(job: manifests.Job) -> manifests.Job:
    """Returns a job on IPUs with the image in which a configuration of ours runs. Raises ConfigError where
    there is one and the command is none of `bert train`."""
    if arguments(job.command) is not None:
        return dataclasses.replace(job, ipu_image=job.ipu_image or SDK_IMAGE)
    if job.ipu_image:
        raise ConfigError(
            f"--ipu_image={job.ipu_image} is for a command of bert train, received"
            f" {' '.join(job.command)[:60]!r}, which runs in --image. Drop --ipu_image."
        )
    return job


def check(kind: str, job: manifests.Job) -> str:
    """Raises ConfigError for a command of `bert train` that would be refused in the pods, or whose results
    would be lost with them.

    Args:
      kind: in `manifests.KINDS`.
      job: with the command.

    Returns:
      A line about its batches; empty for another command, which is not looked at.
    """
    given = arguments(job.command)
    if given is None:
        return ""
    try:
        with _environment_of_a_pod(kind, job):
            # Of a plan neither the data nor devices are asked for.
            config = flags.read([*given, "--plan"], os.environ).config
    except flags.HelpRequested:
        raise ConfigError("bert train --help trains nothing. Give the command of a run after --.") from None
    batches = _CHECKS.get(kind, _workers)(config, job)
    _check_model_dir(config, job)
    return batches.describe()


@contextlib.contextmanager
def _environment_of_a_pod(kind: str, job: manifests.Job) -> Iterator[None]:
    """Makes the environment that of the job's first process, as far as it says who and where it is."""
    kept = dict(os.environ)
    for name in kept:
        if name == "TF_CONFIG" or name.startswith(("BERT_", "JOB_", "SLURM_", "OMPI_", "PMI", "POPDIST_")):
            del os.environ[name]
    os.environ.update(manifests.place(kind, job, rank=0))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def _workers(config: Config, job: manifests.Job) -> BatchPlan:
    """Returns the batches of workers. Raises ConfigError where they would not train together."""
    backend = BACKENDS[config.distribution_strategy]
    if config.worker_hosts is not None or config.task_index is not None:
        raise ConfigError(
            "--worker_hosts and --task_index are not for a manifest, which says both. Drop them."
        )
    if job.workers > 1 and not backend.several_processes:
        raise ConfigError(
            f"distribution_strategy={backend.name} keeps to itself: each of the {job.workers} workers would"
            " train alone. Add --distribution_strategy=multi_worker_mirrored."
        )
    if config.num_gpus not in (None, job.gpus):
        raise ConfigError(
            f"--gpus={job.gpus} and num_gpus={config.num_gpus} of the command differ. Give"
            f" --gpus={config.num_gpus}, or add --num_gpus={job.gpus} to the command."
        )
    return lay_out(config, job.workers, job.workers * max(job.gpus, 1), noted=None)[0]


def _tpu(config: Config, job: manifests.Job) -> BatchPlan:
    """Returns the batches of a TPU. Raises ConfigError where the command does not take it."""
    if config.tpu != "local" or not config.num_tpu_cores:  # settings that only go with TPUs
        raise ConfigError(
            "--kind=tpu_job trains on the TPU of its pod. Add --distribution_strategy=tpu --tpu=local"
            " --num_tpu_cores=N to the command."
        )
    return make_batch_plan(config, config.num_tpu_cores)


def _ipus(config: Config, job: manifests.Job) -> BatchPlan:
    """Returns the batches of IPUs. Raises ConfigError where the command has others."""
    if not BACKENDS[config.distribution_strategy].graphcore_rules:
        raise ConfigError("--kind=ipujob trains on IPUs. Add --distribution_strategy=ipu to the command.")
    if config.ipu_replicas != job.ipu_replicas:
        raise ConfigError(
            f"--ipus={job.ipus} / --ipus_per_replica={job.ipus_per_replica} = {job.ipu_replicas} replicas,"
            f" the command has ipu_replicas={config.ipu_replicas}. Give"
            f" --ipus={config.ipu_replicas * job.ipus_per_replica}, or --ipu_replicas={job.ipu_replicas}."
        )
    return make_batch_plan(config, config.ipu_replicas)


_CHECKS = {"tpu_job": _tpu, "ipujob": _ipus}


def _check_model_dir(config: Config, job: manifests.Job) -> None:
    """Raises ConfigError where what a run saves would go with its pod."""
    folder = config.model_dir or ""
    kept = [volume.path.rstrip("/") for volume in job.volumes if not volume.is_read_only]
    if is_remote(folder) or any(f"{os.path.normpath(folder)}/".startswith(f"{path}/") for path in kept):
        return
    found = f"mounted for writing: {', '.join(kept)}" if kept else "none is mounted for writing"
    raise ConfigError(
        f"model_dir={folder or 'unset'} is in no volume ({found}): checkpoints would be lost with the pod."
        " Give --volume=CLAIM:/PATH, and --model_dir=/PATH/NAME in the command."
    )
