"""A run in the words of Graphcore's programs: lines as they are published, numbers that are right."""

import re

import pytest
import tensorflow as tf

from official.graphcore import log_style
from official.graphcore.log_style import GraphcoreLog
from official.reporting.callback import Built, End, Start
from official.reporting.progress import configure_logging
from official.reporting.tensorboard import TensorBoard

VALUES = dict(samples=131072, loss=10.8174, mlm_loss=10.3856, nsp_loss=0.4318, mlm_accuracy=0.0123)
VALUES |= dict(nsp_accuracy=0.5, learning_rate=1e-4, loss_scale=32768.0, sequences_per_sec=4035.0)


def test_the_lines_of_a_step(make_config):
    """They count from 0 and have percentages."""
    assert log_style.step_line(1, 1, VALUES) == (
        "Step: 0 / 0 - LR: 1.00e-04 - total loss: 10.817 - mlm_loss: 10.386 - nsp_loss: 0.432"
        " - mlm_acc: 1.230 % - nsp_acc: 50.000 %, throughput: 4035.0 samples/sec"
    )
    line = log_style.step_line(3, 9, VALUES | {"host_wait_share": 0.0345})
    assert line.startswith("Step: 2 / 8 - ") and line.endswith("samples/sec, waiting for the host: 3.5 %")
    for pattern, found in {  # Source: benchmarks.yml of the PyTorch and TF1 programs.
        r"throughput: *(.*?) samples\/sec": "4035.0",
        r"mlm_acc: *(.*?) \%": "1.230",
        r"total loss: *(\d*\.\d*)": "10.817",
    }.items():
        assert re.search(pattern, line)[1] == found
    values = {"loss": 2.5, "span_loss": 2.5, "start_accuracy": 0.25, "learning_rate": 3e-5}
    line = log_style.step_line(2, 4, values | {"sequences_per_sec": 7.25})
    assert line == (
        "Step: 1 / 3 - LR: 3.00e-05 - total loss: 2.500 - span_loss: 2.500 - start_acc: 25.000 %,"
        " throughput: 7.2 samples/sec"
    )
    config = make_config(num_steps_per_epoch=20, num_train_epochs=2)
    assert log_style.iteration_line(config, 5, VALUES, 0.5) == (
        "Iteration: 5 Epoch: 0.25/2 | Loss (MLM NSP): 10.386 0.432 Accuracy (MLM NSP): 0.012 0.500"
        " Learning Rate: 0.0001 Duration: 0.5000 s Throughput: 4035.0 sequences/s"
    )
    alone = {name: value for name, value in VALUES.items() if not name.startswith("nsp")}
    line = log_style.iteration_line(config, 5, alone, 0.5)
    assert "| Loss (MLM): 10.386 Accuracy (MLM): 0.012 Learning" in line


@pytest.fixture
def told(make_config, capsys):
    """Returns a function that tells the callback of a short run and returns the lines."""

    def tell(writes=True, verbosity=0, parts=()):
        configure_logging(verbosity)
        log = GraphcoreLog(make_config(log_style="graphcore"), writes, lambda step: 1 / step)
        log.on_built(Built(8.5612, ("GPU 0", "GPU 1"), *parts))
        for done in range(3):
            log.on_compiling(done, 2, 3.0 * done)
        log.on_start(Start(0, 0, 10, (), 0.0, False))
        log.on_training(0, 0, 80)
        log.on_interval(5, VALUES | {"samples": 40, "sequences_per_sec": 80.0})
        log.on_end(End("finished", "", 10, 80))
        log.close()
        return capsys.readouterr().err.splitlines()

    yield tell
    configure_logging(0)


def test_a_run_is_told_in_blocks(told):
    lines = told()
    heads = [line for line in lines if line.startswith("---")]
    assert {len(line) for line in heads} == {59}
    titles = "Data Loading Started|Device Allocation|Compilation/Loading from Cache Started|Training Started"
    expected = [f" {title} ".center(59, "-") for title in titles.split("|")]
    expected.append("-------------------- Training Metrics ---------------------")
    assert [line for line in heads if set(line) != {"-"}] == expected
    assert "Data loaded in 8.561 secs" in lines and "Compiled/Loaded model in 6.000 secs" in lines
    parts = ("Embedding ", "Encoder 0 ", "Encoder 1 ", "Pooler    ")
    assert lines[4:8] == [f"{part} --> GPU 0, GPU 1" for part in parts]
    assert sum(line.startswith("Graph compilation: 100%|") for line in lines) == 1
    assert any("Duration: 0.1000 s Throughput: 80.0 sequences/s" in line for line in lines)  # 8 sequences
    assert "global_batch_size: 8" in lines and "training_steps: 10" in lines
    assert "device_iterations: 1" in lines  # as --device_iterations says, which IPUs alone know
    assert any(line.startswith("Step: 4 / 9 - LR: 2.00e-01 - ") for line in lines)  # of the step that comes
    assert re.fullmatch(r"Training time: \d+\.\d+ secs", lines[-2])


def test_only_one_process_tells_it_and_only_where_progress_is_wanted(told):
    assert told(writes=False) == []
    assert told(verbosity=-1) == []
    parts = (("Embedding", "GPU 0, GPU 2"), ("Encoder 0 ", "GPU 1, GPU 3"))  # of a pipeline
    assert told(parts=(parts,))[4:6] == ["Embedding  --> GPU 0, GPU 2", "Encoder 0  --> GPU 1, GPU 3"]


def test_tags_of_their_program_are_beside_ours(make_config, tmp_path):
    config = make_config(log_style="graphcore", num_steps_per_epoch=20)
    board = TensorBoard(str(tmp_path), 0, log_style.Tags(config))
    board.on_compiling(1, 1, 7.5)
    board.on_start(Start(0, 0, 10, (), 0.0, False))
    board.on_interval(5, VALUES | {"mlm_loss": float("nan")})
    board.close()
    (path,) = (tmp_path / "tensorboard" / "train").iterdir()
    found = [
        (event.step, value.tag, value.simple_value)
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    ]
    assert found[0] == (0, "poplar/compile_time", 7.5)
    tags = {tag: value for step, tag, value in found if step == 5}
    assert len(tags) == len(found) - 1  # none twice
    assert {"nsp_loss", "sequences_per_sec", "learning_rate"} <= set(tags)
    assert (tags["epoch"], tags["samples"], tags["loss_scaling"]) == (0.25, 131072, 32768)
    assert (tags["samples_per_sec"], tags["accuracy/NSP"]) == (4035, 0.5)
    assert "loss/MLM" not in tags and tags["loss/NSP"] == pytest.approx(0.4318)
