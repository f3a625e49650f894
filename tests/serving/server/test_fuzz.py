"""Bad requests at random: always 4xx or a closed connection, and good ones in between are answered."""

import pytest

from official.serving.server.settings import Limits
from tests.serving.server import fuzzing
from tests.serving.server.processes import Process
from tests.serving.server.servers import standing_in

LIMITS = Limits(
    max_request_bytes=65536, max_text_chars=2000, idle_timeout_secs=1, body_timeout_secs=0.5, batch_delay_ms=1
)
QUIET = {"request", "serving", "malformed", "stopped"}


def test_some_bad_requests_end_in_order():
    with standing_in(LIMITS) as server:
        assert fuzzing.run(server.port, 100, seed=7) == []
        assert {line["event"] for line in server.lines()} <= QUIET
        assert not any(line.get("status", 0) >= 500 for line in server.lines())


@pytest.mark.slow
def test_two_thousand_bad_requests_end_in_order(tmp_path):
    """A process of its own over a real, small model."""
    sizes, times = ("--max_request_bytes=65536", "--max_text_chars=2000"), ("--idle_timeout_secs=2",)
    with Process(tmp_path, *sizes, *times, "--body_timeout_secs=1") as server:
        assert fuzzing.run(server.port, 2000, seed=1) == []
        assert {line["event"] for line in server.lines()} <= QUIET and "Traceback" not in server.errors()
        server.process.terminate()
        assert server.process.wait(20) == 0
