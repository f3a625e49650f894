"""Checks of what is said of a run: its plan, and where its metrics go."""

from __future__ import annotations

from official.config import host_counts
from official.config.backends import BACKENDS
from official.config.cluster import read_cluster
from official.config.device_memory import device_bytes
from official.config.settings.pipeline import PIPELINED
from official.config.table import Config
from official.io.errors import ConfigError


def check_wandb(config: Config) -> None:
    """Refuses settings of Weights & Biases without it."""
    for name in ("wandb_project", "wandb_name"):
        if config[name] is not None and not config.wandb:
            raise ConfigError(f"{name}={config[name]} needs --wandb.")


_OF_PLAN = (
    *("measure", "plan_file", "plan_config_file", "plan_picture"),
    *("plan_tflops", "plan_gbps", "plan_device", "plan_hosts"),
)
_SPEEDS = "plan_tflops plan_gbps plan_local_gbps plan_rows_per_sec".split()
_OF_HOSTS = (
    "plan_local_gbps",
    "plan_latency_usecs",
    "plan_overlap",
    "plan_update_secs",
    "plan_rows_per_sec",
)


def check_plan(config: Config) -> None:
    """Refuses settings of the plan without it, speeds of 0, and devices that are none."""
    for name in _OF_PLAN:
        if config[name] not in (None, False) and not config.plan:
            raise ConfigError(f"{name}={config[name]} needs --plan. Add --plan or drop --{name}.")
    for name in _SPEEDS:
        if config[name] == 0:
            raise ConfigError(f"{name}=0, expected a number above 0. Raise --{name}.")
    if config.plan_device is not None:
        device_bytes(config.plan_device)
    _check_measure(config)
    _check_hosts(config)
    if config.plan_gbps and not (config.plan_tflops or config.plan_hosts):
        raise ConfigError(
            f"plan_gbps={config.plan_gbps} is added to the time of the matrix products. Add --plan_tflops."
        )
    if config.plan_picture and not (config.plan_hosts or config.distribution_strategy in PIPELINED):
        raise ConfigError(
            f"plan_picture={config.plan_picture} draws the schedule of a pipeline, which"
            f" distribution_strategy={config.distribution_strategy} has none of, or the curves of several"
            " hosts. Add --plan_hosts, or drop --plan_picture."
        )


def _check_measure(config: Config) -> None:
    """Refuses to measure steps that this process alone cannot run."""
    if not config.measure:
        return
    backend = BACKENDS[config.distribution_strategy]
    if not config.do_train:
        raise ConfigError("measure=true runs steps of training, do_train=false has none. Drop --measure.")
    hosts = len(read_cluster(config).hosts) if backend.several_processes else 1
    if backend.program or hosts > 1:
        of = f" of {hosts} processes" if hosts > 1 else ""
        raise ConfigError(
            f"measure=true runs steps in this process, distribution_strategy={backend.name}{of} needs others."
            " Measure one host with --distribution_strategy=mirrored and add --plan_hosts, or give"
            " --plan_tflops."
        )


def _check_hosts(config: Config) -> None:
    """Refuses numbers of hosts that are none, or without the speed of what is between them."""
    if config.plan_hosts is None:
        for name in _OF_HOSTS:
            if config[name] is not None:
                raise ConfigError(f"{name}={config[name]} needs --plan_hosts. Add it or drop --{name}.")
        return
    host_counts.read(config.plan_hosts)
    if config.plan_gbps is None:
        raise ConfigError(
            f"plan_hosts={config.plan_hosts} needs the speed of a host's link to the others. Add"
            " --plan_gbps=GB/s, such as 12.5 for 100 Gbit/s."
        )
    if not config.do_train:
        raise ConfigError(
            f"plan_hosts={config.plan_hosts} is of training, do_train={config.do_train}. Drop --plan_hosts."
        )
    if not (config.plan_tflops or config.measure):
        raise ConfigError(
            f"plan_hosts={config.plan_hosts} needs the time of a step. Add --measure, which runs three steps"
            " here, or --plan_tflops=N, TFLOP/s of a replica."
        )
