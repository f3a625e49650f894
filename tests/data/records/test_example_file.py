"""Files of records that are written without TensorFlow: the bytes are those that TensorFlow writes."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from official.data import compiled
from official.data.records import encoding, shard_files
from official.io import native_library
from tests import programs
from tests.data.pretraining.test_creation import WORDS, make_text, write
from tests.data.records.test_records import make_examples, static_mask_examples
from tests.fixtures import ROOT

LIBRARY = compiled.library  # also where a fixture of the module has replaced it


def wide(examples, words):
    """Returns examples whose ids take one to three bytes, zeros among them."""
    rng = np.random.default_rng(5)
    ids = rng.choice([0, 1, 127, 128, 16383, 16384, words - 1], examples.input_ids.shape)
    labels = np.where(examples.labels > 0, rng.integers(0, words, examples.labels.shape), 0)
    return dataclasses.replace(examples, input_ids=ids.astype(np.int32), labels=labels.astype(np.int32))


def short(examples):
    return dataclasses.replace(examples, input_ids=examples.input_ids.astype(np.uint16))


CASES = (
    ("plain", make_examples(300)),
    ("plain", wide(make_examples(70), encoding.LIMIT)),
    ("plain", short(wide(make_examples(70), 1 << 16))),
    ("compact", make_examples(300)),
    ("remask", static_mask_examples(300)),
)


@pytest.mark.usefixtures("with_and_without_library")
def test_files_are_those_of_tensorflows_writer(tmp_path):
    for kind, examples in CASES:
        for size in (1, 128, 300):
            batches = [
                dataclasses.replace(
                    examples, **{name: value[at : at + size] for name, value in vars(examples).items()}
                )
                for at in range(0, len(examples), size)
            ]
            with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
                for record in (record for each in batches for record in encoding.encode(each, kind)):
                    writer.write(record)
            with shard_files.writing(str(tmp_path / "ours"), kind) as write:
                for each in batches:
                    write(each)
            assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes(), (kind, size)
    with pytest.raises(OSError):  # a full disk
        with shard_files.writing("/dev/full", "plain") as write:
            for _ in range(200):  # more than a buffer
                write(make_examples(100))


@pytest.mark.usefixtures("with_and_without_library")
def test_values_that_records_do_not_hold_are_refused(tmp_path):
    for field, value in itertools.product(("input_ids", "labels", "positions"), (-1, encoding.LIMIT)):
        examples = wide(make_examples(3), encoding.LIMIT)
        getattr(examples, field)[1, 0] = value
        with pytest.raises(ValueError, match="input_ids|masked_lm|out of range"):
            with shard_files.writing(str(tmp_path / "x"), "plain") as write:
                write(examples)


def test_counts_that_do_not_fit_into_a_row_do_not_leave_the_memory():
    library = LIBRARY() or pytest.skip("there is no C++ compiler")
    for field, count in itertools.product(("lengths", "first_lengths", "predictions"), (-1, 1 << 40)):
        examples = make_examples(3)
        getattr(examples, field)[1] = count
        with pytest.raises(ValueError, match="out of range"):
            shard_files.plain_records(library, examples)


def test_a_job_does_not_load_tensorflow(tmp_path):
    LIBRARY() or pytest.skip("there is no C++ compiler")
    write(tmp_path / "vocab.txt", "\n".join(WORDS))
    make_text(tmp_path / "text.txt", 40)
    flags = ["--input_files=text.txt", "--vocab_file=vocab.txt", "--output_dir=out", "--num_workers=1"]
    flags += ["--max_seq_length=16", "--max_predictions_per_seq=2", "--num_shards=2", "--overwrite"]
    code = """
import sys
from official.cli import text
flags = sys.argv[:]
for kind in ("plain", "compact"):
    sys.argv = [*flags, f"--record_format={kind}"]
    text.run_create()
assert not {"tensorflow", "tensorflow_text"} & set(sys.modules)
"""
    done = programs.run("-c", code, *flags, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_without_a_compiler_a_line_says_so(monkeypatch, caplog):
    def fail(*_, **__):
        raise native_library.NotBuilt("there is no C++ compiler")

    monkeypatch.setattr(native_library, "built", fail)
    with caplog.at_level("INFO"):
        assert LIBRARY.__wrapped__() is None
    assert "without a compiled library: there is no C++ compiler" in caplog.text
