"""Typed questions, and how long a process takes to its first answer: with models of random weights."""

import io
import json
import sys

import pytest

from official.cli import ask
from official.cli.benchmark import start
from official.io.errors import ConfigError
from tests.conftest import TINY

GROUPS = {"block_type": "groupbert", "groupbert_ffn_output_groups": 2, "groupbert_conv_group_size": 8}
SIZES = {**TINY, "num_hidden_layers": 1, "max_position_embeddings": 40}


def made_up(folder, **changed) -> str:
    """Writes a checkpoint and returns its folder."""
    folder.mkdir()
    sizes = folder / "sizes.json"
    sizes.write_text(json.dumps({**SIZES, **changed}))
    start.write_made_up(str(sizes), str(folder))
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


def test_a_start_is_measured_beside_others(tmp_path, monkeypatch, capsys):
    made, asked = {"imported": 2.0, "loaded": 0.1, "built": 1.0, "answered": 0.5}, []

    def fake(checkpoint, caches, backend, dtype):
        asked.append((backend, dtype))
        return {**made, "first_answer": 3.6 + len(asked), "second": 0.01}

    monkeypatch.setattr(start, "time_start", fake)
    monkeypatch.setattr(sys, "argv", ["start", "--checkpoint=c", "--dtypes=fp32,bf16", "--rounds=2"])
    start.main()
    assert asked == [("tensorflow", "fp32"), ("tensorflow", "bf16")] * 3
    lines = capsys.readouterr().out.splitlines()
    # The mean of the second and the third turn: the first one is not counted.
    assert lines[1].split()[:2] == ["tensorflow", "fp32"] and "7.60" in lines[1] and "8.60" in lines[2]


def test_what_a_process_measures_and_what_it_cannot(tmp_path, capsys):
    start.ask(made_up(tmp_path / "model"), "tensorflow", "fp32")
    moments = json.loads(capsys.readouterr().out)
    ordered = [moments[name] for name in ("imported", "loaded", "built", "answered")]
    assert ordered == sorted(ordered) and moments["second_secs"] > 0
    with pytest.raises(SystemExit, match="nothing"):
        start.ask(str(tmp_path / "nothing"), "tensorflow", "fp32")


@pytest.mark.slow
def test_a_process_is_measured(tmp_path):
    found = start.time_start(made_up(tmp_path / "model"), str(tmp_path / "caches"), "tensorflow", "fp32")
    parts = sum(found[name] for name in ("imported", "loaded", "built", "answered"))
    assert parts == pytest.approx(found["first_answer"])
    with pytest.raises(ConfigError, match="tensorflow, fp32: .*nothing"):
        start.time_start(str(tmp_path / "nothing"), str(tmp_path / "caches"), "tensorflow", "fp32")
