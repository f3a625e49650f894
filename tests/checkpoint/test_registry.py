"""Actions of conversions, what they set by themselves, and how a checkpoint of another format is named."""

import subprocess
import sys

import numpy as np
import pytest

from official.checkpoint import registry
from official.cli import checkpoints
from official.config import ConfigError
from tests.checkpoint.tensors import of_arrays
from tests.checkpoint.test_convert import random_checkpoint, to, write
from tests.conftest import ROOT


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


def test_a_run_that_is_given_as_anothers_is_named(tmp_path):
    start = write(random_checkpoint() | of_arrays({"samples": np.int64(8)}), "native", tmp_path / "a")
    told = "no Google TF1 checkpoint of BERT but one of this project, which native2TARGET reads: .* samples"
    with pytest.raises(ConfigError, match=told):
        registry.open_checkpoint(start, "PATH", "google").to_canonical()


def test_names_of_formats_need_no_tensorflow():
    code = "import sys, official.checkpoint.registry; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
