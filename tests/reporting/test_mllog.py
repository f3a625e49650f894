"""The MLPerf log: what the real checker says, and that one file tells one run whatever happens to it."""

import contextlib
import json
import os
import pathlib
import re
import shutil

import mlperf_logging
import pytest

from official.io.errors import ConfigError
from official.reporting import mllog
from official.reporting.callback import Start
from official.reporting.metrics import read_metrics
from official.training import feeding
from official.training.metrics_window import NonFiniteError
from official.training.strategy_loop import Loop
from tests import programs
from tests.fixtures import FSYNC, slow
from tests.refusals import assert_refused
from tests.run_folders import run
from tests.shared_steps import fixture_step_pool, shared_steps  # noqa: F401  # the runs here share their steps
from tests.training.conftest import short_files  # noqa: F401

RULESETS = ["0.7.0", "1.0.0", "2.0.0", "2.1.0", "3.0.0", "4.0.0", "5.0.0"]
# Rulesets between 1.0.0 and 5.0.0 know the names of BERT-large's 398 tensors, not their sizes.
LARGE_NAMES = dict(num_hidden_layers=24, num_attention_heads=2)


def events_of(config) -> list[dict]:
    return mllog.read_events(f"{config.model_dir}/mllog.txt")


def keys(events) -> list[str]:
    return [event["key"] for event in events]


def stop_after(monkeypatch, step: int) -> None:
    """Sends the next run a signal once it has done `step` steps."""
    original = Loop._train

    def stopping(self, iterator):
        values = original(self, iterator)
        if self.state.step == step:
            self.processes.signal = 15
        return values

    monkeypatch.setattr(Loop, "_train", stopping)


@pytest.fixture(scope="module")
def checker(tmp_path_factory):
    """Returns (ruleset, log, lowered target) -> the complaints of mlperf-logging's own checker, run as its
    users run it."""
    copy = tmp_path_factory.mktemp("rules")
    shutil.copytree(mlperf_logging.__path__[0], copy / "mlperf_logging")
    for rules in (copy / "mlperf_logging/compliance_checker").glob("training_*/closed_bert.yaml"):
        rules.write_text(re.sub(r"0\.7(12|06|20)", "0.0", rules.read_text()))

    def check(ruleset: str, log, lowered: bool) -> str:
        words = ["--usage", "training", "--ruleset", ruleset, "--log_output", str(copy / "out.log"), str(log)]
        folder = copy if lowered else copy.parent
        done = programs.run("-m", "mlperf_logging.compliance_checker", *words, cwd=folder)
        text = done.stdout + done.stderr
        assert ("SUCCESS" in text) == (done.returncode == 0), text
        return "" if done.returncode == 0 else text

    return check


@pytest.fixture
def run_config(make_config, record_files):
    def make(model=None, **settings):
        defaults = dict(do_eval=True, num_eval_samples=12, eval_batch_size=8, steps_between_eval=10, seed=7)
        defaults |= dict(checkpoint_every_steps=5, num_accumulation_steps=2, input_files=record_files())
        return make_config(model=model or dict(num_hidden_layers=1), **{**defaults, **settings})

    return make


@pytest.mark.parametrize("model,rulesets", [(None, ["1.0.0", "5.0.0"]), slow(LARGE_NAMES, RULESETS)])
def test_the_checker_misses_only_the_accuracy(run_config, monkeypatch, checker, model, rulesets, capsys):
    """Of a run that is interrupted, and of the same log once the run has gone on and stopped. Blocks of both
    processes, end to end, make up the whole; what was done twice after a kill stands there once. Values are
    true and counted in sequences."""
    submission = dict(submission_org="us", submission_status="onprem")
    config = run_config(model, stop_threshold=0.99, **submission)
    log = f"{config.model_dir}/mllog.txt"
    stop_after(monkeypatch, 15)
    for status in ("interrupted", "aborted"):
        assert run(config).status == status
        events = events_of(config)
        assert [keys(events).count(name) for name in ("run_start", "run_stop", "eval_samples")] == [1, 1, 1]
        assert keys(events)[-1] == "run_stop"
        for ruleset in rulesets if status == "aborted" else rulesets[:1]:
            assert not checker(ruleset, log, lowered=True)
            if status == "aborted" and ruleset != rulesets[-1]:
                continue
            complaints = checker(ruleset, log, lowered=False)
            assert complaints.count("Failed checks for eval_accuracy") == 1
            failures = r"Failed checks|CHECK for|Required|failed test|Failed executing"
            assert len(re.findall(failures, complaints)) == 1, complaints
        if status == "interrupted":
            with open(log, "ab") as file:  # what a process killed before its next checkpoint leaves behind
                for key, samples in (("block_start", 120), ("block_stop", 160), ("eval_accuracy", 160)):
                    at = {"samples_count": samples, "epoch_num": samples}
                    line = json.dumps({"key": key, "value": 1, "time_ms": 1, "metadata": at})
                    file.write(f":::MLLOG {line}\n".encode())
                file.write(b':::MLLOG {"key": "eval_st')
    counts = [(event["key"], event["metadata"].get("samples_count")) for event in events]
    assert [each for each in counts if each[0].startswith("block")] == [
        (f"block_{what}", at)
        for first, last in ((0, 80), (80, 120), (120, 160))
        for what, at in (("start", first), ("stop", last))
    ]
    assert [at for key, at in counts if key == "eval_accuracy"] == [80, 160]
    values = {event["key"]: event["value"] for event in events}
    expected = dict(global_batch_size=8, gradient_accumulation_steps=2, opt_base_learning_rate=0.01)
    expected |= dict(submission, submission_platform="cpu-1", seed=7, eval_samples=12, train_samples=160)
    assert expected.items() <= values.items()
    first = {event["key"]: event["metadata"] for event in reversed(events)}
    assert {"first_epoch_num": 0, "epoch_count": 80}.items() <= first["block_start"].items()
    assert first["block_stop"]["samples_count"] == first["eval_start"]["epoch_num"] == 80
    assert {"epoch_num": 80, "step_num": 10}.items() <= first["eval_accuracy"].items()
    assert "rows_per_step" not in values  # rows that are not packed are sequences
    assert all("sequences_per_row" not in line for line in read_metrics(config.model_dir))
    times = [event["time_ms"] for event in events]
    assert times == sorted(times)
    places = [keys(events).index(name) for name in ("cache_clear", "init_stop", "run_start")]
    assert places == sorted(places)
    assert capsys.readouterr().out == ""  # stdout is for people


PACKED = dict(pack_on_the_fly=True, max_sequences_per_pack=3, average_sequences_per_pack=2)


@pytest.mark.slow
def test_a_packed_run_is_counted_in_sequences(run_config, short_files, monkeypatch, checker):  # noqa: F811
    """The log's batch is what is expected, its blocks and evaluations are what was trained on."""
    config = run_config(input_files=short_files, stop_threshold=0.99, **PACKED)
    stop_after(monkeypatch, 15)
    assert run(config).status == "interrupted"
    result, events = run(config), events_of(config)
    values = {event["key"]: event["value"] for event in events}
    assert (values["global_batch_size"], values["rows_per_step"], values["train_samples"]) == (16, 8, 320)
    assert values["eval_samples"] == 12
    lines = [line for line in read_metrics(config.model_dir) if line["split"] == "train"]
    trained = {line["step"]: line["samples"] for line in lines}
    told = [event for event in events if event["key"] in ("block_stop", "eval_accuracy", "run_stop")]
    at = {event["metadata"]["step_num"]: event["metadata"]["samples_count"] for event in told}
    assert at.keys() == {10, 15, 20} and at == {step: trained[step] for step in at}
    assert trained[20] == result.samples > 20 * 8
    for previous, line in zip([None, *lines], lines):  # each line tells of its own five steps
        before = previous["samples"] if previous else 0
        assert line["sequences_per_row"] == pytest.approx((line["samples"] - before) / 40)
        assert 5 * line["sequences_per_row"] / 16 <= line["packing_efficiency"] <= 1
    for ruleset in ("1.0.0", "5.0.0"):
        assert not checker(ruleset, f"{config.model_dir}/mllog.txt", lowered=True)
    text = pathlib.Path(config.model_dir, "report.html").read_text(encoding="utf-8")
    assert "sequences a row" in text and "of the places of a row hold a token" in text
    assert re.search(r"rows_per_step\D+8\b", text)


def test_nothing_is_claimed_that_was_not_done(run_config):
    without_data = dict(input_files=None, use_synthetic_data=True, stop_steps=5)
    synthetic = run_config(do_eval=False, steps_between_eval=None, **without_data)
    run(synthetic)
    events = events_of(synthetic)
    assert not {"cache_clear", "eval_samples", "eval_accuracy"} & set(keys(events))
    assert events[-1]["metadata"]["status"] == "aborted" and events[-1]["metadata"]["reason"] == "finished"


def test_a_log_that_cannot_be_written_is_bad_input(run_config, tmp_path):
    assert_refused(run, [(run_config(mllog_file=str(tmp_path)), "--mllog_file=")])


@pytest.mark.slow
def test_a_block_that_a_kill_cut_off_goes_on(run_config, monkeypatch):
    config = run_config()
    stop_after(monkeypatch, 15)
    run(config)
    log = pathlib.Path(config.model_dir, "mllog.txt")
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-2]))  # neither block_stop nor run_stop
    run(config)
    starts = [event["metadata"] for event in events_of(config) if event["key"] == "block_start"]
    assert [each["samples_count"] for each in starts] == [0, 80]


def test_a_remote_log_is_there_before_the_end(run_config):
    config = run_config(mllog_file="ram://mllog_test/log.txt")
    settings = mllog.run_settings(config, "cpu-1", 8, 2)
    log = mllog.MLPerfLog(config.mllog_file, settings, 0, goes_on=False, evaluated=False)
    log.on_start(Start(0, 0, 20, ("a",), process_started=1.0, caches_dropped=False))
    log.on_checkpoint(0)
    assert keys(mllog.read_events(config.mllog_file))[-1] == "run_start"


@pytest.mark.slow
def test_other_settings_begin_a_new_log(run_config, monkeypatch, tmp_path):
    stop_after(monkeypatch, 10)
    run(run_config())
    run(run_config(learning_rate=0.02))
    assert (tmp_path / "run/mllog-earlier-1.txt").exists()
    events = events_of(run_config())
    assert {event["key"]: event["value"] for event in events}["opt_base_learning_rate"] == 0.02
    assert keys(events).count("run_start") == 1


@pytest.mark.parametrize(
    "error",
    [slow(NonFiniteError("loss not finite")), slow(ConfigError("a file is broken")), KeyboardInterrupt()],
)
def test_every_way_out_ends_the_log(run_config, monkeypatch, error):
    config = run_config()

    def fail(self):
        raise error

    monkeypatch.setattr(Loop, "_save", fail)
    with contextlib.suppress(ConfigError, KeyboardInterrupt):
        run(config)
    ended = {"status": "aborted", "reason": "failed", "epoch_num": 40}
    assert ended.items() <= events_of(config)[-1]["metadata"].items()


def test_the_page_cache_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", FSYNC)
    path = tmp_path / "data"
    path.write_bytes(bytes(1 << 20))
    path.read_bytes()
    assert feeding.drop([str(path), str(tmp_path / "missing"), "gs://bucket/file"]) == 1
    fincore = shutil.which("fincore")
    of_disk = programs.call("stat", "-f", "-c", "%T", path).stdout.strip() not in ("tmpfs", "ramfs", "")
    if not fincore or not of_disk:
        pytest.skip("needs fincore and a file system on a disk")
    assert int(programs.call(fincore, "--noheadings", "--output", "PAGES", path).stdout) == 0
