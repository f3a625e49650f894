"""A format is one file: a made-up one is found, converted both ways, inspected, trained from."""

import ast
import pkgutil
import re
import subprocess
import sys

import pytest

from official.checkpoint import formats, initialize, registry
from official.cli import checkpoints
from official.config import BertConfig, ConfigError
from official.modeling.models import BertPretrainer
from tests.checkpoint.tensors import assert_same, named
from tests.checkpoint.test_convert import (
    HIDDEN,
    INNER,
    LAYERS,
    WORDS,
    arrays_of,
    random_checkpoint,
    to,
    write,
)
from tests.conftest import ROOT

# Names in capitals; `--without_heads` leaves the heads out.
SHOUTED = """
from official.checkpoint import canonical, mapping
from official.checkpoint.formats import Format, Option

WITHOUT_HEADS = Option("without_heads", False, "leave the heads out.", for_target=True)
TABLE = {name: name.upper().replace("{LAYER}", "{layer}") for name in canonical.WEIGHTS}


def to_canonical(tensors, options):
    return mapping.to_canonical(TABLE, tensors, {})


def from_canonical(tensors, options):
    rules = {"(?!bert/).*": "without_heads"} if options.get(WITHOUT_HEADS) else {}
    kept, dropped = mapping.without(tensors, rules)
    mapped = mapping.from_canonical(TABLE, kept, "not shouted")
    mapped.dropped |= dropped
    return mapped


FORMAT = Format(
    name="shouted",
    title="Shouted BERT",
    container="CONTAINER",
    to_canonical=to_canonical,
    from_canonical=from_canonical,
    aliases=("loud",),
    signature="BERT/.*",
    precedence=PRECEDENCE,
    encoder_names="^BERT/",
    options=(WITHOUT_HEADS,),
    as_target={"precision": 16},
    usual_activation="relu",
)
"""


def add(monkeypatch, folder, container: str, precedence: int) -> None:
    """Adds the made-up format until the end of the test."""
    text = SHOUTED.replace("CONTAINER", container).replace("PRECEDENCE", str(precedence))
    (folder / "shouted.py").write_text(text)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(folder)])
    monkeypatch.setattr(registry, "FORMATS", registry.find_formats())
    module = sys.modules.pop("official.checkpoint.formats.shouted")
    assert registry.FORMATS["shouted"] is module.FORMAT


@pytest.fixture
def shouted(monkeypatch, tmp_path):
    add(monkeypatch, tmp_path, "bundle", 5)


@pytest.mark.parametrize("container,precedence", [("bundle", 5), ("onnx_file", 20)])
def test_it_is_converted_to_and_from(container, precedence, monkeypatch, tmp_path):
    add(monkeypatch, tmp_path, container, precedence)
    start = write(random_checkpoint(), "google", tmp_path / "a")
    there = to(start, "shouted", tmp_path / "b")
    assert there["target"]["format"] == "shouted" and not there["dropped"]
    assert "BERT/POOLER/DENSE/KERNEL" in arrays_of(there["target"]["path"])
    back = to(there["target"]["path"], "google", tmp_path / "c")
    assert back["source"]["format"] == "shouted" and back["hidden_act"] == "relu"
    assert_same(arrays_of(back["target"]["path"]), arrays_of(start))


def run(monkeypatch, *arguments) -> int:
    monkeypatch.setattr(sys, "argv", ["convert_ckpt.py", *map(str, arguments)])
    return checkpoints.run_convert()


def test_the_command_lines_know_it(shouted, monkeypatch, tmp_path, capsys):
    start = write(random_checkpoint(), "google", tmp_path / "a")
    assert run(monkeypatch, "google2loud", start, f"--output_dir={tmp_path}/b", "--without_heads") == 0
    found = checkpoints.inspect_checkpoint(str(tmp_path / "b"), digest=False)
    assert found["format"] == "shouted" and found["tensors"] == 5 + LAYERS * 16 + 2
    assert {row["dtype"] for row in found["table"]} == {"float16"}
    with pytest.raises(SystemExit):
        run(monkeypatch, "--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "shouted: leave the heads out." in shown and "native (keras), popart, shouted (loud), or" in shown
    with pytest.raises(ConfigError, match="--without_heads concerns only what is written for shouted"):
        run(monkeypatch, "shouted2google", start, "--without_heads")
    with pytest.raises(ConfigError, match="did you mean garden2shouted.* two of .*shouted"):
        run(monkeypatch, "garden2shoutet", start)


def test_a_model_starts_from_it(shouted, tmp_path):
    folder = write(random_checkpoint(), "shouted", tmp_path / "a")
    sizes = dict(vocab_size=WORDS, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS)
    config = BertConfig(**sizes, num_attention_heads=2, max_position_embeddings=32)
    variables = named(BertPretrainer(config))
    report = initialize.initialize(variables, folder)
    assert report.title == "Shouted BERT" and not report.fresh and len(report.read) == len(variables)


def test_published_actions_and_aliases():
    names = [name for one in registry.FORMATS.values() for name in one.names]
    assert len(names) == len(set(names)) and sorted(registry.FORMATS) == list(registry.FORMATS)
    for action, first in {"keras2google": "native2google", "hf2keras": "huggingface2native"}.items():
        assert registry.get_action(action)[0] == first
    for action in ("google2graphcore", "research2apps", "apps2research"):
        assert registry.get_action(action)[0] == action
    for action in ("google2google", "keras2native", "google2research", "research2graphcore"):
        with pytest.raises(ConfigError, match=f"unknown action '{action}'"):
            registry.get_action(action)


def test_what_actions_set_by_themselves():
    def settings(action, **given):
        options = registry.make_options(*registry.get_action(action)[1:], given)
        return options.vocab_size, options.precision, options.of_formats

    assert settings("google2graphcore") == (30400, 16, {"use_cls_layer": False})
    assert settings("google2graphcore", vocab_size=9, precision=None) == (9, 16, {"use_cls_layer": False})
    assert settings("graphcore2google", fused_qkv=True) == (None, 32, {"fused_qkv": True})
    assert settings("research2apps") == settings("apps2research") == (None, 16, {})
    assert settings("keras2huggingface") == (None, None, {})


def test_reports_keep_the_older_name(tmp_path):
    start = write(random_checkpoint(slots=("lamb_m", "lamb_v")), "native", tmp_path / "a")
    assert checkpoints.inspect_checkpoint(start, digest=False)["format"] == "keras"
    assert to(start, "native", tmp_path / "b")["target"]["format"] == "keras"


def test_names_of_formats_need_no_tensorflow():
    code = "import sys, official.checkpoint.registry; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_nothing_outside_of_the_folder_knows_a_format_by_name():
    """Other packages may have such words too: the name of a library, a division of MLPerf's."""
    names = {name for one in registry.FORMATS.values() for name in one.names}
    folders = ("checkpoint", "inference", "tasks")
    paths = [path for folder in folders for path in (ROOT / "official" / folder).rglob("*.py")]
    for path in paths:
        if path.parent != ROOT / "official/checkpoint/formats":
            text = path.read_text(encoding="utf-8")
            nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
            assert not names & {node.value for node in nodes if isinstance(node.value, str)}, path
            modules = "|".join(module.name for module in pkgutil.iter_modules(formats.__path__))
            assert not re.search(rf"checkpoint\.formats(\.| import .*\b({modules})\b)", text), path
