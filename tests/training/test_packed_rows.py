"""Training and evaluation on rows of several sequences: the same as on a row each, counted in sequences, and
resumed exactly."""

import glob
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from official import config as config_lib
from official.data.pipeline import MOST_STREAMS
from official.data.records import encoding, on_the_fly
from official.data.records.formats import compact, packed
from official.io.errors import ConfigError
from official.tasks.pretraining import PretrainingTask
from official.training import metrics_window as place_lib
from official.training import run as runner
from tests.conftest import write_records
from tests.records import short_examples
from tests.run_folders import assert_resumes
from tests.training.test_training import DROPOUT, assert_close, make_loop, replicas, run_steps, values

FILES, EACH = 4, 24


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch):
    monkeypatch.setattr(on_the_fly, "_SEQUENCES", 16)
    monkeypatch.setattr(on_the_fly, "_MIN_BUFFER", 16)


@pytest.fixture
def short_files(tmp_path):
    """Returns the glob of files of sequences of 5 to 10 tokens in rows of 16."""
    for number in range(FILES):
        records = encoding.encode(short_examples(EACH, number), "compact")
        write_records(tmp_path / f"short-{number}", records)
    return str(tmp_path / "short-*")


@pytest.fixture(name="packed_files")
def fixture_packed_files(tmp_path):
    """Returns the glob of files of the same sequences, of which two share a row where they fit."""
    for number in range(FILES):
        some = short_examples(EACH, number)
        rows, left = [], list(range(EACH))
        while left:
            first = left.pop(0)
            fits = [other for other in left if some.lengths[first] + some.lengths[other] <= 16][:1]
            left = [other for other in left if other not in fits]
            rows.append([first, *fits, -1][:2])
        write_records(tmp_path / f"rows-{number}", packed.encode_rows(some, np.array(rows)))
    return str(tmp_path / "rows-*")


def sequences_and_tokens(batch) -> tuple[int, int]:
    return int(batch["example_weights"].sum()), int(batch["input_mask"].sum())


# ------------------------------------------------------------------------------------------------------------
# Packed equals unpacked


def both_batches(config) -> tuple[PretrainingTask, dict, dict]:
    """Returns a task, a batch of packed rows and one of the same sequences in a row each."""
    tasks = [PretrainingTask(config_lib.replaced(config, pack_on_the_fly=packs)) for packs in (True, False)]
    for task in tasks:
        task.find_data()
    return tasks[0], *(next(iter(task.eval_dataset(FILES * EACH))) for task in tasks)


def terms_and_gradients(task, model, batch) -> tuple[dict, list]:
    with tf.GradientTape() as tape:
        terms = task.terms(model(batch), batch)
        total = tf.add_n([terms[name][0] / terms[name][1] for name in task.losses])
    return terms, tape.gradient(total, model.trainable_variables)


def assert_same_terms_and_gradients(model, ours, theirs) -> None:
    for name, (total, weight) in theirs[0].items():
        np.testing.assert_allclose(ours[0][name][0], total, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(ours[0][name][1], weight, rtol=1e-6, err_msg=name)
    for variable, one, other in zip(model.trainable_variables, ours[1], theirs[1]):
        one, other = tf.convert_to_tensor(one).numpy(), tf.convert_to_tensor(other).numpy()
        scale = 1.0 if "key/bias" in variable.name else np.abs(other).max()
        np.testing.assert_allclose(one, other, atol=1e-4 * scale, rtol=0, err_msg=variable.name)


@pytest.mark.parametrize("basis", ["pertoken", "persequence"])
@pytest.mark.parametrize("kernels", ["plain", "fused"])
def test_losses_accuracies_and_gradients_are_those_of_a_row_each(make_config, short_files, kernels, basis):
    settings = dict(kernels=kernels, loss_averaging_basis=basis, do_eval=True, num_eval_samples=FILES * EACH)
    task, packed_batch, plain_batch = both_batches(make_config(input_files=short_files, **settings))
    assert packed_batch["example_weights"].shape.rank == 2 and plain_batch["example_weights"].shape.rank == 1
    model = task.build_model()
    ours, theirs = (terms_and_gradients(task, model, batch) for batch in (packed_batch, plain_batch))
    assert_same_terms_and_gradients(model, ours, theirs)
    for name, (_, weight) in theirs[0].items():
        np.testing.assert_allclose(task.weights(packed_batch).get(name, weight), weight, rtol=1e-6)


def test_evaluations_of_packed_and_plain_data_agree(make_config, short_files, packed_files, tmp_path):
    """Fresh weights of one seed; 50 sequences end inside a row."""
    found = []
    for number, settings in enumerate(
        (
            dict(input_files=short_files),
            dict(input_files=short_files, pack_on_the_fly=True),
            dict(input_files=packed_files),
            dict(input_files=packed_files, pack_on_the_fly=True, max_sequences_per_pack=3),
        )
    ):
        order = dict(do_eval=True, num_eval_samples=FILES * EACH, model_dir=str(tmp_path / str(number)))
        loop = make_loop(make_config(**settings, **order))
        (*sums, sequences), _ = loop._evaluated(loop.task.eval_dataset)
        assert loop.plan.is_packed == (number > 0) and sequences == FILES * EACH
        found.append(sums)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-6)


# ------------------------------------------------------------------------------------------------------------
# Steps


@pytest.mark.parametrize("kind", ["on the fly", "files"])
def test_steps_count_the_sequences_of_their_rows(make_config, short_files, packed_files, kind):
    settings = dict(input_files=packed_files if kind == "files" else short_files)
    loop = make_loop(make_config(**settings, pack_on_the_fly=kind != "files"))
    assert loop.plan.is_packed and 1.2 < loop.plan.sequences_per_row < 2.2
    batches = loop.task.train_dataset(8, 8, loop.order()).take(5).as_numpy_iterator()
    counts = np.array([sequences_and_tokens(batch) for batch in batches])
    values = loop._train(loop._train_iterator())
    sequences, tokens = counts.sum(axis=0)
    assert loop.state.samples_done == values["samples"] == loop.outcome.packing.sequences == sequences
    assert loop.data_position.rows == 40 and loop.data_position.stream_sequences.sum() == sequences
    assert loop.outcome.packing.shares(16) == {
        "sequences_per_row": sequences / 40,
        "packing_efficiency": tokens / 40 / 16,
    }
    ((rate_sequences, secs),) = loop.outcome.loop_rates
    assert rate_sequences == sequences and values["sequences_per_sec"] == pytest.approx(sequences / secs)


@pytest.mark.parametrize("kind", ["on the fly", "files"])
def test_only_compiling_plans_the_rows_that_are_there(make_config, short_files, packed_files, kind):
    files = packed_files if kind == "files" else short_files
    packs = dict(pack_on_the_fly=kind != "files", model=dict(num_hidden_layers=1))
    text = runner.compile_only(make_config(input_files=files, compile_only=True, **packs), PretrainingTask)
    sequences = re.search(r"packed +about (\d+) sequences a step", text)
    assert sequences and 8 * 1.2 < int(sequences[1]) < 8 * 2.2
    assert ("packed before" in text) == (kind == "files")


@pytest.mark.parametrize("kind", ["on the fly", "files", "training only"])
def test_synthetic_rows_have_the_form_of_those_that_are_read(make_config, short_files, packed_files, kind):
    """Else the warm-up would compile steps that the run does not make."""
    files = dict(input_files=short_files if kind == "on the fly" else packed_files)
    files |= dict(eval_files=short_files) if kind == "training only" else {}
    config = make_config(**files, do_eval=True, pack_on_the_fly=kind == "on the fly")
    loop = make_loop(config)
    task = loop.task
    assert task.synthetic_dataset(8).element_spec == task.train_dataset(8, 8, loop.order()).element_spec
    evaluated = task.synthetic_dataset(8, for_evaluation=True)
    assert evaluated.element_spec == task.eval_dataset(8).element_spec


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
@pytest.mark.parametrize("count,accumulation", [(1, 8), (2, 2), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_replicas_and_accumulation_do_not_change_the_weights(
    make_config, short_files, count, accumulation, optimizer
):
    shared = dict(input_files=short_files, pack_on_the_fly=True, learning_rate=1e-3, optimizer_type=optimizer)

    def trained(**settings):
        loop = make_loop(make_config(**shared, **settings))
        totals = run_steps(loop, loop._train_iterator(), 4)
        return values(loop.state), totals["counts"].numpy()[:-1].tolist()

    expected, counts = trained()
    ours, our_counts = trained(**replicas(count), num_accumulation_steps=accumulation)
    assert_close(ours, expected)
    assert our_counts == counts and np.count_nonzero(counts) == FILES  # as many streams


# ------------------------------------------------------------------------------------------------------------
# Resuming


@pytest.mark.parametrize("kind", ["on the fly", pytest.param("files", marks=pytest.mark.slow)])
def test_a_resumed_run_is_bit_identical(
    make_config, short_files, packed_files, tmp_path, deterministic, kind
):
    files = dict(input_files=packed_files) if kind == "files" else dict(input_files=short_files)
    shared = dict(model=DROPOUT, **deterministic, **files, pack_on_the_fly=kind != "files", do_eval=True)
    shared |= dict(steps_between_eval=5, num_eval_samples=20, checkpoint_every_steps=5)
    whole, first, second = assert_resumes(make_config, 10, 20, **shared, num_accumulation_steps=2)
    parts, alone = (
        json.loads((tmp_path / name / "ckpt-20.interval.json").read_text()) for name in ("parts", "whole")
    )
    assert parts == alone and parts["rows_done"] == 160
    assert sum(parts["stream_sequences"]) == whole.samples == second.samples
    assert first.samples + second.sequences_per_row * 80 == pytest.approx(whole.samples)
    written = json.loads((tmp_path / "whole" / "result.json").read_text())
    assert written["sequences_per_row"] == whole.samples / 160 and 0.6 < written["packing_efficiency"] <= 1


def test_a_place_that_is_not_known_is_told_by_rows(make_config):
    place = place_lib.DataPosition(24, np.arange(MOST_STREAMS))
    samples = int(np.arange(MOST_STREAMS).sum())
    saved = json.loads(json.dumps(place.to_saved()))
    again = place_lib.position_from_saved(saved, samples, rows=1)
    assert again.rows == 24 and again.stream_sequences.tolist() == list(range(MOST_STREAMS))
    for other in ({}, {**saved, "rows_done": "x"}, {**saved, "stream_sequences": [1]}, {"first_step": 3}):
        assert place_lib.position_from_saved(other, samples, rows=7).rows == 7
    assert place_lib.position_from_saved(saved, samples + 1, rows=7).stream_sequences.sum() == 0


# ------------------------------------------------------------------------------------------------------------
# What is refused


def test_an_epoch_is_once_through_the_records_that_are_counted(make_config, short_files, packed_files):
    """Rows of packed files, sequences of others; what fills no whole batch is left out."""
    for settings, sequences_of_rows in (
        (dict(input_files=short_files), False),
        (dict(input_files=packed_files), True),
        (dict(input_files=packed_files, average_sequences_per_pack=1.7), True),
        (dict(input_files=short_files, pack_on_the_fly=True), True),
    ):
        config = make_config(**settings, num_steps_per_epoch=0, train_batch_size=10)
        assert config.num_steps_per_epoch == 0
        task = PretrainingTask(config)
        task.find_data()
        rows = FILES * EACH
        if config.input_files == packed_files:
            rows = len(list(tf.data.TFRecordDataset(sorted(glob.glob(packed_files)))))
        elif config.pack_on_the_fly:
            rows = round(rows / task.sequences_per_row)
        complete = config_lib.with_data(config, task.train_samples, task.sequences_per_row)
        assert complete.num_steps_per_epoch == rows // 10, settings
        assert (task.sequences_per_row is not None) == sequences_of_rows
    few = make_config(input_files=short_files, num_steps_per_epoch=0)
    few = config_lib.replaced(few, train_batch_size=1000)
    assert config_lib.with_data(few, 96).num_steps_per_epoch == 1
    assert make_config(input_files=short_files, num_steps_per_epoch=None).num_steps_per_epoch == 1000


def test_numbers_that_contradict_each_other_are_refused(make_config, short_files, packed_files):
    for settings, message in (
        (dict(input_files=short_files, max_sequences_per_pack=3), "hold one sequence each. Drop --max_"),
        (dict(input_files=short_files, average_sequences_per_pack=2.0), "hold one sequence each. Drop --ave"),
        (dict(input_files=packed_files, max_sequences_per_pack=3), "rows of --input_files hold up to 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            PretrainingTask(make_config(**settings)).find_data()


@pytest.mark.parametrize(
    "damage,fault",
    [
        (lambda some: some.positions.__setitem__((3, 0), 12), "masked_lm_positions are not ascending places"),
        (lambda some: some.first_lengths.__setitem__(3, 12), None),
    ],
)
def test_a_record_that_cannot_be_packed_is_named(make_config, tmp_path, damage, fault):
    """A masked token of a neighbour's; what is no token has no segment either, and is read."""
    some = short_examples(EACH)
    damage(some)
    path = write_records(tmp_path / "short", encoding.encode(some, "plain"))
    loop = make_loop(make_config(input_files=path, pack_on_the_fly=True, average_sequences_per_pack=2.0))
    if fault is None:
        assert loop._train(loop._train_iterator())["samples"] > 0
        return
    with pytest.raises(ConfigError, match=f"short, record 4: {fault}"):
        loop._train(loop._train_iterator())


def test_tokens_behind_padding_are_refused():
    features = {name: tf.constant(value) for name, value in short_examples(2).features().items()}
    features = {name: tf.cast(value, tf.int32) for name, value in features.items()}
    words = compact.to_words(features)
    assert compact.columns(words, 16, 3).tokens.numpy().tolist() == short_examples(2).lengths.tolist()
    for name, place in (("input_mask", (0, 2)), ("segment_ids", (0, 15)), ("masked_lm_weights", (0, 2))):
        wrong = features[name].numpy()
        wrong[0] = wrong[0] if name != "masked_lm_weights" else 0
        wrong[place] = 1 - wrong[place]
        with pytest.raises(tf.errors.InvalidArgumentError, match="parts are out of order"):
            compact.to_words({**features, name: tf.constant(wrong)})


def test_an_evaluation_rule_counts_sequences(make_config):
    shared = dict(eval_rule="mlperf_1.0", num_steps_per_epoch=1000, steps_per_loop=1)
    plain = make_config(**shared, train_batch_size=3072)
    rows = make_config(**shared, train_batch_size=1536, pack_on_the_fly=True, average_sequences_per_pack=2.0)
    assert rows.steps_between_eval == plain.steps_between_eval
