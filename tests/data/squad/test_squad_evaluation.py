"""SQuAD: the official measures on cases computed by hand, their command lines, and the download script."""

import json
import os
import pathlib

import pytest
import yaml

from official.cli import scores as scores_lib
from official.data.squad import evaluation, squad_files
from tests import programs
from tests.fixtures import ROOT, TEST_DATA
from tests.refusals import assert_refused

CASES = yaml.safe_load(pathlib.Path(__file__).with_name("cases.yml").read_text(encoding="utf-8"))


def document(questions, version):
    """Returns SQuAD's JSON value with no more than the measures need: questions are {id: answers}."""
    asked = [
        {"id": identity, "answers": [{"text": text} for text in answers]}
        for identity, answers in questions.items()
    ]
    return {"version": version, "data": [{"paragraphs": [{"qas": asked}]}]}


# ------------------------------------------------------------------------------------------------------------
# Two texts


def test_texts_are_normalized_and_their_words_counted_as_published():
    for text, normalized in CASES["normalized"].items():
        assert evaluation.normalize(text) == normalized, text
    for gold, predicted, (numerator, denominator) in CASES["f1"]:
        assert evaluation.word_f1(gold, predicted) == pytest.approx(numerator / denominator)


# ------------------------------------------------------------------------------------------------------------
# Version 1


def test_version_1_takes_the_best_answer_and_counts_what_is_missing_as_0():
    gold = {"one": ["The cat", "the cat sat"], "two": ["Tom"], "three": ["dog", "big dog"], "four": ["x"]}
    predictions = {"one": "Cat sat", "two": "tom!", "three": "a big brown dog", "other": "y"}
    scores = evaluation.score_v1(gold, predictions)
    assert scores.exact == {"one": 1, "two": 1, "three": 0}
    assert scores.f1 == pytest.approx({"one": 1, "two": 1, "three": 4 / 5})
    assert evaluation.evaluate_v1(gold, predictions) == {"exact_match": 50.0, "f1": pytest.approx(70.0)}
    assert evaluation.missing_predictions(gold, predictions) == ["four"]
    assert evaluation.evaluate_v1({"one": ["the"]}, {"one": ""}) == {"exact_match": 100.0, "f1": 0.0}


# ------------------------------------------------------------------------------------------------------------
# Version 2

GOLD = {"a": ["cat", "the big cat"], "b": ["dog", "..."], "c": [], "d": []}
PREDICTIONS = {"a": "big cat", "b": "brown dog", "c": "", "d": "fish"}


def test_version_2_counts_no_answer_as_an_answer():
    expected = dict(exact=50.0, f1=100 * (1 + 2 / 3 + 1 + 0) / 4, total=4)
    expected |= dict(HasAns_exact=50.0, HasAns_f1=100 * (1 + 2 / 3) / 2, HasAns_total=2)
    expected |= dict(NoAns_exact=50.0, NoAns_f1=50.0, NoAns_total=2)
    assert evaluation.evaluate_v2(GOLD, PREDICTIONS) == pytest.approx(expected)


def test_version_2_leaves_out_empty_answers_and_questions_without_a_prediction():
    scores = evaluation.score_v2({"a": ["...", "cat"], "b": ["The"]}, {"a": "!", "b": "an"})
    assert scores == ({"a": 0, "b": 1}, {"a": 0, "b": 1})
    result = evaluation.evaluate_v2(GOLD, {"a": "big cat", "c": "", "x": "y"})
    totals = {"exact": 100.0, "total": 2, "HasAns_total": 1, "NoAns_total": 1}
    assert {name: result[name] for name in totals} == totals
    keys = "exact f1 total HasAns_exact HasAns_f1 HasAns_total"
    assert list(evaluation.evaluate_v2(GOLD, {"a": "cat"})) == keys.split()
    # Below 0.8 the wrong answer of d goes, below 0.4 the right one of a.
    odds = {"a": 0.4, "b": 0.4, "c": 0.9, "d": 0.8}
    for threshold, exact in ((0.8, 50.0), (0.79, 75.0), (0.4, 75.0), (0.39, 50.0), (-1.0, 50.0)):
        assert evaluation.evaluate_v2(GOLD, PREDICTIONS, odds, threshold)["exact"] == exact
    assert evaluation.evaluate_v2(GOLD, PREDICTIONS, None, -0.5)["HasAns_exact"] == 0.0


def test_what_cannot_be_evaluated_is_refused():
    cases = (
        (evaluation.evaluate_v1, GOLD, {}, "question c has no answer, as in SQuAD v2.0"),
        (evaluation.evaluate_v1, {}, {}, "no question"),
        (evaluation.evaluate_v2, GOLD, {"x": "y"}, "no question of the data has a prediction"),
        (evaluation.evaluate_v2, GOLD, PREDICTIONS, {"a": 0.1, "b": 0.3, "c": 0.2}, r"1 of 4 .* \(d, \.\.\)"),
    )
    assert_refused(lambda evaluate, *given: evaluate(*given), cases)


def test_the_best_thresholds_are_found_on_the_way_from_sure_to_unsure():
    result = evaluation.evaluate_v2(GOLD, PREDICTIONS, {"a": 0.1, "b": 0.3, "c": 0.2, "d": 0.9})
    # Nothing answered: 2 right. a: 3. c, whose prediction is '': 3. b: exact 3, F1 3 2/3. d: one less.
    assert (result["best_exact"], result["best_exact_thresh"]) == (75.0, 0.1)
    assert (result["best_f1"], result["best_f1_thresh"]) == (pytest.approx(100 * (3 + 2 / 3) / 4), 0.3)
    # Where nothing should be answered it is the lowest, which is 0 as published.
    wrong, odds = dict.fromkeys("abcd", "x"), {"a": -3.0, "b": -1.0, "c": 2.0, "d": 4.0}
    assert evaluation.evaluate_v2(GOLD, wrong, odds)["best_f1_thresh"] == 0.0
    lowest = evaluation.best_thresholds(GOLD, wrong, odds, lowest=-4.0)
    assert list(lowest.values()) == [50.0, -4.0, 50.0, -4.0]


def test_precision_and_recall_have_a_point_for_each_threshold():
    odds = {"a": 0.1, "c": 0.2, "b": 0.2, "d": 0.9, "unknown": 0.0}
    curves = evaluation.precision_recall(GOLD, PREDICTIONS, odds)
    exact, oracle = curves["pr_exact"], curves["pr_oracle"]
    # a alone: precision 1, recall 1/2. With b and c, which only go together: 1/3, 1/2. With d: 1/4, 1/2.
    assert exact.precisions == pytest.approx([1, 1, 1 / 3, 1 / 4])
    assert exact.recalls == pytest.approx([0, 1 / 2, 1 / 2, 1 / 2])
    assert exact.average == pytest.approx(50.0)
    assert oracle.precisions == pytest.approx([1, 1, 2 / 3, 1 / 2])
    assert oracle.recalls == pytest.approx([0, 1 / 2, 1, 1])
    assert oracle.average == pytest.approx(100 * (1 / 2 + 2 / 3 * 1 / 2))
    assert curves["pr_f1"].average == pytest.approx(100 * (1 / 2 + (5 / 3) / 3 * (5 / 6 - 1 / 2)))
    assert evaluation.precision_recall({"c": []}, {"c": ""}, {"c": 1.0}) == {}


# ------------------------------------------------------------------------------------------------------------
# By kind


def test_scores_by_kind():
    texts = ("In what year?", "Whose is which?", "WHAT'S that", "Name it.", "To whom?", "How many?")
    questions = dict(zip("abcdef", texts))
    gold = {identity: ["cat"] for identity in questions}
    scores = evaluation.score_v1(gold, {"a": "cat", "b": "big cat", "c": "dog", "d": "cat", "f": "cat"})
    assert evaluation.by_question_word(questions, scores) == {
        "what": {"count": 2, "exact": 50.0, "f1": 50.0},
        "who": {"count": 1, "exact": 0.0, "f1": pytest.approx(200 / 3)},
        "how": {"count": 1, "exact": 100.0, "f1": 100.0},
        "other": {"count": 1, "exact": 100.0, "f1": 100.0},
    }
    gold = {str(length): ["x " * length, "y"] for length in (1, 2, 3, 4, 5, 8, 9, 16, 17, 40)} | {"none": []}
    right = {identity: "y" if identity in ("1", "3", "40") else "" for identity in gold}
    found = evaluation.by_answer_length(gold, evaluation.score_v2(gold, right))
    counts = [(name, values["count"], values["exact"]) for name, values in found.items()]
    short = [("1", 1, 100.0), ("2", 1, 0.0), ("3-4", 2, 50.0), ("5-8", 2, 0.0), ("9-16", 2, 0.0)]
    assert counts == [*short, ("17+", 2, 50.0), ("no answer", 1, 100.0)]


def test_scores_by_characters_follow_cmrc():
    gold = {"a": ["\u5149\u8363\u548c\u03c9-force"], "b": ["\u5317\u4eac\u3002"]}  # a: 3 and a word
    gold |= {"c": ["2,900 \u4eba", "\u4eba"], "d": [], "e": ["\u4e2d\u56fd"]}
    predictions = {"a": "\u5149\u8363", "b": "\u5317\u4eac", "c": "\u4eba", "d": "", "e": "\u65e5\u672c"}
    scores = evaluation.score_characters(gold, predictions)
    assert scores.exact == {"a": 0, "b": 1, "c": 1, "d": 1, "e": 0}
    assert scores.f1 == pytest.approx({"a": 2 / 3, "b": 1, "c": 1, "d": 1, "e": 0})
    # The unit follows from the answers.
    assert evaluation.unit_of({"a": ["\u5317\u4eac"]}) == "characters"
    assert evaluation.unit_of({"a": ["Paris"], "b": ["\u4eac"]}) == "words"


# ------------------------------------------------------------------------------------------------------------
# Command lines


@pytest.fixture
def write(tmp_path):
    def write_json(name, value):
        (tmp_path / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return str(tmp_path / name)

    return write_json


def test_the_scripts_print_scores_and_name_what_is_missing(write, run_program):
    data = write("data.json", document({"one": ["cat"], "two": ["dog"], "three": ["fish"]}, "7"))
    predictions = write("predictions.json", {"one": "The cat", "three": "big fish"})
    found = run_program(scores_lib.run_squad_v1, data, predictions)
    scores = {"exact_match": 100.0 / 3, "f1": 100.0 * (1 + 2 * 0.5 * 1.0 / 1.5) / 3}
    assert found.out == json.dumps(scores) + "\n"
    assert "Evaluation expects v-1.1, but got dataset with v-7\n" in found.err
    assert "Unanswered question two will receive score 0.\n" in found.err
    data = write("data.json", document(GOLD, "v2.0"))
    predictions = write("p.json", {"a": "big cat", "d": ""})
    found = run_program(scores_lib.run_squad_v2, data, predictions, "--verbose")
    missing = "Missing prediction for b\nMissing prediction for c\n4 questions, 2 with a prediction\n"
    assert found.err.startswith(missing) and json.loads(found.out)["total"] == 2


def test_the_version_2_script_prints_the_keys_in_their_order(write, tmp_path, run_program):
    def run(*flags):
        return run_program(scores_lib.run_squad_v2, *files, *flags).out

    files = [write("data.json", document(GOLD, "v2.0")), write("predictions.json", PREDICTIONS)]
    probabilities = {"a": 0.1, "b": 0.3, "c": 0.2, "d": 1}
    na_file = write("na.json", probabilities)
    keys = [f"{prefix}{name}" for prefix in ("", "HasAns_", "NoAns_") for name in ("exact", "f1", "total")]
    assert list(json.loads(run())) == keys and run() == json.dumps(json.loads(run()), indent=2) + "\n"
    keys += ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]
    with_best = json.loads(run("--na-prob-file", na_file, "--na-prob-thresh=0.25"))
    exact = evaluation.evaluate_v2(GOLD, PREDICTIONS, probabilities, 0.25)["exact"]
    assert list(with_best) == keys and with_best["exact"] == exact == 75.0
    images, out_file = tmp_path / "new" / "images", tmp_path / "out.json"
    assert run("-n", na_file, "-p", images, "-o", out_file) == ""
    assert list(json.loads(out_file.read_text())) == [*keys, "pr_exact_ap", "pr_f1_ap", "pr_oracle_ap"]
    names = ["na_prob_hist_hasAns", "na_prob_hist_noAns", "pr_exact", "pr_f1", "pr_oracle"]
    assert sorted(path.name for path in images.iterdir()) == [f"{name}.png" for name in names]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in images.iterdir())


def test_bad_files_are_an_error(write, run_program):
    def run(predictions, na_probs=0.5):
        files = write("data.json", document(GOLD, "v2.0")), write("p.json", predictions)
        run_program(scores_lib.run_squad_v2, *files, "--na_prob_file", write("na.json", {"a": na_probs}))

    cases = (
        ([], "p.json: expected an object from question ids to texts, got a list"),
        ({"a": None}, "p.json: question a has null"),
        ('{"a": "x", "a": "y"}', "p.json: not a JSON file .the key 'a' occurs twice"),
        ({"a": "x"}, True, "na.json: question a has true or false. Expected an object"),
    )
    assert_refused(run, cases)


def test_the_script_loads_no_tensorflow_and_ends_with_2_on_bad_input(write):
    script = ROOT / "scripts" / "evaluate_squad_v1.py"
    code = "import runpy, sys; sys.modules['tensorflow'] = sys.modules['matplotlib'] = None; "
    code += f"sys.path.insert(0, '{script.parent}'); runpy.run_path('{script}', {{}}, '__main__')"
    done = programs.run("-c", code, write("a.json", "{"), "none.json")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "not a JSON file" in done.stderr


def test_real_answers_are_right():
    path = TEST_DATA / "squad" / "dev-v1.1.json"
    if not path.exists():
        pytest.skip(f"{path} is not there; BERT_TEST_DATA names the folder of real data")
    gold = squad_files.read_gold_answers(str(path))
    assert len(gold.answers) == 10_570
    result = evaluation.evaluate_v1(gold.answers, {name: texts[-1] for name, texts in gold.answers.items()})
    assert result["exact_match"] == 100.0 and 99.9 < result["f1"] < 100.0  # "A" has no word, so no F1


# ------------------------------------------------------------------------------------------------------------
# The download

NAMES = ("train-v1.1.json", "dev-v1.1.json", "train-v2.0.json", "dev-v2.0.json")
OUTPUT = 'while [[ $# -gt 1 ]]; do [[ "$1" == --output ]] && output="$2"; shift; done; '
FETCH = OUTPUT + 'echo "$1" >>"$output.urls"; echo whole >>"$output"'
BREAK_OFF = OUTPUT + 'echo -n who >"$output"; echo "curl: (6) no network" >&2; exit 6'
GO_ON = '[[ " $* " == *" --continue-at - "* ]] || exit 1; ' + OUTPUT
GO_ON += '[[ -e "$output" ]] && echo -n le >>"$output" || echo -n whole >"$output"'


@pytest.fixture
def download(tmp_path):
    """Returns a function that runs the script with a curl of our own, given as shell commands; a file is the
    published one where "whole" is in it."""
    tools, script = tmp_path / "tools", ROOT / "scripts" / "download_squad.sh"
    tools.mkdir()
    check = f'grep -q whole "$1" && grep " $(basename "$1" .part)$" {script} || echo 0'

    def run_with(curl, *arguments):
        for name, body in (("curl", curl), ("sha256sum", check)):
            (tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
            (tools / name).chmod(0o755)
        folders = arguments or [tmp_path / "squad"]
        return programs.call(script, *folders, PATH=f"{tools}:{os.environ['PATH']}")

    return run_with


def test_files_are_downloaded_once_and_go_on_where_they_broke_off(download, tmp_path):
    folder = tmp_path / "squad"
    broken = download(BREAK_OFF)
    assert broken.returncode == 2 and broken.stdout == "" and broken.stderr.count("\n") == 1
    assert "train-v1.1.json cannot be downloaded: curl: (6) no network" in broken.stderr
    assert [path.name for path in folder.iterdir()] == ["train-v1.1.json.part"]
    assert download(GO_ON).returncode == 0 and (folder / "train-v1.1.json").read_text() == "whole"
    again = download("exit 1")
    assert again.returncode == 0 and again.stdout.splitlines() == [f"{name}: there already" for name in NAMES]
    done = download(FETCH, tmp_path / "new")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{name}: downloaded" for name in NAMES]
    urls = [(tmp_path / "new" / f"{name}.part.urls").read_text().strip() for name in NAMES]
    assert urls == [f"https://rajpurkar.github.io/SQuAD-explorer/dataset/{name}" for name in NAMES]


def test_what_cannot_be_downloaded_is_an_error_and_a_file_that_is_there_stays(download, tmp_path):
    folder = tmp_path / "squad"
    done = download(OUTPUT + 'echo "<html>" >"$output"')
    assert done.returncode == 2 and "train-v1.1.json is not the published file" in done.stderr
    assert list(folder.iterdir()) == []
    (folder / "train-v1.1.json").write_text("mine")
    done = download(FETCH)
    assert done.returncode == 2 and "(its sha256 is another). Move it away" in done.stderr
    assert (folder / "train-v1.1.json").read_text() == "mine"
