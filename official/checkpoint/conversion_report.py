"""Report of a conversion: as a dictionary for programs, and as lines for people."""

from official.checkpoint import registry
from official.checkpoint.content import Content
from official.checkpoint.mapping.tensors import Tensors


def report_of(checkpoint: registry.Checkpoint, target: dict[str, str], content: Content) -> dict:
    """Returns the report of a conversion, from its content.

    Args:
      checkpoint: the source.
      target: {format, path} of the result.
      content: of the result.

    Returns:
      {source, target: {format, path, tensors, parameters, bytes}, written: {name: {from, shape, dtype}},
      reshaped: {name: {from, to}}, cast: {name: {from, to}}, dropped, added: {name: reason}, vocabulary: of
      `vocabulary_rows.with_vocabulary`, num_attention_heads, hidden_act}.
    """
    result = content.result
    single = {
        name: (checkpoint.tensors[tensor.sources[0]], tensor)
        for name, tensor in result.items()
        if len(tensor.sources) == 1 and tensor.sources[0] in checkpoint.tensors
    }
    return {
        "source": {
            "format": checkpoint.format.reported_name,
            "path": checkpoint.location,
            **registry.size_of(checkpoint.tensors),
        },
        "target": {**target, **registry.size_of(result)},
        "written": {
            name: {"from": list(tensor.sources), "shape": list(tensor.shape), "dtype": tensor.dtype.name}
            for name, tensor in sorted(result.items())
        },
        "reshaped": {
            name: {"from": list(old.shape), "to": list(new.shape)}
            for name, (old, new) in sorted(single.items())
            if old.shape != new.shape
        },
        "cast": _casts(checkpoint, result),
        "dropped": dict(sorted(content.dropped.items())),
        "added": dict(sorted(content.added.items())),
        "vocabulary": content.vocabulary,
        "num_attention_heads": content.options.num_attention_heads,
        "hidden_act": content.options.hidden_act,
    }


def _casts(checkpoint: registry.Checkpoint, result: Tensors) -> dict[str, dict]:
    """Returns {name: {from, to}} where one of the source's tensors has another type; words that come back
    were of the type that they had."""
    casts = {}
    for name, tensor in sorted(result.items()):
        types = sorted(
            {checkpoint.tensors[one].dtype.name for one in tensor.sources if one in checkpoint.tensors}
        )
        if types and types != [tensor.dtype.name]:
            casts[name] = {"from": ", ".join(types), "to": tensor.dtype.name}
    return casts


def describe(report: dict) -> str:
    """Returns a report as lines for people."""
    source, target, vocabulary = report["source"], report["target"], report["vocabulary"]
    lines = [
        f"{side:<8}{size['format']:<12}{size['path']}: {size['tensors']} tensors, {size['parameters']:,}"
        f" numbers, {size['bytes'] / 1e6:,.1f} MB"
        for side, size in (("read", source), ("written", target))
    ]
    if vocabulary["from"] != vocabulary["to"]:
        parts = [
            f"{vocabulary[what]} {text}"
            for what, text in (
                ("cut", "cut off (kept beside the result)"),
                ("restored", "restored"),
                ("filled", "filled with zeros"),
            )
            if vocabulary[what]
        ]
        lines.append(f"vocabulary {vocabulary['from']} -> {vocabulary['to']} words: {', '.join(parts)}")
    for title in ("dropped", "added"):
        lines += [
            f"{title}: {_folded(names)} ({reason})" for reason, names in _by_reason(report[title]).items()
        ]
    casts = _by_reason(
        {name: f"{change['from']} -> {change['to']}" for name, change in report["cast"].items()}
    )
    lines += [f"cast: {len(names)} tensors {change}" for change, names in casts.items()]
    lines += [f"note: {note}" for note in report["notes"]]
    lines.append(f"checked: {report['compared']} tensors read back, equal bit by bit")
    return "\n".join(lines)


def _by_reason(names: dict[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, reason in names.items():
        groups.setdefault(reason, []).append(name)
    return groups


def _folded(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} and {len(names) - 1} more"
