"""Hugging Face's config.json and what else lies in its folders beside the weights: read and written.

The activation. transformers' `gelu` is the exact form with erf, its `gelu_new` the form with tanh that
Google's BERT calls `gelu`. Here they are `gelu_erf` and `gelu_tanh`; a folder is read and written with
transformers' names, so that it computes there what it computes here.
"""

import dataclasses
import json
import os
import re

from official.checkpoint.formats import Options
from official.checkpoint.tensors import Tensors
from official.config import BertConfig, ConfigError
from official.config.model import activation_of, check_other_keys, checked_size, is_hugging_face
from official.io import json_files, model_folder, vocabulary_files

CONFIG = model_folder.CONFIG
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
_NEXT_SENTENCE_ONLY = "BertForNextSentencePrediction"
_SUPPORTED = ("BertModel", *_ARCHITECTURES.values(), _NEXT_SENTENCE_ONLY, "BertLMHeadModel")
_OTHER_HEADS = {
    "BertForTokenClassification": "it labels words, which nothing here does",
    "BertForMultipleChoice": "it chooses between texts, which nothing here does",
}


def files(tensors: Tensors, options: Options) -> dict[str, bytes]:
    """Returns {name: content} of what belongs in a folder with the weights.

    Args:
      tensors: {Hugging Face's name: tensor}, of a whole encoder at least.
      options: num_attention_heads, hidden_act, vocab_file, do_lower_case, labels, problem_type.

    Raises:
      ConfigError: where the number of heads is not known, or it or the vocabulary does not fit the tensors.
    """
    named = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    shapes = {name: tensor.shape for name, tensor in named.items()}
    words, hidden = shapes["embeddings.word_embeddings.weight"]
    positions = shapes["embeddings.position_embeddings.weight"][0]
    heads = options.heads_of(hidden)
    if heads is None:
        raise ConfigError(
            "nothing says how many attention heads the model has: the weights do not tell. Give"
            f" --num_attention_heads=N, a divisor of hidden_size={hidden}, or put its {CONFIG} or"
            " bert_config.json beside them."
        )
    architecture = next((name for head, name in _ARCHITECTURES.items() if head in shapes), "BertModel")
    if architecture == "BertForPreTraining" and "cls.predictions.bias" not in shapes:
        architecture = _NEXT_SENTENCE_ONLY
    labels = {}
    if "classifier.weight" in shapes:
        classes = shapes["classifier.weight"][0]
        labels = model_folder.labels_to_hugging_face(options.labels, options.problem_type, classes)
    ours = options.hidden_act or BertConfig.hidden_act
    layers = {name.split(".")[2] for name in shapes if name.startswith("encoder.layer.")}
    config = {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": words,
        "hidden_size": hidden,
        "num_hidden_layers": len(layers),
        "num_attention_heads": heads,
        "intermediate_size": shapes["encoder.layer.0.intermediate.dense.bias"][0],
        "max_position_embeddings": positions,
        "type_vocab_size": shapes["embeddings.token_type_embeddings.weight"][0],
        "hidden_act": _WRITTEN_ACTIVATIONS.get(ours, ours),
        "layer_norm_eps": options.layer_norm_eps or BertConfig.layer_norm_eps,
        "initializer_range": 0.02,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "torch_dtype": named["embeddings.word_embeddings.weight"].dtype.name,
        **labels,
    }
    written = {CONFIG: (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()}
    if options.vocab_file is None:
        return written
    count = len(vocabulary_files.read(options.vocab_file).words)
    if count > words:
        raise ConfigError(
            f"--vocab_file={options.vocab_file} has {count} words, the word embeddings have {words} rows."
            f" Give the vocabulary of this model, or --vocab_size={count}."
        )
    return written | vocabulary_files.companions(options.vocab_file, options.do_lower_case, positions)


def _read_config(location: str) -> tuple[dict, str]:
    """Returns the content of the config.json of a folder, or beside a file, and its path; {} without one."""
    path = os.path.join(model_folder.folder_of(location), CONFIG)
    return (json_files.read_json(path, any_number=True) if os.path.exists(path) else {}), path


def labels_of(location: str) -> dict:
    """Returns the options `labels` and `problem_type` that the config.json of a folder, or beside a file,
    gives. Names that are made up, LABEL_0, count for none."""
    values, path = _read_config(location)
    found = model_folder.labels_of_hugging_face(values, path, model_folder.cross_encoder_activation(location))
    is_numbered = model_folder.are_numbered_labels(found["labels"] or ())
    return {**found, "labels": None if is_numbered else found["labels"]}


def check_labels(location: str, outputs: int) -> None:
    """Raises ConfigError where the config.json of a folder, or beside a file, names another number of classes
    than the classifier has outputs."""
    values, path = _read_config(location)
    labels = model_folder.labels_of_hugging_face(values, path)["labels"]
    model_folder.check_label_count(labels, outputs, path)


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
    values, path = _read_config(location)
    if is_hugging_face(values):
        check_other_keys(values, path)
        names = values.get("architectures") or []
        for name in names if isinstance(names, list) else [names]:
            plain = re.sub(r"^(TF|Flax)(?=Bert)", "", str(name))
            if plain not in _SUPPORTED:
                reason = _OTHER_HEADS.get(plain, "another model or head")
                raise ConfigError(
                    f"{path}: architectures={str(name)[:60]} is not supported ({reason}), only"
                    f" {', '.join(_SUPPORTED)}."
                )
    else:
        model_folder.check_values(values, CONFIG, path)
    if activation_of(values) is not None:
        values["hidden_act"] = activation_of(values)
    if "layer_norm_eps" in values:
        checked_size("layer_norm_eps", values["layer_norm_eps"], path)
    keys = (*(field.name for field in dataclasses.fields(BertConfig)), "position_embedding_type")
    return {key: values[key] for key in keys if key in values}
