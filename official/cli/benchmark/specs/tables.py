"""The results of benchmarks as files: JSON, CSV, JUnit's XML and markdown; and as text for a terminal."""

from __future__ import annotations

import csv
import io
import json
import os
import xml.etree.ElementTree as xml
from collections.abc import Iterable
from typing import Any

from official.cli.benchmark.specs.metrics import COMPILING, number_of
from official.cli.benchmark.specs.spec import Benchmark

Result = dict[str, Any]  # of a variant
ADDITIONAL = ("test_duration", "loss", "result", "cmd", "env", "git_commit_hash")
_CSV_METRICS = ("throughput", "latency", COMPILING)
_LOSSES = ("loss", "total_loss", "mlm_loss")
_OF_THE_MACHINE = ("benchmark_path", "log_paths", "latest_checkpoint_path", "sdk_path")
_DASH = "\u2013"


def by_benchmark(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Returns {benchmark: results of its variants}, as the published JSON has them."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result["benchmark_name"], []).append(result)
    return found


def verdict(result: Result) -> str:
    """Returns PASSED or FAILED."""
    return "FAILED" if result["exitcode"] else "PASSED"


def summary(results: list[Result]) -> str:
    """Returns a line for each run, and the number of failed ones."""
    lines = [f"{verdict(each)} {each['benchmark_name']}::{each['benchmark_name']}" for each in results]
    failed = sum(verdict(each) == "FAILED" for each in results)
    title = " short test summary info ".center(62, "=")
    counts = f" {failed} failed, {len(results) - failed} passed "
    return "\n".join([title, "", *lines, "", counts.center(62, "=")])


# ------------------------------------------------------------------------------------------------------------
# For programs


def to_json(results: list[Result]) -> str:
    """Returns {benchmark: [result of a variant, ...]}."""
    return json.dumps(by_benchmark(results), sort_keys=True, indent=2) + "\n"


def portable(result: Result, folder: str) -> Result:
    """Returns a result without the paths of this machine; the command is as it is typed in its folder."""
    kept = {key: value for key, value in result.items() if key not in _OF_THE_MACHINE}
    return {**kept, "command": result["command"].replace(os.path.join(folder, ""), "")}


def to_csv(results: list[Result], more: Iterable[str], additional: dict[str, dict[str, Any]]) -> str:
    """Returns a line for each variant: the published metrics, `more` metrics, and {variant: additional
    columns}."""
    names = list(dict.fromkeys([*_CSV_METRICS, *more]))
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["benchmark name", "Variant name", *names, *(ADDITIONAL if additional else ())])
    for result in results:
        numbers = [number_of(result["results"], name) for name in names]
        others = additional.get(result["variant_name"], {})
        writer.writerow([result["benchmark_name"], result["variant_name"], *numbers, *others.values()])
    return text.getvalue()


def additional_columns(result: Result, env: dict[str, str], commit: str | None) -> dict[str, Any]:
    """Returns the columns of `ADDITIONAL` of a variant."""
    losses = [number_of(result["results"], name) for name in _LOSSES if name in result["results"]]
    values = (
        result["test_duration"],
        losses[0] if losses else None,
        verdict(result),
        result["command"],
        json.dumps(env),
        commit,
    )
    return dict(zip(ADDITIONAL, values))


def to_xml(results: list[Result]) -> str:
    """Returns the runs as a suite of tests in JUnit's XML, which systems that run tests show."""
    failed = sum(verdict(each) == "FAILED" for each in results)
    counts = {"name": "benchmarks", "tests": str(len(results)), "failures": str(failed)}
    root = xml.Element("testsuites")
    suite = xml.SubElement(root, "testsuite", counts)
    for each in results:
        names = {"classname": each["benchmark_name"], "name": each["variant_name"]}
        case = xml.SubElement(suite, "testcase", {**names, "time": each["test_duration"]})
        if each["exitcode"]:
            message = "; ".join(each["problems"])
            xml.SubElement(case, "failure", {"message": _printable(message)})
    xml.indent(root)
    return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


# ------------------------------------------------------------------------------------------------------------
# For people


def columns(results: list[Result], benchmarks: dict[str, Benchmark]) -> list[tuple[str, list[str]]]:
    """Returns (title, a cell for each run): name, how it went, seconds, and what `output` of the entries
    lists."""
    found = {
        "benchmark": [each["variant_name"] for each in results],
        "result": [verdict(each) for each in results],
        "seconds": [f"{float(each['test_duration']):,.0f}" for each in results],
    }
    for number, each in enumerate(results):
        for label, name in benchmarks[each["benchmark_name"]].columns:
            cells = found.setdefault(label, [_DASH] * len(results))
            cells[number] = _cell(each, name)
    return list(found.items())


def shown(result: Result, name: str) -> float | None:
    """Returns the number of a metric as tables and charts show it: the speed with all its digits."""
    return result["sequences_per_sec"] if name == "throughput" else number_of(result["results"], name)


def _cell(result: Result, name: str) -> str:
    number = shown(result, name)
    return result["params"].get(name, _DASH) if number is None else format_number(number)


def format_number(value: float) -> str:
    """Returns a number with three digits that count, at least, and commas between thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def to_markdown(table: list[tuple[str, list[str]]]) -> str:
    """Returns a table in markdown."""
    head = [title for title, _ in table]
    rows = zip(*(cells for _, cells in table))
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
