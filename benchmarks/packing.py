"""Measures the gain of packing: sequences/s of training on packed rows, and without padding (--unpad),
compared with one padded row per sequence.

  python benchmarks/packing.py --input_files=data/wikipedia_512/train/*.tfrecord --max_seq_length=512 \\
    --max_predictions_per_seq=76 --train_batch_size=4 --dtypes=fp32,bf16 --output=results/packing_bert_base

Runs whole training steps on the records of --input_files, in turns, several rounds, in one process. The bound
follows from the lengths: tokens per row / mean tokens per sequence. Without padding, operations are compiled
for each number of tokens: with 20 or more --steps this is done before the timing.
"""

import argparse
import tempfile
from collections.abc import Callable
from typing import Any

import harness
import official
from official.cli import command_line, outputs
from official.config import Config

_KINDS = ("plain", "unpadded", "packed")
_COUNTED_ROWS = 4096  # to count the sequences per row: more rows than are timed


class Main(harness.ModelFlag, harness.GpusFlag, harness.ChartFlags):
    """Flags of the command.

    Attributes:
      input_files: Records: files or globs, comma-separated.
      max_seq_length: Number of tokens per row.
      max_predictions_per_seq: Maximum number of masked tokens in the records.
      train_batch_size: Number of rows per step.
      max_sequences_per_pack: Maximum number of sequences per packed row.
      dtypes: Comma-separated: fp32, bf16, fp16.
      rounds: Number of timings of each case.
      steps: Number of steps per timing.
    """

    RANGES = dict.fromkeys(("rounds", "steps", "train_batch_size"), command_line.COUNT)
    input_files: str
    max_seq_length: int = 512
    max_predictions_per_seq: int = 76
    train_batch_size: int = 4
    max_sequences_per_pack: int | None = None
    dtypes: str = "fp32"
    rounds: int = 7
    steps: int = 1


def make_configs(flags: argparse.Namespace, folder: str) -> dict[str, Config]:
    """Returns {"dtype, kind": configuration}."""
    from official.training import step_benchmark

    model = harness.read_model(flags.bert_config_file)
    shared = {
        "use_synthetic_data": False,
        "input_files": flags.input_files,
        "max_predictions_per_seq": flags.max_predictions_per_seq,
        "num_gpus": flags.num_gpus,
        "model_dir": folder,
    }
    kinds = {
        "plain": {},
        "unpadded": {"unpad": True},
        "packed": {"pack_on_the_fly": True, "max_sequences_per_pack": flags.max_sequences_per_pack},
    }
    return {
        f"{dtype}, {kind}": step_benchmark.step_config(
            model, flags.max_seq_length, flags.train_batch_size, dtype, {**shared, **kinds[kind]}
        )
        for dtype in flags.dtypes
        for kind in _KINDS
    }


def measure(flags: argparse.Namespace, folder: str) -> dict:
    """Returns {cases: [...], gains: {dtype: ...}, bound, sequences_per_row, packing_efficiency}."""
    if len(flags.dtypes) == 1:  # the choice is per process
        official.choose_kernels(*flags.dtypes)  # those of train.py
    from official.tasks import TASKS
    from official.training import step_benchmark

    configs = make_configs(flags, folder)
    works: dict[str, Callable[[], Any]] = {
        name: step_benchmark.make_step(config, TASKS["pretrain"], flags.steps, reads_data=True)
        for name, config in configs.items()
    }
    timings = harness.in_turns(works, flags.rounds)
    sequences, tokens, rows = count(configs[f"{flags.dtypes[0]}, packed"])
    in_row = {"plain": 1.0, "unpadded": 1.0, "packed": sequences / rows}
    cases = [_case(flags, dtype, kind, timings, in_row[kind]) for dtype in flags.dtypes for kind in _KINDS]
    bound = flags.max_seq_length * sequences / tokens
    return {
        "cases": cases,
        "bound": bound,
        "gains": {
            f"{dtype}, {kind}": _gain(cases, dtype, kind, bound)
            for dtype in flags.dtypes
            for kind in _KINDS[1:]
        },
        "sequences_per_row": in_row["packed"],
        "packing_efficiency": tokens / rows / flags.max_seq_length,
    }


def count(config: Config) -> tuple[int, int, int]:
    """Returns the numbers of sequences and tokens of the first packed rows of a run, and of these rows."""
    from official.data.pipeline import TrainingOrder
    from official.tasks import TASKS

    task = TASKS["pretrain"](config)
    task.find_data()
    dataset = task.train_dataset(config.train_batch_size, config.train_batch_size, TrainingOrder(config.seed))
    batches = list(dataset.take(-(-_COUNTED_ROWS // config.train_batch_size)).as_numpy_iterator())
    sequences = sum(int(batch["example_weights"].sum()) for batch in batches)
    return (
        sequences,
        sum(int(batch["input_mask"].sum()) for batch in batches),
        len(batches) * config.train_batch_size,
    )


def _case(flags: argparse.Namespace, dtype: str, kind: str, timings: dict, in_row: float) -> dict:
    timing = timings[f"{dtype}, {kind}"]
    return {
        "name": f"{dtype}, {kind}",
        "dtype": dtype,
        "kind": kind,
        "max_seq_length": flags.max_seq_length,
        "train_batch_size": flags.train_batch_size,
        "step_secs": timing.median / flags.steps,
        "sequences_per_sec": timing.rate(flags.train_batch_size * flags.steps * in_row),
        "spread": timing.spread,
        "secs": timing.secs,
    }


def _gain(cases: list[dict], dtype: str, kind: str, bound: float) -> dict:
    """Returns the ratio of sequences/s to padded rows, and its share of the gain of the bound."""
    rates = {row["kind"]: row["sequences_per_sec"] for row in cases if row["dtype"] == dtype}
    ratio = rates[kind] / rates["plain"]
    return {"ratio": ratio, "share_of_bound": (ratio - 1) / (bound - 1) if bound > 1 else None}


def describe(measured: dict) -> str:
    columns = [
        ("case", "name", ""),
        ("s/step", "step_secs", ".3f"),
        ("seq/s", "sequences_per_sec", ".3f"),
        ("+-", "spread", ".1%"),
    ]
    lines = [
        outputs.table(columns, measured["cases"]),
        f"{measured['sequences_per_row']:.3f} sequences a row, {measured['packing_efficiency']:.2%} of its"
        f" positions taken; the lengths allow {measured['bound']:.3f} times the sequences/s",
    ]
    for name, gain in measured["gains"].items():
        share = gain["share_of_bound"]
        allowed = f": {share:.0%} of what the lengths allow" if share is not None else ""
        lines.append(f"{name}: {gain['ratio']:.3f} times the sequences/s{allowed}")
    return "\n".join(lines)


def main() -> None:
    flags = Main.parse()
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", ("fp32", "bf16", "fp16"))
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(flags, folder)
    print(describe(measured))
    model = outputs.stem(flags.bert_config_file)
    record = {"model": model, "rounds": flags.rounds, "seed": 12345, **measured}
    plain = {row["dtype"]: row["sequences_per_sec"] for row in measured["cases"] if row["kind"] == "plain"}
    bars = [
        (
            row["name"],
            row["sequences_per_sec"] / plain[row["dtype"]],
            row["spread"],
            f"{row['sequences_per_sec']:.3g} seq/s",
            row["dtype"],
        )
        for row in measured["cases"]
    ]
    title = f"Rows without padding, {model}, {flags.max_seq_length} tokens"
    unit = "sequences/s over those of one sequence a row"
    harness.write(flags, record, bars, title, unit, limit=measured["bound"], limit_text="lengths")


if __name__ == "__main__":
    harness.main(main)
