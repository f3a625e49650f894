"""What an IPU run imports: few files, for Python 3.8 and TensorFlow 2.6, which Graphcore's SDK brings."""

import pathlib
import sys

import pytest

from tests.graphcore import old_stack

pytestmark = pytest.mark.nightly

ENTRIES = ("official.graphcore.__main__",)
# What the program finds by name.
TASKS = ("official.tasks.squad", "official.tasks.classification")
LATE = ("official.graphcore.popart_lines",)
MAX_FILES = 140
MAX_LINES = 32_000
# What an import inside of a function names and such a run never comes to: it takes plain operations,
# TensorFlow's own stores where fsspec is not installed, and processes of its own machine.
NOT_REACHED = frozenset(
    {
        "official.modeling.operations.fused",
        "official.io.ray_engine",
        "official.data.pretraining.inspection",  # of records that are packed while they are read
    }
)
# What is there for data that are made up.
MADE_UP = frozenset({"official.data.generated"})
# What stands in functions that it never calls: it compiles a step as a whole, and shares no functions in it.
NOT_CALLED = {"tf.function(experimental_attributes=)", "tf.function(reduce_retracing=)"}
# Beside Python's own library.
# fsspec where it is installed; tokenizers where the vocabulary is a tokenizer.json.
PACKAGES = {"absl", "fsspec", "numpy", "tensorflow", "tokenizers", "yaml"}
PACKAGES_OF_FINE_TUNING = {"scipy", "sklearn", "tqdm"}
PACKAGES_OF_FILES = {"pyarrow", "backports"}  # where such files are read


@pytest.fixture(scope="module")
def files() -> dict[str, pathlib.Path]:
    return old_stack.closure((*ENTRIES, *TASKS, *LATE), NOT_REACHED)[0]


def test_it_is_few_files_and_needs_few_packages(files):
    with pytest.raises(AssertionError, match="official.tasks.glue"):
        old_stack.closure(("official.tasks.glue",))
    assert len(files) <= MAX_FILES, sorted(files)
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files.values()) <= MAX_LINES
    for entries, without, packages in (
        ((*ENTRIES, *TASKS, *LATE), NOT_REACHED, PACKAGES | PACKAGES_OF_FINE_TUNING | PACKAGES_OF_FILES),
        (ENTRIES, NOT_REACHED | MADE_UP, PACKAGES),
    ):
        _, others = old_stack.closure(entries, without)
        assert others - sys.stdlib_module_names <= packages


def test_python_3_8_and_tensorflow_2_6_take_it(files):
    found = {}
    for module, path in files.items():
        newer = old_stack.newer_python(path) + old_stack.newer_tensorflow(path)
        found[module] = [what for what in newer if what not in NOT_CALLED]
    assert {module: newer for module, newer in found.items() if newer} == {}


def test_newer_python_and_tensorflow_are_found(tmp_path):
    path = tmp_path / "file.py"
    for text, is_newer in {
        "Sizes = dict[str, int]": True,
        "def f(x: int | None): ...": True,
        "a = 'x.y'.strip().removesuffix('.y')": True,
        "def f(x):\n    x |= {'a': 1}": True,
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy.typing as npt": False,
        "from __future__ import annotations\ndef f(x: dict[str, int] | None): ...": False,
    }.items():
        path.write_text(text)
        old_stack.parsed.cache_clear()
        assert bool(old_stack.newer_python(path)) == is_newer, text
    for text, found in {
        "tf.keras.utils.set_random_seed(1)": ["tf.keras.utils.set_random_seed"],
        "tf.data.Dataset.rebatch": ["tf.data.Dataset.rebatch"],
        "tf.matmul(a, b, grad_a=True)": ["tf.matmul(grad_a=)"],
        "if hasattr(tf.keras, 'ops'):\n    tf.keras.ops": [],
        "tf.data.Dataset.range(3).map(f)\ntf.int32.max\ntf.errors.OpError\ntf.raw_ops.SaveV2": [],
        "tf.function(f, jit_compile=True, autograph=False)\ntf.cast(x, dtype=tf.int32, name='x')": [],
    }.items():
        path.write_text(text)
        old_stack.parsed.cache_clear()
        assert old_stack.newer_tensorflow(path) == found, text
