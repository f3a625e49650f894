"""Typed questions, with models of random weights."""

import io
import json
import sys

import pytest

from official.checkpoint.containers import bundle
from official.cli import ask
from official.config import bert_config_from_dict
from official.inference import source
from tests.conftest import TINY

GROUPS = {"block_type": "groupbert", "groupbert_ffn_output_groups": 2, "groupbert_conv_group_size": 8}
SIZES = {**TINY, "num_hidden_layers": 1, "max_position_embeddings": 40}


def made_up(folder, **changed) -> str:
    """Writes a checkpoint and returns its folder."""
    sizes = {**SIZES, **changed}
    found = source.random_source(bert_config_from_dict(sizes, "sizes"), "answer")
    bundle.write(found.tensors, str(folder / "ckpt-0"))
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "vocab.txt").write_text("\n".join(found.vocabulary.words) + "\n")
    return str(folder)


@pytest.mark.parametrize("blocks", [{}, GROUPS], ids=["bert", "groupbert"])
def test_typed_questions_are_answered(tmp_path, monkeypatch, capsys, blocks):
    checkpoint = made_up(tmp_path / "model", **blocks)
    context = tmp_path / "context.txt"
    context.write_text("word7 word8 word9")
    monkeypatch.setattr(sys, "argv", ["bert ask", f"--checkpoint={checkpoint}", f"--context={context}"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("word7 word8?\n\nword9?\n"))
    ask.run_ask()
    answers = capsys.readouterr().out.splitlines()
    assert len(answers) == 2 and all(0 < float(answer.split()[-1]) <= 1 for answer in answers)
