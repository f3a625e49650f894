"""Times the vectors of a file's texts as whole processes, beside sentence-transformers.

  python benchmarks/embedding.py --checkpoint=models/minilm --data_dir=data --work_dir=runs/embedding \\
    --make_environments --output=results/embedding

Both read the same folder of sentence-transformers and the same CSV file: sentences of SST-2 and QNLI under
--data_dir/glue, shuffled, and repeated up to --rows. Ours is `bert embed`, in float32; the peer encodes with
the one of --batch_sizes that is fastest on --trial_rows. Both take turns, and write a NumPy file: the largest
difference between these stands beside the times.
"""

import argparse
import os
import statistics
import sys
import time

import harness
import numpy as np
from predict_file import write_rows

from official.cli import command_line, outputs
from official.config import ConfigError

SENTENCE_TRANSFORMERS = harness.Environment(
    "sentence_transformers",
    ("torch==2.13.0", "transformers==5.24.0", "sentence-transformers==5.7.0", "numpy"),
)


class Main(harness.EnvironmentFlags, harness.ChartFlags):
    """Flags of the command.

    Attributes:
      checkpoint: Folder of sentence-transformers.
      data_dir: Folder with glue/SST-2/train.tsv and glue/QNLI/dev.tsv.
      work_dir: Folder of the files that are read and written.
      rows: Rows of the file.
      batch_sizes: Comma-separated: texts of the peer's batch; all are tried.
      trial_rows: Rows of the trial.
      max_seq_length: Tokens of a text, at most; of both.
      rounds: How many times each is timed.
    """

    RANGES = dict.fromkeys(("rows", "trial_rows", "rounds", "max_seq_length"), command_line.COUNT)
    checkpoint: str
    data_dir: str
    work_dir: str
    rows: int = 100_000
    batch_sizes: str = "8,32,128"
    trial_rows: int = 2_000
    max_seq_length: int = 256
    rounds: int = 3


def run_ours(flags: argparse.Namespace, rows_file: str, output: str) -> float:
    """Runs the command, and returns its seconds. Raises ConfigError where it fails."""
    command = [
        *harness.in_new_process("embed"),
        f"--checkpoint={flags.checkpoint}",
        f"--input_file={rows_file}",
        f"--output_file={output}",
        f"--max_seq_length={flags.max_seq_length}",
        "--overwrite",
    ]
    return harness.run_logged(command, os.path.join(flags.work_dir, "ours.txt"), "bert embed")


def run_theirs(flags: argparse.Namespace, rows_file: str, output: str, batch: int) -> tuple[float, dict]:
    """Runs the peer, and returns its seconds, and what it says."""
    began = time.perf_counter()
    specification = {
        "model": os.path.abspath(flags.checkpoint),
        "input_file": os.path.abspath(rows_file),
        "output_file": os.path.abspath(output),
        "batch_size": batch,
        "max_seq_length": flags.max_seq_length,
        "threads": len(os.sched_getaffinity(0)),
    }
    name, advice = f"sentence-transformers, batches of {batch}", ": give smaller --batch_sizes"
    folder = os.path.join(flags.work_dir, "peer")
    environment = SENTENCE_TRANSFORMERS
    with harness.program(name, "sentence_vectors.py", environment, flags, folder, advice) as program:
        program.ask(specification)
        found = program.answer()
    return time.perf_counter() - began, found


def main() -> None:
    flags = Main.parse()
    sizes = [int(size) for size in flags.batch_sizes.split(",") if size.strip().isdecimal()]
    if not sizes:
        raise ConfigError(f"--batch_sizes={flags.batch_sizes}: expected numbers, such as 8,32.")
    harness.prepare([("sentence-transformers", SENTENCE_TRANSFORMERS)], flags)
    os.makedirs(flags.work_dir, exist_ok=True)
    rows_file, own_file, peer_file = (
        os.path.join(flags.work_dir, name) for name in ("rows.csv", "ours.npy", "peer.npy")
    )
    write_rows(flags.data_dir, rows_file, min(flags.trial_rows, flags.rows))
    tried = {size: run_theirs(flags, rows_file, peer_file, size)[1]["embed_secs"] for size in sizes}
    print({f"trial of {size}": round(each, 1) for size, each in tried.items()}, file=sys.stderr, flush=True)
    size = min(tried, key=tried.__getitem__)
    write_rows(flags.data_dir, rows_file, flags.rows)
    peer = f"sentence-transformers {size}"
    secs: dict[str, list[float]] = {"ours": [], peer: []}
    inner: list[float] = []
    apart, versions = 0.0, {}
    for _ in range(flags.rounds):
        secs["ours"].append(run_ours(flags, rows_file, own_file))
        taken, found = run_theirs(flags, rows_file, peer_file, size)
        secs[peer].append(taken)
        inner.append(found["embed_secs"])
        versions = found["versions"]
        apart = max(apart, float(np.abs(np.load(own_file) - np.load(peer_file)).max()))
        print({name: round(values[-1], 1) for name, values in secs.items()}, file=sys.stderr, flush=True)
    cases = [
        {
            "name": name,
            "secs": values,
            "median_secs": statistics.median(values),
            "rows_per_sec": flags.rows / statistics.median(values),
            "spread": (max(values) - min(values)) / statistics.median(values),
            **({"embed_secs": inner} if name == peer else {}),
        }
        for name, values in secs.items()
    ]
    own, best = cases
    record = {
        "rows": flags.rows,
        "max_seq_length": flags.max_seq_length,
        "rounds": flags.rounds,
        "requirements": SENTENCE_TRANSFORMERS.requirements,
        "peer_versions": versions,
        "best_peer": best["name"],
        "trial_rows": flags.trial_rows,
        "trial_secs": tried,
        "ratio": best["median_secs"] / own["median_secs"],
        "ratios": [one / other for one, other in zip(best["secs"], own["secs"])],
        "largest_difference": apart,
        "cases": cases,
    }
    columns = [("case", "name", ""), ("seconds", "median_secs", ".1f"), ("texts/s", "rows_per_sec", ".0f")]
    print(outputs.table(columns, cases))
    print(f"{record['ratio']:.2f} x {best['name']}, vectors up to {apart:.1e} apart")
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
    title = f"Vectors of {flags.rows:,} texts of a file, whole processes"
    harness.write(flags, record, bars, title, "texts per second")


if __name__ == "__main__":
    harness.main(main)
