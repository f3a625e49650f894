"""Measures the creation of records from increasing amounts of text.

  python benchmarks/data_scale.py --input_files=wikipedia --vocab_file=vocab.txt --gigabytes=0.01,0.1,1,10 \\
    --work_dir=scratch --output=results/data_scale

The text is repeated with a tenth of its words changed. 10 GB of it need about 40 GB of disk. Jobs of a few
seconds are run several times, and the one with the median time is reported. A job takes a fixed time to
start, and for its data card: the time per MB is given with and without it.
"""

import argparse
import os
import shutil
import tempfile

import harness
from official.cli import command_line
from official.io import jobs
from official.io.errors import ConfigError
from official.io.json_files import read_json

_CHANGED = 0.1  # of the words
_LEAST_SECS, _MOST_RUNS = 20.0, 9  # a short job is repeated up to this total time, or this many times


class Main(harness.ChartFlags):
    """Flags of the command.

    Attributes:
      input_files: Text: comma-separated files, globs or folders.
      vocab_file: Vocabulary.
      gigabytes: Sizes of the text, ascending.
      num_workers: Processes.
      work_dir: Folder for temporary text and records. Unset: the system's folder of temporary files.
    """

    RANGES = {"num_workers": command_line.COUNT}
    input_files: str
    vocab_file: str
    gigabytes: str = "0.01,0.1,1,10"
    num_workers: int = len(os.sched_getaffinity(0))
    work_dir: str | None = None


def write_text(path: str, texts: list[bytes], size: int) -> None:
    """Writes at least `size` bytes of text: repeats the texts, each time with other words changed, so that no
    two documents are the same."""
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


def measure(flags, folder: str, texts: list[bytes], size: int) -> dict:
    """Makes a text and its records. Returns the measurements of the run with the median time, and the maximum
    memory, disk and open files of all runs."""
    from official.data.pretraining import creation, disk_needs, examples
    from official.data.text.text_files import Split
    from official.data.word_pieces.vocabulary import load_for_text

    path, records = os.path.join(folder, "text"), os.path.join(folder, "records")
    write_text(path, texts, size)
    text = os.path.getsize(path)
    rules = examples.ExampleRules(dupe_factor=1)
    words = load_for_text(flags.vocab_file, None)
    about_words = {"do_lower_case": words.do_lower_case, "vocabulary_sha256": words.sha256}
    job = creation.Job(path, records, flags.vocab_file, rules, record_format="compact", **about_words)
    work_bytes, record_bytes = disk_needs.estimate(job, [[Split(path)]], {path: text}, words)
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
        "estimated_disk_bytes": work_bytes + max(record_bytes, work_bytes),
    }


def _run(flags, path: str, records: str) -> dict:
    """Makes the records of a text, removes them, and returns the results of `watch` and of the job."""
    command = [
        *harness.in_new_process("data", "create"),
        f"--input_files={path}",
        f"--output_dir={records}",
        f"--vocab_file={flags.vocab_file}",
        f"--num_workers={flags.num_workers}",
        "--dupe_factor=1",
        "--record_format=compact",
    ]
    found = harness.watch(command, records)
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


def measure_all(flags: argparse.Namespace) -> list[dict]:
    """Measures and prints each size."""
    from official.io import files

    texts, rows = [], []
    for path in files.find_files(flags.input_files, "input_files"):
        with files.open_binary(path) as file:
            texts.append(file.read() + b"\n\n")
    if not b"".join(texts).strip():  # repeating an empty text would never end
        raise ConfigError(f"--input_files={flags.input_files} has no text.")
    if flags.work_dir:
        os.makedirs(flags.work_dir, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=flags.work_dir) as folder:
        for size in flags.sizes:
            rows.append(measure(flags, folder, texts, size))
            _show(rows[-1])
    return rows


def _show(row: dict) -> None:
    memory, disk = row["peak_memory_bytes"] / 1e6, row["peak_disk_bytes"] / 1e9
    print(
        f"{row['text_bytes'] / 1e9:,.3g} GB: {row['secs']:,.1f} s, {row['whole_ms_per_mb']:.1f} ms per MB"
        f" ({row['ms_per_mb']:.1f} without the start), {row['core_secs']:,.0f} s of a core, memory"
        f" {memory:,.0f} MB, disk {disk:,.2f} GB"
    )


def main() -> None:
    flags = Main.parse()
    try:
        flags.sizes = [round(float(size) * 1e9) for size in flags.gigabytes.split(",")]
    except (ValueError, OverflowError):
        flags.sizes = [0]
    if min(flags.sizes) < 10**5 or sorted(set(flags.sizes)) != flags.sizes:
        raise ConfigError(
            f"--gigabytes={flags.gigabytes}, expected ascending sizes of 0.0001 or more, such as 0.01,0.1,1."
        )
    rows = measure_all(flags)
    bars = [
        (
            f"{row['text_bytes'] / 1e9:.3g} GB",
            row["secs"] / row["text_bytes"] * 1e9,
            0.0,
            f"{row['secs'] / row['text_bytes'] * 1e9:.1f} ms, {row['peak_memory_bytes'] / 1e6:.0f} MB",
            "records",
        )
        for row in rows
    ]
    record = {"num_workers": flags.num_workers, "measured": rows}
    unit = "ms per MB of text; memory of the largest process"
    harness.write(flags, record, bars, "Text to records, whole jobs", unit)


if __name__ == "__main__":
    harness.main(main)
