"""Labels typed sentences, or pairs of them, with a model that was fine-tuned on a task of GLUE.

  bert classify --checkpoint=runs/sst2
  echo "A fine film." | bert classify --checkpoint=runs/sst2

A sentence a line, or two with a tab between them for the tasks with pairs; the end of input ends it. Of a
model that gives several labels at once, or several scores, all are printed.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from official.cli import command_line, typed

if TYPE_CHECKING:  # it loads TensorFlow
    from official.inference.sentences import Label


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    typed.add_flags(parser)
    command_line.add_length_flag(parser)
    return parser


def parse_flags() -> argparse.Namespace:
    return make_parser().parse()


def main() -> None:
    model = typed.load(parse_flags())
    expected = model.texts_of_a_row
    for line in typed.lines("sentence<TAB>sentence> " if expected == 2 else "sentence> "):
        texts = line.split("\t")
        allowed = (expected,) if expected else (1, 2)
        if len(texts) not in allowed:
            wanted = " or ".join(map(str, allowed))
            print(
                f"{len(texts)} text{'s' * (len(texts) > 1)} between tabs, expected {wanted}.", file=sys.stderr
            )
            continue
        print(shown(model.classify(*texts), model.kind_of_labels), flush=True)


def shown(found: "Label", kind: str) -> str:
    """Returns the line that is printed: the label and its probability, or the score; where each output says
    something of its own, all of them by name, the highest probability first."""
    if kind == "one" or len(found.scores) == 1 and kind == "number":
        return f"{found.score:.2f}" if found.label is None else f"{found.label}  {found.score:.2f}"
    named = list(found.scores.items())
    if kind == "several":
        named.sort(key=lambda item: -item[1])
    return "  ".join(f"{name} {score:.2f}" for name, score in named)
