"""Rows of several sequences: attention by sequence and by row, who sees whom, positions and pooled vectors of
the batch, spans; neighbours leave no trace in gradients."""

import numpy as np
import pytest
import tensorflow as tf

from official.config import BertConfig, encoder_options
from official.modeling import attention, varlen
from official.modeling.models import BertPretrainer, SequenceModel, SpanModel
from official.modeling.varlen import SequenceLayout
from tests.fixtures import TINY, slow
from tests.modeling import models

ROW = 24  # widths of 8, 16 and 24 tokens
ROWS = {
    "one sequence": [1] * 24,
    "one and padding": [1] * 9 + [0] * 15,
    "a width each": [1] * 8 + [2] * 16,
    "several": [1] * 3 + [2] * 10 + [3] * 5 + [4] * 2 + [0] * 4,
    "[CLS] at the end": [1] * 6 + [2] * 7 + [3] * 4 + [0] * 4 + [3, 2, 1],
    "a number left out": [2] * 11 + [0] * 3 + [5] * 9 + [0],
    "padding": [0] * 24,
}
MEMBERS = 5


@pytest.fixture(autouse=True)
def _short_rows(monkeypatch):
    monkeypatch.setattr(varlen, "MIN_ROW_LENGTH", ROW)


def batch_of(*rows: list, seed=0) -> dict:
    """Returns a batch of rows, each the numbers of its tokens' sequences; a prediction a token of them."""
    ids, generator = np.array(rows, np.int32), np.random.default_rng(seed)
    batch = models.features(batch=len(rows), length=ROW)
    tokens = [np.flatnonzero(row) if row.any() else np.zeros(1, int) for row in ids]
    cls = [[np.argmax(row == number) for number in range(1, MEMBERS + 1)] for row in ids]
    found = {
        "input_ids": batch["input_ids"],
        "segment_ids": batch["segment_ids"],
        "input_mask": np.minimum(ids, 1),
        "sequence_ids": ids,
        "position_ids": generator.integers(0, ROW, ids.shape),
        "cls_positions": [np.where(row.any(), places, 0) for row, places in zip(ids, cls)],
        "masked_lm_positions": [generator.choice(places, ROW) for places in tokens],
    }
    return {name: np.array(value, np.int32) for name, value in found.items()}


def pair(kernels: str, shared: bool = False, **changes):
    """Returns one model that computes by sequence and one by row, of the same weights."""
    config = BertConfig(**{**TINY, **changes})
    ours = models.randomised(BertPretrainer(config, kernels, shared, by_sequence=True))
    return ours, models.copy_weights(ours, BertPretrainer(config, kernels))


@pytest.mark.slow
@models.OPERATIONS
def test_by_sequence_is_by_row(kernels):
    """Every kind of row, and many sequences of a width; what a row of padding gives is nobody's."""
    many = [[1] * 7 + [2] * 8 + [3] * 6 + [0] * 3] * 4
    batch = batch_of(*(row for name, row in ROWS.items() if name != "padding"), *many)
    ours, expected = (models.outputs_and_gradients(model, batch) for model in pair(kernels, shared=True))
    models.assert_same(ours, expected, 2e-6)
    assert any(np.abs(gradient).max() > 1 for gradient in expected[1].values())


def test_many_sequences_of_a_width_are_filled_up_to_few_counts():
    counts = [varlen._filled(tf.range(count), tf.constant(99)).shape[0] for count in range(70)]
    assert counts[:9] == list(range(9))
    assert all(count <= found < 1.25 * count + 1 for count, found in enumerate(counts))
    assert len(set(counts[9:])) == 4 * 3 + 1
    assert varlen._filled(tf.range(9), tf.constant(99)).numpy().tolist() == [*range(9), 99]


def test_what_is_taken_apart_comes_together_again():
    """Random rows, in no order: tokens keep their vectors, padding gets zeros; so do gradients."""
    generator = np.random.default_rng(0)
    for most in (1, 2, 6, 20):
        ids = tf.constant(generator.integers(0, most + 1, [3, ROW]), tf.int32)
        places = varlen.layout_of_rows(ids, heads=2)
        vectors, upstream = (tf.constant(generator.normal(size=[3 * ROW * 2, 5]), tf.float32) for _ in "12")
        # The table of vectors has no row of zeros behind it here.
        reads = tuple(tf.minimum(reads, 3 * ROW * 2 - 1) for reads in places.heads.reads)
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            parts = varlen.split_sequences(vectors, places.heads._replace(reads=reads))
            together = varlen.join_sequences(parts, places.heads)
        is_token = np.repeat(ids.numpy().reshape(-1, 1) > 0, 2, axis=0)
        np.testing.assert_array_equal(together, vectors * is_token)
        found = tape.gradient(together, vectors, output_gradients=upstream)
        np.testing.assert_array_equal(found, upstream * is_token)
        tokens = sum(np.count_nonzero(part) for part in places.is_token_NW)
        assert tokens == np.count_nonzero(ids)


@pytest.mark.parametrize("kernels", [slow("plain"), "fused"])
@pytest.mark.parametrize("by_sequence", [slow(False), True], ids=["by row", "by sequence"])
def test_gradients_of_a_sequence_do_not_depend_on_its_neighbours(kernels, by_sequence):
    """The second of three gets other tokens: every gradient of the others' losses keeps its bits."""
    model = pair(kernels)[0 if by_sequence else 1]
    batch = batch_of([1] * 7 + [2] * 9 + [3] * 5 + [0] * 3)
    batch["masked_lm_positions"] = np.array([[1, 3, 17, 20, 8]], np.int32)
    other = {**batch, "input_ids": np.copy(batch["input_ids"]), "segment_ids": np.copy(batch["segment_ids"])}
    other["input_ids"][0, 7:16] = 1 + (batch["input_ids"][0, 7:16] + 11) % 40
    other["segment_ids"][0, 7:16] = 1 - batch["segment_ids"][0, 7:16]
    gradients, its_own = member_gradients(model, batch)
    gradients_other, its_own_other = member_gradients(model, other)
    for variable, gradient, changed in zip(model.trainable_variables, gradients, gradients_other):
        np.testing.assert_array_equal(gradient, changed, err_msg=variable.name)
        assert np.abs(gradient).max() > 0, variable.name
    assert not np.allclose(its_own, its_own_other)


def member_gradients(model, batch: dict):
    """Returns (the gradients of the losses of the first and the third sequence, the second's predictions)."""

    @tf.function(autograph=False)
    def run(batch):
        with tf.GradientTape() as tape:
            masked, relation = model(batch)
            loss = tf.reduce_sum(tf.sin(masked[:, :4])) + tf.reduce_sum(tf.sin(relation[:, 0:3:2]))
        return tape.gradient(loss, model.trainable_variables), masked[:, 4]

    gradients, its_own = run({name: tf.constant(value) for name, value in batch.items()})
    return [tf.convert_to_tensor(gradient).numpy() for gradient in gradients], its_own


def test_widths():
    for length, count, step in [(512, 16, 32), (384, 16, 24), (128, 16, 8), (24, 3, 8), (100, 13, 8)]:
        found = varlen.widths(length)
        assert (len(found), found[0], found[-1]) == (count, step, length) and sorted(set(found)) == found


def test_by_sequence_where_it_was_measured_and_can_be(make_config):
    def kind(length, by_sequence=True, name="sequence_ids"):
        given = {name: tf.ones([2, length], tf.int32), "input_mask": tf.ones([2, length], tf.int32)}
        return type(attention.seen(given, BertConfig(**TINY), by_sequence))

    assert kind(ROW) is SequenceLayout
    assert not {kind(ROW - 1), kind(ROW, by_sequence=False), kind(ROW, name="other")} & {SequenceLayout}
    signature = {"sequence_ids": tf.TensorSpec([None, None], tf.int32)}
    seen = tf.function(lambda ids: attention.seen(ids, BertConfig(**TINY), True))
    unknown = seen.get_concrete_function(signature)
    assert unknown.structured_outputs.shape.rank == 4
    assert encoder_options(make_config())["by_sequence"]
    assert not encoder_options(make_config(enable_xla=True))["by_sequence"]
    assert not encoder_options(make_config(kernels="plain"))["by_sequence"]


# ------------------------------------------------------------------------------------------------------------
# By row


@pytest.mark.parametrize("kernels", [slow("plain"), "fused"])
def test_packed_spans_and_classes_are_the_separate_ones(kernels):
    spans = models.randomised(SpanModel(BertConfig(**TINY), kernels))
    for together, alone in zip(spans(models.packed()), spans(models.separate())):
        for row, start, length in zip(alone, models.STARTS, models.LENGTHS):
            np.testing.assert_allclose(together[0, start : start + length], row[:length], atol=2e-6)
    classes = models.randomised(SequenceModel(BertConfig(**TINY), 3, kernels))
    np.testing.assert_allclose(classes(models.packed())[0], classes(models.separate()), atol=2e-6)


@pytest.mark.parametrize("kernels", [slow("plain"), "fused"])
def test_what_a_batch_may_say_is_what_is_taken_without(kernels):
    """Positions 0..L-1, one sequence a row and its [CLS] in front: said or not, the same bits."""
    model, batch = models.randomised(BertPretrainer(BertConfig(**TINY), kernels)), models.features()
    said = {"cls_positions": np.zeros([3, 1], np.int32)}
    said["position_ids"] = np.tile(np.arange(16, dtype=np.int32), (3, 1))
    (masked, relation), (masked_said, relation_said) = model(batch), model({**batch, **said})
    np.testing.assert_array_equal(masked, masked_said)
    np.testing.assert_array_equal(relation, relation_said[:, 0])
    tokens, spans = batch["input_mask"] > 0, models.randomised(SpanModel(BertConfig(**TINY), kernels))
    for plainly, by_number in zip(spans(batch), spans({**batch, "sequence_ids": batch["input_mask"]})):
        np.testing.assert_allclose(plainly.numpy()[tokens], by_number.numpy()[tokens], atol=2e-6)
