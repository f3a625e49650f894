"""Made-up data are what the readers of real data take, without a complaint."""

import numpy as np
import pytest

from official.data import generated
from official.data.generated import Text, make_vocabulary
from official.data.glue import files as files_lib
from official.data.glue import tasks
from official.data.pretraining.examples import ExampleRules
from official.data.records import files as record_files
from official.data.records import schema as schema_lib
from official.data.squad import squad_files
from official.io.errors import ConfigError
from official.tasks.pretraining import PretrainingTask


def text(seed: int = 1) -> Text:
    return Text(make_vocabulary(100, None), np.random.default_rng(seed))


def checked(files, schema) -> int:
    """Returns the number of records in files. Checks the first ones."""
    records = [record for path in files for record in record_files.read_rows(path, "plain")]
    assert not any(schema_lib.describe_example(record, schema) for record in records[:50])
    return len(records)


def test_records_are_those_of_the_schema(monkeypatch):
    monkeypatch.setattr(generated, "RECORDS", 256)
    for length, slots in ((8, 2), (128, 20)):
        rules, words = ExampleRules(length, slots, dupe_factor=1), make_vocabulary(100, None)
        pattern = generated.write_pretraining(f"ram://test-generated/{length}", words, rules, seed=3)
        files, schema = record_files.find_files(pattern), schema_lib.pretraining_schema(length, slots, 100)
        assert len(files) == 32 and checked(files, schema) == 256
        record_files.check_first_record(files, schema, "input_files")


def test_texts_are_full_rows_without_masks(make_config):
    given = dict(objective="mlm", mask_share=0.3, max_predictions_per_seq=20)  # which is the default
    files = PretrainingTask(make_config(generated_data=True, use_synthetic_data=False, **given)).find_data()
    assert checked(files, schema_lib.pretraining_schema(16, 0, 50)) == generated.RECORDS
    assert not record_files.store_masks(files)


def test_examples_have_pairs_masks_and_lengths_as_real_ones():
    vocabulary, rules = make_vocabulary(100, None), ExampleRules(64, 10, dupe_factor=1)
    examples = generated.make_examples(vocabulary, rules, seed=3)
    assert (examples.input_ids[:, 0] == vocabulary.special_ids.cls).all()
    assert 0.4 < examples.is_random.mean() < 0.6
    assert (examples.lengths == 64).mean() > 0.5 and examples.lengths.min() < 64
    assert (examples.predictions == rules.predictions(examples.lengths)).mean() > 0.99
    masked = np.take_along_axis(examples.input_ids, examples.positions, axis=1)[:, 0]
    assert 0.7 < (masked == vocabulary.special_ids.mask).mean() < 0.9
    again, other = (generated.make_examples(vocabulary, rules, seed).input_ids for seed in (3, 4))
    assert np.array_equal(examples.input_ids, again) and not np.array_equal(again, other)


def test_questions_have_their_answers_in_the_context(tmp_path):
    for with_negative, impossible in ((False, 0), (True, 400)):
        path = generated.write_squad(str(tmp_path / "train.json"), "train", text(), with_negative)
        data = squad_files.read_squad(path, "train_file", True, with_negative)
        assert len(data.questions) == 1000 and not data.skipped_questions and not data.empty_questions
        assert sum(question.is_impossible for question in data.questions) == impossible


def test_words_of_a_vocabulary_are_whole_and_special_ones_are_left_out(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join("[PAD] [UNK] [CLS] [SEP] [MASK] ##s red Red !".split()) + "\n")
    words = Text(make_vocabulary(9, str(path)), np.random.default_rng(0)).words(20, 20)
    assert set(words) == {"red"}
    with pytest.raises(ConfigError, match="generated_data: vocab_size=5 has no room"):
        make_vocabulary(5, None)


def test_tasks_of_glue_are_read_without_a_problem(tmp_path):
    for name, task in tasks.TASKS.items():
        folder = generated.write_glue(str(tmp_path / name), task, text())
        for split, count in (("train", 1000), ("dev", 100), ("test", 100)):
            rows = files_lib.read_split(task, split, folder)
            assert (len(rows), rows.problems) == (count, {})
        labels = files_lib.read_split(task, "train", folder).labels
        assert len(set(labels.tolist())) == (51 if task.labels is None else len(task.labels))
