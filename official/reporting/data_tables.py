"""Tables and numbers of a data card, each from the parts of a manifest that there are."""

from __future__ import annotations

from official.reporting import page
from official.reporting.names import format_number

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
