"""`bert evaluate`: scores of SQuAD answers, and submissions for GLUE's server."""

import io
import json
import os
import sys
import zipfile

from official.cli import command_line, outputs
from official.data.glue import files
from official.data.glue.tasks import TASKS, GlueTask
from official.data.squad import evaluation, squad_files
from official.io.errors import ConfigError
from official.io.writing import check_output_file, naming_output
from official.reporting import charts, palette

_TITLES = {
    "pr_exact": "Precision and recall, exact match",
    "pr_f1": "Precision and recall, F1",
    "pr_oracle": "Precision and recall of whether there is an answer",
}

# -----------------------------------------------------------------------------------------------------------
# bert evaluate squad-v1


class SquadV1(command_line.Flags):
    """Evaluates predictions for SQuAD v1.1 with the official measures.

    bert evaluate squad-v1 dev-v1.1.json predictions.json

    Attributes:
      data: Questions and answers: SQuAD's JSON.
      predictions: JSON object from question ids to texts.
    """

    POSITIONAL = ("data", "predictions")
    data: str
    predictions: str


def run_squad_v1() -> None:
    flags = SquadV1.parse()
    gold = squad_files.read_gold_answers(flags.data)
    predictions = squad_files.read_by_question(flags.predictions, (str,), "texts")
    if gold.version != "1.1":
        print(f"Evaluation expects v-1.1, but got dataset with v-{gold.version}", file=sys.stderr)
    result = evaluation.evaluate_v1(gold.answers, predictions)
    for identity in evaluation.missing_predictions(gold.answers, predictions):
        print(f"Unanswered question {identity} will receive score 0.", file=sys.stderr)
    print(json.dumps(result))


# -----------------------------------------------------------------------------------------------------------
# bert evaluate squad-v2


class SquadV2(SquadV1):
    """Evaluates predictions for SQuAD v2.0 with the official measures.

      bert evaluate squad-v2 dev-v2.0.json predictions.json --na-prob-file=null_odds.json

    As in the published script, --na-prob-file adds the best thresholds, and --out-image-dir the average
    precisions and the charts.

    Attributes:
      data: Questions and answers: SQuAD's JSON.
      predictions: JSON object from question ids to texts, '' for no answer.
      na_prob_file: JSON object from question ids to numbers: the probability that there is no answer.
      na_prob_thresh: Questions with a higher probability count as predicted ''.
      out_file: File for the scores, on one line. Unset: they are printed.
      out_image_dir: Folder for the precision-recall curves and histograms; with --na_prob_file.
      verbose: Print on stderr how many questions of each kind were evaluated.
    """

    SHORT = dict(na_prob_file="n", na_prob_thresh="t", out_file="o", out_image_dir="p", verbose="v")
    na_prob_file: str | None = None
    na_prob_thresh: float = 1.0
    out_file: str | None = None
    out_image_dir: str | None = None
    verbose: bool = False


def run_squad_v2() -> None:
    flags = SquadV2.parse()
    gold = squad_files.read_gold_answers(flags.data)
    predictions = squad_files.read_by_question(flags.predictions, (str,), "texts")
    na_probs = None
    if flags.na_prob_file:
        na_probs = squad_files.read_by_question(flags.na_prob_file, (int, float), "numbers")
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
    found = evaluation.precision_recall(gold.answers, predictions, na_probs)
    with naming_output(folder, "out_image_dir"):
        os.makedirs(folder, exist_ok=True)
    for name, curve in found.items():
        points = [(100 * recall, value) for recall, value in zip(curve.recalls, curve.precisions)]
        _draw_line(folder, name, _TITLES[name], "precision", points, "recall, percent")
    for name, has_answer in (("hasAns", True), ("noAns", False)):
        ids = [key for key, answers in gold.answers.items() if bool(answers) == has_answer]
        values = [na_probs[key] for key in ids if key in na_probs]
        bins = [min(int(20 * value), 19) for value in values if 0 <= value <= 1]  # of 5 percent
        if values:
            points = [(5 * (each + 1), bins.count(each) / len(values)) for each in range(20)]
            title, x_name = f"No-answer probability, {name}", "probability of no answer, percent at most"
            _draw_line(folder, f"na_prob_hist_{name}", title, "share of the questions", points, x_name)
    return {f"{name}_ap": curve.average for name, curve in found.items()}


def _draw_line(folder: str, name: str, title: str, unit: str, points: list, x_name: str) -> None:
    chart = charts.Chart(title, unit, [charts.Curve("", points, palette.BLUE)], x_name=x_name, x_last=100)
    outputs.write_chart(os.path.join(folder, f"{name}.png"), chart)


def _explain(gold: squad_files.GoldAnswers, predictions: dict[str, str]) -> None:
    """Prints on stderr the number of evaluated questions, and their scores by kind of question."""
    scores = evaluation.score_v2(gold.answers, predictions)
    print(f"{len(gold.answers):,} questions, {len(scores.exact):,} with a prediction", file=sys.stderr)
    words = evaluation.by_question_word(gold.questions, scores)
    lengths = evaluation.by_answer_length(gold.answers, scores)
    for name, values in [*words.items(), *lengths.items()]:
        text = "{count:6,}  exact {exact:6.2f}  f1 {f1:6.2f}".format(**values)
        print(f"  {name:10} {text}", file=sys.stderr)


# -----------------------------------------------------------------------------------------------------------
# bert evaluate glue-submission


_FILE_TIME = (1980, 1, 1, 0, 0, 0)  # the same predictions make the same bytes


class GlueSubmission(command_line.Flags):
    """Checks the test predictions of all GLUE tasks and zips them for GLUE's server.

    bert evaluate glue-submission --predictions runs/glue_cola runs/glue_mnli ... --output=submission.zip

    Attributes:
      predictions: Folders with prediction files, as runs write them in --model_dir.
      output: Zip file to write.
      overwrite: Replace an existing --output.
    """

    predictions: list[str]
    output: str
    overwrite: bool = False


def find_predictions(task: GlueTask, folders: list[str]) -> str:
    """Returns the prediction file of a task. Raises ConfigError if no folder has it, two have it, or it is
    invalid."""
    paths = [os.path.join(folder, task.submission_file) for folder in folders]
    found = sorted({os.path.realpath(path): path for path in paths if os.path.isfile(path)}.values())
    if not found:
        raise ConfigError(f"{task.submission_file} is missing.")
    if len(found) > 1:
        raise ConfigError(
            f"--predictions: both {' and '.join(found)} exist. Give the folder of only one of them."
        )
    files.check_predictions(task, found[0], task.splits["test"].rows)
    return found[0]


def run_glue_submission() -> None:
    flags = GlueSubmission.parse()
    for folder in flags.predictions:
        if not os.path.isdir(folder):
            raise ConfigError(f"--predictions={folder} is not a folder.")
    check_output_file(flags.output, "output", flags.overwrite)
    paths, wrong = [], []
    for task in TASKS.values():
        try:
            paths.append(find_predictions(task, flags.predictions))
            text = f"{paths[-1]}, {task.splits['test'].rows:,} predictions"
        except ConfigError as error:
            text = str(error)
            wrong.append(text.rstrip("."))
        print(f"{task.submission_file:<12} {text}")
    if wrong:
        problem = f"{len(wrong)} of {len(TASKS)} files are invalid, nothing was written"
        raise ConfigError(f"{problem}: {'; '.join(wrong)}.")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in paths:
            with open(path, "rb") as file:
                entry = zipfile.ZipInfo(os.path.basename(path), _FILE_TIME)
                archive.writestr(entry, file.read(), zipfile.ZIP_DEFLATED)
    outputs.write_file(flags.output, buffer.getvalue())
    print(f"{flags.output}: {len(paths)} files.")
