"""Page about a data set: report.html beside its manifest, one file that opens without a network."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from official.reporting import charts, page, palette
from official.reporting.charts import Bar, Part
from official.reporting.formats import format_bytes, format_number
from official.reporting.page import Section

FILE_NAME = "report.html"
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
# {name of the share: what stands there}
_MASKS = {"masked": "[MASK]", "replaced": "any word", "kept": "the token itself"}
_MAX_FILES = 20
_MAX_POINTS = 128  # of a histogram
_MAX_WORD = 40  # characters of a word in a table: whatever is very long is [UNK]


def path_in(folder: str) -> str:
    """Returns the path of a folder's page."""
    return os.path.join(folder, FILE_NAME)


def render(facts: dict) -> str:
    """Returns the page as HTML.

    Args:
      facts: as `official.data.pretraining.card.gather` returns them.
    """
    manifest, records, texts = facts["manifest"], facts["records"], facts["texts"]
    headline, line = _head(manifest, records)
    skipped = {
        name.replace("_", " "): f"{manifest[name]:,}: {reason}"
        for name, reason in _REASONS.items()
        if manifest.get(name)
    }
    before = [{"texts": [[[text[:700], ""]]], "facts": []} for text in texts.get("shown", [])]
    after = [
        {"texts": [[[title, "strong"]], _marked(words)], "facts": []} for title, words in facts["examples"]
    ]
    masked = (
        "After masking. A token that is to be predicted follows what stands in its place: [MASK]\u2192word,"
        " another word, struck through\u2192word, or the word itself, in green."
    )
    nothing = "Nothing was skipped." if "flags" in manifest and not skipped else ""
    sections = [
        page.cards(numbers(manifest, records)),
        Section("charts", _charts(manifest, records)),
        _masks(records),
        page.pairs(_repetitions(manifest, records), "Repetitions"),
        _sides(manifest),
        _sources(manifest),
        page.pairs(skipped, "What was skipped, and why"),
        Section("text", nothing, "What was skipped, and why"),
        _undecodable(manifest),
        *_texts(texts, manifest),
        Section("items", before, "Documents as they were read", "Their beginnings."),
        Section("items", after, "Examples as the model sees them", masked),
        _speed(facts["speed"]),
        _details(manifest, records),
    ]
    return page.render(facts["name"], ("data card", facts["name"]), headline, [line], "fair", sections)


def _head(manifest: dict, records: dict) -> tuple[str, str]:
    """Returns the headline and the line below it."""
    if not records:
        documents = sum(manifest.get(f"{side}_documents", 0) for side in ("train", "eval"))
        line = "One sentence a line, a blank line between documents."
        return f"{documents:,} documents of prepared text", line
    count = manifest.get("instances") or manifest.get("sequences") or records["records"]
    line = f"Format {records['record_format']}; {records['max_predictions_per_seq']:,} predictions at most"
    if "documents" in manifest:
        copies = manifest.get("flags", {}).get("dupe_factor", 1)
        times = "once" if copies == 1 else f"{copies:,} times, with other cuts and masks each time"
        line = f"Made of {manifest['documents']:,} documents, each {times}. {line}"
    return f"{count:,} examples of {records['max_seq_length']:,} tokens at most", f"{line} in an example."


# -----------------------------------------------------------------------------------------------------------
# Numbers and tables


def numbers(manifest: dict, records: dict) -> list[tuple[str | None, str]]:
    """Returns the headline numbers of a data card as (value, name); None for a value that is not known."""
    file_bytes = sum(manifest.get("file_bytes", {}).values()) or records.get("bytes")
    shares = records.get("shares", {})
    random_next = shares.get("random_next")
    if manifest.get("instances") and "random_next" in manifest:
        random_next = manifest["random_next"] / manifest["instances"]
    examples = manifest.get("instances") or manifest.get("sequences") or records.get("records")
    input_bytes = manifest.get("input_bytes", manifest.get("bytes"))
    known: list[tuple[Any, Callable[[Any], str | None], str]] = [
        (input_bytes, _bytes, "of input files, as they are on the disk"),
        (manifest.get("text_bytes"), _bytes, "of text in them"),
        (manifest.get("documents"), _count, "documents"),
        (manifest.get("sentences"), _count, "sentences"),
        (manifest.get("tokens"), _count, "tokens of text"),
        (examples, _count, "examples"),
        (manifest.get("packs"), _count, "packed rows"),
        (manifest.get("efficiency"), "{:.1%}".format, "of the places of a row hold a token"),
        (file_bytes, _bytes, "of records"),
        (shares.get("full_length"), "{:.1%}".format, "of the examples are full"),
        (shares.get("padding"), "{:.1%}".format, "of the places are padding, one example a row"),
        (random_next, "{:.1%}".format, "have a random next segment"),
        (manifest.get("unknown_share"), "{:.3%}".format, "of the tokens are [UNK]"),
    ]
    return [(None if value is None else form(value), name) for value, form, name in known]


def _count(value: int) -> str:
    return f"{value:,}" if value < 10**7 else format_number(value)


def _bytes(value: int) -> str | None:
    return format_bytes(value) if value else None


def _repetitions(manifest: dict, records: dict) -> dict[str, str]:
    """Returns the repeated documents and examples. Examples are compared only where all were read."""
    found: dict[str, str] = {}
    copies = manifest.get("flags", {}).get("dupe_factor")
    if copies:
        many = f"each is there {copies:,} times, with other cuts and masks"
        found["documents"] = many if copies > 1 else "once"
    if records.get("all"):
        for name, text in (("repeated_records", "examples"), ("repeated_texts", "texts, with other masks")):
            share, error = records["shares"][name], records["repeats"]["standard_errors"][name]
            exact = "" if records["repeats"]["exact"] else f" (an estimate, to within {error:.3%})"
            found[text] = f"{share:.3%} came before{exact}"
    if "duplicate_documents" in manifest:
        found["exact copies"] = f"{manifest['duplicate_documents']:,} documents that were dropped"
    return found


def _sides(manifest: dict) -> Section:
    """Returns how the documents were shared out to training and evaluation, by their own text."""
    if "train_documents" in manifest or "eval_documents" in manifest:
        kinds = ("documents", "sentences")
        rows = [(side, *(manifest.get(f"{side}_{kind}", 0) for kind in kinds)) for side in ("train", "eval")]
        return page.table(("Side", *kinds), rows, "Sides")
    flags = manifest.get("flags", {})
    if not flags.get("side"):
        return Section("pairs", [])
    found = {
        "side": f"{flags['side']}, with {flags['eval_share']:.3%} of the documents held out",
        "here": f"{manifest.get('documents', 0):,} documents",
        "left out": f"{manifest.get('other_side_documents', 0):,} documents of the other side",
    }
    return page.pairs(found, "Sides")


def _sources(manifest: dict) -> Section:
    """Returns a row for each source of a mixture, with whatever numbers the manifest has of it."""
    found = manifest.get("sources")
    if not isinstance(found, dict) or not all(isinstance(row, dict) and row for row in found.values()):
        found = {}
    columns = list(dict.fromkeys(name for row in found.values() for name in row))
    rows = [(source, *(row.get(name) for name in columns)) for source, row in found.items()]
    return page.table(("Source", *(name.replace("_", " ") for name in columns)), rows, "Sources")


def _undecodable(manifest: dict) -> Section:
    """Returns the files with the most bytes that are not UTF-8."""
    counts = {path: file.get("undecodable_bytes", 0) for path, file in manifest.get("inputs", {}).items()}
    worst = sorted(((count, path) for path, count in counts.items() if count), reverse=True)
    rows = [(path, count) for count, path in worst[:_MAX_FILES]]
    return page.table(("File", "bytes left out"), rows, "Bytes that are not UTF-8, by file")


def _speed(found: dict) -> Section:
    """Returns a table of the rounds of the job."""
    rows = []
    for each in found.get("rounds", []):
        if isinstance(each, dict):
            rate = each["bytes"] / 1e6 / max(each["secs"], 1e-9)
            items = f"{each['items']:,.0f} {each['items_name']}"
            workers = f"{each['workers']:,} ({each['engine']})"
            rows.append((each["doing"], f"{each['secs']:.1f}", f"{rate:.1f}", items, workers))
    note = (
        "Of the last start of the job: what an earlier, interrupted one had done is not in it. MB/s are of"
        " the input as it lies on the disk."
    )
    return page.table(("Round", "secs", "MB/s", "items", "workers"), rows, "Speed", note)


def _details(manifest: dict, records: dict) -> Section:
    simple = (int, float, str)
    known = {name: value for name, value in manifest.items() if isinstance(value, simple) and name != "job"}
    shares = {name: float(value) for name, value in records.get("shares", {}).items()}
    folded = [
        page.pairs(manifest.get("flags", {}), "Flags"),
        page.pairs(known, "Numbers of the manifest"),
        page.pairs(shares, "Shares in the records that were read"),
    ]
    return Section("", None, "Details", folded=folded)


# -----------------------------------------------------------------------------------------------------------
# Charts and bars


def _charts(manifest: dict, records: dict) -> list[dict]:
    found: list[dict | None] = []
    if records:
        lengths = manifest.get("lengths") or dict(enumerate(records["lengths"]))
        points = histogram({int(length): count for length, count in lengths.items()})
        curves = [charts.Curve("", list(points), palette.BLUE)]
        title, unit = "Length of the examples", "share of the examples"
        found.append(charts.draw(charts.Chart(title, unit, curves, x_name="tokens, at most")))
    documents = {int(limit): count for limit, count in manifest.get("document_lengths", {}).items()}
    rows = []
    for limit, count in sorted(documents.items()):
        name = f"{limit // 2:,} to {limit - 1:,} tokens" if limit > 2 else "1 token"
        rows.append(_bar(name, count, f"{count:,} ({count / sum(documents.values()):.1%})"))
    if rows:
        found.append({"title": "Length of the documents", "bars": charts.bars(rows)})
    return [drawn for drawn in found if drawn]


def _bar(name: str, value: float, text: str, color: str = palette.BLUE) -> Bar:
    return Bar(name, [Part(name, value, color)], text)


def histogram(counts: dict[int, int]) -> list[tuple[int, float]]:
    """Returns (end of a range of lengths, share of all in it), 128 ranges at most, the first from 0 on."""
    longest, total = max(counts, default=0), sum(counts.values()) or 1
    width = -(-max(longest, 1) // _MAX_POINTS)
    sums = dict.fromkeys(range(width, longest + width, width), 0)
    for length, count in counts.items():
        sums[max(width, -(-length // width) * width)] += count
    return [(end, count / total) for end, count in sums.items()]


def _masks(records: dict) -> Section:
    shares, title = records.get("shares", {}), "What stands in the place of predicted tokens"
    if not shares.get("masked"):  # without a vocabulary it is not known
        return Section("bars", None, title)
    what = "all records" if records["all"] else f"the first {records['records']:,} examples of a few files"
    note = f"Counted in {what}; {records['predictions'] / records['records']:.2f} predictions an example."
    colors = (palette.BLUE, palette.VERMILION, palette.GREEN)
    rows = [
        _bar(text, shares[name], f"{shares[name]:.2%}", color)
        for (name, text), color in zip(_MASKS.items(), colors)
    ]
    return Section("bars", charts.bars(rows), title, note)


# -----------------------------------------------------------------------------------------------------------
# Words


def _texts(texts: dict, manifest: dict) -> list[Section]:
    """Returns the scripts, the languages and the unknown words of a sample of the documents."""
    if not texts:
        return []
    note = (
        f"Of the beginnings of {texts['documents']:,} documents, {texts['characters']:,} characters, taken"
        " evenly from all parts of the text by the hash of each document. By the names that Unicode gives the"
        " letters."
    )
    guessed = f"As {texts.get('identifier')} guesses for each document of the sample."
    share = manifest.get("unknown_share")
    whole = "" if share is None else f"{share:.3%} of all tokens are [UNK]. "
    unknown = f"{whole}{texts.get('unknown_words', 0):,} words of the sample are; the most frequent ones:"
    words = [
        (name if len(name) <= _MAX_WORD else f"{name[:_MAX_WORD]}\u2026", count)
        for name, count in texts.get("unknown", [])
    ]
    return [
        Section("bars", _shares(texts.get("scripts", []), "letters"), "Scripts", note),
        Section("bars", _shares(texts.get("languages", []), "documents"), "Languages", guessed),
        page.table(("Word", "times"), words, "Words that are [UNK]", unknown),
    ]


def _shares(counts: list[list], items: str) -> dict | None:
    total = sum(count for _, count in counts)
    return charts.bars([_bar(name, count, f"{count / total:.2%} of the {items}") for name, count in counts])


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
