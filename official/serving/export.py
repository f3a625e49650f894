"""Models as files for other programs: SavedModels that take text, and ONNX files that take token ids.

An export is written to a temporary folder, read back, compared with the model, and then renamed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from official.io import writing
from official.io.errors import ConfigError, check_installed, suggest
from official.io.files import is_remote

if TYPE_CHECKING:
    from official.inference.source import Source


DTYPES = {"saved_model": ("fp32", "bf16", "int8"), "onnx": ("fp32", "int8")}  # by format


class Request(NamedTuple):
    """Request of an export.

    Attributes:
      format: a key of DTYPES.
      dtype: a type of DTYPES[format].
      calibration_file: for int8 with onnx, see `official.inference.methods`; None: the run's training data.
    """

    format: str = "saved_model"
    dtype: str = "fp32"
    calibration_file: str | None = None


class Written(NamedTuple):
    """Result of an export.

    Attributes:
      folder: path of the export.
      bytes: total size of its files.
      signatures: names of its signatures.
      difference: largest difference between its outputs and those of the float32 model.
    """

    folder: str
    bytes: int
    signatures: tuple[str, ...]
    difference: float


def check(folder: str, request: Request = Request()) -> None:  # noqa: B008  # immutable
    """Raises ConfigError for an existing or unwritable folder, and for an unknown format or type."""
    if request.format not in DTYPES:
        expected = f"{suggest(request.format, DTYPES)}: expected one of {', '.join(DTYPES)}."
        raise ConfigError(f"--format={request.format[:100]}{expected}")
    if request.dtype not in DTYPES[request.format]:
        dtypes = ", ".join(DTYPES[request.format])
        raise ConfigError(f"--dtype={request.dtype[:100]}: --format={request.format} has {dtypes}.")
    if request.format == "onnx":
        check_installed("--format=onnx", "onnx", "onnx", "tf2onnx", "onnxruntime")
    if request.calibration_file and (request.format, request.dtype) != ("onnx", "int8"):
        raise ConfigError("--calibration_file is for --format=onnx --dtype=int8. Drop it.")
    if is_remote(folder):
        raise ConfigError(f"--export_dir={folder}: exports need a local folder. Give one, and copy it.")
    if os.path.lexists(folder):
        advice = "Give another folder, such as the next number of a folder of versions."
        raise ConfigError(f"--export_dir={folder} exists, and exports never overwrite. {advice}")


def export(source: Source, folder: str, request: Request = Request()) -> Written:  # noqa: B008  # immutable
    """Writes a model.

    Args:
      source: the model.
      folder: path of the export, which must not exist.
      request: format and type.

    Raises:
      ConfigError: as `check`; also if the model cannot be exported, or if the outputs of the export differ
        from the model's.
    """
    check(folder, request)
    folder = os.path.abspath(folder)
    from official.serving import export_folders  # loads TensorFlow

    write, compare = export_folders.WRITERS[request.format]
    with writing.naming_output(folder, "export_dir"), writing.unpublished(os.path.dirname(folder)) as work:
        made = os.path.join(work, os.path.basename(folder))
        signatures = write(source, made, request)
        difference = compare(source, made)
        allowed = 1e-4 if request.dtype == "fp32" else 1e30  # outputs are around 1; other types: any finite
        if not difference <= allowed:
            raise ConfigError(
                f"{source.name} as {request.format} differs from the model: outputs are up to"
                f" {difference:.1g} apart, expected at most {allowed:g}. Nothing was written."
            )
        size = 0
        for parent, _, names in os.walk(made):  # waits until all files are on the disk
            for path in (*(os.path.join(parent, name) for name in names), parent):
                writing.sync(path)
                size += os.path.getsize(path) if path != parent else 0
        check(folder, request)  # another process may have made it meanwhile
        os.rename(made, folder)
    return Written(folder, size, tuple(signatures), difference)
