"""The page about a data set: one file, whole with whatever is known of the data."""

import re

import pytest

from official.reporting import data_card
from tests.reporting.test_report import PageReader

MANIFEST = {
    "flags": {"dupe_factor": 10, "side": "train", "eval_share": 0.005, "vocab_file": "<vocab>"},
    "input_bytes": 4_100_000,
    "documents": 152,
    "sentences": 29_561,
    "tokens": 867_266,
    "document_lengths": {"2": 1, "8192": 100, "16384": 51},
    "unknown_share": 0.0001,
    "skipped_lines": 7,
    "undecodable_bytes": 3,
    "duplicate_documents": 4,
    "other_side_documents": 2,
    "sources": {"books": {"documents": 3, "wanted_share": 0.3}, "wiki": {"documents": 9, "tokens": 5}},
    "inputs": {"a<b>.txt": {"undecodable_bytes": 3}, "c.txt": {"undecodable_bytes": 0}},
    "instances": 100,
    "random_next": 52,
    "lengths": {"5": 10, "128": 90},
    "file_bytes": {"part": 76_009_364},
}
RECORDS = {
    "record_format": "plain",
    "max_seq_length": 128,
    "max_predictions_per_seq": 20,
    "records": 100,
    "predictions": 1900,
    "all": True,
    "bytes": 5,
    "shares": {
        "masked": 0.8,
        "kept": 0.1,
        "replaced": 0.1,
        "full_length": 0.9,
        "padding": 0.08,
        "random_next": 0.5,
        "repeated_records": 0.25,
        "repeated_texts": 0.5,
    },
    "repeats": {"exact": False, "standard_errors": {"repeated_records": 0.001, "repeated_texts": 0.002}},
    "lengths": [0] * 128 + [100],
}
TEXTS = {
    "documents": 152,
    "characters": 300_000,
    "scripts": [["Latin", 99_000], ["Greek", 1_000]],
    "identifier": "py3langid 0.2.2",
    "languages": [["en", 150], ["de", 2]],
    "unknown": [["\u2603", 5]],
    "unknown_words": 5,
    "shown": ["A document with <tags> & more. " * 40],
}
WORDS = [("[CLS]", None), ("the", None), ("[MASK]", "dog"), ("ran", "ran"), ("blue", "home"), ("[SEP]", None)]
FACTS = {
    "name": "records",
    "manifest": MANIFEST,
    "records": RECORDS,
    "texts": TEXTS,
    "examples": [("part, record 1: 6 tokens", WORDS)],
    "speed": {
        "rounds": [
            {
                "doing": "Tokenising",
                "items_name": "documents",
                "engine": "local",
                "workers": 2,
                "secs": 2.0,
                "bytes": 8e6,
                "items": 152,
            }
        ]
    },
}


def read(facts) -> tuple[str, PageReader]:
    text = data_card.render(facts)
    return text, PageReader(text)


def test_everything_that_is_known_is_on_the_page():
    _, page = read(FACTS)
    text = " ".join(page.text.split())
    for expected in (
        "100 examples of 128 tokens at most",
        "Made of 152 documents, each 10 times",
        "4.1 MB",
        "76.01 MB",
        "52.0% have a random next segment",
        "90.0% of the examples are full",
        "[MASK] 80.00%",
        "the token itself 10.00%",
        "19.00 predictions an example",
        "25.000% came before (an estimate, to within 0.100%)",
        "4 documents that were dropped",
        "train, with 0.500% of the documents held out",
        "2 documents of the other side",
        "7: of no document",
        "a<b>.txt 3",
        "Latin 99.00% of the letters",
        "As py3langid 0.2.2 guesses",
        "en 98.68% of the documents",
        "\u2603 5",
        "A document with <tags> & more.",
        "books",
        "0.300",
        "Tokenising 2.0 4.0 152 documents 2 (local)",
        "[CLS] the [MASK] \u2192 dog",
        "blue \u2192 home",
    ):
        assert expected in text, expected


def test_masks_are_marked_by_more_than_colour():
    text, _ = read(FACTS)
    assert "<strong>[MASK]</strong>\u2192<mark" in text and '<mark class="right">ran</mark>' in text
    assert '<mark class="wrong">blue</mark>\u2192<mark class="gold">home</mark>' in text


def test_nothing_comes_from_outside_and_every_drawing_has_words():
    text, page = read(FACTS)
    names = {name for _, name, _, _ in page.attributes}
    assert not names & {"src", "href"} and "script" not in page.tags and "@import" not in text
    drawings = [name for tag, name, _, _ in page.attributes if tag == "svg"]
    assert drawings.count("aria-label") == page.tags.count("svg") > 0
    assert text.count("<table>") == text.count('<div class="scroll"><table>') > 0


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"manifest": {}, "texts": {}, "examples": [], "speed": {}}, "100 examples of 128 tokens at most"),
        (
            {
                "records": {},
                "examples": [],
                "manifest": {"flags": {}, "train_documents": 9, "eval_documents": 1, "short_documents": 3},
            },
            "10 documents of prepared text",
        ),
        ({"manifest": {"flags": {}, "packs": 60, "sequences": 100, "efficiency": 0.98}}, "98.0%"),
        (
            {"records": RECORDS | {"shares": RECORDS["shares"] | {"masked": 0}}, "examples": []},
            "100 examples",
        ),
    ],
    ids=["others' records", "prepared text", "packed rows", "no vocabulary"],
)
def test_what_is_not_known_is_left_out(changes, expected):
    text, page = read(FACTS | changes)
    assert expected in page.text
    sections = re.findall(r"<section><h2>([^<]*)</h2>(?:<p class=\"note\">[^<]*</p>)?</section>", text)
    assert not sections and "None" not in page.text and "nan" not in page.text


def test_histogram_keeps_all_and_ends_with_the_longest():
    counts = {1: 5, 4: 1, 511: 2, 512: 8}
    points = data_card.histogram(counts)
    assert len(points) <= 129 and points[-1] == (512, 10 / 16) and points[0] == (4, 6 / 16)
    assert sum(share for _, share in points) == pytest.approx(1)
    assert data_card.histogram({0: 1, 3: 1}) == [(1, 0.5), (2, 0), (3, 0.5)]


@pytest.mark.parametrize("value, text", [(999, "999 bytes"), (4_142_864, "4.143 MB"), (10**13, "10 TB")])
def test_bytes_are_in_the_unit_that_suits_them(value, text):
    assert (text, "of input files, as they are on the disk") in data_card.numbers({"bytes": value}, {})
