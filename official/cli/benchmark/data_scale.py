"""Measures the making of records from ever more text, and computes what a thousand times as much would take.

  bert benchmark data-scale --input_files=wikipedia --vocab_file=vocab.txt --gigabytes=0.01,0.1,1,10 \\
    --work_dir=scratch --output=results/data_scale

The text is repeated with a tenth of its words changed. 10 GB of it need about 40 GB of disk. Jobs of a few
seconds are run several times, and the one of median time counts. A job takes some time to start, and for its
data card, whatever its size: the time per MB is said with it and without, that of its rounds. What more text
would take is computed from the rows, and again of an earlier result:

  bert benchmark data-scale --measured=results/data_scale.json --output=results/data_scale --overwrite
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

from official.cli import command_line, outputs
from official.io import jobs, json_files
from official.io.errors import ConfigError
from official.io.json_files import read_json

MODELLED_BYTES = (10**12, 10**13)
_NUMBERS = (  # of a measured row, from which the model is made
    "text_bytes",
    "secs",
    "core_secs",
    "rounds_secs",
    "peak_memory_bytes",
    "peak_disk_bytes",
    "tokens",
    "ms_per_mb",
)
_CHANGED = 0.1  # of the words
_LOOK_SECS = 0.2  # between two looks at processes and folder
_LEAST_SECS, _MOST_RUNS = 20.0, 9  # a short job is run again until it took so long, or so often


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add("--input_files", help="Text: comma-separated files, globs or folders.")
    add("--vocab_file", help="Vocabulary.")
    add("--measured", help="An earlier result (JSON): nothing is measured, the model is made of its rows.")
    add("--gigabytes", default="0.01,0.1,1,10", help="Sizes of the text, ascending.")
    add("--num_workers", type=int, default=len(os.sched_getaffinity(0)), help="Processes.")
    add(
        "--work_dir",
        help="Folder for text and records while they are needed. Unset: that of temporary files.",
    )
    outputs.add_flags(parser)
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    outputs.check_results(flags)
    command_line.check_counts(flags, "num_workers")
    if flags.measured and (flags.input_files or flags.vocab_file):
        raise ConfigError("--measured measures nothing. Drop it, or --input_files and --vocab_file.")
    if not flags.measured and not (flags.input_files and flags.vocab_file):
        raise ConfigError("Give --input_files and --vocab_file, or --measured with an earlier result.")
    try:
        flags.sizes = [round(float(size) * 1e9) for size in flags.gigabytes.split(",")]
    except (ValueError, OverflowError):
        flags.sizes = [0]
    if min(flags.sizes) < 10**5 or sorted(set(flags.sizes)) != flags.sizes:
        raise ConfigError(
            f"--gigabytes={flags.gigabytes} is no list of ascending sizes of 0.0001 or more. Example:"
            " 0.01,0.1,1."
        )
    return flags


def write_text(path: str, texts: list[bytes], size: int) -> None:
    """Writes `size` bytes of text, or a little more: the texts again and again, each time with other words
    changed, so that no two documents are the same."""
    import numpy as np

    rng = np.random.default_rng(0)
    words = np.array([word for text in texts for word in text.split(b" ")], object)
    plain = np.flatnonzero([word.isalpha() for word in words])
    with open(path, "wb") as file:
        while file.tell() < size:
            changed = words.copy()
            places = plain[rng.random(len(plain)) < _CHANGED]
            changed[places] = words[rng.choice(plain, len(places))]
            file.write(b" ".join(changed.tolist())[: size - file.tell() + (1 << 16)] + b"\n\n")


def _processes_of(parent: int) -> Iterator[tuple[int, list[str]]]:
    """Yields a process and those below it, with what /proc/N/stat says behind the name."""
    stats = {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
                stats[int(number)] = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
    own = {parent}
    while more := {number for number, stat in stats.items() if int(stat[1]) in own} - own:
        own |= more
    yield from ((number, stats[number]) for number in own & stats.keys())


def _open_files_of(process: int) -> int:
    """Returns the open files, pipes and libraries' handles of a process, 0 where it has ended."""
    try:
        return len(os.listdir(f"/proc/{process}/fd"))
    except OSError:
        return 0


def _size_of(folder: str) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(root, name))
            except OSError:
                continue  # it was renamed
    return total


def watch(command: list[str], folder: str) -> dict:
    """Runs a command and returns {secs, core_secs, peak_memory_bytes, peak_disk_bytes, peak_open_files}: of
    all its processes together, of the largest of them, of what lies in a folder, and of one with most.

    Raises:
      RuntimeError: where it fails.
    """
    started, cores, memory, disk, files = time.monotonic(), {}, 0, 0, 0
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            while process.poll() is None:
                for number, stat in _processes_of(process.pid):
                    cores[number] = int(stat[11]) + int(stat[12])
                    memory = max(memory, int(stat[21]) * os.sysconf("SC_PAGE_SIZE"))
                    files = max(files, _open_files_of(number))
                disk = max(disk, _size_of(folder))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_SECS)
        finally:
            process.kill()
            process.wait()
        secs = time.monotonic() - started
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {errors.read().decode()[-2000:]}")
    return {
        "secs": secs,
        "core_secs": sum(cores.values()) / os.sysconf("SC_CLK_TCK"),
        "peak_memory_bytes": memory,
        "peak_disk_bytes": max(disk, _size_of(folder)),
        "peak_open_files": files,
    }


def measure(flags, folder: str, texts: list[bytes], size: int) -> dict:
    """Makes a text and its records, and returns what that took: of several runs the one of median time, and
    the most memory, disk and open files of any."""
    from official.data.pretraining import creation, disk_needs, examples
    from official.data.word_pieces.vocabulary import load_for_text

    path, records = os.path.join(folder, "text"), os.path.join(folder, "records")
    write_text(path, texts, size)
    text = os.path.getsize(path)
    rules = examples.ExampleRules(dupe_factor=1)
    job = creation.Job(path, records, flags.vocab_file, rules, record_format="compact")
    needs = disk_needs.estimate(job, {path: text}, 1, load_for_text(flags.vocab_file, None))
    runs: list[dict] = []
    while len(runs) < _MOST_RUNS and sum(run["secs"] for run in runs) < _LEAST_SECS:
        runs.append(_run(flags, path, records))
    os.remove(path)
    row = dict(sorted(runs, key=lambda run: run["secs"])[len(runs) // 2])
    row |= {name: max(run[name] for run in runs) for name in row if name.startswith("peak_")}
    return {
        "text_bytes": text,
        "runs": len(runs),
        **row,
        "ms_per_mb": row["rounds_secs"] / text * 1e9,
        "whole_ms_per_mb": row["secs"] / text * 1e9,
        "core_ms_per_mb": row["core_secs"] / text * 1e9,
        "estimated_disk_bytes": needs.most,
    }


def _run(flags, path: str, records: str) -> dict:
    """Makes the records of a text, removes them, and returns what `watch` does, and what the job says."""
    command = [
        *command_line.in_new_process("data", "create"),
        f"--input_files={path}",
        f"--output_dir={records}",
        f"--vocab_file={flags.vocab_file}",
        f"--num_workers={flags.num_workers}",
        "--dupe_factor=1",
        "--record_format=compact",
    ]
    found = watch(command, records)
    manifest = read_json(os.path.join(records, "manifest.json"))
    rounds = read_json(os.path.join(records, jobs.FILE_NAME))["rounds"]
    shutil.rmtree(records)
    return {
        **found,
        "rounds_secs": sum(each["secs"] for each in rounds),
        "documents": manifest["documents"],
        "tokens": manifest["tokens"],
        "pools": manifest["pools"],
        "files": len(manifest["files"]),
    }


def read_measured(path: str) -> tuple[int, list[dict]]:
    """Returns the processes and the rows of an earlier result. Raises ConfigError where it is none."""
    figures = read_json(path)
    num_workers = json_files.expect(figures, "num_workers", int, path)
    rows = json_files.expect(figures, "measured", list, path)
    for place, row in enumerate(rows, 1):
        for name in _NUMBERS:
            source = f"{path}, measured row {place}"
            if not json_files.expect(row, name, float, source) > 0:
                raise ConfigError(f'{source}: "{name}" is {row[name]}, expected a number above 0.')
    if not rows or num_workers < 1:
        raise ConfigError(f'{path}: "measured" has no row, or "num_workers" is below 1.')
    return num_workers, sorted(rows, key=lambda row: row["text_bytes"])


def draw(figures: dict) -> bytes:
    from official.reporting import measurement

    bars = [
        measurement.Bar(
            f"{row['text_bytes'] / 1e9:.3g} GB",
            row["secs"] / row["text_bytes"] * 1e9,
            0.0,
            f"{row['secs'] / row['text_bytes'] * 1e9:.1f} ms, {row['peak_memory_bytes'] / 1e6:.0f} MB",
            "records",
        )
        for row in figures["measured"]
    ]
    unit = "ms per MB of text; memory of the largest process"
    return measurement.draw_bars(bars, "Text to records, whole jobs", unit)


def measure_all(flags: argparse.Namespace) -> list[dict]:
    """Measures and prints each size."""
    from official.io import files

    texts, rows = [], []
    for path in files.find_files(flags.input_files, "input_files"):
        with files.open_binary(path) as file:
            texts.append(file.read() + b"\n\n")
    if not b"".join(texts).strip():  # more of it would never be enough
        raise ConfigError(f"--input_files={flags.input_files} has no text.")
    if flags.work_dir:
        os.makedirs(flags.work_dir, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=flags.work_dir) as folder:
        for size in flags.sizes:
            rows.append(measure(flags, folder, texts, size))
            _show(rows[-1])
    return rows


def main() -> None:
    flags = parse_flags()
    num_workers, rows = (
        read_measured(flags.measured) if flags.measured else (flags.num_workers, measure_all(flags))
    )
    from official.cli.benchmark import data_scale_model  # late: it loads what a job loads

    machine = data_scale_model.this_machine(flags.work_dir or tempfile.gettempdir())
    modelled = [data_scale_model.model(rows, num_workers, size, machine) for size in MODELLED_BYTES]
    for row in modelled:
        print(data_scale_model.described(row))
    figures = {
        "num_workers": num_workers,
        "measured": rows,
        "modelled": modelled,
        "assumptions": data_scale_model.ASSUMPTIONS,
    }
    outputs.write_results(flags.output, figures, lambda: draw(figures))


def _show(row: dict) -> None:
    memory, disk = row["peak_memory_bytes"] / 1e6, row["peak_disk_bytes"] / 1e9
    print(
        f"{row['text_bytes'] / 1e9:,.3g} GB: {row['secs']:,.1f} s, {row['whole_ms_per_mb']:.1f} ms per MB"
        f" ({row['ms_per_mb']:.1f} without the start), {row['core_secs']:,.0f} s of a core, memory"
        f" {memory:,.0f} MB, disk {disk:,.2f} GB"
    )
