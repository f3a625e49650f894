"""PopART's ONNX files: names and shapes of Graphcore's loader, round trips, what the onnx package reads,
variants and damage.
"""

import os
import pathlib
import re
import sys

import ml_dtypes
import numpy as np
import onnx
import pytest

from official.checkpoint import DamagedError, canonical, registry, sidecar_files
from official.checkpoint.containers import onnx_file
from official.checkpoint.formats import Options, popart
from official.io.errors import ConfigError
from tests.checkpoint.tensors import (
    H,
    V,
    arrays_of,
    assert_same,
    of_arrays,
    published,
    random_tensors,
    shapes_of,
    with_slots,
    zeros,
)
from tests.refusals import assert_refused

NAMES = (*canonical.ENCODER, *canonical.PRETRAINING_HEADS, *canonical.SQUAD_HEAD)


def weights(dtype=np.float32, slots: bool = False) -> dict[str, np.ndarray]:
    """Returns random numbers for all that PopART's files can hold, of a model of two layers."""
    shapes = shapes_of(NAMES)
    tensors = random_tensors(with_slots(shapes, "lamb_m", "lamb_v")) if slots else {}
    return arrays_of(tensors | random_tensors(shapes, dtype))


def write_file(path, arrays: dict[str, np.ndarray]) -> str:
    mapped = popart.from_canonical(of_arrays(arrays), Options())
    assert not mapped.unmatched
    onnx_file.write(mapped.tensors, str(path))
    return str(path)


def to_arrays(tensors) -> dict[str, np.ndarray]:
    mapped = popart.to_canonical(tensors, Options())
    assert not mapped.unmatched
    return arrays_of(mapped.tensors)


def popart_arrays(**settings) -> dict[str, np.ndarray]:
    return arrays_of(popart.from_canonical(of_arrays(weights(**settings)), Options()).tensors)


def test_the_epsilon_is_that_of_their_program_unless_a_configuration_says_it(tmp_path):
    checkpoint = registry.Checkpoint(popart.FORMAT, str(tmp_path / "x.onnx"), of_arrays(popart_arrays()))
    assert sidecar_files.with_settings(Options(), checkpoint).layer_norm_eps == 1e-3
    (tmp_path / "bert_config.json").write_text('{"layer_norm_eps": 1e-5}')
    assert sidecar_files.with_settings(Options(), checkpoint).layer_norm_eps == 1e-5


def save_model(path, initializers, **arguments) -> str:
    """Saves initializers as the onnx package does."""
    graph = onnx.helper.make_graph([], "g", [], [], initializers)
    onnx.save(onnx.helper.make_model(graph), str(path), **arguments)
    return str(path)


def test_names_and_shapes_are_graphcores():
    ours = weights(slots=True)
    found = popart_arrays(slots=True)
    prefixes = {"": "", "Accl1___": "/lamb_m", "Accl2___": "/lamb_v"}
    wanted = {prefix + name: shape for prefix in prefixes for name, shape in published("popart").items()}
    assert {name: array.shape for name, array in found.items()} == wanted
    scope = "bert/encoder/layer_1/attention/self"
    for prefix, slot in prefixes.items():
        parts = [ours[f"{scope}/{part}/kernel{slot}"] for part in ("query", "key", "value")]
        np.testing.assert_array_equal(found[f"{prefix}Layer1/Attention/QKV"], np.concatenate(parts, axis=1))
        answers = ours[f"cls/squad/output_weights{slot}"]
        np.testing.assert_array_equal(found[f"{prefix}Squad/SquadW"], answers.T)
    np.testing.assert_array_equal(found["Embedding/Embedding_Dict"], ours["bert/embeddings/word_embeddings"])
    pattern = popart.FORMAT.float32_names
    assert re.fullmatch(pattern, "Accl2___NSP/PoolW") and not re.fullmatch(pattern, "NSP/PoolW")


@pytest.mark.parametrize("limit", [onnx_file._MAX_BYTES, 1000], ids=["one file", "two files"])
def test_the_package_reads_what_is_written(limit, tmp_path, monkeypatch):
    """Values beyond the limit go to a second file."""
    monkeypatch.setattr(onnx_file, "_MAX_BYTES", limit)
    arrays = weights(np.float16, slots=True)
    path = write_file(tmp_path / "model.onnx", arrays)
    onnx.checker.check_model(path, full_check=True)
    assert onnx_file.files(path) == sorted(map(str, tmp_path.iterdir()))
    assert os.path.exists(f"{path}.data") == (limit == 1000)
    initializers = onnx.load(path).graph.initializer
    found = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in initializers}
    assert_same(found, popart_arrays(dtype=np.float16, slots=True))
    assert all(tensor.HasField("raw_data") for tensor in initializers)
    assert_same(to_arrays(onnx_file.read(path)), arrays)


def test_query_key_and_value_apart():
    for prefix in ("", "Accl1___"):
        arrays = popart_arrays(slots=True)
        for layer in (f"{prefix}Layer{number}/Attention" for number in (0, 1)):
            for ending, axis in (("", 1), ("_bias", 0)):
                parts = np.split(arrays.pop(f"{layer}/QKV{ending}"), 3, axis)
                arrays |= {f"{layer}/{name}{ending.title()}": part for name, part in zip("QKV", parts)}
            arrays[f"{layer}/Out_Bias"] = arrays.pop(f"{layer}/Out_bias")
        assert_same(to_arrays(of_arrays(arrays)), weights(slots=True))


def test_embeddings_turned_and_in_blocks():
    """As after PopART's pre-training."""
    arrays = popart_arrays(slots=True)
    turned = {
        name: np.ascontiguousarray(array.T) if "_Dict" in name and "Segment" not in name else array
        for name, array in arrays.items()
    }
    assert turned["Accl2___Embedding/Embedding_Dict"].shape == (H, V)
    assert_same(to_arrays(of_arrays(turned)), weights(slots=True))
    for turn in (False, True):
        arrays = popart_arrays(slots=True)
        for prefix in ("", "Accl1___", "Accl2___"):
            name = f"{prefix}Embedding/Embedding_Dict"
            blocks = enumerate(np.split(arrays.pop(name), 4))
            arrays |= {f"{name}/split{number}": block.T if turn else block for number, block in blocks}
        assert_same(to_arrays(of_arrays(arrays)), weights(slots=True))
        del arrays["Embedding/Embedding_Dict/split2"]
        with pytest.raises(ConfigError, match="s2"):
            popart.to_canonical(of_arrays(arrays), Options())


def test_absent_biases_are_zeros():
    arrays = {name: array for name, array in popart_arrays().items() if not name.endswith("_bias")}
    mapped = popart.to_canonical(of_arrays(arrays), Options())
    assert set(mapped.tensors) == set(weights()) and len(mapped.added) == 8
    assert not mapped.tensors["bert/encoder/layer_1/attention/self/key/bias"].read().any()


def test_of_a_part_beside_the_whole_nobody_knows_which_one_counts():
    strange = {"Embedding/Embedding_Dict/split0", "Layer1/Attention/QKV_Bias"}
    more = zeros(*strange, "Layer0/Attention/Q", shape=(1,))
    mapped = popart.to_canonical(of_arrays(popart_arrays()) | more, Options())
    assert set(mapped.unmatched) == strange | {"Layer0/Attention/QKV"}
    arrays = popart_arrays() | {"Embedding/Gamma": np.zeros([], np.float32)}  # left to the check of shapes
    assert to_arrays(of_arrays(arrays))["bert/embeddings/LayerNorm/gamma"].shape == ()


def test_values_that_are_no_raw_bytes(tmp_path):
    proto, half = onnx.TensorProto, np.arange(5, dtype=np.float16)
    bits = half.view(np.uint16).tolist()
    packed = np.append(half, np.float16(0)).view(np.int32).tolist()
    for expected, values in (
        (np.array([1, 2], np.float32), dict(data_type=proto.FLOAT, float_data=[1, 2])),
        (half, dict(data_type=proto.FLOAT16, int32_data=bits)),
        (half, dict(data_type=proto.FLOAT16, int32_data=packed)),
        (np.float16(1), dict(data_type=proto.FLOAT16, int32_data=bits[1:2])),
        (np.array([-3], np.int64), dict(data_type=proto.INT64, int64_data=[-3])),
        (np.array([1], ml_dtypes.bfloat16), dict(data_type=proto.BFLOAT16, int32_data=[0x3F80])),
    ):
        tensor = proto(name="a", dims=expected.shape, **values)
        found = onnx_file.read(save_model(tmp_path / "model.onnx", [tensor]))["a"]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found.read(), expected)


def test_values_in_a_second_file_of_the_package(tmp_path):
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in popart_arrays().items()]
    place = dict(save_as_external_data=True, location="values.bin", size_threshold=100)
    path = save_model(tmp_path / "model.onnx", tensors, **place)
    assert_same(to_arrays(onnx_file.read(path)), weights())
    # It is taken from the model's folder.
    np.array([1, 2], np.float32).tofile(tmp_path / "values.bin")
    path = save_model(tmp_path / "model.onnx", [external("a", location="/elsewhere/run7/values.bin")])
    np.testing.assert_array_equal(onnx_file.read(path)["a"].read(), [1, 2])


def test_a_second_file_that_is_a_link_or_elsewhere_is_refused(tmp_path):
    """A model from elsewhere could name any file of this machine."""
    (tmp_path / "model").mkdir()
    (tmp_path / "elsewhere").mkdir()
    for folder in ("elsewhere", "model"):
        np.array([1, 2], np.float32).tofile(tmp_path / folder / "values.bin")
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "elsewhere" / "values.bin")
    (tmp_path / "model" / "near.bin").symlink_to("values.bin")
    (tmp_path / "model" / "gone.bin").symlink_to("nothing")
    (tmp_path / "model" / "folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "other.bin").write_bytes(b"12345678")
    os.mkfifo(tmp_path / "model" / "pipe")
    links = ("near.bin", "gone.bin", "folder/values.bin", "sub/../link.bin", "/somewhere/link.bin")
    cases = [
        ("link.bin", "in link.bin, which is a link"),
        *((place, "which is a link") for place in links),
        ("../elsewhere/other.bin", "outside of the model's folder"),
        (str(tmp_path / "elsewhere" / "other.bin"), "outside of the model's folder"),
        ("pipe", "named pipe"),
    ]
    cases = [(external("a", location=place), said) for place, said in cases]
    assert_unreadable(tmp_path / "model" / "model.onnx", cases)


def test_a_truncated_file_and_another_one(tmp_path):
    path = pathlib.Path(write_file(tmp_path / "model.onnx", weights()))
    content = path.read_bytes()
    others = (b"no model at all, but text" * 50, bytes(100), b"\xff" * 100, b"\x3a\x04\x2a\x02\x42\x05")
    for damaged in (*(content[:size] for size in (0, 1, 30, 200, -1)), *others):
        path.write_bytes(damaged)
        with pytest.raises(DamagedError) as error:
            onnx_file.read(str(path))
        assert "\n" not in str(error.value)


def external(name: str, **place: str) -> onnx.TensorProto:
    """Returns two numbers whose values are in a second file."""
    proto = onnx.TensorProto(name=name, dims=[2], data_type=onnx.TensorProto.FLOAT)
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in place.items():
        proto.external_data.add(key=key, value=value)
    return proto


def assert_unreadable(path, cases) -> None:
    """Checks what is said of a file with one initializer, "a", by all that open its second file."""

    def fail(opening, initializer) -> None:
        opening(save_model(path, [initializer]))

    openings = (lambda path: onnx_file.read(path)["a"].read(), onnx_file.check_second_files)
    assert_refused(fail, [(opening, *case) for case in cases for opening in openings], DamagedError)


def test_initializers_that_are_refused(tmp_path):
    one, path = onnx.numpy_helper.from_array(np.zeros(1, np.float32), "a"), tmp_path / "model.onnx"
    cases = [
        (external("a", location="v.bin", offset="x"), "the values of a have no valid offset"),
        (external("a", location="v.bin", offset="9" * 5000), "the values of a have no valid offset"),
        (external("a\nb"), "the initializer 'a.nb'"),
        (external("a", location="v.bin"), "No such file"),
    ]
    assert_unreadable(path, cases)
    text = onnx.TensorProto(name="a", dims=[1], data_type=onnx.TensorProto.STRING, string_data=[b"x"])
    cases = [([one, one], "twice: a"), ([text], "a has type STRING. Supported are FLOAT")]
    assert_refused(lambda tensors: onnx_file.read(save_model(path, tensors)), cases, DamagedError)
    with pytest.raises(ConfigError, match="a is of type complex64"):
        onnx_file.write(of_arrays({"a": np.zeros(1, np.complex64)}), str(path))


def test_places(tmp_path):
    assert onnx_file.locate(str(tmp_path)) is None and onnx_file.locate(str(tmp_path / "a.onnx")) is None
    for name in ("model_9.onnx", "model_10.onnx"):
        (tmp_path / name).touch()
    assert onnx_file.locate(str(tmp_path)) == str(tmp_path / "model_10.onnx")
    assert onnx_file.locate(str(tmp_path / "model_9.onnx")) == str(tmp_path / "model_9.onnx")
    assert onnx_file.target("out", "a/model.ckpt-28252") == "out/model.ckpt-28252.onnx"
    assert onnx_file.target("out", "a/hf/") == "out/hf.onnx"
    assert onnx_file.target("out", "m.onnx") == "out/m.onnx"


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    path, said = str(tmp_path / "a.onnx"), r"package onnx, which is not installed: pip install '\.\[onnx\]'"
    for action in (lambda: onnx_file.read(path), lambda: onnx_file.write({}, path)):
        with pytest.raises(ConfigError, match=said):
            action()
    assert not list(tmp_path.iterdir())
