#!/usr/bin/env python3
"""Converts BERT checkpoints between Google, Graphcore, PopART, Hugging Face, Model Garden and this project,
both ways.

  python checkpoints_tools/convert_ckpt.py ACTION PATH --output_dir=DIR [flags]

ACTION is SOURCE2TARGET with any two of google, graphcore, popart, native (this project; also keras), garden
(TF2 object checkpoints of the MLPerf submission), huggingface (or hf); or research2apps, apps2research
(GroupBERT). PATH is a prefix, a file, or a folder, of which the newest checkpoint is taken. The result is
DIR/<basename of PATH>, or DIR itself for huggingface.

Exit codes: 0 converted, 1 the result read back or (--verify) its outputs differ, 2 bad input.
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scripts"))

import command_line

from official.checkpoint import registry
from official.config import ConfigError
from official.config.model import LARGEST
from official.io.errors import report_error


def parse_flags():
    parser = _Parser(__doc__.splitlines()[0])
    parser.add_argument("action", metavar="ACTION", help=f"{registry.describe_actions()}.")
    parser.add_argument("path", metavar="PATH", help="Checkpoint: prefix, file or folder.")
    parser.add_argument("--output_dir", default="converted_ckpt", help="Folder of the result.")
    parser.add_argument(
        "--vocab_size",
        type=int,
        help=(
            "Words of the result: cut off or filled up with zeros. Unset: as the source has, and what an "
            "earlier conversion cut off comes back; 30400 for graphcore."
        ),
    )
    parser.add_argument(
        "--precision",
        type=int,
        choices=(16, 32),
        help=(
            "Float type of the result. Unset: as the source has; 16 for graphcore and research, 32 from"
            " graphcore."
        ),
    )
    parser.add_argument(
        "--num_attention_heads",
        type=int,
        help="Unset: as a config file beside the checkpoint or its shapes say, else hidden size / 64.",
    )
    parser.add_argument(
        "--vocab_file", help="Vocabulary to put with the result. Unset: vocab.txt beside the checkpoint."
    )
    add_bool(parser, "with_optimizer", False, "Carry optimizer slots where both formats have them.")
    parser.add_argument("--report", help="Write the report of the conversion to this JSON file.")
    add_bool(
        parser,
        "verify",
        False,
        "Build the model from both checkpoints and compare its outputs on a random batch.",
    )
    add_bool(parser, "overwrite", False, "Replace an older result.")
    add_options_of_formats(parser)
    return check(parser.parse())


def add_options_of_formats(parser) -> None:
    """Adds the flags that formats bring with them."""
    for option, having in registry.options_of_formats().items():
        text = f"{', '.join(one.name for one in having)}: {option.help}"
        if option.most is None:
            add_bool(parser, option.name, None, text)
        else:
            parser.add_argument(f"--{option.name}", type=int, help=text)


class _Parser(command_line.Parser):
    """Takes --name=true and --name=false for --name and --no-name: a flag that may have a value would swallow
    ACTION or PATH."""

    def parse_known_args(self, args=None, namespace=None):
        return super().parse_known_args(
            [self._plain(text) for text in (sys.argv[1:] if args is None else args)], namespace
        )

    def _plain(self, text: str) -> str:
        name, equals, value = text.partition("=")
        if not equals or not isinstance(
            self._option_string_actions.get(name), argparse.BooleanOptionalAction
        ):
            return text
        if value.lower() not in ("true", "1", "yes", "false", "0", "no"):
            raise ConfigError(f"{text}, expected {name}=true or {name}=false.")
        return name if value.lower() in ("true", "1", "yes") else f"--no-{name.removeprefix('--')}"


def add_bool(parser, name: str, default, text: str) -> None:
    """Adds a flag that is given as --name, --no-name or --name=true|false."""
    parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=default, help=text)


def check(flags):
    flags.action, _, _ = registry.get_action(flags.action)
    limits = {"vocab_size": LARGEST["vocab_size"], "num_attention_heads": LARGEST["num_attention_heads"]}
    limits |= {option.name: option.most for option in registry.options_of_formats() if option.most}
    for name, most in limits.items():
        if getattr(flags, name) is not None and not 1 <= getattr(flags, name) <= most:
            raise ConfigError(f"--{name}={getattr(flags, name)}, expected a number from 1 to {most:,}.")
    registry.check_concerned(flags.action, vars(flags))
    return flags


_EVERYWHERE = ("vocab_size", "with_optimizer", "precision", "num_attention_heads", "vocab_file")


def options_of(flags):
    """Returns the options of the conversion: what was given, over the defaults of the action."""
    _, source, target = registry.get_action(flags.action)
    names = (*_EVERYWHERE, *(option.name for option in registry.options_of_formats()))
    return registry.make_options(source, target, {name: getattr(flags, name) for name in names})


def main() -> int:
    flags = parse_flags()
    if flags.report:
        command_line.check_output_file(flags.report, "report", flags.overwrite)
    from checkpoints_tools import verification
    from official.checkpoint import conversion_report, publication
    from official.checkpoint import convert as convert_lib

    _, source, target = registry.get_action(flags.action)
    options = options_of(flags)
    verify = verification.verify if flags.verify else None
    try:
        checkpoint = registry.open_checkpoint(flags.path, "PATH", source.name)
        if flags.verify:
            verification.check(checkpoint, options)
        report = convert_lib.convert(
            checkpoint, target.name, flags.output_dir, options, flags.overwrite, Bar(flags.action), verify
        )
    except publication.MismatchError as error:
        report_error("convert_ckpt.py", f"{error} Nothing was written to {flags.output_dir}.")
        return 1
    except ConfigError as error:
        if error.details and flags.report:
            command_line.write_file(
                flags.report, json.dumps({"error": str(error), **error.details}, indent=1) + "\n"
            )
        elif error.is_shortened:
            raise ConfigError(f"{error} --report=FILE lists all names.") from None
        raise
    if flags.report:
        command_line.write_file(flags.report, json.dumps(report, indent=1, allow_nan=False) + "\n")
    if not report["published"]:
        report_error(
            "convert_ckpt.py",
            f"{verification.describe(report['verification'])}. Nothing was written to {flags.output_dir}.",
        )
        return 1
    print(conversion_report.describe(report))
    print_published_line(flags.action, report)
    if flags.verify:
        print(verification.describe(report["verification"]))
    return 0


class Bar:
    """A progress bar that appears with the first bytes: bad input ends before, in one line."""

    def __init__(self, title: str):
        self._title, self._bar = title, None

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


if __name__ == "__main__":
    command_line.run(main)
