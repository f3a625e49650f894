"""Pre-training on rows of several sequences, and on rows without their padding: the same as on a padded row
each, counted in sequences."""

import glob
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from official import config as config_lib
from official.data.pipeline import MOST_STREAMS, TrainingOrder
from official.data.records import encoding
from official.data.records.formats import compact
from official.io.errors import ConfigError
from official.modeling import varlen
from official.planning import plan as plan_lib
from official.tasks.pretraining import PretrainingTask
from official.training import metrics_window
from official.training import run as runner
from tests.data.records.test_records import LENGTH, MOST, static_mask_examples
from tests.fixtures import slow, write_records
from tests.records import short_examples
from tests.refusals import assert_refused
from tests.run_folders import run
from tests.tasks.test_pretraining import found_task
from tests.training.conftest import EACH, FILES
from tests.training.test_training import PACKED, UNPAD, make_loop, run_steps

STATIC = dict(static_mask=True, max_seq_length=LENGTH, max_predictions_per_seq=MOST)
ELECTRA = dict(objective="electra", model=dict(family="electra", embedding_size=8))
EVERY = dict(do_eval=True, num_eval_samples=FILES * EACH)


@pytest.fixture
def given(short_files, packed_files):
    """Returns a function: kind of packed rows -> the settings of a run on them."""
    files = {"on the fly": dict(PACKED, input_files=short_files), "files": dict(input_files=packed_files)}
    return lambda kind: dict(files[kind])


# ------------------------------------------------------------------------------------------------------------
# The same as in a padded row each


def terms_and_gradients(config, model=None) -> tuple:
    """Returns the model, the terms and gradients of all sequences, and the weights that were told before."""
    task = found_task(config)
    # Of the last rows nothing counts: they only fill up the batch.
    batch = next(iter(task.eval_dataset(FILES * EACH + 1)))
    model = model or task.build_model()
    model.encoder.unpad = config.unpad
    with tf.GradientTape() as tape:
        terms = task.terms(model(batch), batch)
        total = tf.add_n([terms[name][0] / terms[name][1] for name in task.losses])
    return model, terms, tape.gradient(total, model.trainable_variables), task.weights(batch)


PLAIN, BY_SEQUENCE = dict(kernels="plain"), dict(loss_averaging_basis="persequence", objective="mlm")
QUICK = [PACKED | BY_SEQUENCE, UNPAD | STATIC]
REST = [
    PACKED | PLAIN,
    dict(UNPAD, **BY_SEQUENCE, recompute="attention"),
    PACKED | ELECTRA,
    UNPAD | PLAIN,
    STATIC | PLAIN,
    UNPAD | ELECTRA | PLAIN,
    UNPAD | STATIC | ELECTRA,
]
REST += [dict(UNPAD, recompute="block")]
REST += [dict(UNPAD, model=dict(block_type="groupbert", groupbert_conv_group_size=8))]


@pytest.mark.parametrize("settings", [*QUICK, *map(slow, REST)], ids=str)
def test_terms_and_gradients_are_those_of_padded_rows(make_config, short_files, tmp_path, settings):
    """And the losses of masked tokens that stand in front those of gathering them."""
    if "static_mask" in settings:
        records = encoding.encode(static_mask_examples(FILES * EACH), "remask")
        short_files = write_records(tmp_path / "static", records)
    config = make_config(input_files=short_files, **EVERY, **settings)
    model, ours, gradients, told = terms_and_gradients(config)
    padded = config_lib.replaced(config, unpad=False, pack_on_the_fly=False, static_mask=False)
    _, theirs, expected, _ = terms_and_gradients(padded, model)
    for name, (total, weight) in theirs.items():
        np.testing.assert_allclose(ours[name][0], total, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(ours[name][1], weight, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(told.get(name, weight), weight, rtol=1e-6)
    for variable, one, other in zip(model.trainable_variables, gradients, expected):
        one, other = tf.convert_to_tensor(one).numpy(), tf.convert_to_tensor(other).numpy()
        scale = 1.0 if "key/bias" in variable.name else np.abs(other).max()
        np.testing.assert_allclose(one, other, atol=1e-4 * scale, rtol=0, err_msg=variable.name)


@pytest.mark.slow
def test_evaluations_agree(make_config, short_files, packed_files, tmp_path):
    """Of fresh weights of one seed."""
    found, examples = [], []
    for number, settings in enumerate(
        (
            dict(input_files=short_files),
            dict(input_files=short_files, **UNPAD),
            dict(input_files=short_files, **PACKED),
            dict(input_files=packed_files),
            dict(input_files=packed_files, max_sequences_per_pack=3, **PACKED),
        )
    ):
        own = dict(EVERY, model_dir=str(tmp_path / str(number)))
        loop = make_loop(make_config(**settings, **own))
        (*sums, sequences), _ = loop._evaluated(loop.task.eval_dataset)
        assert loop.plan.is_packed == (number > 1) and sequences == FILES * EACH
        found.append(sums)
        if number < 2:
            batch = next(iter(loop.task.example_dataset(8)))
            examples.append(loop.task.example_outputs(loop.state.model, batch))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-5)
    for name, value in examples[0].items():
        np.testing.assert_allclose(examples[1][name], value, rtol=1e-4, err_msg=name)


# ------------------------------------------------------------------------------------------------------------
# Rows of several sequences


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["on the fly", "files"])
def test_steps_count_the_sequences_of_their_rows(make_config, given, kind):
    loop = make_loop(make_config(**given(kind)))
    assert loop.plan.is_packed and 1.2 < loop.plan.sequences_per_row < 2.2
    batches = list(loop.task.train_dataset(8, 8, loop.order()).take(5).as_numpy_iterator())
    sequences = sum(int(batch["example_weights"].sum()) for batch in batches)
    tokens = sum(int(batch["input_mask"].sum()) for batch in batches)
    values = loop._train(loop._train_iterator())
    assert loop.state.samples_done == values["samples"] == loop.outcome.packing.sequences == sequences
    assert loop.data_position.rows == 40 and loop.data_position.stream_sequences.sum() == sequences
    assert loop.outcome.packing.shares(16) == {
        "sequences_per_row": sequences / 40,
        "packing_efficiency": tokens / 40 / 16,
    }
    ((rate_sequences, secs),) = loop.outcome.loop_rates
    assert rate_sequences == sequences and values["sequences_per_sec"] == pytest.approx(sequences / secs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["on the fly", slow("files")])
def test_only_compiling_plans_the_rows_that_are_there(make_config, given, kind):
    text = runner.compile_only(make_config(**given(kind), compile_only=True), PretrainingTask)
    sequences = re.search(r"packed +about (\d+) sequences a step", text)
    assert sequences and 8 * 1.2 < int(sequences[1]) < 8 * 2.2
    assert ("packed before" in text) == (kind == "files")


@pytest.mark.slow
def test_synthetic_rows_have_the_form_of_those_that_are_read(make_config, given, short_files):
    """Else the warm-up would compile steps that the run does not make."""
    for settings in (given("on the fly"), given("files"), dict(given("files"), eval_files=short_files)):
        task = found_task(make_config(**settings, do_eval=True))
        order = TrainingOrder(0)
        assert task.synthetic_dataset(8).element_spec == task.train_dataset(8, 8, order).element_spec
        evaluated = task.synthetic_dataset(8, for_evaluation=True)
        assert evaluated.element_spec == task.eval_dataset(8).element_spec


def test_a_place_that_is_not_known_is_told_by_rows():
    place = metrics_window.DataPosition(24, np.arange(MOST_STREAMS))
    samples = int(np.arange(MOST_STREAMS).sum())
    saved = json.loads(json.dumps(place.to_saved()))
    again = metrics_window.position_from_saved(saved, samples, rows=1)
    assert again.rows == 24 and again.stream_sequences.tolist() == list(range(MOST_STREAMS))
    for other in ({}, {**saved, "rows_done": "x"}, {**saved, "stream_sequences": [1]}, {"first_step": 3}):
        assert metrics_window.position_from_saved(other, samples, rows=7).rows == 7
    assert metrics_window.position_from_saved(saved, samples + 1, rows=7).stream_sequences.sum() == 0


def test_an_epoch_is_once_through_the_records_that_are_counted(make_config, given, short_files, packed_files):
    """Rows of packed files, sequences of others; what fills no whole batch is left out."""
    for settings, sequences_of_rows in (
        (dict(input_files=short_files), False),
        (given("files"), True),
        (dict(given("files"), average_sequences_per_pack=1.7), True),
        (given("on the fly"), True),
    ):
        config = make_config(**settings, num_steps_per_epoch=0, train_batch_size=10)
        assert config.num_steps_per_epoch == 0
        task = found_task(config)
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


def test_numbers_that_contradict_each_other_are_refused(make_config, given, short_files):
    cases = [
        (dict(input_files=short_files, max_sequences_per_pack=3), "hold one sequence each. Drop --max_"),
        (dict(input_files=short_files, average_sequences_per_pack=2.0), "hold one sequence each. Drop --ave"),
        (dict(given("files"), max_sequences_per_pack=3), "rows of --input_files hold up to 2"),
        (dict(given("files"), **UNPAD), "rows of --input_files hold up to 2 sequences"),
    ]
    assert_refused(lambda settings: found_task(make_config(**settings)), cases)


@pytest.mark.parametrize("average", [None, slow(2.0)], ids=["counting", "training"])
def test_a_record_that_cannot_be_packed_is_named(make_config, tmp_path, average):
    """A masked token of a neighbour's; what is no token has no segment either, and is read."""
    fault = "masked_lm_positions are not ascending positions"
    for name, wrong in (("positions", (3, 0)), ("first_lengths", 3)):
        some = short_examples(EACH)
        getattr(some, name)[wrong] = 12
        path = write_records(tmp_path / name, encoding.encode(some, "plain"))
        config = make_config(input_files=path, average_sequences_per_pack=average, **PACKED)
        if name == "first_lengths":
            assert len(list(found_task(config).train_dataset(8, 8, TrainingOrder(0)).take(2))) == 2
            continue
        with pytest.raises(ConfigError, match=f"{name}, record 4: {fault}"):
            run(config)


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
    rows = make_config(**shared, **PACKED, train_batch_size=1536, average_sequences_per_pack=2.0)
    assert rows.steps_between_eval == plain.steps_between_eval


# ------------------------------------------------------------------------------------------------------------
# Rows without padding


def test_only_tokens_and_predictions_that_count_are_computed(make_config, short_files):
    """Logits are made of as many predicted tokens as have a weight, up to what fills them up."""
    task = found_task(make_config(input_files=short_files, **UNPAD))
    batch = next(iter(task.train_dataset(64, 64, TrainingOrder(0))))
    logits_QV, relation_B2 = task.build_model()(batch)
    predicted = int(tf.reduce_sum(batch["masked_lm_weights"]))
    assert predicted <= logits_QV.shape[0] < predicted + 8 <= 64 * 3 and relation_B2.shape == (64, 2)


@pytest.mark.slow
def test_sizes_are_few_and_hold_what_they_are_for():
    sizes = [int(varlen.size_for(tf.constant(count), 6144)) for count in range(6145)]
    assert all(count <= size < count + 96 for count, size in enumerate(sizes[1:], 1))
    assert len(set(sizes)) == 64 and max(sizes) == 6144
    weights = tf.constant([[1.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    numbers = varlen.find_predicted(weights)
    assert numbers.numpy().tolist() == [0, 2] + 6 * [6]
    assert varlen.pick_predicted(weights, numbers).numpy().tolist() == [1.0, 0.5] + 6 * [0.0]
    assert varlen.find_predicted(0 * weights).shape == (8,)


@pytest.mark.slow
def test_gpus_have_fewer_sizes(monkeypatch):
    """Of batches of 32 rows, most of them short. Each size is compiled."""
    generator = np.random.default_rng(1)
    batches_NB = np.clip(generator.lognormal(4.5, 0.8, [200, 32]), 3, 512).astype(np.int32)
    found = {}
    for on_cpus in (True, False):
        monkeypatch.setattr(varlen.native, "on_cpus", lambda strategy=None, answer=on_cpus: answer)
        sizes, widths = [], set()
        for lengths_B in batches_NB:
            sizes.append(int(varlen.size_for(tf.constant(lengths_B.sum()), 32 * 512)))
            laid = varlen.layout_end_to_end(tf.constant(lengths_B), sizes[-1], 2)
            widths |= {each.shape[1] for each in laid.is_token_NW}
        waste = sum(sizes) / batches_NB.sum() - 1
        found[on_cpus] = len(set(sizes)), len(widths), waste
    (sizes, widths, waste), (few_sizes, few_widths, more_waste) = found[True], found[False]
    assert 2 * few_sizes <= sizes + 2 and few_widths <= 16 and 4 * few_widths <= widths + 4, found
    assert waste < 0.05 and more_waste < 0.1, found


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [dict(dtype="bf16"), slow(dict(dtype="fp16", loss_scale="128"))], ids=str
)
def test_other_precisions(make_config, short_files, settings):
    def losses(**own):
        loop = make_loop(make_config(input_files=short_files, learning_rate=1e-3, **settings, **own))
        return run_steps(loop, loop._train_iterator(), 2)["sums"].numpy()

    np.testing.assert_allclose(losses(**UNPAD), losses(), rtol=2e-2)


@pytest.mark.slow
def test_a_plan_says_what_full_rows_cost(make_config):
    plans = [plan_lib.make_plan(make_config(unpad=unpad), PretrainingTask) for unpad in (False, True)]
    assert plans[0]["flops_per_step"] == plans[1]["flops_per_step"] > 0
    assert plans[0]["bytes"] == plans[1]["bytes"]
