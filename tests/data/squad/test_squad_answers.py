"""SQuAD: from logits to answers, compared with a plain implementation of the published rules, and the files
of predictions.
"""

import json
import string

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from official.data.squad import answers, evaluation, features, squad_files
from official.data.word_pieces import vocabulary as vocabulary_lib
from official.data.word_pieces.wordpiece import WordPiece
from tests import reference_squad
from tests.refusals import assert_refused

LETTERS = string.ascii_lowercase
WORDS = (*LETTERS, *(f"##{letter}" for letter in LETTERS), "cat", "steve", "smith", *"'(),.?")
VOCABULARY = vocabulary_lib.Vocabulary((*vocabulary_lib.SPECIAL_TOKENS, *WORDS), sha256="of no file")
RULES = answers.AnswerRules()
CONTEXT = "Steve Smith's cat, (Tom), is a cat."
REPEATED = "cat Steve cat's (a) cat. (a) Steve cat cat Steve (a) cat's . . cat"
LONG_CONTEXT = "one two three four (five), six seven eight nine ten eleven twelve. " * 3
SHORT = features.WindowRules(max_seq_length=30, doc_stride=7, max_query_length=6)
TOKENIZER = WordPiece(VOCABULARY)


def make(*asked, rules=SHORT):
    """Returns data and features of (context, question) pairs."""
    contexts = list(dict.fromkeys(context for context, _ in asked))
    asked = sorted(asked, key=lambda pair: contexts.index(pair[0]))
    questions = [
        squad_files.Question(f"q{number}", text, contexts.index(context), (), (), False)
        for number, (context, text) in enumerate(asked)
    ]
    data = squad_files.SquadData("", "", False, True, contexts, questions, {}, [])
    return data, features.make_features(data, VOCABULARY, rules, TOKENIZER)


def logits_for(made, first, last):
    """Returns logits that are 9 at the first and last piece of an answer, and 0 elsewhere."""
    tokens = [VOCABULARY.words[number] for number in made.input_ids[0, : made.lengths[0]]]
    start, end = np.zeros((2, *made.input_ids.shape), np.float32)
    start[0, tokens.index(first)] = end[0, len(tokens) - 1 - tokens[::-1].index(last)] = 9
    return start, end


def random_logits(made, seed, ties=False):
    generator, shape = np.random.default_rng(seed), (2, *made.input_ids.shape)
    logits = generator.integers(-2, 3, shape) if ties else generator.normal(size=shape) * 3
    return logits.astype(np.float32)


def test_an_answer_is_a_stretch_of_the_context_and_there_is_always_one():
    data, made = make((CONTEXT, "a?"), rules=features.WindowRules(40, 7, 6))
    for first, last, text in (
        ("steve", "smith", "Steve Smith"),  # not the 's that stands in the same word
        ("(", ")", "(Tom)"),
        ("##o", "##m", "om"),
        ("cat", "cat", "cat, (Tom), is a cat"),
    ):
        found = answers.answer_questions(*logits_for(made, first, last), made, data, RULES)
        assert found.predictions == {"q0": text} and found.nbest["q0"][0].text == text
        assert found.null_odds is None
    # The best start is the last piece, the best end the first.
    start, end = np.zeros((2, *made.input_ids.shape), np.float32)
    start[0, made.lengths[0] - 2] = end[0, made.first_lengths[0]] = 9
    found = answers.answer_questions(start, end, made, data, answers.AnswerRules(n_best_size=1))
    assert found.nbest == {"q0": [answers.Entry("Steve", 1.0, 0.0, 9.0)]}


ONE_OF = strategies.sampled_from
CONTEXTS = strategies.lists(ONE_OF([CONTEXT, LONG_CONTEXT, REPEATED, "cat"]), min_size=1, max_size=3)
ANSWER_RULES = strategies.tuples(ONE_OF([1, 3, 7, 20, 40]), ONE_OF([1, 2, 5, 30]), strategies.booleans())


@hypothesis.settings(deadline=None, derandomize=True, max_examples=100)
@hypothesis.given(CONTEXTS, strategies.integers(0, 2**16), strategies.booleans(), ANSWER_RULES)
def test_the_n_best_lists_are_those_of_the_plain_search(contexts, seed, ties, rules):
    data, made = make(*zip(contexts, ("who?", "how much?", "is it?")))
    assert_as_plain(data, made, random_logits(made, seed, ties), answers.AnswerRules(*rules))


def assert_as_plain(data, made, logits, rules):
    found = answers.answer_questions(*logits, made, data, rules)
    offsets, may_start = made.first_pieces - made.first_lengths, answers.is_max_context(made)
    may_end, (starts, ends) = made.is_context(), (values.astype(float).tolist() for values in logits)
    for number, question in enumerate(data.questions):
        rows = np.flatnonzero(made.question_numbers == number).tolist()
        windows = [{"is_max_context": may_start[row], "is_context": may_end[row]} for row in rows]

        def text_of(window, first, last, rows=rows, context=data.contexts[question.context]):
            offset = offsets[rows[window]]
            return context[made.piece_begins[offset + first] : made.piece_ends[offset + last]]

        own = [starts[row] for row in rows], [ends[row] for row in rows]
        expected = reference_squad.n_best(windows, text_of, *own, rules.n_best_size, rules.max_answer_length)
        if not expected:
            pieces = [
                (window, token) for window, row in enumerate(rows) for token in np.flatnonzero(may_start[row])
            ]
            window, token = max(pieces, key=lambda at: own[0][at[0]][at[1]] + own[1][at[0]][at[1]])
            expected = [(text_of(window, token, token), own[0][window][token], own[1][window][token])]
        best = expected[0]
        assert found.best_texts[question.id] == best[0]
        if rules.version_2_with_negative:
            null = min(((starts[row][0], ends[row][0]) for row in rows), key=sum)
            assert found.null_odds[question.id] == pytest.approx(sum(null) - best[1] - best[2], abs=1e-9)
            expected = reference_squad.with_null(expected, null, rules.n_best_size)
        assert [entry[:1] + entry[2:] for entry in found.nbest[question.id]] == expected
        powers = np.exp([start + end for _, start, end in expected])
        probabilities = [entry.probability for entry in found.nbest[question.id]]
        np.testing.assert_allclose(probabilities, powers / powers.sum(), rtol=1e-6)


def test_blocks_types_and_columns_of_padding_do_not_show_in_the_answers(monkeypatch):
    data, made = make((LONG_CONTEXT, "who?"), (CONTEXT, "who?"), (LONG_CONTEXT, "what is it?"))
    half = random_logits(made, 7).astype(np.float16)
    rules = answers.AnswerRules(version_2_with_negative=True)
    whole = answers.answer_questions(*half.astype(np.float64), made, data, rules)
    assert answers.answer_questions(*half, made, data, rules) == whole
    monkeypatch.setattr(answers, "_BLOCK_ROWS", 3)
    assert answers.answer_questions(*half, made, data, rules) == whole
    data, made = make((CONTEXT, "who?"), rules=features.WindowRules(60, 7, 6))
    logits, longest = random_logits(made, 5), made.lengths.max()
    whole = answers.answer_questions(*logits, made, data, rules)
    assert longest < 60 and answers.answer_questions(*logits[:, :, :longest], made, data, rules) == whole


# ------------------------------------------------------------------------------------------------------------
# No answer


def test_no_answer_must_be_better_by_more_than_the_threshold():
    data, made = make((CONTEXT, "who?"), rules=features.WindowRules(40, 7, 6))
    start, end = logits_for(made, "steve", "smith")
    for null, threshold, expected in (
        (17, 0.0, "Steve Smith"),
        (19, 0.0, ""),
        (19, 1.0, "Steve Smith"),
        (18, 0.0, "Steve Smith"),
        (17, -2.0, ""),
    ):
        start[:, 0] = null
        rules = answers.AnswerRules(version_2_with_negative=True, null_score_diff_threshold=threshold)
        found = answers.answer_questions(start, end, made, data, rules)
        assert found.null_odds == {"q0": null - 18.0}
        assert found.predictions == {"q0": expected}
        assert found.best_texts == {"q0": "Steve Smith"}


def test_the_best_threshold_of_real_odds_is_the_best():
    """Chooses the threshold among all by trying each."""
    names = ("Tom", "Steve", "Kim", "Li", "Bo", "Al", "Jo", "Ed")
    asked = [(f"{name} has a cat.", f"who {name}?") for name in names]
    data, made = make(*asked, rules=features.WindowRules(40, 7, 6))
    gold = {f"q{number}": [name] if number % 3 else [] for number, name in enumerate(names)}
    rules = answers.AnswerRules(version_2_with_negative=True, max_answer_length=4)
    for seed in range(8):
        found = answers.answer_questions(*random_logits(made, seed), made, data, rules)
        lowest = min(found.null_odds.values()) - 1
        given = gold, found.best_texts, found.null_odds
        best = evaluation.best_thresholds(*given, lowest)
        tried = {each: evaluation.evaluate_v2(*given, each) for each in (lowest, *found.null_odds.values())}
        for name in ("exact", "f1"):
            assert best[f"best_{name}"] == pytest.approx(max(values[name] for values in tried.values()))
            assert tried[best[f"best_{name}_thresh"]][name] == pytest.approx(best[f"best_{name}"])


def test_a_question_that_cannot_be_asked_is_answered_with_nothing():
    whole = [(CONTEXT, " "), (CONTEXT, "who?"), ("", "who?"), (" \u200b", "who?")]
    for asked in (whole, whole[:1]):
        data, made = make(*asked)
        for version_2 in (False, True):
            rules = answers.AnswerRules(version_2_with_negative=version_2)
            found = answers.answer_questions(*random_logits(made, 8), made, data, rules)
            for name in ["q0", "q2", "q3"][: len(asked)]:
                assert found.predictions[name] == "" and found.best_texts[name] == ""
                assert found.nbest[name] == [answers.Entry("", 1.0, 0.0, 0.0)]
                assert not version_2 or found.null_odds[name] == answers.NO_WINDOW_ODDS


# ------------------------------------------------------------------------------------------------------------
# Files and errors


def test_the_files_hold_what_was_found(tmp_path):
    data, made = make((CONTEXT, "who?"), ("Zoë's “cat”", "wer?"))
    names = ["nbest_predictions.json", "null_odds.json", "predictions.json"]
    for version_2 in (False, True):
        rules = answers.AnswerRules(version_2_with_negative=version_2)
        found = answers.answer_questions(*random_logits(made, 9), made, data, rules)
        folder = tmp_path / str(version_2)
        paths = answers.write_answers(found, str(folder))
        assert sorted(paths) == [str(folder / name) for name in names if version_2 or "null" not in name]
        values = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.iterdir()}
        nbest = {name: [entry._asdict() for entry in entries] for name, entries in found.nbest.items()}
        assert values.pop("predictions.json") == found.predictions
        assert values.pop("nbest_predictions.json") == nbest
        assert values == ({"null_odds.json": found.null_odds} if version_2 else {})
    assert list(nbest["q0"][0]) == ["text", "probability", "start_logit", "end_logit"]


def test_logits_must_be_finite_and_of_the_features_and_rules_in_range():
    data, made = make((LONG_CONTEXT, "who?"))
    start, end = random_logits(made, 10)
    infinite = end.copy()
    infinite[2, 3] = np.nan
    shape = r"start logits have the shape \(\d+, 30\)\. Expected \d+ rows, one per feature, of 30 to 30"
    cases = (
        ((start[1:], end), RULES, shape),
        ((start, end[:, :-1]), RULES, "end logits have the shape"),
        ((start, infinite), RULES, "end logits of feature 1000000002 are not finite, nor those of 0 others"),
        ((start, end), answers.AnswerRules(n_best_size=0), "--n_best_size=0 is out of range"),
        ((start, end), answers.AnswerRules(max_answer_length=0), "--max_answer_length=0 is out of range"),
    )
    assert_refused(lambda logits, rules: answers.answer_questions(*logits, made, data, rules), cases)
