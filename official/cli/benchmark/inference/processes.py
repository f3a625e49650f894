"""The instances of a system: processes with cores and a folder of their own, that answer at once."""

from __future__ import annotations

import contextlib
import os

from official.cli.benchmark.inference.latency import Block, block_of
from official.cli.benchmark.inference.systems import System
from official.cli.benchmark.programs import Program

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_programs")


def _start(system: System, specification: dict, folder: str, of_environments: str) -> Program:
    """Starts an instance in its folder, and sends it the specification."""
    environment = system.environment.name if system.environment else None
    flag = "backends" if system.is_ours else "peers"
    instance = Program(
        f"--{flag}: {system.name}",
        os.path.join(_FOLDER, system.program),
        environment,
        of_environments,
        folder,
        variables={"OMP_NUM_THREADS": str(specification["threads"])},
    )
    instance.ask({**specification, "variant": system.variant})
    return instance


class Group:
    """The instances of a system. A context manager."""

    def __init__(
        self, system: System, specification: dict, cores: list[list[int]], folder: str, of_environments: str
    ):
        """Starts an instance for each list of cores, in FOLDER/SYSTEM/instance_N, and waits until all are
        ready."""
        self.system, self.name = system, system.name
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as starting:
            self._instances = [
                starting.enter_context(
                    _start(
                        system,
                        {"threads": len(own), **specification, "cores": own},
                        os.path.join(folder, system.name, f"instance_{number}"),
                        of_environments,
                    )
                )
                for number, own in enumerate(cores)
            ]
            ready = [instance.answer() for instance in self._instances]
            self._stack = starting.pop_all()
        self.start_secs: float = max(one["start_secs"] for one in ready)
        self.versions: dict = ready[0]["versions"]

    def run(self, question: dict) -> Block:
        """Asks all instances at the same time, and returns their timed calls."""
        for instance in self._instances:
            instance.ask(question)
        return block_of([instance.answer() for instance in self._instances])

    def save(self, batches: str, path: str, width: int | None) -> None:
        """Makes the first instance write its logits of the batches in a file."""
        self._instances[0].ask({"batches": batches, "calls": 0, "callers": 1, "width": width, "save": path})
        self._instances[0].answer()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
