"""--static_mask: masked tokens stand in front of their row. That the losses are those of gathering them is
tested with other layouts, in training."""

import numpy as np
import pytest

from official.data.records import encoding
from official.data.records import schema as schema_lib
from official.io.errors import ConfigError
from official.tasks.pretraining import PretrainingTask
from tests.conftest import write_records
from tests.data.records.test_records import LENGTH, MOST, make_examples

SIZES = dict(max_seq_length=LENGTH, max_predictions_per_seq=MOST)


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
def test_other_records_are_refused(make_config, tmp_path, kind):
    path = write_records(tmp_path / kind, encoding.encode(make_examples(16), kind))
    task = PretrainingTask(make_config(**SIZES, input_files=path, static_mask=True))
    with pytest.raises(ConfigError, match=f"--input_files holds {kind} ones: .*Write them with --remask"):
        task.find_data()
