"""Page about a data set: report.html beside its manifest, one file that opens without a network."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from typing import Any

from official.reporting import charts, page, palette
from official.reporting.charts import Bar, Part, bars
from official.reporting.names import format_number

# -----------------------------------------------------------------------------------------------------------
# Tables


_REASONS = {
    "skipped_lines": "of no document, not JSON with a text, or without a byte that could be decoded",
    "skipped_sentences": "without a token",
    "empty_sentences": "without a letter or digit, once leftovers of markup are removed",
    "short_documents": "fewer sentences than --min_sentences",
    "empty_documents": "a title and nothing else",
    "cut_documents": "longer than a document may be: cut in two, or more often; nothing is lost",
    "cut_lines": "longer than a line may be: taken as several; nothing is lost",
    "duplicate_documents": "exact copies of others (--drop_duplicates)",
    "other_side_documents": "of the other side (--side, --eval_share)",
    "undecodable_bytes": "not UTF-8, left out",
    "split_packs": "no room for all predicted tokens: split into two",
}
_MOST_FILES = 20


def numbers(manifest: dict, records: dict) -> list[tuple[str | None, str]]:
    """Returns the headline numbers of a data card as (value, name); None for a value that is not known."""
    file_bytes = sum(manifest.get("file_bytes", {}).values()) or records.get("bytes")
    shares = records.get("shares", {})
    random_next = shares.get("random_next")
    if manifest.get("instances") and "random_next" in manifest:
        random_next = manifest["random_next"] / manifest["instances"]
    return [
        (
            _bytes(manifest.get("input_bytes", manifest.get("bytes"))),
            "of input files, as they are on the disk",
        ),
        (_bytes(manifest.get("text_bytes")), "of text in them"),
        (_count(manifest.get("documents")), "documents"),
        (_count(manifest.get("sentences")), "sentences"),
        (_count(manifest.get("tokens")), "tokens of text"),
        (
            _count(manifest.get("instances") or manifest.get("sequences") or records.get("records")),
            "examples",
        ),
        (_count(manifest.get("packs")), "packed rows"),
        (_percent(manifest.get("efficiency")), "of the places of a row hold a token"),
        (_bytes(file_bytes), "of records"),
        (_percent(shares.get("full_length")), "of the examples are full"),
        (_percent(shares.get("padding")), "of the places are padding, one example a row"),
        (_percent(random_next), "have a random next segment"),
        (_percent(manifest.get("unknown_share"), 3), "of the tokens are [UNK]"),
    ]


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}" if value < 10**7 else format_number(value)


def _percent(value: float | None, digits: int = 1) -> str | None:
    return None if value is None else f"{value:.{digits}%}"


def _bytes(value: int | None) -> str | None:
    """Returns a number of bytes in the unit that suits it."""
    if not value:
        return None
    scaled, units = float(value), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while scaled >= 1000 and len(units) > 1:
        scaled, units = scaled / 1000, units[1:]
    return f"{scaled:.4g} {units[0]}" if scaled < 1000 else f"{scaled:,.0f} {units[0]}"


def repetitions(manifest: dict, records: dict) -> str:
    """Returns a table of repeated documents and examples. Examples are compared only where all were read."""
    found: dict[str, str] = {}
    copies = manifest.get("flags", {}).get("dupe_factor")
    if copies:
        found["documents"] = (
            f"each is there {copies:,} times, with other cuts and masks" if copies > 1 else "once"
        )
    if records.get("all"):
        for name, text in (("repeated_records", "examples"), ("repeated_texts", "texts, with other masks")):
            share, error = records["shares"][name], records["repeats"]["standard_errors"][name]
            exact = "" if records["repeats"]["exact"] else f" (an estimate, to within {error:.3%})"
            found[text] = f"{share:.3%} came before{exact}"
    if "duplicate_documents" in manifest:
        found["exact copies"] = f"{manifest['duplicate_documents']:,} documents that were dropped"
    return page.pairs(found)


def sides(manifest: dict) -> str:
    """Returns how the documents were shared out to training and evaluation, by their own text."""
    if "train_documents" in manifest or "eval_documents" in manifest:
        rows = [
            (side, manifest.get(f"{side}_documents", 0), manifest.get(f"{side}_sentences", 0))
            for side in ("train", "eval")
        ]
        return page.table(("Side", "documents", "sentences"), rows)
    flags = manifest.get("flags", {})
    if not flags.get("side"):
        return ""
    return page.pairs(
        {
            "side": f"{flags['side']}, with {flags['eval_share']:.3%} of the documents held out",
            "here": f"{manifest.get('documents', 0):,} documents",
            "left out": f"{manifest.get('other_side_documents', 0):,} documents of the other side",
        }
    )


def sources(manifest: dict) -> str:
    """Returns a row for each source of a mixture, with whatever numbers the manifest has of it."""
    found = manifest.get("sources")
    if not isinstance(found, dict) or not all(isinstance(row, dict) and row for row in found.values()):
        return ""
    columns = list(dict.fromkeys(name for row in found.values() for name in row))
    rows = [(source, *(row.get(name) for name in columns)) for source, row in found.items()]
    return page.table(("Source", *(name.replace("_", " ") for name in columns)), rows) if rows else ""


def skipped(manifest: dict) -> str:
    """Returns a table of the input that was left out or cut, with reasons; a sentence where nothing was."""
    rows = {
        name.replace("_", " "): f"{manifest[name]:,}: {reason}"
        for name, reason in _REASONS.items()
        if manifest.get(name)
    }
    return page.pairs(rows) if rows else "<p>Nothing was skipped.</p>" if "flags" in manifest else ""


def undecodable(manifest: dict) -> str:
    """Returns the files with the most bytes that are not UTF-8."""
    counts = {path: file.get("undecodable_bytes", 0) for path, file in manifest.get("inputs", {}).items()}
    worst = sorted(((count, path) for path, count in counts.items() if count), reverse=True)
    rows = [(path, count) for count, path in worst[:_MOST_FILES]]
    return page.table(("File", "bytes left out"), rows) if rows else ""


def speed(found: dict) -> tuple[str, str]:
    """Returns a table of the rounds of the job, and a note about it."""
    rounds = [each for each in found.get("rounds", []) if isinstance(each, dict)]
    if not rounds:
        return "", ""
    rows = [
        (
            each["doing"],
            f"{each['secs']:.1f}",
            f"{each['bytes'] / 1e6 / max(each['secs'], 1e-9):.1f}",
            f"{each['items']:,.0f} {each['items_name']}",
            f"{each['workers']:,} ({each['engine']})",
        )
        for each in rounds
    ]
    note = (
        "Of the last start of the job: what an earlier, interrupted one had done is not in it. MB/s are of"
        " the input as it lies on the disk."
    )
    return page.table(("Round", "secs", "MB/s", "items", "workers"), rows), note


# -----------------------------------------------------------------------------------------------------------
# Page


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
        page.cards(numbers(manifest, records)),
        page.charts([drawn for drawn in _charts(manifest, records) if drawn]),
        page.section("What stands in the place of predicted tokens", _masks(records), _of_which(records)),
        page.section("Repetitions", repetitions(manifest, records)),
        page.section("Sides", sides(manifest)),
        page.section("Sources", sources(manifest)),
        page.section("What was skipped, and why", skipped(manifest)),
        page.section("Bytes that are not UTF-8, by file", undecodable(manifest)),
        page.section("Scripts", _shares(texts.get("scripts", []), "letters"), _sample_note(texts)),
        page.section("Languages", _shares(texts.get("languages", []), "documents"), _language_note(texts)),
        page.section("Words that are [UNK]", _unknown(texts), _unknown_note(texts, manifest)),
        page.examples(_before(texts)),
        page.examples(_after(facts["examples"])),
        page.section("Speed", *speed(facts["speed"])),
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
