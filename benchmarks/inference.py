"""Measures inference of this project's back ends, compared with Hugging Face + PyTorch and its exports.

  python benchmarks/inference.py --max_seq_length=128,384 --micro_batch_size=1,8,32 --dtypes=fp32,bf16 \\
    --peers=huggingface_sdpa --make_environments --output=results/inference

The flags are those of `bert benchmark inference`. The peers' code is in programs/answering.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import harness
from harness import HUGGINGFACE, Environment
from official.cli import command_line
from official.cli.benchmark import inference
from official.cli.benchmark.inference import ANSWERING, System
from official.config import BertConfig
from official.io.errors import ConfigError

if TYPE_CHECKING:
    from official.inference.source import Source

_EXPORTED = Environment(
    "huggingface_exported",
    (
        *HUGGINGFACE.requirements,
        "onnx==1.23.2",
        "onnxscript==0.7.2",
        "onnxruntime==1.32.0",
        "openvino==2026.4.1",
    ),
)
_FLOATS = ("fp32", "bf16")
# (variant, title, types, environment) of each; those of one environment are a group of verdicts.
_ROWS = (
    ("eager", "Hugging Face, eager", _FLOATS, HUGGINGFACE),
    ("sdpa", "Hugging Face, sdpa", _FLOATS, HUGGINGFACE),
    ("compiled", "Hugging Face, compiled", _FLOATS, HUGGINGFACE),
    ("frozen", "Hugging Face, compiled and frozen", _FLOATS, HUGGINGFACE),
    ("onednn", "Hugging Face, oneDNN's linear layers", _FLOATS, HUGGINGFACE),
    ("onnxruntime", "Hugging Face in ONNX Runtime", ("fp32",), _EXPORTED),
    ("openvino", "Hugging Face in OpenVINO", _FLOATS, _EXPORTED),
)
PEERS = {f"huggingface_{row[0]}": row for row in _ROWS}


def write_huggingface(found: Source, checkpoint: str | None, folder: str) -> str:
    """Writes a model in Hugging Face's format, if missing, and returns its folder. Raises ConfigError if the
    format cannot hold it."""
    from official.checkpoint import convert
    from official.checkpoint.formats import Options, huggingface

    folder, bert = os.path.join(folder, "huggingface"), found.bert
    if os.path.isdir(folder):
        return folder
    if bert.block_type != BertConfig.block_type:
        raise ConfigError(
            f"--peers: Hugging Face has no model of block_type={bert.block_type}. Drop --peers."
        )
    if checkpoint:
        convert.convert(found.location, huggingface.FORMAT.name, folder)
        return folder
    options = Options(
        num_attention_heads=bert.num_attention_heads,
        hidden_act=bert.hidden_act,
        layer_norm_eps=bert.layer_norm_eps,
    )
    os.makedirs(folder, exist_ok=True)
    mapped = huggingface.from_canonical(found.tensors, options)
    huggingface.write(mapped.tensors, folder, options, lambda written: None)
    return folder


def system_of(name: str, environments: str) -> System:
    """Returns a peer, which runs in its environment below a folder."""
    variant, title, dtypes, environment = PEERS[name]
    command = (harness.python_of(environment.name, environments), f"{harness.PROGRAMS}/answering.py")
    # The peers' program imports the protocol of answering.py, and not this project.
    env = {**harness.variables(environment.name), "BERT_ANSWERING": os.path.dirname(ANSWERING)}
    return System(name, title, variant, dtypes, command, env, environment.name, write_huggingface)


class Main(inference.Main, harness.EnvironmentFlags):
    """Flags of the command.

    Attributes:
      peers: Comma-separated systems; the error for another name lists them.
    """

    peers: str = ""


def main() -> None:
    flags = inference.parse_flags(Main)
    names = command_line.read_list(flags.peers, "peers", tuple(PEERS)) if flags.peers else []
    harness.prepare([(name, PEERS[name][3]) for name in names], flags)
    inference.run(flags, [system_of(name, flags.environments) for name in names])


if __name__ == "__main__":
    harness.main(main)
