"""Measures the training step of BERT side by side with Hugging Face + PyTorch, the TensorFlow Model Garden
and keras-hub.

  python benchmarks/peers.py --make_environments --dtypes=fp32,bf16 --shapes=128x8,512x2 \\
    --output=results/peers_bert_base

Every system runs in a separate process and virtual environment, which --make_environments makes, and does the
same work: masked-LM over the masked positions and next sentence, dropout 0.1, clipping at a global norm of 1,
AdamW or LAMB at a constant learning rate, the same batch of full-length sequences in every step. The losses
of all steps are compared: they start near the logarithm of the vocabulary size, and decrease alike. With
--num_gpus=1 the memory of the device is measured, too, and compared with the plan.

All systems run in turns, several rounds. Results are medians, with half the interquartile range. The peers'
code is in programs/training_step.py.
"""

import argparse
import contextlib
import functools
import itertools
import os
import tempfile
from typing import Literal, NamedTuple

import harness
from harness import HUGGINGFACE, Environment
from official.cli import command_line, outputs


class Peer(NamedTuple):
    """A system: its name in charts, that of its step in programs/training_step.py, its variant, and its
    environment (None: this one)."""

    title: str
    step: str
    variant: str
    environment: Environment | None = None


PEERS = {
    "ours": Peer("this project", "ours", "auto"),
    "ours_plain": Peer("this project, plain", "ours", "plain"),
    "ours_xla": Peer("this project, --enable_xla", "ours", "auto+xla"),
    "huggingface": Peer("Hugging Face + PyTorch", "huggingface", "sdpa", HUGGINGFACE),
    "huggingface_compiled": Peer("Hugging Face + torch.compile", "huggingface", "sdpa+compiled", HUGGINGFACE),
    "huggingface_eager": Peer("the same, eager attention", "huggingface", "eager", HUGGINGFACE),
    "tf_models": Peer(
        "tf-models-official",
        "tf_models",
        "",
        Environment("tf_models", ("tensorflow==2.15.1", "tf-models-official==2.15.0")),
    ),
    "keras_hub": Peer(
        "keras-hub",
        "keras_hub",
        "",
        Environment("keras_hub", ("tensorflow-cpu==2.21.0", "keras-hub==0.32.0")),
    ),
}
DEFAULT = "ours,huggingface,huggingface_eager,tf_models,keras_hub"
TRAINING = {"learning_rate": 1e-4, "weight_decay": 0.01, "epsilon": 1e-6, "clip_norm": 1.0, "seed": 12345}


class Main(harness.ModelFlag, harness.ShapesFlag, harness.EnvironmentFlags, harness.ChartFlags):
    """Flags of the command.

    Attributes:
      num_gpus: 1 for a GPU.
      optimizer_type: Optimizer of all systems; tf-models-official and keras-hub have only AdamW.
      dtypes: Comma-separated: fp32, bf16, fp16; fp16 is for GPUs.
      peers: Comma-separated systems; the error for another name lists them.
      rounds: How many times every case is timed.
      steps: Steps of one timing.
    """

    RANGES = dict.fromkeys(("rounds", "steps"), command_line.COUNT)
    num_gpus: int = 0
    optimizer_type: Literal["adamw", "lamb"] = "adamw"
    dtypes: str = "fp32,bf16"
    peers: str = DEFAULT
    rounds: int = 5
    steps: int = 2


class Case(NamedTuple):
    """Type, tokens of a sequence, and sequences of a step."""

    dtype: str
    length: int
    batch: int

    def __str__(self) -> str:
        return f"{self.dtype}, {self.length} x {self.batch}"


def measure(flags: argparse.Namespace, model: dict, cases: list[Case]) -> list[dict]:
    """Runs all systems in turns; returns one row per system and case."""
    from official.training import step_benchmark

    first_losses: dict[tuple[Case, str], list[float]] = {}
    started: dict[tuple[Case, str], float] = {}
    last: dict[tuple[Case, str], dict] = {}
    advice = ": ask for fewer --peers at a time, or smaller --shapes"
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        workers: dict[tuple[Case, str], harness.Program] = {}

        def await_start(key: tuple[Case, str]) -> None:
            answer = workers[key].answer()
            started[key], first_losses[key] = answer["start_secs"], answer["losses"]

        for case, name in itertools.product(cases, flags.peers):
            peer, key = PEERS[name], (case, name)
            specification = {
                "model": model,
                **case._asdict(),
                "predictions": step_benchmark.predictions_of(case.length),
                "threads": os.cpu_count(),
                "num_gpus": flags.num_gpus,
                "optimizer_type": flags.optimizer_type,
                **TRAINING,
                "step": peer.step,
                "variant": peer.variant,
            }
            log = os.path.join(folder, str(len(workers)))
            worker = harness.program(
                f"--peers: {name}", "training_step.py", peer.environment, flags, log, advice
            )
            workers[key] = stack.enter_context(worker)
            worker.ask(specification)
            if not flags.num_gpus:  # one by one, since compilers would share the cores
                await_start(key)
        for key in workers if flags.num_gpus else ():
            await_start(key)

        def run(key: tuple[Case, str]) -> None:
            workers[key].ask({"steps": flags.steps})
            last[key] = workers[key].answer()

        works = {key: functools.partial(run, key) for key in workers}
        timings = harness.in_turns(works, flags.rounds, warmup_rounds=1, title=", ".join(map(str, cases)))
    return [
        {
            "case": str(case),
            "dtype": case.dtype,
            "max_seq_length": case.length,
            "train_batch_size": case.batch,
            "peer": name,
            "sequences_per_sec": timing.rate(case.batch * flags.steps),
            "step_secs": timing.median / flags.steps,
            "spread": timing.spread,
            "start_secs": started[case, name],
            "peak_bytes": last[case, name]["peak_bytes"],
            "secs": timing.secs,
            "losses": [*first_losses[case, name], *last[case, name]["losses"]],
        }
        for (case, name), timing in timings.items()
    ]


def compare(rows: list[dict]) -> list[str]:
    """Returns a line per case: this project's speed relative to the fastest other system."""
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        speeds = {row["peer"]: row["sequences_per_sec"] for row in rows if row["case"] == case}
        others = {name: speed for name, speed in speeds.items() if not name.startswith("ours")}
        if "ours" in speeds and others:
            fastest = max(others, key=lambda name: others[name])
            lines.append(f"{case}: {speeds['ours'] / others[fastest]:.2f} x {PEERS[fastest].title}")
    return lines


def report(flags: argparse.Namespace, rows: list[dict]) -> None:
    """Prints and writes the measured cases."""
    shown = [
        {
            **row,
            "name": f"{row['case']}  {PEERS[row['peer']].title}",
            "ends": f"{row['losses'][0]:.2f} > {row['losses'][-1]:.2f}",
            "peak": f"{row['peak_bytes'] / 1e9:.2f} GB" if row["peak_bytes"] else "",
        }
        for row in rows
    ]
    columns = [
        ("case, system", "name", ""),
        ("s/step", "step_secs", ".3f"),
        ("seq/s", "sequences_per_sec", ".3f"),
        ("+-", "spread", ".1%"),
        ("start s", "start_secs", ".1f"),
        ("peak", "peak", ""),
        ("losses", "ends", ""),
    ]
    print("\n".join([outputs.table(columns, shown), *compare(rows)]))
    name = outputs.stem(flags.bert_config_file)
    record = {
        "model": name,
        "rounds": flags.rounds,
        "steps": flags.steps,
        "optimizer_type": flags.optimizer_type,
        **TRAINING,
        "requirements": {peer: (PEERS[peer].environment or ("", ()))[1] for peer in flags.peers},
        "comparison": compare(rows),
        "cases": rows,
    }
    bars = [
        (
            f"{row['case']}: {PEERS[row['peer']].title}",
            row["sequences_per_sec"],
            row["spread"],
            f"{row['sequences_per_sec']:.2f}",
            "ours" if row["peer"].startswith("ours") else "peers",
        )
        for row in rows
    ]
    harness.write(flags, record, bars, f"Training step of {name}", "sequences per second")


def main() -> None:
    flags = Main.parse()
    flags.shapes = harness.read_shapes(flags.shapes)
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", ("fp32", "bf16", "fp16"))
    flags.peers = command_line.read_list(flags.peers, "peers", tuple(PEERS))
    model = harness.read_model(flags.bert_config_file)
    harness.prepare([(name, PEERS[name].environment) for name in flags.peers], flags)
    rows: list[dict] = []
    cases = [Case(dtype, *shape) for dtype in flags.dtypes for shape in flags.shapes]
    try:  # on a GPU all start at once, since their compilers run on the CPU
        for together in [cases] if flags.num_gpus else [[case] for case in cases]:
            rows += measure(flags, model, together)
    finally:  # keeps the measured cases if a system runs out of memory
        if rows:
            report(flags, rows)


if __name__ == "__main__":
    harness.main(main)
