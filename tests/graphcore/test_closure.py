"""What an IPU run imports: few files, for Python 3.8 and TensorFlow 2.6, which Graphcore's SDK brings."""

import pathlib

import pytest

from tests.conftest import ROOT
from tests.graphcore import old_stack

pytestmark = pytest.mark.nightly

ENTRIES = ("official.graphcore.__main__",)
# What the program finds by name.
TASKS = ("official.tasks.squad", "official.tasks.glue")
LATE = ("official.graphcore.popart_lines",)
MAX_FILES = 140
MAX_LINES = 27_000
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
PACKAGES = {"absl", "fsspec", "numpy", "tensorflow", "yaml"}  # fsspec where it is installed
PACKAGES_OF_FINE_TUNING = {"scipy", "sklearn", "tokenizers", "tqdm"}


@pytest.fixture(scope="module")
def files() -> dict[str, pathlib.Path]:
    return old_stack.closure((*ENTRIES, *TASKS, *LATE), NOT_REACHED)[0]


def test_it_is_few_files_and_needs_few_packages(files):
    import sys

    assert len(files) <= MAX_FILES, sorted(files)
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files.values()) <= MAX_LINES
    for entries, without, packages in (
        ((*ENTRIES, *TASKS, *LATE), NOT_REACHED, PACKAGES | PACKAGES_OF_FINE_TUNING),
        (ENTRIES, NOT_REACHED | MADE_UP, PACKAGES),
    ):
        _, others = old_stack.closure(entries, without)
        assert others - sys.stdlib_module_names <= packages


def test_python_3_8_takes_it(files):
    found = {module: old_stack.newer_python(path) for module, path in files.items()}
    assert {module: lines for module, lines in found.items() if lines} == {}


def minimum_python(text: str) -> tuple[int, int]:
    """Returns the oldest Python that has what a text uses."""
    vermin = pytest.importorskip("vermin", reason="vermin is not installed: scripts/setup_env.sh installs it")
    return vermin.detect(text, vermin.Config())[1] or (3, 0)


def test_its_library_is_that_of_python_3_8(files):
    assert minimum_python("import functools\n\n@functools.cache\ndef f(): ...\n") == (3, 9)
    found = {module: minimum_python(path.read_text(encoding="utf-8")) for module, path in files.items()}
    assert {module: version for module, version in found.items() if version > (3, 8)} == {}


def test_tensorflow_2_6_has_the_names(files):
    found = {
        module: [
            line for line in old_stack.newer_tensorflow(path) if line.partition(": ")[2] not in NOT_CALLED
        ]
        for module, path in files.items()
    }
    assert {module: lines for module, lines in found.items() if lines} == {}


def test_newer_python_and_tensorflow_are_found(tmp_path):
    path = tmp_path / "module.py"
    for text, what in (
        ("Sizes = dict[str, int]", "dict[str, int]"),
        ("from collections.abc import Callable\nRun = Callable[[int], int]", "Callable[[int], int]"),
        ("def f(x: int | None): ...", "annotations are not postponed"),
        ("a = 'x.y'.strip().removesuffix('.y')", "'x.y'.strip().removesuffix"),
        ("a = dict(b=1) | {'c': 2}", "dict(b=1) | {'c': 2}"),
        ("a = {}\na |= {'b': 2}", "a |= {'b': 2}"),
        ("import numpy.typing as npt", "import numpy.typing as npt"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy.typing as npt", None),
        ("from __future__ import annotations\ndef f(x: dict[str, int] | None): ...", None),
    ):
        path.write_text(text + "\n")
        old_stack.parsed.cache_clear()
        found = [line.partition(": ")[2] for line in old_stack.newer_python(path)]
        assert found == ([what] if what else []), text
    for text, what in (
        ("tf.random.experimental.stateless_shuffle(x, seed)", "tf.random.experimental.stateless_shuffle"),
        ("tf.keras.utils.set_random_seed(1)", "tf.keras.utils.set_random_seed"),
        ("tf.data.Dataset.rebatch", "tf.data.Dataset.rebatch"),
        ("tf.function(f, reduce_retracing=True)", "tf.function(reduce_retracing=)"),
        ("tf.matmul(a, b, grad_a=True)", "tf.matmul(grad_a=)"),
        ("if hasattr(tf.keras, 'ops'):\n    tf.keras.ops", None),
        ("tf.data.Dataset.range(3).map(f)\ntf.int32.max\ntf.errors.OpError\ntf.raw_ops.SaveV2", None),
        ("tf.function(f, jit_compile=True, autograph=False)\ntf.cast(x, dtype=tf.int32, name='x')", None),
    ):
        path.write_text(text + "\n")
        old_stack.parsed.cache_clear()
        found = [line.partition(": ")[2] for line in old_stack.newer_tensorflow(path)]
        assert found == ([what] if what else []), text


def test_imports_are_followed_also_from_inside_of_functions():
    found, others = old_stack.closure(("official.modeling.operations",))
    assert {"official", "official.modeling.operations.fused", "official.io.signals"} <= set(found)
    assert "tensorflow" in others
    assert all(path.is_relative_to(ROOT / "official") for path in found.values())
