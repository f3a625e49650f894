"""The sizes of a model, under the keys of Google's bert_config.json."""

import dataclasses

from official.io.errors import ConfigError, suggest


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT model under Google's bert_config.json names. Defaults are BERT-base's."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu_tanh"  # of ACTIVATIONS
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12


# Keys that published bert_config.json files carry beside the model's sizes, with the only value this model has
# (None: any, it describes the file and not the model).
_KNOWN_EXTRA_KEYS = {
    "directionality": "bidi", "pooler_fc_size": None, "pooler_num_attention_heads": None, "pooler_num_fc_layers": None,
    "pooler_size_per_head": None, "pooler_type": "first_token_transform", "model_type": "bert",
    "pad_token_id": 0, "position_embedding_type": "absolute", "architectures": None, "_name_or_path": None,
    "transformers_version": None, "gradient_checkpointing": None, "use_cache": None, "classifier_dropout": None, "torch_dtype": None,
    "dtype": None, "id2label": None, "label2id": None, "tie_word_embeddings": True,
}
# The activations, by names that mean one thing: GELU in Google's form with tanh and in the exact one with the error function.
ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu")
# Hugging Face's other names. Its plain `gelu` is the exact form, Google's the one with tanh: see `activation_of`.
_ACTIVATION_ALIASES = {
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"), "gelu_tanh"),
    "gelu_python": "gelu_erf",
}
_BERT_FIELDS = {field.name: field for field in dataclasses.fields(BertConfig)}
# What a model computes depends on these, and no tensor's shape tells them.
WITHOUT_SHAPE = ("num_attention_heads", "hidden_act", "layer_norm_eps")


def activation_of(values: dict):
    """Returns the name in ACTIVATIONS of what a model's JSON calls `hidden_act`.

    Args:
      values: of a bert_config.json, of a Hugging Face config.json, which `model_type` or `architectures` tell, or the `model` of a run.

    Returns:
      The name; None where the file says none and is not Hugging Face's, whose default is its `gelu`; what is unknown as it is.
    """
    theirs = "model_type" in values or "architectures" in values
    name = values.get("hidden_act", "gelu" if theirs else None)
    if name == "gelu":
        return "gelu_erf" if theirs else "gelu_tanh"
    return _ACTIVATION_ALIASES.get(name, name) if isinstance(name, str) else name


def contradictions(model: BertConfig, values: dict) -> list[str]:
    """Says where a checkpoint's configuration computes something else than a model of the same shapes: 'it has A, the model has B'.

    Args:
      model: of the run.
      values: of the JSON that lies with the checkpoint; what it does not say is not compared.
    """
    said = {key: values[key] for key in WITHOUT_SHAPE if values.get(key) is not None}
    if activation_of(values) is not None:
        said["hidden_act"] = activation_of(values)
    own = dataclasses.asdict(model)
    return [f"has {key}={said[key]}, the model has {key}={own[key]}" for key in said if said[key] != own[key]]


def bert_config_from_dict(values: dict, source: str) -> BertConfig:
    """Checks Google's keys and returns the model's sizes. `source` names the file in messages. Raises ConfigError."""
    sizes = {}
    activation = activation_of(values)
    for key, value in (values if activation is None else {**values, "hidden_act": activation}).items():
        if key in _BERT_FIELDS:
            sizes[key] = checked_size(key, value, source)
        elif key not in _KNOWN_EXTRA_KEYS:
            raise ConfigError(f"{source}: unknown key {key!r}{suggest(key, _BERT_FIELDS)}.")
        elif _KNOWN_EXTRA_KEYS[key] not in (None, value):
            raise ConfigError(f"{source}: {key}={value!r} is not supported, only {_KNOWN_EXTRA_KEYS[key]!r}.")
    if "vocab_size" not in sizes:
        raise ConfigError(f"{source}: vocab_size is missing.")
    model = BertConfig(**sizes)
    if model.hidden_size % model.num_attention_heads:
        raise ConfigError(f"{source}: hidden_size={model.hidden_size} is not divisible by num_attention_heads={model.num_attention_heads}.")
    if model.hidden_act not in ACTIVATIONS:
        raise ConfigError(f"{source}: hidden_act={model.hidden_act!r} is unknown. Allowed: {', '.join(ACTIVATIONS[:2])}, gelu, relu.")
    return model


def checked_size(key: str, value, source: str):
    """Returns the value of a key of BertConfig. Raises ConfigError where it is of the wrong type or range."""
    kind = _BERT_FIELDS[key].type
    if kind is str:
        valid = isinstance(value, str)
    elif kind is int:
        valid = isinstance(value, int) and not isinstance(value, bool) and value > 0
    else:
        valid = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1
        valid = valid and (value > 0 or key != "layer_norm_eps")
    if not valid:
        numbers = "a number in (0, 1)" if key == "layer_norm_eps" else "a number in [0, 1)"
        allowed = {str: "a string", int: "a positive integer", float: numbers}[kind]
        raise ConfigError(f"{source}: {key}={value!r}, expected {allowed}.")
    return value
