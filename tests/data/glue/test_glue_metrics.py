"""GLUE's metrics against their formulas, what is undefined, and predictions as GLUE's server takes them."""

import os
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official.data.glue import files
from official.data.glue.tasks import TASKS
from official.io.errors import ConfigError

# ------------------------------------------------------------------------------------------------------------
# Metrics


def test_metrics_by_hand():
    labels, predictions = (
        np.array([1, 1, 1, 0, 0, 0, 0, 1]),
        np.array([1, 1, 0, 0, 0, 1, 1, 1]),
    )  # tp 3, fp 2, fn 1, tn 2
    assert files.score(TASKS["sst2"], predictions, labels) == {"accuracy": 5 / 8}
    assert files.score(TASKS["mrpc"], predictions, labels) == pytest.approx(
        {"accuracy": 5 / 8, "f1": 2 * 3 / (2 * 3 + 2 + 1)}
    )
    assert files.score(TASKS["qqp"], 1 - predictions, 1 - labels) == pytest.approx(
        {"accuracy": 5 / 8, "f1": 2 * 2 / (2 * 2 + 1 + 2)}
    )
    matthews = (3 * 2 - 2 * 1) / (5 * 4 * 4 * 3) ** 0.5
    assert files.score(TASKS["cola"], predictions, labels) == pytest.approx(
        {"matthews_correlation": matthews}
    )
    assert files.score(TASKS["mnli"], np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])) == {"accuracy": 0.75}
    assert files.confusion_matrix(TASKS["cola"], predictions, labels).tolist() == [[2, 2], [1, 3]]
    assert files.confusion_matrix(TASKS["mnli"], np.array([0, 1]), np.array([0, 0])).tolist() == [
        [1, 1, 0],
        [0, 0, 0],
        [0, 0, 0],
    ]


def test_correlations_by_hand():
    values = files.score(TASKS["stsb"], np.array([1, 2, 4, 3]), np.array([0, 1, 5, 5]))
    x, y = np.array([1, 2, 4, 3]) - 2.5, np.array([0, 1, 5, 5]) - 2.75
    ranks = np.array([1, 2, 3.5, 3.5]) - 2.5
    assert values == pytest.approx(
        {
            "pearson": x @ y / (x @ x * (y @ y)) ** 0.5,
            "spearman": x @ ranks / (x @ x * (ranks @ ranks)) ** 0.5,
        }
    )
    assert list(map(type, values.values())) == [float, float]


PAIRS_OF_CLASSES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30)


@pytest.mark.filterwarnings("error")
@given(PAIRS_OF_CLASSES)
@settings(deadline=None, derandomize=True, max_examples=100)
def test_metrics_of_two_classes_equal_their_formulas(pairs):
    labels, predictions = np.array(pairs).T
    tp, fp, fn, tn = (
        int(((labels == label) & (predictions == prediction)).sum())
        for label, prediction in ((1, 1), (0, 1), (1, 0), (0, 0))
    )
    root = ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    assert files.score(TASKS["mrpc"], predictions, labels) == pytest.approx(
        {"accuracy": (tp + tn) / len(pairs), "f1": 2 * tp / (2 * tp + fp + fn) if tp else 0.0}
    )
    matthews = (tp * tn - fp * fn) / root if root else 0.0
    assert files.score(TASKS["cola"], predictions, labels) == pytest.approx(
        {"matthews_correlation": matthews}
    )


@pytest.mark.parametrize(
    "predictions, labels",
    [
        ([2.5] * 3, [1, 2, 3]),
        ([0.1] * 3, [1, 2, 3]),
        ([1, 2, 3], [4, 4, 4]),
        ([1, np.nan, 3], [1, 2, 3]),
        ([1, np.inf, 3], [1, 2, 3]),
        ([3], [2]),
    ],
)
def test_a_correlation_that_is_not_defined_is_zero(predictions, labels):
    values = files.score(TASKS["stsb"], np.array(predictions, np.float32), np.array(labels, np.float32))
    assert values == {"pearson": 0.0, "spearman": 0.0}


def test_correlations_are_summed_in_float64():
    rng = np.random.default_rng(0)
    labels = rng.uniform(0, 5, 5000).astype(np.float32)
    predictions = (4 + 1e-3 * labels + 1e-3 * rng.standard_normal(5000)).astype(np.float32)
    expected = np.corrcoef(labels.astype(np.float64), predictions.astype(np.float64))[0, 1]
    assert files.score(TASKS["stsb"], predictions, labels)["pearson"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "name, labels, expected",
    [
        ("cola", [1, 1, 0], {"matthews_correlation": 0.0}),
        ("rte", [1, 1, 0], {"accuracy": 2 / 3}),
        ("mnli", [2, 0, 2, 1], {"accuracy": 0.5}),
        ("mrpc", [1, 1, 0], {"accuracy": 2 / 3, "f1": 0.8}),
        ("mrpc", [0, 1, 0], {"accuracy": 2 / 3, "f1": 0.0}),
        ("stsb", [0.5, 3.3, 4.1], {"pearson": 0.0, "spearman": 0.0}),
    ],
)
def test_the_baseline_predicts_one_value(name, labels, expected):
    assert files.baseline(TASKS[name], np.array(labels)) == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------------------
# Files of predictions

# {task: (file, rows of the official test set)}
OFFICIAL = {
    "cola": ("CoLA.tsv", 1063),
    "mnli": ("MNLI-m.tsv", 9796),
    "mnli-mm": ("MNLI-mm.tsv", 9847),
    "ax": ("AX.tsv", 1104),
    "mrpc": ("MRPC.tsv", 1725),
    "sst2": ("SST-2.tsv", 1821),
    "stsb": ("STS-B.tsv", 1379),
    "qqp": ("QQP.tsv", 390965),
    "qnli": ("QNLI.tsv", 5463),
    "rte": ("RTE.tsv", 3000),
    "wnli": ("WNLI.tsv", 146),
}


def test_the_server_gets_the_names_and_numbers_of_rows_that_it_expects():
    found = {name: (task.submission_file, task.splits["test"].rows) for name, task in TASKS.items()}
    assert found == OFFICIAL


def test_predictions_are_written_as_the_server_takes_them(tmp_path):
    words = {
        **dict.fromkeys(("mnli", "mnli-mm", "ax"), ["contradiction", "entailment", "neutral"]),
        **dict.fromkeys(("qnli", "rte"), ["entailment", "not_entailment", "not_entailment"]),
        "stsb": ["0.123", "5.000", "0.000"],
    }
    for name, task in TASKS.items():
        classes = [0, 1, len(task.classes) - 1]
        predictions = np.array([0.12349, 5.2, -0.0] if task.is_regression else classes)
        folder = tmp_path / "new" / name
        path = files.write_predictions(task, predictions, str(folder))
        assert path == str(folder / OFFICIAL[name][0]) and os.listdir(folder) == [OFFICIAL[name][0]]
        lines = [f"{index}\t{text}\n" for index, text in enumerate(words.get(name, ["0", "1", "1"]))]
        with open(path, "rb") as file:
            assert file.read().decode() == "".join(["index\tprediction\n", *lines])
        files.check_predictions(task, path, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_not_written(tmp_path, value):
    with pytest.raises(ConfigError, match=f"STS-B.tsv: the score of row 1 is {value}"):
        files.write_predictions(TASKS["stsb"], np.array([1, value, np.nan], np.float32), str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/RTE.tsv cannot be written: "):
        files.write_predictions(TASKS["rte"], np.array([0]), str(tmp_path / "file"))


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("rte", "0\tentailment\n", ":1: the header is '0\\tentailment', expected 'index\\tprediction'."),
        ("rte", "", ":1: the header is ''"),
        (
            "rte",
            "index\tprediction\n0\tentailment\n1\tneutral\n",
            ":3: prediction 'neutral', expected one of entailment, not_entailment.",
        ),
        ("rte", "index\tprediction\n0\t1\n", ":2: prediction '1', expected one of entailment"),
        ("cola", "index\tprediction\n0\tentailment\n", ":2: prediction 'entailment', expected one of 0, 1."),
        ("cola", "index\tprediction\n1\t0\n", ":2: index '1', expected 0."),
        ("cola", "index\tprediction\n0\t0\n0\t0\n", ":3: index '0', expected 1."),
        ("cola", "index\tprediction\n0 1\n", ":2: 1 column, expected 2 with a tab between them."),
        ("cola", "index\tprediction\n0\t0\n", ": 1 predictions, expected 2."),
        ("cola", "index\tprediction\n0\t0\n1\t0\n2\t0\n", ": 3 predictions, expected 2."),
        ("cola", "index\tprediction\n0\t0\n1\t0\n\n", ":4: 1 column"),
        ("stsb", "index\tprediction\n0\t5.1\n", ":2: prediction '5.1', expected a number from 0 to 5."),
        ("stsb", "index\tprediction\n0\tnan\n", ":2: prediction 'nan'"),
        ("stsb", "index\tprediction\n0\thigh\n", ":2: prediction 'high'"),
        ("stsb", b"index\tprediction\n0\t\xff\n", ": not UTF-8 text (byte 20)."),
    ],
)
def test_a_file_that_the_server_would_refuse_is_an_error(tmp_path, name, content, message):
    path = tmp_path / OFFICIAL[name][0]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=re.escape(str(path) + message)):
        files.check_predictions(TASKS[name], str(path), 2)


def test_a_file_of_predictions_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="RTE.tsv: No such file"):
        files.check_predictions(TASKS["rte"], str(tmp_path / "RTE.tsv"), 2)
