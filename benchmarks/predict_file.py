"""Times predictions for the rows of a file, as whole processes, compared with Hugging Face's pipeline.

  python benchmarks/predict_file.py --checkpoint=runs/sst2_hf --data_dir=data --work_dir=runs/predict_file \\
    --make_environments --output=results/predict_file

The checkpoint is a Hugging Face folder with a classifier, which both read: `bert convert native2huggingface`
makes one from a run. The rows are sentences of SST-2 and QNLI under --data_dir/glue, shuffled, and repeated
up to --rows. Ours is `bert predict --input_file=rows.csv --output_file=ours.csv`; the peer reads the same
file, passes its texts to pipeline("text-classification"), and writes the same columns. It uses the batch size
of --batch_sizes that is fastest on --trial_rows. Both run in turns. At the end ours is killed during its work
and restarted: the file must be byte-equal.
"""

import contextlib
import csv
import itertools
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import harness
from official.cli import command_line, outputs
from official.config import ConfigError
from own_data import HUGGINGFACE


class RowsFlags(harness.EnvironmentFlags, harness.ChartFlags):
    """Flags of a benchmark that compares a command on the rows of a file with a peer.

    Attributes:
      checkpoint: Folder of the model, in the peer's format.
      data_dir: Folder with glue/SST-2/train.tsv and glue/QNLI/dev.tsv.
      work_dir: Folder for input and output files.
      rows: Number of rows of the file.
      batch_sizes: Comma-separated batch sizes to try for the peer.
      trial_rows: Number of rows of the trial.
      max_seq_length: Maximum number of tokens per row, for both.
      rounds: Number of timings of each.
    """

    RANGES = dict.fromkeys(("rows", "trial_rows", "rounds", "max_seq_length"), command_line.COUNT)
    checkpoint: str
    data_dir: str
    work_dir: str
    rows: int = 100_000
    batch_sizes: str = "1,4,8,16,32,64"
    trial_rows: int = 2_000
    max_seq_length: int = 128
    rounds: int = 3


class Peer(NamedTuple):
    """Another system: name, environment, program (which reports the seconds after loading the model as
    `inner_secs`), and the noun of the rate."""

    name: str
    environment: harness.Environment
    program: str
    inner_secs: str
    unit: str


def write_rows(data_dir: str, path: str, count: int) -> None:
    """Writes a table of sentences of many lengths. Raises ConfigError if an input file is missing."""
    texts = []
    for task, column in (("SST-2/train", "sentence"), ("QNLI/dev", "sentence")):
        file = os.path.join(data_dir, "glue", f"{task}.tsv")
        if not os.path.isfile(file):
            raise ConfigError(f"--data_dir={data_dir}: there is no glue/{task}.tsv.")
        with open(file, encoding="utf-8") as lines:
            head, *rows = (line.rstrip("\n").split("\t") for line in lines)
        texts += [row[head.index(column)] for row in rows if len(row) == len(head)]
    random.Random(0).shuffle(texts)
    rows = zip(range(count), itertools.cycle(texts))
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *rows])


def ours(flags: RowsFlags, command: str, rows_file: str, output: str) -> list[str]:
    """Returns a command of this project, with its flags."""
    return [
        *harness.in_new_process(command),
        f"--checkpoint={flags.checkpoint}",
        f"--input_file={rows_file}",
        f"--output_file={output}",
        f"--max_seq_length={flags.max_seq_length}",
    ]


def run_ours(flags: RowsFlags, command: str, rows_file: str, output: str) -> float:
    """Runs a command, and returns its seconds. Raises ConfigError if it fails."""
    shutil.rmtree(f"{output}.parts", ignore_errors=True)
    words = [*ours(flags, command, rows_file, output), "--overwrite"]
    return harness.run_logged(words, os.path.join(flags.work_dir, "ours.txt"), f"bert {command}")


def run_theirs(flags: RowsFlags, peer: Peer, rows_file: str, output: str, batch: int) -> tuple[float, dict]:
    """Runs a peer, and returns its seconds and its report."""
    began = time.perf_counter()
    specification = {
        "model": os.path.abspath(flags.checkpoint),
        "input_file": os.path.abspath(rows_file),
        "output_file": os.path.abspath(output),
        "batch_size": batch,
        "max_seq_length": flags.max_seq_length,
        "threads": len(os.sched_getaffinity(0)),
    }
    name, advice = f"{peer.name}, batches of {batch}", ": give smaller --batch_sizes"
    folder = os.path.join(flags.work_dir, "peer")
    with harness.program(name, peer.program, peer.environment, flags, folder, advice) as program:
        program.ask(specification)
        found = program.answer()
    return time.perf_counter() - began, found


def compare(
    flags: RowsFlags, command: str, peer: Peer, ending: str, look: Callable[[str, str], None]
) -> tuple[dict, list, tuple[str, str]]:
    """Times a command and a peer in turns, and prints a line for each.

    Args:
      flags: flags of the benchmark.
      command: command of `bert`.
      peer: the peer; it runs with the batch size that is fastest on --trial_rows.
      ending: suffix of the output files.
      look: function (our file, their file), called after each round.

    Returns:
      Record of the results, bars of their chart, the input file, and our output file.

    Raises:
      ConfigError: if one of them fails, or a flag has no valid sizes.
    """
    sizes = [int(size) for size in flags.batch_sizes.split(",") if size.strip().isdecimal()]
    if not sizes:
        raise ConfigError(f"--batch_sizes={flags.batch_sizes}: expected numbers, such as 1,8,32.")
    harness.prepare([(peer.name, peer.environment)], flags)
    os.makedirs(flags.work_dir, exist_ok=True)
    rows_file, own_file, peer_file = (
        os.path.join(flags.work_dir, name) for name in ("rows.csv", f"ours{ending}", f"peer{ending}")
    )
    write_rows(flags.data_dir, rows_file, min(flags.trial_rows, flags.rows))
    tried = {size: run_theirs(flags, peer, rows_file, peer_file, size)[1][peer.inner_secs] for size in sizes}
    print({f"trial of {size}": round(each, 1) for size, each in tried.items()}, file=sys.stderr, flush=True)
    size = min(tried, key=tried.__getitem__)
    write_rows(flags.data_dir, rows_file, flags.rows)
    best_peer = f"{peer.name} {size}"
    secs: dict[str, list[float]] = {"ours": [], best_peer: []}
    inner: list[float] = []
    versions: dict[str, str] = {}
    for _ in range(flags.rounds):
        secs["ours"].append(run_ours(flags, command, rows_file, own_file))
        taken, found = run_theirs(flags, peer, rows_file, peer_file, size)
        secs[best_peer].append(taken)
        inner.append(found[peer.inner_secs])
        versions = found["versions"]
        look(own_file, peer_file)
        print({name: round(values[-1], 1) for name, values in secs.items()}, file=sys.stderr, flush=True)
    cases = [
        {
            "name": name,
            "secs": values,
            "median_secs": statistics.median(values),
            "rows_per_sec": flags.rows / statistics.median(values),
            "spread": (max(values) - min(values)) / statistics.median(values),
            **({peer.inner_secs: inner} if name == best_peer else {}),
        }
        for name, values in secs.items()
    ]
    own, best = cases
    record = {
        "rows": flags.rows,
        "max_seq_length": flags.max_seq_length,
        "rounds": flags.rounds,
        "requirements": peer.environment.requirements,
        "peer_versions": versions,
        "best_peer": best["name"],
        "trial_rows": flags.trial_rows,
        "trial_secs": tried,
        "ratio": best["median_secs"] / own["median_secs"],
        "ratios": [one / other for one, other in zip(best["secs"], own["secs"])],
    }
    record["cases"] = cases
    rate = (f"{peer.unit}/s", "rows_per_sec", ".0f")
    print(outputs.table([("case", "name", ""), ("seconds", "median_secs", ".1f"), rate], cases))
    bars = [
        (
            case["name"],
            case["rows_per_sec"],
            case["spread"],
            f"{case['median_secs']:.1f} s",
            "ours" if case["name"] == "ours" else "peers",
        )
        for case in cases
    ]
    return record, bars, (rows_file, own_file)


# ------------------------------------------------------------------------------------------------------------
# Predictions

_POLL_SECS = 0.02
_PIPELINE = Peer("pipeline", HUGGINGFACE, "pipeline_rows.py", "predict_secs", "rows")


def goes_on(flags: RowsFlags, rows_file: str, whole: str) -> bool:
    """Kills the command after some rows, restarts it, and returns whether it writes the same file. Raises
    ConfigError if it ends before it can be killed."""
    output = os.path.join(flags.work_dir, "killed.csv")
    parts = f"{output}.parts"
    shutil.rmtree(parts, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.remove(output)
    words = ours(flags, "predict", rows_file, output)
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, env=harness.variables(None))
    try:
        while process.poll() is None and not _some_done(parts):
            time.sleep(_POLL_SECS)
        process.send_signal(signal.SIGKILL)
    finally:
        process.wait()
    if os.path.exists(output):
        raise ConfigError(f"--rows={flags.rows} are done before bert predict could be killed. Give more.")
    subprocess.run(words, check=True, env=harness.variables(None), stdout=subprocess.DEVNULL)
    with open(output, "rb") as one, open(whole, "rb") as other:
        return one.read() == other.read()


def _some_done(parts: str) -> bool:
    return any(name[0].isdigit() for _, _, names in os.walk(parts) for name in names if ".json" in name)


def same_labels(one: str, other: str) -> float:
    """Returns the share of rows to which two files give the same label."""
    with open(one, encoding="utf-8", newline="") as a, open(other, encoding="utf-8", newline="") as b:
        pairs = [(x["label"], y["label"]) for x, y in zip(csv.DictReader(a), csv.DictReader(b), strict=True)]
    return sum(x == y for x, y in pairs) / len(pairs)


def main() -> None:
    flags = RowsFlags.parse()
    agreements: list[float] = []
    look = lambda own, theirs: agreements.append(same_labels(own, theirs))
    record, bars, (rows_file, whole) = compare(flags, "predict", _PIPELINE, ".csv", look)
    record |= {"same_labels": min(agreements), "same_after_kill": goes_on(flags, rows_file, whole)}
    print(
        f"{record['ratio']:.2f} x {record['best_peer']}, same labels {record['same_labels']:.2%},"
        f" the same file after a kill: {'yes' if record['same_after_kill'] else 'NO'}"
    )
    title = f"Labels for {flags.rows:,} rows of a file, whole processes"
    harness.write(flags, record, bars, title, "rows per second")


if __name__ == "__main__":
    harness.main(main)
