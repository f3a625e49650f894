"""The command `benchmark inference`: its flags, the rows that it gives, and the whole way on small models."""

import dataclasses
import json
import os
import re
import sys

import numpy as np
import pytest

from official.cli import flags as train_flags
from official.cli.benchmark import answering as asking
from official.cli.benchmark import inference
from official.cli.benchmark.inference import Block
from official.config import BertConfig
from official.io.errors import ConfigError
from tests import programs
from tests.fixtures import TINY

# The interface: what every row has.
KEYS = {"name", "dtype", "max_seq_length", "batch", "backend", "sequences_per_sec", "latency_ms"}
LATENCIES = {"mean", "p50", "p99", "p999", "min", "max"}
FAKE = """
import json, os
from official.cli.benchmark import answering as asking
import numpy as np
def make(specification):
    print("what a library prints")
    with open("told.json", "w") as file:
        json.dump({"cores": sorted(os.sched_getaffinity(0)), **specification}, file)
    shift = 0.0 if specification["variant"] == "first" else 0.25
    versions = {"fake": "1", "flops": 1e6}
    return lambda batch, width: np.stack([batch.ids_T, batch.ids_T + (width or 0)]) + shift, versions
if __name__ == "__main__":
    asking.serve(make)
"""
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] red blue green is the ball what sky sea who".split()


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """Without the variables of an mpirun that runs the tests."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(name="read")
def fixture_read(monkeypatch, tmp_path):
    """Returns (arguments) -> flags and model, as the command reads them, of a tiny model."""
    (tmp_path / "bert.json").write_text(json.dumps(TINY))

    def read(*arguments):
        monkeypatch.setattr(sys, "argv", ["bert benchmark inference", *arguments])
        flags = inference.parse_flags()
        settings = train_flags.read_config(flags.config) if flags.config else {}
        inference.add_settings(flags, settings)
        return flags, inference.find_model(flags, settings)

    return read


@pytest.fixture(name="fakes")
def fixture_fakes(monkeypatch, tmp_path):
    """Returns a back end of this project and a peer, each a small program, as bare products are."""
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    command, env = (sys.executable, str(path)), inference.own_variables()
    made = inference.System("tensorflow", "Fake tensorflow", "first", ("fp32",), command, env)
    monkeypatch.setattr(inference, "PRODUCTS", made._replace(name="products", variant="products"))
    peer = made._replace(name="peer", title="Peer", variant="second", dtypes=("fp32", "bf16"), group="peers")
    return [made, peer]


@pytest.fixture(name="squad")
def fixture_squad(tmp_path):
    """Returns flags of a few real questions of different lengths, and their vocabulary."""
    words = [*WORDS, *(f"w{n}" for n in range(50 - len(WORDS)))]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    paragraphs = []
    for number in range(6):
        asked = {"id": str(number), "question": "what is red", "answers": []}
        paragraphs.append({"context": "the ball is red " * (number + 1), "qas": [asked]})
    data = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    (tmp_path / "squad.json").write_text(json.dumps(data))
    return f"--predict_file={tmp_path}/squad.json", f"--vocab_file={tmp_path}/vocab.txt"


def test_a_type_that_a_system_lacks_is_left_out(read, fakes, tmp_path, capsys):
    sizes = "--max_seq_length=8 --micro_batch_size=1 --dtypes=bf16 --rounds=2 --num_iter=6"
    given = [*sizes.split(), "--num-inference-thread=2", "--log-style=popart"]
    flags, found = read(f"--bert_config_file={tmp_path}/bert.json", *given)
    (row,) = inference.measure(flags, found, fakes, str(tmp_path / "work"))["cases"]
    assert row["backend"] == "peer" and row["share_of_products"] is None
    flops = inference.forward_flops(found.bert, [8])
    assert row["gflops"] == pytest.approx(flops * row["sequences_per_sec"] / 1e9) and row["calls"] == 6 * 2
    told = capsys.readouterr()
    assert "Fake tensorflow does not support bf16" in told.err
    assert told.out.startswith("Iteration:      0 Duration: ")


@pytest.mark.slow
def test_a_whole_set_is_answered_in_every_usual_way(read, fakes, squad, tmp_path, capsys):
    model = [f"--bert_config_file={tmp_path}/bert.json", *squad, "--max_seq_length=32"]
    flags, found = read(*model, "--whole_set", "--micro_batch_size=4", "--rounds=2")
    measured = inference.measure(flags, found, fakes, str(tmp_path / "work"))
    rows = measured["cases"]
    json.dumps(measured, allow_nan=False)
    assert capsys.readouterr().out.count("throughput: ") == len(rows) * 2
    assert [(row["backend"], row["padding"], row["order"]) for row in rows] == [
        ("tensorflow", "none", "file"),
        ("tensorflow", "none", "sorted"),
        ("peer", "max", "file"),
        ("peer", "longest", "file"),
        ("peer", "longest", "sorted"),
    ]
    # 6 questions; [CLS] what is red [SEP] 4 (n + 1) words [SEP], in windows of at most 32 tokens
    tokens = sum(6 + 4 * (number + 1) for number in range(6))
    for row in rows:
        assert set(row) >= KEYS and set(row["latency_ms"]) == LATENCIES and row["dtype"] == "fp32"
        assert row["latency_ms"]["min"] <= row["latency_ms"]["p50"] and row["share_of_products"] > 0
        difference = (32 if row["padding"] == "max" else 0) + (0.25 if row["backend"] == "peer" else 0)
        assert row["calls"] == 2 * 2 and row["largest_difference"] == difference
        assert row["tokens_per_sec"] / row["sequences_per_sec"] == pytest.approx(tokens / 6)
    flags, found = read(*model, "--micro_batch_size=7")
    with pytest.raises(ConfigError, match="--micro_batch_size=7: there are 6 windows"):
        inference.measure(flags, found, fakes[:1], str(tmp_path / "more"))


def test_a_published_configuration_gives_sizes_and_length(read):
    given = "--micro-batch-size 4 --generated-data=true --epochs-inference 20 --input-files=dev-v1.1.json"
    flags, found = read("--config=squad_base_128_inf", *given.split())
    assert flags.max_seq_length == [128] and flags.micro_batch_size == [4] and flags.rounds == 20
    assert flags.generated_data and found.bert.hidden_size == 768 and found.bert.num_hidden_layers == 12


def test_a_rank_of_mpirun_has_cores_and_results_of_its_own(read, monkeypatch, tmp_path):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    model = f"--bert_config_file={tmp_path}/bert.json"
    flags, _ = read(model, "--max_seq_length=8", f"--output={tmp_path}/out")
    assert flags.cores == [[2, 3]] and flags.output == f"{tmp_path}/out_rank_1/out"


@pytest.mark.slow
def test_the_whole_way(tmp_path, squad):
    (tmp_path / "bert.json").write_text(json.dumps(TINY))
    given = "--max_seq_length=32 --micro_batch_size=2 --backends=tensorflow --rounds=2 --num_iter=4"
    paths = f"--bert_config_file={tmp_path}/bert.json --output={tmp_path}/out --work_dir={tmp_path}/work"
    instances = f"--instances={min(2, len(os.sched_getaffinity(0)))}"
    words = [*squad, *given.split(), *paths.split(), instances]
    done = programs.run("scripts/benchmark_inference.py", *words)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    (row,) = record["cases"]
    assert row["backend"] == "tensorflow" and row["calls"] == 4 * record["instances"]
    assert (tmp_path / "work" / "fp32" / "tensorflow" / "instance_0" / "timings.jsonl").exists()
    assert (tmp_path / "out.png").stat().st_size > 5000


# ------------------------------------------------------------------------------------------------------------
# Parts

# As published: {metric: regular expression}.
POPART = {
    "throughput": r"Throughput\:\s*(.*) sequences/s",
    "mean": r"Per-sample: Mean Latency=\s*(\d\.\d*)",
    "min": r"Min Latency=\s*(\d\.\d*)",
    "max": r"Max Latency=\s*(\d\.\d*)",
    "p99": r"p99 Latency=\s*(\d\.\d*)",
    "p999": r"p999 Latency=\s*(\d\.\d*)",
}
BLOCK = Block(tuple(number / 1000 for number in range(1, 1002)), 123.456, 4000.0)
BERT = BertConfig(**TINY)


def test_statistics_of_hand_made_latencies():
    """And instances add up, and blocks give medians."""
    expected = {"mean": 501.0, "min": 1.0, "max": 1001.0, "p50": 501.0, "p99": 991.0, "p999": 1000.0}
    assert inference.latency_ms(BLOCK.secs[::-1]) == pytest.approx(expected)
    assert inference.latency_ms([0.25]) == dict.fromkeys(expected, 250.0)
    counts = {"sequences": 8, "tokens": 80}
    block = inference.block_of([{"secs": [n, n], "total_secs": 2 * n, **counts} for n in (1.0, 2.0)])
    assert block == Block((1.0, 1.0, 2.0, 2.0), 4.0 + 2.0, 40.0 + 20.0)
    blocks = [block._replace(sequences_per_sec=rate) for rate in (6.0, 4.0, 100.0)]
    found = inference.summary(blocks)
    assert found["sequences_per_sec"] == 6.0 and found["calls"] == 12
    assert found["spread"] == pytest.approx((53.0 - 5.0) / 2 / 6.0)
    assert found["latency_ms"]["mean"] == 1500.0 and inference.summary([block])["spread"] == 0.0


def test_popart_s_line_matches_the_published_expressions():
    """Those of the other line are ours, too: see test_benchmarks_yml.py."""
    line = inference.popart_line(3, BLOCK)
    assert line.startswith("Iteration:      3 Duration: 0.5010 s Throughput:  123.5 sequences/s Per-sample: ")
    found = {name: [float(each) for each in re.findall(POPART[name], line)] for name in POPART}
    expected = {"throughput": 123.5, "mean": 0.501, "min": 0.001, "max": 1.001, "p99": 0.991, "p999": 1.0}
    assert found == {name: [value] for name, value in expected.items()}


def test_a_rank_is_that_of_mpirun():
    world = {"RANK": "5", "SIZE": "8", "LOCAL_RANK": "1", "LOCAL_SIZE": "4"}
    open_mpi = {f"OMPI_COMM_WORLD_{name}": value for name, value in world.items()}
    for environment, expected in (
        ({"HOME": "/"}, None),
        (open_mpi, (5, 1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 2, 4)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (3, 1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 1, 2)),
    ):
        assert inference.find_rank(environment) == expected, environment


def test_cores_are_shared_out():
    Rank, share = inference.Rank, inference.share_cores
    assert share([4, 3, 2, 1, 0], None, 5, 2) == [[0, 1], [2, 3]]
    shares = [share({0, 1, 2, 3}, Rank(rank, rank, 2), 4, 1) for rank in range(2)]
    assert shares == [[[0, 1]], [[2, 3]]]
    assert share([2], Rank(0, 0, 2), 4, 1) == [[2]]  # mpirun has bound it
    assert [share([0, 1], Rank(n, n, 4), 2, 1) for n in range(4)] == [[[0]], [[1]], [[0]], [[1]]]


def make_batches(lengths):
    """Returns batches of one window each."""
    generator = np.random.default_rng(1)
    segments = [np.int32(np.arange(length) >= length // 2) for length in lengths]
    windows = [(generator.integers(1, 50, len(each), np.int32), each) for each in segments]
    return inference.make_batches(windows, 1)


def test_threads_ask_at_the_same_time_and_what_fails_in_one_is_raised():
    batches, asked = make_batches([4, 2, 6]), []
    found = asking.measure(lambda batch: asked.append(len(batch.ids_T)), batches, calls=4, callers=2)
    assert sorted(asked) == sorted([4, 2, 6, 4] * 2)
    assert len(found["secs"]) == 8 and found["sequences"] == 8 and found["tokens"] == 32
    assert found["total_secs"] >= max(found["secs"])
    with pytest.raises(ZeroDivisionError):
        asking.measure(lambda batch: 1 / 0, batches, calls=1, callers=2)


def test_answers_are_compared():
    reference = np.array([[0, 1, 0, 5, 0.0], [1, 0, 0, 5, 0]])
    other = reference + np.array([[0, 0, 9.0, 0, 0], [0.5, 0, 0, 0, 0]])
    for logits, difference, same in ((reference, 0.0, 1.0), (other, 9.0, 0.5)):
        expected = {"largest_difference": difference, "same_answers": same}
        assert inference.compare(logits, reference, np.array([3, 2])) == expected


def test_flops_are_those_of_each_product():
    hidden, inner, heads = BERT.hidden_size, BERT.intermediate_size, BERT.num_attention_heads
    expected = 0
    for length in (7, 12):
        products = [(length, hidden, hidden)] * 4 + [(length, hidden, inner), (length, inner, hidden)]
        products += [(length, hidden // heads, length), (length, length, hidden // heads)] * heads
        products = products * BERT.num_hidden_layers + [(length, hidden, 2)]
        expected += sum(2 * rows * inside * columns for rows, inside, columns in products)
    assert inference.forward_flops(BERT, [7, 12]) == expected
    assert inference.forward_flops(dataclasses.replace(BERT, block_type="groupbert"), [7]) is None


def test_instances_have_cores_and_folders_of_their_own(fakes, tmp_path):
    batches, file = make_batches([4, 2]), str(tmp_path / "batches.npz")
    asking.write_batches(file, batches)
    cores = sorted(os.sched_getaffinity(0))
    own = [[cores[0]], [cores[-1]]]
    with inference.Instances(fakes[0], {"dtype": "fp32"}, own, str(tmp_path / "work")) as instances:
        block = instances.run({"batches": file, "calls": 3, "callers": 1})
        logits = instances.logits({"batches": file, "callers": 1, "width": 5}, str(tmp_path))
    assert len(block.secs) == 6 and instances.versions["fake"] == "1"
    ids_T = np.concatenate([batch.ids_T for batch in batches])
    assert np.array_equal(logits, [ids_T, ids_T + 5])
    for number, its in enumerate(own):
        folder = tmp_path / "work" / "tensorflow" / f"instance_{number}"
        told = (folder / "told.json").read_text()
        assert f'"cores": {its}' in told and '"threads": 1' in told and '"variant": "first"' in told
        assert (folder / "timings.jsonl").read_text().count("\n") >= 1
    broken = fakes[0]._replace(command=(sys.executable, "-c", "raise ModuleNotFoundError('no torch here')"))
    wanted = "--backends: tensorflow ended with code 1: ModuleNotFoundError: no torch"
    with pytest.raises(ConfigError, match=wanted):
        inference.Instances(broken, {}, [[0]], str(tmp_path / "work"))
