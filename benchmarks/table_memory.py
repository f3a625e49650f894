"""Measures the memory of jobs on a user's table as a function of its number of rows.

  python benchmarks/table_memory.py --init_checkpoint=MODEL --work_dir=runs/table_memory \\
    --output=results/table_memory.json

Each row of a table has a short text of random words and one of two labels. The jobs:

  train: `train.py --task=classify` reads it, holds some rows out, tokenizes all, trains --train_steps updates
  and
    evaluates.
  embed: `bert embed` writes the vectors of its texts.
  search: `bert search` finds the nearest neighbours of a text among the vectors of embed.

The peak is that of the largest process; the difference from the small table is the cost of the rows.
"""

import argparse
import os
import random
import sys
import tempfile

import harness
from official.cli import command_line, outputs

JOBS = ("train", "embed", "search")
WORDS = "the a good bad film story was is not very long short and of with its people plot actor scene".split()


class Main(harness.NumbersFlags):
    """Flags of the command.

    Attributes:
      init_checkpoint: Folder of an encoder.
      work_dir: Folder of the temporary tables and runs.
      jobs: Comma-separated: train, embed, search.
      rows: Number of rows of the large table.
      few_rows: Number of rows of the small table.
      train_steps: Number of updates of every run.
      eval_rows: Approximate number of held-out rows.
    """

    RANGES = dict.fromkeys(("rows", "few_rows", "train_steps", "eval_rows"), command_line.COUNT)
    init_checkpoint: str
    work_dir: str
    jobs: str = "train"
    rows: int = 10_000_000
    few_rows: int = 100_000
    train_steps: int = 4
    eval_rows: int = 1000


def write_table(path: str, rows: int) -> None:
    """Writes a table of distinct random rows."""
    generator = random.Random(0)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(4, 12))) for _ in range(9973)]
    with open(path, "w", encoding="utf-8") as file:
        file.write("text,label\n")
        file.writelines(
            f"{texts[number % len(texts)]} {number},{'yes' if number % 2 else 'no'}\n"
            for number in range(rows)
        )


def command_of(job: str, flags: argparse.Namespace, rows: int, table: str, folder: str) -> list[str]:
    """Returns the command of a job; all jobs of a table share a folder."""
    model, vectors = flags.init_checkpoint, os.path.join(folder, "vectors.npy")
    if job == "train":
        return [
            sys.executable,
            os.path.join(harness.ROOT, "train.py"),
            "--task=classify",
            f"--train_file={table}",
            f"--init_checkpoint={model}",
            f"--model_dir={os.path.join(folder, 'run')}",
            "--max_seq_length=64",
            f"--eval_share={flags.eval_rows / rows}",
            f"--num_steps_per_epoch={flags.train_steps}",
            "--num_train_epochs=1",
        ]
    if job == "embed":
        words = [f"--checkpoint={model}", f"--input_file={table}", "--text_columns=text"]
        return [*harness.in_new_process("embed"), *words, f"--output_file={vectors}"]
    return [*harness.in_new_process("search"), f"--vectors={vectors}", f"--query={' '.join(WORDS[:6])}"]


def measure(flags: argparse.Namespace, rows: int) -> list[dict]:
    """Returns {job, rows, bytes, secs, core_secs, peak_memory_bytes} of each job on a table with `rows`
    rows."""
    table, found = os.path.join(flags.work_dir, f"rows_{rows}.csv"), []
    write_table(table, rows)
    with tempfile.TemporaryDirectory(dir=flags.work_dir) as folder:
        for job in flags.jobs:
            watched = harness.watch(command_of(job, flags, rows, table, folder), folder)
            row = {"job": job, "rows": rows, "bytes": os.path.getsize(table)}
            found.append(row | {name: watched[name] for name in ("secs", "core_secs", "peak_memory_bytes")})
    os.remove(table)
    return found


def main() -> None:
    flags = Main.parse()
    flags.jobs = command_line.read_list(flags.jobs, "jobs", JOBS)
    os.makedirs(flags.work_dir, exist_ok=True)
    cases: list[dict] = []
    for rows in (flags.few_rows, flags.rows):
        for few, case in enumerate(measure(flags, rows)):
            cases.append(case)
            case["more_bytes"] = case["peak_memory_bytes"] - cases[few]["peak_memory_bytes"]
            print(case, file=sys.stderr, flush=True)
    columns = [
        ("job", "job", ""),
        ("rows", "rows", ",d"),
        ("peak bytes", "peak_memory_bytes", ",d"),
        ("more", "more_bytes", ",d"),
        ("seconds", "secs", ".0f"),
    ]
    print(outputs.table(columns, cases))
    harness.write_json(flags, {"train_steps": flags.train_steps, "seed": 0, "repeats": 1, "cases": cases})


if __name__ == "__main__":
    harness.main(main)
