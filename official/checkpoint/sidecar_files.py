"""Sidecar files of a checkpoint: heads, activation, epsilon, vocabulary and labels, which tensors do not
show."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from absl import logging

from official.checkpoint import canonical, manager, model_card
from official.checkpoint.containers import hf_folder
from official.checkpoint.formats import Format, Options
from official.checkpoint.mapping import Mapped
from official.checkpoint.registry import Checkpoint, open_checkpoint
from official.checkpoint.tensors import Tensors
from official.config import BertConfig, checked_sizes
from official.config.model import FAMILIES, OF_TRAINING, WITHOUT_SHAPE, activation_of, settings_of
from official.io import files as io_files
from official.io import json_files, model_folder, sentence_folder, vocabulary_files
from official.io.errors import ConfigError, shortened
from official.io.sentence_folder import EmbeddingSettings

CONFIG = "bert_config.json"
_OF_TENSORS = {  # {key of bert_config.json: (canonical tensor, axis with its size)}
    "vocab_size": ("bert/embeddings/word_embeddings", 0),
    "hidden_size": ("bert/embeddings/word_embeddings", 1),
    "intermediate_size": ("bert/encoder/layer_0/intermediate/dense/bias", 0),
    "groupbert_conv_kernel_size": ("bert/encoder/layer_0/convolution/dwconv/weight", 0),
    "groupbert_conv_group_size": ("bert/encoder/layer_0/convolution/dwconv/weight", 1),
    "max_position_embeddings": ("bert/embeddings/position_embeddings", 0),
    "type_vocab_size": ("bert/embeddings/token_type_embeddings", 0),
}


def sizes_beside(location: str) -> dict:
    """Returns the keys of bert_config.json from a configuration next to a checkpoint; empty without one.

    Looks for Google's bert_config.json, Hugging Face's config.json and a run's config.json. hidden_act is
    this project's name. Raises ConfigError for damaged ones.
    """
    path = config_beside(location)
    if path is None:
        return {}
    values = json_files.read_json(path, any_number=True)
    if isinstance(values.get("model"), dict):
        values = values["model"]
    elif os.path.basename(path) == hf_folder.CONFIG:
        values = hf_folder.sizes(path)
    activation = activation_of(values)
    # Google's code and transformers have the same default for files without it.
    values = {"num_attention_heads": BertConfig.num_attention_heads, **values}
    return checked_sizes(values | ({} if activation is None else {"hidden_act": activation}), path)


def open_best(path: str, label: str, format_name: str | None = None) -> Checkpoint:
    """Opens a checkpoint as `registry.open_checkpoint` does, but for a run's folder the best one."""
    return open_checkpoint(_best_of_run(path), label, format_name)


def _best_of_run(path: str) -> str:
    """Returns the prefix of the best checkpoint of a run's folder, by its result.json; otherwise the path."""
    config = (
        json_files.read_json_or_empty(os.path.join(path, hf_folder.CONFIG)) if os.path.isdir(path) else {}
    )
    if "task" not in config or "model_type" in config:  # model_type is in Hugging Face's files
        return path
    best = json_files.read_json_or_empty(os.path.join(path, "result.json")).get("best_step")
    if best is None or best in manager.CheckpointManager(path, {}, 1).steps():
        return path if best is None else os.path.join(path, f"ckpt-{best}")
    warning = "%s: ckpt-%s, the best one according to result.json, no longer exists; the newest is used."
    logging.warning(warning, path, best)
    return path


def config_beside(location: str) -> str | None:
    """Returns the path of the configuration next to a checkpoint; of two, that of its format."""
    is_folder = os.path.isdir(location)
    names = (CONFIG, hf_folder.CONFIG)
    names = names[::-1] if is_folder or location.endswith(".safetensors") else names
    paths = [os.path.join(location if is_folder else os.path.dirname(location), name) for name in names]
    return next((path for path in paths if os.path.exists(path)), None)


def with_sidecar_files(options: Options, checkpoint: Checkpoint) -> Options:
    """Returns the options of `with_settings`, the settings of vectors next to the source and, if not given,
    the vocabulary there.

    Raises:
      ConfigError: if a given vocabulary cannot be read.
    """
    if options.vocab_file is not None:
        words = vocabulary_files.read(options.vocab_file).words
        vocabulary_files.check_each(words, f"--vocab_file={options.vocab_file}")
    vocab_file = options.vocab_file or _vocabulary_beside(checkpoint.location)
    embedding = _embedding_beside(checkpoint.location)
    return dataclasses.replace(with_settings(options, checkpoint), vocab_file=vocab_file, embedding=embedding)


def with_settings(options: Options, checkpoint: Checkpoint) -> Options:
    """Returns the options with heads, activation, epsilon and labels, if not given.

    Args:
      options: options of the conversion.
      checkpoint: the source. Given options take precedence, then its shapes, then a configuration next to it,
        then the usual values of its format.
    """
    config, epsilon = sizes_beside(checkpoint.location), epsilon_without(checkpoint)
    usual: dict[str, Any] = {
        "num_attention_heads": checkpoint.heads or config.get("num_attention_heads"),
        "hidden_act": config.get("hidden_act") or checkpoint.format.usual_activation,
        "layer_norm_eps": config.get("layer_norm_eps") or epsilon or BertConfig.layer_norm_eps,
    }
    found = {name: getattr(options, name) or value for name, value in usual.items()}
    found["model_card"] = model_card.of_run(checkpoint.location)
    found["of_training"] = {name: config[name] for name in OF_TRAINING if name in config}
    found["of_training"] |= hf_folder.dropout_of_heads(checkpoint.location)
    found |= of_family(config)
    return dataclasses.replace(options, **found, **labels_beside(checkpoint.location))


def of_family(config: Mapping[str, Any]) -> dict:
    """Returns the options `family` and `of_family` from a configuration as in `sizes_beside`."""
    family = FAMILIES[config.get("family", BertConfig.family)]
    return {"family": family.name, "of_family": settings_of(family, config)}


def with_family_of(options: Options, read: Mapped) -> Options:
    """Returns the options with the family that tensor names identify."""
    if read.family in (None, options.family):
        return options
    return dataclasses.replace(options, **of_family({"family": read.family}))


def _vocabulary_beside(location: str) -> str | None:
    """Returns the vocab.txt, or otherwise tokenizer.json, next to a checkpoint. One that is not BERT's is
    ignored with a warning, since a conversion of weights needs none."""
    path = vocabulary_files.find(model_folder.folder_of(location))
    try:
        if path is not None:
            vocabulary_files.check_each(vocabulary_files.read(path).words, path)
        return path
    except ConfigError as error:
        logging.warning("The vocabulary next to the checkpoint is not used. %s", error)
        return None


def epsilon_without(checkpoint: Checkpoint) -> float | None:
    """Returns the epsilon of LayerNorm usual for a checkpoint's format; None if it has a
    configuration, whose default is 1e-12."""
    return None if config_beside(checkpoint.location) else checkpoint.format.usual_epsilon


def labels_beside(location: str) -> dict:
    """Returns the options `labels`, `problem_type`, `thresholds` and `scale` from labels.json or Hugging
    Face's config.json next to a checkpoint."""
    found = model_folder.read_labels(model_folder.folder_of(location))
    found.pop("kind", None)
    return found or model_folder.labels_of_config(location)


def _embedding_beside(location: str) -> EmbeddingSettings | None:
    """Returns the settings of vectors next to a checkpoint. Unsupported ones are ignored with a warning,
    since a conversion of weights needs none."""
    try:
        return sentence_folder.read_settings(location)
    except ConfigError as error:
        logging.warning("The sentence-transformers files next to the checkpoint are not used. %s", error)
        return None


def notes_of_source(given: Options, checkpoint: Checkpoint) -> list[str]:
    """Returns a line if the activation of a source is neither given nor in a configuration next to it, and
    one for an epsilon that is not Google's; `given` are the options before `with_sidecar_files`."""
    taken = []
    if not (given.hidden_act or "hidden_act" in sizes_beside(checkpoint.location)):
        taken = [f"hidden_act={checkpoint.format.usual_activation}"]
    epsilon = epsilon_without(checkpoint)
    if not given.layer_norm_eps and epsilon not in (None, BertConfig.layer_norm_eps):
        taken.append(f"layer_norm_eps={epsilon}")
    why = f"the default of {checkpoint.format.title}: the source has no configuration that names it"
    return [f"{setting} is assumed, {why}" for setting in taken]


def notes_of_result(options: Options, written: list[str], target: Format) -> list[str]:
    """Returns a line if the result differs from the defaults of other code for its format: whether its
    configuration, if any, stores the difference."""
    settings = ", ".join(f"{key}={value}" for key, value in unusual(options, target).items())
    if not settings:
        return []
    if all(os.path.basename(path) != CONFIG for path in written):
        advice = f"give --num_attention_heads=N, and {CONFIG} is written"
        return [f"no file next to the result stores {settings}: {advice}"]
    theirs = "Google's BERT" if target.usual_epsilon == BertConfig.layer_norm_eps else target.title
    others = f"other readers of the format compute as {theirs} does"
    return [f"{CONFIG} stores {settings}, which this project reads; {others}"]


def sizes_of(tensors: Tensors) -> dict:
    """Returns the keys of bert_config.json from canonical tensors: sizes, GroupBERT's blocks, and missing
    biases and masked-LM transform."""
    if canonical.is_modernbert(tensors):
        return _sizes_of_modernbert(tensors)
    shapes = {key: tensors[name].shape[axis:] for key, (name, axis) in _OF_TENSORS.items() if name in tensors}
    sizes: dict[str, int | str] = {key: shape[0] for key, shape in shapes.items()}
    sizes["num_hidden_layers"] = canonical.layers_of(tensors)
    if (kernel := tensors.get(canonical.PROJECTION[0])) is not None and len(kernel.shape) == 2:
        sizes["embedding_size"], sizes["hidden_size"] = kernel.shape
    first = "bert/encoder/layer_0/feed_forward_1"
    inner, output = (
        tensors.get(f"{first}/{name}") for name in ("intermediate/dense/bias", "output/dense/kernel")
    )
    if inner is not None and output is not None:
        groups = inner.shape[0] // output.shape[0]
        sizes |= {"block_type": "groupbert", "groupbert_ffn_output_groups": groups}
        sizes["intermediate_size"] = inner.shape[0]
    absent = {"use_qkv_bias": canonical.QKV_BIAS, "use_attention_projection_bias": canonical.PROJECTION_BIAS}
    if canonical.OUTPUT_BIAS in tensors:
        absent["use_cls_layer"] = "|".join(canonical.TRANSFORM)
    found = [key for key, pattern in absent.items() if any(re.fullmatch(pattern, name) for name in tensors)]
    return sizes | {key: False for key in absent if key not in found}


def _sizes_of_modernbert(tensors: Tensors) -> dict:
    words, hidden = tensors["bert/embeddings/word_embeddings"].shape
    return {
        "vocab_size": words,
        "hidden_size": hidden,
        "intermediate_size": tensors["bert/encoder/layer_0/output/dense/kernel"].shape[0],
        "num_hidden_layers": canonical.layers_of(tensors),
        "block_type": "modernbert",
    }


def check_source(location: str, read: Mapped) -> None:
    """Raises ConfigError if the configuration, or the labels, next to a checkpoint are of another model than
    its canonical tensors."""
    tensors, own = read.tensors, sizes_of(read.tensors)
    if read.family is not None:
        own["family"] = read.family
    if wrong := _contradictions(sizes_beside(location), own):
        problem = f"does not belong to the model in {location}: {shortened(wrong)}. Remove or correct it."
        raise ConfigError(f"{config_beside(location)} {problem}")
    if "output_weights" in tensors:
        outputs, labels = tensors["output_weights"].shape[0], labels_beside(location)["labels"]
        hf_folder.check_labels(location, outputs)
        model_folder.check_label_count(labels, outputs, f"the labels next to {location}")


def _contradictions(config: dict, sizes: dict) -> list[str]:
    """Compares all sizes except the number of words, which conversions change."""
    return [
        f"{key}={config[key]}, the tensors have {value}"
        for key, value in sizes.items()
        if key != "vocab_size" and config.get(key, value) != value
    ]


def plan(
    source: str, target: str, target_format: Format, tensors: Tensors, options: Options, overwrite: bool
) -> dict[str, bytes | None]:
    """Returns the sidecar files of a bundle or file: bert_config.json if the heads or a configuration are
    known, vocabulary, labels.

    Args:
      source, target: locations.
      target_format: format of the result.
      tensors: canonical tensors as written: the vocabulary may have been cut.
      options: options of the conversion, with sidecar files.
      overwrite: whether existing files may be replaced.

    Returns:
      {path: content, or None for a file to remove: an older configuration of another model}; empty if the
      format's writer writes them.

    Raises:
      ConfigError: if a file with other content exists and may not be replaced.
    """
    if target_format.brings_sidecar_files:
        if options.vocab_file:
            contents = vocabulary_files.contents_of(vocabulary_files.read(options.vocab_file))
            name, content = next(iter(contents.items()))
            _check_free({os.path.join(target, name): content}, overwrite)
        return {}
    folder = os.path.dirname(target) or "."
    files: dict[str, bytes | None] = {}
    path, sizes, own = os.path.join(folder, CONFIG), sizes_beside(source), sizes_of(tensors)
    if sizes or options.num_attention_heads:
        known = {key: value for key, value in sizes.items() if key not in WITHOUT_SHAPE} | own
        known |= {"hidden_act": "gelu", **unusual(options), **unusual(options, target_format)}
        known |= options.of_family
        if options.num_attention_heads:
            known["num_attention_heads"] = options.num_attention_heads
        files[path] = (json.dumps(known, indent=2, sort_keys=True) + "\n").encode()
    elif os.path.exists(path):
        there = dataclasses.asdict(BertConfig()) | sizes_beside(path)
        same = all(there[key] == getattr(options, key) for key in ("hidden_act", "layer_norm_eps"))
        if not same or _contradictions(sizes_beside(path), own):
            files[path] = None
    rows = own.get("max_position_embeddings")
    others = options.files_beside("output_weights" in tensors, own["hidden_size"], rows)
    files |= {os.path.join(folder, name): content for name, content in others.items()}
    _check_free(files, overwrite)
    return files


def unusual(options: Options, target: Format | None = None) -> dict:
    """Returns the settings of a model that differ from those of Google's code, or of other code for a format:
    {key of BertConfig: value}."""
    epsilon = target.usual_epsilon if target else BertConfig.layer_norm_eps
    usual = {"hidden_act": BertConfig.hidden_act, "layer_norm_eps": epsilon, "family": BertConfig.family}
    return {key: getattr(options, key) for key in usual if getattr(options, key) not in (None, usual[key])}


def _check_free(files: Mapping[str, bytes | None], overwrite: bool) -> None:
    """Raises ConfigError if one of {path: content} exists with other content and may not be replaced."""
    for path, content in files.items():
        if not overwrite and os.path.exists(path) and not _same(path, content):
            advice = "Give another --output_dir, or replace it with --overwrite."
            raise ConfigError(f"{path} exists and does not belong to this result. {advice}")


def _same(path: str, content: bytes | None) -> bool:
    there = io_files.read_bytes(path, path)
    if content is None or not path.endswith(".json"):
        return there == content
    try:
        return json_files.parse_json(there, path) == json_files.parse_json(content, path)
    except ConfigError:
        return False
