"""The model of a benchmark, a checkpoint or one with random weights, also in Hugging Face's format."""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from official.cli import configs
from official.config import BertConfig, bert_config_from_dict, read_json
from official.io.errors import ConfigError

if TYPE_CHECKING:
    from official.inference.source import Source

SEED = 12345
_HEAD = "answer"


def settings_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of --config; empty without it. Raises ConfigError."""
    from official.cli import flags as flags_lib

    return flags_lib.read_config(flags.config) if flags.config else {}


def read_bert(path: str | None, settings: dict[str, Any]) -> BertConfig:
    """Returns the sizes of a model with random weights: from --bert_config_file, else --config, else those of
    BERT base. Raises ConfigError."""
    if path is None:
        values = settings.get("model") or read_json(configs.find("configs/models/bert_base.json"), "config")
        return bert_config_from_dict(values, "--config")
    return bert_config_from_dict(read_json(configs.find(path), "bert_config_file"), path)


def find(flags: argparse.Namespace, settings: dict[str, Any]) -> Source:
    """Returns the model of --checkpoint, or one with random weights. Raises ConfigError where it has no head
    for answers, or too few positions for --max_seq_length."""
    from official.inference import source

    if flags.checkpoint:
        found = source.find(flags.checkpoint, flags.vocab_file, flag="checkpoint")
        found.check_can(_HEAD)
    else:
        found = source.random_source(read_bert(flags.bert_config_file, settings), _HEAD, seed=SEED)
    longest, positions = max(flags.max_seq_length), found.bert.max_position_embeddings
    if longest > positions:
        raise ConfigError(f"--max_seq_length={longest}: the model has {positions} positions.")
    return found


def with_vocabulary(found: Source, vocab_file: str | None) -> Source:
    """Returns a model of random weights together with the vocabulary that real questions need. Raises
    ConfigError."""
    from official.data.word_pieces import vocabulary

    if vocab_file is None:
        raise ConfigError("--predict_file needs --vocab_file=vocab.txt where there is no --checkpoint.")
    words = vocabulary.load_for_text(vocab_file, None, vocab_file)
    if words.size > found.bert.vocab_size:
        raise ConfigError(
            f"--vocab_file={vocab_file} has {words.size} words, the model's vocab_size is"
            f" {found.bert.vocab_size}. Change one of them."
        )
    return dataclasses.replace(found, vocabulary=words)


def write_huggingface(found: Source, is_made_up: bool, folder: str) -> str:
    """Writes a model in Hugging Face's format into a folder, made where it is missing, and returns it.

    Raises:
      ConfigError: where the format cannot hold it.
    """
    from official.checkpoint import convert
    from official.checkpoint.formats import Options, huggingface

    bert = found.bert
    if bert.block_type != BertConfig.block_type:
        raise ConfigError(
            f"--peers: Hugging Face has no model of block_type={bert.block_type}. Drop --peers."
        )
    if not is_made_up:
        convert.convert(found.location, huggingface.FORMAT.name, folder)
        return folder
    options = Options(
        num_attention_heads=bert.num_attention_heads,
        hidden_act=bert.hidden_act,
        layer_norm_eps=bert.layer_norm_eps,
    )
    mapped = huggingface.from_canonical(found.tensors, options)
    os.makedirs(folder, exist_ok=True)
    huggingface.write(mapped.tensors, folder, options, lambda written: None)
    return folder


def specification(flags: argparse.Namespace, found: Source) -> dict[str, Any]:
    """Returns the specification of the model for a program of this project."""
    vocab_file = os.path.abspath(flags.vocab_file) if flags.vocab_file else None
    if flags.checkpoint:
        return {"model": os.path.abspath(flags.checkpoint), "vocab_file": vocab_file}
    return {"model": None, "config": dataclasses.asdict(found.bert), "seed": SEED}


def forward_flops(bert: BertConfig, lengths: list[int]) -> float | None:
    """Returns the FLOPs of the matrix products of one forward pass over sequences without padding; None for
    blocks other than BERT's.

    Args:
      bert: the sizes.
      lengths: tokens of each sequence.
    """
    if bert.block_type != BertConfig.block_type:
        return None
    hidden, tokens = bert.hidden_size, sum(lengths)
    linear = 4 * hidden * hidden + 2 * hidden * bert.intermediate_size  # weights of a block's products
    attention = 2 * hidden * sum(length * length for length in lengths)  # scores, and their use
    return 2.0 * (bert.num_hidden_layers * (linear * tokens + attention) + 2 * hidden * tokens)
