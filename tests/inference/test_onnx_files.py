"""Models as ONNX files in ONNX Runtime and OpenVINO: they compute what TensorFlow computes."""

import dataclasses
import multiprocessing
import os
import pathlib
import shutil
import sys
import time

import numpy as np
import pytest

from official.config import BertConfig, ConfigError
from official.inference import backends, onnx_files
from official.inference import source as source_lib
from official.inference.rows import Rows
from official.io import writing
from tests.fixtures import TINY, slow
from tests.inference.test_tensorflow_backend import CONFIG, rows_of

BACKENDS = ("onnxruntime", "openvino")
HEADS = ("answer", "classify", "embed", "fill_mask")
ONE = {**TINY, "num_hidden_layers": 1, "max_position_embeddings": 64, "initializer_range": 0.2}
ONE |= {"vocab_size": CONFIG.vocab_size}


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(autouse=True)
def kept(caches, monkeypatch):
    """Exports of this module are made once."""
    monkeypatch.setenv("BERT_CACHE_DIR", str(caches))


def need(backend: str) -> None:
    for name in ("onnx", "tf2onnx", backend):
        pytest.importorskip(name, reason=f"{name} is not installed (pip install '.[{backend}]')")


def ragged(head: str, *more: int) -> Rows:
    made = rows_of([40, 1, 17, 16, 60, 3, *more])
    return made if head == "fill_mask" else made._replace(masked_M=None)


def outputs(source, head: str, rows: Rows, backend: str, dtype: str = "fp32", calibration=()) -> dict:
    threads = None if backend == "tensorflow" else 1  # that one computes in this process already
    settings = backends.Settings(backend, dtype, threads=threads, calibration=calibration)
    return backends.build(source, head, settings)(rows)


def assert_equal(source, head: str, backend: str) -> None:
    rows = ragged(head, *[40, 1, 17, 16, 60, 3] * 7)
    expected = outputs(source, head, rows, "tensorflow")
    given = outputs(source, head, rows, backend)
    assert given.keys() == expected.keys()
    for name, values in expected.items():
        assert given[name].shape == values.shape and given[name].dtype == np.float32
        assert np.abs(values).max() > 0.1
        np.testing.assert_allclose(given[name], values, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "head,backend", [*zip(HEADS[:2], BACKENDS), *(slow(*pair) for pair in zip(HEADS[2:], BACKENDS))]
)
def test_every_head_is_that_of_tensorflow(head, backend):
    need(backend)
    assert_equal(source_lib.random_source(BertConfig(**ONE), head, 3), head, backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_blocks_are_those_of_tensorflow(backend):
    need(backend)
    for changed in (
        {"block_type": "groupbert"},
        {"hidden_act": "relu"},
        {"hidden_act": "gelu_erf", "use_qkv_bias": False, "use_attention_projection_bias": False},
    ):
        source = source_lib.random_source(BertConfig(**{**ONE, **changed}), "fill_mask")
        assert_equal(source, "fill_mask", backend)


@pytest.mark.parametrize(
    "activation,contrib",
    [("gelu_tanh", False), ("gelu_tanh", True), slow("gelu_erf", False), ("gelu_erf", True)],
)
def test_what_runtimes_fuse_is_one_operation(activation, contrib):
    """Of every block: two LayerNorms, one GELU, one product for query, key and value, no sizes of shapes.
    The head has a product, too."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    need("onnxruntime")
    source = source_lib.random_source(BertConfig(**{**ONE, "hidden_act": activation}), "answer")
    path = onnx_files.path_of(source, "answer", backends.Settings("onnxruntime"), contrib)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count("LayerNormalization") == 3 and kinds.count("Gelu") == 1
    assert kinds.count("MatMul") == (4 if contrib else 7) and kinds.count("Attention") == contrib
    assert kinds.count("Shape") == 1 and kinds.count("Cast") <= 2  # positions; mask


@pytest.mark.parametrize("backend", BACKENDS)
def test_int8_is_close_and_not_the_same(backend):
    need(backend)
    need("onnxruntime")
    source, rows = source_lib.random_source(BertConfig(**ONE), "answer"), ragged("answer")
    expected = outputs(source, "answer", rows, "tensorflow")
    given = outputs(source, "answer", rows, backend, "int8", [ragged("answer", 9), rows])
    for name, values in expected.items():
        apart = np.abs(given[name] - values).max()
        assert 1e-4 < apart < 0.1 * np.abs(values).max()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_package_that_is_missing_is_named_in_one_line(backend, monkeypatch):
    need(backend)
    for name in ("tf2onnx", backend):
        with monkeypatch.context() as missing, pytest.raises(ConfigError) as error:
            missing.setitem(sys.modules, name, None)
            missing.delitem(sys.modules, "tf2onnx.convert", raising=False)
            backends.build(None, "answer", backends.Settings(backend))
        told = f"needs the package {name}: pip install '.[{backend}]' in the source folder."
        assert str(error.value) == f"--backend={backend} {told}"


def test_other_weights_sizes_and_heads_are_other_files(monkeypatch):
    need("onnxruntime")
    keys = []
    monkeypatch.setattr(onnx_files, "folder_of", lambda made_of, make: keys.append(made_of) or "folder")
    source, again, other = (source_lib.random_source(BertConfig(**ONE), "answer", seed=n) for n in (0, 0, 1))
    relu = dataclasses.replace(source, bert=BertConfig(**{**ONE, "hidden_act": "relu"}))
    asked = (source, "answer"), (again, "answer"), (other, "answer"), (source, "embed"), (relu, "answer")
    for made, head in asked:
        onnx_files.path_of(made, head, backends.Settings("onnxruntime"), False)
    assert keys[0] == keys[1] and all(keys[0] != key for key in keys[2:])


# ------------------------------------------------------------------------------------------------------------
# The cache


def write(folder: str, content: str = "whole") -> None:
    pathlib.Path(folder, "file").write_text(content)


def content_of(folder: str) -> str:
    return pathlib.Path(folder, "file").read_text()


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path))
    return tmp_path / "exports"


def test_files_are_made_once_and_damaged_ones_anew(root):
    folder = onnx_files.folder_of({"name": "a"}, write)
    assert os.path.dirname(folder) == str(root)
    assert onnx_files.folder_of({"name": "a"}, lambda folder: pytest.fail("made again")) == folder
    assert onnx_files.folder_of({"name": "b"}, write) != folder
    for name, content in (("file", "wh"), ("file", "while"), ("manifest.json", "{"), ("file", None)):
        path = pathlib.Path(folder, name)
        path.unlink()
        if content is not None:
            path.write_text(content)
        assert onnx_files.folder_of({"name": "a"}, write) == folder
        assert content_of(folder) == "whole" and onnx_files.is_whole(folder)


def _make(started, wait_secs: float) -> None:
    """Makes the folder, with a moment before each move of a file."""
    move_all = writing._move_all
    writing._move_all = lambda moves: [(time.sleep(0.04), move_all([move])) for move in moves]
    started.wait()
    time.sleep(wait_secs)
    folder = onnx_files.folder_of({}, lambda folder: write(folder, "the same"))
    assert content_of(folder) == "the same"


def test_processes_at_once(root):
    context = multiprocessing.get_context("fork")
    started = context.Event()
    waits = 0, 0.05, 0.055, 0.06  # the last ones come between the moves of the first one
    processes = [context.Process(target=_make, args=(started, secs)) for secs in waits]
    for process in processes:
        process.start()
    started.set()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(waits)
    (folder,) = (name for name in os.listdir(root) if not name.endswith(".lock"))
    assert sorted(os.listdir(root / folder)) == ["file", "manifest.json"]


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "file"))
    (tmp_path / "file").write_text("a file")
    with pytest.raises(ConfigError, match="file.* cannot be written"):
        onnx_files.folder_of({}, write)


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_behind_a_link_are_not_read(tmp_path, caches, monkeypatch, backend):
    need(backend)
    source, rows = source_lib.random_source(BertConfig(**ONE), "answer"), ragged("answer")
    outputs(source, "answer", rows, backend)
    monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))
    shutil.copytree(caches, tmp_path / "cache")
    for number, data in enumerate((tmp_path / "cache").rglob("model.data")):
        os.rename(data, tmp_path / str(number))
        data.symlink_to(tmp_path / str(number))
    with pytest.raises(ConfigError, match="its values are in model.data, which is a link"):
        outputs(source, "answer", rows, backend)
