"""SQuAD: the official measures on cases computed by hand, their command lines, and the download script."""

import json
import os
import subprocess
import sys

import pytest

from official.cli import scores as scores_lib
from official.data.squad import evaluation, squad_files
from official.io.errors import ConfigError
from tests.conftest import ROOT, TEST_DATA

THIRD = 100 / 3


def document(questions, version):
    """Returns SQuAD's JSON value with no more than the measures need: questions are {id: answers}."""
    asked = [
        {"id": identity, "answers": [{"text": text} for text in answers]}
        for identity, answers in questions.items()
    ]
    return {"version": version, "data": [{"paragraphs": [{"qas": asked}]}]}


# ------------------------------------------------------------------------------------------------------------
# Two texts


@pytest.mark.parametrize(
    "text, normalized",
    [
        ("The  Cat,\n sat.", "cat sat"),
        ("a an the A.N.", ""),
        ("theory of an ant", "theory of ant"),
        ("it's", "its"),
        ("the-cat", "thecat"),
        ("\u201cthe cat\u201d", "\u201c cat\u201d"),  # only ASCII punctuation is stripped
        ("\u00c9t\u00c9\u00a0x", "\u00e9t\u00e9 x"),
        ("a\u0301", "\u0301"),
        ("$1,000.50", "100050"),
        ("", ""),
        ("a_b", "ab"),
    ],
)
def test_texts_are_normalized_as_published(text, normalized):
    assert evaluation.normalize(text) == normalized


@pytest.mark.parametrize(
    "gold, predicted, f1",
    [
        ("cat sat", "cat sat", 1),
        ("cat sat", "cat", 2 / 3),
        ("cat cat dog", "cat cat cat dog", 6 / 7),
        ("a b", "c", 0),
        ("", "", 0),
        ("a", "", 0),
    ],
)
def test_f1_counts_words_as_often_as_they_stand(gold, predicted, f1):
    assert evaluation.f1_of(gold.split(), predicted.split()) == pytest.approx(f1)


# ------------------------------------------------------------------------------------------------------------
# Version 1


def test_version_1_takes_the_best_answer_and_counts_what_is_missing_as_0():
    gold = {"one": ["The cat", "the cat sat"], "two": ["Tom"], "three": ["dog", "big dog"], "four": ["x"]}
    predictions = {"one": "Cat sat", "two": "tom!", "three": "a big brown dog", "other": "y"}
    scores = evaluation.score_v1(gold, predictions)
    assert scores.exact == {"one": 1, "two": 1, "three": 0} and scores.f1 == pytest.approx(
        {"one": 1, "two": 1, "three": 4 / 5}
    )
    assert evaluation.evaluate_v1(gold, predictions) == {"exact_match": 50.0, "f1": pytest.approx(70.0)}
    assert evaluation.missing_predictions(gold, predictions) == ["four"]
    assert evaluation.evaluate_v1({"one": ["the"]}, {"one": ""}) == {"exact_match": 100.0, "f1": 0.0}


def test_version_1_needs_answers():
    with pytest.raises(
        ConfigError, match="question two has no answer, as in SQuAD v2.0.*evaluate_squad_v2.py"
    ):
        evaluation.evaluate_v1({"one": ["cat"], "two": []}, {})
    with pytest.raises(ConfigError, match="no question"):
        evaluation.evaluate_v1({}, {})


# ------------------------------------------------------------------------------------------------------------
# Version 2

GOLD = {"a": ["cat", "the big cat"], "b": ["dog", "..."], "c": [], "d": []}
PREDICTIONS = {"a": "big cat", "b": "brown dog", "c": "", "d": "fish"}


def test_version_2_counts_no_answer_as_an_answer():
    assert evaluation.evaluate_v2(GOLD, PREDICTIONS) == {
        "exact": 50.0,
        "f1": pytest.approx(100 * (1 + 2 / 3 + 1 + 0) / 4),
        "total": 4,
        "HasAns_exact": 50.0,
        "HasAns_f1": pytest.approx(100 * (1 + 2 / 3) / 2),
        "HasAns_total": 2,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
    }


def test_version_2_leaves_out_answers_of_nothing_but_articles_and_punctuation():
    assert evaluation.score_v2({"a": ["...", "cat"], "b": ["The"]}, {"a": "!", "b": "an"}) == (
        {"a": 0, "b": 1},
        {"a": 0, "b": 1},
    )


def test_version_2_leaves_out_questions_without_a_prediction():
    result = evaluation.evaluate_v2(GOLD, {"a": "big cat", "c": "", "x": "y"})
    totals = {"exact": 100.0, "total": 2, "HasAns_total": 1, "NoAns_total": 1}
    assert {name: result[name] for name in totals} == totals
    keys = "exact f1 total HasAns_exact HasAns_f1 HasAns_total"
    assert list(evaluation.evaluate_v2(GOLD, {"a": "cat"})) == keys.split()
    with pytest.raises(ConfigError, match="no question of the data has a prediction"):
        evaluation.evaluate_v2(GOLD, {"x": "y"})


@pytest.mark.parametrize(
    "threshold, exact", [(1.0, 50.0), (0.8, 50.0), (0.79, 75.0), (0.4, 75.0), (0.39, 50.0), (-1.0, 50.0)]
)
def test_predictions_above_the_threshold_count_as_no_answer(threshold, exact):
    # Below 0.8 the wrong answer of d goes, below 0.4 the right one of a.
    probabilities = {"a": 0.4, "b": 0.4, "c": 0.9, "d": 0.8}
    assert evaluation.evaluate_v2(GOLD, PREDICTIONS, probabilities, threshold)["exact"] == exact


def test_without_probabilities_all_are_0():
    assert evaluation.evaluate_v2(GOLD, PREDICTIONS, None, -0.5)["HasAns_exact"] == 0.0


def test_the_best_thresholds_are_found_on_the_way_from_sure_to_unsure():
    probabilities = {"a": 0.1, "b": 0.3, "c": 0.2, "d": 0.9}
    result = evaluation.evaluate_v2(GOLD, PREDICTIONS, probabilities)
    # Nothing answered: 2 right. a: 3. c, whose prediction is '': 3. b: exact 3, F1 3 2/3. d: one less.
    assert (result["best_exact"], result["best_exact_thresh"]) == (75.0, 0.1)
    assert (result["best_f1"], result["best_f1_thresh"]) == (pytest.approx(100 * (3 + 2 / 3) / 4), 0.3)


def test_where_nothing_should_be_answered_the_threshold_is_the_lowest():
    wrong = {"a": "x", "b": "x", "c": "x", "d": "x"}
    odds = {"a": -3.0, "b": -1.0, "c": 2.0, "d": 4.0}
    assert evaluation.evaluate_v2(GOLD, wrong, odds)["best_f1_thresh"] == 0.0  # as published
    assert evaluation.best_thresholds(GOLD, wrong, odds, lowest=-4.0) == {
        "best_exact": 50.0,
        "best_exact_thresh": -4.0,
        "best_f1": 50.0,
        "best_f1_thresh": -4.0,
    }


def test_probabilities_of_all_predictions_are_needed():
    with pytest.raises(
        ConfigError, match=r"1 of 4 predicted questions have no no-answer probability \(d, \.\.\)"
    ):
        evaluation.evaluate_v2(GOLD, PREDICTIONS, {"a": 0.1, "b": 0.3, "c": 0.2})


def test_precision_and_recall_have_a_point_for_each_threshold():
    curves = evaluation.precision_recall(
        GOLD, PREDICTIONS, {"a": 0.1, "c": 0.2, "b": 0.2, "d": 0.9, "unknown": 0.0}
    )
    exact, oracle = curves["pr_exact"], curves["pr_oracle"]
    # a alone: precision 1, recall 1/2. With b and c, which only go together: 1/3, 1/2. With d: 1/4, 1/2.
    assert exact.precisions == pytest.approx([1, 1, 1 / 3, 1 / 4]) and exact.recalls == pytest.approx(
        [0, 1 / 2, 1 / 2, 1 / 2]
    )
    assert exact.average == pytest.approx(50.0)
    assert oracle.precisions == pytest.approx([1, 1, 2 / 3, 1 / 2]) and oracle.recalls == pytest.approx(
        [0, 1 / 2, 1, 1]
    )
    assert oracle.average == pytest.approx(100 * (1 / 2 + 2 / 3 * 1 / 2))
    assert curves["pr_f1"].average == pytest.approx(100 * (1 / 2 + (5 / 3) / 3 * (5 / 6 - 1 / 2)))
    assert evaluation.precision_recall({"c": []}, {"c": ""}, {"c": 1.0}) == {}


# ------------------------------------------------------------------------------------------------------------
# By kind


def test_scores_by_question_word():
    questions = {
        "a": "In what year?",
        "b": "Whose is which?",
        "c": "WHAT'S that",
        "d": "Name it.",
        "e": "To whom?",
        "f": "How many?",
    }
    gold = {identity: ["cat"] for identity in questions}
    scores = evaluation.score_v1(gold, {"a": "cat", "b": "big cat", "c": "dog", "d": "cat", "f": "cat"})
    assert evaluation.by_question_word(questions, scores) == {
        "what": {"count": 2, "exact": 50.0, "f1": 50.0},
        "who": {"count": 1, "exact": 0.0, "f1": pytest.approx(200 / 3)},
        "how": {"count": 1, "exact": 100.0, "f1": 100.0},
        "other": {"count": 1, "exact": 100.0, "f1": 100.0},
    }


def test_scores_by_answer_length():
    gold = {str(length): ["x " * length, "y"] for length in (1, 2, 3, 4, 5, 8, 9, 16, 17, 40)} | {"none": []}
    scores = evaluation.score_v2(
        gold, {identity: "y" if identity in ("1", "3", "40") else "" for identity in gold}
    )
    found = evaluation.by_answer_length(gold, scores)
    assert {name: (values["count"], values["exact"]) for name, values in found.items()} == {
        "1": (1, 100.0),
        "2": (1, 0.0),
        "3-4": (2, 50.0),
        "5-8": (2, 0.0),
        "9-16": (2, 0.0),
        "17+": (2, 50.0),
        "no answer": (1, 100.0),
    }


# ------------------------------------------------------------------------------------------------------------
# Command lines


@pytest.fixture
def write(tmp_path):
    def write_json(name, value):
        (tmp_path / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return str(tmp_path / name)

    return write_json


@pytest.fixture
def run(monkeypatch, capsys):
    """Returns a function that runs a program and returns what it prints, and its errors."""

    def run_program(program, *arguments):
        monkeypatch.setattr("sys.argv", ["script.py", *map(str, arguments)])
        program()
        return capsys.readouterr()

    return run_program


def test_the_version_1_script_prints_one_line(write, run):
    data = write("data.json", document({"one": ["cat"], "two": ["dog"], "three": ["fish"]}, "1.1"))
    found = run(
        scores_lib.run_squad_v1, data, write("predictions.json", {"one": "The cat", "three": "big fish"})
    )
    scores = {"exact_match": 100.0 / 3, "f1": 100.0 * (1 + 2 * 0.5 * 1.0 / 1.5) / 3}
    assert found.out == json.dumps(scores) + "\n"
    assert found.err == "Unanswered question two will receive score 0.\n"
    data = write("data.json", document({"one": ["cat"]}, "7"))
    found = run(scores_lib.run_squad_v1, data, write("predictions.json", {"one": "cat"}))
    assert found.err == "Evaluation expects v-1.1, but got dataset with v-7\n"


def test_the_version_2_script_prints_the_keys_in_their_order(write, tmp_path, run):
    files = [write("data.json", document(GOLD, "v2.0")), write("predictions.json", PREDICTIONS)]
    probabilities = {"a": 0.1, "b": 0.3, "c": 0.2, "d": 1}
    main_keys = [
        f"{prefix}{name}" for prefix in ("", "HasAns_", "NoAns_") for name in ("exact", "f1", "total")
    ]
    best_keys = ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]
    out = run(scores_lib.run_squad_v2, *files).out
    assert list(json.loads(out)) == main_keys and out == json.dumps(json.loads(out), indent=2) + "\n"
    na_file = write("na.json", probabilities)
    with_best = json.loads(
        run(scores_lib.run_squad_v2, *files, "--na-prob-file", na_file, "--na-prob-thresh=0.25").out
    )
    assert list(with_best) == main_keys + best_keys
    exact = evaluation.evaluate_v2(GOLD, PREDICTIONS, probabilities, 0.25)["exact"]
    assert with_best["exact"] == exact == 75.0
    images, out_file = tmp_path / "new" / "images", tmp_path / "out.json"
    assert run(scores_lib.run_squad_v2, *files, "-n", na_file, "-p", images, "-o", out_file).out == ""
    averages = ["pr_exact_ap", "pr_f1_ap", "pr_oracle_ap"]
    assert list(json.loads(out_file.read_text())) == main_keys + best_keys + averages
    names = ["na_prob_hist_hasAns", "na_prob_hist_noAns", "pr_exact", "pr_f1", "pr_oracle"]
    assert sorted(path.name for path in images.iterdir()) == [f"{name}.png" for name in names]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in images.iterdir())


def test_the_version_2_script_names_what_is_missing_and_explains(write, run):
    data = write("data.json", document(GOLD, "v2.0"))
    found = run(scores_lib.run_squad_v2, data, write("p.json", {"a": "big cat", "d": ""}), "--verbose")
    missing = "Missing prediction for b\nMissing prediction for c\n4 questions, 2 with a prediction\n"
    assert found.err.startswith(missing) and json.loads(found.out)["total"] == 2


def test_bad_files_are_an_error(write, run):
    data = write("data.json", document(GOLD, "v2.0"))
    for predictions, na_probs, message in (
        ('{"a": ', None, r"p.json: not a JSON file, line 1 column 7"),
        ([], None, "p.json: expected an object from question ids to texts, got a list"),
        ({"a": None}, None, "p.json: question a has null"),
        ({"a": ["x"]}, None, "p.json: question a has a list"),
        ({"a": "x"}, {"a": "0.5"}, "na.json: question a has a text. Expected an object from question ids to"),
        ({"a": "x"}, {"a": True}, "na.json: question a has true or false"),
        ({"a": "x"}, {}, "1 of 1 predicted questions have no no-answer probability"),
    ):
        flags = [] if na_probs is None else ["--na_prob_file=" + write("na.json", na_probs)]
        with pytest.raises(ConfigError, match=message):
            run(scores_lib.run_squad_v2, data, write("p.json", predictions), *flags)
    for questions, message in (
        ([{"answers": []}], r'qas\[0\] has no "id"'),
        ([{"id": "a"}], r'qas\[0\] has no "answers"'),
        ([{"id": "a", "answers": []}] * 2, "question id a stands in the file twice"),
    ):
        with pytest.raises(ConfigError, match=message):
            squad_files.read_gold_answers(
                write("data.json", {"data": [{"paragraphs": [{"qas": questions}]}]})
            )


def test_the_scripts_load_no_tensorflow_and_end_with_2_on_bad_input(write):
    code = (
        "import sys; from official.cli import scores; assert"
        " 'tensorflow' not in sys.modules; assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "evaluate_squad_v1.py", write("a.json", "{"), "none.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("evaluate_squad_v1.py: ") and done.stderr.count("\n") == 1


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


@pytest.fixture
def download(tmp_path):
    """Returns a function that runs the script with a curl and a sha256sum of our own; they are given as shell
    commands."""
    tools = tmp_path / "tools"
    tools.mkdir()

    def run_with(
        curl,
        folder=tmp_path / "squad",
        sha256sum='grep -q whole "$1" && echo "$RIGHT  $1" || echo "0  $1"',
        arguments=None,
    ):
        script = (ROOT / "scripts" / "download_squad.sh").read_text(encoding="utf-8")
        sums = dict(
            line.split()[::-1]
            for line in script.splitlines()
            if len(line.split()) == 2 and line.split()[1] in NAMES
        )
        assert sorted(sums) == sorted(NAMES) and all(len(value) == 64 for value in sums.values())
        cases = "".join(f"*{name}*) RIGHT={value};; " for name, value in sums.items())
        for name, body in (("curl", curl), ("sha256sum", f'case "$1" in {cases}esac; {sha256sum}')):
            (tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
            (tools / name).chmod(0o755)
        environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
        return subprocess.run(
            [ROOT / "scripts" / "download_squad.sh", *([folder] if arguments is None else arguments)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run_with


FETCH = (
    'while [[ $# -gt 1 ]]; do [[ "$1" == --output ]] && output="$2"; shift; done;'
    ' echo "$1" >>"$output.urls"; echo whole >>"$output"'
)


def test_files_are_downloaded_once(download, tmp_path):
    done = download(FETCH)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.splitlines() == [
        f"{name}: downloaded" for name in NAMES
    ]
    urls = [(tmp_path / "squad" / f"{name}.part.urls").read_text().strip() for name in NAMES]
    assert urls == [f"https://rajpurkar.github.io/SQuAD-explorer/dataset/{name}" for name in NAMES]
    again = download("exit 1")
    assert again.returncode == 0 and again.stdout.splitlines() == [f"{name}: there already" for name in NAMES]


def test_a_download_that_broke_off_is_gone_on_with(download, tmp_path):
    broken = download(
        'while [[ $# -gt 1 ]]; do [[ "$1" == --output ]] && echo -n who >"$2"; shift; done; echo "curl: (6)'
        ' no network" >&2; exit 6'
    )
    assert broken.returncode == 2 and broken.stdout == "" and broken.stderr.count("\n") == 1
    assert "train-v1.1.json cannot be downloaded: curl: (6) no network" in broken.stderr
    assert [path.name for path in (tmp_path / "squad").iterdir()] == ["train-v1.1.json.part"]
    rest = (
        '[[ " $* " == *" --continue-at - "* ]] || exit 1; '
        'while [[ $# -gt 1 ]]; do [[ "$1" == --output ]] && output="$2"; shift; done; '
        '[[ -e "$output" ]] && echo -n le >>"$output" || echo -n whole >"$output"'
    )
    done = download(rest)
    assert done.returncode == 0 and (tmp_path / "squad" / "train-v1.1.json").read_text() == "whole"


def test_files_that_are_not_the_published_ones_are_an_error(download, tmp_path):
    done = download('while [[ $# -gt 1 ]]; do [[ "$1" == --output ]] && echo "<html>" >"$2"; shift; done')
    assert done.returncode == 2 and "train-v1.1.json is not the published file" in done.stderr
    assert list((tmp_path / "squad").iterdir()) == []
    (tmp_path / "squad" / "train-v1.1.json").write_text("mine")
    done = download(FETCH)
    assert (
        done.returncode == 2
        and "train-v1.1.json is not the published file (its sha256 is another). Move it away" in done.stderr
    )
    assert (tmp_path / "squad" / "train-v1.1.json").read_text() == "mine"


def test_the_download_needs_one_folder_that_can_be_made(download, tmp_path):
    (tmp_path / "file").write_text("")
    for arguments, message in (
        ([], "usage"),
        (["a", "b"], "usage"),
        (["--help"], "usage"),
        ([tmp_path / "file" / "x"], "cannot be made"),
    ):
        done = download(FETCH, arguments=arguments)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
