"""--static_mask and --fit_vocabulary: records whose masked tokens stand in front, and words of records that
the model has no row for; --objective: the model, the losses, and the records that go with it."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from official import config as config_lib
from official.config.derived import check_streams
from official.data.pipeline import TrainingOrder
from official.data.records import encoding
from official.data.records import schema as schema_lib
from official.io.errors import ConfigError
from official.tasks.pretraining import PretrainingTask
from tests.data.records.test_records import LENGTH, MOST, make_examples
from tests.fixtures import write_records
from tests.modeling.models import randomised
from tests.records import without_masks
from tests.refusals import assert_refused
from tests.tasks.test_fine_tuning import found_task
from tests.tasks.test_layouts import loss_and_gradients

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
    with pytest.raises(ConfigError, match=f"--input_files holds {kind} records: .*Write them with --remask"):
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
    return {name: value.numpy() for name, value in next(iter(found_task(config).eval_dataset(COUNT))).items()}


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
    with pytest.raises(ConfigError, match=r"takes id 100 as \[UNK\].* Give --vocab_file"):
        make_config(**settings(words=50) | {"model": {"vocab_size": 50}}, fit_vocabulary=True)


def test_a_file_to_train_and_to_evaluate_on_is_told(make_config, record_files, caplog):
    files = record_files()
    for other, is_told in ((record_files(name="eval"), False), (None, False), (files, True)):
        PretrainingTask(make_config(input_files=files, eval_files=other, do_eval=True)).find_data()
        assert ("part-00000 is in --eval_files and in --input_files" in caplog.text) == is_told


def test_a_rule_of_evaluation_has_all_its_records(make_config, record_files):
    files = dict(input_files=record_files(), eval_files=record_files(name="eval"), do_eval=True)
    config = make_config(**files, eval_rule="mlperf_1.0")
    with pytest.raises(ConfigError, match="evaluates on 10,000 records, and .*eval/part-.* hold 40"):
        PretrainingTask(config).find_data()


# ------------------------------------------------------------------------------------------------------------
# Objectives


def test_masked_words_alone_are_that_part_of_both_tasks(make_config):
    """Loss, accuracy and gradients; the pooler and the next-sentence head have none."""
    both, alone = (PretrainingTask(make_config(objective=name)) for name in ("mlm_nsp", "mlm"))
    batch = next(iter(both.synthetic_dataset(4)))
    models = randomised(both.build_model()), alone.build_model()
    weights = {variable.name: variable for variable in models[0].variables}
    for variable in models[1].variables:
        variable.assign(weights[variable.name])
    found = []
    for task, model in zip((both, alone), models):
        means, gradients = loss_and_gradients(task, model, batch)
        found.append((means, dict(zip((each.name for each in model.trainable_variables), gradients))))
        assert set(task.weights(batch)) == {*task.losses} and set(means) == {*task.metrics}
    (means, expected), (own_means, gradients) = found
    assert alone.metrics == ("mlm_loss", "mlm_accuracy")
    assert own_means == pytest.approx({name: means[name] for name in alone.metrics}, rel=1e-6)
    others = {name for name in expected if "pooler" in name or "seq_relationship" in name}
    assert gradients.keys() == expected.keys() - others and len(others) == 4
    for name, gradient in gradients.items():
        one, other = (tf.convert_to_tensor(each).numpy() for each in (gradient, expected[name]))
        scale = 1.0 if "key/bias" in name else np.abs(other).max()
        np.testing.assert_allclose(one, other, atol=1e-5 * scale, rtol=0, err_msg=name)


def test_records_and_objectives_that_go_together(make_config, tmp_path):
    """Pairs serve both. Texts without pairs have no next-sentence task, as the manifest beside them says."""
    made, paths = make_examples(16), {}
    texts = dataclasses.replace(made, first_lengths=made.lengths, is_random=np.zeros(16, bool))
    written = (("pairs", made, "mlm_nsp"), ("texts", texts, "mlm"), ("unknown", texts, None))
    for name, examples, objective in written:
        (tmp_path / name).mkdir()
        paths[name] = write_records(tmp_path / name / "a.tfrecord", encoding.encode(examples, "plain"))
        if objective:
            (tmp_path / name / "manifest.json").write_text(json.dumps({"flags": {"objective": objective}}))

    def find(names, objective, types=2):
        files = ",".join(paths[name] for name in names.split())
        model = {"type_vocab_size": types}
        config = make_config(**SIZES, model=model, input_files=files, objective=objective)
        return PretrainingTask(config).find_data()

    fitting = (("pairs", "mlm_nsp"), ("unknown", "mlm_nsp"), ("pairs texts", "mlm"), ("texts", "mlm", 1))
    for names, *others in fitting:
        assert len(find(names, *others)) == len(names.split())
    cases = (
        ("texts", "mlm_nsp", f"texts without pairs: {paths['texts']}. Give --objective=mlm"),
        ("pairs texts", "mlm_nsp", "texts without pairs"),
        ("texts", "mlm_nsp", 1, "has pairs of texts, and the model type_vocab_size=1"),
        ("pairs", "mlm", 1, "feature segment_ids has values from 0 to 1, expected 0 to 0"),
    )
    assert_refused(find, cases)


# ------------------------------------------------------------------------------------------------------------
# Masks drawn in training


@pytest.fixture(name="bare")
def fixture_bare(tmp_path):
    """Returns settings of a run on records without masks, with their vocabulary beside them."""
    made = without_masks(make_examples(COUNT, words=ROWS))
    folder = tmp_path / "bare"
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(5, ROWS))]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    path = write_records(folder / "a.tfrecord", encoding.encode(made, "compact"))
    sizes = dict(max_seq_length=LENGTH, max_predictions_per_seq=20, model={"vocab_size": ROWS})
    return dict(sizes, input_files=path, objective="mlm")


@pytest.mark.slow
def test_the_share_of_masks_is_that_of_the_run_and_of_evaluation_its_own(make_config, bare):
    """In plain, packed and synthetic rows, and with the vocabulary that lies beside the records."""
    bare |= dict(do_eval=True, num_eval_samples=COUNT)
    seen = []
    for settings, slots, spare in (
        ({}, 8, 0),  # 0.3 x 24 = 7.2
        (dict(mask_share=0.5, do_whole_word_mask=True, seed=3), 12, 0),
        (dict(mask_share=0.5, pack_on_the_fly=True), 12, 2),
        (dict(mask_share=0.5, input_files=None, use_synthetic_data=True), 12, 0),
    ):
        config = make_config(**{**bare, **settings})
        task = found_task(config) if not config.use_synthetic_data else PretrainingTask(config)
        batch = next(iter(task.train_dataset(8, 8, TrainingOrder(config.seed))))
        held_out = next(iter(task.eval_dataset(COUNT)))
        assert batch["masked_lm_ids"].shape[1] == slots + spare
        assert held_out["masked_lm_ids"].shape[1] == 4 + spare
        assert set(next(iter(task.synthetic_dataset(8)))) == set(batch)
        if not spare and not config.use_synthetic_data:
            seen.append(held_out["input_ids"].numpy())
            assert (seen[-1] == seen[0]).all() and (seen[-1] == 4).any()
            assert task.constant_prediction()[1] > 0
            assert next(iter(task.example_dataset(4)))["masked_lm_ids"].shape == (4, 4)
    assert config_lib.max_predictions(config) == 12


def test_a_plan_counts_the_masks_that_are_drawn_for_its_records(make_config, bare, settings):
    stored = settings(words=ROWS) | dict(objective="mlm")
    for given, slots in ((bare, 8), (stored, MOST)):
        batch = next(iter(PretrainingTask(make_config(**given, plan=True)).synthetic_dataset(8)))
        assert batch["masked_lm_ids"].shape[1] == slots
    with pytest.raises(ConfigError, match="does not go with packed records without masks, .* 32 streams"):
        check_streams(make_config(**bare, data_streams=64), packs_anew=True)


def test_masks_that_are_stored_or_drawn_are_not_mixed_up(make_config, bare, settings):
    stored = settings(words=ROWS) | dict(objective="mlm")

    def find(given, **more):
        return found_task(make_config(**{**given, **more}))

    assert find(stored)._train.mask_share is None and find(bare, mask_share=0.4)._train.mask_share == 0.4
    assert find(bare, eval_files=stored["input_files"], do_eval=True, **SIZES)._eval.mask_share is None
    other = dict(vocab_size=ROWS + 200)
    cases = (
        (stored, dict(mask_share=0.3), "=0.3 draws masks, but the records of --input_files store masks"),
        (bare, dict(max_predictions_per_seq=5), "per_seq=5 is for records that store masks"),
        (bare, dict(objective="mlm_nsp"), "texts without pairs.*Give --objective=mlm"),
        (bare, dict(model=other), "drawing masks needs a vocabulary. Give --vocab_file=PATH"),
        (bare, dict(do_whole_word_mask=True), "do_whole_word_mask=True needs --mask_share"),
        (bare, dict(mask_span_length=3.0), "mask_span_length=3.0 needs --mask_share"),
        (bare, dict(mask_share=0.3, objective="mlm_nsp"), "=0.3 is not read by objective=mlm_nsp"),
        (bare, dict(mask_share=30), "Shares are fractions: 0.3 for 30 percent"),
    )
    assert_refused(lambda given, more: find(given, **more), cases)
