"""Cost of each stage of a model, from the configuration alone; a number of stages is balanced by it.

D hidden, F feed-forward, H heads, L length of a row, P predictions a row, V vocabulary, R rows of a micro
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from official.distribution.pipelining.balance import Cost

if TYPE_CHECKING:
    from official.config import BertConfig, Config

_CLASSES = 2  # of a sequence: the products of a classifier are nothing beside any other
_STATE_BYTES = 16  # of a parameter: itself, its gradient and two slots, all float32
_KEPT_VECTORS = 8  # of D numbers a token, that a block keeps beside its feed-forward layer, about
_HALF_BYTES, _WHOLE_BYTES = 2, 4


def stage_costs(config: Config, model_stages: Sequence[str]) -> dict[str, Cost]:
    """Returns the cost of each stage of a model.

    FLOPs are those of all matrix products of a forward pass. Bytes are those of parameters, gradients and
    slots, which are exact for LAMB and Adam, and of what a micro batch keeps, roughly.

    Args:
      config: the configuration.
      model_stages: names, in order.
    """
    rows = rows_of_micro_batch(config)
    return {
        name: Cost(
            rows * flops_of_row(name, config), _STATE_BYTES * parameters_of(name, config.model) + rows * kept
        )
        for name, kept in ((name, _kept_bytes(name, config)) for name in model_stages)
    }


def rows_of_micro_batch(config: Config) -> int:
    """Returns the rows of a micro batch of one replica, as far as the configuration tells: on IPUs it says
    how many replicas there are, elsewhere one is thought of."""
    return max(1, config.train_batch_size // (config.num_accumulation_steps * config.ipu_replicas))


def flops_of_row(stage: str, config: Config) -> int:
    """Returns the multiplications and additions of all matrix products of a stage, for one row, forward.

    Args:
      stage: name of one of the model's stages.
      config: the configuration.
    """
    model, length = config.model, config.max_seq_length
    hidden, predictions = model.hidden_size, config.max_predictions_per_seq
    transform = hidden**2 if model.use_cls_layer else 0
    products = {
        "pooler": hidden**2,
        "masked_lm": predictions * (transform + hidden * model.vocab_size),
        "next_sentence": 2 * hidden,
        "span": 2 * length * hidden,
        "classifier": _CLASSES * hidden,
    }
    if stage.startswith("layer_"):
        per_token = _group_products(model) if model.block_type == "groupbert" else _products(model)
        return 2 * length * (per_token + 2 * length * hidden)  # scores, and their sums of values
    return 2 * products.get(stage, 0)


def _products(model: BertConfig) -> int:
    """Returns the multiplications of a token in a block of BERT, without attention's scores."""
    return 4 * model.hidden_size**2 + 2 * model.hidden_size * model.intermediate_size


def _group_products(model: BertConfig) -> int:
    """Returns the same of a block of GroupBERT: a gated convolution in groups, attention, and two
    feed-forward layers whose second product is in groups and mixed."""
    hidden, inner, groups = model.hidden_size, model.intermediate_size, model.groupbert_ffn_output_groups
    taps = model.groupbert_conv_kernel_size * model.groupbert_conv_group_size
    mixed = hidden**2 if groups > 1 else 0
    convolution = 3 * hidden**2 + hidden * taps
    return convolution + 4 * hidden**2 + 2 * (hidden * inner + hidden * inner // groups + mixed)


def parameters_of(stage: str, model: BertConfig) -> int:
    """Returns the parameters of a stage of a model; the word embeddings count for both stages that read them.

    Args:
      stage: name of one of the model's stages.
      model: its sizes.
    """
    hidden, words = model.hidden_size, model.vocab_size
    norm = 2 * hidden
    tables = words + model.type_vocab_size + model.max_position_embeddings
    transform = hidden**2 + hidden + norm if model.use_cls_layer else 0
    known = {
        "embeddings": tables * hidden + norm,
        "final_norm": norm,
        "pooler": hidden**2 + hidden,
        "masked_lm": words * hidden + transform + (words if model.use_prediction_bias else 0),
        "next_sentence": 2 * hidden + 2,
        "span": 2 * hidden + 2,
        "classifier": _CLASSES * (hidden + 1),
    }
    if not stage.startswith("layer_"):
        return known[stage]
    return _group_parameters(model) if model.block_type == "groupbert" else _parameters(model)


def _parameters(model: BertConfig) -> int:
    """Returns the parameters of a block of BERT."""
    hidden, inner = model.hidden_size, model.intermediate_size
    return _products(model) + _attention_biases(model) + inner + hidden + 4 * hidden


def _attention_biases(model: BertConfig) -> int:
    return model.hidden_size * (3 * model.use_qkv_bias + model.use_attention_projection_bias)


def _group_parameters(model: BertConfig) -> int:
    """Returns the parameters of a block of GroupBERT."""
    hidden, inner = model.hidden_size, model.intermediate_size
    mixer = hidden if model.groupbert_ffn_output_groups > 1 else 0
    biases = 3 * hidden + _attention_biases(model) + 2 * (inner + hidden + mixer)
    return _group_products(model) + biases + 5 * 2 * hidden


def _kept_bytes(stage: str, config: Config) -> int:
    """Returns about the bytes that a row keeps for the backward pass of a stage."""
    model, length = config.model, config.max_seq_length
    size = _WHOLE_BYTES if config.dtype == "fp32" else _HALF_BYTES
    if stage.startswith("layer_"):
        vectors = _KEPT_VECTORS * model.hidden_size + 2 * model.intermediate_size
        return length * (size * vectors + _WHOLE_BYTES * model.num_attention_heads * length)
    if stage == "masked_lm":
        return _WHOLE_BYTES * config.max_predictions_per_seq * model.vocab_size
    return size * length * model.hidden_size
