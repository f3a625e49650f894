"""Documents as YAML that people read: keys in their order, and lines of a shell as lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

from official.io.errors import printable

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
        style = "|" if "\n" in value else "'" if _is_other_than_text(value) else None
        style = style if value.replace("\n", "").isprintable() else '"'  # with escapes, which are read back
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)

    Dumper.add_representer(str, text)
    parts = [
        yaml.dump(each, Dumper=Dumper, sort_keys=False, width=_WIDEST, allow_unicode=True)
        for each in documents
    ]
    # Line ends of any kind would end the comment.
    head = "".join(f"# {printable(line)}".rstrip() + "\n" for line in comments)
    return head + "---\n".join(parts)


def _is_other_than_text(value: str) -> bool:
    """Tells whether a bare word is no text to some readers of YAML: those of Kubernetes take y for a truth
    and 1e3 for a number, as PyYAML does not."""
    if value.lower() in ("y", "n") or re.fullmatch(r"[-+]?0o[0-7_]+", value):
        return True
    try:
        return bool(float(value) or True)
    except ValueError:
        return False


def _quoted(word: str) -> str:
    """Returns a word as bash reads it back, on one line whatever is in it."""
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return f"\\{letter}" if letter in "\\'" else letter
    return f"\\x{ord(letter):02x}" if letter.isascii() else f"\\U{ord(letter):08x}"


def wrapped(words: Iterable[str], indent: str = "") -> list[str]:
    """Returns a command as lines of a shell that fit a comment; the later ones want a backslash before."""
    lines, room = [indent], _WIDEST - len("# ") - len(" \\")
    for word in map(_quoted, words):
        if len(lines[-1]) + 1 + len(word) > room and lines[-1].strip():
            lines.append(f"{indent}  ")
        lines[-1] += word if not lines[-1].strip() else f" {word}"
    return lines
