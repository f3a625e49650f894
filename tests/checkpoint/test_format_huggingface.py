"""Hugging Face folders: real names, round trips, what the safetensors library reads, damage, and pickles that
stay closed.
"""

import functools
import json
import os
import pathlib
import pickle

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from official.checkpoint import DamagedError, canonical, registry, sidecar_files
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.containers import hf_folder
from official.checkpoint.formats import Options, huggingface
from official.config import ConfigError
from official.io import model_folder
from tests.checkpoint.tensors import HEADS, arrays_of, assert_same, of_arrays, random_tensors, shapes_of
from tests.refusals import assert_refused


def weights(dtype=np.float32, heads=HEADS) -> dict[str, np.ndarray]:
    """Returns random numbers for every variable of a model of two layers, with heads."""
    return arrays_of(random_tensors(shapes_of((*canonical.ENCODER, *heads)), dtype, 0.1))


def named_weights(arrays=None, **options) -> tensors_lib.Tensors:
    """Returns weights under Hugging Face's names."""
    tensors = of_arrays(weights() if arrays is None else arrays)
    mapped = huggingface.from_canonical(tensors, Options.of(**options))
    assert not mapped.unmatched
    return mapped.tensors


def write_folder(folder, arrays: dict[str, np.ndarray], **options) -> str:
    options = {"num_attention_heads": 4, **options}
    huggingface.write(named_weights(arrays, **options), str(folder), Options.of(**options), lambda size: None)
    return str(folder)


def config_in(folder) -> dict:
    return json.loads((pathlib.Path(folder) / "config.json").read_text())


def read_folder(location) -> dict[str, np.ndarray]:
    mapped = huggingface.to_canonical(hf_folder.read(str(location)), Options())
    assert not mapped.unmatched
    return arrays_of(mapped.tensors)


def test_round_trip(tmp_path):
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        for prefix in (None, True, False):
            arrays, folder = weights(dtype), tmp_path / f"{np.dtype(dtype)}-{prefix}"
            write_folder(folder, arrays, hf_prefix=prefix)
            assert_same(read_folder(folder), arrays)
            assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
            names = set(hf_folder.read(str(folder)))
            assert ("bert.pooler.dense.weight" if prefix is not False else "pooler.dense.weight") in names
            # The loader makes what is tied.
            assert names.isdisjoint({"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"})


def test_the_library_reads_what_is_written(tmp_path):
    arrays = weights()
    arrays["bert/embeddings/LayerNorm/gamma"] = arrays["bert/embeddings/LayerNorm/gamma"].astype(np.float16)
    found = load_file(os.path.join(write_folder(tmp_path / "hf", arrays), "model.safetensors"))
    theirs = found["bert.encoder.layer.1.output.dense.weight"]
    np.testing.assert_array_equal(theirs, arrays["bert/encoder/layer_1/output/dense/kernel"].T)
    for theirs, ours in (
        ("cls.seq_relationship.weight", "cls/seq_relationship/output_weights"),
        ("qa_outputs.weight", "cls/squad/output_weights"),
        ("classifier.bias", "output_bias"),
        ("bert.embeddings.LayerNorm.weight", "bert/embeddings/LayerNorm/gamma"),
    ):
        np.testing.assert_array_equal(found[theirs], arrays[ours])


def test_config(tmp_path):
    for architecture, heads in {
        "BertForSequenceClassification": HEADS,
        "BertForPreTraining": canonical.PRETRAINING_HEADS,
        "BertForNextSentencePrediction": canonical.NEXT_SENTENCE_HEAD,
        "BertForQuestionAnswering": canonical.SQUAD_HEAD,
        "BertModel": (),
    }.items():
        folder = write_folder(tmp_path / architecture, weights(np.float16, heads))
        config = config_in(folder)
        assert config["architectures"] == [architecture] and config["torch_dtype"] == "float16"
        assert len(config.get("id2label", ())) == (3 if heads == HEADS else 0)
        sizes = {"vocab_size": 48, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 4}
        sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 12, "type_vocab_size": 2}
        assert sizes.items() <= hf_folder.sizes(folder).items()


def test_heads_and_vocabularies_that_do_not_fit(tmp_path):
    unknown = "the number of attention heads is unknown.*--num_attention_heads=N.*hidden_size=8"
    odd = "must be an integer that divides hidden_size=8"
    write = functools.partial(write_folder, tmp_path / "hf", weights())
    cases = [(None, unknown), *((heads, odd) for heads in (5, 0, "4", 4.0, True, [4]))]
    assert_refused(lambda heads: write(num_attention_heads=heads), cases)
    (tmp_path / "vocab.txt").write_text("\n".join(map(str, range(49))) + "\n")
    with pytest.raises(ConfigError, match="vocab.txt has 49 words, the word embeddings have 48 rows"):
        write(vocab_file=str(tmp_path / "vocab.txt"))
    assert not (tmp_path / "hf").exists()


def shard(folder: pathlib.Path) -> None:
    """Puts the weights of a folder into two files with an index."""
    arrays = load_file(folder / "model.safetensors")
    names = sorted(arrays)
    parts = {"model-00001-of-00002.safetensors": names[:10], "model-00002-of-00002.safetensors": names[10:]}
    for part, inside in parts.items():
        own = {name: np.ascontiguousarray(arrays[name]) for name in inside}
        save_file(own, folder / part, {"format": "pt"})
    weight_map = {name: part for part, inside in parts.items() for name in inside}
    content = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(content)
    (folder / "model.safetensors").unlink()


def test_parts(tmp_path):
    arrays, folder = weights(), tmp_path / "hf"
    write_folder(folder, arrays)
    shard(folder)
    for path in (folder, folder / "model.safetensors.index.json"):
        assert hf_folder.locate(str(path)) == str(folder)
    assert_same(read_folder(folder), arrays)
    assert len(hf_folder.files(str(folder))) == 4


def test_damaged_parts(tmp_path):
    first, index = "model-00001-of-00002.safetensors", "model.safetensors.index.json"
    for damage, message in (
        (lambda folder: (folder / index).write_text("{"), "index.json cannot be read"),
        (lambda folder: (folder / index).write_text('{"weight_map": {"a": "../a"}}'), "outside its folder"),
        (lambda folder: save_file({"x": np.zeros(1)}, folder / first), "not in their files: bert.embeddings"),
    ):
        write_folder(tmp_path, weights())
        shard(tmp_path)
        damage(tmp_path)
        with pytest.raises(DamagedError, match=message):
            hf_folder.read(str(tmp_path))


def test_damaged_files(tmp_path):
    path = pathlib.Path(write_folder(tmp_path, weights())) / "model.safetensors"
    content, tensors = path.read_bytes(), hf_folder.read(str(tmp_path))
    said = "model.safetensors: Error while deserializing header"
    for size in (0, 5, 100, -1):
        path.write_bytes(content[:size])
        with pytest.raises(DamagedError, match=said) as error:
            hf_folder.read(str(tmp_path))
        assert "\n" not in str(error.value)
        with pytest.raises(DamagedError):  # it shrinks after it was opened
            tensors["cls.predictions.bias"].read()
    head = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(8))
    with pytest.raises(DamagedError, match="a has type F8_E4M3. Supported are F64, F32"):
        hf_folder.read(str(tmp_path))


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_pickles_are_refused_unopened(tmp_path):
    folder, sprung = tmp_path / "hf", tmp_path / "sprung"
    folder.mkdir()
    for name in ("pytorch_model.bin", "model.pt"):
        (folder / name).write_bytes(pickle.dumps(Trap(sprung)))
        said = "pickle files are not read.*safetensors"
        assert_refused(hf_folder.locate, [(str(path), said) for path in (folder, folder / name)])
        assert not sprung.exists()
    pickle.loads((folder / name).read_bytes()).close()
    assert sprung.exists()  # the trap works


def test_other_folders_are_left_to_other_formats(tmp_path):
    assert hf_folder.locate(str(tmp_path)) is None and hf_folder.locate(str(tmp_path / "ckpt")) is None
    for name in ("bert_model.ckpt.index", "pytorch_model.bin"):
        (tmp_path / name).touch()
    assert hf_folder.locate(str(tmp_path)) is None


def test_weights_of_other_kinds_are_named(tmp_path):
    """Of TF Hub, Keras and Flax, of transformers 4 and keras-hub."""
    cases = []
    for name in ("saved_model.pb", "tf_model.h5", "model.weights.h5", "flax_model.msgpack"):
        folder = tmp_path / name.replace(".", "_")
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / name).touch()
        cases += [(path, f"the weights in {name} are not read") for path in (folder, folder / name)]
    assert_refused(lambda path: registry.open_checkpoint(str(path), "PATH"), cases)


def test_old_names_and_tied_copies():
    old = named_weights()
    for today, once in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        old = {name.replace(today, once): tensor for name, tensor in old.items()}
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = old["cls.predictions.bias"]
    mapped = huggingface.to_canonical(old, Options())
    assert set(mapped.tensors) == set(weights()) and not mapped.unmatched
    assert mapped.dropped == {
        "cls.predictions.decoder.weight": "a copy of the word embeddings, tied",
        "cls.predictions.decoder.bias": "a copy of cls.predictions.bias, tied",
    }
    del old["cls.predictions.bias"]
    mapped = huggingface.to_canonical(old, Options())
    assert mapped.tensors["cls/predictions/output_bias"] is old["cls.predictions.decoder.bias"]
    twice = named_weights()
    twice["pooler.dense.bias"] = twice["bert.pooler.dense.bias"]
    assert huggingface.to_canonical(twice, Options()).unmatched == ["pooler.dense.bias"]


def test_what_another_model_computes_is_refused_on_reading(tmp_path):
    folder = write_folder(tmp_path, weights())
    config = config_in(folder)
    other = "BertForLinkPrediction"
    for values, message in (
        ({"layer_norm_eps": 0}, "layer_norm_eps=0"),
        ({"architectures": [other]}, f"architectures={other} is not supported"),
        ({"model_type": "albert"}, "model_type='albert' is not supported, only 'bert'"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | values))
        locations = (folder, os.path.join(folder, "model.safetensors"))
        assert_refused(hf_folder.read, [(location, message) for location in locations])
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(ConfigError, match="not a JSON file"):
        hf_folder.sizes(folder)
    (tmp_path / "config.json").write_text("{}")
    assert hf_folder.read(folder)
    (tmp_path / "config.json").unlink()
    assert hf_folder.read(folder) and hf_folder.sizes(folder) == {}


def test_an_untied_output_layer_is_refused():
    words, bias = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
    for copy, original in (("decoder.weight", words), ("decoder.bias", bias)):
        for prefix in (True, False):
            tensors, name = named_weights(hf_prefix=prefix), f"cls.predictions.{copy}"
            values = tensors[original if prefix else original.removeprefix("bert.")].read()
            mapped = huggingface.to_canonical(tensors | of_arrays({name: values.copy()}), Options())
            assert list(mapped.dropped) == [name] and not mapped.unmatched
            for other in (values + 1, values[:-1]):
                with pytest.raises(ConfigError, match=f"{name} differs from {original}"):
                    huggingface.to_canonical(tensors | of_arrays({name: other}), Options())


def test_files_of_others_are_neither_counted_nor_removed(tmp_path):
    strangers = {"model2.safetensors", "model-1.safetensors"}
    strangers |= {f"{name}.vocab_rows.safetensors" for name in ("model.ckpt-7", "model.safetensors")}
    for name in strangers:
        (tmp_path / name).touch()
    assert not hf_folder.files(str(tmp_path))
    write_folder(tmp_path, weights())
    found = [os.path.basename(path) for path in hf_folder.files(str(tmp_path))]
    assert found == ["config.json", "model.safetensors"] and strangers < set(os.listdir(tmp_path))


def test_settings_are_written_and_read_by_the_names_that_transformers_gives_them(tmp_path):
    numbered = ["LABEL_0", "LABEL_1", "LABEL_2"]
    for labels, kind, names in (
        (("no", "maybe", "yes"), "single_label_classification", ["no", "maybe", "yes"]),
        (None, None, numbered),
        (("no", "yes"), None, numbered),
    ):
        folder = write_folder(tmp_path, weights(), labels=labels, problem_type=kind)
        config = config_in(folder)
        assert list(config["id2label"].values()) == names and config["label2id"][names[2]] == 2
        assert config.get("problem_type") == kind
        told = tuple(names) if names != numbered else None
        assert model_folder.labels_of_config(folder) == {"labels": told, "problem_type": kind}
    written = {None: "gelu_new", "gelu_tanh": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}
    for ours, theirs in written.items():
        folder = write_folder(tmp_path, weights(), hidden_act=ours, layer_norm_eps=1e-5)
        assert config_in(folder)["hidden_act"] == theirs
        sizes = hf_folder.sizes(folder)
        assert sizes["hidden_act"] == (ours or "gelu_tanh") and sizes["layer_norm_eps"] == 1e-5
        assert hf_folder.read(folder)
    for theirs, ours in (("gelu_python", "gelu_erf"), (None, "gelu_erf"), ("gelu_pytorch_tanh", "gelu_tanh")):
        values = {"model_type": "bert", **({"hidden_act": theirs} if theirs else {})}
        (tmp_path / "config.json").write_text(json.dumps(values))
        assert hf_folder.sizes(str(tmp_path))["hidden_act"] == ours, theirs
    of_2019 = {"hidden_act": "gelu", "hidden_size": 8, "num_attention_heads": 4}  # as SciBERT's
    of_2019 |= {"cell": {}, "emb_size": 8, "pre_trained": "", "structure": []}  # and TinyBERT's
    (tmp_path / "config.json").write_text(json.dumps(of_2019))
    checkpoint = registry.open_checkpoint(str(tmp_path), "PATH")
    assert sidecar_files.with_settings(Options(), checkpoint).hidden_act == "gelu_erf"
