"""Hugging Face folders (model.safetensors, config.json, vocab.txt): reading lazily, writing tensor by tensor.

Weights may be in parts (model.safetensors.index.json), and a single .safetensors file is read too. Pickle files
(pytorch_model.bin, *.pt) are refused unopened: loading one can run any code.

The activation. transformers' `gelu` is the exact form with erf, its `gelu_new` the form with tanh that Google's BERT calls
`gelu`. Here they are `gelu_erf` and `gelu_tanh`; a folder is read and written with transformers' names, so that it computes
there what it computes here.
"""

import dataclasses
import json
import os
import re
import struct

import ml_dtypes
import numpy as np
import safetensors
from absl import logging

from official.checkpoint import reading
from official.checkpoint.formats.options import Options
from official.checkpoint.formats.tensors import Tensor, Tensors
from official.config import BertConfig, ConfigError
from official.config.model import (
    activation_of,
    check_fixed_keys,
    check_other_keys,
    checked_size,
    is_hugging_face,
)
from official.io import json_files, label_files, vocabulary_files
from official.io.errors import shortened

WEIGHTS, INDEX, CONFIG, VOCABULARY = (
    "model.safetensors",
    "model.safetensors.index.json",
    "config.json",
    vocabulary_files.VOCABULARY,
)
LAST = WEIGHTS
# The files of a checkpoint; others in its folder, whatever they end in, are not its own.
_OF_VOCABULARY = (VOCABULARY, vocabulary_files.TOKENIZER, vocabulary_files.TOKENIZER_CONFIG)
_FILES = re.compile(
    r"model(-\d+-of-\d+)?\.safetensors|" + "|".join(map(re.escape, (INDEX, CONFIG, *_OF_VOCABULARY)))
)
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle")
_OTHER_FORMATS = (".index", ".onnx")

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# This project's activation -> transformers' name.
_WRITTEN_ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu_erf": "gelu"}

# A tensor of the head -> the class whose files have it; what was fine-tuned tells more than what it was
# pre-trained with.
_ARCHITECTURES = {
    "classifier.weight": "BertForSequenceClassification",
    "qa_outputs.weight": "BertForQuestionAnswering",
    "cls.seq_relationship.weight": "BertForPreTraining",
    "cls.predictions.bias": "BertForMaskedLM",
}
_SIZES = (
    "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
    "encoder.layer.0.intermediate.dense.bias",
)


def locate(path: str) -> str | None:
    """Returns the folder or the .safetensors file that a path means; None where there is none.

    Raises:
      ConfigError: where a path means a pickle file, or a folder that has nothing else to read.
    """
    if os.path.isdir(path):
        names = os.listdir(path)
        if WEIGHTS in names or INDEX in names:
            return path
        pickles = (
            []
            if any(name.endswith(_OTHER_FORMATS) for name in names)
            else sorted(name for name in names if name.endswith(_PICKLES))
        )
        if pickles:
            _refuse_pickle(os.path.join(path, pickles[0]))
    elif os.path.isfile(path) and path.endswith(_PICKLES):
        _refuse_pickle(path)
    elif os.path.isfile(path) and path.endswith(INDEX):
        return os.path.dirname(path) or "."
    elif os.path.isfile(path) and path.endswith(".safetensors"):
        return path
    return None


def _refuse_pickle(path: str) -> None:
    raise ConfigError(
        f"{path}: pickle files are not read, since loading one can run any code. Save the model as"
        f" safetensors instead ({WEIGHTS}): model.save_pretrained(FOLDER, safe_serialization=True)."
    )


def read(location: str) -> Tensors:
    """Returns the tensors of a folder or file.

    Raises:
      DamagedError: also when one of them is read.
      ConfigError: where config.json, if there is one, is of a model that this project does not compute.
    """
    sizes(location)
    if not os.path.isdir(location):
        return _read_file(location)
    whole = os.path.join(location, WEIGHTS)
    return _read_file(whole) if os.path.exists(whole) else _read_parts(location)


def _read_parts(folder: str) -> Tensors:
    parts, tensors = _weight_map(folder), {}
    for part in sorted(set(parts.values())):
        found = _read_file(os.path.join(folder, part))
        tensors |= {name: tensor for name, tensor in found.items() if parts.get(name, part) == part}
    missing = sorted(set(parts) - set(tensors))
    if missing:
        raise reading.DamagedError(f"{INDEX} lists tensors that are not in their files: {shortened(missing)}")
    return tensors


def _weight_map(folder: str) -> dict[str, str]:
    """Returns {name of tensor: file in the folder}."""
    path = os.path.join(folder, INDEX)
    try:
        parts = json_files.expect(json_files.read_json(path), "weight_map", dict, path)
    except ConfigError as error:
        raise reading.DamagedError(f"{INDEX} cannot be read ({error})") from None
    outside = [part for part in parts.values() if not isinstance(part, str) or os.path.basename(part) != part]
    if outside:
        raise reading.DamagedError(f"{INDEX} names files outside its folder: {outside[0]}")
    return parts


def _read_file(path: str) -> Tensors:
    with _open(path) as file:
        views = {name: file.get_slice(name) for name in sorted(file.keys())}
        types = {name: view.get_dtype() for name, view in views.items()}
        unknown = [name for name in types if types[name] not in _DTYPES]
        if unknown:
            raise reading.DamagedError(
                f"{unknown[0]} is of type {types[unknown[0]]}; read are {', '.join(_DTYPES)}"
            )
        return {
            name: _lazy(path, name, tuple(view.get_shape()), _DTYPES[types[name]])
            for name, view in views.items()
        }


def _lazy(path: str, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    def get():
        # Opened for every tensor: the library maps the file, and pages that were read would count as memory
        # until it is closed.
        with _open(path) as file:
            try:
                return file.get_tensor(name)
            except safetensors.SafetensorError as error:
                raise reading.DamagedError(f"{name}: {_one_line(error)}") from None

    return Tensor(shape, dtype, get, (name,))


def _open(path: str):
    try:
        return safetensors.safe_open(path, framework="np")
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise reading.DamagedError(f"{os.path.basename(path)}: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def target(output_dir: str, source: str) -> str:
    """Returns OUTPUT_DIR: a checkpoint is a folder."""
    return output_dir


def files(location: str) -> list[str]:
    """Returns the files of a folder, or the file, that are there."""
    if os.path.isfile(location):
        return [location]
    names = sorted(os.listdir(location)) if os.path.isdir(location) else []
    return [os.path.join(location, name) for name in names if _FILES.fullmatch(name)]


def write(tensors: Tensors, folder: str, options: Options | None = None, progress=lambda size: None) -> None:
    """Writes a folder that transformers loads: weights, config.json and, where `options.vocab_file` gives a
    vocabulary, that.

    Args:
      tensors: {Hugging Face's name: tensor}, read here one after the other.
      folder: made where it is not there.
      options: num_attention_heads, hidden_act, vocab_file, do_lower_case, labels, problem_type.
      progress: called with the bytes written since the last call.

    Raises:
      ConfigError: where the number of heads or the vocabulary does not fit the tensors.
    """
    options = options or Options()
    config = make_config(tensors, options)
    _check_vocabulary(options.vocab_file, config["vocab_size"])
    os.makedirs(folder, exist_ok=True)
    _write_weights(tensors, os.path.join(folder, WEIGHTS), progress)
    beside = {
        CONFIG: (json.dumps(config, indent=2, sort_keys=True) + "\n").encode(),
        **_vocabulary(options, config["max_position_embeddings"]),
    }
    for name, content in beside.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)


def _write_weights(tensors: Tensors, path: str, progress) -> None:
    # Wide types first, as the library writes them: every tensor then begins at a multiple of its type's size.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    with open(path, "wb") as file:
        file.write(_header({name: tensors[name] for name in names}))
        for name in names:
            values = np.ascontiguousarray(tensors[name].read(), tensors[name].dtype)
            file.write(values.reshape(-1).view(np.uint8))
            progress(tensors[name].nbytes)


def _header(tensors: Tensors) -> bytes:
    """Returns the head of a file: its length, then names, types, shapes and places as JSON, padded to 8
    bytes."""
    entries, place = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPE_NAMES:
            raise ConfigError(
                f"{name} is of type {tensor.dtype}, which is not written. Allowed:"
                f" {', '.join(map(str, _DTYPE_NAMES))}."
            )
        entries[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + tensor.nbytes],
        }
        place += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _vocabulary(options: Options, positions: int) -> dict[str, bytes]:
    return (
        vocabulary_files.companions(options.vocab_file, options.do_lower_case, positions)
        if options.vocab_file
        else {}
    )


def make_config(tensors: Tensors, options: Options) -> dict:
    """Returns the content of config.json for tensors under Hugging Face's names.

    Raises:
      ConfigError: where the number of heads is not given and hidden size / 64 is none, or does not divide the
        hidden size, and where the encoder is not there.
    """
    named = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    missing = [name for name in _SIZES if name not in named]
    if missing:
        raise ConfigError(
            f"tensors that give the sizes in {CONFIG} are missing: {', '.join(missing)}. The encoder must be"
            " there as a whole."
        )
    shapes = {name: tensor.shape for name, tensor in named.items()}
    words, hidden = shapes["embeddings.word_embeddings.weight"]
    architecture = next((name for head, name in _ARCHITECTURES.items() if head in shapes), "BertModel")
    return {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": words,
        "hidden_size": hidden,
        "num_hidden_layers": (
            1 + max(int(name.split(".")[2]) for name in shapes if name.startswith("encoder.layer."))
        ),
        "num_attention_heads": _number_of_heads(hidden, options),
        "intermediate_size": shapes["encoder.layer.0.intermediate.dense.bias"][0],
        "max_position_embeddings": shapes["embeddings.position_embeddings.weight"][0],
        "type_vocab_size": shapes["embeddings.token_type_embeddings.weight"][0],
        "hidden_act": _written_activation(options.hidden_act),
        "layer_norm_eps": options.layer_norm_eps or BertConfig.layer_norm_eps,
        "initializer_range": 0.02,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "torch_dtype": named["embeddings.word_embeddings.weight"].dtype.name,
        **_labels(shapes, options),
    }


def _labels(shapes: dict[str, tuple[int, ...]], options: Options) -> dict:
    if "classifier.weight" not in shapes:
        return {}
    return label_files.to_hugging_face(options.labels, options.problem_type, shapes["classifier.weight"][0])


def labels_of(location: str) -> dict:
    """Returns the options `labels` and `problem_type` that the config.json of a folder, or beside a file,
    gives."""
    path = os.path.join(_folder(location), CONFIG)
    return label_files.of_hugging_face(json_files.read_json(path) if os.path.isfile(path) else {})


def _written_activation(hidden_act: str | None) -> str:
    """Returns transformers' name of this project's activation."""
    return _WRITTEN_ACTIVATIONS.get(hidden_act or BertConfig.hidden_act, hidden_act)


def _number_of_heads(hidden: int, options: Options) -> int:
    heads = options.num_attention_heads
    if heads is not None and (isinstance(heads, bool) or not isinstance(heads, int)):
        raise ConfigError(
            f"--num_attention_heads={heads!r} must be an integer. Give a divisor of hidden_size={hidden}."
        )
    if heads is None and hidden % 64 == 0:
        logging.warning(
            "%d attention heads of size 64 are assumed; the weights do not tell. --num_attention_heads"
            " changes it.",
            hidden // 64,
        )
        return hidden // 64
    if heads is None or heads < 1 or hidden % heads:
        given = (
            "is not given and the hidden size is no multiple of 64"
            if heads is None
            else "does not divide the hidden size"
        )
        raise ConfigError(
            f"--num_attention_heads={heads} {given}: hidden_size={hidden}. Give a divisor of it."
        )
    return heads


def _check_vocabulary(path: str | None, rows: int) -> None:
    if path is None:
        return
    words = len(vocabulary_files.read(path).words)
    if words > rows:
        raise ConfigError(
            f"--vocab_file={path} has {words} words, the word embeddings have {rows} rows. Give the"
            f" vocabulary of this model, or --vocab_size={words}."
        )


def vocabulary_beside(location: str) -> str | None:
    """Returns the vocab.txt, or else tokenizer.json, that lies with a checkpoint (folder, prefix or file);
    None where there is none."""
    path = vocabulary_files.find(_folder(location))
    if path is None:
        return None
    try:
        file = vocabulary_files.read(path)
        vocabulary_files.check_each(file.words, path)
        return file.path
    except ConfigError as error:
        logging.warning("The vocabulary beside the checkpoint is left out. %s", error)
        return None


def sizes(location: str) -> dict:
    """Returns the model's sizes under the keys of bert_config.json, as the folder's config.json gives them.

    Args:
      location: folder, or .safetensors file in one.

    Returns:
      The keys of BertConfig that are there, and position_embedding_type. hidden_act is this project's name
      (see above), and transformers' default where the file says none. Empty where there is no config.json.

    Raises:
      ConfigError: where config.json is not JSON or another model's, which position_embedding_type tells too.
    """
    path = os.path.join(_folder(location), CONFIG)
    if not os.path.exists(path):
        return {}
    values = json_files.read_json(path)
    (check_other_keys if is_hugging_face(values) else check_fixed_keys)(values, path)
    if activation_of(values) is not None:
        values["hidden_act"] = activation_of(values)
    if "layer_norm_eps" in values:
        checked_size("layer_norm_eps", values["layer_norm_eps"], path)
    keys = (*(field.name for field in dataclasses.fields(BertConfig)), "position_embedding_type")
    return {key: values[key] for key in keys if key in values}


def _folder(location: str) -> str:
    return location if os.path.isdir(location) else os.path.dirname(location) or "."
