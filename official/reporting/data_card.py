"""The page about a data set: report.html beside its manifest, one file that opens without a network."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from typing import Any

from official.reporting import charts, data_tables, page, palette
from official.reporting.bars import Bar, Part, bars

FILE_NAME = "report.html"
_MASK_COLORS = {"masked": palette.BLUE, "replaced": palette.VERMILION, "kept": palette.GREEN}
_MOST_POINTS = 128  # of a histogram
_MOST_WORD = 40  # characters of a word in a table: whatever is very long is [UNK]


def render(facts: dict) -> str:
    """Returns the page as HTML.

    Args:
      facts: as `official.data.pretraining.card.gather` returns them.
    """
    manifest, records, texts = facts["manifest"], facts["records"], facts["texts"]
    sections = [
        page.cards(data_tables.numbers(manifest, records)),
        page.charts([drawn for drawn in _charts(manifest, records) if drawn]),
        page.section("What stands in the place of predicted tokens", _masks(records), _of_which(records)),
        page.section("Repetitions", data_tables.repetitions(manifest, records)),
        page.section("Sides", data_tables.sides(manifest)),
        page.section("Sources", data_tables.sources(manifest)),
        page.section("What was skipped, and why", data_tables.skipped(manifest)),
        page.section("Bytes that are not UTF-8, by file", data_tables.undecodable(manifest)),
        page.section("Scripts", _shares(texts.get("scripts", []), "letters"), _sample_note(texts)),
        page.section("Languages", _shares(texts.get("languages", []), "documents"), _language_note(texts)),
        page.section("Words that are [UNK]", _unknown(texts), _unknown_note(texts, manifest)),
        page.examples(_before(texts)),
        page.examples(_after(facts["examples"])),
        page.section("Speed", *data_tables.speed(facts["speed"])),
        page.section("Details", _details(manifest, records)),
    ]
    headline, lines = _head(manifest, records)
    kicker = f"data card &middot; {html.escape(facts['name'])}"
    return page.page(facts["name"], kicker, headline, lines, "fair", "\n".join(filter(None, sections)))


def _head(manifest: dict, records: dict) -> tuple[str, list[str]]:
    """Returns the headline and the lines below it."""
    if not records:
        documents = sum(manifest.get(f"{side}_documents", 0) for side in ("train", "eval"))
        return f"{documents:,} documents of prepared text", [
            "One sentence a line, a blank line between documents."
        ]
    count = manifest.get("instances") or manifest.get("sequences") or records["records"]
    made_of = ""
    if "documents" in manifest:
        made_of = f"Made of {manifest['documents']:,} documents, each {_times(manifest)}. "
    lines = [
        f"{made_of}Format {records['record_format']}; {records['max_predictions_per_seq']:,} predictions at"
        " most in an example.",
    ]
    return f"{count:,} examples of {records['max_seq_length']:,} tokens at most", lines


def _times(manifest: dict) -> str:
    copies = manifest.get("flags", {}).get("dupe_factor", 1)
    return "once" if copies == 1 else f"{copies:,} times, with other cuts and masks each time"


def _of_which(records: dict) -> str:
    if not records:
        return ""
    what = "all records" if records["all"] else f"the first {records['records']:,} examples of a few files"
    return f"Counted in {what}; {records['predictions'] / records['records']:.2f} predictions an example."


# ------------------------------------------------------------------------------------------------------------
# Charts and bars


def _charts(manifest: dict, records: dict) -> list[str]:
    found = []
    if records:
        lengths = manifest.get("lengths") or dict(enumerate(records["lengths"]))
        points = histogram({int(length): count for length, count in lengths.items()})
        found.append(_chart("Length of the examples", "share of the examples", "tokens, at most", points))
    documents = {int(limit): count for limit, count in manifest.get("document_lengths", {}).items()}
    if documents:
        total = sum(documents.values())
        rows = [
            Bar(
                f"{limit // 2:,} to {limit - 1:,} tokens" if limit > 2 else "1 token",
                [Part("documents", count, palette.BLUE)],
                f"{count:,} ({count / total:.1%})",
            )
            for limit, count in sorted(documents.items())
        ]
        title = "<figcaption><b>Length of the documents</b></figcaption>"
        found.append(f'<figure class="chart">{title}{bars(rows)}</figure>')
    return found


def histogram(counts: dict[int, int]) -> list[tuple[int, float]]:
    """Returns (end of a range of lengths, share of all in it), 128 ranges at most, the first from 0 on."""
    longest, total = max(counts, default=0), sum(counts.values()) or 1
    width = -(-max(longest, 1) // _MOST_POINTS)
    sums = dict.fromkeys(range(width, longest + width, width), 0)
    for length, count in counts.items():
        sums[max(width, -(-length // width) * width)] += count
    return [(end, count / total) for end, count in sums.items()]


def _chart(title: str, unit: str, x_name: str, points: Sequence[tuple[int, float]]) -> str:
    curve = charts.Curve("", list(points), palette.BLUE)
    return charts.draw(charts.Chart(title, unit, [curve], x_name=x_name))


def _masks(records: dict) -> str:
    shares = records.get("shares", {})
    if not shares.get("masked"):  # without a vocabulary it is not known
        return ""
    names = {"masked": "[MASK]", "replaced": "any word", "kept": "the token itself"}
    rows = [
        Bar(text, [Part(text, shares[name], _MASK_COLORS[name])], f"{shares[name]:.2%}")
        for name, text in names.items()
    ]
    return bars(rows)


def _shares(counts: list[list], items: str) -> str:
    total = sum(count for _, count in counts)
    rows = [
        Bar(name, [Part(name, count, palette.BLUE)], f"{count / total:.2%} of the {items}")
        for name, count in counts
    ]
    return bars(rows)


# ------------------------------------------------------------------------------------------------------------
# Words


def _sample_note(texts: dict) -> str:
    if not texts:
        return ""
    return (
        f"Of the beginnings of {texts['documents']:,} documents, {texts['characters']:,} characters, taken"
        " evenly from all parts of the text by the hash of each document. By the names that Unicode gives the"
        " letters."
    )


def _language_note(texts: dict) -> str:
    return (
        f"As {texts['identifier']} guesses for each document of the sample." if texts.get("languages") else ""
    )


def _unknown(texts: dict) -> str:
    rows = [
        (name if len(name) <= _MOST_WORD else f"{name[:_MOST_WORD]}\u2026", count)
        for name, count in texts.get("unknown", [])
    ]
    return page.table(("Word", "times"), rows) if rows else ""


def _unknown_note(texts: dict, manifest: dict) -> str:
    share = manifest.get("unknown_share")
    whole = "" if share is None else f"{share:.3%} of all tokens are [UNK]. "
    return f"{whole}{texts.get('unknown_words', 0):,} words of the sample are; the most frequent ones:"


def _before(texts: dict) -> list[dict]:
    items = [{"texts": [[[text[:700], ""]]], "facts": []} for text in texts.get("shown", [])]
    return [{"title": "Documents as they were read", "note": "Their beginnings.", "items": items}]


def _after(examples: list[tuple[str, list]]) -> list[dict]:
    """Returns the examples with every predicted token marked."""
    items = [{"texts": [[[title, "strong"]], _marked(words)], "facts": []} for title, words in examples]
    note = (
        "After masking. A token that is to be predicted follows what stands in its place: [MASK]\u2192word,"
        " another word, struck through\u2192word, or the word itself, in green."
    )
    return [{"title": "Examples as the model sees them", "note": note, "items": items}]


def _marked(words: list) -> list[list[str]]:
    """Returns [text, kind] of the words; neighbours that are not predicted are one text."""
    segments: list[list[str]] = []
    for word, label in words:
        if label is None:
            if not segments or segments[-1][1]:
                segments.append(["", ""])
            segments[-1][0] += f"{word} "
        elif label == word:
            segments += [[word, "right"], [" ", ""]]
        else:
            stands = [word, "strong" if word == "[MASK]" else "wrong"]
            segments += [stands, ["\u2192", ""], [label, "gold"], [" ", ""]]
    return segments


def _details(manifest: dict, records: dict) -> str:
    known: dict[str, Any] = {
        name: value
        for name, value in manifest.items()
        if isinstance(value, (int, float, str)) and name != "job"
    }
    shares = {name: float(value) for name, value in records.get("shares", {}).items()}
    return "".join(
        [
            page.folded("Flags", page.pairs(manifest.get("flags", {}))),
            page.folded("Numbers of the manifest", page.pairs(known)),
            page.folded("Shares in the records that were read", page.pairs(shares)),
        ]
    )


def path_in(folder: str) -> str:
    """Returns the path of a folder's page."""
    return os.path.join(folder, FILE_NAME)
