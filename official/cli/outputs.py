"""Output files of commands: written atomically, and their paths checked before the work starts."""

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from official.cli import command_line
from official.io.errors import ConfigError
from official.io.writing import check_output_file, naming_output, replace_file

PICTURE_ENDINGS = (".png", ".svg", ".pdf")


def write_file(path: str, data: str | bytes) -> None:
    """Writes a file atomically. Raises ConfigError."""
    with naming_output(path):
        replace_file(path, data)


def write_json(path: str, values: object) -> None:
    """Writes values as JSON, one key per line. Raises ConfigError."""
    write_file(path, json.dumps(values, indent=1) + "\n")


def check_picture_file(path: str, flag: str, overwrite: bool) -> None:
    """Checks that a picture can be written, and makes its folder. Raises ConfigError, also for an unknown
    suffix."""
    if not path.lower().endswith(PICTURE_ENDINGS):
        raise ConfigError(f"--{flag}={path[:100]} does not end with one of {', '.join(PICTURE_ENDINGS)}.")
    check_output_file(path, flag, overwrite)


def write_picture(path: str, figure: Any) -> None:
    """Writes a figure in the format of its file's ending. Raises ConfigError."""
    from official.reporting import plots

    write_file(path, plots.render(figure, path.rpartition(".")[2].lower()))


def write_chart(path: str, chart: Any) -> None:
    """Writes a single `charts.Chart` to a picture file. Raises ConfigError."""
    from official.reporting import plots

    with plots.style():
        figure = plots.new_figure(8, 4)
        figure.set_layout_engine("constrained")
        plots.draw_chart(figure.add_subplot(), chart)
        write_picture(path, figure)


def check_files(flags: argparse.Namespace, *names: str, picture: str = "") -> None:
    """Checks that the output files in the flags `names`, and in the flag `picture`, can be written. Raises
    ConfigError."""
    if picture and getattr(flags, picture):
        check_picture_file(getattr(flags, picture), picture, flags.overwrite)
    for name in names:
        if getattr(flags, name):
            check_output_file(getattr(flags, name), name, flags.overwrite)


def check_results(flags: argparse.Namespace) -> None:
    """Checks that the results of a benchmark can be written. Raises ConfigError."""
    for ending in (".json", ".png") if flags.output else ():
        check_output_file(flags.output + ending, "output", flags.overwrite)


def with_machine(record: dict) -> dict:
    """Returns a record of measurements, with the command and the machine."""
    from official.reporting import environment

    return {"command": command_line.as_typed(), **record, "environment": environment.environment()}


def write_bars(
    output: str | None, record: dict, bars: Iterable[tuple], title: str, unit: str, **limit: Any
) -> None:
    """Writes OUTPUT.json, the record with command and machine, and OUTPUT.png, a bar chart; does nothing
    without `output`.

    Args:
      output: path of both without their endings.
      record: the results.
      bars: (name, value, relative spread, text, group) of each bar.
      title, unit: of the chart.
      **limit: `limit` and `limit_text` of a line to compare with.
    """
    if output is None:
        return
    from official.reporting import measurement

    write_json(f"{output}.json", with_machine(record))
    write_file(f"{output}.png", measurement.draw_bars(bars, title, unit, **limit))
    print(f"{output}.json and {output}.png")


def stem(path: str) -> str:
    """Returns a file's name without folder and suffix, used as the model's name in charts."""
    return os.path.splitext(os.path.basename(path))[0]


def table(columns: Sequence[tuple[str, str, str]], rows: Iterable[dict]) -> str:
    """Formats rows as a table: first column left-aligned, the others right-aligned.

    Args:
      columns: (title, key of a row, format of its value, such as ".3f") of each; a missing value is "-".
      rows: the values.
    """
    cells = [[title for title, _, _ in columns]]
    for row in rows:
        values = (row.get(key) for _, key, _ in columns)
        cells.append(["-" if v is None else format(v, how) for v, (_, _, how) in zip(values, columns)])
    widths = [max(map(len, column)) + 2 for column in zip(*cells)]
    return "\n".join(
        line[0].ljust(widths[0]) + "".join(c.rjust(w) for c, w in zip(line[1:], widths[1:])) for line in cells
    )
