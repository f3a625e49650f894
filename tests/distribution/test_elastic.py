"""Runs of several processes that lose workers, come back with others, or are told to leave."""

import json
import os
import signal
import time

import pytest

from official.reporting.metrics import read_metrics
from tests.distribution.test_processes import (  # pylint: disable=unused-import
    assert_same_to_rounding,
    finish,
    free_ports,
    of_kind,
    start,
    start_workers,
    wait_for,
    workspace,
)
from tests.run_folders import state_of

__all__ = ["workspace"]
DROPOUT = dict(num_accumulation_steps=2, train_batch_size=16, learning_rate=1e-3, checkpoint_every_steps=4)


def run_workers(folder, model_dir, count: int, **settings) -> str:
    """Runs to the end, and returns what the chief says."""
    outputs = [finish(worker) for worker in start_workers(folder, model_dir, count, **settings)]
    return outputs[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_another_number_of_workers_goes_on_with_the_same_result(workspace, tmp_path, kind):
    """With dropout: two begin, one goes on, then four, and each reads what is its own."""
    shared = DROPOUT | of_kind(kind, workspace)
    run_workers(workspace, tmp_path / "whole", 2, **shared, stop_steps=12)
    for stop, count in ((4, 2), (8, 1), (12, 4)):
        output = run_workers(workspace, tmp_path / "run", count, **shared, stop_steps=stop)
        told = "The same micro batches as of 2 workers with 2 replicas x 2 micro batches" in output
        assert told == (count != 2), output
    assert_same_to_rounding(state_of(tmp_path / "run", 12), state_of(tmp_path / "whole", 12))
    if kind == "plain":  # packed ones are still within the first sequences that are packed together
        names = {name for name in os.listdir(tmp_path / "run") if name.startswith("record_counts")}
        readers = ((0, 0), (0, 1), (1, 0), (1, 2), (1, 3))
        assert names == {f"record_counts-{worker}-of-{reader}.json" for worker, reader in readers}


@pytest.mark.slow
@pytest.mark.parametrize("told", [0, 1])
def test_sigterm_on_any_rank_saves_once_and_ends_all(workspace, tmp_path, told):
    """As a cluster that takes one machine away: it gives 30 seconds."""
    workers = start_workers(workspace, tmp_path / "run", 2, num_steps_per_epoch=100000, keep_checkpoints=1000)
    wait_for(lambda: (tmp_path / "run" / "ckpt-8.index").exists(), workers[0])
    workers[told].send_signal(signal.SIGTERM)
    sent = time.monotonic()
    outputs = [finish(worker, 143) for worker in workers]
    assert time.monotonic() - sent < 30
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "interrupted" and result["reason"].startswith("saved at step")
    saved = [int(name[5:-6]) for name in os.listdir(tmp_path / "run") if name.endswith(".index")]
    assert max(saved) == result["step"] and len([step for step in saved if step % 4]) <= 1
    assert state_of(tmp_path / "run", result["step"])["global_step"] == result["step"]
    assert "Go on with" in outputs[0]
    assert not (tmp_path / "run" / "metrics.jsonl").read_text().count("NaN")


@pytest.mark.slow
def test_only_the_chief_writes(workspace, tmp_path):
    """Each of two workers has a folder: that of the one that is not the chief stays as good as empty."""
    hosts = ",".join(f"localhost:{port}" for port in free_ports(2))
    shared = dict(distribution_strategy="multi_worker_mirrored", worker_hosts=hosts, stop_steps=8, **DROPOUT)
    workers = [start(workspace, tmp_path / str(index), **shared, task_index=index) for index in (0, 1)]
    for worker in workers:
        finish(worker)
    assert not (tmp_path / "1").exists()
    assert read_metrics(str(tmp_path / "0"))[-1]["step"] == 8
    result = json.loads((tmp_path / "0" / "result.json").read_text())
    assert result["checkpoints_written"] == 2 and 0 < result["checkpoint_wait_secs"] < result["wall_secs"]
    assert result["checkpoint_write_secs"] > 0
