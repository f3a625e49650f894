"""Evaluates predictions for SQuAD v2.0 with the official measures.

  bert evaluate squad-v2 dev-v2.0.json predictions.json --na-prob-file=null_odds.json

The best thresholds come with --na-prob-file, the average precisions and the pictures with --out-image-dir
besides, as published.
"""

import argparse
import json
import os
import sys

from official.cli import command_line, outputs
from official.data.squad import evaluation, squad_files
from official.io.errors import ConfigError


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add("data", metavar="DATA", help="Questions and answers: SQuAD's JSON.")
    add(
        "predictions", metavar="PREDICTIONS", help="JSON object from question ids to texts, '' for no answer."
    )
    add(
        "-n",
        "--na_prob_file",
        help="JSON object from question ids to numbers: how likely there is no answer.",
    )
    add(
        "-t",
        "--na_prob_thresh",
        type=float,
        default=1.0,
        help="A question above it is taken to have the prediction ''.",
    )
    add("-o", "--out_file", help="File for the measures, on one line. Unset: they are printed.")
    add(
        "-p",
        "--out_image_dir",
        help="Folder for the precision-recall curves and histograms; with --na_prob_file.",
    )
    add(
        "-v",
        "--verbose",
        action="store_true",
        help="Say on stderr how many questions were evaluated, and by which kind.",
    )
    return parser


def parse_flags() -> argparse.Namespace:
    return make_parser().parse()


def main() -> None:
    flags = parse_flags()
    gold = squad_files.read_gold_answers(flags.data)
    predictions = squad_files.read_by_question(flags.predictions, (str,), "texts")
    na_probs = (
        squad_files.read_by_question(flags.na_prob_file, (int, float), "numbers")
        if flags.na_prob_file
        else None
    )
    result = evaluation.evaluate_v2(gold.answers, predictions, na_probs, flags.na_prob_thresh)
    for identity in evaluation.missing_predictions(gold.answers, predictions):
        print(f"Missing prediction for {identity}", file=sys.stderr)
    if na_probs is not None and flags.out_image_dir:
        result |= _draw(gold, predictions, na_probs, flags.out_image_dir)
    if flags.verbose:
        _explain(gold, predictions)
    if flags.out_file:
        outputs.write_file(flags.out_file, json.dumps(result))
    else:
        print(json.dumps(result, indent=2))


def _draw(
    gold: squad_files.GoldAnswers, predictions: dict[str, str], na_probs: dict[str, float], folder: str
) -> dict[str, float]:
    """Writes the pictures; returns the average precisions."""
    from official.data.squad import plots  # loads matplotlib

    curves = evaluation.precision_recall(gold.answers, predictions, na_probs)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out_image_dir={folder}: {error.strerror or error}.") from None
    for name, picture in (plots.plot_curves(curves) | plots.plot_histograms(gold.answers, na_probs)).items():
        outputs.write_file(os.path.join(folder, name), picture)
    return {f"{name}_ap": curve.average for name, curve in curves.items()}


def _explain(gold: squad_files.GoldAnswers, predictions: dict[str, str]) -> None:
    scores = evaluation.score_v2(gold.answers, predictions)
    print(f"{len(gold.answers):,} questions, {len(scores.exact):,} with a prediction", file=sys.stderr)
    for kinds in (
        evaluation.by_question_word(gold.questions, scores),
        evaluation.by_answer_length(gold.answers, scores),
    ):
        for name, values in kinds.items():
            print(
                f"  {name:10} {values['count']:6,}  exact {values['exact']:6.2f}  f1 {values['f1']:6.2f}",
                file=sys.stderr,
            )
