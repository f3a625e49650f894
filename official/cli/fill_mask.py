"""Predicts the words that stand as [MASK] in typed text, with any checkpoint that has a masked-LM head.

  echo "the capital of france is [MASK]." | bert fill-mask --checkpoint=runs/mine
  bert fill-mask --checkpoint=bert-base-uncased --top_k=3 --json < lines.txt

A text a line; the end of input ends it. Each [MASK] gets a line of its own: the likeliest words with their
probabilities. Exit code 2 where a line could not be used, which a line on stderr says; the others are
answered.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence

from official.cli import command_line, typed
from official.io import streams
from official.io.errors import ConfigError, report_error


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    typed.add_flags(parser)
    add("--top_k", type=int, default=5, help="Words to show for each mask.")
    add(
        "--json",
        action="store_true",
        help="Print a JSON object for each text: {text, masks: [[{word, probability}]]}, or {text, error}.",
    )
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    command_line.check_counts(flags, "top_k")
    return flags


def read_lines() -> Iterator[tuple[int, bytes]]:
    """Yields number and bytes of the lines of stdin that are not blank, with a prompt where it is a
    terminal."""
    number = 0
    while sys.stdin and not streams.is_unread():
        if sys.stdin.isatty():
            print("text> ", end="", flush=True)
        line = typed.check_length(sys.stdin.buffer.readline(typed.LONGEST_LINE))
        if not line:
            return
        number += 1
        if line.strip():
            yield number, line.strip()


def decode(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text ({error.reason} at byte {error.start}).") from None


def shown(text: str, masks: Sequence[Sequence[tuple[str, float]]], as_json: bool) -> str:
    """Returns what is printed for a text: a line of words for each mask, or one JSON object."""
    if not as_json:
        return "\n".join(
            "  ".join(f"{word} {rounded(probability)}" for word, probability in words) for words in masks
        )
    named = [[{"word": word, "probability": probability} for word, probability in words] for words in masks]
    return as_json_line({"text": text, "masks": named})


def as_json_line(values: dict) -> str:
    """Returns values as JSON that stdout takes as it is: Python's escapes are none of JSON's."""
    return json.dumps(values, ensure_ascii=not streams.has_all_letters())


def rounded(probability: float) -> str:
    return f"{probability:.3f}" if probability >= 0.001 else f"{probability:.1e}"


def main() -> int:
    flags = parse_flags()
    model = typed.load(flags)
    model.prepare("fill_mask")
    number, wrong = 0, 0
    for number, line in read_lines():
        try:
            text = decode(line)
            print(shown(text, model.fill_mask(text, flags.top_k), flags.json), flush=True)
        except ConfigError as error:
            wrong += 1
            report_error(command_line.program(), f"line {number}: {error}")
            if flags.json:
                values = {"text": line.decode(errors="replace"), "error": str(error)}
                print(as_json_line(values), flush=True)
    if not number:
        raise ConfigError("no text on stdin. Give lines with [MASK] in them.")
    return 2 if wrong else 0
