"""Page about a data set: report.html next to its manifest, a self-contained file."""

from __future__ import annotations

from official.reporting import charts, page, palette

FILE_NAME = "report.html"
# {name of the share: (replacement of a predicted token, colour)}
_MASKS = {
    "masked": ("[MASK]", palette.BLUE),
    "replaced": ("any word", palette.VERMILION),
    "kept": ("the token itself", palette.GREEN),
}
_MAX_FILES = 20
_MAX_POINTS = 128  # per histogram


def render(facts: dict) -> str:
    """Returns the page as HTML.

    Args:
      facts: the result of `official.data.pretraining.card.gather`.
    """
    manifest, records, texts = facts["manifest"], facts["records"], facts["texts"]
    examples = manifest.get("instances") or manifest.get("sequences") or records.get("records")
    headline, line = _head(manifest, records, examples)
    shares, masks = records.get("shares", {}), None
    if shares.get("masked"):  # unknown without a vocabulary
        named = [(shares[name], *look) for name, look in _MASKS.items()]
        masks = charts.bars([_bar(text, share, f"{share:.2%}", color) for share, text, color in named])
    sources = manifest.get("sources")
    if not isinstance(sources, dict) or not all(isinstance(row, dict) and row for row in sources.values()):
        sources = {}
    columns = list(dict.fromkeys(name for row in sources.values() for name in row))
    kinds = ("documents", "sentences")
    lost = [(path, file.get("undecodable_bytes")) for path, file in manifest.get("inputs", {}).items()]
    worst = sorted((row for row in lost if row[1]), key=lambda row: row[::-1], reverse=True)
    drawn = _lengths(manifest, records) if records else None
    after = []
    for title, example in facts["examples"]:
        after.append({"texts": [[[title, "strong"]], _marked(example)], "facts": []})
    simple = (int, float, str)
    return page.render(
        "data_card",
        ("data card", facts["name"]),
        headline,
        "fair",
        lines=[line],
        manifest=manifest,
        records=records,
        texts=texts,
        examples=examples,
        drawn=[drawn] if drawn else [],
        masks=masks,
        sides=[(side, *(manifest.get(f"{side}_{kind}", 0) for kind in kinds)) for side in ("train", "eval")],
        source_head=("Source", *(name.replace("_", " ") for name in columns)),
        sources=[(source, *(row.get(name) for name in columns)) for source, row in sources.items()],
        undecodable=worst[:_MAX_FILES],
        scripts=_shares(texts.get("scripts", []), "letters"),
        languages=_shares(texts.get("languages", []), "documents"),
        before=[{"texts": [[[text[:700], ""]]], "facts": []} for text in texts.get("shown", [])],
        after=after,
        rounds=[_round(each) for each in facts["speed"].get("rounds", []) if isinstance(each, dict)],
        known={
            name: value for name, value in manifest.items() if isinstance(value, simple) and name != "job"
        },
        float_shares={name: float(value) for name, value in shares.items()},
    )


def _head(manifest: dict, records: dict, examples: int | None) -> tuple[str, str]:
    """Returns the headline and the line below it."""
    if not records:
        documents = sum(manifest.get(f"{side}_documents", 0) for side in ("train", "eval"))
        line = "One sentence a line, a blank line between documents."
        return f"{documents:,} documents of prepared text", line
    flags = manifest.get("flags", {})
    objective = flags.get("objective")
    form = f"Objective {objective}, format" if objective else "Format"
    most = records["max_predictions_per_seq"]
    masks = f"{most:,} predictions at most in an example" if most else "no masks: training draws them"
    line = f"{form} {records['record_format']}; {masks}."
    if "documents" in manifest:
        copies, changed = flags.get("dupe_factor", 1), "cuts and masks" if most else "cuts"
        times = "once" if copies == 1 else f"{copies:,} times, with other {changed} each time"
        line = f"Made of {manifest['documents']:,} documents, each {times}. {line}"
    return f"{examples:,} examples of {records['max_seq_length']:,} tokens at most", line


def _round(each: dict) -> tuple:
    rate = each["bytes"] / 1e6 / max(each["secs"], 1e-9)
    items, workers = f"{each['items']:,.0f} {each['items_name']}", f"{each['workers']:,} ({each['engine']})"
    return each["doing"], f"{each['secs']:.1f}", f"{rate:.1f}", items, workers


def _lengths(manifest: dict, records: dict) -> dict | None:
    lengths = manifest.get("lengths") or dict(enumerate(records["lengths"]))
    points = histogram({int(length): count for length, count in lengths.items()})
    curves = [charts.Curve("", list(points), palette.BLUE)]
    title, unit = "Length of the examples", "share of the examples"
    return charts.draw(charts.Chart(title, unit, curves, x_name="tokens, at most"))


def _bar(name: str, value: float, text: str, color: str = palette.BLUE) -> tuple:
    return name, [(name, value, color)], text


def histogram(counts: dict[int, int]) -> list[tuple[int, float]]:
    """Returns (end of a range of lengths, share of all values in it), at most 128 ranges from 0 on."""
    longest, total = max(counts, default=0), sum(counts.values()) or 1
    width = -(-max(longest, 1) // _MAX_POINTS)
    sums = dict.fromkeys(range(width, longest + width, width), 0)
    for length, count in counts.items():
        sums[max(width, -(-length // width) * width)] += count
    return [(end, count / total) for end, count in sums.items()]


def _shares(counts: list[list], items: str) -> dict | None:
    total = sum(count for _, count in counts)
    return charts.bars([_bar(name, count, f"{count / total:.2%} of the {items}") for name, count in counts])


def _marked(words: list) -> list[list[str]]:
    """Returns [text, kind] of the words; adjacent words that are not predicted are joined."""
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
