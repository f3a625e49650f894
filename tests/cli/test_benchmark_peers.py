"""The comparison with other systems: processes that take turns, the verdict, the flags; never a time."""

import dataclasses
import json
import math
import pathlib

import pytest

from official.cli.benchmark import peers as benchmark_peers
from official.io.errors import ConfigError
from tests import programs
from tests.conftest import TINY

WORKER = """
from official.cli.benchmark.peer_programs import worker
def make_step(specification):
    print("what a library prints")
    count = iter(range(100))
    return lambda: specification["batch"] + next(count) / 8
if __name__ == "__main__":
    worker.serve(make_step)
"""


@pytest.fixture(name="peer")
def fixture_peer(tmp_path, monkeypatch):
    """Returns (source of a program) -> name of a peer that it is."""

    def make(source):
        (tmp_path / "peer.py").write_text(source)
        monkeypatch.setitem(
            benchmark_peers.PEERS, "fake", benchmark_peers.Peer("Fake", str(tmp_path / "peer.py"), "x")
        )
        return "fake"

    return make


def start(name, tmp_path):
    return benchmark_peers.start_worker(name, {"batch": 2}, str(tmp_path / "worker"), "unused")


def test_a_worker_answers_in_turns(peer, tmp_path):
    name = peer(WORKER)
    with start(name, tmp_path) as worker:
        first = worker.answer()
        assert first["start_secs"] >= 0 and first["losses"] == [2.0]
        assert benchmark_peers.run_steps(worker, 2) == [2.125, 2.25]
        assert benchmark_peers.run_steps(worker, 1) == [2.375]


def test_a_worker_that_fails_is_named_with_its_last_line(peer, tmp_path):
    name = peer("raise ModuleNotFoundError('no torch here')")
    with pytest.raises(ConfigError, match="fake ended with code 1: ModuleNotFoundError: no torch here"):
        with start(name, tmp_path) as worker:
            worker.answer()


def test_a_worker_that_is_killed_between_two_questions(peer, tmp_path):
    name = peer(WORKER)
    with pytest.raises(
        ConfigError, match="fake ended with code -9.*for want of memory: ask for fewer --peers"
    ):
        with start(name, tmp_path) as worker:
            worker.answer()
            worker.process.kill()
            worker.process.wait()
            benchmark_peers.run_steps(worker, 1)


def test_a_case_that_fails_takes_no_measured_one_along(tmp_path, monkeypatch, capsys):
    def measure(flags, model, dtype, length, batch):
        if batch == 8:
            raise ConfigError("fake was killed")
        case = {"case": f"{length} x {batch}", "dtype": dtype, "max_seq_length": length}
        case |= {"train_batch_size": batch, "peer": "ours", "sequences_per_sec": 2.0, "step_secs": 1.0}
        return [{**case, "spread": 0.1, "start_secs": 3.0, "secs": [1.0], "losses": [2.0]}]

    monkeypatch.setattr(benchmark_peers, "measure_case", measure)
    flags = ["--peers=ours", "--dtypes=fp32", "--shapes=16x4,16x8", f"--output={tmp_path}/out"]
    monkeypatch.setattr("sys.argv", ["bert benchmark peers", *flags])
    with pytest.raises(ConfigError, match="fake was killed"):
        benchmark_peers.main()
    assert [row["case"] for row in json.loads((tmp_path / "out.json").read_text())["cases"]] == ["16 x 4"]
    assert "16 x 4" in capsys.readouterr().out


def test_comparison_is_with_the_fastest():
    speeds = {
        "a": {"ours": 9.0, "ours_plain": 20.0, "tf_models": 6.0, "keras_hub": 4.0},
        "b": {"ours": 1.0},
        "c": {"tf_models": 1.0},
    }
    rows = [
        {"case": case, "peer": name, "sequences_per_sec": value}
        for case, values in speeds.items()
        for name, value in values.items()
    ]
    assert benchmark_peers.compare(rows) == ["a: 1.50 x tf-models-official"]


def test_examples_are_the_same_for_everybody():
    from official.cli.benchmark.peer_programs import worker

    specification = {"batch": 3, "length": 16, "predictions": 4, "seed": 1, "model": TINY}
    batch, again = worker.examples(specification), worker.examples(specification)
    assert all((batch[name] == again[name]).all() for name in batch)
    assert (
        batch["input_ids"].shape == (3, 16)
        and batch["input_ids"].max() < TINY["vocab_size"]
        and set(batch["segment_ids"][0]) == {0, 1}
    )
    for row in range(3):
        assert len(set(batch["positions"][row])) == 4
        assert (batch["labels"][row] == batch["input_ids"][row][batch["positions"][row]]).all()


def test_requirements_are_pinned():
    for peer in benchmark_peers.PEERS.values():
        assert all("==" in requirement or requirement == "numpy" for requirement in peer.requirements)
        assert pathlib.Path(benchmark_peers.FOLDER, peer.program).exists() and dataclasses.is_dataclass(peer)


def benchmark(*arguments):
    return programs.run("scripts/benchmark_peers.py", *arguments)


@pytest.mark.slow
def test_the_whole_way(tmp_path):
    (tmp_path / "bert.json").write_text(json.dumps(TINY))
    done = benchmark(
        f"--bert_config_file={tmp_path}/bert.json",
        "--shapes=16x4",
        "--dtypes=fp32",
        "--peers=ours,ours_plain",
        "--rounds=2",
        "--steps=300",
        f"--output={tmp_path}/out",
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    assert [row["peer"] for row in record["cases"]] == ["ours", "ours_plain"]
    ours, plain = record["cases"]
    assert len(ours["secs"]) == 2 and ours["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    # One batch again and again is learnt by heart; fresh random rows would not be.
    assert ours["losses"][0] == pytest.approx(math.log(TINY["vocab_size"]) + math.log(2), rel=0.05)
    assert ours["losses"][-1] < ours["losses"][0] - 0.5
    assert (tmp_path / "out.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--peers=torch"], "'torch' is not one of ours"),
        (["--dtypes=fp16"], "fp32, bf16"),
        (["--shapes=1"], "LENGTHxBATCH"),
        (["--rounds=0"], "expected 1 or more"),
        (["--peers=tf_models", "--environments=/nowhere"], "Make it with --make_environments"),
    ],
)
def test_wrong_flags(arguments, message):
    done = benchmark(*arguments)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
