"""Measures training step, inference and memory of ModernBERT, compared with transformers, on full and mixed
lengths.

  python benchmarks/long_texts.py --make_environments --output=results/long_texts

Cases: two texts of 512 tokens, 16 texts of mixed lengths up to 8,192 tokens, and one of 8,192, for the
memory. The work of a case is a masked-LM training step (AdamW, no dropout, as ModernBERT is trained) or
computing the vectors of all tokens. transformers gets the form that suits the case: texts of one length are
rows, plain and compiled. Mixed texts are processed one by one with accumulated gradients, since padding to
the longest would need nine times the tokens. Masked tokens are gathered before its output layer, as with its
sparse_prediction; `default` is the unchanged ModernBertForMaskedLM, which computes the logits of all tokens.
Weights are random: the losses start near the logarithm of the vocabulary size, and decrease alike.

Every system runs in a separate process. The systems of a case and work run in turns; above 4,096 tokens, only
one system at a time is in memory. Results are medians, and the peak resident memory of each process. The code
of all is in programs/long_texts.py.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import harness
from harness import NEW_HUGGINGFACE, Environment
from official.cli import command_line, outputs
from official.io.errors import ConfigError

CASES = {
    "512x2": [512] * 2,
    "mixed": [32, 48, 64, 96, 128, 128, 192, 256, 256, 384, 512, 512, 768, 1024, 2048, 8192],
    "8192x1": [8192],
}
WORKS = ("train", "infer")
_TOGETHER = 4096  # maximum tokens of a case for having all systems in memory at once


class Peer(NamedTuple):
    """A system: its title, its name and variant in programs/long_texts.py, its environment (None: this
    one)."""

    title: str
    system: str
    variant: str = ""
    environment: Environment | None = None


PEERS = {
    "ours": Peer("this project", "ours"),
    "padded": Peer("transformers, padded", "huggingface", "sdpa", NEW_HUGGINGFACE),
    "compiled": Peer("transformers, padded, compiled", "huggingface", "sdpa+compiled", NEW_HUGGINGFACE),
    "default": Peer("transformers, default, compiled", "huggingface", "sdpa+compiled+whole", NEW_HUGGINGFACE),
    "apart": Peer("transformers, text by text", "huggingface", "sdpa+apart", NEW_HUGGINGFACE),
}
TRAINING = {"learning_rate": 1e-4, "weight_decay": 0.01, "epsilon": 1e-6, "clip_norm": 1.0, "seed": 12345}


class Main(harness.EnvironmentFlags, harness.ChartFlags):
    """Flags of the command.

    Attributes:
      bert_config_file: Model.
      cases: Comma-separated: 512x2, mixed, 8192x1, or colon-separated lengths, such as 64:64:300.
      works: Comma-separated: train, infer.
      peers: Comma-separated systems; the error for another name lists them.
      dtypes: Comma-separated: fp32, bf16.
      rounds: Number of timings of every system, after a warm-up.
    """

    RANGES = {"rounds": command_line.COUNT}
    bert_config_file: str = "configs/models/modernbert_base.json"
    cases: str = "512x2,mixed,8192x1"
    works: str = "train,infer"
    peers: str = "ours,padded,compiled,default,apart"
    dtypes: str = "fp32"
    rounds: int = 3


def read_cases(text: str, positions: int) -> dict[str, list[int]]:
    """Returns {case: lengths}. Raises ConfigError."""
    found = {}
    for name in text.split(","):
        try:
            found[name] = CASES.get(name) or [int(length) for length in name.split(":")]
        except ValueError:
            raise ConfigError(
                f"--cases={text}: {name} is none of {', '.join(CASES)}, nor a list of lengths."
            ) from None
        if not all(8 <= length <= positions for length in found[name]):
            raise ConfigError(f"--cases={text}: lengths of {name} are not from 8 to {positions:,}.")
    return found


def measure(
    flags: argparse.Namespace, model: dict, work: str, dtype: str, case: tuple[str, list[int]]
) -> list[dict]:
    """Returns a row per system."""
    name, lengths = case
    are_mixed = len(set(lengths)) > 1
    peers = [peer for peer in flags.peers if peer == "ours" or (peer == "apart") == are_mixed]
    peers = [peer for peer in peers if work == "train" or peer != "default"]  # vectors have no output layer
    groups = [peers] if sum(lengths) <= _TOGETHER else [[peer] for peer in peers]
    title, asked = f"{work}, {dtype}, {name}", {"work": work, "lengths": lengths, "dtype": dtype}
    rows: list[dict] = []
    for group in groups:
        rows += _measure(
            flags, group, title, {**asked, "model": model, "threads": os.cpu_count(), **TRAINING}
        )
    return rows


def _measure(flags: argparse.Namespace, peers: list[str], title: str, asked: dict) -> list[dict]:
    """Runs the systems in turns; returns a row per system."""
    advice = ": ask for fewer --peers at a time, or smaller --cases"
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        programs, started, last = {}, {}, {}
        for peer in peers:
            row, log = PEERS[peer], os.path.join(folder, peer)
            program = harness.program(
                f"--peers: {peer}", "long_texts.py", row.environment, flags, log, advice
            )
            programs[peer] = stack.enter_context(program)
            programs[peer].ask({"system": row.system, "variant": row.variant, **asked})
            started[peer] = programs[peer].answer()

        def run(peer: str) -> None:
            programs[peer].ask({"steps": 1})
            last[peer] = programs[peer].answer()

        works: dict[str, Callable[[], Any]] = {peer: functools.partial(run, peer) for peer in peers}
        # For long texts the first step, which compiles, suffices as warm-up.
        warmup = 1 if len(peers) > 1 else 0
        timings = harness.in_turns(works, flags.rounds, warmup_rounds=warmup, title=title)
    return [
        {
            "case": title,
            **{key: asked[key] for key in ("work", "dtype", "lengths")},
            "peer": peer,
            "secs": timing.secs,
            "median_secs": timing.median,
            "spread": timing.spread,
            "tokens_per_sec": timing.rate(sum(asked["lengths"])),
            "peak_bytes": last[peer]["peak_bytes"],
            "start_secs": started[peer]["start_secs"],
            "losses": [*started[peer]["losses"], *last[peer]["losses"]],
        }
        for peer, timing in timings.items()
    ]


def compare(rows: list[dict]) -> list[dict]:
    """Returns {case, fastest, speedup, least_memory, memory} of each case: this project's speed relative to
    the fastest other system, and its memory relative to the one with the least."""
    found = []
    for case in dict.fromkeys(row["case"] for row in rows):
        own = {row["peer"]: row for row in rows if row["case"] == case}
        ours = own.pop("ours", None)
        if ours and own:
            fastest = min(own, key=lambda peer: own[peer]["median_secs"])
            least = min(own, key=lambda peer: own[peer]["peak_bytes"])
            speedup = own[fastest]["median_secs"] / ours["median_secs"]
            memory = ours["peak_bytes"] / own[least]["peak_bytes"]
            compared = {"fastest": fastest, "speedup": speedup, "least_memory": least, "memory": memory}
            found.append({"case": case, **compared})
    return found


def report(flags: argparse.Namespace, rows: list[dict]) -> None:
    """Prints and writes the measurements."""
    shown = [
        {
            **row,
            "name": f"{row['case']}  {PEERS[row['peer']].title}",
            "gb": row["peak_bytes"] / 1e9,
            "ends": f"{row['losses'][0]:.3f} > {row['losses'][-1]:.3f}",
        }
        for row in rows
    ]
    columns = [
        ("case, system", "name", ""),
        ("s", "median_secs", ".2f"),
        ("+-", "spread", ".1%"),
        ("tokens/s", "tokens_per_sec", ",.0f"),
        ("peak GB", "gb", ".2f"),
        ("losses", "ends", ""),
    ]
    compared = compare(rows)
    lines = [
        f"{row['case']}: {row['speedup']:.2f} x {PEERS[row['fastest']].title}; {row['memory']:.2f} of the"
        f" memory of {PEERS[row['least_memory']].title}"
        for row in compared
    ]
    print("\n".join([outputs.table(columns, shown), *lines]))
    name = outputs.stem(flags.bert_config_file)
    record = {"model": name, "rounds": flags.rounds, **TRAINING, "requirements": NEW_HUGGINGFACE.requirements}
    bars = [
        (
            f"{row['case']}: {PEERS[row['peer']].title}",
            row["tokens_per_sec"],
            row["spread"],
            f"{row['tokens_per_sec']:,.0f}",
            PEERS[row["peer"]].system,
        )
        for row in rows
    ]
    harness.write(flags, {**record, "comparison": compared, "cases": rows}, bars, name, "tokens per second")


def main() -> None:
    flags = Main.parse()
    flags.peers = command_line.read_list(flags.peers, "peers", tuple(PEERS))
    works = command_line.read_list(flags.works, "works", WORKS)
    dtypes = command_line.read_list(flags.dtypes, "dtypes", ("fp32", "bf16"))
    model = harness.read_model(flags.bert_config_file)
    cases = read_cases(flags.cases, model["max_position_embeddings"])
    harness.prepare([(name, PEERS[name].environment) for name in flags.peers], flags)
    rows: list[dict] = []
    try:  # keeps the measured cases if a system runs out of memory
        for case, dtype, work in itertools.product(cases.items(), dtypes, works):
            rows += measure(flags, model, work, dtype, case)
    finally:
        if rows:
            report(flags, rows)


if __name__ == "__main__":
    harness.main(main)
