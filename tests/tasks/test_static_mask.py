"""--static_mask: the masked-LM head slices, and the losses are those of gathering."""

import numpy as np
import pytest
import tensorflow as tf

from official.data.records import encoding
from official.data.records import schema as schema_lib
from official.io.errors import ConfigError
from official.tasks.pretraining import PretrainingTask
from tests.data.records.test_records import LENGTH, MOST, make_examples, static_mask_examples

COUNT = 16
SIZES = dict(max_seq_length=LENGTH, max_predictions_per_seq=MOST)


@pytest.fixture(name="records")
def fixture_records(tmp_path):
    """Returns a function: format -> file of such records."""

    def write(kind: str) -> str:
        examples = static_mask_examples(COUNT) if kind == "remask" else make_examples(COUNT)
        path = str(tmp_path / f"{kind}.tfrecord")
        with tf.io.TFRecordWriter(path) as writer:
            for record in encoding.encode(examples, kind):
                writer.write(record)
        return path

    return write


def losses_and_gradients(config, model_of: list) -> tuple[dict, list, set]:
    """Returns the terms of the evaluation batch, the gradients of their losses, and the kinds of operations;
    `model_of` holds the model of both calls."""
    task = PretrainingTask(config)
    task.find_data()
    model = model_of[0] if model_of else task.build_model()
    model_of[:] = [model]
    batch = next(iter(task.eval_dataset(COUNT)))

    @tf.function
    def run(batch):
        with tf.GradientTape() as tape:
            terms = task.terms(model(batch), batch)
            total = terms["mlm_loss"][0] + terms["nsp_loss"][0]
        return terms, tape.gradient(total, model.trainable_variables)

    terms, gradients = run(batch)
    return terms, gradients, set(batch)


@pytest.mark.parametrize("kernels", ["fused", "plain"])
def test_losses_and_gradients_are_those_of_gathering(make_config, records, kernels):
    settings = dict(**SIZES, input_files=records("remask"), do_eval=True, kernels=kernels)
    models: list = []
    terms, gradients, names = losses_and_gradients(make_config(**settings), models)
    ours, sliced, static_names = losses_and_gradients(make_config(**settings, static_mask=True), models)
    assert "masked_lm_positions" in names and "masked_lm_positions" not in static_names
    for name, (total, weight) in terms.items():
        np.testing.assert_allclose(ours[name][0], total, rtol=1e-5, err_msg=name)
        assert float(ours[name][1]) == float(weight)
    for one, other, variable in zip(gradients, sliced, models[0].trainable_variables):
        one, other = map(tf.convert_to_tensor, (one, other))
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=2e-5, err_msg=variable.name)


def test_the_synthetic_rows_are_of_that_kind(make_config):
    task = PretrainingTask(make_config(**SIZES, static_mask=True))
    batch = next(iter(task.synthetic_dataset(4)))
    schema = schema_lib.static_schema(LENGTH, MOST)
    assert set(batch) == {*schema, "example_weights"}
    places = batch["position_ids"].numpy()
    assert (np.sort(places, axis=1) == np.arange(LENGTH)).all()
    assert (np.diff(places[:, :MOST]) > 0).all() and (np.diff(places[:, MOST:]) > 0).all()
    segments = batch["segment_ids"].numpy()
    np.testing.assert_array_equal(segments, places >= LENGTH // 2)
    assert task.terms(task.build_model()(batch), batch)["nsp_loss"][1] == 4


@pytest.mark.parametrize("kind", ["plain", "compact"])
def test_other_records_are_refused(make_config, records, kind):
    task = PretrainingTask(make_config(**SIZES, input_files=records(kind), static_mask=True))
    with pytest.raises(ConfigError, match=f"--input_files holds {kind} ones: .*Write them with --remask"):
        task.find_data()
