"""Storage that does not answer while a newer version is read: the server goes on with the old one."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import threading
import time

import pytest

from tests.serving.server.processes import Process
from tests.serving.server.servers import QUESTION, wait_until, write_model

_BUNDLE = ("ckpt-0.index", "ckpt-0.data-00000-of-00001")


@pytest.fixture(name="slow")
def fixture_slow(tmp_path):
    """A server of version 1; reads of version 2 wait as the gates say."""
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("no C compiler on this machine")
    source = pathlib.Path(__file__).with_name("slow_reads.c")
    command = [compiler, "-shared", "-fPIC", "-o", tmp_path / "slow.so", source, "-ldl"]
    subprocess.run(command, check=True)
    (tmp_path / "gates").mkdir()
    environment = {
        "LD_PRELOAD": str(tmp_path / "slow.so"),
        "SLOW_FOLDER": str(tmp_path / "models" / "2"),
        "SLOW_GATES": str(tmp_path / "gates"),
    }
    with Process(tmp_path, "--methods=answer", "--poll_secs=0.1", environment=environment) as server:
        yield server


@pytest.mark.slow
def test_a_version_whose_reads_do_not_end_holds_nobody_up(slow, tmp_path):
    is_over = threading.Event()

    def health() -> tuple[int, int]:
        status, found = slow.get("/healthz")
        return status, found["version"]

    def ask_on() -> list[int]:
        found = []
        while not is_over.is_set():
            found.append(slow.predict({"instances": [QUESTION]})[0])
            time.sleep(0.05)  # leaves the processor to what loads
        return found

    def states() -> dict[str, str]:
        _, found = slow.get("/v1/models/bert")
        return {each["version"]: each["state"] for each in found["model_version_status"]}

    def waits(gate: pathlib.Path) -> bool:
        return gate.with_name(f"{gate.name}.waiting").exists()

    gates = [tmp_path / "gates" / name for name in ("config.json", *_BUNDLE)]
    for gate in gates:
        gate.touch()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(ask_on) for _ in range(8)]
        try:
            write_model(tmp_path / "models" / "2", "answer", seed=1)
            while gates:
                wait_until(lambda: any(map(waits, gates)), 300)
                assert health() == (200, 1) and states() == {"1": "AVAILABLE", "2": "LOADING"}
                for gate in list(filter(waits, gates)):
                    gates.remove(gate)
                    gate.unlink()
            wait_until(lambda: health() == (200, 2), 300)
        finally:
            is_over.set()
        answered = [client.result() for client in clients]
    assert all(found and set(found) == {200} for found in answered)

    # What is no file is not even opened.
    shutil.copytree(tmp_path / "models" / "2", tmp_path / "models" / "3")
    (tmp_path / "models" / "3" / "checkpoint").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "models" / "3" / "checkpoint")
    wait_until(lambda: states().get("3") == "END", 300)
    (line,) = [line for line in slow.lines() if line["event"] == "version not loaded"]
    assert "models/3/checkpoint: it is a named pipe" in line["error"] and health() == (200, 2)
