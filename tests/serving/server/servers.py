"""Servers in this process: over a stand-in for the model, or over made-up models on disk."""

import asyncio
import contextlib
import functools
import http.client
import io
import json
import logging
import pathlib
import threading
import time
import types

import numpy as np

from official.checkpoint.containers import bundle
from official.config import BertConfig, ConfigError
from official.inference import Answer, backends, source
from official.serving.server import monitoring
from official.serving.server.application import Server
from official.serving.server.monitoring import Log
from official.serving.server.settings import Endpoint, Limits
from official.serving.server.versions import Loading, Served

SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 32, "max_position_embeddings": 40}
LOADING = Loading(None, None, backends.Settings(), None, None)
QUESTION = {"question": "word7 word8?", "context": "word9 word10 word11"}


class Panic(BaseException):
    """Of a library in Rust, such as tokenizers."""


class StandIn:
    """A model that answers a question with the first word of its context; "bad" cannot be asked, and "broken"
    breaks it.

    Attributes:
      batches: rows of each batch.
      gate: closed, it computes nothing.
      entered: set when a batch begins.
    """

    def __init__(self):
        self.source = types.SimpleNamespace(bert=BertConfig(**SIZES), thresholds=())
        self.batches: list[list] = []
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    label_names = ("first", "second")

    def answer_all(self, asked):
        self.entered.set()
        assert self.gate.wait(20)
        if any(question == "bad" for question, _ in asked):
            raise ConfigError("a bad question.")
        if any(question == "broken" for question, _ in asked):
            raise Panic("what a client has sent")
        self.batches.append(list(asked))
        words = [(context.split() or [""])[0] for _, context in asked]
        return [Answer(word, 0.5 if word else 1.0, 0, len(word)) for word in words]

    def results(self, method, rows):
        names = {"answer": "answer_all", "classify": "classify_all", "fill_mask": "fill_masks"}
        return getattr(self, names.get(method, method))(rows), [self.is_cut(row) for row in rows]

    def is_cut(self, row):
        return False

    def embed(self, texts):
        return np.array([[len(text), 0.5] for text in texts], np.float32)


def stand_in(version: int = 1, model: StandIn | None = None) -> Served:
    """Returns a version of a stand-in."""
    return Served(version, model or StandIn(), ["answer", "embed"])


def wait_until(condition, secs: float = 10) -> None:
    end = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class Client:
    """Asks a server.

    Attributes:
      port: of the server.
    """

    port: int

    def request(self, method: str, path: str, body=None, headers=None) -> tuple[int, dict, bytes]:
        """Returns status, headers in lower case and body of an answer, over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        content = json.dumps(body) if isinstance(body, (dict, list)) else body
        connection.request(method, path, content, headers or {})
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def predict(self, body) -> tuple[int, dict]:
        """Returns status and object of a prediction."""
        status, _, content = self.request("POST", "/v1/models/bert:predict", body)
        return status, json.loads(content)

    def get(self, path: str) -> tuple[int, dict]:
        """Returns status and object of an answer."""
        status, _, content = self.request("GET", path)
        return status, json.loads(content)


class Running(Client):
    """A server that runs in this process.

    Attributes:
      server: itself.
      model: the stand-in of version 1, where it serves one.
    """

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop, stream: io.StringIO):
        self.port, self.server = server.port, server
        self._loop, self._stream = loop, stream

    def call(self, coroutine):
        """Returns the result of a coroutine of the server's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def lines(self) -> list[dict]:
        """Returns what was logged."""
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]


@contextlib.contextmanager
def running(export_dir, limits: Limits = Limits(), load=None, **settings):  # noqa: B008  # frozen
    """Runs a server; `load` replaces the loading of versions."""
    stream, ready, handlers = io.StringIO(), threading.Event(), logging.getLogger("tornado").handlers
    log, found, stops = Log(stream), [], []
    kept = list(handlers)
    monitoring.take_over(log)

    async def serve():
        stopping = asyncio.Event()
        endpoint = Endpoint(str(export_dir), port=0, **{"poll_secs": 0.1, **settings})
        server = Server(endpoint, limits, LOADING, log)
        if load:
            server.versions._load = load
        await server.start()
        watcher = asyncio.create_task(server.look_for_versions())
        found.append(Running(server, asyncio.get_running_loop(), stream))
        stops.append(functools.partial(asyncio.get_running_loop().call_soon_threadsafe, stopping.set))
        ready.set()
        await stopping.wait()
        watcher.cancel()
        if not server.is_stopping:
            await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(180)
    try:
        yield found[0]
    finally:
        stops[0]()
        thread.join(30)
        log.close()
        logging.getLogger("tornado").handlers[:] = kept
    assert not thread.is_alive()


@contextlib.contextmanager
def standing_in(limits: Limits = Limits(), model: StandIn | None = None, **settings):  # noqa: B008  # frozen
    """Runs a server over a stand-in."""
    model = model or StandIn()
    with running("nowhere", limits, lambda version, path: stand_in(version, model), **settings) as server:
        server.model = model
        yield server


def write_model(folder: pathlib.Path, head: str, seed: int = 0, **changed) -> str:
    """Writes a checkpoint of random weights with the head of a method, and its vocabulary. Returns its
    folder."""
    folder.mkdir(parents=True)
    sizes = {**SIZES, **changed}
    found = source.random_source(BertConfig(**sizes), head, seed=seed)
    bundle.write(found.tensors, str(folder / "ckpt-0"))
    (folder / "vocab.txt").write_text("\n".join(found.vocabulary.words) + "\n")
    (folder / "config.json").write_text(json.dumps(sizes))
    return str(folder)
