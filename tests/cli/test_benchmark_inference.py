"""The command `benchmark inference`: its flags, the rows that it gives, and the whole way on small models."""

import json
import os
import sys

import pytest

from official.cli.benchmark.inference import cases, command, models, systems
from official.io.errors import ConfigError
from tests import programs
from tests.conftest import TINY

# The interface: what every row has.
KEYS = {"name", "dtype", "max_seq_length", "batch", "backend", "sequences_per_sec", "latency_ms"}
LATENCIES = {"mean", "p50", "p99", "p999", "min", "max"}
FAKE = """
from official.cli.benchmark.inference.peer_programs import asking
import numpy as np
def make(specification):
    shift = 0.0 if specification["variant"] == "first" else 0.25
    return lambda batch, width: np.stack([batch.ids_T, batch.ids_T]) + shift, {"fake": "1", "flops": 1e6}
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
        flags = command.parse_flags()
        settings = models.settings_of(flags)
        command.settle(flags, settings)
        return flags, models.find(flags, settings)

    return read


@pytest.fixture(name="fakes")
def fixture_fakes(monkeypatch, tmp_path):
    """Puts a small program in the place of all systems."""
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    fake = lambda name, *rest: systems.System(name, f"Fake {name}", str(path), "first", ("fp32",))
    peer = systems.System("peer", "Peer", str(path), "second", ("fp32", "bf16"))
    monkeypatch.setattr(systems, "backend", fake)
    monkeypatch.setattr(systems, "PEERS", {"peer": peer})
    monkeypatch.setattr(systems, "PRODUCTS", systems.System("products", "", str(path), "", ("fp32",)))


@pytest.fixture(name="squad")
def fixture_squad(tmp_path):
    """Returns flags of a few real questions of different lengths, and their vocabulary."""
    (tmp_path / "vocab.txt").write_text(
        "\n".join([*WORDS, *(f"w{n}" for n in range(50 - len(WORDS)))]) + "\n"
    )
    paragraphs = [
        {
            "context": "the ball is red " * (number + 1),
            "qas": [{"id": str(number), "question": "what is red", "answers": []}],
        }
        for number in range(6)
    ]
    data = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    (tmp_path / "squad.json").write_text(json.dumps(data))
    return f"--predict_file={tmp_path}/squad.json", f"--vocab_file={tmp_path}/vocab.txt"


@pytest.mark.slow
def test_rows_are_those_of_the_interface(read, fakes, tmp_path, capsys):
    flags, found = read(
        f"--bert_config_file={tmp_path}/bert.json",
        "--max_seq_length=8,16",
        "--micro_batch_size=1,2",
        "--backends=tensorflow",
        "--peers=peer",
        "--rounds=5",
        "--num-iter=10",
        "--num-inference-thread=2",
    )
    measured = cases.measure(flags, found, str(tmp_path / "work"))
    rows = measured["cases"]
    assert [(row["max_seq_length"], row["batch"], row["backend"]) for row in rows] == [
        (length, batch, name) for length in (8, 16) for batch in (1, 2) for name in ("tensorflow", "peer")
    ]
    for row in rows:
        assert set(row) >= KEYS and set(row["latency_ms"]) == LATENCIES and row["dtype"] == "fp32"
        assert row["calls"] == 10 * 2 and row["latency_ms"]["min"] <= row["latency_ms"]["p50"]
        assert row["tokens_per_sec"] == pytest.approx(row["sequences_per_sec"] * row["max_seq_length"])
        assert row["largest_difference"] == (0.25 if row["backend"] == "peer" else 0.0)
        assert row["same_answers"] == 1.0 and row["share_of_products"] > 0
    assert capsys.readouterr().out.count("throughput: ") == len(rows) * 5
    json.dumps(measured, allow_nan=False)


def test_a_type_that_a_system_lacks_is_left_out(read, fakes, monkeypatch, tmp_path, capsys):
    flags, found = read(
        f"--bert_config_file={tmp_path}/bert.json",
        "--max_seq_length=8",
        "--micro_batch_size=1",
        "--backends=tensorflow",
        "--peers=peer",
        "--dtypes=bf16",
        "--rounds=1",
        "--num_iter=1",
        "--log-style=popart",
    )
    rows = cases.measure(flags, found, str(tmp_path / "work"))["cases"]
    assert [row["backend"] for row in rows] == ["peer"]
    assert rows[0]["share_of_products"] is None and rows[0]["gflops"] > 0
    told = capsys.readouterr()
    assert "Fake tensorflow: not in bf16" in told.err and told.out.startswith("Iteration:      0 Duration: ")


def test_a_whole_set_is_answered_in_every_usual_way(read, fakes, squad, tmp_path):
    flags, found = read(
        f"--bert_config_file={tmp_path}/bert.json",
        *squad,
        "--whole_set",
        "--max_seq_length=32",
        "--micro_batch_size=4",
        "--backends=tensorflow",
        "--peers=peer",
        "--rounds=2",
    )
    rows = cases.measure(flags, found, str(tmp_path / "work"))["cases"]
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
        assert row["calls"] == 2 * 2 and row["largest_difference"] in (0.0, 0.25)
        assert row["tokens_per_sec"] / row["sequences_per_sec"] == pytest.approx(tokens / 6)


def test_a_published_configuration_gives_sizes_and_length(monkeypatch):
    arguments = [
        "--config=squad_base_128_inf",
        "--micro-batch-size",
        "4",
        "--generated-data=true",
        "--epochs-inference",
        "20",
        "--input-files=data/squad/dev-v1.1.json",
    ]
    monkeypatch.setattr(sys, "argv", ["bert benchmark inference", *arguments])
    flags = command.parse_flags()
    settings = models.settings_of(flags)
    command.settle(flags, settings)
    bert = models.read_bert(flags.bert_config_file, settings)
    assert flags.max_seq_length == [128] and flags.micro_batch_size == [4] and flags.rounds == 20
    assert flags.generated_data and bert.hidden_size == 768 and bert.num_hidden_layers == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--micro_batch_size=1,x"], "--micro_batch_size=1,x, expected numbers from 1, comma-separated"),
        (["--max_seq_length=0"], "--max_seq_length=0, expected numbers from 1"),
        (["--dtypes=fp8"], "--dtypes=fp8: 'fp8' is not one of fp32, bf16, int8"),
        (["--backends=tensorflw"], "did you mean tensorflow"),
        (["--peers=torch"], "--peers=torch: 'torch' is not one of huggingface_eager, "),
        (["--rounds=0"], "--rounds=0, expected 1 or more"),
        (["--num_iter=0"], "--num_iter=0, expected 1 or more"),
        (["--secs=0"], "--secs=0, expected more than 0"),
        (["--instances=100000"], "--instances=100000: each needs a core of its own"),
        (["--whole_set"], "--whole_set answers real questions. Give --predict_file"),
        (["--generated_data=false"], "--generated_data=false needs --predict_file"),
        (["--checkpoint=x", "--bert_config_file=y"], "--bert_config_file is for a model that is made up"),
        (["--checkpoint=nowhere"], "--checkpoint=nowhere"),
        (["--bert_config_file=nowhere.json"], "bert_config_file=nowhere.json"),
    ],
)
def test_bad_input_ends_in_one_line(read, arguments, message):
    with pytest.raises(ConfigError) as error:
        read(*arguments)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_length_that_the_model_has_no_positions_for(read, tmp_path):
    with pytest.raises(ConfigError, match="--max_seq_length=64: the model has 32 positions"):
        read(f"--bert_config_file={tmp_path}/bert.json", "--max_seq_length=16,64")


def test_real_questions_need_a_vocabulary(read, squad, tmp_path):
    with pytest.raises(ConfigError, match="--predict_file needs --vocab_file"):
        flags, found = read(f"--bert_config_file={tmp_path}/bert.json", "--max_seq_length=16", squad[0])
        cases.Bench(flags, found, str(tmp_path / "work"))


def test_results_that_are_there_are_not_replaced(read, tmp_path):
    (tmp_path / "out.json").write_text("{}")
    with pytest.raises(ConfigError, match="out.json exists"):
        read(f"--output={tmp_path}/out")
    with pytest.raises(ConfigError, match="--work_dir=.* exists. Give a new folder"):
        read(f"--work_dir={tmp_path}")


def test_a_rank_of_mpirun_has_cores_and_results_of_its_own(read, monkeypatch, tmp_path):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    flags, _ = read(
        f"--bert_config_file={tmp_path}/bert.json", "--max_seq_length=8", f"--output={tmp_path}/out"
    )
    assert flags.cores == [[2, 3]] and flags.output == f"{tmp_path}/out_rank_1/out"


@pytest.mark.slow
def test_the_whole_way(tmp_path, squad):
    (tmp_path / "bert.json").write_text(json.dumps(TINY))
    done = programs.run(
        "scripts/benchmark_inference.py",
        f"--bert_config_file={tmp_path}/bert.json",
        *squad,
        "--max_seq_length=32",
        "--micro_batch_size=2",
        "--backends=tensorflow",
        f"--instances={min(2, len(os.sched_getaffinity(0)))}",
        "--rounds=2",
        "--num_iter=4",
        f"--output={tmp_path}/out",
        f"--work_dir={tmp_path}/work",
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    (row,) = record["cases"]
    assert row["backend"] == "tensorflow" and row["calls"] == 4 * record["instances"]
    assert (tmp_path / "work" / "fp32" / "tensorflow" / "instance_0" / "timings.jsonl").exists()
    assert (tmp_path / "out.png").stat().st_size > 5000
