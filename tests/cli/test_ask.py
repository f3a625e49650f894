"""Typed questions, with a model of random weights."""

import io
import json
import sys

from official.checkpoint.containers import bundle
from official.cli import ask
from official.config import bert_config_from_dict
from official.inference import source
from tests.conftest import TINY


def test_typed_questions_are_answered(tmp_path, monkeypatch, capsys):
    sizes = {**TINY, "num_hidden_layers": 1, "max_position_embeddings": 40}
    found = source.random_source(bert_config_from_dict(sizes, "sizes"), "answer")
    bundle.write(found.tensors, str(tmp_path / "ckpt-0"))
    words = "\n".join(found.vocabulary.words)
    for name, text in (("config.json", json.dumps(sizes)), ("vocab.txt", words), ("text", "word7 word8")):
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(sys, "argv", ["bert ask", f"--checkpoint={tmp_path}", f"--context={tmp_path}/text"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("word7 word8?\n\nword9?\n"))
    ask.run_ask()
    answers = capsys.readouterr().out.splitlines()
    assert len(answers) == 2 and all(0 < float(answer.split()[-1]) <= 1 for answer in answers)
