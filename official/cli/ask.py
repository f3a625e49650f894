"""Answers typed questions about a text, with a model that was fine-tuned on SQuAD.

  bert ask --checkpoint=runs/squad --context=text.txt
  echo "Who was first?" | bert ask --checkpoint=runs/squad --context=text.txt --answers=3

A question a line; the end of input ends it. Each answer comes with its probability among the answers of the
n-best list. Exit code 2 where a line could not be used, which a line on stderr says; the others are answered.
"""

import argparse

from official.cli import command_line, typed
from official.io import files
from official.io.errors import ConfigError


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    typed.add_flags(parser)
    command_line.add_length_flag(parser)
    parser.add_argument("--context", required=True, help="File with the text, UTF-8.")
    parser.add_argument("--answers", type=int, default=1, help="Answers to show for each question.")
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    if flags.answers < 1:
        raise ConfigError(f"--answers={flags.answers} is out of range. Allowed: 1 or more.")
    return flags


def read_context(path: str) -> str:
    """Returns the text of a file. Raises ConfigError where there is none."""
    text = files.read_text(path, f"--context={path}")
    if not text.strip():
        raise ConfigError(f"--context={path} has no text.")
    return text


def main() -> int:
    flags = parse_flags()
    context = read_context(flags.context)
    model = typed.load(flags)
    model.prepare("answer")

    def answer(question: str) -> str:
        found = model.answers(question, context)[: flags.answers]
        return "\n".join(
            f"{' '.join(each.text.split()) or '(no answer)'}  {each.probability:.2f}" for each in found
        )

    return typed.answer_each("question> ", answer)
