"""Prompt and answers of the commands that ask a model about typed text."""

import argparse
import io
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from official.cli import command_line
from official.io import streams
from official.io.errors import ConfigError, report_error

if TYPE_CHECKING:  # it loads TensorFlow
    from official.inference import Model, backends


LONGEST_LINE = 2**24


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags, shared by all such commands, that name the model to load."""
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
    """Adds the flags for back end, type, threads and calibration."""
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
    """Checks the flags for back end and type, and sets the threads. Raises ConfigError."""
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


def lines(prompt: str) -> Iterator[tuple[int, bytes]]:
    """Yields number and bytes of each line of stdin, without the spaces around it, as long as somebody reads
    the answers; of a terminal, which shows a prompt, those that are not blank. Raises ConfigError for a line
    that does not end: those of a device never do."""
    if sys.stdin is None:  # closed
        return
    is_terminal = sys.stdin.isatty()
    stream = getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())
    for number in itertools.count(1):
        if streams.is_unread():
            return
        if is_terminal:
            print(prompt, end="", flush=True)
        line = stream.readline(LONGEST_LINE)
        if len(line) == LONGEST_LINE:
            raise ConfigError(
                f"a line of the input has {LONGEST_LINE:,} characters or more. Give a text a line."
            )
        if not line:
            return
        if line.strip() or not is_terminal:
            yield number, line.strip()


def answer_each(
    prompt: str,
    answer: Callable[[str], str],
    unusable: Callable[[bytes, ConfigError | None], str | None] = lambda line, error: None,
) -> int:
    """Prints what is answered to each line of stdin. A line that cannot be used is named on stderr, and the
    others are answered.

    Args:
      prompt: of a terminal.
      answer: text -> what is printed.
      unusable: (line, error; None for a blank line) -> what is printed in place of an answer; None: nothing.

    Returns:
      The exit code: 2 where a line could not be used.
    """
    code = 0
    for number, line in lines(prompt):
        error = None
        try:
            printed = answer(_decoded(line)) if line else unusable(line, None)
        except ConfigError as found:
            error, code = found, 2
            printed = unusable(line, error)
        if error:
            report_error(command_line.program(), f"line {number}: {error}")
        if printed is not None:
            print(printed, flush=True)
    return code


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text ({error.reason} at byte {error.start}).") from None
