"""Converts BERT checkpoints between Google, Graphcore, PopART, Hugging Face, Model Garden and this project,
both ways.

  bert convert ACTION PATH --output_dir=DIR [flags]

ACTION is SOURCE2TARGET with any two of google, graphcore, popart, keras (this project), garden (TF2 object
checkpoints of the MLPerf submission), huggingface (or hf); or research2apps, apps2research (GroupBERT). PATH
is a prefix, a file, or a folder, of which the newest checkpoint is taken. The result is DIR/<basename of
PATH>, or DIR itself for huggingface.

Exit codes: 0 converted, 1 the result read back or (--verify) its outputs differ, 2 bad input.
"""

import argparse
import json
import sys
from typing import Any

from official.cli import command_line, outputs
from official.config import ConfigError, suggest
from official.config.model import LARGEST
from official.io.errors import report_error
from official.io.writing import check_output_file

_NAMES = ("google", "graphcore", "popart", "keras", "garden", "huggingface")
_ACTIONS = {
    "research2apps": ("research", "graphcore"),
    "apps2research": ("graphcore", "research"),
    **{f"{source}2{target}": (source, target) for source in _NAMES for target in _NAMES if source != target},
}
_ALIASES = {"hf": "huggingface"}
# The published google2graphcore's, for whatever becomes a checkpoint of Graphcore's: what its model
# configurations want.
_GRAPHCORE_DEFAULTS = {"vocab_size": 30400, "precision": 16, "use_cls_layer": False}
# {flag: (formats of which one must be at an end, what other conversions do anyway and may be told to)}
_CONCERNS = {
    **dict.fromkeys(
        ("use_cls_layer", "use_qkv_bias", "use_attention_bias"), (("graphcore", "research"), True)
    ),
    "num_embeddings_splits": (("graphcore", "research"), 1),
    "fused_qkv": (("graphcore", "research"), False),
    "baseline": (("research",), False),
}


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add("action", metavar="ACTION", help="SOURCE2TARGET, e.g. google2graphcore.")
    add("path", metavar="PATH", help="Checkpoint: prefix, file or folder.")
    add("--output_dir", default="converted_ckpt", help="Folder of the result.")
    vocab_size = (
        "Words of the result: cut off or filled up with zeros. Unset: as the source has, and what an earlier"
        " conversion cut off comes back; 30400 for graphcore."
    )
    add("--vocab_size", type=int, help=vocab_size)
    _add_format_flags(parser)
    precision = "Float type. Unset: as the source has; 16 for graphcore and research, 32 from graphcore."
    add("--precision", type=int, choices=(16, 32), help=precision)
    add(
        "--num_attention_heads",
        type=int,
        help="Unset: as a config file beside the checkpoint or its shapes say, else hidden size / 64.",
    )
    add("--vocab_file", help="Vocabulary to put with the result. Unset: vocab.txt beside the checkpoint.")
    parser.add_bool("with_optimizer", False, "Carry optimizer slots where both formats have them.")
    add("--report", help="Write the report of the conversion to this JSON file.")
    verify = "Build the model from both checkpoints and compare its outputs on a random batch."
    parser.add_bool("verify", False, verify)
    parser.add_bool("overwrite", False, "Replace an older result.")
    return parser


def _add_format_flags(parser: command_line.Parser) -> None:
    """Adds the flags that concern one format."""
    splits = "graphcore: parts of the word embeddings (unset: 1)."
    parser.add_argument("--num_embeddings_splits", type=int, help=splits)
    for name, text in (
        ("use_cls_layer", "graphcore: keep the transform of the masked-LM head (unset: no)."),
        ("use_qkv_bias", "graphcore: keep the biases of query, key and value (unset: yes)."),
        ("use_attention_bias", "graphcore: keep the bias of the attention's projection (unset: yes)."),
        ("fused_qkv", "graphcore: one kernel for query, key and value."),
        ("baseline", "research: BERT and not GroupBERT."),
        (
            "hf_prefix",
            "huggingface: names begin with bert. (unset: where there is a head, as transformers has it).",
        ),
    ):
        parser.add_bool(name, None, text)


def parse_flags() -> argparse.Namespace:
    return check(make_parser().parse())


def check(flags):
    flags.action = "2".join(_ALIASES.get(end, end) for end in flags.action.split("2"))
    if flags.action not in _ACTIONS:
        raise ConfigError(
            f"unknown action {flags.action!r}{suggest(flags.action, _ACTIONS)}. It is SOURCE2TARGET with two"
            f" of {', '.join(_NAMES)}, or research2apps or apps2research."
        )
    heads, words = LARGEST["num_attention_heads"], LARGEST["vocab_size"]
    for name, most in (
        ("vocab_size", words),
        ("num_embeddings_splits", words),
        ("num_attention_heads", heads),
    ):
        if getattr(flags, name) is not None and not 1 <= getattr(flags, name) <= most:
            raise ConfigError(f"--{name}={getattr(flags, name)}, expected a number from 1 to {most:,}.")
    check_concerned(flags, _ACTIONS[flags.action])
    return flags


def check_concerned(flags, ends: tuple[str, str]) -> None:
    """Raises ConfigError for a flag that asks for what this conversion cannot do."""
    for name, (formats, anyway) in _CONCERNS.items():
        if getattr(flags, name) not in (None, anyway) and not set(formats) & set(ends):
            raise ConfigError(
                f"--{name} concerns only {' and '.join(formats)}, and {flags.action} has none of them. Drop"
                " the flag."
            )
    if flags.hf_prefix is not None and ends[1] != "huggingface":
        raise ConfigError(
            f"--hf_prefix concerns only what is written for huggingface, not {flags.action}. Drop the flag."
        )


def options_of(flags):
    """Returns the options of the conversion: what was given, over the defaults of the action."""
    from official.checkpoint.formats.options import Options

    source, target = _ACTIONS[flags.action]
    defaults: dict[str, Any] = {"use_cls_layer": True}
    if target == "graphcore" and source != "research":
        defaults |= _GRAPHCORE_DEFAULTS
    elif "research" in (source, target):
        defaults |= {"precision": 16}
    elif source == "graphcore":
        defaults |= {"precision": 32}
    names = (
        "vocab_size",
        "with_optimizer",
        "precision",
        "num_embeddings_splits",
        "use_cls_layer",
        "use_qkv_bias",
        "use_attention_bias",
        "fused_qkv",
        "num_attention_heads",
        "baseline",
        "hf_prefix",
        "vocab_file",
    )
    given = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
    return Options(**{**defaults, **given})


def main() -> int:
    flags = parse_flags()
    if flags.report:
        check_output_file(flags.report, "report", flags.overwrite)
    from official.checkpoint import conversion_report, publication
    from official.inference import verification

    try:
        report = _convert(flags)
    except publication.MismatchError as error:
        return _not_written(str(error), flags)
    except ConfigError as error:
        if error.details and flags.report:
            outputs.write_json(flags.report, {"error": str(error), **error.details})
        elif error.is_shortened:
            raise ConfigError(f"{error} --report=FILE lists all names.") from None
        raise
    if flags.report:
        outputs.write_file(flags.report, json.dumps(report, indent=1, allow_nan=False) + "\n")
    if not report["published"]:
        return _not_written(f"{verification.describe(report['verification'])}.", flags)
    print(conversion_report.describe(report))
    print_published_line(flags.action, report)
    if flags.verify:
        print(verification.describe(report["verification"]))
    return 0


def _convert(flags: argparse.Namespace) -> dict:
    """Returns the report of the conversion."""
    from official.checkpoint import convert as convert_lib
    from official.inference import verification

    source, target = _ACTIONS[flags.action]
    options = options_of(flags)
    if flags.verify:
        verification.check(flags.path, source, options)
    verify = verification.verify if flags.verify else None
    return convert_lib.convert(
        flags.path, target, flags.output_dir, source, options, flags.overwrite, Bar(flags.action), verify
    )


def _not_written(message: str, flags: argparse.Namespace) -> int:
    report_error(command_line.program(), f"{message} Nothing was written to {flags.output_dir}.")
    return 1


class Bar:
    """A progress bar that appears with the first bytes: bad input ends before, in one line."""

    def __init__(self, title: str):
        self._title, self._bar = title, None  # type: str, Any

    def __call__(self, done: int, total: int) -> None:
        import tqdm

        self._bar = self._bar or tqdm.tqdm(
            total=total, unit="B", unit_scale=True, desc=self._title, file=sys.stderr, disable=None
        )  # not into a log
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._bar.close()


def print_published_line(action: str, report: dict) -> None:
    """Prints what the published tool prints and scripts may look for."""
    if action == "graphcore2google":
        print(f"Saved to :{report['target']['path']}")
    else:
        print(f"Number of parameters saved: {report['target']['parameters']}")
