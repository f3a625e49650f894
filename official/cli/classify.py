"""Labels typed sentences, or pairs of them, with a model that was fine-tuned on a task of GLUE.

  bert classify --checkpoint=runs/sst2
  echo "A fine film." | bert classify --checkpoint=runs/sst2
  bert classify --checkpoint=runs/sst2 --all_probabilities < sentences.txt > labels.txt

A sentence a line, or two with a tab between them for the tasks with pairs; the end of input ends it. Each
line of a file has a line of the output: a blank one for a line that is blank, or that could not be used,
which a line on stderr says with its number; the exit code is 2 then. Of a model that gives several labels at
once, or several scores, all are printed.
"""

import argparse
from typing import TYPE_CHECKING

from official.cli import command_line, typed
from official.io.errors import ConfigError

if TYPE_CHECKING:  # it loads TensorFlow
    from official.inference.methods import Label


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    typed.add_flags(parser)
    command_line.add_length_flag(parser)
    parser.add_argument(
        "--all_probabilities",
        action="store_true",
        help="Print every label with its probability, the highest first, not the most probable one alone.",
    )
    return parser


def parse_flags() -> argparse.Namespace:
    return make_parser().parse()


def main() -> int:
    flags = parse_flags()
    model = typed.load(flags)
    expected = model.texts_of_a_row

    def answer(line: str) -> str:
        texts = line.split("\t")
        if len(texts) not in ((expected,) if expected else (1, 2)):
            received = f"{len(texts)} text{'s' * (len(texts) > 1)} between tabs"
            raise ConfigError(f"{received}, expected {expected or '1 or 2'}.")
        return shown(model.classify(*texts), model.kind_of_labels, flags.all_probabilities)

    prompt = "sentence<TAB>sentence> " if expected == 2 else "sentence> "
    return typed.answer_each(prompt, answer, lambda line, error: "")


def shown(found: "Label", kind: str, shows_all: bool = False) -> str:
    """Returns the line that is printed: the label and its probability, or the score; all of them by name, the
    highest probability first, where each output says something of its own or all are asked for."""
    is_one = kind == "one" or len(found.scores) == 1 and kind == "number"
    if is_one and not (shows_all and len(found.scores) > 1):
        return f"{found.score:.2f}" if found.label is None else f"{found.label}  {found.score:.2f}"
    named = list(found.scores.items())
    if kind != "number":
        named.sort(key=lambda item: -item[1])
    digits = 4 if shows_all else 2
    return "  ".join(f"{name} {score:.{digits}f}" for name, score in named)
