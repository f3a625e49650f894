"""Guarantees that only real processes show: two workers on loopback, kill -9 at any moment, signals, and
workers that are lost and come back with others."""

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from official.cli import flags
from official.cli import train as train_command
from official.data.records import encoding
from official.data.records import schema as schema_lib
from official.io import signals
from official.io.errors import ConfigError
from official.reporting.metrics import read_metrics
from tests.fixtures import ROOT, TINY, make_records, slow, write_records
from tests.records import short_examples
from tests.run_folders import assert_same_run, assert_same_state, run, state_of, untimed_metrics
from tests.training.test_training import assert_close

MODEL = {**TINY, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with a model, four files of records, and four of short ones."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "bert.json").write_text(
        json.dumps({**MODEL, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})
    )
    (folder / "plain.json").write_text(json.dumps(MODEL))
    schema = schema_lib.pretraining_schema(16, 3)
    for index in range(4):
        write_records(folder / f"part-{index}", make_records(30, index, schema))
        short = encoding.encode(short_examples(60, index), "compact")
        write_records(folder / f"short-{index}", short)
    return folder


def of_kind(kind: str, folder) -> dict:
    """Returns the settings of training on a row a sequence, or on packed rows."""
    return {"input_files": f"{folder}/short-*", "pack_on_the_fly": "true"} if kind == "packed" else {}


def flags_of(folder, model_dir, **settings) -> list[str]:
    """Returns the command line of a training run."""
    usual = f"""bert_config_file={folder}/bert.json input_files={folder}/part-* model_dir={model_dir}
        max_seq_length=16 max_predictions_per_seq=3 train_batch_size=8 eval_batch_size=8 num_gpus=0
        num_steps_per_epoch=60 num_train_epochs=1 steps_per_loop=4 warmup_steps=5 optimizer_type=lamb
        learning_rate=1e-2 checkpoint_every_steps=4 keep_checkpoints=3"""
    given = dict(word.split("=") for word in usual.split())
    return [f"--{name}={value}" for name, value in {**given, **settings}.items()]


def run_here(*arguments, **settings) -> None:
    """Runs what `start` would, in this process."""
    config = flags.parse(flags_of(*arguments, **settings))
    assert run(config).status == "finished"


def start(
    folder, model_dir, *arguments, preexec_fn=None, environment=None, within=(),
    program=(sys.executable, "train.py"), **settings,
) -> subprocess.Popen:  # fmt: skip
    """Starts a training run; `within`: words before its command line."""
    return subprocess.Popen(
        [*within, *program, *arguments, *flags_of(folder, model_dir, **settings)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=preexec_fn,
        env={**os.environ, **(environment or {})},
    )


def finish(process, code=0) -> str:
    output, errors = process.communicate(timeout=240)
    assert process.returncode == code, errors
    return output + errors


def free_ports(count) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("localhost", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


def start_workers(folder, model_dir, count: int, hosts=(), **settings) -> list[subprocess.Popen]:
    """Starts a run of some processes."""
    hosts = hosts or [f"localhost:{port}" for port in free_ports(count)]
    shared = dict(distribution_strategy="multi_worker_mirrored", worker_hosts=",".join(hosts), **settings)
    return [start(folder, model_dir, **shared, task_index=index) for index in range(count)]


def interrupt_after(path) -> None:
    """Sends this process a signal once a file is there."""
    while not path.exists():
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("kind", ["plain", slow("packed"), slow("narrow sums")])
def test_two_workers_end_with_the_weights_of_one_process(workspace, tmp_path, capsys, monkeypatch, kind):
    """One that runs until a signal, and prints how to go on. A second run on the folder of two is refused.
    Packed rows: as many sequences, too, which differ from worker to worker. Of chief and worker, as
    TF_CONFIG says it there, both are number 0 of their kind, and one of them writes."""
    shared = dict(bert_config_file=workspace / "plain.json", num_steps_per_epoch=100000, learning_rate=1e-3)
    shared |= dict(of_kind(kind, workspace), do_eval="true", steps_between_eval=8, keep_checkpoints=10000)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    signals.watch()
    threading.Thread(target=interrupt_after, args=[tmp_path / "one" / "ckpt-12.index"], daemon=True).start()
    assert train_command.main(flags_of(workspace, tmp_path / "one", **shared)) == 143
    result = json.loads((tmp_path / "one" / "result.json").read_text())
    assert result["status"] == "interrupted" and result["checkpoint"].endswith(f"ckpt-{result['step']}")
    assert state_of(tmp_path / "one", result["step"])["global_step"] == result["step"]
    output = capsys.readouterr().out
    assert f"Resume with: {sys.executable} train.py" in output and f"--model_dir={tmp_path}/one" in output
    shared["stop_steps"] = 8
    is_narrow = kind == "narrow sums"
    if kind != "packed":
        shared |= {"allreduce_dtype": "bfloat16"} if is_narrow else {}
        workers = start_workers(workspace, tmp_path / "two", 2, **shared)
    else:
        shared["distribution_strategy"] = "multi_worker_mirrored"
        chief, worker = [f"localhost:{port}" for port in free_ports(2)]
        cluster = {"chief": [chief], "worker": [worker]}
        told = [{"cluster": cluster, "task": {"type": type_, "index": 0}} for type_ in cluster]
        workers = [
            start(workspace, tmp_path / "two", environment={"TF_CONFIG": json.dumps(each)}, **shared)
            for each in told
        ]
    wait_for(lambda: "config.json" in _names(tmp_path / "two"), workers[0])
    with pytest.raises(ConfigError, match="is in use by another run"):
        alone = dict(distribution_strategy="one_device", allreduce_dtype="float32")
        run_here(workspace, tmp_path / "two", **{**shared, **alone})
    outputs = [finish(worker) for worker in workers]
    assert "2 replicas" in outputs[0] and "2 replicas" not in outputs[1]
    ours, theirs = state_of(tmp_path / "two", 8), state_of(tmp_path / "one", 8)
    if not is_narrow:
        assert_close(ours, theirs)
    lines, others = untimed_metrics(tmp_path / "two"), untimed_metrics(tmp_path / "one")
    for line, other in zip(lines, others[:3], strict=True):
        assert (line["split"], line["step"]) == (other["split"], other["step"])
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-2 if is_narrow else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_lost_peer_ends_the_others_with_one_line(workspace, tmp_path, killed):
    hosts, folder = [f"localhost:{port}" for port in free_ports(2)], tmp_path / "run"
    shared = dict(bert_config_file=workspace / "plain.json", hosts=hosts, num_steps_per_epoch=100000)
    workers = start_workers(workspace, folder, 2, **shared)
    wait_for(lambda: "ckpt-8.index" in _names(folder), workers[0])
    workers[killed].kill()
    output = finish(workers[1 - killed], 4)
    workers[killed].communicate()
    assert f": a peer was lost: {hosts[killed]} (rank {killed}). Start all processes again" in output
    assert "Traceback" not in output
    if killed:
        result = json.loads((folder / "result.json").read_text())
        assert result["status"] == "failed" and result["peer_lost"]
        assert result["reason"].startswith("a peer was lost")
    last = max(int(name[5:-6]) for name in _names(folder) if name.endswith(".index"))
    again = start_workers(workspace, folder, 2, **shared, stop_steps=last + 4)
    assert f"Resuming from {folder}/ckpt-{last}: step {last}" in [finish(process) for process in again][0]


DETERMINED = dict(num_accumulation_steps=2, deterministic="true", num_eval_samples=40, steps_between_eval=12)


@pytest.fixture(scope="module", params=["plain", "packed"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def uninterrupted(workspace, kind):
    folder = workspace / f"whole-{kind}"
    finish(start(workspace, folder, "--do_eval", **DETERMINED, **of_kind(kind, workspace)))
    return folder


def wait_for(condition, process) -> None:
    """Waits until `condition()` or the end of the process."""
    deadline = time.monotonic() + 120
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.slow
def test_kill_at_any_moment_and_go_on(workspace, uninterrupted, tmp_path, kind):
    """Five kills: some while a checkpoint is being written, some between two."""
    settings = {**DETERMINED, **of_kind(kind, workspace)}
    generator = random.Random(7)
    folder, kills = tmp_path / "killed", 0
    for kill in range(5):
        process = start(workspace, folder, "--do_eval", **settings)
        target = 4 * generator.randint(2 * kill + 1, 2 * kill + 2)
        ending = "" if kill % 2 else "index"  # while it is written, or after it
        name = f"ckpt-{target}.{ending}"
        wait_for(lambda name=name: any(each.startswith(name) for each in _names(folder)), process)
        time.sleep(0 if kill % 2 else generator.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        process.communicate()
    assert kills == 5
    finish(start(workspace, folder, "--do_eval", **settings))
    assert_same_run(folder, uninterrupted, 60)


def _names(folder) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


@pytest.mark.slow
def test_another_steps_per_loop_gives_the_same_weights(workspace, uninterrupted, tmp_path, kind):
    other = {**DETERMINED, **of_kind(kind, workspace), "steps_per_loop": 6, "checkpoint_every_steps": 12}
    finish(start(workspace, tmp_path / "run", "--do_eval", **other, stop_steps=24))
    finish(start(workspace, tmp_path / "run", "--do_eval", **{**other, "steps_per_loop": 3}))
    assert_same_state(state_of(tmp_path / "run", 60), state_of(uninterrupted, 60))


@pytest.mark.slow
def test_a_second_signal_stops_at_once(workspace, tmp_path):
    long = dict(steps_per_loop=50000, num_steps_per_epoch=100000, checkpoint_every_steps=50000)
    process = start(workspace, tmp_path / "run", **long)
    wait_for(lambda: "metrics.jsonl" in _names(tmp_path / "run"), process)
    time.sleep(3)  # into the long inner loop
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    process.communicate()


@pytest.mark.slow
def test_a_full_disk_is_one_clear_message_and_loses_no_checkpoint(workspace, tmp_path):
    """A limit on the size of files stands for the full disk: ckpt-4 fits, then nothing as large fits any
    more."""
    run_here(workspace, tmp_path / "run", stop_steps=8)
    size = os.path.getsize(tmp_path / "run" / "ckpt-8.data-00000-of-00001")

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

    output = finish(start(workspace, tmp_path / "run", preexec_fn=limit), 2)
    assert "train.py: --model_dir=" in output.splitlines()[-1] and "Traceback" not in output
    assert "ckpt-12 cannot be written" in output
    assert state_of(tmp_path / "run", 8)["global_step"] == 8
    run_here(workspace, tmp_path / "run")


# ------------------------------------------------------------------------------------------------------------
# Other numbers of workers


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
    assert_close(state_of(tmp_path / "run", 12), state_of(tmp_path / "whole", 12))
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
    assert "Resume with" in outputs[0]
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
