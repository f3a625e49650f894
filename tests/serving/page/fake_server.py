"""A server that answers as TensorFlow Serving's REST contract says, from a table instead of a model."""

import dataclasses
import http.server
import json
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from official.inference.signatures import SIGNATURES
from official.serving.server import handlers, protocols
from official.serving.server.versions import State

MODEL = "my bert"
_START, _END = f"/v1/models/{MODEL.replace(' ', '%20')}", ":predict"


def answer(inputs: dict, wanted: str = "Three earthquakes") -> dict:
    start = inputs["context"].find(wanted)
    if start < 0:
        return {"text": "", "start": 0, "end": 0, "score": 0.61}
    return {"text": wanted, "start": start, "end": start + len(wanted), "score": 0.9371}


def fill_mask(inputs: dict) -> dict:
    words, scores = ["france", "europe", "##land", "paris", "it"], [0.71, 0.11, 0.05, 0.01, 0.001]
    count = inputs["text"].count("[MASK]")
    return {"tokens": [words] * count, "scores": [scores] * count}


def label_of(scores: dict[str, float], label: str | None = None) -> dict:
    """Returns the answer for {name of an output: probability, or score}; '' as label: they are scores."""
    best = max(scores, key=scores.__getitem__) if label is None else label
    score = scores.get(best, next(iter(scores.values())))
    return {"label": best, "score": score, "labels": list(scores), "scores": list(scores.values())}


def classify(inputs: dict) -> dict:
    share = 0.998 if "warm" in inputs["sentence_a"] else 0.002
    return label_of({"negative": 1 - share, "positive": share})


def embed(inputs: dict) -> list[float]:
    return [1.0, float(len(inputs["text"])), -2.0]


@dataclasses.dataclass
class Fake:
    """What the server does; a test changes it while it runs.

    Attributes:
      replies: what a signature gives for one instance.
      token: that calls need; '' for none.
      error: (status, body) that every prediction ends in.
      wait_secs: before a prediction.
      loading: number of the version that is loaded, before which nothing can be asked; '' for none.
      labels: of the classifier, as the metadata name them.
      asked: bodies of the predictions that came, in their order.
      address: of the page.
    """

    replies: dict[str, Callable]
    token: str = ""
    error: tuple[int, bytes] | None = None
    wait_secs: float = 0.0
    loading: str = ""
    labels: list[str] = dataclasses.field(default_factory=list)
    asked: list[dict] = dataclasses.field(default_factory=list)
    address: str = ""

    def metadata(self) -> dict:
        names = {name: SIGNATURES[name] for name in self.replies}
        served = {"signatures": names, "methods": list(names), "labels": self.labels, "version": 3}
        return protocols.rest_metadata(MODEL, types.SimpleNamespace(**served))

    def status(self) -> dict:
        version, state = (self.loading, "LOADING") if self.loading else ("3", "AVAILABLE")
        return protocols.rest_status({version: State(state)})

    def predict(self, body: dict) -> dict:
        """Returns the predictions. Raises KeyError where an input is not there."""
        self.asked.append(body)
        name = body["signature_name"]
        for instance in body["instances"]:
            assert set(instance) == {field.name for field in SIGNATURES[name].inputs}, instance
        return {"predictions": [self.replies[name](instance) for instance in body["instances"]]}


class _Handler(http.server.BaseHTTPRequestHandler):
    fake: Fake

    def do_GET(self):
        files = handlers.page_files(MODEL)
        if self.path in files:
            self._send(200, *files[self.path], handlers.PAGE_HEADERS)
        elif not self._is_refused():
            loading = 503, {"error": "the model is being loaded. Try again later."}
            metadata = loading if self.fake.loading else (200, self.fake.metadata())
            known = {f"{_START}/metadata": metadata, _START: (200, self.fake.status())}
            self._json(*known.get(self.path, (404, {"error": f"there is no {self.path}"})))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == _START + _END and self.headers["Content-Type"] == "application/json"
        if self._is_refused():
            return
        time.sleep(self.fake.wait_secs)
        if self.fake.error:
            self._send(self.fake.error[0], "application/json", self.fake.error[1], {})
        else:
            self._json(200, self.fake.predict(json.loads(body)))

    def _is_refused(self) -> bool:
        is_refused = bool(self.fake.token) and self.headers["Authorization"] != f"Bearer {self.fake.token}"
        if is_refused:
            self._json(401, {"error": "a token is needed"})
        return is_refused

    def _json(self, status: int, body: dict) -> None:
        self._send(status, "application/json", json.dumps(body).encode(), {})

    def _send(self, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Says nothing."""


@contextmanager
def serving() -> Iterator[Fake]:
    """Runs a server of all methods on a free port."""
    fake = Fake({"answer": answer, "fill_mask": fill_mask, "classify": classify, "embed": embed})
    handler = type("Handler", (_Handler,), {"fake": fake})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    fake.address = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
