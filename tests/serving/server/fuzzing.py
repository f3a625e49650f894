"""Bad requests, random ones of a seed: malformed, oversized, slow and aborted, and good ones in between.

A bad request may get a status of 4xx or a closed connection; where its damage is of no importance, 200.
"""

import concurrent.futures
import itertools
import json
import random
import re
import socket
import struct
import time
from collections.abc import Callable

from tests.serving.server.servers import QUESTION

PREDICT, INFER = b"/v1/models/bert:predict", b"/v2/models/bert/infer"
_WAIT_SECS = 20
_CLIENTS = 16
_JUNK = [None, True, 7, -1.5, 1e300, "", "x" * 3000, [], {}, [[]], [None], {"a": {}}, {"b64": "?"}, "\u0000"]
_STARTS = [  # of requests: methods and addresses
    *(f"{method} {{}}".encode() for method in "GET PUT DELETE PATCH OPTIONS HEAD TRACE BREW post".split()),
    *b"POST //|POST /%00|GET /..%2f..|POST *|GET http://x/|POST /v2/models//infer|GET /static/../x".split(
        b"|"
    ),
]
_HEADERS = [
    *(f"Content-Length: {length}".encode() for length in ("-1", "1e3", "5, 6", "9" * 40)),
    *(f"Transfer-Encoding: {coding}".encode() for coding in ("gzip", "chunked")),
    *(f"Inference-Header-Content-Length: {length}".encode() for length in (99999, -1)),
    b"Content-Encoding: gzip",
    b"no colon",
    b"A: " + b"a" * 50_000,
    b"\xff\xfe: \xff",
    b"Host: second",
    b"A:\r\n folded",
    b"Connection: close, upgrade\r\nUpgrade: websocket",
]


# What is sent of a request, with pauses in seconds in between.
Parts = list[bytes | float]


def body_of(rng: random.Random) -> bytes:
    """Returns a good body of a prediction."""
    return json.dumps({"instances": [QUESTION] * rng.randint(1, 3)}).encode()


def request(body: bytes, start: bytes = b"POST " + PREDICT, more: bytes = b"") -> bytes:
    has_length = b"Content-Length" in more or b"Transfer-Encoding" in more
    length = b"" if has_length else b"Content-Length: %d\r\n" % len(body)
    head = b"%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % start
    return head + length + more + b"\r\n" + body


def damaged(rng: random.Random) -> Parts:
    """Some bytes of a whole request are others."""
    data = bytearray(request(body_of(rng)))
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return [bytes(data)]


def other_headers(rng: random.Random) -> Parts:
    more = b"".join(rng.choice(_HEADERS) + b"\r\n" for _ in range(rng.randint(1, 2)))
    return [request(body_of(rng), b"POST " + rng.choice([PREDICT, INFER]), more)]


def other_json(rng: random.Random) -> Parts:
    """JSON of other types at a place of a good body of one of the protocols, or cut."""
    kind = {"shape": [1], "datatype": "BYTES", "data": ["a"], "parameters": {"binary_data_size": None}}
    tensors = [{"name": name, **kind} for name in QUESTION]
    ids = {"input_ids": [[1]], "input_mask": [[1]], "segment_ids": [[0]]}
    bodies = {"instances": [QUESTION]}, {"inputs": ids, "signature_name": "tensors"}, {"inputs": tensors}
    number = rng.randrange(len(bodies))
    place = body = json.loads(json.dumps(bodies[number]))
    while True:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.3:
            break
        place = place[key]
    place[key] = rng.choice([*_JUNK, [-1], [10**12], 2**31])
    text = json.dumps(body).encode()
    text = text[: rng.randrange(len(text))] if rng.random() < 0.1 else text
    return [request(text, b"POST " + (INFER if number == 2 else PREDICT))]


def oversized(rng: random.Random) -> Parts:
    """A large body, length, number of instances, text, or number of chunks."""
    chunks = (b"2000\r\n" + b" " * 0x2000 + b"\r\n") * rng.randint(9, 40)
    requests = [
        request(b" " * rng.randint(70_000, 400_000)),
        request(b"[" * rng.randint(1, 30_000)),
        request(b"{}", more=b"Content-Length: %d\r\n" % rng.randint(70_000, 10**12)),
        request(json.dumps({"instances": [QUESTION] * 900}).encode()),
        request(json.dumps({"instances": [{**QUESTION, "context": "word7 " * 5000}]}).encode()),
        request(b"", more=b"Transfer-Encoding: chunked\r\n") + chunks,
    ]
    return [rng.choice(requests)]


def slow(rng: random.Random) -> Parts:
    """Stops in the middle, or comes in drops for longer than the server waits."""
    data = request(body_of(rng))
    cut = rng.randrange(1, len(data))
    step = cut if rng.random() < 0.5 else max(cut // 12, 1)
    return [part for place in range(0, cut, step) for part in (data[place : min(place + step, cut)], 0.15)]


def aborted(rng: random.Random) -> Parts:
    data = request(body_of(rng))
    cut = rng.choice([rng.randrange(1, len(data)), len(data), len(data)])
    return [data[:cut], rng.choice([0.0, 0.001, 0.01])]


# {kind of the damage: (its weight, what makes the parts, whether it may be answered as if it were good)}
KINDS: dict[str, tuple[int, Callable[[random.Random], Parts], bool]] = {
    "garbage": (8, lambda rng: [rng.randbytes(rng.randint(1, 3000)) + rng.choice([b"", b"\r\n\r\n"])], False),
    "damaged bytes": (15, damaged, True),
    "headers": (12, other_headers, True),
    "start": (10, lambda rng: [request(body_of(rng), rng.choice(_STARTS).replace(b"{}", PREDICT))], False),
    "json": (35, other_json, True),
    "oversized": (8, oversized, False),
    "slow": (4, slow, False),
    "aborted": (10, aborted, False),
}


def cases(number: int, seed: int) -> list[tuple[str, Parts]]:
    """Returns as many bad requests, always the same of a seed: the kind of the damage, and the parts."""
    rng = random.Random(seed)
    kinds = rng.choices(list(KINDS), [weight for weight, _, _ in KINDS.values()], k=number)
    return [(kind, KINDS[kind][1](rng)) for kind in kinds]


def send(port: int, *parts: bytes | float, is_aborted: bool = False, is_ended: bool = False) -> bytes:
    """Sends parts of a request; then the client goes away without reading where `is_aborted`, or ends its
    writing where `is_ended`. Returns all that is answered until the server closes, b"" where it closes at
    once."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), _WAIT_SECS) as connection:
        try:
            for part in parts:
                if isinstance(part, float):
                    time.sleep(part)
                else:
                    connection.sendall(part)
            if is_aborted:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return b""
            if is_ended:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                answer += part
        except (ConnectionResetError, BrokenPipeError):
            pass  # closed
    return answer


def judge(kind: str, answer: bytes) -> str | None:
    """Returns what is wrong with an answer to a bad request, or None."""
    statuses = [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d\d\d)", answer)]
    if b"Traceback" in answer or b'File "' in answer:
        return "a traceback"
    for status in statuses:
        if status != 100 and not 400 <= status < 500 and not (KINDS[kind][2] and status == 200):
            return f"status {status}"
    return None if statuses or not answer else f"no HTTP: {answer[:80]!r}"


def run(port: int, number: int, seed: int) -> list[str]:
    """Sends bad requests from several clients at once, and after every tenth a good one. Returns what was
    wrong."""

    def one(place: int, case: tuple[str, Parts]) -> str | None:
        kind, parts = case
        try:
            # Where garbage does not end, the server waits for the rest of it.
            answer = send(port, *parts, is_aborted=kind == "aborted", is_ended=kind == "garbage")
            wrong = judge(kind, answer)
        except TimeoutError:
            wrong = "neither answered nor closed"
        if wrong:
            return f"case {place} ({kind}): {wrong}: {parts[0][:300]!r}"
        if place % 10 == 0:
            answer = send(port, request(body_of(random.Random(place))))
            if not (answer.startswith(b"HTTP/1.1 200 ") and b'"predictions"' in answer):
                return f"after case {place}: a good request is not answered"
        return None

    with concurrent.futures.ThreadPoolExecutor(_CLIENTS) as pool:
        return list(filter(None, pool.map(one, itertools.count(), cases(number, seed))))
