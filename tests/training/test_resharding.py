"""A run that others go on with than it was laid out for: the same rows, masks and weights."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official.data.pipeline import TrainingOrder
from official.distribution.batch_plan import BatchPlan, Layout
from official.io.errors import ConfigError
from official.tasks import TASKS
from official.training import feeding, resume
from official.training import run as runner
from tests.run_folders import state_of
from tests.training.test_training import DROPOUT, assert_close, make_loop, replicas, run_steps, slow, values

LAYOUT = Layout(workers=2, num_replicas=4, num_accumulation_steps=2, train_batch_size=16)


def context(host: int, hosts: int) -> tf.distribute.InputContext:
    return tf.distribute.InputContext(hosts, host, hosts)


def rows_of(task, layout: Layout, hosts: int, steps: int = 2) -> list[np.ndarray]:
    """Returns the input_ids of some steps, those of all hosts one behind the other."""
    size = layout.train_batch_size
    plan = BatchPlan(hosts, layout.micro_batches // hosts, size, size, layout=layout)
    datasets = [
        feeding.host_dataset(task, plan, layout, TrainingOrder(7), context(host, hosts))
        for host in range(hosts)
    ]
    taken = [[batch["input_ids"].numpy() for batch in dataset.take(steps)] for dataset in datasets]
    return [np.concatenate(of_step) for of_step in zip(*taken)]


def as_laid_out(task, layout: Layout, steps: int = 2) -> list[np.ndarray]:
    """Returns what the processes of the layout themselves read, in the order of their replicas."""
    size, replica_batch = layout.train_batch_size, layout.train_batch_size // layout.num_replicas
    per_step = layout.num_replicas // layout.workers
    parts = []
    for worker in range(layout.workers):
        own = TrainingOrder(7, host=worker, num_hosts=layout.workers)
        dataset = task.train_dataset(size, replica_batch, own).take(per_step * steps)
        rows = np.concatenate([batch["input_ids"].numpy() for batch in dataset])
        parts.append(np.split(rows, steps))
    return [np.concatenate(of_step) for of_step in zip(*parts)]


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_are_those_of_the_layout(make_config, record_files, packed):
    more = dict(pack_on_the_fly=True, max_sequences_per_pack=2) if packed else {}
    task = TASKS["pretrain"](make_config(input_files=record_files(files=4), train_batch_size=16, **more))
    task.find_data()
    expected = as_laid_out(task, LAYOUT)
    for hosts in (1, 2, 4, 8):
        for ours, theirs in zip(rows_of(task, LAYOUT, hosts), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"{hosts} hosts")


def trained(config, plan=None, steps=3) -> dict[str, np.ndarray]:
    loop = make_loop(config, plan=plan)
    run_steps(loop, loop._train_iterator(), steps)
    return values(loop.state)


PUBLISHED = dict(loss_normalization="local", clip_scope="micro_batch")


@pytest.mark.parametrize(
    "settings", [{}, slow(dict(PUBLISHED, scale_loss=True)), slow(dict(clip_scope="replicas"))], ids=str
)
def test_one_replica_trains_as_two_did(make_config, record_files, settings):
    """Dropout, clipping and division are those of the layout."""
    shared = dict(model=DROPOUT, input_files=record_files(), learning_rate=1e-3, num_accumulation_steps=2)
    theirs = trained(make_config(**shared, **settings, **replicas(2)))
    ours = trained(make_config(**shared, **settings), BatchPlan(1, 4, 8, 8, layout=Layout(1, 2, 2, 8)))
    assert_close(ours, theirs)
    other = trained(make_config(**shared, **settings))
    assert any(not np.allclose(other[name], theirs[name], atol=1e-5) for name in theirs)


def test_a_run_begun_by_two_goes_on_with_one_and_with_four(make_config, record_files):
    shared = dict(model=DROPOUT, input_files=record_files(files=4), learning_rate=1e-3, stop_steps=6)
    shared |= dict(checkpoint_every_steps=2, steps_per_loop=2, num_accumulation_steps=2)
    whole = make_config(model_dir="whole", **shared, **replicas(2))
    assert runner.run(whole, TASKS["pretrain"]).step == 6
    for stop, count in ((2, 2), (4, 1), (6, 4)):
        config = make_config(model_dir="run", **{**shared, "stop_steps": stop}, **replicas(count))
        assert runner.run(config, TASKS["pretrain"]).step == stop
        assert resume.read_layout("run") == Layout(1, 2, 2, 8)
    assert_close(state_of("run", 6), state_of("whole", 6))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_layout_counts_where_there_is_a_checkpoint_and_a_damaged_one_is_one_line(tmp_path):
    assert resume.read_layout(str(tmp_path)) is None
    resume.write_layout(str(tmp_path), LAYOUT)
    assert resume.read_layout(str(tmp_path)) is None
    (tmp_path / "ckpt-2.index").touch()
    assert resume.read_layout(str(tmp_path)) == LAYOUT
    path = tmp_path / resume.LAYOUT_FILE
    whole = json.loads(path.read_text())
    for changed, message in (
        ({"workers": "2"}, '"workers" is a text'),
        ({"workers": 0}, "cannot share 16 rows. Remove it."),
        ({"train_batch_size": 15}, "cannot share 15 rows. Remove it."),
    ):
        path.write_text(json.dumps({**whole, **changed}))
        with pytest.raises(ConfigError, match=f"{path}.*{message}"):
            resume.read_layout(str(tmp_path))
