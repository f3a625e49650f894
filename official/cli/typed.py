"""What the commands share that ask a model about what is typed."""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, AnyStr

from official.cli import command_line
from official.io import streams
from official.io.errors import ConfigError

if TYPE_CHECKING:  # it loads TensorFlow
    from official.inference import Model, backends


LONGEST_LINE = 2**24


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags by which all such commands are told what to load."""
    parser.add_argument(
        "--checkpoint",
        required=True,
        help="A run's folder (--model_dir), or a checkpoint of any known format: file, prefix or folder.",
    )
    parser.add_argument(
        "--vocab_file", help="Vocabulary. Unset: the one beside the checkpoint, or that of the run."
    )
    command_line.add_lower_case_flag(parser)
    add_inference_flags(parser)


def add_inference_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say what computes a model, and in which type."""
    parser.add_argument(
        "--backend", default="tensorflow", help="What computes: tensorflow, onnxruntime or openvino."
    )
    parser.add_argument("--dtype", default="fp32", help="Type of matrix products: fp32, bf16 or int8.")
    parser.add_argument("--threads", type=int, help="Threads of products. Unset: one a core.")
    parser.add_argument(
        "--calibration_file",
        help="What the ranges of int8's activations are taken from: SQuAD's JSON for questions, else a text a"
        " line, pairs with a tab between them. Unset: the training data of the run, if they are still there.",
    )


def begin(flags: argparse.Namespace) -> "backends.Settings":
    """Checks what the flags say of computing, and takes the threads. Raises ConfigError."""
    from official.inference import backends

    if flags.calibration_file and flags.dtype != "int8":
        raise ConfigError(f"--calibration_file is for --dtype=int8, not for --dtype={flags.dtype}.")
    settings = backends.Settings(flags.backend, flags.dtype, flags.threads)
    backends.begin(settings)
    return settings


def load(flags: argparse.Namespace) -> "Model":
    """Loads the model that the flags name. Raises ConfigError."""
    from official.inference import Model, source

    settings = begin(flags)
    length = getattr(flags, "max_seq_length", None)
    found = source.find(flags.checkpoint, flags.vocab_file, flags.do_lower_case, "checkpoint", length)
    return Model(found, settings, flags.calibration_file)


def check_length(line: AnyStr) -> AnyStr:
    """Returns a line that was read up to `LONGEST_LINE`. Raises ConfigError where it is longer: those of a
    device never end."""
    if len(line) == LONGEST_LINE:
        raise ConfigError(f"a line of the input has {LONGEST_LINE:,} characters or more. Give a text a line.")
    return line


def lines(prompt: str) -> Iterator[str]:
    """Yields the lines of stdin that are not empty, with a prompt where it is a terminal, as long as somebody
    reads the answers. Raises ConfigError for what is no text."""
    while not streams.is_unread():
        if sys.stdin.isatty():
            print(prompt, end="", flush=True)
        try:
            line = check_length(sys.stdin.readline(LONGEST_LINE))
            line.encode()  # in some locales Python lets through what is no UTF-8
        except UnicodeError as error:
            reason = getattr(error, "reason", error)
            raise ConfigError(
                f"the input is not UTF-8 text ({reason}). Type it on a terminal of UTF-8, or convert the"
                " file."
            ) from None
        if not line:
            return
        if line.strip():
            yield line.strip()
