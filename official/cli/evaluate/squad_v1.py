"""Evaluates predictions for SQuAD v1.1 with the official measures.

bert evaluate squad-v1 dev-v1.1.json predictions.json
"""

import argparse
import json
import sys

from official.cli import command_line
from official.data.squad import evaluation, squad_files

_VERSION = "1.1"


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    parser.add_argument("data", metavar="DATA", help="Questions and answers: SQuAD's JSON.")
    parser.add_argument("predictions", metavar="PREDICTIONS", help="JSON object from question ids to texts.")
    return parser


def parse_flags() -> argparse.Namespace:
    return make_parser().parse()


def main() -> None:
    flags = parse_flags()
    gold = squad_files.read_gold_answers(flags.data)
    predictions = squad_files.read_by_question(flags.predictions, (str,), "texts")
    if gold.version != _VERSION:
        print(f"Evaluation expects v-{_VERSION}, but got dataset with v-{gold.version}", file=sys.stderr)
    result = evaluation.evaluate_v1(gold.answers, predictions)
    for identity in evaluation.missing_predictions(gold.answers, predictions):
        print(f"Unanswered question {identity} will receive score 0.", file=sys.stderr)
    print(json.dumps(result))
