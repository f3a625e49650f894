"""Hugging Face folders (model.safetensors, config.json, vocab.txt): reading lazily, writing tensor by tensor.

Weights may be in parts (model.safetensors.index.json), and a single .safetensors file is read, too. Pickle
files (pytorch_model.bin, *.pt) are refused unopened: loading one can run any code. A LoRA adapter next to the
weights is merged into them.

The header of a file is written here, because the library needs all tensors in memory. Measured with
BERT-large (1.34 GB): the most memory of a conversion beyond its imports is 0.6 GB, and 1.4 GB with
`safetensors.numpy.save_file`.
"""

import dataclasses
import json
import os
import pathlib
import re
import struct
from collections.abc import Collection
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
from absl import logging

from official.checkpoint import DamagedError, naming_damaged
from official.checkpoint.containers import Progress
from official.checkpoint.formats import Options
from official.checkpoint.tensors import Tensor, Tensors, changed
from official.config import BertConfig
from official.config.model import (
    FAMILIES,
    activation_of,
    check_other_keys,
    checked_size,
    checked_sizes,
    is_hugging_face,
    with_plain_keys,
    with_their_keys,
)
from official.io import files as io_files
from official.io import json_files, model_folder, sentence_folder, vocabulary_files
from official.io.errors import ConfigError, first_line, shortened
from official.io.vocabulary_files import TOKENIZER, TOKENIZER_CONFIG, VOCABULARY

CONFIG = model_folder.CONFIG
WEIGHTS, INDEX = model_folder.WEIGHTS
LAST = WEIGHTS
IS_FOLDER = True
# The files of a checkpoint; other files in its folder are ignored.
_CARD = "README.md"
_OF_TEXT = (VOCABULARY, TOKENIZER, TOKENIZER_CONFIG, sentence_folder.MODULES, *sentence_folder.FILES)
_OTHER_FILES = (INDEX, CONFIG, *_OF_TEXT, model_folder.LABELS, _CARD)
_FILES = re.compile(r"model(-\d+-of-\d+)?\.safetensors|" + "|".join(map(re.escape, _OTHER_FILES)))
# Subfolder of an ELECTRA folder: the generator that it was pre-trained with.
GENERATOR_FOLDER = "generator"
GENERATOR = f"{GENERATOR_FOLDER}."
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle")

_DTYPES: dict[str, np.dtype] = {
    **{f"F{8 * size}": np.dtype(f"f{size}") for size in (8, 4, 2)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    **{f"I{8 * size}": np.dtype(f"i{size}") for size in (8, 4, 2, 1)},
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def locate(path: str) -> str | None:
    """Returns the folder or the .safetensors file for a path; None if there is none.

    Raises:
      ConfigError: for a pickle file, a folder with only pickle files, or one with two models.
    """
    pickle = None
    if os.path.isdir(path):
        names = sorted(os.listdir(path))
        has_weights = WEIGHTS in names or INDEX in names
        if sentence_folder.MODULES in names and (below := sentence_folder.transformer_folder(path)) != path:
            if not has_weights:
                return locate(below)
            if locate(below):
                problem = f"{path} has weights, and so has {below}, which {sentence_folder.MODULES} names"
                raise ConfigError(f"{problem}. Give the latter, or remove one of them.")
        if has_weights:
            return path
        if model_folder.ADAPTER_CONFIG in names:
            base = json_files.read_json(os.path.join(path, model_folder.ADAPTER_CONFIG), any_number=True)
            raise ConfigError(
                f"{path}: the adapter's base model {base.get('base_model_name_or_path')} is missing. Put"
                f" its {WEIGHTS} and {CONFIG} into the folder, or merge the adapter in peft"
                " (merge_and_unload)."
            )
        if not any(name.endswith((".index", ".onnx")) for name in names):
            pickle = next((os.path.join(path, name) for name in names if name.endswith(_PICKLES)), None)
    elif os.path.isfile(path):
        if path.endswith(INDEX):
            return os.path.dirname(path) or "."
        if path.endswith(".safetensors"):
            return path
        pickle = path if path.endswith(_PICKLES) else None
    if pickle:
        raise ConfigError(
            f"{pickle}: pickle files are not read, since loading one can run any code. Save the model as"
            f" safetensors instead ({WEIGHTS}): model.save_pretrained(FOLDER, safe_serialization=True)."
        )
    return None


def read(location: str) -> Tensors:
    """Returns the tensors of a folder or file, with those of a generator's subfolder as `generator.NAME`.

    Raises:
      DamagedError: also when one of them is read.
      ConfigError: for the config.json of an unsupported model.
    """
    config, below = sizes(location), os.path.join(location, GENERATOR_FOLDER)
    if config.get("family") == "electra" and os.path.isdir(below) and locate(below):
        _check_generator(config, sizes(below), below)
        found = {
            GENERATOR + name: dataclasses.replace(tensor, sources=(GENERATOR + name,))
            for name, tensor in _read_model(below).items()
        }
        return _read_model(location) | found
    return _read_model(location)


def _check_generator(config: dict, generator: dict, folder: str) -> None:
    """Raises ConfigError if a generator's config.json contradicts its discriminator's."""
    given = ((config, os.path.dirname(folder)), (generator, folder))
    config, generator = (
        dataclasses.asdict(BertConfig()) | checked_sizes(each, os.path.join(place, CONFIG))
        for each, place in given
    )
    wanted = {key: config[key] for key in ("family", "hidden_act", "layer_norm_eps", "num_hidden_layers")}
    heads = config["num_attention_heads"] * generator["hidden_size"]
    wanted["num_attention_heads"] = heads // config["hidden_size"]
    if wrong := [f"{key}={generator[key]}" for key in wanted if generator[key] != wanted[key]]:
        expected = ", ".join(f"{key}={wanted[key]}" for key in wanted)
        problem = f"{', '.join(wrong)}, but a generator next to this discriminator must have {expected}."
        raise ConfigError(f"{os.path.join(folder, CONFIG)}: {problem}")


def generator_heads(tensors: Tensors, generator: Tensors, options: Options) -> int | None:
    """Returns the number of attention heads of a generator, whose head size is the discriminator's; tensors
    have ELECTRA's names. None if the discriminator's number is unknown."""
    output, both = "layer.0.attention.output.dense.weight", (*tensors.items(), *generator.items())
    own, theirs = (one.shape[0] for name, one in both if name.endswith(output))
    heads = options.heads_of(own)
    return None if heads is None else heads * theirs // own


def _read_model(location: str) -> Tensors:
    model_folder.check_files(location)
    whole = os.path.join(location, WEIGHTS)
    if not os.path.isdir(location):
        tensors = read_file(location)
    else:
        tensors = read_file(whole) if os.path.exists(whole) else _read_parts(location)
    adapter = model_folder.adapter_of(location)
    if adapter is None:
        return _with_answers(tensors, location, None)
    return _with_answers(_merged(tensors, adapter), location, adapter.settings.get("task_type"))


def _with_answers(tensors: Tensors, location: str, task_type: str | None) -> Tensors:
    """Returns weights in which the output layer for answers has BERT's name: in some families only
    config.json, or the task_type of an adapter, distinguishes it from a classifier."""
    values, _ = _read_config(location)
    family = FAMILIES.get(values.get("family", "bert"), FAMILIES["bert"])
    is_of_answers = _plain_names(values)[:1] == ["BertForQuestionAnswering"] or task_type == "QUESTION_ANS"
    if family.answers == FAMILIES["bert"].answers or not is_of_answers:
        return tensors
    scope = f"{family.answers}."
    return {re.sub(f"^{re.escape(scope)}", "qa_outputs.", name): tensor for name, tensor in tensors.items()}


_MATRIX_A, _MATRIX_B = ".lora_A.weight", ".lora_B.weight"


def _merged(tensors: Tensors, adapter: model_folder.Adapter) -> Tensors:
    """Returns weights with a LoRA adapter merged into them: W + scale B A. Weights that the adapter stores
    whole, such as a classifier's, replace the model's.

    Raises:
      ConfigError: if the adapter has tensors without a matching weight, or is already merged.
    """
    found = {
        re.sub(r"\.(base_layer|modules_to_save)\.", ".", name.removeprefix("base_model.model.")): tensor
        for name, tensor in read_file(adapter.path).items()
        if ".original_module." not in name  # the model's weight, which is replaced
    }
    merged, strange = dict(tensors), []
    wholes: Tensors = {}
    for name, tensor in found.items():
        module = name.removesuffix(_MATRIX_A)
        if name.endswith(_MATRIX_A):
            weight, other = _name_in(tensors, f"{module}.weight"), found.get(module + _MATRIX_B)
            if weight not in tensors or other is None:
                strange.append(name)
            else:
                merged[weight] = _with_product(tensors[weight], other, tensor, adapter, module)
        elif name.endswith(_MATRIX_B) and name.removesuffix(_MATRIX_B) + _MATRIX_A in found:
            continue
        elif "lora_" in name or name.rpartition(".")[2] not in ("weight", "bias"):
            strange.append(name)
        else:
            whole = _name_in(tensors, name)
            if tensors.get(whole, tensor).shape != tensor.shape:
                strange.append(name)
            merged[whole] = wholes[whole] = tensor
    if strange:
        raise ConfigError(
            f"{adapter.path}: {shortened(sorted(strange))} match no weights of this folder. Merge the adapter"
            " in peft (merge_and_unload), or remove it."
        )
    if wholes and all(name in tensors and _is_cast(tensors[name], one) for name, one in wholes.items()):
        raise ConfigError(
            f"{adapter.path}: the adapter's {shortened(sorted(wholes))} is already merged into the model next"
            " to it. Remove the adapter, or put the weights of its base model there."
        )
    changed = [name for name in merged if merged[name] is not tensors.get(name)]
    logging.info("%s is merged into %d weights", adapter.path, len(changed))
    return merged


def _is_cast(tensor: Tensor, other: Tensor) -> bool:
    """Returns whether a tensor equals another one, cast to its type."""
    return np.array_equal(tensor.read(), other.read().astype(tensor.dtype))


def _name_in(tensors: Tensors, name: str) -> str:
    """Returns the name of a weight in the model's file, with or without the prefix of models with heads."""
    scopes = dict.fromkeys(family.scope for family in FAMILIES.values())
    others = (other for scope in scopes for other in (name.removeprefix(scope), scope + name))
    return name if name in tensors else next((other for other in others if other in tensors), name)


def _with_product(weight: Tensor, b: Tensor, a: Tensor, adapter: model_folder.Adapter, module: str) -> Tensor:
    rank, fit = a.shape[:1], len(weight.shape) == 2
    if not fit or not all(rank) or (b.shape, a.shape) != ((weight.shape[0], *rank), (*rank, weight.shape[1])):
        problem = f"do not make the shape {weight.shape} of {weight.sources[0]}."
        raise ConfigError(f"{adapter.path}: matrices {b.shape} and {a.shape} {problem}")
    scale = adapter.scale(module, *rank)

    def with_product(values: np.ndarray) -> np.ndarray:
        product = b.read().astype(np.float32) @ a.read().astype(np.float32)
        return (values.astype(np.float32) + np.float32(scale) * product).astype(weight.dtype)

    return changed(weight, with_product)


def _read_parts(folder: str) -> Tensors:
    path = os.path.join(folder, INDEX)
    try:  # {name of a tensor: file in the folder}
        parts = json_files.expect(json_files.read_json(path), "weight_map", dict, path)
    except ConfigError as error:
        raise DamagedError(f"{INDEX} cannot be read ({error})") from None
    outside = [part for part in parts.values() if not isinstance(part, str) or os.path.basename(part) != part]
    if outside:
        raise DamagedError(f"{INDEX} names files outside its folder: {outside[0]}")
    gone = sorted({part for part in parts.values() if not os.path.exists(os.path.join(folder, part))})
    if gone:
        raise DamagedError(f"{shortened(gone)}: No such file in the folder, though {INDEX} lists it")
    tensors: Tensors = {}
    for part in sorted(set(parts.values())):
        found = read_file(os.path.join(folder, part))
        tensors |= {name: tensor for name, tensor in found.items() if parts.get(name, part) == part}
    missing = sorted(parts.keys() - tensors.keys())
    if missing:
        raise DamagedError(f"{INDEX} lists tensors that are not in their files: {shortened(missing)}")
    return tensors


def read_file(path: str) -> Tensors:
    """Returns the tensors of a .safetensors file. Raises DamagedError, also when one of them is read."""
    with _open(path) as file:
        tensors = {}
        for name in sorted(file.keys()):
            view = file.get_slice(name)
            if (kind := view.get_dtype()) not in _DTYPES:
                raise DamagedError(f"{name} has type {kind}. Supported are {', '.join(_DTYPES)}")
            tensors[name] = _lazy(path, name, tuple(view.get_shape()), _DTYPES[kind])
        return tensors


def _lazy(path: str, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    def get() -> np.ndarray:
        # Opened for every tensor: the library maps the file, and pages once read would count as memory until
        # the file is closed.
        with _open(path) as file:
            try:
                return file.get_tensor(name)
            except safetensors.SafetensorError as error:
                raise DamagedError(f"{name}: {first_line(error)}") from None

    return Tensor(shape, dtype, get, (name,))


def _open(path: str) -> Any:
    try:
        with naming_damaged(path):
            io_files.check_readable(path)
            return safetensors.safe_open(path, framework="np")
    except (safetensors.SafetensorError, ValueError) as error:
        raise DamagedError(f"{os.path.basename(path)}: {first_line(error)}") from None


def target(output_dir: str, source: str) -> str:
    """Returns OUTPUT_DIR: a checkpoint is a whole folder."""
    return output_dir


def files(location: str) -> list[str]:
    """Returns the existing files of a folder, or the file."""
    if os.path.isfile(location):
        return [location]
    names = sorted(os.listdir(location)) if os.path.isdir(location) else []
    below = files(os.path.join(location, GENERATOR_FOLDER)) if GENERATOR_FOLDER in names else []
    return [*(os.path.join(location, name) for name in names if _FILES.fullmatch(name)), *below]


def write(
    tensors: Tensors,
    folder: str,
    progress: Progress = lambda size: None,
    others: dict[str, bytes] | None = None,
) -> None:
    """Writes a folder of weights.

    Args:
      tensors: {name: lazy tensor}, read one after the other.
      folder: created if missing.
      progress: called with the bytes written since the last call.
      others: {name: content} of other files in the folder.
    """
    os.makedirs(folder, exist_ok=True)
    # Wide types first, as the library does, so that every tensor begins at a multiple of its item size.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _DTYPE_NAMES:
            allowed = ", ".join(map(str, _DTYPE_NAMES))
            raise ConfigError(f"{name} has type {tensor.dtype}, which cannot be written. Allowed: {allowed}.")
        kind, offsets = _DTYPE_NAMES[tensor.dtype], [place, place + tensor.nbytes]
        entries[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": offsets}
        place += tensor.nbytes
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(os.path.join(folder, WEIGHTS), "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for name in names:
            values = np.ascontiguousarray(tensors[name].read(), tensors[name].dtype)
            file.write(values.reshape(-1).view(np.uint8).data)
            progress(tensors[name].nbytes)
    for name, content in (others or {}).items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


# -----------------------------------------------------------------------------------------------------------
# config.json
#
# The activation: transformers' `gelu` is the exact form with erf, its `gelu_new` the form with tanh that
# Google's BERT calls `gelu`. Here they are `gelu_erf` and `gelu_tanh`; a folder is read and written with
# transformers' names, so that it computes there what it computes here.


# {tensor of a head: class whose files have it}; a fine-tuned head takes precedence over a pre-training head.
_ARCHITECTURES = {
    "classifier.weight": "BertForSequenceClassification",
    "qa_outputs.weight": "BertForQuestionAnswering",
    "cls.seq_relationship.weight": "BertForPreTraining",
    "discriminator_predictions.dense.weight": "BertForPreTraining",
    "cls.predictions.bias": "BertForMaskedLM",
}
_TABLE, _SEGMENTS = "embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight"
_POSITIONS = "embeddings.position_embeddings.weight"
_NEXT_SENTENCE_ONLY = "BertForNextSentencePrediction"
# Classes with a classifier for words or for multiple choice.
_OTHER_CLASSIFIERS = {kind: f"Bert{end}" for end, kind in model_folder.PROBLEM_TYPE_OF_CLASS.items()}
_SUPPORTED = ("BertModel", *_ARCHITECTURES.values(), *_OTHER_CLASSIFIERS.values(), _NEXT_SENTENCE_ONLY)
_SUPPORTED = (*_SUPPORTED, "BertLMHeadModel")


def architecture_of(names: Collection[str], problem_type: str | None) -> str:
    """Returns BERT's class for a model with these weights, in Hugging Face's names for BERT. `problem_type`
    distinguishes classifiers of texts, words and choices."""
    architecture = next((name for head, name in _ARCHITECTURES.items() if head in names), "BertModel")
    if architecture == "BertForSequenceClassification":
        return _OTHER_CLASSIFIERS.get(str(problem_type), architecture)
    others = {"cls.predictions.bias", "discriminator_predictions.dense.weight"}
    is_alone = architecture == "BertForPreTraining" and others.isdisjoint(names)
    return _NEXT_SENTENCE_ONLY if is_alone else architecture


def files_beside(tensors: Tensors, options: Options) -> dict[str, bytes]:
    """Returns {name: content} of the other files of a folder.

    Args:
      tensors: {Hugging Face's name for BERT: tensor}, at least a whole encoder.
      options: num_attention_heads, hidden_act, family, of_family, of_training, vocab_file, do_lower_case,
        labels, problem_type, embedding.

    Raises:
      ConfigError: if the number of heads is unknown, or it or the vocabulary contradicts the tensors.
    """
    shapes = {name.removeprefix("bert."): tensor.shape for name, tensor in tensors.items()}
    words, width = shapes[_TABLE]
    hidden = shapes["encoder.layer.0.attention.output.dense.weight"][0]
    ours, family = options.hidden_act or BertConfig.hidden_act, FAMILIES[options.family]
    usual = dataclasses.asdict(BertConfig()) | dict(family.defaults)
    rows = shapes.get(_POSITIONS, (None,))[0]
    heads = options.heads_of(hidden)
    if heads is None:
        raise ConfigError(
            "the number of attention heads is unknown, and cannot be derived from the weights. Give"
            f" --num_attention_heads=N, a divisor of hidden_size={hidden}, or put the model's {CONFIG} or"
            " bert_config.json next to the weights."
        )
    if "layer_norm_eps" in family.ignored and options.layer_norm_eps not in (None, BertConfig.layer_norm_eps):
        raise ConfigError(
            f"layer_norm_eps={options.layer_norm_eps}: {family.title} of transformers has"
            f" {BertConfig.layer_norm_eps}, which no {CONFIG} changes. Give another format."
        )
    labels = {}
    if "classifier.weight" in shapes:
        own = options.labels, options.problem_type
        labels = model_folder.labels_to_hugging_face(*own, shapes["classifier.weight"][0])
    layers = {name.split(".")[2] for name in shapes if name.startswith("encoder.layer.")}
    config = {
        "architectures": [architecture_of(shapes, options.problem_type).replace("Bert", family.title, 1)],
        "vocab_size": words,
        "hidden_size": hidden,
        **({"embedding_size": width} if family.has_embedding_size else {}),
        "num_hidden_layers": len(layers),
        "num_attention_heads": heads,
        "intermediate_size": shapes["encoder.layer.0.output.dense.weight"][0],
        "max_position_embeddings": rows,
        "type_vocab_size": shapes.get(_SEGMENTS, (0,))[0],
        "hidden_act": {"gelu_tanh": "gelu_new", "gelu_erf": "gelu"}.get(ours, ours),
        "layer_norm_eps": options.layer_norm_eps or BertConfig.layer_norm_eps,
        "initializer_range": 0.02,
        "hidden_dropout_prob": usual["hidden_dropout_prob"],
        "attention_probs_dropout_prob": usual["attention_probs_dropout_prob"],
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        **options.of_family,
        **options.of_training,
        "torch_dtype": next(one.dtype.name for name, one in tensors.items() if name.endswith(_TABLE)),
        **labels,
    }
    vocabulary = None if options.vocab_file is None else vocabulary_files.read(options.vocab_file)
    if vocabulary is not None and vocabulary.tokenizer is not None and "pad_token_id" in family.ignored:
        config["pad_token_id"] = vocabulary.words.index(vocabulary.tokenizer.special.pad)
    written = {
        CONFIG: (json.dumps(with_their_keys(config, family), indent=2, sort_keys=True) + "\n").encode()
    }
    if options.model_card:
        written[_CARD] = options.model_card.encode()
    if vocabulary is not None and (count := len(vocabulary.words)) > words:
        raise ConfigError(
            f"--vocab_file={options.vocab_file} has {count} words, the word embeddings have {words} rows."
            f" Give the vocabulary of this model, or --vocab_size={count}."
        )
    has_segments = shapes.get(_SEGMENTS, (0,))[0] > 1
    return written | options.files_beside(bool(labels), hidden, rows, has_segments)


def _read_config(location: str) -> tuple[dict, str]:
    """Returns the content of the config.json of a folder, or next to a file, under BERT's keys, and its path;
    {} without one."""
    path = os.path.join(model_folder.folder_of(location), CONFIG)
    values = json_files.read_json(path, any_number=True) if os.path.exists(path) else {}
    values = model_folder.with_model_type(values, path)
    return (with_plain_keys(values, path) if is_hugging_face(values) else values), path


# Dropout of heads in transformers' training; heads of this project use the dropout of the blocks.
_DROPOUT_OF_HEADS = ("classifier_dropout", "qa_dropout", "seq_classif_dropout", "summary_last_dropout")


def dropout_of_heads(location: str) -> dict[str, float]:
    """Returns {key: rate} of the dropout of heads in the config.json of a folder, or next to a file. This
    project does not use them, but keeps them for transformers."""
    values = json_files.read_json_or_empty(os.path.join(model_folder.folder_of(location), CONFIG))
    values = values if is_hugging_face(values) else {}
    return {key: values[key] for key in _DROPOUT_OF_HEADS if isinstance(values.get(key), (int, float))}


def _plain_names(values: dict) -> list[str]:
    """Returns the classes in a config.json as BERT's, those of TensorFlow and Flax under PyTorch's names."""
    names, family = values.get("architectures") or [], FAMILIES.get(values.get("family", "bert"))
    title = family.title if family else "Bert"
    return [
        re.sub(rf"^(TF|Flax)?{title}(?=[A-Z])", "Bert", str(name))
        for name in (names if isinstance(names, list) else [names])
    ]


def check_labels(location: str, outputs: int) -> None:
    """Raises ConfigError if the config.json of a folder, or next to a file, has another number of classes
    than the classifier has outputs. A multiple-choice classifier has one output, whatever that number is."""
    values, path = _read_config(location)
    found, number = model_folder.labels_of_hugging_face(values, path), values.get("num_labels")
    if found["problem_type"] == model_folder.PROBLEM_TYPE_OF["choice"]:
        return
    model_folder.check_label_count(found["labels"], outputs, path)
    if number not in (None, outputs):
        raise ConfigError(f"{path}: num_labels={str(number)[:40]}, the classifier has {outputs} outputs.")


def sizes(location: str) -> dict:
    """Returns the model's sizes under the keys of bert_config.json, from the folder's config.json.

    Args:
      location: folder, or .safetensors file in one.

    Returns:
      The existing keys of BertConfig, and position_embedding_type. hidden_act is this project's name (see
      above), by default transformers' default. Empty without a config.json.

    Raises:
      ConfigError: if config.json is not JSON or is of another model, also by its position_embedding_type.
    """
    values, path = _read_config(location)
    if is_hugging_face(values):
        check_other_keys(values, path)
        values.setdefault("family", BertConfig.family)
        for name in _plain_names(values):
            if name not in _SUPPORTED:
                others = f"(another model or head), only {', '.join(_SUPPORTED)}."
                raise ConfigError(f"{path}: architectures={name[:60]} is not supported {others}")
    else:
        model_folder.check_values(values, CONFIG, path)
    activation = activation_of(values)
    if activation is not None:
        values["hidden_act"] = activation
    if "layer_norm_eps" in values:
        checked_size("layer_norm_eps", values["layer_norm_eps"], path)
    keys = (*(field.name for field in dataclasses.fields(BertConfig)), "position_embedding_type")
    return {key: values[key] for key in keys if key in values}
