"""Predicts the words that stand as [MASK] in typed text, with any checkpoint that has a masked-LM head.

  echo "the capital of france is [MASK]." | bert fill-mask --checkpoint=runs/mine
  bert fill-mask --checkpoint=bert-base-uncased --top_k=3 --json < lines.txt

A text a line; the end of input ends it. Each [MASK] gets a line of its own: the likeliest words with their
probabilities. Exit code 2 where a line could not be used, which a line on stderr says; the others are
answered.
"""

import argparse
import json
from collections.abc import Sequence

from official.cli import command_line, typed
from official.io import streams
from official.io.errors import ConfigError


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


def shown(text: str, masks: Sequence[Sequence[tuple[str, float]]], as_json: bool) -> str:
    """Returns the output for a text: a line of words for each mask, or one JSON object."""
    if not as_json:
        return "\n".join(
            "  ".join(f"{word} {rounded(probability)}" for word, probability in words) for words in masks
        )
    named = [[{"word": word, "probability": probability} for word, probability in words] for words in masks]
    return as_json_line({"text": text, "masks": named})


def as_json_line(values: dict) -> str:
    """Returns values as one line of JSON, escaped to ASCII where stdout cannot encode all letters."""
    return json.dumps(values, ensure_ascii=not streams.has_all_letters())


def rounded(probability: float) -> str:
    return f"{probability:.3f}" if probability >= 0.001 else f"{probability:.1e}"


def main() -> int:
    flags = parse_flags()
    model = typed.load(flags)
    model.prepare("fill_mask")
    asked = 0

    def answer(text: str) -> str:
        nonlocal asked
        asked += 1
        return shown(text, model.fill_mask(text, flags.top_k), flags.json)

    def unusable(line: bytes, error: ConfigError | None) -> str | None:
        nonlocal asked
        asked += error is not None
        values = {"text": line.decode(errors="replace"), "error": str(error)}
        return as_json_line(values) if flags.json and error else None

    code = typed.answer_each("text> ", answer, unusable)
    if not asked:
        raise ConfigError("no text on stdin. Give lines with [MASK] in them.")
    return code
