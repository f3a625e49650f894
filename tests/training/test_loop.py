"""The loop around the devices: how long a call is, what an interrupted interval leaves, and what is looked at
between calls."""

import functools
import json
import os
import pathlib
import shutil
import signal
import time
import types

import pytest
import tensorflow as tf

from official import native
from official.checkpoint.manager import CheckpointManager
from official.io.errors import ConfigError, PeerError
from official.reporting import comparison
from official.reporting.metrics import read_metrics
from official.tasks import TASKS
from official.training import evaluate, finish, metrics_window
from official.training import run as runner
from official.training.loop import Outcome
from official.training.process_group import ProcessGroup
from official.training.strategy_loop import Loop
from tests.fixtures import TINY, slow
from tests.run_folders import assert_same_run, run
from tests.training.test_training import DROPOUT, spoil

# Runs with the same settings share their steps.
STEPS = dict(model=DROPOUT, loss_scale="dynamic", deterministic=True, num_steps_per_epoch=12)


def call_lengths(monkeypatch, steps: int) -> None:
    """Stands in for the clock: every call of the devices is of so many steps."""
    monkeypatch.setattr(metrics_window.StepsPerCall, "steps", lambda self, left, *_: min(left, steps))


def interrupt_at(monkeypatch, step: int) -> None:
    """Gives the next run a signal once it has done that many steps."""
    original = Loop._call_devices

    def call(self, *arguments):
        values = original(self, *arguments)
        if self.state.step >= step:
            self.processes.signal = 15
        return values

    monkeypatch.setattr(Loop, "_call_devices", call)


def before_call(monkeypatch, step: int, action) -> None:
    """Does something with the loop before its call of the devices after that step."""
    original = Loop._call_devices

    def call(self, *arguments):
        if self.state.step == step:
            action(self)
        return original(self, *arguments)

    monkeypatch.setattr(Loop, "_call_devices", call)


def test_of_equal_scores_the_lower_loss_is_the_best():
    """And of equal losses the first; an evaluation set without labels has none."""
    for metric, losses, best in (
        (None, [0.9, 0.7, 0.8, 0.5], 20),
        (None, [0.7, 0.7, 0.8, 0.5], 10),
        (None, [None, None, None, 0.5], 10),
        ("loss", [0.7, 0.7, 0.8, 0.5], 40),
        ("f2", [0.7, 0.7, 0.8, 0.5], None),
    ):
        told = zip((0.5, 0.5, 0.5, 0.4), losses)
        scores = [{"f1": f1} if loss is None else {"f1": f1, "loss": loss} for f1, loss in told]
        loop = types.SimpleNamespace(
            task=types.SimpleNamespace(is_scored=True, target_metric="f1"),
            evaluated=dict(zip((10, 20, 30, 40), scores)),
            config=types.SimpleNamespace(early_stopping_metric=metric),
        )
        if best:
            assert Loop.best_step(loop) == best
        else:
            with pytest.raises(ConfigError, match="--early_stopping_metric=f2 is not one of f1"):
                Loop.best_step(loop)


def test_a_call_is_as_long_as_the_last_one_says():
    pace = metrics_window.StepsPerCall()
    assert pace.is_unknown and pace.steps(200) == 1 and pace.steps(0) == 0
    pace.note(1, 20.0)  # with the compilation
    assert not pace.is_unknown and pace.steps(200) == 1
    pace.note(1, 0.1)
    assert pace.steps(200) == 50 and pace.steps(7) == 7
    pace.note(50, 50.0)
    assert pace.steps(200) == 5
    pace.note(5, 0.0)
    assert pace.steps(200) == 200


def test_a_call_ends_where_a_profile_begins_and_ends():
    pace = metrics_window.StepsPerCall((10, 12))
    pace.note(1, 0.0)
    assert [pace.steps(200, step) for step in (0, 9, 10, 11, 12)] == [10, 1, 2, 1, 200]
    assert pace.steps(1, 0) == 1


@pytest.mark.parametrize("task", ["pretrain", slow("squad")])
def test_an_interrupted_interval_goes_on_to_the_same_bits(
    make_config, squad, record_files, tmp_path, monkeypatch, task
):
    """Interrupted in the middle of an interval, in calls of two steps."""
    if task == "squad":
        model = {**TINY, **DROPOUT, "num_hidden_layers": 1, "max_position_embeddings": 48}
        make = functools.partial(squad, model=model, num_train_epochs=1, do_predict=True, deterministic=True)
        interval, last = 4, 8
    else:
        make = functools.partial(make_config, **STEPS, input_files=record_files())
        interval, last = 6, 12
    whole, parts = (make(steps_per_loop=interval, model_dir=str(tmp_path / each)) for each in ("one", "two"))
    run(whole)
    with monkeypatch.context() as patched:
        call_lengths(patched, 2)
        interrupt_at(patched, interval - 2)
        result = run(parts)
    assert (result.status, result.step) == ("interrupted", interval - 2)
    assert os.path.exists(f"{parts.model_dir}/ckpt-{interval - 2}.interval.json")
    (line,) = read_metrics(parts.model_dir)  # until the whole one is there
    assert (line["step"], line["open_interval_steps"]) == (interval - 2, interval - 2) and line["loss"] > 0
    found = comparison.compare(comparison.read_runs([parts.model_dir]))["runs"][0]
    assert (found["status"], found["step"]) == ("interrupted", interval - 2)
    run(parts)
    assert_same_run(parts.model_dir, whole.model_dir, last)
    lines = read_metrics(parts.model_dir)
    assert [line["step"] for line in lines if line["split"] == "train"] == [interval, last]
    if task == "squad":
        texts = [pathlib.Path(each.model_dir, "predictions.json").read_text() for each in (whole, parts)]
        assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_deterministic_step_is_tried_first_on_gpus(make_config, record_files, tmp_path, monkeypatch):
    """It changes no bit of the run; an operation without a deterministic form, such as a clock, is named."""
    shared = dict(model=DROPOUT, input_files=record_files(), deterministic=True, num_steps_per_epoch=6)
    shared |= dict(kernels="plain")  # which are the same on GPUs
    plain, tried, refused = (make_config(**shared, model_dir=str(tmp_path / name)) for name in "abc")
    run(plain)
    monkeypatch.setattr(native, "on_gpus", lambda strategy=None: True)
    trials, original = [], Loop.warm_up
    monkeypatch.setattr(Loop, "warm_up", lambda self: (trials.append(self.state.step), original(self)))
    run(tried)
    assert trials == [0]
    assert_same_run(tried.model_dir, plain.model_dir, 6)
    # TensorFlow has no deterministic clock on any device.
    clock = tf.function(lambda: tf.timestamp(name="clock"))
    monkeypatch.setattr(Loop, "_compile_training", lambda self: clock())
    with pytest.raises(
        ConfigError, match="no deterministic form .*: Timestamp cannot .*clock.*--deterministic"
    ):
        run(refused)
    assert not read_metrics(refused.model_dir)


@pytest.mark.parametrize("set_name", [slow("eval_dataset"), "predict_dataset"])
def test_a_signal_cuts_evaluation_and_prediction_and_nothing_of_them_is_written(glue, monkeypatch, set_name):
    """Between two batches; the same command makes it again."""
    config = glue("sst2", dict(train=24, dev=24, test=24), do_predict=True, eval_batch_size=8)
    batches, original, called, loops = [], evaluate.run, [], []
    cut_call = 1 if set_name == "eval_dataset" else 2

    def counted(eval_step, all_batches, before_each, secs):
        called.append(True)

        def before():
            batches.append(True)
            if len(called) == cut_call and len(batches) % 3 == 2:
                loops[0].processes.signal = 2
            before_each()

        return original(eval_step, all_batches, before, secs)

    monkeypatch.setattr(Loop, "run", lambda self, plain=Loop.run: loops.append(self) or plain(self))
    with monkeypatch.context() as patched:
        patched.setattr(evaluate, "run", counted)
        result = run(config)
    assert (result.status, result.exit_code, result.step) == ("interrupted", 130, 3)
    assert result.reason == "saved at step 3 on SIGINT"
    evaluated = [line["split"] for line in read_metrics(config.model_dir)].count("eval")
    written = pathlib.Path(config.model_dir, "SST-2.tsv")
    assert evaluated == cut_call - 1 and not written.exists()
    result = run(config)
    assert (result.status, result.step) == ("finished", 3) and written.exists()
    assert [line["split"] for line in read_metrics(config.model_dir)].count("eval") == 1


def test_a_signal_cuts_what_is_made_of_files(make_config, monkeypatch):
    config = make_config(**STEPS)
    original = Loop._train_iterator

    def make_slowly(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            time.sleep(0.01)
        return original(self)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_train_iterator", make_slowly)
        result = run(config)
    assert (result.status, result.exit_code, result.step) == ("interrupted", 143, 0)
    assert run(config).step == 12


def replace(folder: str) -> None:
    """Moves a folder, and makes one of another run."""
    os.rename(folder, f"{folder}-moved")
    os.mkdir(folder)
    pathlib.Path(folder, ".lock").touch()


@pytest.mark.parametrize("lose", [shutil.rmtree, lambda folder: os.remove(f"{folder}/.lock"), replace])
def test_a_run_whose_folder_is_gone_stops(make_config, monkeypatch, lose):
    config = make_config(**STEPS, steps_per_loop=12)
    call_lengths(monkeypatch, 2)
    before_call(monkeypatch, 4, lambda loop: lose(config.model_dir))
    with pytest.raises(ConfigError, match="was removed or moved while this run wrote to it"):
        run(config)
    assert not any(os.path.exists(f"{config.model_dir}/{name}") for name in ("ckpt-12.index", "result.json"))


def test_a_loss_that_is_not_finite_is_seen_before_the_interval_ends(make_config, monkeypatch):
    config = make_config(**STEPS, steps_per_loop=12)
    call_lengths(monkeypatch, 1)
    before_call(monkeypatch, 2, spoil)
    result = run(config)
    assert (result.status, result.step) == ("failed", 3) and "not finite at step 3" in result.reason


def test_what_goes_with_a_checkpoint(tmp_path):
    manager = CheckpointManager(str(tmp_path), {"a": tf.Variable(1.0)}, keep=1)
    manager.save(3, '{"first_step": 1}')
    assert manager.companion(3) == {"first_step": 1} and manager.companion(2) == {}
    path = tmp_path / "ckpt-4.interval.json"
    path.write_text('{"first_step": 2}')  # of a process that was killed while it saved
    manager.save(4)
    assert manager.companion(4) == {} and not list(tmp_path.glob("ckpt-3*"))
    path.write_text("[1")
    assert manager.companion(4) == {}


def test_totals_survive_a_file_to_the_last_bit():
    nothing = {"sums": tf.zeros([4]), "norm": tf.constant(0.0), "skipped": tf.constant(0)}
    nothing["bad_step"] = tf.constant(-1, tf.int64)
    sums = tf.constant([0.1, 1e-38, 3e38, -7.123456], tf.float32)
    totals = {**nothing, "sums": sums, "norm": tf.constant(1 / 3), "skipped": tf.constant(2)}
    saved = json.loads(json.dumps(metrics_window.MetricsWindow(5, totals).to_saved()))
    again = metrics_window.window_from_saved(saved, 9, nothing)
    assert again.first_step == 5
    for name, value in totals.items():
        assert again.totals[name].dtype == value.dtype
        assert again.totals[name].numpy().tobytes() == value.numpy().tobytes()
    for change in ({"sums": [1.0]}, {"norm": "x"}, {"first_step": 9}, {"first_step": True}, None):
        other = {} if change is None else {**saved, **change}
        anew = metrics_window.window_from_saved(other, 9, nothing)
        assert (anew.first_step, anew.totals) == (9, nothing)


def test_starting_up_lasts_until_training_is_at_its_speed():
    for first, step, expected in ((10.1, 0.6, 9.5), (10.1, None, 10.1), (None, None, 3.0)):
        found = Outcome(first_step_secs=first, step_secs=step)
        assert found.startup_secs(process_started=100.0, run_started=103.0) == pytest.approx(expected)


def test_processes_that_differ_are_refused_by_name(make_config, record_files, caplog):
    sent = []
    first = ProcessGroup(lambda own: sent.append(own) or 2 * own, 2)
    second = ProcessGroup(lambda own: own + sent[-1], 2)

    def check(group, model=None, commit="1234567", **settings):
        config = make_config(model, **settings)
        task = TASKS["pretrain"](config)
        task.find_data()
        versions = {"commit": commit, "versions": {"tensorflow": "2.15.1"}}
        runner._check_same(config, task, group, versions)  # pylint: disable=protected-access

    files, copy = record_files(files=3), record_files(files=3, name="copy")
    check(first, input_files=files)
    check(second, input_files=copy, model_dir="elsewhere", verbosity=1, num_gpus=0)
    assert "The processes of the run differ" not in caplog.text
    check(second, input_files=files, commit="7654321")
    assert "The processes of the run differ in the commit of the code (7654321); their" in caplog.text
    for model, settings, message in (
        (None, dict(learning_rate=0.5), "others in --learning_rate=0.5. Start all of them with the same"),
        (None, dict(seed=1, do_eval=True), r"others in --do_eval=True, --seed=1, .* data files \(6 here\)"),
        ({"hidden_act": "relu"}, {}, "others in the configuration of the model. Start"),
        (None, dict(input_files=files.replace("*", "0000[01]")), r"the names of the data files \(2 here\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            check(second, model, **{"input_files": files, **settings})
    many = ProcessGroup(lambda own: tf.add_n([own] * 127), 127)
    many.check_same_step(200_001, "run")  # float32 does not hold the sum of their steps


def test_a_best_checkpoint_that_only_some_processes_see_is_not_evaluated():
    for seen, others, told in (
        (None, (0.0, 1.0, 0.0), "not seen by this process, and others differ: --model_dir=run"),
        ("run/ckpt-2", (0.0, 0.0, 1.0), "is seen by this process"),
        (None, (0.0, 0.0, 1.0), None),
        ("run/ckpt-2", (0.0, 1.0), None),
    ):
        sent = iter(others)  # of the barrier, and of the two questions
        loop = types.SimpleNamespace(
            best_step=lambda: 2,
            state=types.SimpleNamespace(step=4),
            config=types.SimpleNamespace(model_dir="run"),
            outcome=types.SimpleNamespace(outputs={"last": 1}),
            manager=types.SimpleNamespace(restore=lambda step, seen=seen: seen),
            processes=ProcessGroup(lambda own, sent=sent: own + next(sent), 2),
        )
        if told:
            with pytest.raises(PeerError, match=told):
                finish._restore_best(loop)  # pylint: disable=protected-access
        else:
            assert finish._restore_best(loop) == (seen is None)  # pylint: disable=protected-access
