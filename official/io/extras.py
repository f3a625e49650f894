"""Packages that may be missing: which extra of setup.py brings each, and how to install it."""

from __future__ import annotations

import importlib.util
import sys

from official.io.errors import ConfigError

# {package as it is imported: the extra that brings it}
_EXTRAS = {
    "backports": "zstd",
    "fsspec": "storage",
    "gcsfs": "gcs",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "prometheus_client": "serve",
    "py3langid": "languages",
    "pyarrow": "parquet",
    "ray": "ray",
    "s3fs": "s3",
    "tf2onnx": "onnx",
    "tornado": "serve",
    "wandb": "wandb",
    "wikiextractor": "wikipedia",
}


def how_to_install(extra: str) -> str:
    """Returns the words that a message ends in: the package is on no index, its sources are at hand."""
    return f"pip install '.[{extra}]' in the source folder"


def check_installed(what: str, extra: str, *packages: str) -> None:
    """Raises ConfigError where one of the packages of an extra is not installed; imports none.

    Args:
      what: needs them, for the message: a flag, or a command.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"{what} needs the package {package}, which is not installed: {how_to_install(extra)}."
            )


def describe_missing(error: ModuleNotFoundError) -> str | None:
    """Returns a message about a package that is not installed; None for a module of this package, or of
    Python's own library, which is a fault of ours and no reason to install anything."""
    package = (error.name or "official").partition(".")[0]
    if package == "official" or package in getattr(sys, "stdlib_module_names", ()):
        return None
    if package in _EXTRAS:
        return f"the package {package} is not installed: {how_to_install(_EXTRAS[package])}."
    return (
        f"the package {package} is not installed in {sys.executable}. Run ./scripts/setup_env.sh in the"
        " source folder and take its .venv/bin/python, or pip install . there."
    )
