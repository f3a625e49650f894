#!/usr/bin/env python3
"""Writes docs/measured.md: a table of the files in results/ with title, command, commit and machine.

  python scripts/measured_page.py           writes the page
  python scripts/measured_page.py --check   exit code 1 if the page is out of date

The titles are in results/titles.yml, everything else in the files themselves.
"""

import argparse
import json
import pathlib
import re
import sys
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "measured.md"
MAX_COMMAND = 90
HEAD = """# What was measured

All result files of this project, with the command, commit and machine of each. Each JSON file in `results/`
has the whole command, commit, versions, machine, seed and all numbers. **Everything was measured on CPUs with
two cores, except the files whose titles say H200. No number is from several GPUs, a TPU or an IPU.**

The titles link to the pages that discuss the numbers; [performance](performance.md) has an overview. Commands
are those of their commit: some that were commands of `bert benchmark` then are programs in `benchmarks/` now.
`python scripts/measured_page.py` writes this page from the files and from `results/titles.yml`.

| File | Content | Command | Commit | Machine |
|---|---|---|---|---|
"""


def first(value: Any, key: str) -> Any:
    """Returns the first value of a key, at any depth of a JSON value; None without one."""
    if isinstance(value, dict):
        if key in value:
            return value[key]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            if (found := first(each, key)) is not None:
                return found
    return None


def shortened(command: str) -> str:
    """Returns a command without the folders of its paths, cut to fit into a table."""
    command = re.sub(r"(?<![\w.])/[\w./-]*/", "", " ".join(str(command).split())).replace("|", "\\|")
    return command if len(command) <= MAX_COMMAND else command[: MAX_COMMAND - 4].rsplit(" ", 1)[0] + " ..."


def machine(values: dict) -> str:
    """Returns the processor, and its newest instruction set that matters here."""
    found = first(values, "machine")
    if isinstance(found, str):
        return found
    if not isinstance(found, dict):
        return ""
    model = " ".join(re.sub(r"\((R|TM)\)|CPU|Processor|@.*", "", str(found.get("cpu", ""))).split())
    return ", ".join([model, *found.get("instructions", [])[-1:]])


def row(stem: str, title: str) -> str:
    """Returns the line of a result's table."""
    paths = {path.suffix[1:]: path.name for path in sorted(RESULTS.glob(f"{stem}.*"))}
    values = json.loads((RESULTS / f"{stem}.json").read_text(encoding="utf-8")) if "json" in paths else {}
    links = ", ".join(f"[{stem if end == 'json' else end}](../results/{name})" for end, name in paths.items())
    command = first(values, "command")
    cells = [
        links,
        title,
        f"<code>{shortened(command)}</code>" if command else "",
        f"`{str(first(values, 'commit') or '')[:7]}`" if first(values, "commit") else "",
        machine(values),
    ]
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    titles = yaml.safe_load((RESULTS / "titles.yml").read_text(encoding="utf-8"))
    stems = {path.stem for path in RESULTS.iterdir() if path.suffix in (".json", ".png", ".md")}
    if stems != titles.keys():
        sys.exit(f"measured_page.py: results/titles.yml and results/ differ: {sorted(stems ^ titles.keys())}")
    return HEAD + "".join(row(stem, title) for stem, title in titles.items())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="Only check whether the page is up to date.")
    text = page()
    if parser.parse_args().check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
