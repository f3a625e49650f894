"""Checkpoints that a thread writes while the state goes on."""

import os
import threading

import numpy as np
import pytest
import tensorflow as tf

from official.checkpoint.manager import CheckpointManager
from official.io.errors import ConfigError
from official.optimization import optimizers
from tests.run_folders import state_of


@pytest.fixture
def gate(monkeypatch):
    """An event that every writing of tensors waits for."""
    event, write = threading.Event(), CheckpointManager._write_tensors

    def wait_and_write(self, prefix, tensors):
        assert event.wait(20)
        write(self, prefix, tensors)

    monkeypatch.setattr(CheckpointManager, "_write_tensors", wait_and_write)
    yield event
    event.set()


def test_what_is_written_is_the_state_as_it_was(tmp_path, gate):
    """Whoever changes the variables meanwhile: assignments, TensorFlow's own updates, compiled functions."""
    start = np.arange(12, dtype=np.float32).reshape(3, 4)
    names = ("assigned", "weight", "m", "v", "sum")
    variables = {name: tf.Variable(start + number) for number, name in enumerate(names)}
    manager = CheckpointManager(str(tmp_path), variables, keep=2)
    manager.begin_save(1)
    variables["assigned"].assign(variables["assigned"] * 2)
    variables["sum"].assign_add(tf.ones([3, 4]))
    handles = [variables[name].handle for name in ("weight", "m", "v")]

    @tf.function(jit_compile=True, autograph=False)
    def update():
        optimizers.write(handles, [2 * value for value in optimizers.read(handles, (3, 4))])

    update()
    tf.raw_ops.ResourceApplyGradientDescent(var=handles[0], alpha=1.0, delta=tf.ones([3, 4]))
    manager.check()  # waits for nothing
    assert not manager._listed_steps() and manager.is_saved(1)
    gate.set()
    assert manager.steps() == [1]
    for number, name in enumerate(names):
        np.testing.assert_array_equal(state_of(tmp_path, 1)[name], start + number, err_msg=name)
    np.testing.assert_array_equal(variables["weight"].numpy(), 2 * (start + 1) - 1)
    np.testing.assert_array_equal(variables["sum"].numpy(), start + 5)


def test_one_is_written_at_a_time_and_times_are_told(tmp_path, gate):
    manager = CheckpointManager(str(tmp_path), {"a": tf.Variable(1.0)}, keep=1)
    manager.begin_save(1, '{"first_step": 0}')
    second = threading.Thread(target=manager.begin_save, args=(2,))
    second.start()
    second.join(0.2)
    assert second.is_alive() and not manager._listed_steps()
    gate.set()
    second.join()
    assert manager.steps() == [2] and manager.companion(1) == {}
    times = manager.times
    assert times.saves == 2 and times.wait_secs > 0.15 and times.write_secs > 0.15


def test_the_pinned_one_is_that_of_the_moment_of_the_save(tmp_path, gate):
    manager = CheckpointManager(str(tmp_path), {"a": tf.Variable(1.0)}, keep=1)
    gate.set()
    manager.save(1)
    manager.pin(1)
    manager.begin_save(2)
    manager.pin(2)
    assert manager.steps() == [1, 2]
    manager.begin_save(3)
    assert manager.steps() == [2, 3]


def test_an_error_comes_to_who_asks_next_and_once(tmp_path, monkeypatch):
    def fail(self, prefix, tensors):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CheckpointManager, "_write_tensors", fail)
    manager = CheckpointManager(str(tmp_path), {"a": tf.Variable(1.0)}, keep=1)
    for ask in (manager.wait, manager.steps, lambda: manager.begin_save(9)):
        manager.begin_save(4)
        with pytest.raises(ConfigError, match="ckpt-4 cannot be written .*No space left"):
            ask()
        manager.wait()
    manager.begin_save(5)
    manager._work.exception()  # it is over now
    with pytest.raises(ConfigError, match="ckpt-5"):
        manager.check()
    manager.begin_save(6)
    manager.close()
    manager.check()
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".index")]


def test_a_signal_that_cuts_the_waiting_does_not_cut_the_work(tmp_path, gate, monkeypatch):
    def _interrupt(future):
        raise KeyboardInterrupt

    manager = CheckpointManager(str(tmp_path), {"a": tf.Variable(1.0)}, keep=1)
    manager.begin_save(1)
    with monkeypatch.context() as patch:
        patch.setattr(type(manager._work), "result", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            manager.wait()
    gate.set()
    assert manager.steps() == [1]


def test_who_only_reads_writes_nothing(tmp_path):
    manager = CheckpointManager(str(tmp_path), {"a": tf.Variable(1.0)}, keep=1, read_only=True)
    manager.begin_save(1)
    assert manager.steps() == [] and manager.times.saves == 0 and not os.listdir(tmp_path)
