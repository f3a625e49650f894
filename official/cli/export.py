"""Writes a model for other programs: a SavedModel that takes text, or an ONNX file.

  bert export --checkpoint=runs/squad --export_dir=models/bert/1
  bert export --checkpoint=runs/sst2 --export_dir=sst2_int8 --dtype=int8
  bert export --checkpoint=runs/squad --export_dir=squad_onnx --format=onnx

The SavedModel has its tokenizer within: it is loaded by TensorFlow with tensorflow-text, by TensorFlow
Serving, and by every command here that takes a --checkpoint. Nothing that is there is replaced.
"""

from typing import TYPE_CHECKING

from official.cli import command_line

if TYPE_CHECKING:
    from official.serving import export

_MEGABYTE = 1e6


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        required=True,
        help="A run's folder (--model_dir), or a checkpoint of any known format.",
    )
    add("--export_dir", required=True, help="Folder to write, which must not be there.")
    add("--vocab_file", help="Vocabulary. Unset: the one beside the checkpoint, or that of the run.")
    command_line.add_lower_case_flag(parser)
    command_line.add_length_flag(parser)
    add("--format", default="saved_model", help="saved_model or onnx.")
    dtype = "Type of the weights: fp32, bf16 (not for onnx) or int8."
    add("--dtype", default="fp32", help=dtype)
    add(
        "--calibration_file",
        help="For onnx: what the ranges of int8's activations are taken from, see bert ask. Unset: the"
        " training data of the run.",
    )
    return parser


def main() -> None:
    flags = make_parser().parse()
    from official.serving import export

    request = export.Request(flags.format, flags.dtype, flags.calibration_file)
    export.check(flags.export_dir, request)
    from official.inference import source

    found = source.find(
        flags.checkpoint, flags.vocab_file, flags.do_lower_case, "checkpoint", flags.max_seq_length
    )
    print(describe(export.export(found, flags.export_dir, request), flags.dtype))


def describe(written: "export.Written", dtype: str) -> str:
    """Returns a line about the exported model, from an `export.Written`."""
    return (
        f"Exported to {written.folder}: {', '.join(written.signatures)}; {dtype},"
        f" {written.bytes / _MEGABYTE:.1f} MB; outputs at most {written.difference:.1g} from the model's."
    )
