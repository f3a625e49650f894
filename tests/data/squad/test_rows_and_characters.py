"""Questions in rows, and answers that are scored by characters."""

import json

import pytest

from official.data.squad import evaluation, squad_files
from official.io.errors import ConfigError

CONTEXT = "\u6218\u56fd\u65e0\u53cc3\u662f\u5149\u8363\u548c\u03c9-force\u5f00\u53d1\u7684\u6e38\u620f\u3002"


def test_rows_are_read_as_squads_json_is(tmp_path):
    answer = {"text": "\u5149\u8363", "answer_start": CONTEXT.index("\u5149\u8363")}
    paragraphs = [{"context": CONTEXT, "qas": [{"id": "1", "question": "\u8c01\uff1f", "answers": [answer]}]}]
    nested, flat = tmp_path / "a.json", tmp_path / "b.jsonl"
    nested.write_text(json.dumps({"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}))
    expected = squad_files.read_squad(str(nested), "train_file", True, False)
    failures = []
    for answers in (
        [answer],
        {"text": [answer["text"]], "answer_start": [answer["answer_start"]]},
        [answer["text"]],
        answer["text"],
    ):
        flat.write_text(
            json.dumps({"context": CONTEXT, "question": "\u8c01\uff1f", "answers": answers}) + "\n"
        )
        found = squad_files.read_squad(str(flat), "train_file", True, False)
        if (found.contexts, found.questions) != (expected.contexts, expected.questions):
            failures.append((answers, found.questions))
    assert not failures
    assert squad_files.read_gold_answers(str(flat)).answers == {"1": ["\u5149\u8363"]}
    flat.write_text(json.dumps({"context": CONTEXT, "question": "?", "answers": []}) + "\n")
    with pytest.raises(ConfigError, match="impossible"):
        squad_files.read_squad(str(flat), "train_file", True, False)
    assert squad_files.read_squad(str(flat), "train_file", True, True).questions[0].is_impossible


def test_scores_by_characters_follow_cmrc():
    gold = {
        "a": ["\u5149\u8363\u548c\u03c9-force"],  # 3 ideographs and a word
        "b": ["\u5317\u4eac\u3002"],
        "c": ["2,900 \u4eba", "\u4eba"],
        "d": [],
        "e": ["\u4e2d\u56fd"],
    }
    predictions = {"a": "\u5149\u8363", "b": "\u5317\u4eac", "c": "\u4eba", "d": "", "e": "\u65e5\u672c"}
    scores = evaluation.score_characters(gold, predictions)
    assert scores.exact == {"a": 0, "b": 1, "c": 1, "d": 1, "e": 0}
    assert scores.f1 == pytest.approx({"a": 2 / 3, "b": 1, "c": 1, "d": 1, "e": 0})


def test_the_unit_follows_from_the_answers():
    assert evaluation.unit_of({"a": ["\u5317\u4eac"]}) == "characters"
    assert evaluation.unit_of({"a": ["Paris"], "b": ["\u4eac"]}) == "words"
