"""Scores a small model that is fine-tuned without and with a teacher (--teacher), over several seeds.

  python benchmarks/distillation.py --data_dir=data/glue --init_checkpoint=MODEL \\
    --work_dir=runs/distillation --output=results/distillation.json

The teacher is MODEL, a Hugging Face folder, fine-tuned on rows of SST-2. The small model is its lowest
layers, the best choice of layers without more pre-training (Sajjad et al. 2020, arXiv 2004.03844). Both
fine-tunings have the same rows, seeds, steps and rates. The same command resumes with the first unfinished
run.
"""

from __future__ import annotations

import json
import os
import random
import re
from typing import Any

import harness
from official.checkpoint import registry
from official.checkpoint.containers import hf_folder
from official.cli import command_line, outputs, train
from official.config import ConfigError
from official.io import json_files, vocabulary_files
from official.reporting.result import load_result

_LAYER = re.compile(r"(?:bert\.)?encoder\.layer\.(\d+)\.")
_SPLITS = ("train", "dev")


class Main(harness.NumbersFlags):
    """Flags of the command.

    Attributes:
      data_dir: Folder with SST-2/train.tsv and SST-2/dev.tsv.
      init_checkpoint: Folder of an encoder in Hugging Face's form.
      work_dir: Folder of the runs.
      layers: Number of layers of the small model.
      rows: Number of training rows.
      num_runs: Number of seeds of each fine-tuning.
      num_train_epochs: Number of epochs of every fine-tuning.
    """

    RANGES = dict.fromkeys(("layers", "rows", "num_train_epochs"), command_line.COUNT) | {
        "num_runs": (2, 100)
    }
    data_dir: str
    init_checkpoint: str
    work_dir: str
    layers: int = 2
    rows: int = 3000
    num_runs: int = 3
    num_train_epochs: int = 3


def write_rows(flags: Main) -> str:
    """Writes a fixed sample of SST-2; returns its folder."""
    folder = os.path.join(flags.work_dir, "glue", "SST-2")
    os.makedirs(folder, exist_ok=True)
    for split in _SPLITS:
        path = os.path.join(flags.data_dir, "SST-2", f"{split}.tsv")
        if not os.path.isfile(path):
            raise ConfigError(f"--data_dir={flags.data_dir}: there is no SST-2/{split}.tsv.")
        with open(path, encoding="utf-8") as file:
            head, *lines = file.read().rstrip("\n").split("\n")
        random.Random(0).shuffle(lines)
        lines = lines[: flags.rows] if split == "train" else lines
        outputs.write_file(os.path.join(folder, f"{split}.tsv"), "\n".join([head, *lines]) + "\n")
    return os.path.dirname(folder)


def write_small_model(flags: Main) -> str:
    """Writes the lowest layers of the model; returns their folder."""
    folder = os.path.join(flags.work_dir, "small")
    config = json_files.read_json(os.path.join(flags.init_checkpoint, hf_folder.CONFIG))
    if not 0 < flags.layers < config.get("num_hidden_layers", 0):
        raise ConfigError(
            f"--layers={flags.layers} is not below the {config.get('num_hidden_layers')} of the model."
        )
    tensors = {}
    for name, tensor in registry.open_checkpoint(flags.init_checkpoint, "--init_checkpoint").tensors.items():
        layer = _LAYER.match(name)
        if layer is None or int(layer[1]) < flags.layers:
            tensors[name] = tensor
    others = {hf_folder.CONFIG: json.dumps({**config, "num_hidden_layers": flags.layers}).encode()}
    vocabulary = vocabulary_files.read(flags.init_checkpoint)
    others |= vocabulary_files.companions(vocabulary.path, None, config["max_position_embeddings"])
    hf_folder.write(tensors, folder, others=others)
    return folder


def fine_tune(flags: Main, name: str, *own: str) -> dict[str, Any]:
    """Runs or resumes a fine-tuning; returns result.json."""
    folder = os.path.join(flags.work_dir, name)
    common = ["--task=glue", "--glue_task=sst2", "--do_eval", f"--num_train_epochs={flags.num_train_epochs}"]
    common += ["--max_seq_length=64", "--decay_from=warmup_end", "--learning_rate=1e-4"]
    code = train.main([*common, f"--data_dir={flags.work_dir}/glue", f"--model_dir={folder}", *own])
    if code:
        raise SystemExit(code)
    return load_result(folder)


def main() -> None:
    flags = Main.parse()
    write_rows(flags)
    small = write_small_model(flags)
    teacher = fine_tune(flags, "teacher", f"--init_checkpoint={flags.init_checkpoint}")
    seeds = f"--num_runs={flags.num_runs}"
    asked = f"--teacher={os.path.join(flags.work_dir, 'teacher')}"
    alone = fine_tune(flags, "alone", f"--init_checkpoint={small}", seeds)
    taught = fine_tune(flags, "taught", f"--init_checkpoint={small}", seeds, asked)
    rows = [{"model": "teacher", "accuracy": teacher["accuracy"]}]
    for name, result in (("alone", alone), ("with the teacher", taught)):
        own = {"accuracy": result["accuracy"], "deviation": result["accuracy_std"]}
        own["runs"] = [row[1] for row in result["tables"]["Runs"][1:]]
        rows.append({"model": f"{flags.layers} layers, {name}", **own})
    print(
        outputs.table(
            [("model", "model", ""), ("accuracy", "accuracy", ".4f"), ("+-", "deviation", ".4f")], rows
        )
    )
    harness.write_json(flags, {"rows": flags.rows, "results": rows})


if __name__ == "__main__":
    harness.main(main)
