"""Checks the test predictions of all GLUE tasks and zips them as GLUE's server takes them.

bert evaluate glue-submission --predictions runs/glue_cola runs/glue_mnli ... --output=submission.zip
"""

import argparse
import io
import os
import zipfile

from official.cli import command_line, outputs
from official.data.glue import files
from official.data.glue.tasks import TASKS, GlueTask
from official.io.errors import ConfigError
from official.io.writing import check_output_file

_FILE_TIME = (1980, 1, 1, 0, 0, 0)  # the same predictions make the same bytes


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add(
        "--predictions",
        nargs="+",
        required=True,
        metavar="DIR",
        help="Folders with files of predictions, as runs leave them in --model_dir.",
    )
    add(
        "--data_dir",
        help=(
            "GLUE's data: predictions are counted against its test files. Unset: against the published"
            " numbers of rows."
        ),
    )
    add("--output", required=True, help="Zip file to write.")
    add(
        "--allow_missing",
        action="store_true",
        help="Zip what is there; the server takes no submission without all tasks.",
    )
    add("--overwrite", action="store_true", help="Replace --output where it is there.")
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    for folder in flags.predictions:
        if not os.path.isdir(folder):
            raise ConfigError(f"--predictions={folder} is not a folder.")
    check_output_file(flags.output, "output", flags.overwrite)
    return flags


def find_predictions(task: GlueTask, folders: list[str]) -> str | None:
    """Returns the file of a task, None where no folder has it. Raises ConfigError where two have it."""
    paths = sorted(
        {
            os.path.realpath(path): path
            for path in (os.path.join(folder, task.submission_file) for folder in folders)
            if os.path.isfile(path)
        }.values()
    )
    if len(paths) > 1:
        raise ConfigError(
            f"--predictions: {' and '.join(paths)} are both there. Name the folder of one of them only."
        )
    return paths[0] if paths else None


def check(task: GlueTask, path: str, data_dir: str | None) -> int:
    """Returns the number of predictions in a task's file. Raises ConfigError where they are not as they
    should be."""
    rows = len(files.read_split(task, "test", data_dir)) if data_dir else task.splits["test"].rows
    files.check_predictions(task, path, rows)
    return rows


def zip_files(paths: list[str]) -> bytes:
    """Returns a zip file that holds the files without their folders."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in paths:
            with open(path, "rb") as file:
                entry = zipfile.ZipInfo(os.path.basename(path), _FILE_TIME)
                archive.writestr(entry, file.read(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def report(task: GlueTask, flags) -> tuple[str | None, str | None]:
    """Prints a task's line; returns its file where it is right, and what is wrong where something is."""
    path, wrong = None, None
    try:
        path = find_predictions(task, flags.predictions)
        text = f"{path}, {check(task, path, flags.data_dir):,} predictions" if path else "missing"
        if path is None and not flags.allow_missing:
            wrong = f"{task.submission_file} is missing"
    except ConfigError as error:
        path, text, wrong = None, str(error), str(error).rstrip(".")
    print(f"{task.submission_file:<12} {text}")
    return path, wrong


def main() -> None:
    flags = parse_flags()
    reports = [report(task, flags) for task in TASKS.values()]
    paths = [path for path, _ in reports if path]
    wrong = [wrong for _, wrong in reports if wrong]
    if wrong:
        raise ConfigError(
            f"nothing is written, {len(wrong)} of {len(TASKS)} files are not right: {'; '.join(wrong)}."
        )
    if not paths:
        raise ConfigError(f"--predictions={' '.join(flags.predictions)} has no file of predictions.")
    outputs.write_file(flags.output, zip_files(paths))
    print(f"{flags.output}: {len(paths)} of {len(TASKS)} files.")
