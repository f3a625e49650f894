"""Tags of words: schemes, spans, scores, files, and windows."""

import json
import pathlib

import numpy as np
import pytest

from official.data.tables import tags
from official.data.word_pieces.vocabulary import Vocabulary
from official.data.word_pieces.wordpiece import WordPiece
from official.io.errors import ConfigError
from tests.refusals import assert_refused

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##x", "##y", "anna", "berlin", ".")


def test_scores_equal_seqeval():
    """`seqeval.jsonl` holds what seqeval 1.2.2 says of random tags, by default and strictly."""
    failures = []
    for line in pathlib.Path(__file__).with_name("seqeval.jsonl").read_text().splitlines():
        case = json.loads(line)
        pair = [[text.split() for text in case[name]] for name in ("true", "called")]
        found, _ = tags.scores(*pair, case["scheme"])
        for mode, prefix in (("default", ""), ("strict", "strict_")):
            own = [found[prefix + name] for name in ("precision", "recall", "f1")]
            if not np.allclose(own, case[mode], atol=1e-6):
                failures.append((case, mode, own))
    assert not failures, failures[:3]


def read_text(path, text, with_tags=True, columns=(None, None)):
    path.write_text(text)
    return tags.read_sentences(str(path), "train_file", with_tags, columns)


def sentence(text):
    return tags.Sentence(["w"] * len(text.split()), text.split())


def test_schemes_are_found_and_checked():
    for text, scheme in (
        ("B-X I-X O B-Y", tags.IOB2),
        ("I-X I-X O I-Y B-Y", tags.IOB1),
        ("B-X E-X O S-Y", tags.IOBES),
        ("NOUN VERB NOUN", tags.WORDS),
    ):
        assert tags.find_scheme([sentence(text)], "x") == scheme, text
    refused = ["b-x i-x O", "b-x i-x o", "B-X E-X O I-Y", "B-X VERB", "S-X B-Y O", "X-B X-I O", "B_X I_X O"]
    for text in (*refused, "U-X O", "B-X L-X O"):
        with pytest.raises(ConfigError):
            tags.find_scheme([sentence(text)], "x")
    # A slip in a file of one scheme is named, not all that the other scheme does not have.
    good, slip = [sentence("B-X I-X O B-Y")] * 3, sentence("O I-Y")
    with pytest.raises(ConfigError, match="sentence 4: 'I-Y' after 'O', which IOB2"):
        tags.find_scheme([*good, slip], "x")
    with pytest.raises(ConfigError, match=r"sentence 2 \(and 1 more\): 'B-X' after 'O', which IOB1"):
        tags.find_scheme([slip, sentence("O B-X"), slip, slip, sentence("O B-X")], "x")


def test_a_model_has_the_scheme_of_the_sentences_that_it_is_scored_on():
    names = ("O", "B-X", "I-X")
    for text, scheme in (("I-X O I-X B-X", tags.IOB1), ("B-X I-X O", tags.IOB2), ("O I-X", tags.IOB1)):
        assert tags.scheme_of(names, [sentence(text)]) == scheme, text
    for others in ([], [sentence("I-X O"), sentence("B-X")]):  # of no sentence; of sentences of neither
        assert tags.scheme_of(names, others) == tags.IOB2


def test_conll_files_are_read(tmp_path):
    def read(text, **settings):
        return read_text(tmp_path / "a.conll", text, **settings)

    first, second = read("-DOCSTART- O\n\nAnna NNP B-PER\n. . O\n\t\nBerlin NNP B-LOC\n")
    assert (first.words, first.tags, second.words) == (["Anna", "."], ["B-PER", "O"], ["Berlin"])
    found = read("# id 7 domain=a\nAnna _ _ B-PER\n\n# sent_id = 2\nis _ _ O\n")  # of MultiCoNER
    assert [one.words for one in found] == [["Anna"], ["is"]]
    assert [one.tags for one in read("Anna\n.\n\nBerlin\n", with_tags=False)] == [None, None]
    numbers = "the first column numbers the words"
    cases = (
        ("Anna\n.\n", "a word and its tag"),
        ("Anna B-PER\nBerlin\n", ":2: 1 columns"),
        ("1 Anna B-PER\n2 . O\n\n1 Berlin B-LOC\n", numbers),
        ("1 Anna B-PER\n1 . O\n\n2 Berlin B-LOC\n", f"{numbers} or sentences"),
        ("bc/1 0 Anna B-PER\nbc/1 1 . O\n\nbc/2 0 a O\n", "is the same in all lines of a sentence"),
        ("word\tpos_tags\nAnna\tNNP\n", "begins with a header"),
        ("1-2 du _\n1 de O\n2 le O\n2.1 Lac B-LOC\n3 . O\n", numbers),
        ("O\tis\nB-PER\tAnna\n\nO\t.\n", "the first column has the tags"),  # of MIT's corpora
        ("T1\tPER 0 4\tAnna\nT2\tLOC 9 15\tBerlin\n", "annotations of brat"),
    )
    assert_refused(read, cases)
    read("ha O\nha O\n\nAnna B-PER\n\n1 O\n2 O\n")
    assert tags.open_conll(f"{tmp_path}/a.conll", "input_file").columns == ("tokens", "tags")
    (tmp_path / "b.conll").write_text("word\ttags\nAnna\tO\n")
    with pytest.raises(ConfigError, match="b.conll begins with a header"):
        tags.open_conll(f"{tmp_path}/*.conll", "input_file")
    lists = ("['Anna', 'is']", "['Anna'\n 'is']", '["Anna"]')  # in CSV, and NumPy's
    assert_refused(tags.sentence_of, ((text, "is a list of words, written as a text") for text in lists))
    assert tags.sentence_of("['s] [x]").tags is None


def test_json_with_tokens_and_with_spans_is_the_same(tmp_path):
    def read(*rows, **settings):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        return read_text(tmp_path / "a.jsonl", text, **settings)

    entity = {"start": 0, "end": 4, "label": "PER"}
    tokens = {"tokens": ["Anna", "."], "tags": ["B-PER", "O"]}
    spans = {"text": "Anna.", "entities": [entity]}
    prodigy = {"text": "Anna.", "spans": [entity], "answer": "accept"}
    for row in (tokens, spans, prodigy):
        (found,) = read(row)
        assert (found.words, found.tags) == (["Anna", "."], ["B-PER", "O"]), row
    assert read({"tokens": ["1998", "7"], "tags": ["O", "O"]})[0].words == ["1998", "7"]
    # UTF-16 counts the smiley twice; every ideograph is a word, which no span cuts.
    place = {"label": "LOC", "text": "\u5317\u4eac"}
    smiley, cut = (
        {"text": "\U0001f600\u5317\u4eac\u3002", "entities": [{**place, "start": start, "end": start + 2}]}
        for start in (1, 2)
    )
    assert read(smiley)[0].tags == ["O", "B-LOC", "I-LOC", "O"]
    # Without tags, or with those of another column.
    none = {"tokens": ["a", "b"], "tags": ["O", None]}
    both = {"tokens": ["Anna"], "tags": ["NOUN"], "ner_tags": ["B-PER"]}
    assert read(none, with_tags=False)[0].tags is None
    assert read(both, with_tags=False)[0].words == ["Anna"]
    assert read(both, columns=(None, "tags"))[0].tags == ["NOUN"]
    untagged = ((tokens, {"tokens": ["a"]}), (spans, {"text": "a", "entities": None}))
    for rows in untagged:
        assert read(*rows, with_tags=False)[1].tags is None
    cases = [
        (cut, "the span '\u5317\u4eac' is '\u4eac\u3002' from 2 to 4"),
        ({**prodigy, "answer": "reject"}, "row 1: answer is 'reject'"),
        (none, "row 1: 2 words with the tags "),
        *((*rows, "row 2: it has no (tags|entities)") for rows in untagged),
        ({"tokens": ["a", "b", "c"], "tags": "O-O"}, "3 words with the tags 'O-O', expected a list"),
        ({"text": "Anna.", "entities": 5}, "span 5, expected start"),
        (both, "has the columns tags and ner_tags. Name one with --label_column"),
        ({"text": "Annabel", "entities": [entity]}, "cuts a word"),
    ]
    told = "row 1: 1 words with the tags .*one for each word"
    cases += [({"tokens": ["a"], "tags": wrong}, told) for wrong in (["O", "O"], [None], 5, "O")]
    assert_refused(read, cases)


def test_long_sentences_are_windows_that_join_to_every_word():
    vocabulary = Vocabulary(WORDS, "")
    generator = np.random.default_rng(0)
    sentences = [
        [str(word) for word in generator.choice(["a", "ax", "bxy", "c", "\u0001"], count)]
        for count in (3, 40, 17, 1)
    ]
    windows = tags.make_windows(sentences, WordPiece(vocabulary), vocabulary, 12)
    assert windows.lengths_N.max() <= 12
    labels = [np.arange(len(words)) + 100 * number for number, words in enumerate(sentences)]
    joined = windows.joined(windows.labels(labels), [len(words) for words in sentences])
    assert all((one == other).all() for one, other in zip(joined, labels))
    long = tags.make_windows([["a" + "x" * 30]], WordPiece(vocabulary), vocabulary, 12)
    assert long.lengths_N.tolist() == [3 if long.ids_T[1] == 1 else 12]


def test_entities_have_the_characters_of_the_text():
    text = "Anna lives in  Berlin."
    one = tags.with_spans(text, [], "x")
    bilou = tags.spans(["U-PER", "U-PER", "B-PER", "L-PER", "U-PER"])
    assert [(each.start, each.end) for each in bilou] == [(0, 1), (1, 2), (2, 4), (4, 5)]
    called = ["B-PER", "O", "O", "B-LOC", "O"]
    found = tags.entities(one, called, [0.9] * 5, tags.IOB2)
    places = [(each["text"], text[each["start"] : each["end"]]) for each in found]
    assert places == [("Anna", "Anna"), ("Berlin", "Berlin")]
