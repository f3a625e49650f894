"""Two hosts with addresses of their own, and the link between them: network namespaces, which only root can
make."""

import contextlib
import os
import shutil
import subprocess
import uuid

import pytest

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Yields the names of two namespaces, linked with each other: the link is `eth0` in both."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root, and the command ip (package iproute2)")
    names = [f"bert-{uuid.uuid4().hex[:8]}" for _ in ADDRESSES]
    with contextlib.ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
            ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "eth0", "netns", names[1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        for name, address in zip(names, ADDRESSES):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
        yield names
