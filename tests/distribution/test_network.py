"""Two hosts with addresses of their own, and the link between them: network namespaces, which only root can
make."""

import contextlib
import os
import shutil
import subprocess
import uuid

import pytest

from tests.distribution.test_processes import _names, finish, start, wait_for, workspace  # noqa: F401

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


@pytest.mark.slow
def test_a_cut_link_ends_in_a_message_and_a_clean_restart(workspace, tmp_path, hosts):  # noqa: F811
    """Both hosts say whom they miss and end with 4; with the link they go on from the checkpoint."""
    folder, places = tmp_path / "run", [f"{address}:21900" for address in ADDRESSES]
    shared = dict(bert_config_file=workspace / "plain.json", worker_hosts=",".join(places))
    shared |= dict(peer_timeout_secs=30, num_steps_per_epoch=100000)

    def start_both(**settings):
        return [
            start(
                workspace,
                folder,
                within=("ip", "netns", "exec", host),
                **{**shared, **settings, "task_index": rank},
            )
            for rank, host in enumerate(hosts)
        ]

    processes = start_both()
    wait_for(lambda: "ckpt-8.index" in _names(folder), processes[0])
    ip("-n", hosts[1], "link", "set", "eth0", "down")
    for rank, process in enumerate(processes):
        output = finish(process, 4)
        assert f"a peer was lost: {places[1 - rank]} (rank {1 - rank})" in output
        assert "Start all processes again" in output and "Traceback" not in output
    ip("-n", hosts[1], "link", "set", "eth0", "up")
    last = max(int(name[5:-6]) for name in _names(folder) if name.endswith(".index"))
    again = [finish(process) for process in start_both(stop_steps=last + 4)]
    assert f"Resuming from {folder}/ckpt-{last}: step {last}" in again[0]
