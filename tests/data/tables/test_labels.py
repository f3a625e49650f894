"""Labels: what a column says, and scores beside scikit-learn's."""

import decimal

import numpy as np
import pytest
from sklearn import metrics

from official.data.tables import labels as labels_lib
from official.data.tables.labels import CHOICE, NUMBER, ONE, SEVERAL, Labels, Reader
from official.io.errors import ConfigError


def read(kind, values, known=None, choices=()):
    reader = Reader(kind, known, choices)
    wrong = [reader.read(value, ("x", "y", "z")[: len(choices)]) for value in values]
    return (*reader.finish(), wrong)


def test_labels_are_words_that_are_sorted():
    for values, names in (
        (["pos", "neg", "pos"], ("neg", "pos")),
        ([10, 2, 10], ("2", "10")),
        ([True, False], ("false", "true")),
        (["1.0", "0.0"], ("0.0", "1.0")),
        ([b"pos", b"\xc3\xa9"], ("pos", "\u00e9")),  # of Parquet without types of text
        ([decimal.Decimal("1.50"), decimal.Decimal("0")], ("0", "1.50")),
    ):
        labels, numbers, _ = read(ONE, values)
        assert labels.names == names
        assert [names[number] for number in numbers] == [labels_lib.as_text(value) for value in values]
    _, numbers, wrong = read(ONE, ["b", None, " ", "a"])
    assert numbers.tolist() == [1, 0] and wrong == [None, "has no label", "has no label", None]
    lists = [["a", "b"], '["a", "b"]', "['a', 'b']", {"a": 1}]  # each would be a class of its own
    *_, wrong = read(ONE, [*lists, "[a]", "(a, b)", "[a b]", "{a}"])
    assert all(told and "is a list, of which --label_kind=several" in told for told in wrong[:4]), wrong
    assert wrong[4:] == [None] * 4


def test_several_labels_come_from_lists_and_separators():
    labels, marks, wrong = read(SEVERAL, ["1, 4", '["4", "7"]', ["1"], "", "a;b,c"])
    assert labels.names == ("1", "4", "7")
    assert marks.tolist() == [[1, 1, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert "a JSON list" in wrong[-1]
    labels, marks, wrong = read(SEVERAL, ["a, b", "a", "b|c", "b, a"])
    assert labels.names == ("a", "b") and len(marks) == 3, "what is between labels is so in all rows"
    assert "has , and | between labels, or another row has" in wrong[2]
    with pytest.raises(ConfigError, match="the label 'Smith, J' of a list has ,, which separates labels"):
        read(SEVERAL, ["a, b", ["Smith, J"]])
    # As pandas writes lists into CSV; a text in brackets is a label.
    for text, names in (
        ("['a', 'b']", ["a", "b"]),
        (" ('it\\'s, so', \"b\",) ", ["it's, so", "b"]),
        ("[]", []),
        ("[other]", ["[other]"]),
        ("[UK] politics, b", ["[UK] politics", "b"]),
        ([0, 1], ["0", "1"]),
        ("a, a", ["a", "a"]),
        ("()", []),
        (["", "a"], ["a"]),
        ("set()", []),
    ):
        assert labels_lib.as_texts(text) == names, text
    assert sorted(labels_lib.as_texts("{'a', 'b'}")) == ["a", "b"]
    for value, told in (
        *((text, "is not a list such as") for text in ("['a' 'b']", "['a', nan]", "['\\x']", '["a"')),
        *((text, "is not a list such as") for text in ("{a,b}", "{a}", "{}", "(1, 2)")),
        (["a", None], "is not a list of label names"),
        ([0, 1, 0], "a 0 or 1 for each label"),
        ([1, 1], "a 0 or 1 for each label"),
        ("[1.0, 0.0, 0.0]", "a 0 or 1 for each label"),
        ("0,0,1", "a 0 or 1 for each label"),
        ({"a": 1, "b": 0}, "label names"),
        ("[" * 100_000 + "1, 2" + "]" * 100_000, "is not a list such as"),
    ):
        assert told in read(SEVERAL, [value])[2][0], value


def test_missing_labels_and_lists_are_no_labels():
    for kind in (ONE, SEVERAL):
        told = "has no label" + ", and no [] for none" * (kind == SEVERAL)
        assert read(kind, ["a", float("nan"), None])[-1] == [None, told, told], kind
    assert read(SEVERAL, [["a"], [], " "])[1].tolist() == [[1], [0], [0]]
    for value in ([27], "[3, 27]", "['a', 'b']", "[ 3 27]", '{"choices":["a","b"]}'):  # of Label Studio
        assert "--label_kind=several" in read(ONE, [value])[-1][0], value
    assert read(ONE, ["[other]", "(a)"])[-1] == [None, None]


def test_doubtful_labels_are_told(caplog):
    labels_lib.tell_doubtful(["a", "A ", "b c", "b  C", "1", "1.0", "2", "ab", "\u00e9", "e\u0301"])
    assert "'a' and 'A ', 'b c' and 'b  C', '1' and '1.0', '\u00e9' and 'e\u0301'" in caplog.text
    for names, kind, told in (
        (["a", "b", "1", "2.5"], ONE, ""),
        (["1.0", "2"], ONE, ""),
        (["1.0", "2.5"], SEVERAL, ""),
        (["1.0", "2.5"], ONE, "--label_kind=number learns their size"),
        (["a", "NaN"], ONE, "'NaN' is learned like any other"),
        *((["a", name], ONE, "is learned like any other") for name in ("NULL", "None", "NA", "\\N")),
        (["a", "none"], ONE, ""),
        (["-", "entailment"], ONE, "'-' is learned like any other"),  # of SNLI
        (["-1", "0", "1", "2"], ONE, "'-1' is learned like any other"),
        (["-1", "0", "1"], ONE, ""),
    ):
        caplog.clear()
        labels_lib.tell_doubtful(names, kind)
        assert told in caplog.text and bool(told) == bool(caplog.text), (names, kind)
    assert sorted(["nan", "b", "1", "a"], key=labels_lib.sort_key) == ["1", "a", "b", "nan"]


def test_numbers_and_choices():
    _, numbers, wrong = read(NUMBER, ["1.5", 2, "x", [0.5], "inf", "nan", 10**400])
    assert numbers.tolist() == [1.5, 2.0]
    assert wrong[2:4] == [f"label '{text}' is not a number" for text in ("x", [0.5])]
    assert wrong[4:6] == [f"label '{text}' is not a finite number" for text in ("inf", "nan")]
    assert wrong[6].endswith("0' is not a number") and read(NUMBER, ["1_0"])[-1] != [None]
    wrong = read(CHOICE, ["a", "\u00df"], choices=("a", "b", "c"))[2]  # whose capital is two letters
    assert wrong[0] is None and "is not one of the columns" in wrong[1]
    assert read(CHOICE, ["b", "y", "C"], choices=("a", "b", "c"))[1].tolist() == [1, 1, 2]
    for numbers in (["0", "2"], ["1", "3"], ["1.0", 3.0]):
        assert read(CHOICE, numbers, choices=("a", "b", "c"))[1].tolist() == [0, 2], numbers
    with pytest.raises(ConfigError, match="from 0 or from 1"):
        read(CHOICE, ["1", "2"], choices=("a", "b", "c"))


def test_numbers_of_choices_that_are_also_texts_or_columns():
    def places(choices, rows):
        reader = Reader(CHOICE, None, choices)
        assert not [wrong for label, *texts in rows if (wrong := reader.read(label, texts))]
        return reader.finish()[1].tolist()

    # Some texts are numbers, too, which the label does not mean.
    assert places("abc", [("1", "2", "3", "1"), ("0", "x", "y", "z"), (2, "0", "1", "2")]) == [1, 0, 2]
    # All labels are texts.
    assert places("abc", [("12", "7", "12", "9"), ("3", "3", "5", "4")]) == [1, 0]
    # Columns of a table without a header.
    assert places("234", [("2", "x", "y", "z"), ("0", "x", "y", "z")]) == [2, 0]
    assert places("234", [("4", "x", "y", "z"), ("2", "x", "y", "z")]) == [2, 0]
    for choices, rows in (
        ("abc", [("1", "2", "3", "1"), ("0", "2", "1", "0")]),
        ("234", [("2", "x", "y", "z"), ("3", "x", "y", "z")]),
    ):
        with pytest.raises(ConfigError, match="by column, text or number. .* letters"):
            places(choices, rows)


def test_unknown_and_too_many_labels_are_named():
    reader = Reader(ONE, Labels(ONE, ("a", "b")))
    assert reader.read("aa") is not None and reader.unknown == {"aa": 1}
    assert "did you mean a" in labels_lib.describe_unknown(reader.unknown, ("ab", "a"))
    with pytest.raises(ConfigError, match="label_kind=number"):
        read(ONE, [number / 7 for number in range(2000)])


def test_scores_equal_scikit_learn():
    generator = np.random.default_rng(2)
    several = Labels(SEVERAL, tuple("abcd"), (0.4, 0.5, 0.6, 0.7))
    for labels in (Labels(ONE, ("0", "1")), Labels(ONE, tuple("01234")), several):
        classes, is_one = len(labels.names), labels.kind == ONE
        logits, truths = generator.normal(size=(400, classes)), generator.integers(0, classes, 400)
        truths = truths if is_one else (generator.random((400, classes)) < 0.3).astype(np.float32)
        found = labels_lib.scores(labels, logits, truths)
        chances, called = labels_lib.probabilities(labels, logits), labels_lib.predicted(labels, logits)
        columns = [slice(None)] if is_one else range(classes)
        losses = [metrics.log_loss(truths[..., column], chances[..., column]) for column in columns]
        kinds = ("macro", "micro", "weighted")
        expected = {f"{kind}_f1": metrics.f1_score(truths, called, average=kind) for kind in kinds}
        expected["accuracy"] = metrics.accuracy_score(truths, called)
        expected["log_loss"] = np.mean(losses)
        scores = chances[:, 1] if classes == 2 else chances
        expected["roc_auc"] = metrics.roc_auc_score(truths, scores, multi_class="ovr")
        expected["calibration_error"] = found["calibration_error"]
        assert found == pytest.approx(expected, abs=1e-6), labels


@pytest.mark.filterwarnings("ignore:F-score is ill-defined")
def test_labels_that_no_row_has_count_as_in_scikit_learn():
    """Neither the truths nor the predictions have the last label."""
    logits = np.array([[3.0, -3, -3], [-3, 3, -3], [3, -3, -3], [-3, 3, -3]])
    for kind, truths in ((ONE, np.array([0, 1, 1, 1])), (SEVERAL, np.array([[1, 0, 0]] + [[0, 1, 0]] * 3))):
        labels = Labels(kind, ("a", "b", "c"))
        found, called = labels_lib.scores(labels, logits, truths), labels_lib.predicted(labels, logits)
        for average in ("macro", "micro", "weighted"):
            expected = metrics.f1_score(truths, called, average=average)
            assert found[f"{average}_f1"] == pytest.approx(expected), (kind, average)


def test_thresholds_are_the_best_of_all():
    generator = np.random.default_rng(4)
    chances, truths = np.round(generator.random((60, 3)), 1), generator.random((60, 3)) < 0.4
    truths[:, 2] = False
    chosen = labels_lib.choose_thresholds(chances, truths)
    for column in range(2):
        f1 = [
            metrics.f1_score(truths[:, column], chances[:, column] >= threshold)
            for threshold in (chosen[column], *np.linspace(-0.05, 1.05, 23))
        ]
        assert f1[0] == pytest.approx(max(f1))
    assert chosen[2] == 0.5


def test_calibration_of_right_probabilities_is_perfect():
    chances = np.array([0.5] * 100 + [1.0] * 100)
    assert labels_lib.calibration_error(chances, np.array([1, 0] * 50 + [1] * 100)) == pytest.approx(0.0)
    assert labels_lib.calibration_error(chances, np.ones(200)) == pytest.approx(0.25)
