"""--static_mask and --fit_vocabulary: records whose masked tokens stand in front, and words of records that
the model has no row for."""

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


COUNT, ROWS, MADE_WITH = 16, 120, 200  # rows of the model, words of the records


@pytest.fixture(name="settings")
def fixture_settings(tmp_path):
    """Returns a function: (format, words) -> settings of a run over records made with so many words."""

    def write(kind: str = "plain", words: int = MADE_WITH) -> dict:
        records = encoding.encode(make_examples(COUNT, words=words), kind)
        path = write_records(tmp_path / f"{kind}.tfrecord", records)
        return dict(**SIZES, input_files=path, do_eval=True, model={"vocab_size": ROWS})

    return write


def eval_batch(config) -> dict[str, np.ndarray]:
    task = PretrainingTask(config)
    task.find_data()
    return {name: value.numpy() for name, value in next(iter(task.eval_dataset(COUNT))).items()}


@pytest.mark.parametrize("kind", ["plain", "compact"])
def test_words_beyond_the_rows_are_unknown_and_the_others_stay(make_config, settings, kind):
    given = settings(kind)
    whole = eval_batch(make_config(**{**given, "model": {"vocab_size": MADE_WITH}}))
    fitted = eval_batch(make_config(**given, fit_vocabulary=True))
    assert whole["input_ids"].max() >= ROWS and whole["masked_lm_ids"].max() >= ROWS
    for name, values in whole.items():
        is_word = name in ("input_ids", "masked_lm_ids")
        np.testing.assert_array_equal(fitted[name], np.where(is_word & (values >= ROWS), 100, values), name)


def test_rows_that_are_packed_here_are_fitted(make_config, settings):
    batch = eval_batch(make_config(**settings(), fit_vocabulary=True, pack_on_the_fly=True))
    assert batch["input_ids"].max() < ROWS and (batch["input_ids"] == 100).any()
    assert batch["masked_lm_ids"].max() < ROWS


def test_the_unknown_word_is_that_of_the_vocabulary(make_config, settings, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(5, MADE_WITH))]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    vocab_file = str(tmp_path / "vocab.txt")
    batch = eval_batch(make_config(**settings(), fit_vocabulary=True, vocab_file=vocab_file))
    assert (batch["input_ids"] == 1).any() and batch["input_ids"].max() < ROWS


def test_what_does_not_fit_is_refused(make_config, settings):
    for given, limit in ((settings(), ROWS), (settings(words=1000) | {"fit_vocabulary": True}, ROWS + 127)):
        with pytest.raises(ConfigError, match=f"input_ids has values from .* expected 0 to {limit - 1}"):
            eval_batch(make_config(**given))
    with pytest.raises(ConfigError, match=r"takes word 100 for \[UNK\].* Give --vocab_file"):
        make_config(**settings(words=50) | {"model": {"vocab_size": 50}}, fit_vocabulary=True)
