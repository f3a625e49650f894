"""Labels typed sentences, or pairs of them, with a model that was fine-tuned on a task of GLUE.

  bert classify --checkpoint=runs/sst2
  echo "A fine film." | bert classify --checkpoint=runs/sst2

A sentence a line, or two with a tab between them for the tasks with pairs; the end of input ends it.
"""

import argparse
import sys

from official.cli import command_line, typed


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    typed.add_flags(parser)
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
        label, score = model.classify(*texts)
        print(f"{score:.2f}" if label is None else f"{label}  {score:.2f}", flush=True)
