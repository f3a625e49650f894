"""Shared by all tests: eight logical CPUs (made once in a process), small models, records."""

import atexit
import contextlib
import gc
import os
import pathlib
import shutil
import signal
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.framework import config as tf_config  # has no public way to switch determinism off
from tensorflow.python.framework import ops as tf_ops  # nor to forget gradients
from tensorflow.python.util import tf_stack

from official import config as config_lib
from official.data.records import schema as schema_lib
from official.io import signals, writing
from tests.records import serialize_example

ROOT = pathlib.Path(__file__).resolve().parents[1]
TEST_DATA = pathlib.Path(os.environ.get("BERT_TEST_DATA", ROOT.parent / "shared" / "data"))

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, which may have started the tests, is none of theirs

# What the user has measured and exported has no part in tests, nor have they in that. Compiled libraries are
# the user's: their names say what they were made of, and to compile them takes each process 35 s.
CACHE = tempfile.mkdtemp(prefix="bert-cache-")
with contextlib.suppress(OSError):  # else each process compiles its own
    os.symlink(writing.private("native"), os.path.join(CACHE, "native"))
os.environ["BERT_CACHE_DIR"] = CACHE
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)

FSYNC = os.fsync
os.fsync = lambda descriptor: None  # no test cuts the power, and some write thousands of small files

# TensorFlow notes the stack of Python that made each operation of a graph, for its messages: a ninth of the
# time of a test that traces. One stack does for all.
STACK = tf_stack.extract_stack()
tf_stack.extract_stack = lambda stacklevel=1: STACK

# Looking for cycles among the objects of TensorFlow, which stay, takes a twentieth of the time.
gc.freeze()
gc.set_threshold(10_000, 10, 10)

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)

TINY = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
TINY |= dict(max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def slow(*values):
    """Returns a parameter set whose test is one of the slow ones."""
    return pytest.param(*values, marks=pytest.mark.slow)


def pytest_collection_modifyitems(items):
    """Puts the files in tests/ itself first: they take long, and one worker would wait for the other."""
    items.sort(key=lambda item: item.path.parent != ROOT / "tests")


@pytest.fixture(autouse=True)
def _plain_tensorflow():
    """Undoes the precision and the determinism that a test has set. No code of the package needs AutoGraph,
    which a run switches off, too: converting functions takes a tenth of the time of a test of datasets."""
    with ag_ctx.ControlStatusCtx(ag_ctx.Status.DISABLED):
        yield
    tf.keras.mixed_precision.set_global_policy("float32")
    tf_config.disable_op_determinism()


@pytest.fixture(autouse=True)
def _graphs_end():
    """Lets the graphs of a test end. TensorFlow registers each call of a `tf.custom_gradient` for ever, with
    the graph that it was traced in: 16 GB in a process of the slow tests."""
    yield
    registry = tf_ops.gradient_registry._registry
    for name in [name for name in registry if name.startswith("CustomGradient-")]:
        del registry[name]


@pytest.fixture(autouse=True)
def _nobody_watches_signals():
    """Ends the watch for signals that a test has begun as a command does, for the whole process: what one
    signal has said would stay said."""
    yield
    if signals._state.undo:
        signals._state.undo()


@pytest.fixture
def make_config(tmp_path):
    """Returns a function that builds a small configuration on synthetic data; arguments override its
    settings."""

    def make(model: dict | None = None, **settings):
        defaults = dict(model={**TINY, **(model or {})}, model_dir=str(tmp_path / "run"))
        defaults |= dict(max_seq_length=16, max_predictions_per_seq=3, train_batch_size=8, eval_batch_size=8)
        defaults |= dict(num_steps_per_epoch=20, num_train_epochs=1, steps_per_loop=5, warmup_steps=0)
        defaults |= dict(learning_rate=1e-2, optimizer_type="lamb", distribution_strategy="one_device")
        if "input_files" not in settings:
            defaults["use_synthetic_data"] = True
        return config_lib.build_config([("test", {**defaults, **settings})])

    return make


def make_records(count: int, seed: int, schema, vocab_size: int = TINY["vocab_size"]) -> list[bytes]:
    """Returns serialized records that can be learned: a masked token is the one before it plus one."""
    generator = np.random.default_rng(seed)
    length, predictions = schema["input_ids"].length, schema["masked_lm_ids"].length
    records = []
    for number in range(count):
        ids = 5 + (generator.integers(0, vocab_size) + np.arange(length)) % (vocab_size - 5)
        positions = np.sort(generator.choice(np.arange(1, length), predictions, replace=False))
        masked = ids.copy()
        masked[positions] = 4
        masked[0] = number % vocab_size  # tells records apart
        weights = np.ones(predictions)
        weights[generator.integers(1, predictions + 1) :] = 0
        segments = (np.arange(length) >= length // 2).astype(int)
        values = dict(input_ids=masked, input_mask=np.ones(length, int), segment_ids=segments)
        values |= dict(masked_lm_positions=positions, masked_lm_ids=ids[positions] * (weights > 0))
        values |= dict(masked_lm_weights=weights, next_sentence_labels=[int(generator.integers(0, 2))])
        records.append(serialize_example(values, schema))
    return records


def write_records(path, records) -> str:
    """Writes a TFRecord file and returns its path."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


@pytest.fixture
def schema():
    return schema_lib.pretraining_schema(16, 3)


@pytest.fixture
def record_files(tmp_path, schema):
    """Returns a function that writes files of records and returns their glob."""

    def write(files: int = 2, records: int = 20, name: str = "train", of_schema=None):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for index in range(files):
            write_records(
                folder / f"part-{index:05d}", make_records(records, seed=index, schema=of_schema or schema)
            )
        return str(folder / "part-*")

    return write
