"""SQuAD: reading files, windows of word pieces compared with a plain implementation of the published rules,
and their features.
"""

import dataclasses
import functools
import json
import os
import pathlib
import string
import unicodedata
from unittest import mock

import hypothesis
import numpy as np
import pytest
import yaml
from hypothesis import strategies

from official.data.squad import answers, features, squad_files
from official.data.word_pieces import vocabulary as vocabulary_lib
from official.data.word_pieces.wordpiece import WordPiece
from official.io.errors import ConfigError
from tests import reference_squad, reference_wordpiece
from tests.fixtures import TEST_DATA
from tests.refusals import assert_refused

LETTERS = string.ascii_lowercase.replace("z", "") + string.digits
PIECES = [*vocabulary_lib.SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
PIECES += [*"the ##the cat sat smith steve 1895 中 文".split(), *"().,-'\"%$"]
VOCABULARY = vocabulary_lib.Vocabulary(tuple(PIECES), sha256="of no file")
CAPITALS = ["Steve", "The", "\u0301", "##\u0301", *"ABSTÉ", *(f"##{letter}" for letter in "ABSTEé")]
CASED = vocabulary_lib.Vocabulary((*PIECES, *CAPITALS), "", do_lower_case=False)
RULES = features.WindowRules(max_seq_length=24, doc_stride=5, max_query_length=6)
CASES = yaml.safe_load(pathlib.Path(__file__).with_name("cases.yml").read_text(encoding="utf-8"))
READ = dict(flag="train_file", for_training=True, version_2_with_negative=False)


def document(*paragraphs, version="1.1"):
    """Returns SQuAD's JSON value: a paragraph is (context, question, ..), a question (text, answer, start) or
    a dict of its fields."""
    count = iter(range(1000))

    def question(fields):
        if not isinstance(fields, dict):
            text, *answer = fields
            answers = [{"text": answer[0], "answer_start": answer[1]}] if answer else []
            fields = {"question": text, "answers": answers}
        return {"id": f"q{next(count)}", **fields}

    made = [{"context": context, "qas": list(map(question, questions))} for context, *questions in paragraphs]
    return {"version": version, "data": [{"title": "A title", "paragraphs": made}]}


@pytest.fixture
def read(tmp_path):
    """Returns a function that writes a JSON value, or bytes, to a file and reads it."""

    def read_value(value, **settings):
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        (tmp_path / "squad.json").write_bytes(content)
        return squad_files.read_squad(str(tmp_path / "squad.json"), **READ | settings)

    return read_value


# ------------------------------------------------------------------------------------------------------------
# Reading


def test_questions_are_read_in_their_order_and_those_that_cannot_be_trained_on_named(read):
    asked = [("Who?", "dog", 4), (" \n", "cat", 4), ("Where?",), ("When?", "sat", 8), ("Past?", "sat", 10)]
    asked += [("Before?", "cat", -8), ("Nothing?", "", 4), ("Inside?", "at", 5)]
    data = read(document(("The cat sat.", *asked), ("a\ud800 Steve.", ("\udfff?", "Steve", 3))))
    assert data.skipped_questions == {
        **dict.fromkeys(("q0", "q4", "q5", "q6"), "answer not in the context at answer_start"),
        "q1": "empty question",
        "q2": "no answer",
    }
    # Half characters become one that can be written, and offsets stay.
    assert data.contexts == ["The cat sat.", "a\ufffd Steve."]
    found = [(each.id, each.text, each.context, each.answers, each.answer_starts) for each in data.questions]
    assert found == [
        ("q3", "When?", 0, ("sat",), (8,)),
        ("q7", "Inside?", 0, ("at",), (5,)),
        ("q8", "\ufffd?", 1, ("Steve",), (3,)),
    ]
    assert data.empty_questions == []
    other = ({"question": "Who?"}, (" ",), {"question": "What?", "answers": [{"text": "dog"}]})
    data = read(document(("The cat sat.", *other)), flag="predict_file", for_training=False)
    assert [question.answers for question in data.questions] == [(), (), ("dog",)]
    assert data.skipped_questions == {} and data.empty_questions == ["q1"]


def test_impossible_questions_need_version_2(read):
    impossible = {"question": "Why?", "answers": [], "is_impossible": True}
    value = document(("The cat sat.", ("Who?", "cat", 4), impossible), version="v2.0")
    message = r"1 of 2 questions are marked impossible to answer \(q1.*--version_2_with_negative"
    with pytest.raises(ConfigError, match=f"--train_file=.*: {message}"):
        read(value)
    data = read(value, version_2_with_negative=True)
    assert [question.is_impossible for question in data.questions] == [False, True]
    assert not data.skipped_questions
    answers = [{"text": "cat", "answer_start": 4}]  # which the official scorer counts
    value = document(("The cat sat.", ("Who?", "cat", 4), {**impossible, "answers": answers}))
    data = read(value, version_2_with_negative=True)
    assert data.skipped_questions == {"q1": "marked impossible, with answers"}


def test_rows_say_their_ids_and_which_are_impossible(read, monkeypatch):
    """Rows as `datasets` writes them, {context, question, answers}; a dump of a data frame counts ids from
    0."""

    def questions(*rows, for_training=True):
        whole = [{"context": "The cat sat.", "question": "Who?", **row} for row in rows]
        content = "".join(json.dumps(row) + "\n" for row in whole).encode()
        settings = dict(for_training=for_training, version_2_with_negative=True)
        return read(content, **settings).questions

    cat, none = {"text": ["cat"], "answer_start": [4]}, {"text": [], "answer_start": []}
    found = questions(
        *({"id": number, "answers": answers} for number, answers in enumerate((cat, none, cat))),
        {"id": "p", "answers": cat, "is_impossible": True},
        {"answers": cat, "is_impossible": False},
        {"answers": {"text": "sat", "answer_start": 8}},
        {"answers": {"text": ["sat"]}},
    )
    assert [one.id for one in found] == [*"012p567"]
    assert [" ".join(one.answers) for one in found] == ["cat", "", "cat", "", "cat", "sat", "sat"]
    assert [one.is_impossible for one in found] == [not one.answers for one in found]
    told = []
    monkeypatch.setattr(squad_files.logging, "log_first_n", lambda *arguments: told.append(arguments))
    found = questions(  # the place in a column of its own, in CSV a text
        {"context": "A cat, a cat.", "answers": "cat", "answer_start": 9},
        {"context": "A cat, a cat.", "answers": ["cat"], "answer_start": "9"},
        {"context": "A cat, a cat.", "answers": "cat", "answer_start": ""},
        {"answers": "", "answer_start": ""},
        {"context": "The man, he.", "answers": ["he"]},  # a whole word before a part of one
        {"context": "Theme.", "answers": {"text": "he", "answer_start": []}},
    )
    assert [one.answer_starts for one in found] == [(9,), (9,), (2,), (), (9,), (1,)]
    assert [each[-2:] for each in told] == [("cat", 2)]  # of which the first one is taken
    late = [{"id": number, "answers": cat} for number in range(120)]
    assert questions(*late, {"answers": cat, "is_impossible": True})[-1].is_impossible
    others = (float("nan"), True, 5, str(cat), "['cat']")
    bad = [({"answers": value}, "expected texts, or text and answer_start") for value in others]
    bad += [({"answers": {"text": ["cat", "sat"], "answer_start": [4]}}, "2 text and 1 answer_start")]
    bad += [({"answers": cat, "is_impossible": 1}, "is_impossible")]
    bad += [({"answers": "cat", "answer_start": "4.0"}, "answer_start")]
    bad += [({"answers": ["cat"], "answer_start": [4, 8]}, "1 text and 2 answer_start")]
    assert_refused(questions, bad)


def test_what_is_no_squad_file_is_an_error_in_one_line(read):
    bad = (
        (b'{"data": [\n  {"paragraphs": 1,]}', "not a JSON file, line 2 column 20"),
        (b'{"data": "\xff"}', r"not a JSON file \(byte 10 is not UTF-8\)"),
        (b"[" * 100_000, "nested too deeply"),
        *((case["file"], case["message"]) for case in CASES["refused"]),
    )
    assert_refused(read, ((value, f"--train_file=.*squad.json:? .*{told}") for value, told in bad))


def test_rows_are_read_as_squads_json_is(read):
    context, word = "\u6218\u56fd\u65e0\u53cc3\u662f\u5149\u8363\u548c\u03c9-force\u3002", "\u5149\u8363"
    answer = {"text": word, "answer_start": context.index(word)}

    def read_row(given, version_2=False):
        row = {"context": context, "question": "?", "answers": given}
        return read(row, version_2_with_negative=version_2)

    value = document((context, {"id": "1", "question": "?", "answers": [answer]}))
    expected, failures = read(value), []
    lists = {"text": [word], "answer_start": [answer["answer_start"]]}
    for given in ([answer], lists, [word], word):
        found = read_row(given)
        if (found.contexts, found.questions) != (expected.contexts, expected.questions):
            failures.append((given, found.questions))
    assert not failures and squad_files.read_gold_answers(found.path).answers == {"1": [word]}
    with pytest.raises(ConfigError, match="impossible"):
        read_row([])
    assert read_row([], version_2=True).questions[0].is_impossible
    # Features are kept for the bytes of a file: those of rows, too, to the last one.
    row = json.dumps({"context": context, "question": "?", "answers": word}).encode()
    one, other = (read(b"\n".join([row] * 2000 + [row.replace(b"?", end)])) for end in (b"?", b"!"))
    assert one.sha256 != other.sha256 and one.questions[:-1] == other.questions[:-1]


def test_values_that_are_not_read_may_be_anything(read):
    """Titles that are missing in a data frame are NaN, and hashes are large."""
    value = document(("The cat sat.", ("Who?", "cat", 4)))
    value["data"][0] |= {"title": float("nan"), "id": 10**30}
    assert [question.text for question in read(value).questions] == ["Who?"]


TEXT = strategies.text(strategies.sampled_from("ab. \n\u00a0\u202f\u3000é"), max_size=12)


@hypothesis.settings(deadline=None, derandomize=True, max_examples=300)
@hypothesis.given(TEXT, strategies.integers(-2, 12), strategies.integers(0, 6), strategies.booleans())
def test_an_answer_is_looked_for_as_published(context, begin, length, is_copied):
    answer = context[max(begin, 0) : max(begin, 0) + length] if is_copied else "ab."[:length]
    question, skipped = squad_files._for_training(  # pylint: disable=protected-access
        squad_files.Question("q", "a?", 0, (answer,), (begin,), False), context
    )
    if reference_squad.can_be_trained_on(context, answer, begin):
        assert skipped is None and question.exact_span is None
    elif answer.strip() and begin >= 0 and context.startswith(answer, begin):
        assert skipped is None and question.exact_span == (begin, begin + len(answer))
    elif skipped is None:
        first, end = question.exact_span
        assert first == begin and context[first:end].split() == answer.split() != []


EXOTIC = "\u00a0\u2009\u3000\u2028\u205f\x0b\x0c\x1c\x1f\x85\u1680"


def test_an_answer_that_stands_at_answer_start_is_the_pieces_of_its_characters(read):
    """White space, invisible characters and the spelling of accents do not matter."""
    wanted, paragraphs = [], []
    for space in EXOTIC:
        paragraphs.append((f"The cat sat{space}the{space}cat.", ("who?", f"sat{space}the", 8)))
        # The tokenizer takes control characters away, and makes one word of what is left.
        wanted.append(["sat", "##the" if unicodedata.category(space) == "Cc" else "the"])
    for context, answer, begin, pieces in CASES["answers"]:
        paragraphs.append((context, ("who?", answer, begin)))
        wanted.append(pieces)
    data = read(document(*paragraphs))
    assert data.skipped_questions == {}
    made = features.make_features(data, VOCABULARY, features.WindowRules(40, 10, 6))
    found = [answer_in(made, row) for row in range(len(made))]
    assert [(ours, right) for ours, right in zip(found, wanted) if ours != right] == []
    assert made.start_positions[-1] == made.first_lengths[-1] + 2  # its own cat
    # What does not stand there is still left out.
    asked = [("a?", "sat\u00a0cat", 4), ("b?", "cat\u00a0sat", 2), ("c?", "\u00a0", 7)]
    paragraphs = ("the cat\u00a0sat", *asked), ("\u3000 the", ("d?", "cat\u00a0the", 0))
    data = read(document(*paragraphs))
    assert [question.text for question in data.questions] == ["c?"], data.skipped_questions


# ------------------------------------------------------------------------------------------------------------
# Characters of word pieces


def spans(word, vocabulary):
    lower = vocabulary.do_lower_case
    numbers = reference_wordpiece.tokenize(word, vocabulary.ids, lower)
    pieces = [vocabulary.words[number] for number in numbers]
    begins, ends = features.align(word, pieces, lower)
    return [(piece, word[begin:end]) for piece, begin, end in zip(pieces, begins, ends)]


def test_pieces_know_their_characters():
    failures = []
    for name, vocabulary in (("uncased", VOCABULARY), ("cased", CASED)):
        for word, expected in CASES[name].items():
            if spans(word, vocabulary) != list(map(tuple, expected)):
                failures.append((word, spans(word, vocabulary)))
    assert not failures
    # Pieces that do not follow from the word get all of it.
    assert features.align("abc", ["x", "##y", "z"]) == ([0, 0, 0], [3, 3, 3])
    # Pieces may share a character; here are three of them, and three in normal form.
    hangul = (*vocabulary_lib.SPECIAL_TOKENS, "\u1112", "##\u1161", "##\u11ab")
    hangul = vocabulary_lib.Vocabulary(hangul, "")
    found, _ = features.tokenize(["\u200b\u200b한"], [], WordPiece(hangul), hangul)
    assert (found.piece_begins.tolist(), found.piece_ends.tolist()) == ([2] * 3, [3] * 3)


# ------------------------------------------------------------------------------------------------------------
# Features


def expected_features(data, vocabulary, rules):
    """Returns the windows of all questions by the plain implementation, each with its question's number."""
    result, settings = [], {**dataclasses.asdict(rules), "do_lower_case": vocabulary.do_lower_case}
    for number, question in enumerate(data.questions):
        answer = None
        if data.for_training and not question.is_impossible:
            answer = question.answers[0], question.answer_starts[0]
        context = data.contexts[question.context]
        own = {"question": number, "is_impossible": int(question.is_impossible)}
        windows = reference_squad.features(question.text, context, answer, vocabulary.ids, **settings)
        result += [window | own for window in windows]
    return result


tokenizer_of = functools.cache(WordPiece)  # making one takes longer than using it


def assert_as_published(data, vocabulary, rules):
    made = features.make_features(data, vocabulary, rules, tokenizer_of(vocabulary))
    expected = expected_features(data, vocabulary, rules)
    assert len(made) == len(expected)
    columns, is_token = np.arange(rules.max_seq_length), made.is_context()
    batch = vars(made) | {
        "input_mask": columns < made.lengths[:, None],
        "segment_ids": (columns >= made.first_lengths[:, None]) & (columns < made.lengths[:, None]),
        "question": made.question_numbers,
        "is_max_context": answers.is_max_context(made),
        "is_context": is_token,
    }
    for name in expected[0] if expected else ():
        np.testing.assert_array_equal(batch[name], [window[name] for window in expected], err_msg=name)
    return made


_WORDS = "the The S\u0301 cat cat, (1895-1943). Steve Smith's é 中文 zoo \u200b \x00 12% ...".split(" ")
_WORDS += ["\u00a0", "a\u00a0b", "\u202f"]
CONTEXT = strategies.lists(strategies.sampled_from(_WORDS), max_size=30).map(" ".join)


@strategies.composite
def squad_data(draw):
    """Data as they are read: contexts of repeated words, questions, and answers that are stretches of the
    contexts."""
    contexts = draw(strategies.lists(CONTEXT, min_size=1, max_size=3))
    questions = []
    for context in sorted(draw(strategies.lists(strategies.integers(0, len(contexts) - 1), max_size=5))):
        text = draw(strategies.sampled_from(["who?", "the cat the cat the cat?", " ", "\u200b", "zoo"]))
        begin = draw(strategies.integers(0, 40))
        answer = contexts[context][begin : begin + draw(strategies.integers(1, 12))]
        is_impossible = draw(strategies.booleans())
        if is_impossible or reference_squad.can_be_trained_on(contexts[context], answer, begin):
            name = f"q{len(questions)}"
            questions.append(squad_files.Question(name, text, context, (answer,), (begin,), is_impossible))
    return squad_files.SquadData("", "", draw(strategies.booleans()), True, contexts, questions, {}, [])


SIZES = ((24, 5, 6), (12, 3, 8), (20, 30, 6), (200, 7, 20))
CHECKS = list(hypothesis.HealthCheck)


@hypothesis.settings(deadline=None, derandomize=True, max_examples=150, suppress_health_check=CHECKS)
@hypothesis.given(squad_data(), strategies.sampled_from(SIZES), strategies.sampled_from([VOCABULARY, CASED]))
def test_features_are_the_published_ones(data, sizes, vocabulary):
    assert_as_published(data, vocabulary, features.WindowRules(*sizes))


def test_a_much_shorter_window_must_show_a_piece_better_by_more(read):
    """Here the 0.01 of the window's length counts: lengths differ by 100, and scores by 1 for questions of an
    odd number of pieces."""
    asked = ("who?", "the", 400), ("a a a", "the", 400)
    data = read(document(*[("the " * count, *asked) for count in range(380, 760, 30)]))
    assert_as_published(data, VOCABULARY, features.WindowRules())


def real_data(name="dev-v1.1.json", step=1, **settings):
    """Returns every `step`-th question of a file of real data."""
    path = TEST_DATA / "squad" / name
    if not path.exists():
        pytest.skip(f"{path} is not there; BERT_TEST_DATA names the folder of real data")
    data = squad_files.read_squad(str(path), **READ | settings)
    return dataclasses.replace(data, questions=data.questions[::step])


@pytest.mark.parametrize(
    "name, step, training", [("1.1", 150, True), ("1.1", 170, False), ("2.0", 180, True)]
)
def test_features_of_real_data_are_the_published_ones(real_vocabulary, name, step, training):
    settings = {"for_training": training, "version_2_with_negative": name == "2.0"}
    data = real_data(f"dev-v{name}.json", step, **settings)
    made = assert_as_published(data, real_vocabulary, features.WindowRules())
    assert len(made) >= len(data.questions) > 60
    few = dataclasses.replace(data, questions=data.questions[::5])
    made = assert_as_published(few, real_vocabulary, features.WindowRules(96, 32, 16))
    assert len(made) > 2 * len(few.questions)


def test_real_answers_come_back_from_their_positions(real_vocabulary):
    data = real_data()
    assert not data.skipped_questions
    made = features.make_features(data, real_vocabulary, features.WindowRules())
    rows = np.flatnonzero(made.start_positions)
    offsets = (made.first_pieces - made.first_lengths)[rows]
    begins = made.piece_begins[offsets + made.start_positions[rows]].tolist()
    ends = made.piece_ends[offsets + made.end_positions[rows]].tolist()
    is_exact = {}
    for number, begin, end in zip(made.question_numbers[rows].tolist(), begins, ends):
        question = data.questions[number]
        is_exact[number] = data.contexts[question.context][begin:end] == question.answers[0]
    assert len(is_exact) > 0.99 * len(data.questions) and sum(is_exact.values()) > 0.99 * len(is_exact)


def answer_in(made, row):
    numbers = made.input_ids[row, made.start_positions[row] : made.end_positions[row] + 1]
    return [VOCABULARY.words[number] for number in numbers]


def test_a_context_of_100_kilobytes_is_cut_into_windows_that_hold_all_of_it(read):
    asked = ("the cat (sat) " * 7200, ("who?", "sat", 99_997)), ("x" * 100_000, ("who?", "x" * 9, 50_000))
    data = read(document(*asked))
    made = features.make_features(data, VOCABULARY, features.WindowRules())
    assert answers.is_max_context(made)[made.question_numbers == 0].sum() == 7200 * 5
    np.testing.assert_array_equal(made.first_pieces[:-1], 128 * np.arange(len(made) - 1))
    assert {tuple(answer_in(made, row)) for row in np.flatnonzero(made.start_positions[:-1])} == {("sat",)}
    assert answer_in(made, len(made) - 1) == ["[UNK]"]


def test_chunks_do_not_show_in_the_features(read, monkeypatch):
    paragraphs = [("the cat (sat) " * count, *[("who?", "cat", 4)] * (count % 3)) for count in range(1, 9)]
    data = read(document(*paragraphs))
    whole = features.make_features(data, VOCABULARY, RULES)
    monkeypatch.setattr(features, "_CHUNK_CONTEXTS", 2)
    assert_same(features.make_features(data, VOCABULARY, RULES), whole)


def assert_same(found, expected):
    for name, array in vars(expected).items():
        np.testing.assert_array_equal(vars(found)[name], array, err_msg=name)
        assert vars(found)[name].dtype == array.dtype, name


def test_rules_that_leave_no_room_are_an_error(read, tmp_path):
    data = read(document(("the cat", ("who?", "cat", 4))))
    cases = (
        ({"max_seq_length": 67}, "--max_seq_length=67 leaves no room .*--max_query_length=64.* 68 or more"),
        ({"doc_stride": 0}, "--doc_stride=0 is out of range"),
        ({"max_query_length": 0}, "--max_query_length=0 is out of range"),
    )

    def load(rules):
        features.load_or_make_features(data, VOCABULARY, features.WindowRules(**rules), str(tmp_path))

    assert_refused(load, cases)


# ------------------------------------------------------------------------------------------------------------
# The cache


@pytest.fixture
def data(read):
    return read(document(("the cat sat", ("who?", "cat", 4), ("what?", "dog", 4))))


def made_again(data, cache_dir, vocabulary=VOCABULARY, rules=RULES):
    """Returns whether features are made, and not read, when they are asked for."""
    original = features.make_features
    with mock.patch.object(features, "make_features", side_effect=original) as make:
        found = features.load_or_make_features(data, vocabulary, rules, str(cache_dir))
    assert_same(found, original(data, vocabulary, rules))
    return make.called


def test_features_are_made_once_and_again_where_they_are_of_something_else_or_not_whole(data, tmp_path):
    assert made_again(data, tmp_path) and not made_again(data, tmp_path)
    folder = tmp_path / "24_5_6_SQuAD11_train"
    assert sorted(path.name for path in folder.iterdir()) == ["features.npz", "manifest.json"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["skipped_questions"] == {"q1": "answer not in the context at answer_start"}
    flags = {**dataclasses.asdict(RULES), "version_2_with_negative": False, "for_training": True}
    assert manifest["questions"] == 1 and manifest["flags"] == flags
    evaluated = dataclasses.replace(data, for_training=False, version_2_with_negative=True)
    assert features.cache_name(evaluated, features.WindowRules()) == "384_128_64_SQuAD20_eval"
    for other in (
        {"rules": features.WindowRules(24, 6, 6)},  # in a folder of its own
        {"vocabulary": vocabulary_lib.Vocabulary(tuple(PIECES[::-1]), sha256="another")},
        {"vocabulary": dataclasses.replace(VOCABULARY, do_lower_case=False)},
        {"data": dataclasses.replace(data, sha256="another")},
    ):
        arguments = {"data": data, "cache_dir": tmp_path}
        assert made_again(**{**arguments, **other}), other
        assert made_again(**arguments) == ("rules" not in other), other
    whole = (folder / "features.npz").read_bytes()
    for name, content in (("features.npz", whole[:-9]), ("manifest.json", b"{"), ("manifest.json", b"[]")):
        (folder / name).write_bytes(content)
        assert made_again(data, tmp_path), name
    (folder / "features.npz").unlink()
    assert made_again(data, tmp_path) and not made_again(data, tmp_path)


def test_a_write_that_fails_leaves_nothing_and_says_where(data, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    message = "the features cannot be written to .*file/24_5_6_SQuAD11_train: Not a directory"
    with pytest.raises(ConfigError, match=message):
        features.load_or_make_features(data, VOCABULARY, RULES, str(tmp_path / "file"))

    monkeypatch.setattr(os, "replace", mock.Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(ConfigError, match="No space left on device"):
        features.load_or_make_features(data, VOCABULARY, RULES, str(tmp_path / "cache"))
    assert list((tmp_path / "cache" / "24_5_6_SQuAD11_train").iterdir()) == []
