"""Measures inference: throughput and latency of this project's back ends.

  bert benchmark inference --max_seq_length=128,384 --micro_batch_size=1,8,32 --dtypes=fp32,bf16 \\
    --output=results/inference

Every back end runs in separate processes, bound to cores, with the same weights, and answers the same
batches. All run in turns, several rounds. --instances=N and mpirun --np N run N of each concurrently and sum
their throughput. Each turn is a line of the log.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import numpy as np

from official.cli import command_line, configs, outputs
from official.cli.benchmark.answering import Batch, write_batches
from official.config import BertConfig, bert_config_from_dict, read_json
from official.config.cluster import MPI_VARIABLES, number
from official.graphcore import popart_lines
from official.io.errors import ConfigError
from official.reporting.measurement import Timing

if TYPE_CHECKING:
    from official.inference.source import Source

BACKENDS = ("tensorflow", "onnxruntime", "openvino")
DTYPES = ("fp32", "bf16", "int8")
SEED = 12345
ANSWERING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "answering.py")
_CALIBRATION = 8, 8  # batches and their sequences, for the ranges of int8
_GENERATED = 4  # number of different batches; all take the same time
_MAX_REAL = 64


class System(NamedTuple):
    """A measured system.

    Attributes:
      name, title: name in tables and JSON, and title in charts.
      variant: variant of the system, see its program.
      dtypes: supported types of DTYPES.
      command: command line of its program, as words.
      env: environment variables of its process; None: those of this one.
      group: group of peers, of which the fastest is compared.
      model: for peers, (model, its checkpoint or None, folder) -> path of the model in their format.
    """

    name: str
    title: str
    variant: str
    dtypes: tuple[str, ...] = DTYPES
    command: tuple[str, ...] = (sys.executable, ANSWERING)
    env: Mapping[str, str] | None = None
    group: str = ""
    model: Callable[[Source, str | None, str], str] = lambda found, checkpoint, folder: folder

    @property
    def is_ours(self) -> bool:
        return not self.group


PRODUCTS = System("products", "bare products", "products", ("fp32", "bf16"))
_TITLES = {"tensorflow": "TensorFlow", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


# ------------------------------------------------------------------------------------------------------------
# Flags


class Main(command_line.Flags):
    """Flags of the command.

    Attributes:
      bert_config_file: Sizes of a model with random weights. Unset: those of --config, else BERT-base.
      config: Our or Graphcore's configuration, such as squad_base_128_inf: sizes and length.
      checkpoint: A model fine-tuned on SQuAD, of any known format.
      vocab_file: Vocabulary for real questions. Unset: the one next to --checkpoint.
      max_seq_length: Comma-separated numbers of tokens per row. Unset: that of --config, else 128,384.
      micro_batch_size: Comma-separated numbers of sequences per batch.
      generated_data: Use generated rows, all of full length. Unset: true without --predict_file.
      predict_file: Real questions: SQuAD JSON.
      whole_set: Answer all questions once per turn; systems with padding run in every usual variant.
      sequences: Number of the questions' windows to use, drawn at random. Unset: all.
      backends: Comma-separated back ends of this project.
      dtypes: Comma-separated: fp32, bf16, int8.
      instances: Number of concurrent processes of each system.
      num_inference_thread: Number of concurrent calling threads per process.
      rounds: Number of turns of every system in every case.
      num_iter: Number of batches per thread in all turns. Unset: as many as take --secs.
      secs: Without --num_iter: seconds of a system's turns in a case.
      log_style: Style of the log lines.
      work_dir: New folder to keep the files of the processes. Unset: temporary.
      output: Also write OUTPUT.json and the chart OUTPUT.png.
      overwrite: Replace existing files.
    """

    ALIASES = {
        "input_files": "predict_file",
        "epochs_inference": "rounds",
        "sequence_length": "max_seq_length",
        "seq_length": "max_seq_length",
        "dtype": "dtypes",
    }
    RANGES = {
        **dict.fromkeys(("instances", "num_inference_thread", "rounds"), command_line.COUNT),
        **dict.fromkeys(("num_iter", "sequences"), command_line.COUNT),
        "secs": (0.001, math.inf),
    }
    bert_config_file: str | None = None
    config: str | None = None
    checkpoint: str | None = None
    vocab_file: str | None = None
    max_seq_length: str | None = None
    micro_batch_size: str = "1,2,4,8,16,32,64,80"
    generated_data: bool | None = None
    predict_file: str | None = None
    whole_set: bool = False
    sequences: int | None = None
    backends: str = "tensorflow,onnxruntime,openvino"
    dtypes: str = "fp32"
    instances: int = 1
    num_inference_thread: int = 1
    rounds: int = 10
    num_iter: int | None = None
    secs: float = 10.0
    log_style: Literal["plain", "popart"] = "plain"
    work_dir: str | None = None
    output: str | None = None
    overwrite: bool = False


def parse_flags(kind: type[Main] = Main) -> argparse.Namespace:
    flags: argparse.Namespace = kind.parse()
    flags.rank = find_rank()
    if flags.rank:  # DIR/NAME becomes DIR/NAME_rank_N/NAME
        for name in ("output", "work_dir"):
            path = getattr(flags, name)
            own = path and os.path.join(f"{path}_rank_{flags.rank.rank}", os.path.basename(path))
            setattr(flags, name, own)
    outputs.check_results(flags)
    if flags.work_dir and os.path.exists(flags.work_dir):
        raise ConfigError(f"--work_dir={flags.work_dir} exists. Give a new folder.")
    flags.backends = command_line.read_list(flags.backends, "backends", BACKENDS)
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", DTYPES)
    flags.micro_batch_size = read_sizes(flags.micro_batch_size, "micro_batch_size")
    flags.cores = share_cores(os.sched_getaffinity(0), flags.rank, os.cpu_count() or 1, flags.instances)
    return flags


def read_sizes(text: str, flag: str) -> list[int]:
    """Returns the numbers of a comma-separated list. Raises ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    sizes = [int(part) if part.isascii() and part.isdigit() else 0 for part in parts]
    if min(sizes) < 1:
        raise ConfigError(f"--{flag}={text[:100]}, expected numbers from 1, comma-separated.")
    return sizes


def add_settings(flags: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Fills in unset flags from --config. Raises ConfigError for contradicting flags."""
    lengths = flags.max_seq_length or str(settings.get("max_seq_length", "128,384"))
    flags.max_seq_length = read_sizes(lengths, "max_seq_length")
    flags.vocab_file = flags.vocab_file or (None if flags.checkpoint else settings.get("vocab_file"))
    flags.predict_file = flags.predict_file or settings.get("predict_file")
    if flags.generated_data is None:
        flags.generated_data = flags.predict_file is None
    if flags.checkpoint and flags.bert_config_file:
        raise ConfigError("--bert_config_file is for random weights, --checkpoint for trained. Drop one.")
    if not flags.generated_data and not flags.predict_file:
        raise ConfigError("--generated_data=false needs --predict_file=FILE.json.")
    if flags.generated_data and flags.whole_set:
        raise ConfigError("--whole_set answers real questions. Give --predict_file=FILE.json.")


# ------------------------------------------------------------------------------------------------------------
# Processes of mpirun, and their cores

_MPI_VARIABLES = {**MPI_VARIABLES, "PMIX_SIZE": ("PMIX_RANK", "PMIX_LOCAL_SIZE", "PMIX_LOCAL_RANK")}


class Rank(NamedTuple):
    """A process of mpirun: its rank, and its rank among those of this machine, from 0."""

    rank: int
    local_rank: int
    local_size: int


def find_rank(environment: Mapping[str, str] = os.environ) -> Rank | None:
    """Returns this process's rank from mpirun's variables; None without mpirun. Raises ConfigError for
    variables that are not numbers."""

    def read(name: str, default: int) -> int:
        return number(environment, name) if name in environment else default

    for size, (rank, local_size, local_rank) in _MPI_VARIABLES.items():
        if rank in environment:
            own = number(environment, rank)
            return Rank(own, read(local_rank, own), read(local_size, read(size, 1)))
    return None


def share_cores(cores: Iterable[int], rank: Rank | None, of_machine: int, instances: int) -> list[list[int]]:
    """Returns the cores of each instance of this process: equal parts of neighbouring cores; a remainder is
    not used. With more processes than cores, several share one. Raises ConfigError for too many instances.

    Args:
      cores: cores that this process may run on.
      rank: rank of this process; None without mpirun.
      of_machine: number of the machine's cores. If the process may run on fewer, mpirun has bound it.
      instances: number of instances.
    """
    own = sorted(cores)
    if rank and len(own) >= of_machine:
        share = max(len(own) // max(rank.local_size, 1), 1)
        first = rank.local_rank * share % len(own)
        own = own[first : first + share]
    share = len(own) // instances
    if not share:
        has = f"this process has {len(own)}. Allowed: 1 to {len(own)}"
        raise ConfigError(f"--instances={instances}: each needs its own core, but {has}.")
    return [own[part * share : (part + 1) * share] for part in range(instances)]


# ------------------------------------------------------------------------------------------------------------
# Model and questions


def find_model(flags: argparse.Namespace, settings: dict[str, Any]) -> Source:
    """Returns the model of --checkpoint, or one with random weights and, for real questions, --vocab_file.
    Raises ConfigError if it has no question-answering head, or too few positions for --max_seq_length."""
    from official.inference import source

    if flags.checkpoint:
        found = source.find(flags.checkpoint, flags.vocab_file, flag="checkpoint")
        found.check_can("answer")
    else:
        path = flags.bert_config_file or "configs/models/bert_base.json"
        values = None if flags.bert_config_file else settings.get("model")
        values = values or read_json(configs.find(path), "bert_config_file")
        found = source.random_source(bert_config_from_dict(values, path), "answer", seed=SEED)
    longest, positions = max(flags.max_seq_length), found.bert.positions
    if longest > positions:
        raise ConfigError(f"--max_seq_length={longest}: the model has {positions} positions.")
    if flags.checkpoint or flags.generated_data:
        return found
    from official.data.word_pieces import vocabulary

    if flags.vocab_file is None:
        raise ConfigError("--predict_file without --checkpoint needs --vocab_file=vocab.txt.")
    words = vocabulary.load_for_text(flags.vocab_file, None, flags.vocab_file)
    if words.size > found.bert.vocab_size:
        has = f"has {words.size} words, the model's vocab_size is {found.bert.vocab_size}"
        raise ConfigError(f"--vocab_file={flags.vocab_file} {has}. Change one of them.")
    return dataclasses.replace(found, vocabulary=words)


def forward_flops(bert: BertConfig, lengths: Iterable[int]) -> float | None:
    """Returns the FLOPs of the matrix products of one forward pass over sequences without padding; None for
    blocks other than BERT's."""
    if bert.block_type != BertConfig.block_type:
        return None
    hidden, lengths = bert.hidden_size, list(lengths)
    linear = 4 * hidden * hidden + 2 * hidden * bert.intermediate_size  # weights of a block's products
    attention = 2 * hidden * sum(length * length for length in lengths)  # scores, and their use
    tokens = sum(lengths)
    return 2.0 * (bert.num_hidden_layers * (linear * tokens + attention) + 2 * hidden * tokens)


Windows = list[tuple[np.ndarray, np.ndarray]]  # token ids [L] and segments [L] of each, int32


def make_batches(windows: Windows, size: int) -> list[Batch]:
    """Returns batches of `size` windows without padding; the last may have fewer."""
    batches = []
    for first in range(0, len(windows), size):
        ids, segments = zip(*windows[first : first + size])
        lengths_N = np.array([len(ids_L) for ids_L in ids], np.int32)
        batches.append(Batch(np.concatenate(ids), np.concatenate(segments), lengths_N))
    return batches


def draw(windows: Windows, count: int | None, seed: int) -> Windows:
    """Returns `count` windows drawn at random, in their order; all of them for None."""
    drawn = np.random.default_rng(seed).permutation(len(windows))[:count]
    return [windows[number] for number in sorted(drawn)]


def read_windows(flags: argparse.Namespace, found: Source, length: int) -> Windows:
    """Returns the input windows for rows of `length` tokens: generated, all of full length, the second half
    in the second segment; or those of a SQuAD file, split as in `bert ask`. Raises ConfigError."""
    if flags.generated_data:
        shape = _GENERATED * max(flags.micro_batch_size), length
        ids_NL = np.random.default_rng(SEED).integers(0, found.bert.vocab_size, shape, dtype=np.int32)
        segments_L = (np.arange(length) >= length // 2).astype(np.int32)
        return [(ids_L, segments_L) for ids_L in ids_NL]
    from official.data.squad import features, squad_files

    with_negative = found.setting("version_2_with_negative", False)
    data = squad_files.read_squad(flags.predict_file, "predict_file", False, with_negative)
    rules = features.WindowRules(length, max(length // 3, 1), max(length // 6, 1))
    made = features.make_features(data, found.vocabulary, rules)
    if not len(made):
        raise ConfigError(f"--predict_file={flags.predict_file} has no question that can be answered.")
    columns: Any = zip(made.input_ids.astype(np.int32), made.lengths, made.first_lengths)
    every = [
        (ids_L[:tokens], (np.arange(tokens) >= first).astype(np.int32)) for ids_L, tokens, first in columns
    ]
    return draw(every, flags.sequences, SEED)


# ------------------------------------------------------------------------------------------------------------
# Timed calls: throughput and latency, and their log lines

_PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9}


class Block(NamedTuple):
    """Calls of all instances that were timed together.

    Attributes:
      secs: seconds of each call.
      sequences_per_sec, tokens_per_sec: sums of the instances' rates.
    """

    secs: tuple[float, ...]
    sequences_per_sec: float
    tokens_per_sec: float


def block_of(answers: Sequence[dict]) -> Block:
    """Combines the measurements of all instances, see `answering.measure`."""
    return Block(
        tuple(secs for answer in answers for secs in answer["secs"]),
        sum(answer["sequences"] / answer["total_secs"] for answer in answers),
        sum(answer["tokens"] / answer["total_secs"] for answer in answers),
    )


def latency_ms(secs: Sequence[float]) -> dict[str, float]:
    """Returns {mean, min, max, p50, p99, p999} of calls in milliseconds. Percentiles are interpolated
    linearly, as in NumPy."""
    values = np.asarray(secs, np.float64) * 1000
    percentiles = {name: float(np.percentile(values, share)) for name, share in _PERCENTILES.items()}
    extremes = {"min": float(values.min()), "max": float(values.max())}
    return {"mean": float(values.mean()), **extremes, **percentiles}


def summary(blocks: Sequence[Block]) -> dict:
    """Returns the statistics of a case's blocks.

    Returns:
      sequences_per_sec, tokens_per_sec: medians over the blocks; spread: half the interquartile range of
      sequences_per_sec, relative to the median; latency_ms of all calls; calls: their number.
    """
    rates = Timing(tuple(block.sequences_per_sec for block in blocks))
    secs = [secs for block in blocks for secs in block.secs]
    return {
        "sequences_per_sec": rates.median,
        "tokens_per_sec": statistics.median(block.tokens_per_sec for block in blocks),
        "spread": rates.spread,
        "latency_ms": latency_ms(secs),
        "calls": len(secs),
    }


def plain_line(case: str, block: Block) -> str:
    """Returns the log line of a case in the format that the published benchmarks' regular expressions match.

    Source: Graphcore's examples v3.4.1, run_squad_runtime.py and benchmarks.yml.
    """
    latency = latency_ms(block.secs)
    shown = {"avg": "mean", "min": "min", "max": "max", "99p": "p99", "99p9": "p999"}
    latencies = [f"latency {name}: {latency[key]:.3f} ms" for name, key in shown.items()]
    return ", ".join([f"{case}: throughput: {block.sequences_per_sec:.3f} samples/sec", *latencies])


def popart_line(number: int, block: Block) -> str:
    """Returns the line of PopART's inference; `number` counts blocks from 0."""
    duration = statistics.fmean(block.secs)
    return popart_lines.inference_line(number, duration, block.sequences_per_sec, block.secs)


# ------------------------------------------------------------------------------------------------------------
# Processes of a system


class Program:
    """A process that answers each line of JSON with a line of JSON. As a context manager it ends at the
    exit."""

    def __init__(self, name: str, command: list[str], folder: str, env: Mapping[str, str], advice: str = ""):
        """Starts the process.

        Args:
          name: flag and system for messages, such as "--peers: huggingface".
          command: command line, as words.
          folder: working directory, which is created. Standard error is written to its log.txt.
          env: environment variables.
          advice: advice for the message if the process is killed.
        """
        self._name, self._log, self._advice = name, os.path.join(folder, "log.txt"), advice
        os.makedirs(folder, exist_ok=True)
        pipe = subprocess.PIPE
        with open(self._log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=folder, env=dict(env)
            )
        assert self.process.stdin and self.process.stdout
        self._input, self._output = self.process.stdin, self.process.stdout

    def ask(self, question: dict) -> None:
        """Sends a question; `answer` waits for the result. Raises ConfigError if the process has ended."""
        try:
            self._input.write(json.dumps(question) + "\n")
            self._input.flush()
        except BrokenPipeError:
            self._fail()

    def answer(self) -> dict:
        """Returns the next answer. Raises ConfigError if the process has ended."""
        line = self._output.readline()
        return json.loads(line) if line else self._fail()

    def _fail(self) -> NoReturn:
        code = self.process.wait()
        with open(self._log, encoding="utf-8", errors="replace") as log:
            last = [line for line in log.read().splitlines() if line.strip()][-1:]
        advice = f" It was killed, probably because memory ran out{self._advice}." * (code == -signal.SIGKILL)
        raise ConfigError(f"{self._name} ended with code {code}: {' '.join(last)}{advice}")

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended without reading a question
            self._input.close()
        self.process.terminate()
        self.process.wait()
        self._output.close()


class Instances(contextlib.ExitStack):
    """The concurrent processes of a system, as a context manager.

    Attributes:
      system: the system.
      start_secs: seconds until the last process was ready.
      versions: versions of its packages.
    """

    def __init__(self, system: System, specification: dict, cores: list[list[int]], folder: str):
        """Starts one for each list of cores, in FOLDER/SYSTEM/instance_N, and waits until all are ready."""
        super().__init__()
        self.system, self._programs = system, []
        flag = f"--{'backends' if system.is_ours else 'peers'}: {system.name}"
        with contextlib.ExitStack() as starting:
            for number, own in enumerate(cores):
                asked = {**specification, "threads": len(own), "cores": own, "variant": system.variant}
                env = {**(system.env or own_variables()), "OMP_NUM_THREADS": str(len(own))}
                place = os.path.join(folder, system.name, f"instance_{number}")
                program = starting.enter_context(Program(flag, list(system.command), place, env))
                self._programs.append(program)
                program.ask(asked)
            ready = [program.answer() for program in self._programs]
            self.enter_context(starting.pop_all())
        self.start_secs: float = max(one["start_secs"] for one in ready)
        self.versions: dict = ready[0]["versions"]

    def run(self, question: dict) -> Block:
        """Sends a question to all processes, and returns their timed calls."""
        for program in self._programs:
            program.ask(question)
        return block_of([program.answer() for program in self._programs])

    def logits(self, question: dict, folder: str) -> np.ndarray:
        """Returns the logits [2, T] of the first process for all batches of a question. Also compiles for
        their shapes."""
        path = os.path.join(folder, "logits.npy")
        self._programs[0].ask({**question, "calls": 0, "save": path})
        self._programs[0].answer()
        return np.load(path)


def own_variables() -> dict[str, str]:
    """Returns the variables of a process of this project, without settings of TensorFlow and Python."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TF_", "KERAS"))}
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(ANSWERING))))
    return {**kept, "PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"}


# ------------------------------------------------------------------------------------------------------------
# Cases: all systems answer the same batches, in turns

# (is ours, --whole_set) -> ways to pad, and orders of the windows.
_WAYS = {
    (True, False): [("none", "file")],
    (True, True): [("none", "file"), ("none", "sorted")],
    (False, False): [("longest", "file")],
    (False, True): [("max", "file"), ("longest", "file"), ("longest", "sorted")],
}


class Turn(NamedTuple):
    """The turns of a system in a case, and their results.

    Attributes:
      row: result row, filled in step by step. Its padding is none, longest (of the batch) or max, the order
        of its windows file, or sorted by length.
      instances: the processes.
      question: question sent in each round.
      blocks: timed calls of each round.
    """

    row: dict[str, Any]
    instances: Instances
    question: dict[str, Any]
    blocks: list[Block]


def compare(logits: np.ndarray, reference: np.ndarray, lengths: Sequence[int]) -> dict[str, float]:
    """Compares logits [2, T] with a reference. Returns {largest_difference: absolute, same_answers: share of
    sequences with the same most likely first and last tokens}."""
    bounds = np.cumsum(lengths)[:-1]
    found, wanted = (
        [tuple(part.argmax(axis=1)) for part in np.split(values, bounds, axis=1)]
        for values in (logits, reference)
    )
    return {
        "largest_difference": float(np.abs(logits - reference).max()),
        "same_answers": float(np.mean([a == b for a, b in zip(found, wanted)])),
    }


class Bench(NamedTuple):
    """Shared state of all cases.

    Attributes:
      flags: flags of the command line.
      found: the model.
      folder: folder of all files.
      windows: {number of tokens per row: input windows}.
      references: {case: its first logits, the reference for the others}.
    """

    flags: argparse.Namespace
    found: Source
    folder: str
    windows: dict[int, Windows]
    references: dict[tuple, np.ndarray]


def measure(
    flags: argparse.Namespace, found: Source, systems: Sequence[System], folder: str
) -> dict[str, Any]:
    """Returns {cases, products_gflops, rounds, instances, ...}. Raises ConfigError."""
    os.makedirs(folder, exist_ok=True)
    windows = {length: read_windows(flags, found, length) for length in flags.max_seq_length}
    bench = Bench(flags, found, folder, windows, {})
    versions: dict[str, dict] = {}
    peaks: dict[str, float | None] = {}
    cases: list[dict] = []
    for dtype in flags.dtypes:
        for system in systems:
            if dtype not in system.dtypes:
                print(f"{system.title} does not support {dtype}.", file=sys.stderr)
        wanted = [system for system in systems if dtype in system.dtypes]
        wanted += [PRODUCTS] * bool(wanted and dtype in PRODUCTS.dtypes)
        rows: list[dict] = []
        seconds: list[float] = []  # of bare products
        with contextlib.ExitStack() as stack:
            running = [stack.enter_context(start(bench, system, dtype)) for system in wanted]
            versions |= {each.system.name: each.versions for each in running}
            for length, size in itertools.product(flags.max_seq_length, flags.micro_batch_size):
                rows += measure_case(bench, running, dtype, length, size, seconds) if running else []
        peak = None
        if seconds:
            peak = versions[PRODUCTS.name]["flops"] * flags.instances / float(np.median(seconds)) / 1e9
        for row in rows:
            row["share_of_products"] = row["gflops"] / peak if row["gflops"] and peak else None
        peaks[dtype] = peak
        cases += rows
    return {
        "rounds": flags.rounds,
        "instances": flags.instances,
        "num_inference_thread": flags.num_inference_thread,
        "cores": flags.cores,
        "data": "generated" if flags.generated_data else os.path.basename(flags.predict_file),
        "seed": SEED,
        "products_gflops": peaks,
        "versions": versions,
        "cases": cases,
    }


def start(bench: Bench, system: System, dtype: str) -> Instances:
    """Starts the instances of a system; writes the calibration batches for int8. Raises ConfigError if it
    does not start."""
    flags = bench.flags
    print(f"{system.title}, {dtype} ...", file=sys.stderr, flush=True)
    asked: dict[str, Any] = {"dtype": dtype, "calibration": None, "dynamic": not flags.generated_data}
    if not system.is_ours:
        asked["model"] = system.model(bench.found, flags.checkpoint, bench.folder)
    elif flags.checkpoint:
        vocab_file = os.path.abspath(flags.vocab_file) if flags.vocab_file else None
        asked |= {"model": os.path.abspath(flags.checkpoint), "vocab_file": vocab_file}
    else:
        asked |= {"model": None, "config": dataclasses.asdict(bench.found.bert), "seed": SEED}
    if dtype == "int8":
        count, size = _CALIBRATION
        drawn = draw(bench.windows[max(flags.max_seq_length)], count * size, SEED + 1)
        asked["calibration"] = os.path.join(bench.folder, "calibration.npz")
        write_batches(asked["calibration"], make_batches(drawn, size))
    return Instances(system, asked, flags.cores, os.path.join(bench.folder, dtype))


def measure_case(
    bench: Bench, running: Sequence[Instances], dtype: str, length: int, size: int, seconds: list[float]
) -> list[dict]:
    """Returns a result row for each system and kind of padding; appends the seconds of bare products to
    `seconds`. Raises ConfigError if there are too few windows for a batch."""
    flags, windows = bench.flags, bench.windows[length]
    shape = f"{dtype}, {length} tokens x {size}"
    if not flags.whole_set:
        if len(windows) < size:
            has = f"there are {len(windows)} windows"
            raise ConfigError(f"--micro_batch_size={size}: {has}. Give a smaller one.")
        most = _GENERATED if flags.generated_data else _MAX_REAL
        windows = windows[: size * min(len(windows) // size, most)]
    orders = {"file": windows, "sorted": sorted(windows, key=lambda window: len(window[0]))}
    files = {order: os.path.join(bench.folder, f"{length}_{size}_{order}.npz") for order in orders}
    for order, path in files.items():
        write_batches(path, make_batches(orders[order], size))
    turns, products = [], [instances for instances in running if instances.system == PRODUCTS]
    for instances in (each for each in running if each not in products):
        question: dict[str, Any] = {"width": None, "callers": 1}
        if flags.whole_set:
            question["calls"] = math.ceil(len(windows) / size)
        else:  # calls that warm up, and show how long one takes
            question |= {"callers": flags.num_inference_thread, "calls": 2}
        for padding, order in _WAYS[instances.system.is_ours, flags.whole_set]:
            asked = {**question, "batches": files[order], "width": length if padding == "max" else None}
            label = instances.system.title + (f", {padding}, {order}" if flags.whole_set else "")
            row: dict[str, Any] = {"name": f"{shape}: {label}", "case": shape, "label": label}
            row |= {"backend": instances.system.name, "dtype": dtype, "max_seq_length": length, "batch": size}
            turns.append(Turn({**row, "padding": padding, "order": order}, instances, asked, []))
    for turn in turns:
        logits, order = turn.instances.logits(turn.question, bench.folder), turn.row["order"]
        reference = bench.references.setdefault((length, size, order), logits)
        turn.row.update(compare(logits, reference, [len(ids_L) for ids_L, _ in orders[order]]))
    for turn in turns:
        warm = turn.instances.run(turn.question)
        if not flags.whole_set:
            calls = max(1, round(flags.secs / flags.rounds / max(min(warm.secs), 1e-6)))
            turn.question["calls"] = math.ceil(flags.num_iter / flags.rounds) if flags.num_iter else calls
    for turn_number in range(flags.rounds):
        for turn in turns:
            block = turn.instances.run(turn.question)
            turn.blocks.append(block)
            if flags.log_style == "popart":
                print(popart_line(turn_number, block), flush=True)
            else:
                print(plain_line(turn.row["name"], block), flush=True)
        for each in products:
            seconds += each.run({"batches": files["file"], "calls": 1, "callers": 1}).secs
    flops = forward_flops(bench.found.bert, [len(ids_L) for ids_L, _ in windows])
    rows = []
    for turn in turns:
        measured = summary(turn.blocks)
        gflops = flops / len(windows) * measured["sequences_per_sec"] / 1e9 if flops else None
        processes = {"start_secs": turn.instances.start_secs, "instances": flags.instances}
        rows.append({**turn.row, **measured, **processes, "gflops": gflops})
    return rows


# ------------------------------------------------------------------------------------------------------------
# Results


def verdicts(rows: Sequence[dict], groups: Mapping[str, str]) -> list[str]:
    """Returns a line for each case: our fastest back end, its speed relative to the fastest of each group of
    peers, and its share of bare products.

    Args:
      rows: result rows of all systems.
      groups: {peer: its group}.
    """
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        fastest: dict[str, dict] = {}  # {group: row}, "" for ours
        for row in sorted(rows, key=lambda row: -row["sequences_per_sec"]):
            if row["case"] == case:
                fastest.setdefault(groups.get(row["backend"], ""), row)
        own = fastest.get("")
        if own:
            parts = [f"{case}: {own['label']}, {own['sequences_per_sec']:.2f} seq/s"]
            for group in dict.fromkeys(groups.values()):
                if group in fastest:
                    ratio = own["sequences_per_sec"] / fastest[group]["sequences_per_sec"]
                    parts.append(f"{ratio:.2f} x {fastest[group]['label']}")
            if own["share_of_products"]:
                parts.append(f"{own['share_of_products']:.0%} of bare products")
            lines.append("; ".join(parts))
    return lines


def run(flags: argparse.Namespace, peers: Sequence[System] = ()) -> None:
    """Measures, prints and writes the back ends of the flags, and other systems.

    Args:
      flags: flags of the command line.
      peers: other systems.
    """
    from official.cli import flags as flags_lib
    from official.inference import backends

    settings = flags_lib.read_config(flags.config) if flags.config else {}
    add_settings(flags, settings)
    found = find_model(flags, settings)
    ours = [System(name, f"ours, {_TITLES[name]}", name, backends.dtypes_of(name)) for name in flags.backends]
    with contextlib.ExitStack() as stack:
        folder = flags.work_dir or stack.enter_context(tempfile.TemporaryDirectory())
        measured = measure(flags, found, [*ours, *peers], os.path.abspath(folder))
    rows = measured["cases"]
    comparison = verdicts(rows, {peer.name: peer.group for peer in peers})
    columns = [
        ("case", "name", ""),
        ("seq/s", "sequences_per_sec", ".2f"),
        ("+-", "spread", ".1%"),
        ("tokens/s", "tokens_per_sec", ".0f"),
        *((f"{kind} ms", kind, ".1f") for kind in ("mean", "min", "p50", "p99", "p999", "max")),
        ("products", "share_of_products", ".1%"),
        ("logits +-", "largest_difference", ".1e"),
        ("same", "same_answers", ".1%"),
    ]
    print(outputs.table(columns, [{**row, **row["latency_ms"]} for row in rows]))
    print("\n".join(comparison))
    path = flags.checkpoint or flags.bert_config_file or flags.config or "bert_base"
    name = outputs.stem(os.path.normpath(path))
    record = {"model": name, "config": dataclasses.asdict(found.bert), **measured, "comparison": comparison}
    title = f"Inference of {name}, {flags.instances} instance{'s' * (flags.instances > 1)}"
    bars = []
    for row in rows:
        text = f"{row['sequences_per_sec']:.4g} seq/s, {row['latency_ms']['p50']:.4g} ms"
        bars.append((row["name"], row["sequences_per_sec"], row["spread"], text, row["label"]))
    outputs.write_bars(flags.output, record, bars, title, "sequences per second; median latency of a batch")


def main() -> None:
    run(parse_flags())
