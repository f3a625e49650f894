"""The flags that choose where the tasks of a job run, the same for all commands that have such tasks."""

from __future__ import annotations

import argparse

from official.io import engines


def add(parser: argparse.ArgumentParser, made: str) -> None:
    """Adds --num_workers, --engine and --ray_address; `made`: what does not depend on them, "records"."""
    add_argument = parser.add_argument
    number = (
        f"Tasks at a time; the {made} do not depend on it. Unset: one per core, fewer where there is little"
        " to do; with --engine=ray one per CPU of the cluster."
    )
    add_argument("--num_workers", type=int, help=number)
    engine = f"local: processes of this machine. ray: the nodes of a Ray cluster. The {made} are the same."
    add_argument("--engine", choices=engines.NAMES, default="local", help=engine)
    address = (
        "With --engine=ray: an existing cluster, HOST:PORT or ray://HOST:PORT. Unset: one is started on this"
        " machine, and ends with the job."
    )
    add_argument("--ray_address", help=address)


def configure_logging() -> None:
    """Lets a job say what it needs, where it runs and what it goes on with."""
    from official.reporting import progress  # late: who only asks for help does not wait for it

    progress.configure_logging()
