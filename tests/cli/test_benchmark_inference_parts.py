"""Parts of the inference benchmark: statistics, lines of the log, ranks and cores, batches, FLOPs."""

import dataclasses
import os
import re

import numpy as np
import pytest

from official.checkpoint import registry
from official.cli.benchmark.inference import (
    latency,
    log_lines,
    measuring,
    models,
    questions,
    ranks,
    report,
    systems,
)
from official.cli.benchmark.inference.latency import Block
from official.cli.benchmark.inference.peer_programs import asking
from official.cli.benchmark.inference.processes import Group
from official.config import BertConfig, ConfigError
from official.inference import source
from tests.conftest import TINY

# As published: {metric: regular expression}, each with skip 4.
TENSORFLOW = {
    "throughput": r"throughput: *(.*?) samples\/sec",
    **{name: f"latency {name}: *(.*?) ms" for name in ("avg", "min", "max", "99p", "99p9")},
}
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
    expected = {"mean": 501.0, "min": 1.0, "max": 1001.0, "p50": 501.0, "p99": 991.0, "p999": 1000.0}
    assert latency.latency_ms(BLOCK.secs[::-1]) == pytest.approx(expected)
    assert latency.latency_ms([0.25]) == dict.fromkeys(expected, 250.0)


def test_instances_add_up_and_blocks_give_medians():
    answers = [
        {"secs": [1.0, 1.0], "total_secs": 2.0, "sequences": 8, "tokens": 80},
        {"secs": [2.0, 2.0], "total_secs": 4.0, "sequences": 8, "tokens": 80},
    ]
    block = latency.block_of(answers)
    assert block == Block((1.0, 1.0, 2.0, 2.0), 4.0 + 2.0, 40.0 + 20.0)
    blocks = [block._replace(sequences_per_sec=rate) for rate in (6.0, 4.0, 100.0)]
    found = latency.summary(blocks)
    assert found["sequences_per_sec"] == 6.0 and found["calls"] == 12
    assert found["spread"] == pytest.approx((53.0 - 5.0) / 2 / 6.0)
    assert found["latency_ms"]["mean"] == 1500.0 and latency.summary([block])["spread"] == 0.0


def test_lines_match_the_published_expressions():
    line = log_lines.plain("fp32, 128 tokens x 1: ours, TensorFlow", BLOCK)
    found = {
        name: [float(text) for text in re.findall(pattern, line)] for name, pattern in TENSORFLOW.items()
    }
    expected = {"throughput": 123.456, "avg": 501.0, "min": 1.0, "max": 1001.0, "99p": 991.0, "99p9": 1000.0}
    assert found == {name: [value] for name, value in expected.items()}


def test_the_line_of_popart():
    line = log_lines.popart(3, BLOCK)
    assert line.startswith("Iteration:      3 Duration: 0.5010 s Throughput:  123.5 sequences/s Per-sample: ")
    found = {name: [float(text) for text in re.findall(pattern, line)] for name, pattern in POPART.items()}
    expected = {"throughput": 123.5, "mean": 0.501, "min": 0.001, "max": 1.001, "p99": 0.991, "p999": 1.0}
    assert found == {name: [value] for name, value in expected.items()}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"HOME": "/"}, None),
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            },
            (5, 1, 4),
        ),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 2, 4)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (3, 1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 1, 2)),
    ],
)
def test_rank(environment, expected):
    assert ranks.find(environment) == expected


def test_a_rank_that_is_no_number():
    with pytest.raises(ConfigError, match="PMI_RANK=x.*expected the numbers that mpirun sets"):
        ranks.find({"PMI_RANK": "x", "PMI_SIZE": "2"})


def test_cores_are_shared_out():
    assert ranks.split([0, 1, 2, 3, 4], 2) == [[0, 1], [2, 3]]
    assert ranks.own_cores([0, 1, 2, 3], None, 4) == [0, 1, 2, 3]
    shares = [ranks.own_cores([0, 1, 2, 3], ranks.Rank(rank, rank, 2), 4) for rank in range(2)]
    assert shares == [[0, 1], [2, 3]]
    assert ranks.own_cores([2], ranks.Rank(0, 0, 2), 4) == [2]  # mpirun has bound it
    assert [ranks.own_cores([0, 1], ranks.Rank(n, n, 4), 2) for n in range(4)] == [[0], [1], [0], [1]]
    with pytest.raises(ConfigError, match="--instances=3: each needs a core.* has 2. Allowed: 1 to 2"):
        ranks.split([0, 1], 3)


def test_each_rank_writes_into_a_folder_of_its_own():
    assert ranks.own_output("results/x", ranks.Rank(3, 0, 1)) == "results/x_rank_3/x"
    assert ranks.own_output("results/x", None) == "results/x" and ranks.own_output(None, None) is None


def make_windows(lengths, words=50):
    generator = np.random.default_rng(1)
    lengths_N = np.array(lengths, np.int32)
    ids_NL = generator.integers(1, words, (len(lengths), max(lengths)), dtype=np.int32)
    return questions.Windows(ids_NL, lengths_N, np.maximum(lengths_N // 2, 1))


def test_batches_on_disk_are_the_same(tmp_path):
    windows = make_windows([5, 3, 8, 1, 7])
    batches = windows.batches(np.array([4, 0, 1, 3, 2]), 2)
    assert [batch.lengths_N.tolist() for batch in batches] == [[7, 5], [3, 1], [8]]
    asking.write_batches(str(tmp_path / "b.npz"), batches)
    for ours, read in zip(batches, asking.read_batches(str(tmp_path / "b.npz")), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours, read))
        assert all(values.dtype == np.int32 for values in read)


@pytest.mark.parametrize("width", [None, 12])
def test_padded_rows_come_back(width):
    batch = make_windows([5, 3, 8]).batch(np.arange(3))
    ids_NL, mask_NL, segments_NL = asking.padded(batch, width)
    assert ids_NL.shape == (3, width or 8) and mask_NL.sum(axis=1).tolist() == [5, 3, 8]
    assert not ids_NL[mask_NL == 0].any() and not segments_NL[mask_NL == 0].any()
    both = asking.end_to_end(ids_NL, segments_NL, batch.lengths_N)
    assert (both[0] == batch.ids_T).all() and (both[1] == batch.segments_T).all()


def test_generated_windows_fill_the_row():
    windows = questions.generated(words=50, length=16, count=6, seed=1)
    assert (windows.lengths_N == 16).all() and windows.ids_NL.max() < 50
    assert (questions.generated(50, 16, 6, 1).ids_NL == windows.ids_NL).all()
    batches = questions.case_batches(windows, 2, is_real=False)
    assert [batch.segments_T.sum() for batch in batches] == [16] * 3
    with pytest.raises(ConfigError, match="--micro_batch_size=7: there are 6 windows"):
        questions.case_batches(windows, 7, is_real=False)


def test_some_windows_keep_their_order():
    windows = questions.Windows(np.arange(10)[:, None], np.arange(10), np.arange(10))
    drawn = questions.some(windows, 4, seed=3).lengths_N.tolist()
    assert len(drawn) == 4 and drawn == sorted(drawn)
    assert questions.some(windows, None, 3) is windows and questions.some(windows, 11, 3) is windows


def test_threads_ask_at_the_same_time():
    batches = make_windows([4, 2, 6]).batches(np.arange(3), 1)
    asked = []
    found = asking.measure(lambda batch: asked.append(len(batch.ids_T)), batches, calls=4, callers=2)
    assert sorted(asked) == sorted([4, 2, 6, 4] * 2)
    assert len(found["secs"]) == 8 and found["sequences"] == 8 and found["tokens"] == 32
    assert found["total_secs"] >= max(found["secs"])


def test_what_fails_in_a_thread_is_raised():
    def fail(batch):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asking.measure(fail, make_windows([4]).batches(np.arange(1), 1), calls=1, callers=2)


def test_amount_of_a_round():
    assert measuring.Amount(rounds=5, calls=12, secs=1.0, callers=1).of_round(9.0) == 3
    assert measuring.Amount(rounds=5, calls=None, secs=10.0, callers=1).of_round(0.1) == 20
    assert measuring.Amount(rounds=5, calls=None, secs=10.0, callers=1).of_round(60.0) == 1


def test_answers_are_compared():
    reference = np.array([[0, 1, 0, 5, 0.0], [1, 0, 0, 5, 0]])
    other = reference + np.array([[0, 0, 9.0, 0, 0], [0.5, 0, 0, 0, 0]])
    found = measuring.compare({"same": reference, "other": other}, reference, np.array([3, 2]))
    assert found["same"] == {"largest_difference": 0.0, "same_answers": 1.0}
    assert found["other"] == {"largest_difference": 9.0, "same_answers": 0.5}


def test_flops_are_those_of_each_product():
    hidden, inner, heads = BERT.hidden_size, BERT.intermediate_size, BERT.num_attention_heads
    expected = 0
    for length in (7, 12):
        products = [(length, hidden, hidden)] * 4 + [(length, hidden, inner), (length, inner, hidden)]
        products += [(length, hidden // heads, length), (length, length, hidden // heads)] * heads
        products = products * BERT.num_hidden_layers + [(length, hidden, 2)]
        expected += sum(2 * rows * inside * columns for rows, inside, columns in products)
    assert models.forward_flops(BERT, [7, 12]) == expected
    assert models.forward_flops(dataclasses.replace(BERT, block_type="groupbert"), [7]) is None


def test_the_model_for_hugging_face_has_the_same_weights(tmp_path):
    made_up = source.random_source(BERT, "answer", seed=3)
    folder = models.write_huggingface(made_up, True, str(tmp_path / "hf"))
    read = registry.open_checkpoint(folder, "path").to_canonical().tensors
    assert set(read) == set(made_up.tensors)
    assert all(np.array_equal(read[name].read(), made_up.tensors[name].read()) for name in read)
    with pytest.raises(ConfigError, match="--peers: Hugging Face has no model of block_type=groupbert"):
        groupbert = dataclasses.replace(BERT, block_type="groupbert")
        models.write_huggingface(dataclasses.replace(made_up, bert=groupbert), True, folder)


def test_requirements_are_pinned():
    programs = os.path.join(os.path.dirname(asking.__file__))
    for peer in systems.PEERS.values():
        assert all(
            "==" in requirement or requirement == "numpy" for requirement in peer.environment.requirements
        )
        assert os.path.exists(os.path.join(programs, peer.program))


WORKER = """
import json, os, sys
from official.cli.benchmark.inference.peer_programs import asking
import numpy as np
def make(specification):
    print("what a library prints")
    with open("told.json", "w") as file:
        json.dump({"cores": sorted(os.sched_getaffinity(0)), **specification}, file)
    return lambda batch, width: np.stack([batch.ids_T, batch.ids_T + (width or 0)]), {"fake": "1"}
if __name__ == "__main__":
    asking.serve(make)
"""


@pytest.fixture(name="system")
def fixture_system(tmp_path):
    """Returns (source of a program) -> system that it is."""

    def make(text, name="tensorflow"):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        return systems.System(name, f"Fake {name}", str(path), "x", ("fp32",))

    return make


def test_instances_have_cores_and_folders_of_their_own(system, tmp_path):
    batches = make_windows([4, 2]).batches(np.arange(2), 1)
    file = measuring.write(str(tmp_path), "batches", batches)
    cores = sorted(os.sched_getaffinity(0))
    own = [[cores[0]], [cores[-1]]]
    with Group(system(WORKER), {"dtype": "fp32"}, own, str(tmp_path / "work"), "unused") as group:
        block = group.run({"batches": file, "calls": 3, "callers": 1})
        group.save(file, str(tmp_path / "logits.npy"), 5)
    assert len(block.secs) == 6 and group.versions == {"fake": "1"}
    ids_T = np.concatenate([batch.ids_T for batch in batches])
    assert np.array_equal(np.load(tmp_path / "logits.npy"), [ids_T, ids_T + 5])
    for number, its in enumerate(own):
        folder = tmp_path / "work" / "tensorflow" / f"instance_{number}"
        told = (folder / "told.json").read_text()
        assert f'"cores": {its}' in told and '"threads": 1' in told and '"variant": "x"' in told
        assert (folder / "log.txt").exists() and (folder / "timings.jsonl").read_text().count("\n") >= 1


def test_a_program_that_fails_is_named_with_its_last_line(system, tmp_path):
    broken = system("raise ModuleNotFoundError('no torch here')")
    with pytest.raises(
        ConfigError, match="--backends: tensorflow ended with code 1: ModuleNotFoundError: no torch"
    ):
        Group(broken, {}, [[0]], str(tmp_path / "work"), "unused")


def rows_of(rates, share=0.5):
    values = {"spread": 0.1, "tokens_per_sec": 9.0, "largest_difference": 0.0, "same_answers": 1.0}
    values |= {"share_of_products": share}
    case = {"dtype": "fp32", "max_seq_length": 128, "batch": 1}
    timing = {"latency_ms": latency.latency_ms([0.1])}
    return [
        report.row_of(case, systems.title_of(name), name, {**values, **timing, "sequences_per_sec": rate})
        for name, rate in rates.items()
    ]


def test_the_verdict_is_on_the_fastest_of_each_side():
    rates = {"tensorflow": 8.0, "openvino": 12.0, "huggingface_sdpa": 10.0, "huggingface_eager": 4.0}
    rows = rows_of(rates | {"huggingface_onnxruntime": 15.0})
    expected = (
        "fp32, 128 tokens x 1: ours, OpenVINO, 12.00 seq/s; 1.20 x Hugging Face, sdpa; 0.80 x Hugging Face in"
        " ONNX Runtime; 50% of bare products"
    )
    assert report.verdicts(rows) == [expected]
    assert report.verdicts(rows_of({"huggingface_sdpa": 10.0})) == []
    assert report.table(rows).count("\n") == 5 and "50.0%" in report.table(rows)


def test_the_curve_is_a_picture():
    rows = rows_of({"tensorflow": 8.0, "huggingface_sdpa": 10.0})
    rows += [{**row, "batch": 8, "sequences_per_sec": 20.0, "max_seq_length": 384} for row in rows]
    assert report.draw(rows, "Title")[:4] == b"\x89PNG"
