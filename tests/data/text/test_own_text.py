"""The way from one's own text to records, with an evaluation set held out: the commands of the README, one
after the other.
"""

import json
import pathlib
import subprocess
import sys

import pytest

from tests.conftest import ROOT


def run(folder: pathlib.Path, script: str, *flags: str) -> str:
    command = [sys.executable, str(ROOT / "scripts" / script), *flags]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_own_text_becomes_records_to_train_and_to_evaluate(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(4):
        documents = [
            f"Document {number} {n} is about a cat. The cat sat on mat {n}. It left." for n in range(60)
        ]
        (tmp_path / "text" / f"{number}.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    run(tmp_path, "prepare_text.py", "--input_files=text/*.txt", "--output_dir=prepared", "--eval_share=0.2")
    words = ["--input_files=prepared/train", "--output_file=vocab.txt", "--vocab_size=200"]
    run(tmp_path, "build_vocab.py", *words)
    manifests = {}
    for side in ("train", "eval"):
        files = [f"--input_files=prepared/{side}", f"--output_dir=records/{side}", "--vocab_file=vocab.txt"]
        rules = ["--max_seq_length=32", "--max_predictions_per_seq=5", "--dupe_factor=1"]
        command = ["create_pretraining_data.py", *files, *rules]
        made = run(tmp_path, *command)
        manifests[side] = json.loads((tmp_path / "records" / side / "manifest.json").read_text())
        counted, card = made.splitlines()
        assert counted.endswith("% of them [UNK].") and card == f"data card: records/{side}/report.html"
        again = run(tmp_path, *command)
        assert again == f"All of this is done already in records/{side}; nothing is written.\n{counted}\n"
    documents = {side: manifest["documents"] for side, manifest in manifests.items()}
    assert sum(documents.values()) == 240 and 20 < documents["eval"] < 80
    inspected = run(tmp_path, "inspect_data.py", "records/train", "--examples=0")
    assert f"8 files, {manifests['train']['instances']:,} examples" in inspected
