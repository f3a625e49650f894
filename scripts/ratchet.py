#!/usr/bin/env python3
"""Size of the code base: prints numbers for scripts/check.sh, and compares them with scripts/ratchet.json.

A number may rise only in a commit that adds a feature and gives the reason; that commit records it with
--record. The files on the path of a training step, and the docstrings that have to be decoded, may only fall.

  python scripts/ratchet.py            prints the numbers; exit code 1 if one has risen
  python scripts/ratchet.py --rooms    the same, by package
  python scripts/ratchet.py --record   writes changed numbers to scripts/ratchet.json
"""

import argparse
import ast
import collections
import functools
import gc
import json
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "scripts" / "ratchet.json"
MAX_SMALL_LINES = 40
# Openings without a noun: the reader must work out the subject.
DECODED = re.compile(r"(What|Where|Who|Returns what)\b")
ONLY_FALLING = ("files on the path of a step", "docstrings to decode")


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def lines_and_docstrings(path: pathlib.Path) -> tuple[int, list[str]]:
    """Returns the lines of a file without blank lines, comments and docstrings, and its docstrings: the
    strings that are a statement."""
    texts = path.read_text(encoding="utf-8").splitlines()
    lines = {number for number, text in enumerate(texts, 1) if text.strip() and text.lstrip()[0] != "#"}
    docstrings, of_docstrings = [], set[int]()
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                docstrings.append(text)
                of_docstrings.update(range(node.lineno, node.end_lineno + 1))
            case ast.Constant(value=str() | bytes()) | ast.JoinedStr():
                lines.update(range(node.lineno, node.end_lineno + 1))
    return len(lines - of_docstrings), docstrings


def lines_of_code(path: pathlib.Path) -> int:
    return lines_and_docstrings(path)[0]


def module_name(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def modules() -> dict[str, pathlib.Path]:
    return {module_name(path): path for path in sorted((ROOT / "official").rglob("*.py"))}


def imports(path: pathlib.Path, at_start: bool = False) -> set[str]:
    """Returns the modules of official/ that a file imports; with `at_start` only those imported with the file
    itself, not in functions or for type annotations."""
    found, left = set(), list(parsed(path).body)
    while left:
        node = left.pop()
        if at_start and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if at_start and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            left += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        left += ast.iter_child_nodes(node)
    return {name for name in found if name in modules()}


def imported_by(name: str) -> set[str]:
    """Returns the modules loaded by the import of a module, including itself and the enclosing packages."""
    seen: set[str] = set()
    left = [name]
    while left:
        module = left.pop()
        if module not in seen and module in modules():
            seen.add(module)
            left += [*imports(modules()[module], at_start=True), module.rpartition(".")[0]]
    return seen


def single_importer() -> list[str]:
    """Returns the modules of fewer than 40 lines that only one other module of official/ imports."""
    importers = collections.Counter(name for path in modules().values() for name in imports(path))
    return [
        name
        for name, path in modules().items()
        if path.name != "__init__.py" and importers[name] == 1 and lines_of_code(path) < MAX_SMALL_LINES
    ]


def settings() -> int:
    """Returns the number of settings: rows of official/config/settings."""
    rows = [path for name, path in modules().items() if name.startswith("official.config.settings")]
    calls = (node for path in rows for node in ast.walk(parsed(path)) if isinstance(node, ast.Call))
    return sum(isinstance(call.func, ast.Name) and call.func.id == "setting" for call in calls)


def measure() -> dict[str, int]:
    """Returns {name of a number: its value}."""
    paths = list(modules().values())
    return {
        "files": len(paths),
        "lines of code": sum(map(lines_of_code, paths)),
        "median lines of a file": int(statistics.median(map(lines_of_code, paths))),
        "small files with one importer": len(single_importer()),
        "files on the path of a step": len(imported_by("official.training.step")),
        "settings": settings(),
        "docstrings to decode": sum(
            bool(DECODED.match(text)) for path in paths for text in lines_and_docstrings(path)[1]
        ),
        "lines of code of the tests": sum(map(lines_of_code, (ROOT / "tests").rglob("*.py"))),
        "files of the tests": len(list((ROOT / "tests").rglob("*.py"))),
    }


def print_rooms() -> None:
    """Prints files, lines of code and the median file of each package of official/."""
    rooms = collections.defaultdict(list)
    for name, path in modules().items():
        rooms[(name.split(".") + [""])[1] if path.parent != ROOT / "official" else "."].append(
            lines_of_code(path)
        )
    print(f"{'room':14}{'files':>7}{'lines':>9}{'median':>8}{'< 40':>7}")
    for room, sizes in sorted(rooms.items(), key=lambda pair: -sum(pair[1])):
        small = sum(size < MAX_SMALL_LINES for size in sizes)
        print(f"{room:14}{len(sizes):7,}{sum(sizes):9,}{statistics.median(sizes):8.0f}{small:7,}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rooms", action="store_true", help="Print the rooms of official/, too.")
    parser.add_argument("--record", action="store_true", help="Write the numbers to scripts/ratchet.json.")
    flags = parser.parse_args()
    gc.disable()  # syntax trees have no cycles, and to look for some takes two thirds of the time
    found = measure()
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    risen = [
        name
        for name, number in found.items()
        if name != "median lines of a file" and number > known.get(name, number)
    ]
    for name, number in found.items():
        before = known.get(name, number)
        print(f"{name:32}{number:8,}" + (f"  ({number - before:+,})" if number != before else ""))
    if flags.rooms:
        print_rooms()
    kept = [name for name in risen if name in ONLY_FALLING] if flags.record else risen
    if kept:
        advice = "may only fall" if flags.record else "record a feature that needs it with --record"
        print(f"ratchet.py: {', '.join(kept)} rose: {advice}.", file=sys.stderr)
        return 1
    if flags.record:
        RECORD.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
