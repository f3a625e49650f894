"""The server over a stand-in for the model: limits, token, health, logs, slow and gone clients, its stop."""

import concurrent.futures
import contextlib
import http.client
import json
import re
import socket
import time
import weakref

import pytest

from official.io.errors import ConfigError
from official.serving.server.application import Server
from official.serving.server.monitoring import Log
from official.serving.server.settings import Endpoint, Limits
from tests.fixtures import ROOT
from tests.serving.server import servers
from tests.serving.server.fuzzing import send
from tests.serving.server.servers import LOADING, QUESTION, StandIn, running, standing_in, wait_until

BODY = {"instances": [QUESTION]}
PREDICT = "/v1/models/bert:predict"


@pytest.fixture(name="server", scope="module")
def fixture_server():
    limits = Limits(max_request_bytes=2000, idle_timeout_secs=1, body_timeout_secs=0.3, max_connections=40)
    with standing_in(limits) as server:
        yield server


def head(*headers: str) -> bytes:
    """Returns the head of a request for predictions."""
    lines = f"POST {PREDICT} HTTP/1.1", "Host: localhost", *headers, "\r\n"
    return "\r\n".join(lines).encode()


@contextlib.contextmanager
def busy(server, workers: int = 4):
    """Lets the model be at work. Yields a pool, and the answer to come of what it works at."""
    server.model.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        first = pool.submit(server.request, "POST", PREDICT, BODY)
        assert server.model.entered.wait(10)
        yield pool, first


def wait_for_calls(server, number: int) -> None:
    wait_until(lambda: server.server.batcher.waiting() == number)


def test_all_answers_have_headers_of_safety(server):
    for path in ("/healthz", "/v1/models/bert", "/v2", "/nothing", "/v2/models/other"):
        _, headers, _ = server.request("GET", path)
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store", path
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "server" not in headers and "access-control-allow-origin" not in headers, path
    _, headers, _ = server.request("POST", PREDICT, BODY, {"X-Request-Id": "mine-7"})
    assert headers["x-request-id"] == "mine-7" and headers["content-type"] == "application/json"


def test_the_page_and_its_files(server):
    status, headers, body = server.request("GET", "/")
    assert status == 200 and headers["content-type"].startswith("text/html") and b"<html" in body
    policy = dict(each.split(" ", 1) for each in headers["content-security-policy"].split("; "))
    for name in ("default-src", "base-uri", "frame-ancestors", "form-action"):
        assert policy[name] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert not any("unsafe" in value or "*" in value for value in policy.values())
    shown = {f"static/{path.name}" for path in (ROOT / "official" / "serving" / "page" / "static").iterdir()}
    assert {"static/app.js", "static/style.css"} == {*re.findall(r'"(static/[^"]+)"', body.decode())} <= shown
    for path in shown:
        status, headers, _ = server.request("GET", f"/{path}")
        kind = "text/css" if path.endswith(".css") else "text/javascript"
        assert status == 200 and headers["content-type"].startswith(kind), path
    assert server.request("HEAD", "/")[::2] == (200, b"")


def test_addresses_and_methods_that_there_are_not(server):
    for method, path, status in (
        ("GET", PREDICT, 405),
        ("PUT", PREDICT, 405),
        ("DELETE", "/healthz", 405),
        ("POST", "/v1/models/bert", 405),
        ("BREW", "/healthz", 405),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/bert/versions/2", 404),
        ("POST", "/v1/models/bert/versions/2:predict", 404),
        ("GET", "/v2/models/bert/versions/x/ready", 404),
        ("POST", "/v2/models/bert_classify/infer", 404),
        ("GET", "/v2/models/x_embed", 404),
        ("GET", "/v2/models/%FF", 400),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/static/../__init__.py", 404),
    ):
        found, headers, body = server.request(method, path, "" if method in ("POST", "PUT") else None)
        assert found == status and list(json.loads(body)) == ["error"], (method, path)
        assert status != 405 or method == "BREW" or headers["allow"] in ("POST", "GET, HEAD")


def test_a_large_body_is_refused_before_it_is_read(server):
    for size in (2001, 20_000, 10**9):
        answer = send(server.port, head(f"Content-Length: {size}", "Expect: 100-continue"))
        assert answer.startswith(b"HTTP/1.1 413 ") and b"more than 2,000 bytes" in answer
    status, _, body = server.request("POST", PREDICT, "x" * 20_000)
    assert status == 413 and b"more than 2,000 bytes" in body
    chunks = b"".join(b"3e8\r\n%s\r\n" % (b" " * 1000) for _ in range(3))
    answer = send(server.port, head("Transfer-Encoding: chunked") + chunks)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert server.request("POST", PREDICT, b"\x1f\x8b", {"Content-Encoding": "gzip"})[0] == 415


def test_what_an_address_or_a_header_asks_for_is_read_or_refused(server):
    for path, kind, expected in (
        (PREDICT, "application/json; charset=UTF-8", 200),
        (PREDICT, 'application/json; charset="iso-8859-1"', 415),
        (f"{PREDICT}?api-version=1&key=k", "application/json", 200),
        (f"{PREDICT}?signature_name=embed", "application/json", 400),
        ("/v2/models/bert/infer?version=2", "application/json", 400),
        ("/v1/embeddings?dimensions=4", "application/json", 400),
        ("/healthz?t=1", "text/plain", 200),
    ):
        asked = ("GET", path, None) if path.startswith("/healthz") else ("POST", path, BODY)
        status, _, body = server.request(*asked, {"Content-Type": kind})
        assert status == expected, (path, kind, body)
        assert expected != 400 or b"unknown query parameter" in body, (path, body)


def test_what_is_no_http_is_refused_or_closed(server):
    post = b"POST / HTTP/1.1\r\nHost: x\r\n"
    for data in (
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",  # no Host
        post + b"Content-Length: -1\r\n\r\n",
        post + b"Content-Length: 1, 2\r\n\r\n",
        post + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 40_000 + b"\r\n\r\n",
        b"\0" * 100 + b"\r\n\r\n",
    ):
        answer = send(server.port, data)
        assert answer == b"" or re.match(rb"HTTP/1\.1 4\d\d ", answer), data


def test_slow_headers_and_bodies_and_idle_connections_are_closed(server):
    for data in (b"", b"GET /healthz HTTP/1.1\r\nHost:", head("Content-Length: 9") + b"{"):
        assert send(server.port, data) == b""
    wait_until(lambda: any(line.get("status") == 408 for line in server.lines()))


def test_connections_beyond_the_limit_are_closed(server):
    wait_until(lambda: server.server._http.connections() == 0)
    kept = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(40)]
    try:
        wait_until(lambda: server.server._http.connections() == 40)
        assert send(server.port, b"") == b""
    finally:
        for each in kept:
            each.close()
    wait_until(lambda: server.server._http.connections() < 40)
    assert b"bert_connections_refused_total 1.0" in server.request("GET", "/metrics")[2]


def test_a_client_that_goes_away_is_not_computed_and_the_others_are():
    with standing_in(Limits(batch_delay_ms=0)) as server:
        with busy(server) as (pool, first):
            gone = socket.create_connection(("127.0.0.1", server.port))
            content = json.dumps({"instances": [{**QUESTION, "question": "gone"}]}).encode()
            gone.sendall(head(f"Content-Length: {len(content)}") + content)
            wait_for_calls(server, 1)
            gone.close()
            wait_until(lambda: any(line.get("status") == 499 for line in server.lines()))
            other = pool.submit(server.predict, BODY)
            wait_for_calls(server, 2)
            server.model.gate.set()
            assert first.result()[0] == other.result()[0] == 200
        asked = [question for batch in server.model.batches for question, _ in batch]
        assert asked == [QUESTION["question"]] * 2


def test_a_client_that_ends_its_writing_is_answered():
    """Whether the end comes with the request or while its answer is made, in one piece or in several."""
    content = json.dumps(BODY).encode()
    first = head(f"Content-Length: {len(content)}")
    with standing_in(Limits(batch_delay_ms=0)) as server:
        model = server.model
        in_pieces = [first + content], [first, content], [first[:40], first[40:] + content[:9], content[9:]]
        for is_late in (False, True):
            for pieces in in_pieces:
                model.gate.clear()
                model.entered.clear()
                with socket.create_connection(("127.0.0.1", server.port), 20) as client:
                    for piece in pieces:
                        client.sendall(piece)
                        time.sleep(0.01 * (len(pieces) > 1))
                    if is_late:
                        assert model.entered.wait(10)
                    client.shutdown(socket.SHUT_WR)
                    assert model.entered.wait(10)
                    time.sleep(0.1)  # it is looked at more than once whether the client is there
                    model.gate.set()
                    answer = b"".join(iter(lambda: client.recv(65536), b""))
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.count(b"HTTP/1.1") == 1, answer
                assert answer.endswith(b'"score": 0.5}]}'), answer
        for path in ("/healthz", "/nothing", "/"):
            data = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            answer = send(server.port, data, is_ended=True)
            assert re.match(rb"HTTP/1\.1 (200|404) ", answer), (path, answer)
        wait_until(lambda: server.server._http.connections() == 0)
        assert {line["status"] for line in server.lines() if line["event"] == "request"} == {200, 404}


def test_foreign_names_and_pages_are_refused_where_nobody_needs_a_token():
    ours = ["localhost:1234", "LOCALHOST.", "127.0.0.1", "[::1]:80", "[0:0:0:0:0:0:0:1]"]
    foreign = ["evil.example", "localhost.evil.example:8501", "10.0.0.7:8501", "[::2]"]
    pages = ["http://localhost", "https://127.0.0.1:3000", "http://[::1]:8501"]
    strange = "https://evil.example null http://localhost.evil.example http://localhost@evil.example".split()
    origin = [({"Origin": each}, each in pages) for each in (*pages, *strange)]
    host = [({"Host": each}, each in ours) for each in (*ours, *foreign)]
    named = [
        ({"Host": "bert.example:8501"}, True),
        ({"Origin": "https://bert.example"}, True),
        ({"Origin": "https://app.example:443"}, True),
        ({"Origin": "http://app.example"}, False),
        ({"Origin": "http://b.example:81"}, True),
        ({"Origin": "http://b.example"}, False),
    ]
    origins = ["https://app.example", "http://b.example:81"]
    everyone = [(headers, True) for headers, _ in [*host, *origin]]
    # (settings of the server, [(headers, whether they are served)])
    cases = [
        ({}, [*host, *origin]),
        ({"token": b"sesame"}, everyone),
        ({"allowed_hosts": ["bert.example"], "allowed_origins": origins}, [*host, *origin, *named]),
        ({"allowed_hosts": ["*"], "allowed_origins": ["*"]}, everyone),
        ({"token": b"sesame", "allowed_hosts": ["bert.example"]}, [*host, *origin]),
        ({"token": b"sesame", "allowed_origins": ["https://app.example"]}, origin),
    ]
    wrong = []
    requests = [("POST", PREDICT, BODY), ("GET", "/", None), ("GET", "/metrics", None)]
    for settings, asked in cases:
        with standing_in(**settings) as server:
            for headers, is_served in asked:
                sent = {**headers, **({"Authorization": "Bearer sesame"} if "token" in settings else {})}
                for method, path, body in requests[: 1 if settings else 3]:  # all paths ask one rule
                    status, _, content = server.request(method, path, body, sent)
                    name = next(iter(headers))
                    told = status == 403 and f"{name}: ".encode() in content and b"--allowed_" in content
                    if (status == 200) != is_served or not (told or is_served):
                        wrong.append((settings, headers, path, status, content[:200]))
    assert not wrong


def test_bad_and_good_requests_of_one_batch():
    with standing_in(Limits(batch_delay_ms=0)) as server:
        rows = [["good"], ["fine", "bad"], ["well", "sound"], ["broken"]]
        bodies = [{"instances": [{**QUESTION, "question": text} for text in texts]} for texts in rows]
        with busy(server) as (pool, first):
            works = [pool.submit(server.predict, body) for body in bodies[:3]]
            wait_for_calls(server, 3)
            server.model.gate.set()
            assert [work.result()[0] for work in (first, *works)] == [200, 200, 400, 200]
            assert works[1].result()[1] == {"error": "a bad question."}
            assert server.predict(bodies[3])[0] == 500
        asked = [question for batch in server.model.batches for question, _ in batch]
        expected = [QUESTION["question"], "good", "fine", "well", "sound"]
        assert sorted(asked) == sorted(expected), "nothing is computed twice"
        wait_until(lambda: any("Panic at" in line.get("error", "") for line in server.lines()))
        assert "what a client has sent" not in json.dumps(server.lines())


def test_a_full_queue_and_a_deadline():
    with standing_in(Limits(max_queue=1, request_timeout_secs=0.5, batch_delay_ms=0)) as server:
        with busy(server) as (pool, computing):
            waiting = pool.submit(server.predict, BODY)
            wait_for_calls(server, 1)
            status, headers, _ = server.request("POST", PREDICT, BODY)
            assert (status, headers["retry-after"]) == (429, "1")
            assert computing.result()[0] == waiting.result()[0] == 504
            server.model.gate.set()
        assert server.predict(BODY)[0] == 200
        assert [len(batch) for batch in server.model.batches] == [1, 1]  # what waited in vain is not computed


def test_a_token_is_needed_by_all_but_health_and_page():
    with standing_in(token=b"sesame-42") as server:
        right = {"Authorization": "Bearer sesame-42"}
        assert server.request("POST", PREDICT, BODY, right)[0] == 200
        for wrong in (None, "Bearer sesame-4", "Basic sesame-42", "é"):
            sent = {"Authorization": wrong} if wrong else {}
            status, headers, body = server.request("POST", PREDICT, BODY, sent)
            assert status == 401 and headers["www-authenticate"] == "Bearer" and b"sesame" not in body
        for path in ("/metrics", "/v2", "/v1/models/bert", "/nothing"):
            assert server.request("GET", path)[0] == 401
            assert server.request("GET", path, None, right)[0] in (200, 404)
        assert server.request("GET", "/healthz")[0] == server.request("GET", "/")[0] == 200
        assert "sesame" not in json.dumps(server.lines())


def test_health_where_nothing_is_served_yet():
    with standing_in() as server:
        assert server.get("/healthz") == (200, {"status": "ok", "version": 1})
        assert server.get("/v2/health/ready") == (200, {"ready": True})
        server.server.versions.served = None
        for path in ("/healthz", "/v2/health/ready", "/v2/models/bert/ready", "/v1/models/bert/metadata"):
            assert server.get(path)[0] == 503
        assert server.get("/v2/health/live") == (200, {"live": True}) and server.predict(BODY)[0] == 503


def test_log_and_metrics_say_what_happened_and_no_text():
    with standing_in() as server:
        asked = {"instances": [{"question": "is it a secret?", "context": "It is hidden."}] * 2}
        server.request("POST", f"{PREDICT}?key=hidden", asked, {"X-Request-Id": "a b\tc"})
        server.get("/healthz")
        wait_until(lambda: any(line["event"] == "request" for line in server.lines()))
        (line,) = [line for line in server.lines() if line["event"] == "request"]
        assert (line["method"], line["path"], line["status"]) == ("POST", PREDICT, 200)
        assert (line["sequences"], line["batch"]) == (2, 2) and line["ms"] > 0
        assert re.fullmatch("[0-9a-f]{16}", line["id"])
        assert "secret" not in json.dumps(server.lines()) and "hidden" not in json.dumps(server.lines())
        server.predict({})
        text = server.request("GET", "/metrics")[2].decode()
        for line in (
            'bert_requests_total{code="200",endpoint="predict"} 1.0',
            'bert_requests_total{code="400",endpoint="predict"} 1.0',
            'bert_request_seconds_count{endpoint="predict"} 2.0',
            'bert_batch_sequences_sum{signature="answer"} 2.0',
            "bert_queue_requests 0.0",
            "process_resident_memory_bytes",
        ):
            assert line in text


def test_a_reload_under_load_loses_nothing(tmp_path):
    """Work in flight ends on the old version, new work goes to the new one."""
    models = {1: StandIn(), 2: StandIn()}
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "file").write_text("x")
    load = lambda version, path: servers.stand_in(version, models[version])  # noqa: E731
    with running(tmp_path, Limits(batch_delay_ms=0), load) as server:
        freed, server.model = weakref.ref(server.server.versions.served), models[1]
        with busy(server) as (_, old):
            (tmp_path / "2").mkdir()
            (tmp_path / "2" / "file").write_text("x")
            wait_until(lambda: server.get("/healthz")[1]["version"] == 2)
            models[1].gate.set()
            assert old.result()[0] == 200
        wait_until(lambda: freed() is None)
        assert server.predict(BODY)[0] == 200
        assert (len(models[1].batches), len(models[2].batches)) == (1, 1)
        assert server.get("/v1/models/bert/versions/1:predict")[0] == 405
        assert server.request("POST", "/v1/models/bert/versions/1:predict", BODY)[0] == 404
        states = server.get("/v1/models/bert")[1]["model_version_status"]
        assert {each["version"]: each["state"] for each in states} == {"1": "END", "2": "AVAILABLE"}


def test_a_stop_answers_what_was_accepted_and_takes_nothing_more():
    with standing_in(Limits(batch_delay_ms=0)) as server:
        idle = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        idle.connect()
        with busy(server) as (pool, first):
            works = [first, *(pool.submit(server.request, "POST", PREDICT, BODY) for _ in range(2))]
            wait_for_calls(server, 2)
            stop = pool.submit(server.call, server.server.stop())
            wait_until(lambda: server.server.is_stopping)
            idle.request("GET", "/healthz")
            answer = idle.getresponse()
            assert (answer.status, answer.getheader("Connection")) == (503, "close")
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.1", server.port), 5)
            server.model.gate.set()
            assert [work.result()[0] for work in works] == [200] * 3
            assert stop.result() is True


def test_a_stop_waits_no_longer_than_its_grace():
    with standing_in(Limits(grace_secs=0.2)) as server:
        with busy(server) as (_, cut):
            assert server.call(server.server.stop()) is False
            with pytest.raises((OSError, http.client.HTTPException)):
                cut.result()
        server.model.gate.set()


def test_an_address_that_is_taken(server):
    with pytest.raises(ConfigError, match=f"--host=127.0.0.1 --port={server.port}: Address already in use"):
        Server(Endpoint("nowhere", port=server.port), Limits(), LOADING, Log())
