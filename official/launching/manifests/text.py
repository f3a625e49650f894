"""Documents as YAML that people read: keys in their order, and lines of a shell as lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

_WIDEST = 110


def to_yaml(documents: Iterable[dict[str, Any]], comments: Iterable[str] = ()) -> str:
    """Returns documents as YAML, after lines that are made comments."""
    import yaml  # late: few commands write it

    class Dumper(yaml.SafeDumper):
        """Indents lists, and repeats what two places share."""

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)

    Dumper.add_representer(str, text)
    parts = [
        yaml.dump(each, Dumper=Dumper, sort_keys=False, width=_WIDEST, allow_unicode=True)
        for each in documents
    ]
    head = "".join(f"# {line}".rstrip() + "\n" for line in comments)
    return head + "---\n".join(parts)


def wrapped(words: Iterable[str], indent: str = "") -> list[str]:
    """Returns a command as lines of a shell that fit a comment; the later ones want a backslash before."""
    lines, room = [indent], _WIDEST - len("# ") - len(" \\")
    for word in map(shlex.quote, words):
        if len(lines[-1]) + 1 + len(word) > room and lines[-1].strip():
            lines.append(f"{indent}  ")
        lines[-1] += word if not lines[-1].strip() else f" {word}"
    return lines
