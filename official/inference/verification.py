"""Checks that two checkpoints are the same model, by their outputs on the same random batch."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from official.checkpoint import canonical, naming_unreadable, registry, sidecar_files
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.formats import Options
from official.checkpoint.tensors import Tensors
from official.config import BertConfig, ConfigError
from official.config.model import ACTIVATIONS, WITHOUT_SHAPE
from official.modeling.models import BertPretrainer, MaskedLMModel

_BATCH, _LENGTH, _PREDICTIONS = 2, 32, 4
_TOLERANCES = {4: 1e-5, 2: 5e-2}  # by item size of the narrower float type; for outputs around 1


def check(checkpoint: registry.Checkpoint, options: Options) -> None:
    """Raises ConfigError if `verify` cannot build the source's model."""
    options = sidecar_files.with_sidecar_files(options, checkpoint)
    with naming_unreadable(f"PATH={checkpoint.location}"):
        read = checkpoint.to_canonical(options)
        model_config([read.tensors], sidecar_files.with_family_of(options, read))


def verify(source: dict, target: dict, options: Options) -> dict:
    """Compares the outputs of two checkpoints, each in a model built from its shapes and the configuration
    next to it.

    Args:
      source, target: {format, path, ...} of a conversion's report.
      options: options of the conversion: given ones apply to the source. For the result, only its sidecar
        files apply.

    Returns:
      {differences: {output: largest absolute difference, None if it is not finite}, tolerance, settings:
      {name: [of the source, of the target]} of settings that shapes do not show, passed: whether outputs
      are equal within the tolerance, and settings equal}.
    """
    ends = [registry.open_checkpoint(end["path"], "PATH", end["format"]) for end in (source, target)]
    own = _own_options(ends, options)
    read = [end.to_canonical(one) for one, end in zip(own, ends)]
    own, weights = list(map(sidecar_files.with_family_of, own, read)), [each.tensors for each in read]
    configs = [model_config(weights, one) for one in own]
    differences = _differences(configs, weights)
    generators = [canonical.apart(tensors)[1] for tensors in weights]
    if all(generators):
        of_generators = list(map(_generator_options, own, configs, generators))
        found = _differences([model_config(generators, one) for one in of_generators], generators)
        differences |= {f"generator_{name}": difference for name, difference in found.items()}
    keys = (*WITHOUT_SHAPE, *configs[0].family_row.without_shape)
    settings = {key: [getattr(config, key) for config in configs] for key in keys}
    floats = [tensor for end in weights for tensor in end.values() if tensors_lib.is_float(tensor)]
    tolerance = _TOLERANCES[min(tensor.dtype.itemsize for tensor in floats)]
    same = all(difference is not None and difference <= tolerance for difference in differences.values())
    passed = same and all(ours == theirs for ours, theirs in settings.values())
    return {"differences": differences, "tolerance": tolerance, "settings": settings, "passed": passed}


def _differences(configs: list[BertConfig], weights: list[Tensors]) -> dict[str, float | None]:
    """Returns {output: `_difference`} of two models."""
    shared = set(weights[0]) & set(weights[1])
    ours, theirs = (outputs_of(config, tensors, shared) for config, tensors in zip(configs, weights))
    return {name: _difference(ours[name], theirs[name]) for name in ours}


def _generator_options(options: Options, config: BertConfig, generator: Tensors) -> Options:
    """Returns the options of a discriminator for its generator, which has the same head size."""
    hidden = sidecar_files.sizes_of(generator)["hidden_size"]
    heads = max(config.num_attention_heads * hidden // config.hidden_size, 1)
    return dataclasses.replace(options, num_attention_heads=heads)


def _own_options(ends: list[registry.Checkpoint], options: Options) -> list[Options]:
    nothing: dict[str, Any] = dict.fromkeys((*WITHOUT_SHAPE, "vocab_file"))
    source = sidecar_files.with_sidecar_files(options, ends[0])
    target = sidecar_files.with_sidecar_files(dataclasses.replace(options, **nothing), ends[1])
    if target.num_attention_heads is None:  # not in the result's files
        target = dataclasses.replace(target, num_attention_heads=source.num_attention_heads)
    if sidecar_files.config_beside(ends[1].location) is None:
        target = dataclasses.replace(target, layer_norm_eps=source.layer_norm_eps)
    return [source, target]


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float | None:
    """Returns the largest difference; equal infinities or NaN on both sides count as 0; None if it is not
    finite."""
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.where(same, 0, np.abs(ours - theirs)).max())
    return largest if np.isfinite(largest) else None


def describe(result: dict) -> str:
    shown = ", ".join(
        f"{name} {'not finite' if difference is None else format(difference, '.2g')}"
        for name, difference in result["differences"].items()
    )
    other = "".join(
        f"; {key} is {ours} in the source, {theirs} in the result"
        for key, (ours, theirs) in result["settings"].items()
        if ours != theirs
    )
    verdict = "same outputs" if result["passed"] else "DIFFERENT settings" if other else "DIFFERENT outputs"
    found = f"largest differences: {shown} (tolerance {result['tolerance']:g})"
    return f"verified: {verdict} on a random batch; {found}{other}"


def model_config(weights: list[Tensors], options: Options) -> BertConfig:
    """Returns the model with the sizes of weights[0] and the options' settings; its vocabulary is the common
    part of all.

    Raises:
      ConfigError: if it cannot be built.
    """
    words = min(tensors["bert/embeddings/word_embeddings"].shape[0] for tensors in weights)
    sizes = sidecar_files.sizes_of(weights[0]) | {"vocab_size": words}
    hidden = sizes["hidden_size"]
    heads = options.num_attention_heads or max(hidden // 64, 1)
    if hidden % heads:
        raise ConfigError(f"--num_attention_heads={heads} does not divide the hidden size {hidden}.")
    if options.hidden_act not in ACTIVATIONS:
        allowed = f"{', '.join(ACTIVATIONS)}, not with hidden_act={options.hidden_act}. Drop --verify."
        raise ConfigError(f"--verify builds BERT with {allowed}")
    epsilon = options.layer_norm_eps or BertConfig.layer_norm_eps
    sizes |= {"num_attention_heads": heads, "hidden_act": options.hidden_act, "layer_norm_eps": epsilon}
    sizes |= {"family": options.family, **options.of_family}
    sizes.setdefault("type_vocab_size", 0)
    return BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def outputs_of(config: BertConfig, tensors: Tensors, shared: set[str]) -> dict[str, np.ndarray]:
    """Returns the outputs of a model with these weights on the random batch, {name: values}. A pre-training
    head that only one side has keeps its random values; fine-tuning heads are compared if both sides have
    them."""
    tf.keras.utils.set_random_seed(1)
    model = (BertPretrainer if config.family_row.has_next_sentence else MaskedLMModel)(config)
    for variable in model.trainable_variables:
        name = variable.name.split(":")[0]
        if name in shared:
            variable.assign(tensors[name].read()[: variable.shape[0]].astype(np.float32))
    batch = _random_batch(config)
    sequence, pooled = model.encoder(*(batch[name] for name in ("input_ids", "input_mask", "segment_ids")))
    made = tf.nest.flatten(model(batch))
    tensors_of = {"sequence": sequence, "pooled": pooled, **dict(zip(("masked_lm", "next_sentence"), made))}
    outputs = {name: values.numpy() for name, values in tensors_of.items()}
    heads = {"squad": (canonical.SQUAD_HEAD, "sequence"), "classifier": (canonical.CLASSIFIER_HEAD, "pooled")}
    for name, (parts, takes) in heads.items():
        if shared.issuperset(parts):
            weights_OH, bias_O = (tensors[part].read().astype(np.float32) for part in parts)
            outputs[name] = outputs[takes] @ weights_OH.T + bias_O
    if shared.issuperset(canonical.DISCRIMINATOR_HEAD):  # with any activation between its layers
        kernel_HH, bias_H, kernel_H1, bias_1 = (
            tensors[part].read().astype(np.float32) for part in canonical.DISCRIMINATOR_HEAD
        )
        outputs["discriminator"] = (outputs["sequence"] @ kernel_HH + bias_H) @ kernel_H1 + bias_1
    return outputs


def _random_batch(config: BertConfig) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    length = min(_LENGTH, config.positions)
    lengths = np.array([[length], [length * 2 // 3]])
    return {
        "input_ids": generator.integers(0, config.vocab_size, (_BATCH, length)).astype(np.int32),
        "input_mask": (np.arange(length) < lengths).astype(np.int32),
        "segment_ids": generator.integers(0, max(1, config.type_vocab_size), (_BATCH, length)).astype(
            np.int32
        ),
        "masked_lm_positions": generator.integers(0, length, (_BATCH, _PREDICTIONS)).astype(np.int32),
    }
