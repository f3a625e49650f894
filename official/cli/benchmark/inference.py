"""Measures inference: throughput and latency of this project's back ends.

  bert benchmark inference --max_seq_length=128,384 --micro_batch_size=1,8,32 --dtypes=fp32,bf16 \\
    --output=results/inference

Every back end runs in processes of its own, tied to their cores, with the same weights, and answers the same
batches. All take turns, several rounds. --instances=N and mpirun --np N run N of each at once and add up what
they answer. A line of the log tells each turn.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from official.cli import command_line, configs, outputs
from official.cli.benchmark.answering import Batch, write_batches
from official.cli.benchmark.programs import Program
from official.config import BertConfig, bert_config_from_dict, read_json
from official.config.cluster import MPI_VARIABLES
from official.graphcore import popart_lines
from official.io.errors import ConfigError
from official.reporting.measurement import Timing

if TYPE_CHECKING:
    from official.inference.source import Source

BACKENDS = ("tensorflow", "onnxruntime", "openvino")
DTYPES = ("fp32", "bf16", "int8")
SEED = 12345
ANSWERING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "answering.py")
_LENGTHS = "128,384"
_HEAD = "answer"
_COUNTS = ("instances", "num_inference_thread", "rounds", "num_threads", "num_iter", "sequences")
_CALIBRATION = 8, 8  # batches and their sequences, for the ranges of int8
_GENERATED = 4  # different batches; their answers take the same time
_MAX_REAL = 64


class System(NamedTuple):
    """A measured system.

    Attributes:
      name, title: in tables and JSON, and for people.
      variant: its own kind of working.
      dtypes: that it computes in, of DTYPES.
      command: words of its program.
      env: variables of its process; None: those of this one.
      group: of peers, in which the fastest is looked for.
      model: of peers, (model, its checkpoint or None, folder) -> path of the model in their format.
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


_TITLES = {"tensorflow": "TensorFlow", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
PRODUCTS = System("products", "bare products", "products", ("fp32", "bf16"))


# ------------------------------------------------------------------------------------------------------------
# Flags


class Main(command_line.Flags):
    """Measures inference: throughput and latency of this project's back ends.

    Attributes:
      bert_config_file: Sizes of a made-up model. Unset: --config's, else base's.
      config: Ours or Graphcore's, such as squad_base_128_inf: sizes and length.
      checkpoint: A model that was fine-tuned on SQuAD, of any known format.
      vocab_file: Vocabulary of real questions. Unset: that beside --checkpoint.
      max_seq_length: Tokens of a row, comma-separated. Unset: --config's, else 128,384.
      micro_batch_size: Sequences of a batch, comma-separated.
      generated_data: Ask about made-up rows, all of full length. Unset: without questions.
      predict_file: Real questions: SQuAD JSON.
      whole_set: Each turn answers all questions once; systems that pad do it in every usual way.
      sequences: Take so many of the questions' windows, drawn at random.
      backends: Comma-separated back ends of this project.
      dtypes: Comma-separated: fp32, bf16, int8.
      instances: Processes of each system that answer at once.
      num_inference_thread: Threads of a process that ask at the same time.
      num_threads: Threads of a process's products. Unset: its cores.
      rounds: Turns of every system in every case.
      num_iter: Batches of a thread in all turns. Unset: for --secs.
      secs: Seconds of a system's turns in a case, without --num_iter.
      log_style: Words of the log's lines.
      work_dir: Keep the instances' folders in this new one. Unset: temporary.
      output: Also write OUTPUT.json and the chart OUTPUT.png.
      overwrite: Replace them where they are there.
    """

    ALIASES = {
        "input_files": "predict_file",
        "epochs_inference": "rounds",
        "sequence_length": "max_seq_length",
        "seq_length": "max_seq_length",
        "dtype": "dtypes",
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
    num_threads: int | None = None
    rounds: int = 10
    num_iter: int | None = None
    secs: float = 10.0
    log_style: Literal["plain", "popart"] = "plain"
    work_dir: str | None = None
    output: str | None = None
    overwrite: bool = False


def parse_flags(parser: command_line.Parser | None = None) -> argparse.Namespace:
    flags: argparse.Namespace = (parser or Main.parser()).parse()
    flags.rank = find_rank()
    if flags.rank:  # DIR/NAME becomes DIR/NAME_rank_N/NAME
        for name in ("output", "work_dir"):
            path = getattr(flags, name)
            own = path and os.path.join(f"{path}_rank_{flags.rank.rank}", os.path.basename(path))
            setattr(flags, name, own)
    outputs.check_results(flags)
    command_line.check_counts(flags, *_COUNTS)
    if flags.secs <= 0:
        raise ConfigError(f"--secs={flags.secs:g}, expected more than 0.")
    if flags.work_dir and os.path.exists(flags.work_dir):
        raise ConfigError(f"--work_dir={flags.work_dir} exists. Give a new folder.")
    flags.backends = command_line.read_list(flags.backends, "backends", BACKENDS)
    flags.dtypes = command_line.read_list(flags.dtypes, "dtypes", DTYPES)
    flags.micro_batch_size = read_sizes(flags.micro_batch_size, "micro_batch_size")
    cores = own_cores(sorted(os.sched_getaffinity(0)), flags.rank, os.cpu_count() or 1)
    flags.cores = split_cores(cores, flags.instances)
    return flags


def read_sizes(text: str, flag: str) -> list[int]:
    """Returns the numbers of a comma-separated list. Raises ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    sizes = [int(part) if part.isascii() and part.isdigit() else 0 for part in parts]
    if min(sizes) < 1:
        raise ConfigError(f"--{flag}={text[:100]}, expected numbers from 1, comma-separated.")
    return sizes


def add_settings(flags: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Fills in what --config says and no flag does. Raises ConfigError for what does not go together."""
    lengths = flags.max_seq_length or str(settings.get("max_seq_length", _LENGTHS))
    flags.max_seq_length = read_sizes(lengths, "max_seq_length")
    if flags.checkpoint and flags.bert_config_file:
        raise ConfigError(
            "--bert_config_file is for a model that is made up, and --checkpoint is one. Drop one."
        )
    named = None if flags.checkpoint else settings.get("vocab_file")
    flags.vocab_file = flags.vocab_file or named
    flags.predict_file = flags.predict_file or settings.get("predict_file")
    if flags.generated_data is None:
        flags.generated_data = flags.predict_file is None
    if not flags.generated_data and not flags.predict_file:
        raise ConfigError("--generated_data=false needs --predict_file=FILE.json.")
    if flags.generated_data and flags.whole_set:
        raise ConfigError("--whole_set answers real questions. Give --predict_file=FILE.json.")


# ------------------------------------------------------------------------------------------------------------
# Processes that mpirun started, and their cores

_MPI_VARIABLES = {**MPI_VARIABLES, "PMIX_SIZE": ("PMIX_RANK", "PMIX_LOCAL_SIZE", "PMIX_LOCAL_RANK")}


class Rank(NamedTuple):
    """A process that mpirun started: its number, and that among those of this machine, from 0."""

    rank: int
    local_rank: int
    local_size: int


def find_rank(environment: Mapping[str, str] = os.environ) -> Rank | None:
    """Returns this process's rank from mpirun's variables; None where mpirun did not start it. Raises
    ConfigError for variables that are not numbers."""
    names = next(((size, *row) for size, row in _MPI_VARIABLES.items() if row[0] in environment), None)
    if names is None:
        return None
    size, rank, local_size, local_rank = names
    own = environment[rank]
    places = (own, environment.get(local_rank, own), environment.get(local_size, environment.get(size, "1")))
    try:
        return Rank(*map(int, places))
    except ValueError:
        shown = f"{rank}={own}, on this machine {places[1]} of {places[2]}"
        raise ConfigError(f"{shown[:150]}: expected the numbers that mpirun sets.") from None


def own_cores(cores: Sequence[int], rank: Rank | None, of_machine: int) -> list[int]:
    """Returns the cores of this process; with more processes than cores, several share one.

    Args:
      cores: cores that it may run on.
      rank: rank of this process; None: it is alone.
      of_machine: number of the machine's cores. Where the process may run on fewer, mpirun has bound it.
    """
    if rank is None or len(cores) < of_machine or rank.local_size < 2:
        return sorted(cores)
    if rank.local_size > len(cores):
        return [sorted(cores)[rank.local_rank % len(cores)]]
    return split_cores(cores, rank.local_size)[rank.local_rank]


def split_cores(cores: Sequence[int], parts: int) -> list[list[int]]:
    """Returns the cores in equal parts of neighbours; the remainder is in no part. Raises ConfigError where
    there are fewer cores than parts."""
    share = len(cores) // parts
    if not share:
        raise ConfigError(
            f"--instances={parts}: each needs a core of its own, and this process has {len(cores)}."
            f" Allowed: 1 to {len(cores)}."
        )
    ordered = sorted(cores)
    return [ordered[part * share : (part + 1) * share] for part in range(parts)]


# ------------------------------------------------------------------------------------------------------------
# Model and questions


def find_model(flags: argparse.Namespace, settings: dict[str, Any]) -> Source:
    """Returns the model of --checkpoint, or one with random weights and, for real questions, --vocab_file.
    Raises ConfigError where it has no head for answers, or too few positions for --max_seq_length."""
    from official.inference import source

    if flags.checkpoint:
        found = source.find(flags.checkpoint, flags.vocab_file, flag="checkpoint")
        found.check_can(_HEAD)
    else:
        path = flags.bert_config_file or "configs/models/bert_base.json"
        values = None if flags.bert_config_file else settings.get("model")
        values = values or read_json(configs.find(path), "bert_config_file")
        found = source.random_source(bert_config_from_dict(values, path), _HEAD, seed=SEED)
    longest, positions = max(flags.max_seq_length), found.bert.max_position_embeddings
    if longest > positions:
        raise ConfigError(f"--max_seq_length={longest}: the model has {positions} positions.")
    if flags.checkpoint or flags.generated_data:
        return found
    from official.data.word_pieces import vocabulary

    if flags.vocab_file is None:
        raise ConfigError("--predict_file needs --vocab_file=vocab.txt where there is no --checkpoint.")
    words = vocabulary.load_for_text(flags.vocab_file, None, flags.vocab_file)
    if words.size > found.bert.vocab_size:
        raise ConfigError(
            f"--vocab_file={flags.vocab_file} has {words.size} words, the model's vocab_size is"
            f" {found.bert.vocab_size}. Change one of them."
        )
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


class Windows(NamedTuple):
    """Windows of questions, int32: ids [N, L], their tokens [N], and those of the first segment [N]."""

    ids_NL: np.ndarray
    lengths_N: np.ndarray
    firsts_N: np.ndarray

    def batches(self, order: np.ndarray, size: int) -> list[Batch]:
        """Returns batches of `size` windows without padding, in an order; the last may have fewer."""
        batches = []
        column_L = np.arange(self.ids_NL.shape[1])
        for first in range(0, len(order), size):
            ids_NL, lengths_N, firsts_N = (values[order[first : first + size]] for values in self)
            is_token_NL = column_L < lengths_N[:, None]
            segments_NL = (column_L >= firsts_N[:, None]).astype(np.int32)
            batches.append(Batch(ids_NL[is_token_NL], segments_NL[is_token_NL], lengths_N))
        return batches

    def some(self, count: int | None, seed: int) -> Windows:
        """Returns `count` windows drawn at random, in their order; all of them for None."""
        if count is None or count >= len(self.lengths_N):
            return self
        drawn = np.sort(np.random.default_rng(seed).permutation(len(self.lengths_N))[:count])
        return Windows(*(values[drawn] for values in self))


def generated_windows(words: int, length: int, count: int, seed: int) -> Windows:
    """Returns windows of random words, all `length` tokens long, the second half in the second segment."""
    ids_NL = np.random.default_rng(seed).integers(0, words, (count, length), dtype=np.int32)
    lengths_N = np.full(count, length, np.int32)
    return Windows(ids_NL, lengths_N, lengths_N // 2)


def real_windows(path: str, found: Source, length: int) -> Windows:
    """Returns the windows of a SQuAD file, cut as `ask` cuts them. Raises ConfigError."""
    from official.data.squad import features, squad_files

    with_negative = found.setting("version_2_with_negative", False)
    data = squad_files.read_squad(path, "predict_file", False, with_negative)
    rules = features.WindowRules(length, max(length // 3, 1), max(length // 6, 1))
    made = features.make_features(data, found.vocabulary, rules)
    if not len(made):
        raise ConfigError(f"--predict_file={path} has no question that can be answered.")
    return Windows(made.input_ids.astype(np.int32), made.lengths, made.first_lengths)


# ------------------------------------------------------------------------------------------------------------
# Timed calls: throughput and latency, and lines of a log that tell them

_PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9}


class Block(NamedTuple):
    """Calls that were timed together, of all instances.

    Attributes:
      secs: of each call.
      sequences_per_sec, tokens_per_sec: of the instances together: each one's own rate, summed.
    """

    secs: tuple[float, ...]
    sequences_per_sec: float
    tokens_per_sec: float


def block_of(answers: Sequence[dict]) -> Block:
    """Returns the block of the instances' answers, see `answering.measure`."""
    return Block(
        tuple(secs for answer in answers for secs in answer["secs"]),
        sum(answer["sequences"] / answer["total_secs"] for answer in answers),
        sum(answer["tokens"] / answer["total_secs"] for answer in answers),
    )


def latency_ms(secs: Sequence[float]) -> dict[str, float]:
    """Returns {mean, min, max, p50, p99, p999} of calls in milliseconds. Between two calls, percentiles are
    interpolated linearly, as NumPy does it."""
    values = np.asarray(secs, np.float64) * 1000
    percentiles = {name: float(np.percentile(values, share)) for name, share in _PERCENTILES.items()}
    extremes = {"min": float(values.min()), "max": float(values.max())}
    return {"mean": float(values.mean()), **extremes, **percentiles}


def summary(blocks: Sequence[Block]) -> dict:
    """Returns the statistics of a case's blocks.

    Returns:
      sequences_per_sec, tokens_per_sec: medians over the blocks; spread: half the distance between the
      quartiles of the first, over it; latency_ms of all calls; calls: their number.
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
    """Returns the line of a case in the words of the published benchmarks' regular expressions.

    Source: Graphcore's examples v3.4.1, run_squad_runtime.py and benchmarks.yml.
    """
    latency = latency_ms(block.secs)
    shown = {"avg": "mean", "min": "min", "max": "max", "99p": "p99", "99p9": "p999"}
    latencies = [f"latency {name}: {latency[key]:.3f} ms" for name, key in shown.items()]
    return ", ".join([f"{case}: throughput: {block.sequences_per_sec:.3f} samples/sec", *latencies])


def popart_line(number: int, block: Block) -> str:
    """Returns the line of PopART's inference; `number` counts blocks from 0."""
    duration = sum(block.secs) / len(block.secs)
    return popart_lines.inference_line(number, duration, block.sequences_per_sec, block.secs)


# ------------------------------------------------------------------------------------------------------------
# Instances of a system, and their turns


class Instances(contextlib.ExitStack):
    """The processes of a system, which answer at once. A context manager."""

    def __init__(self, system: System, specification: dict, cores: list[list[int]], folder: str):
        """Starts one for each list of cores, in FOLDER/SYSTEM/instance_N, and waits until all are ready."""
        super().__init__()
        self.system = system
        with contextlib.ExitStack() as starting:
            self._programs = []
            for number, own in enumerate(cores):
                asked = {"threads": len(own), **specification, "cores": own, "variant": system.variant}
                program = Program(
                    f"--{'backends' if system.is_ours else 'peers'}: {system.name}",
                    list(system.command),
                    os.path.join(folder, system.name, f"instance_{number}"),
                    {**(system.env or _environment()), "OMP_NUM_THREADS": str(asked["threads"])},
                )
                self._programs.append(starting.enter_context(program))
                program.ask(asked)
            ready = [program.answer() for program in self._programs]
            self.enter_context(starting.pop_all())
        self.start_secs: float = max(one["start_secs"] for one in ready)
        self.versions: dict = ready[0]["versions"]

    def run(self, question: dict) -> Block:
        """Asks all at the same time, and returns their timed calls."""
        for program in self._programs:
            program.ask(question)
        return block_of([program.answer() for program in self._programs])

    def logits(self, batches: str, width: int | None, folder: str) -> np.ndarray:
        """Returns the first one's logits [2, T] of all batches in a file. Also compiles for their shapes."""
        path = os.path.join(folder, "logits.npy")
        self._programs[0].ask({"batches": batches, "calls": 0, "callers": 1, "width": width, "save": path})
        self._programs[0].answer()
        return np.load(path)


def _environment() -> dict[str, str]:
    """Returns the variables of a process of this project, without settings of TensorFlow and Python."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TF_", "KERAS"))}
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(ANSWERING))))
    return {**kept, "PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"}


class Turn(NamedTuple):
    """A system's turn: its instances, a file of batches, and how they are padded and ordered.

    Attributes:
      padding: none, longest (of the batch) or max.
      order: file or sorted (by length).
      width: of padded rows; None: that of the longest.
      calls: of a turn, where all batches are answered once.
      lengths: tokens of each sequence.
    """

    instances: Instances
    file: str
    padding: str
    order: str
    width: int | None
    calls: int | None
    lengths: np.ndarray

    def question(self, flags: argparse.Namespace) -> dict:
        """Returns the question for each round, after calls that warm up and, unless the whole set is asked,
        show how long one takes."""
        question = {
            "batches": self.file,
            "width": self.width,
            "calls": self.calls or 2,
            "callers": 1 if self.calls else flags.num_inference_thread,
        }
        warm = self.instances.run(question)
        if self.calls:
            return question
        if flags.num_iter is not None:
            return {**question, "calls": math.ceil(flags.num_iter / flags.rounds)}
        calls = max(1, round(flags.secs / flags.rounds / max(min(warm.secs), 1e-6)))
        return {**question, "calls": calls}


def compare(logits: np.ndarray, reference: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """Returns {largest_difference, same_answers} of logits [2, T] beside the reference's: the largest
    absolute difference, and the share of sequences whose likeliest first and last tokens are the same."""
    bounds = np.cumsum(lengths)[:-1]
    found, wanted = (
        [tuple(part.argmax(axis=1)) for part in np.split(values, bounds, axis=1)]
        for values in (logits, reference)
    )
    return {
        "largest_difference": float(np.abs(logits - reference).max()),
        "same_answers": float(np.mean([a == b for a, b in zip(found, wanted)])),
    }


# ------------------------------------------------------------------------------------------------------------
# All cases


class Bench:
    """Shared state of all cases: flags, model, systems, folder, and the reference logits that others are
    compared with."""

    def __init__(self, flags: argparse.Namespace, found: Source, systems: Sequence[System], folder: str):
        self.flags, self.found, self.systems, self.folder = flags, found, systems, folder
        os.makedirs(folder, exist_ok=True)
        self.reference: dict[tuple, np.ndarray] = {}
        self.versions: dict[str, dict] = {}

    def windows(self, length: int) -> Windows:
        """Returns the input windows for rows of `length` tokens: generated, or from real questions."""
        if self.flags.generated_data:
            size = max(self.flags.micro_batch_size)
            return generated_windows(self.found.bert.vocab_size, length, _GENERATED * size, SEED)
        every = real_windows(self.flags.predict_file, self.found, length)
        return every.some(self.flags.sequences, SEED)

    def write(self, name: str, batches: list[Batch]) -> str:
        """Writes batches into a file and returns its path."""
        path = os.path.join(self.folder, f"{name}.npz")
        write_batches(path, batches)
        return path

    def calibration(self, length: int) -> str:
        """Writes the batches from which int8 takes its ranges; returns their file."""
        count, size = _CALIBRATION
        windows = self.windows(length).some(count * size, SEED + 1)
        return self.write(f"calibration_{length}", windows.batches(np.arange(len(windows.lengths_N)), size))

    def start(self, system: System, dtype: str) -> Instances:
        """Starts the instances of a system. Raises ConfigError where it cannot work."""
        flags = self.flags
        print(f"{system.title}, {dtype} ...", file=sys.stderr, flush=True)
        if not system.is_ours:
            model: dict[str, Any] = {"model": system.model(self.found, flags.checkpoint, self.folder)}
        elif flags.checkpoint:
            vocab_file = os.path.abspath(flags.vocab_file) if flags.vocab_file else None
            model = {"model": os.path.abspath(flags.checkpoint), "vocab_file": vocab_file}
        else:
            model = {"model": None, "config": dataclasses.asdict(self.found.bert), "seed": SEED}
        calibration = self.calibration(max(flags.max_seq_length)) if dtype == "int8" else None
        dynamic = not flags.generated_data
        specification = {**model, "dtype": dtype, "calibration": calibration, "dynamic": dynamic}
        if flags.num_threads is not None:
            specification["threads"] = flags.num_threads
        started = Instances(system, specification, flags.cores, os.path.join(self.folder, dtype))
        self.versions[system.name] = started.versions
        return started


def measure(
    flags: argparse.Namespace, found: Source, systems: Sequence[System], folder: str
) -> dict[str, Any]:
    """Returns {cases, products_gflops, rounds, instances, ...}. Raises ConfigError."""
    bench = Bench(flags, found, systems, folder)
    measured = {dtype: measure_dtype(bench, dtype) for dtype in flags.dtypes}
    return {
        "rounds": flags.rounds,
        "instances": flags.instances,
        "num_inference_thread": flags.num_inference_thread,
        "cores": flags.cores,
        "data": "generated" if flags.generated_data else os.path.basename(flags.predict_file),
        "seed": SEED,
        "products_gflops": {dtype: peak for dtype, (_, peak) in measured.items()},
        "versions": bench.versions,
        "cases": [row for rows, _ in measured.values() for row in rows],
    }


def measure_dtype(bench: Bench, dtype: str) -> tuple[list[dict], float | None]:
    """Returns (result rows of a type, GFLOP/s of its bare products, None where these are not measured)."""
    flags = bench.flags
    wanted = [system for system in bench.systems if dtype in system.dtypes]
    for system in bench.systems:
        if system not in wanted:
            print(f"{system.title}: not in {dtype}, which it does not compute in.", file=sys.stderr)
    if wanted and dtype in PRODUCTS.dtypes:
        wanted.append(PRODUCTS)
    rows: list[dict] = []
    seconds: list[float] = []  # of bare products
    with contextlib.ExitStack() as stack:
        running = {system.name: stack.enter_context(bench.start(system, dtype)) for system in wanted}
        for length in flags.max_seq_length if running else ():
            windows = bench.windows(length)
            for size in flags.micro_batch_size:
                case = {"dtype": dtype, "max_seq_length": length, "batch": size}
                rows += measure_case(bench, running, case, windows, seconds)
    peak = None
    if seconds:
        flops = running[PRODUCTS.name].versions["flops"] * flags.instances
        peak = flops / float(np.median(seconds)) / 1e9
    for row in rows:
        flops = row.pop("flops_of_a_sequence")
        row["instances"] = flags.instances
        row["gflops"] = flops * row["sequences_per_sec"] / 1e9 if flops else None
        row["share_of_products"] = row["gflops"] / peak if row["gflops"] and peak else None
    return rows, peak


def measure_case(
    bench: Bench, running: dict[str, Instances], case: dict[str, Any], windows: Windows, seconds: list[float]
) -> list[dict]:
    """Returns a result row for each system and way of padding; adds the seconds of bare products to
    `seconds`."""
    flags = bench.flags
    turns = turns_of(bench, running, case, windows)
    shape = f"{case['dtype']}, {case['max_seq_length']} tokens x {case['batch']}"
    compared = {}
    for label, turn in turns.items():
        if label != PRODUCTS.name:
            logits = turn.instances.logits(turn.file, turn.width, bench.folder)
            key = (case["max_seq_length"], case["batch"], turn.order)
            compared[label] = compare(logits, bench.reference.setdefault(key, logits), turn.lengths)
    questions = {label: turn.question(flags) for label, turn in turns.items()}
    blocks: dict[str, list[Block]] = {label: [] for label in turns}
    for number in range(flags.rounds):
        for label, turn in turns.items():
            block = turn.instances.run(questions[label])
            blocks[label].append(block)
            if label == PRODUCTS.name:
                seconds.extend(block.secs)
            elif flags.log_style == "popart":
                print(popart_line(number, block), flush=True)
            else:
                print(plain_line(f"{shape}: {label}", block), flush=True)
    rows = []
    for label, values in compared.items():
        turn = turns[label]
        flops = forward_flops(bench.found.bert, map(int, turn.lengths))
        rows.append(
            {
                "name": f"{shape}: {label}",
                "case": shape,
                "label": label,
                "backend": turn.instances.system.name,
                **case,
                "padding": turn.padding,
                "order": turn.order,
                **summary(blocks[label]),
                **values,
                "start_secs": turn.instances.start_secs,
                "flops_of_a_sequence": flops / len(turn.lengths) if flops else None,
            }
        )
    return rows


def turns_of(
    bench: Bench, running: dict[str, Instances], case: dict[str, Any], windows: Windows
) -> dict[str, Turn]:
    """Returns {label: turn} of a case: with --whole_set one for each usual way to pad and to order. Raises
    ConfigError where there are too few windows for a batch."""
    size, length, whole = case["batch"], case["max_seq_length"], bench.flags.whole_set
    count = len(windows.lengths_N)
    if whole:
        orders = {"file": np.arange(count), "sorted": np.argsort(windows.lengths_N, kind="stable")}
    elif count < size:
        raise ConfigError(f"--micro_batch_size={size}: there are {count} windows. Take a smaller one.")
    else:
        batches = min(count // size, _GENERATED if bench.flags.generated_data else _MAX_REAL)
        orders = {"file": np.arange(batches * size)}
    made = {order: windows.batches(numbers, size) for order, numbers in orders.items()}
    files = {order: bench.write(f"{length}_{size}_{order}", batches) for order, batches in made.items()}
    lengths = {order: windows.lengths_N[numbers] for order, numbers in orders.items()}
    calls = len(made["file"]) if whole else None
    turns = {}
    for instances in running.values():
        system = instances.system
        if system == PRODUCTS:
            turns[PRODUCTS.name] = Turn(instances, files["file"], "none", "file", None, 1, lengths["file"])
            continue
        ways = [("none", "file") if system.is_ours else ("longest", "file")]
        if whole:
            padded = [("max", "file"), ("longest", "file"), ("longest", "sorted")]
            ways = [("none", "file"), ("none", "sorted")] if system.is_ours else padded
        for padding, order in ways:
            label = system.title + (f", {padding}, {order}" if whole else "")
            width = length if padding == "max" else None
            turns[label] = Turn(instances, files[order], padding, order, width, calls, lengths[order])
    return turns


# ------------------------------------------------------------------------------------------------------------
# Results


def verdicts(rows: Sequence[dict], groups: Mapping[str, str]) -> list[str]:
    """Returns a line for each case: our fastest back end, over the fastest of each group of peers, and its
    share of bare products.

    Args:
      rows: of all systems.
      groups: {peer: its group}.
    """
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        of_case = [row for row in rows if row["case"] == case]
        of_case.sort(key=lambda row: row["sequences_per_sec"], reverse=True)
        ours = [row for row in of_case if row["backend"] not in groups]
        if not ours:
            continue
        own = ours[0]
        parts = [f"{case}: {own['label']}, {own['sequences_per_sec']:.2f} seq/s"]
        for group in dict.fromkeys(groups.values()):
            for row in [row for row in of_case if groups.get(row["backend"]) == group][:1]:
                parts.append(f"{own['sequences_per_sec'] / row['sequences_per_sec']:.2f} x {row['label']}")
        if own["share_of_products"]:
            parts.append(f"{own['share_of_products']:.0%} of bare products")
        lines.append("; ".join(parts))
    return lines


def run(flags: argparse.Namespace, peers: Sequence[System] = ()) -> None:
    """Measures, prints and writes the back ends of the flags, and other systems.

    Args:
      flags: of the command line.
      peers: the others.
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
    kinds = ("mean", "min", "p50", "p99", "p999", "max")
    columns = [
        ("case", "name", ""),
        ("seq/s", "sequences_per_sec", ".2f"),
        ("+-", "spread", ".1%"),
        ("tokens/s", "tokens_per_sec", ".0f"),
        *((f"{kind} ms", kind, ".1f") for kind in kinds),
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
    bars = [
        (
            row["name"],
            row["sequences_per_sec"],
            row["spread"],
            f"{row['sequences_per_sec']:.4g} seq/s, {row['latency_ms']['p50']:.4g} ms",
            row["label"],
        )
        for row in rows
    ]
    outputs.write_bars(flags.output, record, bars, title, "sequences per second; median latency of a batch")


def main() -> None:
    run(parse_flags())
