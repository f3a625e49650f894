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
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02


# Far above any model there is: what is larger is a slip, and would be built until memory ends.
LARGEST = {"vocab_size": 10**7, "hidden_size": 2**16, "num_hidden_layers": 1000, "num_attention_heads": 2**10, "intermediate_size": 2**18,
            "max_position_embeddings": 2**20, "type_vocab_size": 2**10}
_MOST_PARAMETERS = 10**11

# Keys that published bert_config.json files carry beside the model's sizes, with the only value this model has
# (None: any, it describes the file and not the model).
_KNOWN_EXTRA_KEYS = {
    "directionality": "bidi", "pooler_fc_size": None, "pooler_num_attention_heads": None, "pooler_num_fc_layers": None,
    "pooler_size_per_head": None, "pooler_type": "first_token_transform", "layer_norm_eps": 1e-12, "model_type": "bert",
    "pad_token_id": 0, "position_embedding_type": "absolute", "architectures": None, "_name_or_path": None,
    "transformers_version": None, "gradient_checkpointing": None, "use_cache": None, "classifier_dropout": None, "torch_dtype": None,
    "dtype": None, "id2label": None, "label2id": None, "tie_word_embeddings": True,
}
# Hugging Face's names of the tanh form, which is Google's gelu.
_ACTIVATION_ALIASES = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu"}
_BERT_FIELDS = {field.name: field for field in dataclasses.fields(BertConfig)}


def bert_config_from_dict(values: dict, source: str) -> BertConfig:
    """Checks Google's keys and returns the model's sizes. `source` names the file in messages. Raises ConfigError."""
    sizes = {}
    for key, value in values.items():
        if key in _BERT_FIELDS:
            sizes[key] = _checked_size(key, _ACTIVATION_ALIASES.get(value, value) if key == "hidden_act" else value, source)
        elif key not in _KNOWN_EXTRA_KEYS:
            raise ConfigError(f"{source}: unknown key {key!r}{suggest(key, _BERT_FIELDS)}.")
        elif _KNOWN_EXTRA_KEYS[key] not in (None, value):
            raise ConfigError(f"{source}: {key}={value!r} is not supported, only {_KNOWN_EXTRA_KEYS[key]!r}.")
    if "vocab_size" not in sizes:
        raise ConfigError(f"{source}: vocab_size is missing.")
    model = BertConfig(**sizes)
    if model.hidden_size % model.num_attention_heads:
        raise ConfigError(f"{source}: hidden_size={model.hidden_size} is not divisible by num_attention_heads={model.num_attention_heads}.")
    if parameters(model) > _MOST_PARAMETERS:
        raise ConfigError(f"{source}: these sizes make {parameters(model):.1e} parameters, at most {_MOST_PARAMETERS:.0e} are allowed.")
    if model.hidden_act not in ("gelu", "relu"):
        raise ConfigError(f"{source}: hidden_act={model.hidden_act!r} is unknown. Allowed: gelu, relu.")
    return model


def parameters(model: BertConfig) -> int:
    """Returns the number of weights of the encoder: embeddings, blocks and pooler."""
    hidden, inner = model.hidden_size, model.intermediate_size
    embeddings = (model.vocab_size + model.max_position_embeddings + model.type_vocab_size + 2) * hidden
    block = 4 * hidden * (hidden + 1) + 2 * hidden * inner + inner + hidden + 4 * hidden
    return embeddings + model.num_hidden_layers * block + hidden * (hidden + 1)


def _checked_size(key: str, value, source: str):
    kind = _BERT_FIELDS[key].type
    if kind is str:
        valid = isinstance(value, str)
    elif kind is int:
        valid = isinstance(value, int) and not isinstance(value, bool) and value > 0
    else:
        valid = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1
    if not valid:
        allowed = {str: "a string", int: "a positive integer", float: "a number in [0, 1)"}[kind]
        raise ConfigError(f"{source}: {key}={value!r}, expected {allowed}.")
    if kind is int and value > LARGEST[key]:
        raise ConfigError(f"{source}: {key}={value}, expected at most {LARGEST[key]:,}.")
    return value
