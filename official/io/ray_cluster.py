"""A Ray cluster of this machine that never outlives the process it was started for.

Ray's own processes stay when the one that began them is killed. So they are children of a process of ours,
which ends all of them when the pipe to it is closed, whatever has closed it, and removes their files.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from official.io import engines
from official.io.errors import ConfigError

_OBJECT_STORE_BYTES = 100 << 20  # what tasks are sent is small: the data are in files
_BECOME_SUBREAPER = 36  # of prctl(2)
_END_SECS = 5.0
# Nothing is told to Ray's makers, no warning on accelerators, and a task that needs too much memory ends.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_task_oom_retries": "3",
}


@contextlib.contextmanager
def started(num_cpus: int | None) -> Iterator[str]:
    """Starts a cluster of one node, and yields its address; it ends with the block.

    Args:
      num_cpus: tasks that it runs at a time; None: one a core.

    Raises:
      ConfigError: where it does not start.
    """
    number = num_cpus or len(os.sched_getaffinity(0))
    # Ray reads it when it is loaded. Who does not know it cannot send tasks to the cluster.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _secret()}
    environment = {**os.environ, **_SETTINGS, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    keeper = subprocess.Popen(
        [sys.executable, "-m", __name__, str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C of a terminal is for the job
        text=True,
    )
    assert keeper.stdin and keeper.stdout and keeper.stderr
    try:
        address = keeper.stdout.readline().strip()
        if not address:
            keeper.stdin.close()
            told = keeper.stderr.read().strip().splitlines()[-1:]
            raise ConfigError(f"--engine=ray: Ray does not start on this machine: {' '.join(told)[:300]}")
        yield address
    finally:
        for stream in (keeper.stdin, keeper.stdout, keeper.stderr):
            stream.close()
        keeper.wait()


@functools.lru_cache(maxsize=1)  # Ray takes one a process
def _secret() -> str:
    return secrets.token_hex(32)


def main() -> None:
    """Starts a cluster, writes its address, and ends it when stdin does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)  # children of children that end become ours
    # A short path: that of a socket below it is 80 bytes longer.
    folder = tempfile.mkdtemp(prefix="bert-ray-", dir=engines.folder_for_sockets(24))
    try:
        import ray

        ray.init(
            "local",
            num_cpus=int(sys.argv[1]),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=_OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        print(ray.get_runtime_context().gcs_address, flush=True)
        sys.stdin.read()
    finally:
        end_children()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # pylint: disable=protected-access  # Ray's own end would look for its processes


def end_children() -> None:
    """Kills the children of this process, and those that become its children, until there is none."""
    deadline = time.monotonic() + _END_SECS
    while (children := _children()) and time.monotonic() < deadline:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _children() -> list[int]:
    own = os.getpid()
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text("utf-8", "replace").rsplit(")", 1)[1].split()[1]) == own:
                found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    main()
