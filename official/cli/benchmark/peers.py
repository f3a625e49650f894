"""Measures the training step of BERT side by side with Hugging Face + PyTorch, the TensorFlow Model Garden
and keras-hub.

  bert benchmark peers --make_environments --dtypes=fp32,bf16 --shapes=128x8,512x2 \\
    --output=results/peers_bert_base

Every system runs in a process of its own, in a virtual environment of its own that --make_environments makes,
and does the same work: masked-LM over the masked positions and next sentence, dropout 0.1, clipping at a
global norm of 1, AdamW at one constant learning rate, the same batch of full-length sequences in every step.
The losses of all steps stand side by side: they begin near the logarithm of the words, and fall alike.

All take turns, several rounds; medians, with half the distance between the quartiles beside them. Some of the
peers' code is in peer_programs/.
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import sys
import tempfile

from official.cli import command_line, outputs
from official.cli.benchmark import environments as environments_lib
from official.cli.benchmark import inputs
from official.cli.benchmark.programs import Program

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_programs")


@dataclasses.dataclass(frozen=True)
class Peer:
    """A system: its name in charts, the program in peer_programs/, its variant, and what its environment
    holds (none: this one)."""

    title: str
    program: str
    variant: str
    environment: str | None = None
    requirements: tuple[str, ...] = ()


_HUGGINGFACE = ("huggingface", ("torch==2.13.0", "transformers==5.0.0", "accelerate==1.12.0", "numpy"))
PEERS = {
    "ours": Peer("this project", "ours.py", "fused"),
    "ours_plain": Peer("this project, plain", "ours.py", "plain"),
    "huggingface": Peer("Hugging Face + PyTorch", "huggingface.py", "sdpa", *_HUGGINGFACE),
    "huggingface_eager": Peer("the same, eager attention", "huggingface.py", "eager", *_HUGGINGFACE),
    "tf_models": Peer(
        "tf-models-official",
        "tf_models.py",
        "",
        "tf_models",
        ("tensorflow==2.15.1", "tf-models-official==2.15.0"),
    ),
    "keras_hub": Peer(
        "keras-hub", "keras_hub_tf.py", "", "keras_hub", ("tensorflow-cpu==2.21.0", "keras-hub==0.32.0")
    ),
}
DEFAULT = "ours,huggingface,huggingface_eager,tf_models,keras_hub"
TRAINING = {"learning_rate": 1e-4, "weight_decay": 0.01, "epsilon": 1e-6, "clip_norm": 1.0, "seed": 12345}


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    inputs.add_model_flag(parser)
    inputs.add_shapes_flag(parser, "128x8,512x2")
    parser.add_argument("--dtypes", default="fp32,bf16", help="Comma-separated: fp32, bf16.")
    parser.add_argument("--peers", default=DEFAULT, help=f"Comma-separated: {', '.join(PEERS)}.")
    environments_lib.add_flags(parser)
    parser.add_argument(
        "--rounds", type=int, default=5, help="How many times every system is timed in every case."
    )
    parser.add_argument("--steps", type=int, default=2, help="Steps of one timing.")
    outputs.add_flags(parser)
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    outputs.check_results(flags)
    command_line.check_counts(flags, "rounds", "steps")
    flags.shapes = inputs.read_shapes(flags.shapes)
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", ("fp32", "bf16"))
    flags.peers = command_line.read_list(flags.peers, "peers", tuple(PEERS))
    return flags


def environments_of(names: list[str]) -> list[tuple[str, environments_lib.Environment]]:
    """Returns (peer, its environment) of those that have one of their own."""
    peers = [(name, PEERS[name]) for name in names]
    return [
        (name, environments_lib.Environment(peer.environment, peer.requirements))
        for name, peer in peers
        if peer.environment
    ]


def start_worker(name: str, specification: dict, folder: str, of_environments: str) -> Program:
    """Starts a process of a system in a folder; its first answer comes when its first step is done."""
    peer = PEERS[name]
    advice = ": ask for fewer --peers at a time, or smaller --shapes"
    program = os.path.join(FOLDER, peer.program)
    worker = Program(f"--peers: {name}", program, peer.environment, of_environments, folder, advice)
    worker.ask({**specification, "variant": peer.variant})
    return worker


def run_steps(worker: Program, count: int) -> list[float]:
    """Runs steps of a system, and returns their losses."""
    worker.ask({"steps": count})
    return worker.answer()["losses"]


def measure_case(flags: argparse.Namespace, model: dict, dtype: str, length: int, batch: int) -> list[dict]:
    """Returns one row a system."""
    from official.io.bars import Bar
    from official.reporting import measurement
    from official.training import step_benchmark

    specification = {
        "model": model,
        "dtype": dtype,
        "length": length,
        "batch": batch,
        "predictions": step_benchmark.predictions_of(length),
        "threads": os.cpu_count(),
        **TRAINING,
    }
    started: dict[str, float] = {}
    losses: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        workers = {}
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for name in flags.peers:  # one after the other: two that compile at once would share the cores
            place = os.path.join(folder, name)
            workers[name] = stack.enter_context(start_worker(name, specification, place, flags.environments))
            first = workers[name].answer()
            started[name], losses[name] = first["start_secs"], first["losses"]

        run = lambda name: losses[name].extend(run_steps(workers[name], flags.steps))

        case = f"{dtype}, {length} x {batch}"
        with Bar(total=flags.rounds + 1, desc=case, file=sys.stderr) as progress:
            spent = measurement.measure_in_turns(
                {name: functools.partial(run, name) for name in workers},
                flags.rounds,
                after_round=lambda _: progress.update(),
            )
    return [
        {
            "case": case,
            "dtype": dtype,
            "max_seq_length": length,
            "train_batch_size": batch,
            "peer": name,
            "sequences_per_sec": timing.rate(batch * flags.steps),
            "step_secs": timing.median / flags.steps,
            "spread": timing.spread,
            "start_secs": started[name],
            "secs": timing.secs,
            "losses": losses[name],
        }
        for name, timing in spent.items()
    ]


def compare(rows: list[dict]) -> list[str]:
    """Returns a line a case: this project over the fastest of the others."""
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        speeds = {row["peer"]: row["sequences_per_sec"] for row in rows if row["case"] == case}
        others = {name: speed for name, speed in speeds.items() if not name.startswith("ours")}
        if "ours" in speeds and others:
            fastest = max(others, key=lambda name: others[name])
            lines.append(f"{case}: {speeds['ours'] / others[fastest]:.2f} x {PEERS[fastest].title}")
    return lines


def table(rows: list[dict]) -> str:
    """Returns a line a row."""
    lines = [f"{'case':<18}{'system':<30}{'s/step':>9}{'seq/s':>9}{'+-':>7}{'start s':>9}{'losses':>16}"]
    for row in rows:
        lines.append(
            f"{row['case']:<18}{PEERS[row['peer']].title:<30}{row['step_secs']:>9.3f}"
            f"{row['sequences_per_sec']:>9.3f}{row['spread']:>7.1%}"
            f"{row['start_secs']:>9.1f}{_ends(row['losses']):>16}"
        )
    return "\n".join(lines)


def _ends(losses: list[float]) -> str:
    """Returns the first and the last loss: '11.02 > 7.11'."""
    return f"{losses[0]:.2f} > {losses[-1]:.2f}"


def draw(rows: list[dict], model: str) -> bytes:
    """Returns the picture (PNG): a bar a row."""
    from official.reporting import measurement

    bars = [
        measurement.Bar(
            f"{row['case']}: {PEERS[row['peer']].title}",
            row["sequences_per_sec"],
            row["spread"],
            f"{row['sequences_per_sec']:.2f}",
            "ours" if row["peer"].startswith("ours") else "peers",
        )
        for row in rows
    ]
    return measurement.draw_bars(bars, f"Training step of {model}", "sequences per second")


def main() -> None:
    flags = parse_flags()
    model = inputs.read_model(flags.bert_config_file)
    environments_lib.prepare(environments_of(flags.peers), flags.environments, flags.make_environments)
    rows: list[dict] = []
    try:
        for dtype in flags.dtypes:
            for length, batch in flags.shapes:
                rows += measure_case(flags, model, dtype, length, batch)
    finally:  # a system that does not fit into memory takes no measured case along
        if rows:
            _report(flags, rows)


def _report(flags: argparse.Namespace, rows: list[dict]) -> None:
    """Prints the cases that were measured, and writes them."""
    print("\n".join([table(rows), *compare(rows)]))
    name = outputs.stem(flags.bert_config_file)
    record = {
        "model": name,
        "rounds": flags.rounds,
        "steps": flags.steps,
        **TRAINING,
        "requirements": {peer: PEERS[peer].requirements for peer in flags.peers},
        "comparison": compare(rows),
        "cases": rows,
    }
    outputs.write_results(flags.output, record, lambda: draw(rows, name))
