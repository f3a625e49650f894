"""The systems measured: back ends of this project, and other inference systems."""

from __future__ import annotations

import dataclasses

from official.cli.benchmark import peers
from official.cli.benchmark.environments import Environment

BACKENDS = ("tensorflow", "onnxruntime", "openvino")
DTYPES = ("fp32", "bf16", "int8")
_PYTORCH, _PRODUCTS = "huggingface.py", "products"


@dataclasses.dataclass(frozen=True)
class System:
    """A system.

    Attributes:
      name: in tables and JSON.
      title: for people.
      program: in peer_programs/.
      variant: its own kind of working.
      dtypes: that it computes in, of DTYPES.
      environment: that it runs in; None: this one.
    """

    name: str
    title: str
    program: str
    variant: str
    dtypes: tuple[str, ...] = DTYPES
    environment: Environment | None = None

    @property
    def is_ours(self) -> bool:
        return self.name in (*BACKENDS, _PRODUCTS)

    @property
    def is_pytorch(self) -> bool:
        return self.program == _PYTORCH


_PACKAGES = peers.PEERS["huggingface"].requirements
_HUGGINGFACE = Environment("huggingface", _PACKAGES)
_EXPORTED = Environment(
    "huggingface_exported",
    (*_PACKAGES, "onnx==1.23.2", "onnxscript==0.7.2", "onnxruntime==1.32.0", "openvino==2026.4.1"),
)
_FLOATS = ("fp32", "bf16")


def _huggingface(variant: str, title: str) -> System:
    name = f"huggingface_{variant}"
    return System(name, f"Hugging Face, {title}", _PYTORCH, variant, _FLOATS, _HUGGINGFACE)


def _exported(variant: str, title: str, dtypes: tuple[str, ...]) -> System:
    name = f"huggingface_{variant}"
    return System(name, f"Hugging Face in {title}", "exported.py", variant, dtypes, _EXPORTED)


_ROWS = (
    _huggingface("eager", "eager"),
    _huggingface("sdpa", "sdpa"),
    _huggingface("compiled", "compiled"),
    _huggingface("frozen", "compiled and frozen"),
    _huggingface("onednn", "oneDNN's linear layers"),
    _exported("onnxruntime", "ONNX Runtime", ("fp32",)),
    _exported("openvino", "OpenVINO", _FLOATS),
)
PEERS = {row.name: row for row in _ROWS}
PRODUCTS = System(_PRODUCTS, "bare products", "products.py", "", _FLOATS)


def backend(name: str, dtypes: tuple[str, ...]) -> System:
    """Returns a back end of this project as a system."""
    title = {"tensorflow": "TensorFlow", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}[name]
    return System(name, f"ours, {title}", "ours.py", name, dtypes)


def title_of(name: str) -> str:
    """Returns the title of a system by its name."""
    return PEERS[name].title if name in PEERS else backend(name, ()).title
