"""Addresses of the server, and the handler of each."""

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from official.serving import page
from official.serving.server import rest, v2
from official.serving.server.handler import Handler
from official.serving.server.metrics import CONTENT_TYPE
from official.serving.server.refusals import Refused

if TYPE_CHECKING:  # it imports this module
    from official.serving.server.application import Server


def routes(server: "Server") -> list[tuple]:
    """Returns the addresses: (pattern, handler, arguments)."""
    own = {"server": server}
    v1 = rf"/v1/models/{re.escape(server.model)}(?:/versions/(\d{{1,18}}))?"
    model = r"/v2/models/([^/]+)(?:/versions/([^/]+))?"
    found: list[tuple] = [
        (r"/healthz", Health, own),
        (r"/metrics", Numbers, own),
        (v1, Status, own),
        (rf"{v1}/metadata", Metadata, own),
        (rf"{v1}:predict", Predict, own),
        (r"/v2", V2Server, own),
        (r"/v2/health/(live|ready)", V2Health, own),
        (model, V2Metadata, own),
        (rf"{model}/ready", V2Ready, own),
        (rf"{model}/infer", V2Infer, own),
    ]
    for path, (kind, content) in page.files(server.model).items():
        found.append((re.escape(path), Page, {**own, "kind": kind, "content": content}))
    return [*found, (r".*", Nothing, own)]


class Health(Handler):
    """Whether the server can be asked: 503 before the first version is ready, and while it stops."""

    endpoint, needs_token, is_logged = "healthz", False, False

    async def answer(self) -> dict:
        if self.server.is_stopping or self.server.versions.served is None:
            raise Refused(503, "stopping." if self.server.is_stopping else "loading the model.")
        return {"status": "ok", "version": self.server.versions.served.version}


class Numbers(Handler):
    """Prometheus' metrics."""

    endpoint, is_logged = "metrics", False

    async def answer(self) -> bytes:
        self.set_header("Content-Type", CONTENT_TYPE)
        return self.server.metrics.text()


class Page(Handler):
    """A file of the page."""

    endpoint, needs_token, is_logged = "page", False, False

    # pylint: disable=arguments-differ,attribute-defined-outside-init  # so Tornado wants it
    def initialize(self, server: "Server", kind: str = "", content: bytes = b"") -> None:
        super().initialize(server)
        self._kind, self._content = kind, content

    async def answer(self) -> bytes:
        for name, value in page.HEADERS.items():
            self.set_header(name, value)
        self.set_header("Content-Type", self._kind)
        return self._content


class Nothing(Handler):
    """Any other address: 404."""

    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

    async def answer(self) -> bytes:
        raise Refused(404, f"nothing is here. The model is at /v1/models/{self.server.model} and /v2.")


class Status(Handler):
    """TensorFlow Serving's GetModelStatus."""

    endpoint = "status"

    async def answer(self, version: str | None) -> dict:
        states = self.server.versions.states
        if version is not None:
            if int(version) not in states:
                raise Refused(404, f"no version {version} of {self.server.model}.")
            states = {int(version): states[int(version)]}
        return rest.status(states)


class Metadata(Handler):
    """TensorFlow Serving's GetModelMetadata."""

    endpoint = "metadata"

    async def answer(self, version: str | None) -> dict:
        return rest.metadata(self.server.model, self.server.find(version))


class Predict(Handler):
    """TensorFlow Serving's Predict."""

    endpoint, methods = "predict", ("POST",)

    async def answer(self, version: str | None) -> bytes:
        served, body = self.server.find(version), bytes(self.body)
        asked = await self.beside(len(body), rest.read, body, served, self.server.limits)
        results = await self.compute(served, asked.call)
        return await self.beside(_numbers(results), rest.write, asked, results)


class V2Server(Handler):
    """The server's metadata in the v2 protocol."""

    endpoint = "v2"

    async def answer(self) -> dict:
        return v2.SERVER


class V2Health(Handler):
    """Whether the server is live, or ready."""

    endpoint, is_logged = "v2_health", False

    async def answer(self, what: str) -> dict:
        if what == "ready" and not self.server.is_ready:
            raise Refused(503, "not ready.")
        return {what: True}


class _V2Model(Handler):
    """A request about a model of the v2 protocol."""

    endpoint = "v2_model"

    def signature(self, name: str, version: str | None) -> tuple[Any, str]:
        """Returns the version that is served and the signature that a name stands for. Raises Refused."""
        served = self.server.find(version)
        return served, v2.find_signature(self.server.model, name, served)


class V2Metadata(_V2Model):
    """A model's metadata."""

    async def answer(self, name: str, version: str | None) -> dict:
        served, signature = self.signature(name, version)
        return v2.metadata(name, signature, served)


class V2Ready(_V2Model):
    """Whether a model is ready."""

    is_logged = False

    async def answer(self, name: str, version: str | None) -> dict:
        self.signature(name, version)
        if not self.server.is_ready:
            raise Refused(503, "not ready.")
        return {"name": name, "ready": True}


class V2Infer(_V2Model):
    """An inference."""

    endpoint, methods = "infer", ("POST",)

    async def answer(self, name: str, version: str | None) -> bytes:
        served, signature = self.signature(name, version)
        body, length = bytes(self.body), self.request.headers.get(v2.HEADER)
        limits = self.server.limits
        asked = await self.beside(len(body), v2.read, body, length, signature, served, limits)
        results = await self.compute(served, asked.call)
        content, json_length = await self.beside(
            _numbers(results), v2.write, asked, results, name, served.version
        )
        if json_length is not None:
            self.set_header(v2.HEADER, str(json_length))
            self.set_header("Content-Type", "application/octet-stream")
        return content


def _numbers(results: list[Any]) -> int:
    """Returns the number of numbers in an answer, about."""
    first = results[0]
    parts = first.values() if isinstance(first, dict) else [first]
    return len(results) * sum(part.size if isinstance(part, np.ndarray) else 8 for part in parts)
