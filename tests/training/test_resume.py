"""Runs that stop and go on end with the bits of runs that do not; where others go on than began them, with
the same rows, masks and weights; other data are refused with --deterministic, else said and recorded."""

import functools
import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from official.data.pipeline import TrainingOrder
from official.distribution.batch_plan import BatchPlan, Layout
from official.io.errors import ConfigError
from official.reporting.metrics import read_metrics
from official.tasks import TASKS
from official.training import feeding, resume, run_lock
from tests.fixtures import make_records, slow, write_records
from tests.refusals import assert_refused
from tests.run_folders import assert_resumes, assert_same_state, result_of, run, state_of, untimed_metrics
from tests.training.test_training import DROPOUT, assert_close, make_loop, replicas, train

SAME_BITS = dict(deterministic=True, model=DROPOUT)
NATIVE = dict(dtype="bf16", kernels="native", num_accumulation_steps=1)
MPADAMW = dict(optimizer_type="mpadamw", loss_scale='{"0": 64, "6": 256}', learning_rate=None)
MPADAMW |= dict(warmup_steps=None, lr_schedule='{"0": 1e-3, "6": 1e-2}')
ELECTRA = dict(objective="electra", model=dict(DROPOUT, family="electra", embedding_size=8))
DRAWN = dict(objective="mlm", mask_share=0.3, mask_span_length=2.0, max_predictions_per_seq=20)
KINDS = {
    "padded": {},
    "unpadded": dict(unpad=True),
    "packed": dict(pack_on_the_fly=True),
    "packed files": {},
    "unpadded masked words": dict(unpad=True, objective="mlm"),
    "drawn masked words": DRAWN,
    "packed drawn masked words": dict(DRAWN, pack_on_the_fly=True),
    "pipeline": dict(distribution_strategy="pipeline", pipeline_stages="2", num_virtual_devices=2),
    "packed electra": dict(ELECTRA, pack_on_the_fly=True),
    "sgd": dict(optimizer_type="sgd", lr_schedule="cosine"),
    "momentum": dict(optimizer_type="momentum", lr_schedule="up_down", warmup_steps=2),
    "packed mpadamw": dict(MPADAMW, pack_on_the_fly=True),
    "stable_adamw": dict(optimizer_type="stable_adamw", dtype="bf16"),
    "growing batch": dict(batch_warmup='{"0": 1, "3": 2}', pack_on_the_fly=True, **replicas(2)),
    "native lamb": NATIVE,
    "native adamw": dict(NATIVE, optimizer_type="adamw"),
}
_SAID = ("metrics.jsonl", "result.json", "mllog.txt", "report.html")
QUICK = ("packed mpadamw",)


@pytest.mark.parametrize("kind", [kind if kind in QUICK else slow(kind) for kind in KINDS])
def test_a_resumed_run_is_bit_identical(
    make_config, short_files, packed_files, bare_files, tmp_path, kind, caplog
):
    """Dropout, accumulation and shuffling are on."""
    files = packed_files if kind == "packed files" else bare_files if "drawn" in kind else short_files
    shared = dict(SAME_BITS, input_files=files, num_accumulation_steps=2, do_eval=True, num_eval_samples=16)
    shared |= dict(num_steps_per_epoch=10, steps_between_eval=5, checkpoint_every_steps=5)
    whole, first, second = assert_resumes(make_config, 5, 10, **{**shared, **KINDS[kind]})
    state, lines = state_of(tmp_path / "whole", 10), read_metrics(str(tmp_path / "whole"))
    lines = [line for line in lines if line["split"] == "train"]
    assert ("adam_m_scale" in state) == (kind == "packed mpadamw")
    said = "".join(pathlib.Path(tmp_path, "whole", name).read_text() for name in _SAID)
    tells_pairs = "masked words" not in kind and "electra" not in kind
    assert ("nsp_" in said and "second segment" in said) == tells_pairs
    if "masked words" in kind:  # its pooler is kept, and no step changes it
        first_state = state_of(tmp_path / "whole", 5)
        assert not any("seq_relationship" in name for name in state)
        assert (state["bert/pooler/dense/kernel"] == first_state["bert/pooler/dense/kernel"]).all()
    if kind == "packed mpadamw":
        assert state["adam_m_scale"] == 64 and [line["loss_scale"] for line in lines] == [64, 256]
        assert [line["learning_rate"] for line in lines] == pytest.approx([1e-3, 1e-2])
    if kind.startswith("packed"):
        places = (tmp_path / name / "ckpt-10.interval.json" for name in ("parts", "whole"))
        parts, alone = (json.loads(place.read_text()) for place in places)
        assert parts == alone and parts["rows_done"] == 80
        assert sum(parts["stream_sequences"]) == whole.samples == second.samples
        assert first.samples + second.sequences_per_row * 40 == pytest.approx(whole.samples)
        written = json.loads((tmp_path / "whole" / "result.json").read_text())
        assert written["sequences_per_row"] == whole.samples / 80 and 0.6 < written["packing_efficiency"] <= 1
        config = make_config(**{**shared, **KINDS[kind], "model_dir": str(tmp_path / "parts")})
        loop, previous = make_loop(config), run_lock.PreviousRun(config.model_dir)
        resume.restore(config, loop.manager, loop.state, previous, loop.task, list)
        for is_there in (True, False):  # as where only the weights were copied
            loop.__post_init__()
            assert ("ckpt-10 lacks its position in the packed data" in caplog.text) != is_there
            (tmp_path / "parts" / "ckpt-10.interval.json").unlink(missing_ok=True)


def test_a_run_that_goes_on_takes_the_loss_scale_that_is_asked_for(make_config):
    shared = dict(num_steps_per_epoch=8, optimizer_type="sgd")
    begun = make_loop(make_config(**shared, loss_scale="1024"))
    begun.state.optimizer.iterations.assign(4)
    begun.manager.save(4)
    for loss_scale, expected in (("256", 256), ('{"0": 8, "3": 32}', 32)):
        config = make_config(**shared, loss_scale=loss_scale)
        loop, previous = make_loop(config), run_lock.PreviousRun(config.model_dir)
        resume.restore(config, loop.manager, loop.state, previous, loop.task, list)
        assert loop.state.step == 4 and loop.state.loss_scale.scale.numpy() == expected


@pytest.mark.slow
def test_a_batch_that_grows_is_that_of_runs_with_each_batch(make_config, short_files, tmp_path):
    """In the middle of a line of the metrics, after as many samples."""
    shared = dict(SAME_BITS, input_files=short_files, num_steps_per_epoch=7, do_eval=True)
    shared |= dict(num_eval_samples=8, steps_between_eval=2, steps_per_loop=2)
    whole_batch, half = (dict(train_batch_size=size, num_accumulation_steps=size // 4) for size in (8, 4))
    grows = dict(whole_batch, model_dir=str(tmp_path / "whole"), batch_warmup='{"0": 1, "3": 2}')
    whole = run(make_config(**shared, **grows))
    run(make_config(**shared, **half, stop_steps=3))
    (tmp_path / "run" / "result.json").unlink()  # as if it were killed: a run that is over keeps its batch
    parts = run(make_config(**shared, **whole_batch))
    assert whole.samples == parts.samples == 3 * 4 + 4 * 8
    assert_same_state(state_of(tmp_path / "run", 7), state_of(tmp_path / "whole", 7))
    extra, lines = ("eval", 3), untimed_metrics(tmp_path / "run")
    lines = [line for line in lines if (line["split"], line["step"]) != extra]
    assert lines == untimed_metrics(tmp_path / "whole")
    lines = [(line["split"], line["step"], line["samples"]) for line in read_metrics(str(tmp_path / "whole"))]
    train = [("train", 2, 8), ("train", 3, 12), ("train", 4, 20), ("train", 6, 36), ("train", 7, 44)]
    evaluations = [("eval", 2, 8), ("eval", 4, 20), ("eval", 6, 36), ("eval", 7, 44)]
    assert sorted(lines) == sorted(train + evaluations)


@pytest.mark.slow
def test_a_decay_from_a_checkpoint_of_the_stable_phase_is_that_of_one_run(make_config, short_files, tmp_path):
    """With packed rows, moments, dropout and accumulation."""
    shared = dict(SAME_BITS, input_files=short_files, pack_on_the_fly=True, dtype="bf16")
    shared |= dict(num_accumulation_steps=2, warmup_steps=2, steps_per_loop=2, optimizer_type="adamw")
    decays = dict(lr_schedule="wsd_sqrt", decay_steps=4)
    run(make_config(**shared, **decays, model_dir=str(tmp_path / "whole"), num_steps_per_epoch=9))
    shared |= dict(num_train_epochs=None, stop_threshold=None)
    stable = dict(lr_schedule="wsd_linear", decay_steps=10, num_steps_per_epoch=8, num_train_epochs=2)
    stable_dir = str(tmp_path / "stable")
    run(make_config(**{**shared, **stable}, model_dir=stable_dir, stop_steps=5))
    decay = dict(decays, decay_checkpoint=f"{stable_dir}/ckpt-5", num_steps_per_epoch=None)
    decay |= dict(model_dir=str(tmp_path / "decay"))

    def begin(other):
        return run(make_config(**{**shared, **decay, **other}))

    cases = [
        (dict(learning_rate=0.5), "is of a run with other settings: learning_rate 0.01 -> 0.5. Give those"),
        (dict(train_batch_size=16), "other settings: train_batch_size 8 -> 16"),
        (dict(beta_2=0.9), "other settings: beta_2 0.999 -> 0.9"),
        (dict(input_files=short_files.replace("*", "[12]")), "other settings: input_files"),
        (dict(decay_checkpoint=f"{stable_dir}/ckpt-3"), "ckpt-3 is not a checkpoint in the folder of a run"),
        (dict(decay_checkpoint=f"{tmp_path}/whole/ckpt-9"), "in the decay of its run, which begins at"),
    ]
    assert_refused(begin, cases)
    assert not (tmp_path / "decay").exists()

    result = begin({})
    assert (result.step, result.status) == (9, "finished")
    ours, theirs = (state_of(tmp_path / name, 9) for name in ("decay", "whole"))
    assert_same_state(ours, theirs)
    lines, all_lines = (untimed_metrics(tmp_path / name) for name in ("decay", "whole"))
    assert lines[1:] == [line for line in all_lines if line["step"] > 6]
    assert begin({}).step == 9  # it is over: its own checkpoint counts


# ------------------------------------------------------------------------------------------------------------
# Another number of replicas and processes


LAYOUT = Layout(workers=2, num_replicas=4, num_accumulation_steps=2, train_batch_size=16)


def rows_of(task, layout: Layout, hosts: int, steps: int = 2) -> list[np.ndarray]:
    """Returns the input_ids of some steps, those of all hosts one behind the other."""
    size = layout.train_batch_size
    plan = BatchPlan(hosts, layout.micro_batches // hosts, size, size, layout=layout)
    contexts = [tf.distribute.InputContext(hosts, host, hosts) for host in range(hosts)]
    datasets = [feeding.host_dataset(task, plan, layout, TrainingOrder(7), each) for each in contexts]
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


@pytest.mark.parametrize("packed,counts", [(False, (1, 4)), slow(True, (1, 2, 4, 8))])
def test_rows_are_those_of_the_layout(make_config, record_files, packed, counts):
    more = dict(pack_on_the_fly=True, max_sequences_per_pack=2) if packed else {}
    task = TASKS["pretrain"](make_config(input_files=record_files(files=4), train_batch_size=16, **more))
    task.find_data()
    expected = as_laid_out(task, LAYOUT)
    for hosts in counts:
        for ours, theirs in zip(rows_of(task, LAYOUT, hosts), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"{hosts} hosts")


PUBLISHED = dict(loss_normalization="local", clip_scope="micro_batch")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, dict(PUBLISHED, scale_loss=True), dict(clip_scope="replicas")], ids=str
)
def test_one_replica_trains_as_two_did(make_config, record_files, settings):
    """Dropout, clipping and division are those of the layout; SGD, unlike LAMB, hides no factor."""
    shared = dict(model=DROPOUT, input_files=record_files(), learning_rate=0.1, num_accumulation_steps=2)
    shared |= dict(optimizer_type="sgd")
    theirs = train(make_config(**shared, **settings, **replicas(2)), 3)
    ours = train(make_config(**shared, **settings), 3, BatchPlan(1, 4, 8, 8, layout=Layout(1, 2, 2, 8)))
    assert_close(ours, theirs)
    other = train(make_config(**shared, **settings), 3)
    assert any(not np.allclose(other[name], theirs[name], atol=1e-5) for name in theirs)


@pytest.mark.slow
def test_a_run_begun_by_two_goes_on_with_one_and_with_four(make_config, record_files):
    shared = dict(model=DROPOUT, input_files=record_files(files=4), learning_rate=1e-3, stop_steps=6)
    shared |= dict(checkpoint_every_steps=2, steps_per_loop=2, num_accumulation_steps=2)
    whole = make_config(model_dir="whole", **shared, **replicas(2))
    assert run(whole).step == 6
    for stop, count in ((2, 2), (4, 1), (6, 4)):
        config = make_config(model_dir="run", **{**shared, "stop_steps": stop}, **replicas(count))
        assert run(config).step == stop
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


# ------------------------------------------------------------------------------------------------------------
# Other data


def swap(one: pathlib.Path, other: pathlib.Path) -> None:
    one.rename(one.with_name("~"))
    other.rename(one)
    one.with_name("~").rename(other)


@pytest.mark.slow
def test_records_that_are_others_are_refused_or_said(make_config, record_files, schema, tmp_path, caplog):
    glob = record_files(files=3)
    files = [pathlib.Path(os.path.dirname(glob)) / f"part-{number:05d}" for number in range(3)]
    content = files[1].read_bytes()
    shared = dict(input_files=glob)
    config = make_config(**shared, stop_steps=5)
    assert not run(config).data_changed and result_of(config)["data_changed"] is False
    noted = (pathlib.Path(config.model_dir) / resume.DATA_FILE).read_text()
    turned, added = make_records(20, seed=1, schema=schema)[::-1], files[1].with_name("part-9")
    restore = functools.partial(files[1].write_bytes, content)
    exchange = functools.partial(swap, *files[:2])
    for change, undo, *told in (
        (exchange, exchange, "part-00000 (", " in place of part-00000 ("),
        (files[1].unlink, restore, "2 files, there were 3 (part-00001 is missing"),
        (functools.partial(write_records, files[1], turned), restore, "in place of part-00001 ("),
        (functools.partial(added.write_bytes, content), added.unlink, "part-9 is new"),
    ):
        change()
        with pytest.raises(ConfigError) as error:
            run(make_config(**shared, deterministic=True, stop_steps=15))
        assert all(part in str(error.value) for part in ("train: ", *told)), (told, str(error.value))
        undo()
    assert (pathlib.Path(config.model_dir) / resume.DATA_FILE).read_text() == noted
    swap(*files[:2])
    caplog.clear()
    assert run(make_config(**shared, stop_steps=15)).data_changed
    assert "The data have changed since the start of this run; train: part-00000" in caplog.text
    swap(*files[:2])  # whatever comes later: it was trained on others for a while
    assert run(make_config(**shared, stop_steps=20)).data_changed


def test_files_of_fine_tuning_are_compared_too(squad, glue, tmp_path):
    """And a damaged note of them is one line."""
    config = squad(deterministic=True)
    task, path = TASKS["squad"](config), pathlib.Path(config.train_file)
    task.find_data()
    os.makedirs(config.model_dir)
    resume.write_data_files(config.model_dir, task.data_files())
    assert resume.compare_data(config, task.data_files(), goes_on=True) == (False, True)
    path.write_text(path.read_text().replace("ball", "bell"))
    with pytest.raises(ConfigError, match=r"begun with other data; train: train.json \("):
        resume.compare_data(config, task.data_files(), goes_on=True)
    shared = dict(num_train_epochs=2, model_dir="glue")
    assert not run(glue("rte", dict(train=64, dev=64), **shared, stop_steps=5)).data_changed
    path = next((tmp_path / "glue").rglob("dev.tsv"))
    header, *rows = path.read_text().rstrip("\n").split("\n")
    path.write_text("\n".join([header, *rows[::-1]]) + "\n")
    with pytest.raises(ConfigError, match=r"begun with other data; dev: dev.tsv \("):
        run(glue("rte", **shared, stop_steps=10, deterministic=True))
    # What was evaluated on others chooses no weights, now and by later processes; what was skipped counts.
    written = tmp_path / "glue" / "metrics.jsonl"
    lines = [{**line, "accuracy": 2.0, "skipped_steps": 3} for line in read_metrics(str(written))]
    written.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run(glue("rte", **shared, stop_steps=10))
    assert result.data_changed and result.skipped_steps == 3 * sum(line["split"] == "train" for line in lines)
    assert result.scores["best_step"] in (8, 10)
    assert {*run_lock.PreviousRun("glue").evaluations(10)} == {8, 10}
    assert [line["step"] for line in read_metrics(str(written)) if line["split"] == "other_eval"] == [5]
    (tmp_path / "glue" / resume.DATA_FILE).write_text('{"files": 3}')
    with pytest.raises(ConfigError, match="data_files.json is damaged"):
        run(glue("rte", **shared, stop_steps=15))


def test_the_middle_and_the_ends_of_a_large_file_are_looked_at(tmp_path):
    path, size = tmp_path / "large", 3 << 20
    content = bytes(size)
    path.write_bytes(content)
    before = resume._describe_files([str(path)])  # pylint: disable=protected-access
    for place in (0, size // 2 + 5, size - 1):
        path.write_bytes(content[:place] + b"x" + content[place + 1 :])
        assert resume._describe_files([str(path)]) != before  # pylint: disable=protected-access
    path.write_bytes(content)
    assert resume._describe_files([str(path)]) == before  # pylint: disable=protected-access
