"""Signals: what was accepted is answered, the exit code is 0."""

import concurrent.futures
import http.client
import json
import signal
import threading
import time

import pytest

from tests import programs
from tests.serving.server.processes import Process
from tests.serving.server.servers import QUESTION

BODY = json.dumps({"instances": [{**QUESTION, "context": " ".join(["word9 word10"] * 60)}] * 4})


def ask_until_closed(port: int, begun: threading.Event) -> tuple[int, list[str]]:
    """Asks over one connection until it is closed between two requests. Returns how many were answered, and
    what went wrong."""
    connection, answered = http.client.HTTPConnection("127.0.0.1", port, timeout=20), 0
    while True:
        try:
            if connection.sock is None:
                connection.connect()
        except OSError:
            return answered, []  # nobody listens any more
        try:
            connection.request("POST", "/v1/models/bert:predict", BODY)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            return answered, [f"{type(error).__name__}: {error}"]
        if answer.status != 200 or b'"predictions"' not in content:
            return answered, [f"{answer.status} {content[:200]!r}"]
        answered += 1
        begun.set()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_loses_no_request(tmp_path, number):
    begun = threading.Event()
    with Process(tmp_path, "--methods=answer") as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            clients = [pool.submit(ask_until_closed, server.port, begun) for _ in range(8)]
            assert begun.wait(30)
            time.sleep(0.3)
            server.process.send_signal(number)
            signalled = time.monotonic()
            assert server.process.wait(20) == 0 and time.monotonic() - signalled < 10
            results = [client.result() for client in clients]
        assert [wrong for _, wrong in results] == [[]] * 8 and sum(count for count, _ in results) >= 8
        assert server.lines()[-1]["event"] == "stopped" and server.lines()[-1]["unanswered"] == 0


@pytest.mark.slow
def test_what_cannot_be_served_is_one_line(tmp_path):
    done = programs.run("scripts/serve.py", f"--export_dir={tmp_path}/nothing", "--port=0")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("serve.py: ") and f"{tmp_path}/nothing" in done.stderr
