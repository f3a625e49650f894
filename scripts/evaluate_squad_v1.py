#!/usr/bin/env python3
"""Evaluates predictions for SQuAD v1.1 with the official measures.

python scripts/evaluate_squad_v1.py dev-v1.1.json predictions.json
"""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import command_line

from official.data.squad import evaluation, squad_files

_VERSION = "1.1"


def parse_flags():
    parser = command_line.Parser(__doc__.splitlines()[0])
    parser.add_argument("data", metavar="DATA", help="Questions and answers: SQuAD's JSON.")
    parser.add_argument("predictions", metavar="PREDICTIONS", help="JSON object from question ids to texts.")
    return parser.parse()


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


if __name__ == "__main__":
    command_line.run(main)
