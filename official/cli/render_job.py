"""Writes a training command as a job of Kubernetes: JobSet, Job, TFJob, a Job on a TPU, IPUJob.

  bert render-job --kind=jobset --image=registry.example.com/bert-gpu:0.1.0 --workers=4 --gpus=8 \\
    --volume=bert-data:/data:ro --volume=bert-runs:/runs \\
    -- bert train --config=pretrain_base_128_phase1 --model_dir=/runs/base | kubectl apply -f -

What is after -- runs in every pod. A command of `bert train` is checked here as it would be there: its
flags, its batches over all replicas, and that it saves where what it saves is kept.
"""

import argparse
import sys
from typing import Any

from official.cli import command_line, outputs, rendered_command
from official.graphcore.kubernetes import SDK_IMAGE
from official.io.errors import ConfigError, suggest
from official.io.writing import check_output_file
from official.launching import manifests

_OF_THE_FILE = ("output", "overwrite")
_INDENT = "  "
_EVERY = ("name", "image", "namespace")
_RANGES = {
    "workers": (1, 100_000),  # the most pods of an Indexed Job
    "gpus": (0, 1024),
    "instances": (1, manifests.MOST_IPUS),
    "port": (1, 2**16 - 1),
    "max_restarts": (0, 10_000),
    "grace_secs": (1, 86_400),
}


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add("--kind", required=True, help=f"What it becomes: {', '.join(manifests.KINDS)}.")
    add("--image", required=True, help="Image with this project, as deploy/docker builds it.")
    add("--name", default="bert", help="Of the job.")
    add("--namespace", help="Unset: the one that kubectl is set to.")
    add("--workers", type=int, default=1, help="Pods, one process each; not for tpu_job and ipujob.")
    add("--gpus", type=int, default=0, help="NVIDIA GPUs of each worker.")
    add("--tpu_type", default="tpu-v3-device", help="For tpu_job: label of the node.")
    add("--tpu_topology", default="2x2", help="For tpu_job: chips of one host.")
    add("--ipus", type=int, default=4, help="For ipujob: a power of two, 64 at most.")
    add("--ipus_per_replica", type=int, default=4, help="For ipujob: what the pipeline takes.")
    add("--instances", type=int, default=1, help="For ipujob: processes that share the replicas.")
    add("--ipu_image", help=f"For ipujob: image with Graphcore's SDK. Unset: {SDK_IMAGE}.")
    add("--cpu", help="Cores of a worker, such as 8. Unset: 32 for ipujob, else none are asked for.")
    add("--memory", help="Memory of a worker, such as 64Gi. Unset: 200Gi for ipujob, else none is asked for.")
    add("--shm", help="Size of /dev/shm, which counts as memory. Unset: 10Gi for ipujob, else 16Gi.")
    volume = "CLAIM:/PATH or CLAIM:/PATH:ro: a PersistentVolumeClaim that is there. May be repeated."
    add("--volume", action="append", default=[], help=volume)
    add("--env", action="append", default=[], help="NAME=VALUE of the environment. May be repeated.")
    node_label = "NAME=VALUE: a label that a node must have. May be repeated."
    add("--node_label", action="append", default=[], help=node_label)
    add("--port", type=int, default=2222, help="On which workers reach each other.")
    restarts = "Restarts of the whole job after a lost worker; not for tfjob, which has no limit, and ipujob."
    add("--max_restarts", type=int, default=10, help=restarts)
    grace = "Seconds from SIGTERM, on which a run saves, to SIGKILL. Unset: 120; for ipujob the cluster's."
    add("--grace_secs", type=int, help=grace)
    parser.add_bool("check_command", True, "Check a command of bert train.")
    add("--output", help="File to write. Unset: standard output.")
    add("--overwrite", action="store_true", help="Replace it where it is there.")
    add("command", nargs="*", help="After --: what each pod runs.")
    return parser


def main() -> None:
    own, after = _split(sys.argv[1:])
    parser = make_parser()
    flags = parser.parse(own)
    job = _read(flags, parser.given, after or flags.command)
    if flags.kind == "ipujob":
        job = rendered_command.with_sdk(job)
    documents = manifests.documents(flags.kind, job)
    plan = rendered_command.check(flags.kind, job) if flags.check_command else ""
    text = manifests.to_yaml(documents, _comments(flags, parser.given, job.command, plan))
    if flags.output is None:
        print(text, end="")
        return
    check_output_file(flags.output, "output", flags.overwrite)
    outputs.write_file(flags.output, text)
    print(f"kubectl {manifests.KINDS[flags.kind].submit} -f {flags.output}")


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Returns the words before the first -- and those after it."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end + 1 :]


def _read(flags: argparse.Namespace, given: set[str], command: list[str]) -> manifests.Job:
    """Returns the job that flags ask for. Raises ConfigError."""
    kinds = manifests.KINDS
    if flags.kind not in kinds:
        raise ConfigError(
            f"--kind={flags.kind[:40]} is not one of {', '.join(kinds)}{suggest(flags.kind, kinds)}."
        )
    kind = kinds[flags.kind]
    for name in sorted(given):
        others = [each for each, row in kinds.items() if name in row.takes]
        if others and flags.kind not in others:
            raise ConfigError(
                f"--{name} is not for --kind={flags.kind}, but for {', '.join(others)}. Drop it."
            )
    for name, (least, most) in _RANGES.items():
        value = getattr(flags, name)
        if value is not None and not least <= value <= most:
            raise ConfigError(f"--{name}={value}, expected {least} to {most}.")
    told: dict[str, Any] = {name: getattr(flags, name) for name in (*_EVERY, *kind.takes, *kind.defaults)}
    left = {name: default for name, default in kind.defaults.items() if told[name] is None}
    return manifests.Job(
        command=tuple(command),
        volumes=tuple(map(_read_volume, flags.volume)),
        variables=_read_pairs(flags.env, "env"),
        node_labels=_read_pairs(flags.node_label, "node_label"),
        **{**told, **left},
    )


def _read_volume(text: str) -> manifests.Volume:
    claim, _, place = text.partition(":")
    path = place.removesuffix(":ro")
    return manifests.Volume(claim, path, is_read_only=path != place)


def _read_pairs(texts: list[str], flag: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or name in pairs:
            twice = ", and it is there twice" if name in pairs else ""
            raise ConfigError(f"--{flag}={text[:80]}, expected NAME=VALUE, each name once{twice}.")
        pairs[name] = value
    return pairs


def _comments(flags: argparse.Namespace, given: set[str], command: tuple[str, ...], plan: str) -> list[str]:
    """Returns the lines above the documents: the batches, and the command that makes them again."""
    words = ["bert", "render-job"]
    for name, value in vars(flags).items():
        if name in given and name not in _OF_THE_FILE:
            words += [f"--{name}={each}" for each in (value if isinstance(value, list) else [value])]
    words += [] if flags.check_command else ["--no-check_command"]
    submit = f"{_INDENT}  | kubectl {manifests.KINDS[flags.kind].submit} -f -"
    first = [plan, ""] if plan else []
    return [
        *first,
        *(f"{line} \\" for line in manifests.wrapped([*words, "--", *command], _INDENT)),
        submit,
        "",
    ]
