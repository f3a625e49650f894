"""`bert convert`, `inspect` and `export`: checkpoints of all formats."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from official.checkpoint import registry
from official.checkpoint.formats import Format
from official.cli import ask, command_line, outputs
from official.config.model import LARGEST
from official.io.errors import ConfigError, report_error

if TYPE_CHECKING:
    from official.serving import export


# -----------------------------------------------------------------------------------------------------------
# bert convert


class Convert(command_line.Flags):
    """Converts BERT checkpoints between Google, Graphcore, PopART, Hugging Face, Model Garden and this
    project, both ways.

      bert convert ACTION PATH --output_dir=DIR [flags]

    ACTION is SOURCE2TARGET with any two of google, graphcore, popart, native (this project; also keras),
    garden (TF2 object checkpoints of the MLPerf submission), huggingface (or hf); or research2apps,
    apps2research (GroupBERT). PATH is a prefix, a file, or a folder: the
    best checkpoint of a run's folder is used, the newest of any other.
    The result is DIR/<basename of PATH>, or DIR itself for huggingface.

    Exit codes: 0 converted; 1 the result differs when it is read back, or its outputs with --verify; 2 bad
    input.

    Attributes:
      action: ACTIONS.
      path: Checkpoint: prefix, file or folder.
      output_dir: Folder of the result.
      vocab_size: Number of words of the result: embeddings are truncated or padded with zeros. Unset: that of
        the source, with the rows that an earlier conversion truncated restored; 30400 for graphcore.
      precision: Floating-point type. Unset: that of the source; 16 for graphcore and research, 32 from
        graphcore.
      num_attention_heads: Number of attention heads. Unset: as the checkpoint's shapes, or a config file next
        to it, say (12 if that does not); a result that needs it is refused where neither is there.
      vocab_file: Vocabulary to put next to the result. Unset: vocab.txt next to the checkpoint.
      with_optimizer: Also convert optimizer slots, if both formats have them.
      report: Write the report of the conversion to this JSON file.
      verify: Build the model from both checkpoints and compare the outputs of all heads on a random batch.
      overwrite: Replace an existing result.
    """

    POSITIONAL = ("action", "path")
    action: str
    path: str
    output_dir: str = "converted_ckpt"
    vocab_size: int | None = None
    precision: Literal[16, 32] | None = None
    num_attention_heads: int | None = None
    vocab_file: str | None = None
    with_optimizer: bool = False
    report: str | None = None
    verify: bool = False
    overwrite: bool = False

    @classmethod
    def parser(cls) -> command_line.Parser:
        parser = super().parser()
        parser.ranges = dict.fromkeys(("vocab_size", "num_attention_heads"), (1, LARGEST))
        for action in parser._actions:
            action.help = action.help and action.help.replace("ACTIONS", registry.describe_actions())
        for option, having in registry.options_of_formats().items():
            kind = {"action": argparse.BooleanOptionalAction} if option.most is None else {"type": int}
            text = f"{', '.join(one.name for one in having)}: {option.help}"
            parser.add_argument(f"--{option.name}", help=text, **kind)
            parser.ranges |= {option.name: (1, option.most)} if option.most else {}
        return parser


def convert_flags() -> tuple[Convert, Format, Format]:
    """Returns the flags, with the action's own name, and its two formats. Raises ConfigError for what the
    conversion cannot do."""
    flags = Convert.parse()
    flags.action, source, target = registry.get_action(flags.action)
    registry.check_concerned(flags.action, vars(flags))
    return flags, source, target


def run_convert() -> int:
    flags, source, target = convert_flags()
    outputs.check_files(flags, "report")
    from official.checkpoint import convert, sidecar_files
    from official.inference import verification

    own = ("action", "path", "output_dir", "report", "verify", "overwrite")
    given = {name: value for name, value in vars(flags).items() if name not in own}
    verify, bar = verification.verify if flags.verify else None, functools.partial(bar_of, flags.action)
    try:
        options = registry.make_options(source, target, given)
        checkpoint = sidecar_files.open_best(flags.path, "PATH", source.name)
        if flags.verify:
            verification.check(checkpoint, options)
        report = convert.convert(
            checkpoint, target.name, flags.output_dir, options, flags.overwrite, bar, verify
        )
    except convert.MismatchError as error:
        problem = str(error)
    except ConfigError as error:
        if error.details and flags.report:
            outputs.write_json(flags.report, {"error": str(error), **error.details})
        elif error.is_shortened:
            raise ConfigError(f"{error} --report=FILE lists all names.") from None
        raise
    else:
        verified = verification.describe(report["verification"]) if flags.verify else ""
        if flags.report:
            outputs.write_file(flags.report, json.dumps(report, indent=1, allow_nan=False) + "\n")
        if report["published"]:
            # What the published tool prints and scripts may look for.
            saved = f"Number of parameters saved: {report['target']['parameters']}"
            if flags.action == "graphcore2google":
                saved = f"Saved to :{report['target']['path']}"
            print("\n".join([convert.describe(report), saved, *([verified] if verified else [])]))
            return 0
        problem = f"{verified}."
    report_error(command_line.program(), f"{problem} Nothing was written to {flags.output_dir}.")
    return 1


def bar_of(title: str, total: int) -> Callable[[int], None]:
    """Returns a function of the bytes written since the last call. It shows a bar, which appears with the
    first ones: bad input ends before, in one line."""
    import tqdm

    look: dict[str, Any] = dict(desc=title, unit="B", unit_scale=True, disable=None, delay=1e-9)
    bar = tqdm.tqdm(total=total, file=sys.stderr, **look)  # not into a log

    def add(size: int) -> None:
        bar.update(size)
        if bar.n >= total:
            bar.close()

    return add


# -----------------------------------------------------------------------------------------------------------
# bert inspect


class Inspect(command_line.Flags):
    """Shows the contents of a checkpoint of any known format: its format, sizes, and a table of its tensors.

    bert inspect PATH [--digest] [--json]

    Attributes:
      path: Checkpoint: prefix, file or folder.
      digest: Also read every tensor and show the sha256 of its values.
      json: Print JSON.
    """

    POSITIONAL = ("path",)
    path: str
    digest: bool = False
    json: bool = False


def inspect_checkpoint(path: str, digest: bool) -> dict:
    """Returns {format, path, tensors, parameters, bytes, table: [{name, shape, dtype, sha256}]} of a
    checkpoint."""
    from official.checkpoint import naming_unreadable

    checkpoint, rows = registry.open_checkpoint(path, "PATH"), []
    with naming_unreadable(path):
        for name, tensor in sorted(checkpoint.tensors.items()):
            rows.append({"name": name, "shape": list(tensor.shape), "dtype": tensor.dtype.name})
            if digest:  # of the values, little-endian in C order
                rows[-1]["sha256"] = hashlib.sha256(tensor.read().tobytes()).hexdigest()
    return {
        "format": checkpoint.format.reported_name,
        "path": checkpoint.location,
        **registry.size_of(checkpoint.tensors),
        "table": rows,
    }


def run_inspect() -> None:
    flags = Inspect.parse()
    found = inspect_checkpoint(flags.path, flags.digest)
    if flags.json:
        print(json.dumps(found, indent=1))
        return
    rows = [[row["name"], str(row["shape"]), row["dtype"], row.get("sha256", "")] for row in found["table"]]
    names, shapes = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    for name, shape, dtype, digest in rows:
        print(f"{name:<{names}}  {shape:<{shapes}}  {dtype:<8} {digest}".rstrip())
    print(
        "{format}: {tensors} tensors, {parameters:,} numbers, {0:,.1f} MB, {path}".format(
            found["bytes"] / 1e6, **found
        )
    )


# -----------------------------------------------------------------------------------------------------------
# bert export


class Export(ask.CheckpointFlags, command_line.LengthFlag):
    """Writes a model for other programs: a SavedModel that takes text, or an ONNX file.

      bert export --checkpoint=runs/squad --export_dir=models/bert/1
      bert export --checkpoint=runs/sst2 --export_dir=sst2_int8 --dtype=int8
      bert export --checkpoint=runs/squad --export_dir=squad_onnx --format=onnx

    The SavedModel contains its tokenizer. TensorFlow with tensorflow-text, TensorFlow Serving, and every
    command here with a --checkpoint flag can load it. Existing files are never replaced.

    Attributes:
      export_dir: Folder to write; it must not exist.
      format: saved_model or onnx.
      dtype: Type of the weights: fp32, bf16 (not for onnx) or int8.
      calibration_file: With --format=onnx --dtype=int8: texts to calibrate the activation ranges with, see
        bert ask. Unset: the training data of the run.
    """

    export_dir: str
    format: str = "saved_model"
    dtype: str = "fp32"
    calibration_file: str | None = None


def run_export() -> None:
    flags = Export.parse()
    from official.serving import export

    request = export.Request(flags.format, flags.dtype, flags.calibration_file)
    export.check(flags.export_dir, request)
    from official.inference import source

    found = source.find(
        flags.checkpoint, flags.vocab_file, flags.do_lower_case, "checkpoint", flags.max_seq_length
    )
    print(describe_export(export.export(found, flags.export_dir, request), flags.dtype))


def describe_export(written: export.Written, dtype: str) -> str:
    """Returns a line about the exported model, from an `export.Written`."""
    names, size = ", ".join(written.signatures), f"{written.bytes / 1e6:.1f} MB"
    difference = f"outputs at most {written.difference:.1g} from the model's"
    return f"Exported to {written.folder}: {names}; {dtype}, {size}; {difference}."
