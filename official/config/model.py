"""The sizes of a model, under the keys of Google's bert_config.json, and the families of encoders."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from official.io import model_folder
from official.io.errors import ConfigError, suggest

# -----------------------------------------------------------------------------------------------------------
# Families: differences of encoders from BERT, by the names in Hugging Face's files


# Parts of names of weights that some families lack.
_PROJECTION, _DISCRIMINATOR = ".embeddings_project.", "discriminator_predictions."
_NEXT_SENTENCE = "cls.seq_relationship."


class Family(NamedTuple):
    """A family of encoders.

    Attributes:
      name: `model_type` of config.json.
      title: prefix of the names of transformers' classes.
      scope: prefix of the encoder's weights in models with heads.
      segments: usual number of rows of the table of segments. With one row, which all tokens use, or none,
        the texts of a pair are only separated by the [SEP] between them.
      pooler_act: activation of the layer between [CLS] and a classifier.
      masked_lm_act: activation of the transform of the masked-LM head; None: `hidden_act`.
      keys: {key of BERT's config.json: the family's key, or several keys of one value, separated by spaces}.
      defaults: {BERT's key: default value in its config.json}, if different from BERT's.
      ignored: keys of its config.json without effect on the computation here.
      absent: parts of BERT's names of weights that the family lacks.
      renamed: [(part of BERT's names of weights, the family's)], replaced in this order.
      heads: {end of a class name: {part of BERT's names: the part in its files, None if it lacks these
        weights}}, for classes whose names differ from those of the others.
      answers: the family's name of the output layer for answers. If a classifier has the same, config.json
        distinguishes them.
      block_type: type of its blocks, see `block_types`.
      has_biases: whether dense layers of the encoder and LayerNorms have biases.
      has_prediction_head: whether a dense layer, activation and LayerNorm precede every output layer;
        otherwise a pooler precedes a classifier's, and those three only the words'.
      without_shape: keys of BertConfig that its models need and no shape shows, besides WITHOUT_SHAPE.
      read: function from its config.json under BERT's keys, and the name of the file, to keys of BertConfig.
    """

    name: str
    title: str
    scope: str
    segments: int = 2
    pooler_act: str = "tanh"
    masked_lm_act: str | None = None
    keys: Mapping[str, str] = {}
    defaults: Mapping[str, Any] = {}
    ignored: Collection[str] = ()
    absent: tuple[str, ...] = (_PROJECTION, _DISCRIMINATOR)
    renamed: tuple[tuple[str, str], ...] = ()
    heads: Mapping[str, Mapping[str, str | None]] = {}
    answers: str = "qa_outputs"
    block_type: str = "bert"
    has_biases: bool = True
    has_prediction_head: bool = False
    without_shape: tuple[str, ...] = ()
    read: Callable[[dict[str, Any], str], dict[str, Any]] = lambda values, source: values

    @property
    def has_segments(self) -> bool:
        return self.segments > 0

    @property
    def has_positions(self) -> bool:
        """Whether tokens have a vector for their position. Otherwise the attention encodes it."""
        return "max_position_embeddings" not in self.without_shape

    @property
    def has_next_sentence(self) -> bool:
        return _NEXT_SENTENCE not in self.absent

    @property
    def has_embedding_size(self) -> bool:
        """Whether its tables may be narrower than its hidden size."""
        return _PROJECTION not in self.absent

    def their_name(self, name: str, head: str = "") -> str | None:
        """Returns the family's name of a weight, given BERT's, both in Hugging Face's notation; None without
        such a weight. `head` is one of `heads`, or any other end of a class's name."""
        for part, theirs in self.heads.get(head, {}).items():
            if name.startswith(part):
                return None if theirs is None else theirs + name[len(part) :]
        if any(part in name for part in self.absent):
            return None
        for part, theirs in self.renamed:
            name = name.replace(part, theirs)
        return name


_POOLER = "bert.pooler.dense."
# RoBERTa's text classifier, and ELECTRA's, has the layer over [CLS] in its head.
_CLASSIFIER = {_POOLER: "classifier.dense.", "classifier.": "classifier.out_proj."}
_NO_POOLER = {_POOLER: None}


def _with_position_offset(values: dict[str, Any], source: str) -> dict[str, Any]:
    """Returns the values of a config.json of a family whose positions start after the padding id. Raises
    ConfigError for an invalid id."""
    plain = dict(values)
    padding = plain.pop("pad_token_id", None)
    padding = 1 if padding is None else padding
    if not isinstance(padding, int) or isinstance(padding, bool) or padding < 0:
        expected = "an integer from 0 on, since positions are counted from it"
        raise ConfigError(f"{source}: pad_token_id={str(padding)[:40]!r}, expected {expected}.")
    return {**plain, "position_offset": padding + 1}


def _roberta(name: str, title: str) -> Family:
    """Returns one of the families that differ only in their vocabularies."""
    return Family(
        name,
        title,
        "roberta.",
        segments=1,
        masked_lm_act="gelu_erf",
        absent=(_PROJECTION, _DISCRIMINATOR, _NEXT_SENTENCE),
        renamed=(
            ("bert.", "roberta."),
            ("cls.predictions.transform.dense.", "lm_head.dense."),
            ("cls.predictions.transform.LayerNorm.", "lm_head.layer_norm."),
            ("cls.predictions.", "lm_head."),
        ),
        heads={
            "ForSequenceClassification": _CLASSIFIER,
            "ForTokenClassification": _NO_POOLER,
            "ForQuestionAnswering": _NO_POOLER,
        },
        without_shape=("position_offset",),
        read=_with_position_offset,
    )


def _modernbert_values(values: dict[str, Any], source: str) -> dict[str, Any]:
    """Returns a ModernBERT config.json in which single numbers define the layers that see all tokens, and the
    angles of both kinds. Raises ConfigError for other orders of layers and other angles."""
    plain = dict(values)
    kinds = plain.pop("layer_types", None)
    for key in ("num_hidden_layers", _EVERY, "local_attention"):
        checked_size(key, plain.get(key, 1), source)
    if kinds is not None:
        whole, count = "full_attention", plain["num_hidden_layers"]
        listed = kinds if isinstance(kinds, list) and len(kinds) == count else []
        second = next((number for number in range(1, len(listed)) if listed[number] == whole), max(3, count))
        step = plain.get(_EVERY, second)
        if not listed or listed != [
            "sliding_attention" if number % step else whole for number in range(count)
        ]:
            problem = f"{str(kinds)[:90]} is not supported, only full_attention in the first of"
            raise ConfigError(
                f"{source}: layer_types={problem} every {_EVERY} layers, sliding_attention elsewhere."
            )
        plain[_EVERY] = step
    angles = plain.pop("rope_parameters", None) or {}
    if not isinstance(angles, dict) or not all(
        isinstance(own, (dict, type(None))) for own in angles.values()
    ):
        expected = "expected full_attention and sliding_attention, each with a rope_theta"
        raise ConfigError(f"{source}: rope_parameters={str(angles)[:90]}, {expected}.")
    for kind, key in (("full_attention", "global_rope_theta"), ("sliding_attention", "local_rope_theta")):
        own = {name: value for name, value in (angles.get(kind) or {}).items() if value is not None}
        theta = own.pop("rope_theta", None)
        if {**own, "rope_type": own.get("rope_type", "default")} != {"rope_type": "default"}:
            problem = f"{str(own)[:90]} is not supported, only rope_type='default' (scaled angles)"
            raise ConfigError(f"{source}: rope_parameters: {kind}={problem}.")
        if theta is not None and plain.setdefault(key, theta) != theta:
            problem = f"{kind} has rope_theta={theta!r}, but {key}={plain[key]!r} is the same setting"
            raise ConfigError(f"{source}: rope_parameters: {problem}. Remove one of them.")
    half = plain.pop("sliding_window", None)  # read by transformers 5, not by 4
    if half not in (None, plain.get("local_attention", BertConfig.local_attention) // 2):
        expected = "half of local_attention, the tokens on either side"
        raise ConfigError(f"{source}: sliding_window={str(half)[:40]}, expected {expected}. Remove one.")
    return plain


_EVERY = "global_attn_every_n_layers"
# Settings of its initial model that a run may change.
_POSITIONS = "max_position_embeddings"
_OF_A_RUN = (_POSITIONS, "classifier_pooling")

# Source of keys and names: transformers, models/*/configuration_*.py and modeling_*.py.
FAMILIES = {
    family.name: family
    for family in (
        Family("bert", "Bert", "bert."),
        Family(
            "distilbert",
            "DistilBert",
            "distilbert.",
            segments=0,
            pooler_act="relu",
            keys={
                "hidden_size": "dim",
                "num_hidden_layers": "n_layers",
                "num_attention_heads": "n_heads",
                "intermediate_size": "hidden_dim",
                "hidden_act": "activation",
                "hidden_dropout_prob": "dropout",
                "attention_probs_dropout_prob": "attention_dropout",
            },
            defaults={"num_hidden_layers": 6, "hidden_act": "gelu"},
            # Its LayerNorms always have an epsilon of 1e-12.
            ignored="layer_norm_eps qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_weights_".split(),
            absent=(_PROJECTION, _DISCRIMINATOR, _NEXT_SENTENCE, ".token_type_"),
            renamed=(
                ("bert.embeddings.", "distilbert.embeddings."),
                ("bert.encoder.layer.", "distilbert.transformer.layer."),
                (".attention.self.query.", ".attention.q_lin."),
                (".attention.self.key.", ".attention.k_lin."),
                (".attention.self.value.", ".attention.v_lin."),
                (".attention.output.dense.", ".attention.out_lin."),
                (".attention.output.LayerNorm.", ".sa_layer_norm."),
                (".intermediate.dense.", ".ffn.lin1."),
                (".output.dense.", ".ffn.lin2."),
                (".output.LayerNorm.", ".output_layer_norm."),
                (_POOLER, "pre_classifier."),
                ("cls.predictions.transform.dense.", "vocab_transform."),
                ("cls.predictions.transform.LayerNorm.", "vocab_layer_norm."),
                ("cls.predictions.decoder.", "vocab_projector."),
                ("cls.predictions.", "vocab_projector."),
            ),
        ),
        _roberta("roberta", "Roberta"),
        _roberta("xlm-roberta", "XLMRoberta"),
        _roberta("camembert", "Camembert"),
        Family(
            "electra",
            "Electra",
            "electra.",
            pooler_act="gelu_erf",
            masked_lm_act="gelu_erf",
            defaults={
                "embedding_size": 128,
                "hidden_size": 256,
                "num_attention_heads": 4,
                "intermediate_size": 1024,
            },
            absent=(_POOLER, _NEXT_SENTENCE),
            renamed=(
                ("bert.", "electra."),
                ("cls.predictions.transform.", "generator_predictions."),
                ("cls.predictions.decoder.", "generator_lm_head."),
                ("cls.predictions.", "generator_lm_head."),
            ),
            heads={
                "ForSequenceClassification": _CLASSIFIER,
                "ForMultipleChoice": {_POOLER: "sequence_summary.summary."},
            },
        ),
        Family(
            "modernbert",
            "ModernBert",
            "model.",
            segments=0,
            keys={
                "hidden_act": "hidden_activation classifier_activation",
                "hidden_dropout_prob": "embedding_dropout mlp_dropout",
                "attention_probs_dropout_prob": "attention_dropout",
                "layer_norm_eps": "norm_eps",
            },
            defaults={
                "vocab_size": 50368,
                "intermediate_size": 1152,
                "num_hidden_layers": 22,
                "hidden_act": "gelu",
                "max_position_embeddings": 8192,
                "layer_norm_eps": 1e-5,
                "attention_probs_dropout_prob": 0.0,
                "hidden_dropout_prob": 0.0,
            },
            # Padding is masked independently of its id. Initial values are only drawn for new heads, as for
            # other families. Queries and keys are rotated by positions, whatever `position_embedding_type`
            # is. The rest concerns kernels and output sizes of transformers only.
            ignored="""deterministic_flash_attn initializer_cutoff_factor pad_token_id position_embedding_type
                reference_compile repad_logits_with_grad sparse_pred_ignore_index
                sparse_prediction""".split(),
            absent=(_PROJECTION, _DISCRIMINATOR, _NEXT_SENTENCE),
            renamed=(
                ("bert.embeddings.word_embeddings.", "model.embeddings.tok_embeddings."),
                ("bert.embeddings.LayerNorm.", "model.embeddings.norm."),
                ("bert.encoder.layer.", "model.layers."),
                (".attention.prenorm.LayerNorm.", ".attn_norm."),
                (".attention.self.qkv.", ".attn.Wqkv."),
                (".attention.output.dense.", ".attn.Wo."),
                (".feed_forward.prenorm.LayerNorm.", ".mlp_norm."),
                (".intermediate.dense.", ".mlp.Wi."),
                (".output.dense.", ".mlp.Wo."),
                ("cls.predictions.transform.dense.", "head.dense."),
                ("cls.predictions.transform.LayerNorm.", "head.norm."),
                ("LayerNorm.weight", "model.final_norm.weight"),
                ("cls.predictions.bias", "decoder.bias"),
                ("cls.predictions.decoder.", "decoder."),
            ),
            answers="classifier",
            block_type="modernbert",
            has_biases=False,
            has_prediction_head=True,
            without_shape=(_EVERY, *"local_attention global_rope_theta local_rope_theta".split(), *_OF_A_RUN),
            read=_modernbert_values,
        ),
    )
}


def family_of(values: Mapping[str, Any], source: str) -> Family:
    """Returns the family of a Hugging Face config.json. Raises ConfigError for an unsupported one."""
    name = values.get("model_type", "bert")
    if not isinstance(name, str) or name not in FAMILIES:
        allowed = ", ".join(map(repr, FAMILIES))
        raise ConfigError(f"{source}: model_type={str(name)[:60]!r} is not supported, only {allowed}.")
    return FAMILIES[name]


# Keys of BERT that transformers ignores in the files of a family with a key of its own for them.
_ONLY_THEIRS = ("hidden_act", "layer_norm_eps")


def with_plain_keys(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns the values of a config.json under BERT's keys, with `family` for those of another family.

    Raises:
      ConfigError: for an unsupported family, and for a size with two different values.
    """
    family = family_of(values, source)
    if family.name == "bert":
        return dict(values)
    plain = {key: value for key, value in values.items() if key not in family.ignored}
    for ours, names in family.keys.items():
        several = names.split()
        if len(several) > 1 or ours in _ONLY_THEIRS:  # missing ones have the usual value
            plain = {**dict.fromkeys(several, family.defaults[ours]), **plain}
        for theirs in several:
            if theirs not in plain:
                continue
            value = plain.pop(theirs)
            if plain.setdefault(ours, value) != value:
                usual = "" if theirs in values else " (by default)"
                conflict = f"{theirs}={value!r}{usual} and {ours}={plain[ours]!r} are the same size"
                raise ConfigError(f"{source}: {conflict}. Remove one of them.")
    if not family.has_segments:
        plain["type_vocab_size"] = 0
    if family.block_type != BertConfig.block_type:
        plain["block_type"] = family.block_type
    plain = family.read({**family.defaults, **plain}, source)
    return {**plain, "family": family.name, "model_type": "bert"}


def settings_of(family: Family, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a family's `without_shape`: from a configuration under BERT's keys, otherwise the
    usual ones."""
    usual = {**dataclasses.asdict(BertConfig()), **with_plain_keys({"model_type": family.name}, "")}
    return {key: given.get(key, usual[key]) for key in family.without_shape}


def with_their_keys(values: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Converts values of a BERT config.json to the keys of the family's files."""
    absent = () if family.has_segments else ("type_vocab_size", "position_embedding_type", "layer_norm_eps")
    known: dict[str, Any] = {}
    for key, value in values.items():
        theirs = family.keys.get(key, "" if key in absent else key).split()
        known.update(dict.fromkeys(theirs, value))
    if "position_offset" in known:
        known["pad_token_id"] = max(known.pop("position_offset") - 1, 0)
    return {**known, "model_type": family.name}


# -----------------------------------------------------------------------------------------------------------
# Sizes


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes of a model under Google's bert_config.json names. Defaults are BERT-base's."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu_tanh"  # one of ACTIVATIONS
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    block_type: str = "bert"  # one of block_types()
    family: str = "bert"  # one of FAMILIES
    embedding_size: int = 0  # width of the tables; 0: hidden_size
    position_offset: int = 0  # row of the position table for the first token
    # Graphcore's keys. Parts that are off have no variables.
    use_qkv_bias: bool = True
    use_attention_projection_bias: bool = True
    use_cls_layer: bool = True  # the transform of the masked-LM head
    use_prediction_bias: bool = True  # bias of the masked-LM head, one value per word
    groupbert_ffn_output_groups: int = 4
    groupbert_conv_kernel_size: int = 7
    groupbert_conv_group_size: int = 16
    # ModernBERT's keys.
    global_attn_every_n_layers: int = 3  # the first of them sees all tokens
    local_attention: int = 128  # tokens visible to the other layers, half of them on either side
    global_rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    classifier_pooling: str = "cls"  # input of a classifier: cls or mean

    @property
    def family_row(self) -> Family:
        return FAMILIES[self.family]

    @property
    def positions(self) -> int:
        """Maximum number of tokens of a sequence."""
        return self.max_position_embeddings - self.position_offset

    @property
    def table_width(self) -> int:
        return self.embedding_size or self.hidden_size

    @property
    def masked_lm_act(self) -> str:
        """Activation of the transform of the masked-LM head."""
        return FAMILIES[self.family].masked_lm_act or self.hidden_act

    @property
    def reads_segments(self) -> bool:
        """Whether a token's vector depends on its segment: there is a table with more than one row."""
        return FAMILIES[self.family].segments > 1 or self.type_vocab_size > 1

    @property
    def takes_pairs(self) -> bool:
        """Whether two texts in a row can be distinguished, by segments, or in a family that does not need
        segments."""
        return self.type_vocab_size >= FAMILIES[self.family].segments

    def why_no_pairs(self, marks_pairs: bool = True) -> str | None:
        """Returns the reason why the model cannot distinguish two texts in a row; None if it can.
        `marks_pairs`: whether its tokenizer gives the second text a separate segment."""
        if self.reads_segments and not marks_pairs:
            return "a tokenizer that gives both texts of a pair segment 0, and two segment types."
        if not self.takes_pairs:
            return f"type_vocab_size={self.type_vocab_size}: it takes one text. Two need two segment types."
        return None

    def sees_whole(self, layer: int) -> bool:
        """Returns whether tokens of a layer see their whole sequence, and not only a window."""
        return self.block_type != "modernbert" or layer % self.global_attn_every_n_layers == 0

    def tokens_seen(self, layer: int, length: int) -> int:
        """Returns the number of tokens of a row that a token is multiplied with in a layer's attention: a
        window is part of a band of blocks, see `official.modeling.blocks.modernbert`."""
        return length if self.sees_whole(layer) else min(4 * (self.local_attention // 2), length)

    @property
    def is_groupbert(self) -> bool:
        """Whether blocks are GroupBERT's: with a convolution in groups, and a LayerNorm before each part."""
        return self.block_type == "groupbert"


def generator_of(model: BertConfig, share: float) -> BertConfig:
    """Returns the sizes of the generator for the pre-training of an ELECTRA model: a share of its heads, at
    least one, of the same size, and the same share of its feed-forward size. It has the model's tables."""
    heads = max(1, round(share * model.num_attention_heads))
    hidden = heads * model.hidden_size // model.num_attention_heads
    return dataclasses.replace(
        model,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=max(1, model.intermediate_size * hidden // model.hidden_size),
        embedding_size=0 if hidden == model.table_width else model.table_width,
    )


# Far above any existing model: a larger number is a typo, and would exhaust memory.
LARGEST = 10**7  # maximum of a size
_MOST_PARAMETERS = 10**11

# The activations, {name here: other names of the same function}, mostly Hugging Face's. GELU has two forms:
# Google's with tanh and the exact one with the error function. A plain `gelu` may be either: see
# `activation_of`. `official.modeling.layers` has the functions.
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"),
    "gelu_erf": ("gelu_python",),
    "relu": (),
}
_ACTIVATION_ALIASES = {alias: name for name, aliases in ACTIVATIONS.items() for alias in aliases}
_BERT_FIELDS = {field.name: field for field in dataclasses.fields(BertConfig)}
KINDS: dict[str, type] = typing.get_type_hints(BertConfig)
# Settings that change the computation and cannot be derived from shapes.
WITHOUT_SHAPE = ("num_attention_heads", "hidden_act", "layer_norm_eps", "family")
# Settings that only affect training.
OF_TRAINING = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")


def activation_of(values: dict) -> Any:
    """Returns the name in ACTIVATIONS of `hidden_act` in a model's JSON.

    Args:
      values: content of a bert_config.json, of a Hugging Face config.json, identified by `model_type` or
        `architectures`, or the `model` of a run.

    Returns:
      The name; None if the file lacks it and is not Hugging Face's, whose default is its `gelu`; unknown
      names unchanged.
    """
    theirs = is_hugging_face(values)
    name = values.get("hidden_act", "gelu" if theirs else None)
    if name == "gelu":
        return "gelu_erf" if theirs else "gelu_tanh"
    return _ACTIVATION_ALIASES.get(name, name) if isinstance(name, str) else name


def contradictions(model: BertConfig, values: dict, is_own_run: bool = False) -> list[str]:
    """Lists differences in computation between a checkpoint's configuration and a model of the same shapes:
    'it has A, the model has B'.

    Args:
      model: configuration of the run.
      values: content of the checkpoint's JSON; missing keys are not compared.
      is_own_run: whether the checkpoint belongs to the model's run, and is not its initial checkpoint.
    """
    free = (_POSITIONS,) if is_own_run else _OF_A_RUN
    compared = {*WITHOUT_SHAPE, *model.family_row.without_shape} - {*free}
    said = {key: values[key] for key in _BERT_FIELDS if key in compared and values.get(key) is not None}
    if activation_of(values) is not None:
        said["hidden_act"] = activation_of(values)
    own = dataclasses.asdict(model)
    return [f"has {key}={said[key]}, the model has {key}={own[key]}" for key in said if said[key] != own[key]]


def bert_config_from_dict(values: dict, source: str) -> BertConfig:
    """Checks Google's keys and returns the model's sizes. `source` names the file in messages. Raises
    ConfigError."""
    values = with_plain_keys(values, source) if is_hugging_face(values) else values
    check_other_keys(values, source)
    sizes = {}
    activation = activation_of(values)
    for key, value in (values if activation is None else {**values, "hidden_act": activation}).items():
        if key in _BERT_FIELDS:
            sizes[key] = checked_size(key, value, source)
    if "vocab_size" not in sizes:
        raise ConfigError(f"{source}: vocab_size is missing.")
    model = BertConfig(**sizes)
    if problem := next(_problems(model), None):
        raise ConfigError(f"{source}: {problem}")
    # Sizes that its family sets, if missing in the file.
    changed = {key: value for key, value in settings_of(model.family_row, {}).items() if key not in sizes}
    if not model.family_row.has_segments:
        changed["type_vocab_size"] = 0
    if model.embedding_size == model.hidden_size:
        changed["embedding_size"] = 0
    model = dataclasses.replace(model, **changed)
    if model.positions < 1:
        why = f"the first token takes row {model.position_offset} of the position table"
        raise ConfigError(f"{source}: max_position_embeddings={model.max_position_embeddings}, and {why}.")
    return model


def block_types() -> list[str]:
    """Returns the kinds of encoder blocks: the names of the files in official/modeling/blocks."""
    folder = pathlib.Path(__file__).parents[1] / "modeling" / "blocks"
    return sorted(path.stem for path in folder.glob("[a-z]*.py"))


def _problems(model: BertConfig) -> Iterator[str]:
    """Yields contradictions between sizes, and sizes that the family lacks."""
    hidden, heads, family = model.hidden_size, model.num_attention_heads, model.family_row
    if hidden % heads:
        yield f"hidden_size={hidden} is not divisible by num_attention_heads={heads}."
    # The large matrices; GroupBERT has more, but in the same order of magnitude.
    taps = model.groupbert_conv_kernel_size * model.groupbert_conv_group_size if model.is_groupbert else 0
    rows = model.vocab_size + model.max_position_embeddings + model.type_vocab_size
    layer = (4 * hidden + 2 * model.intermediate_size + taps) * hidden
    parameters = rows * model.table_width + model.num_hidden_layers * layer
    if parameters > _MOST_PARAMETERS:
        yield f"these sizes make {parameters:.1e} parameters, at most {_MOST_PARAMETERS:.0e} are allowed."
    *gelus, relu = ACTIVATIONS
    named = {"hidden_act": [*gelus, "gelu", relu], "block_type": block_types()}
    for key, allowed in {**named, "classifier_pooling": ["cls", "mean"]}.items():
        if getattr(model, key) not in allowed:
            yield f"{key}={getattr(model, key)!r} is unknown. Allowed: {', '.join(allowed)}."
    if model.is_groupbert:
        for key, size in (
            ("groupbert_ffn_output_groups", "hidden_size"),
            ("groupbert_ffn_output_groups", "intermediate_size"),
            ("groupbert_conv_group_size", "hidden_size"),
        ):
            if getattr(model, size) % getattr(model, key):
                yield f"{size}={getattr(model, size)} is not divisible by {key}={getattr(model, key)}."
        if model.groupbert_conv_kernel_size % 2 == 0:
            expected = "expected an odd number: a token, and the same number of neighbours on either side"
            yield f"groupbert_conv_kernel_size={model.groupbert_conv_kernel_size}, {expected}."
    own = {each.block_type for each in FAMILIES.values()} - {BertConfig.block_type}
    if model.block_type != family.block_type and own & {model.block_type, family.block_type}:
        yield f"family={model.family!r} with block_type={model.block_type!r}, expected {family.block_type!r}."
    if not family.has_positions and hidden // heads % 2:
        odd = f"hidden_size={hidden} / num_attention_heads={heads} is odd"
        yield f"{odd}: rotary positions need an even head size."
    if family.has_segments and not model.type_vocab_size:
        yield "type_vocab_size=0, expected a positive integer."
    others = {key for other in FAMILIES.values() for key in other.without_shape} - {*family.without_shape}
    for key in sorted(others - {"max_position_embeddings"}):
        if getattr(model, key) != getattr(BertConfig, key):
            yield f"{key}={getattr(model, key)}, which models of family={family.name} do not have."
    has_own_width = family.has_embedding_size and model.use_cls_layer
    if model.embedding_size not in (0, hidden) and not has_own_width:
        needs = ", ".join(name for name, other in FAMILIES.items() if other.has_embedding_size)
        problem = f"another size than hidden_size={hidden} needs family={needs} and use_cls_layer"
        yield f"embedding_size={model.embedding_size}: {problem}."


def checked_sizes(values: dict, source: str) -> dict:
    """Returns the model's sizes in a file that may lack some keys and have further ones. Raises
    ConfigError for wrong values."""
    return {key: checked_size(key, values[key], source) for key in _BERT_FIELDS if key in values}


def check_other_keys(values: dict, source: str) -> None:
    """Checks the keys of a configuration that are not sizes.

    Hugging Face's files have `model_type` or `architectures`. There an unknown key may come from a newer
    version, and causes a warning. In Google's format, which is written by hand, it is an error, as is, in any
    format, a key that resembles a missing size.

    Args:
      values: the keys of Google's bert_config.json or of Hugging Face's config.json.
      source: name of the file in messages.

    Raises:
      ConfigError: for a value of another model than BERT, and for unknown keys.
    """
    model_folder.check_values(values, model_folder.CONFIG, source)
    theirs = is_hugging_face(values)
    for key in model_folder.unknown_keys(values, model_folder.CONFIG):
        if key in _BERT_FIELDS:
            continue
        meant = suggest(key, _BERT_FIELDS.keys() - values.keys() if theirs else _BERT_FIELDS)
        if meant or not theirs:
            raise ConfigError(f"{source}: unknown key {key[:60]!r}{meant}.")
        model_folder.warn_of_key(key[:60], source)


def is_hugging_face(values: dict) -> bool:
    """Returns whether a model's configuration is in Hugging Face's format."""
    return "model_type" in values or "architectures" in values


def checked_size(key: str, value: Any, source: str) -> Any:
    """Returns the value of a key of BertConfig. Raises ConfigError if it has the wrong type or range."""
    kind: Any = KINDS[key]
    if kind in (bool, str):
        valid = isinstance(value, kind)
    elif kind is int:
        least = 0 if key in ("type_vocab_size", "embedding_size", "position_offset") else 1
        valid = isinstance(value, int) and not isinstance(value, bool) and value >= least
    else:
        above = key.endswith("_theta")
        valid = isinstance(value, (int, float)) and not isinstance(value, bool)
        valid = valid and (1 < value < math.inf if above else 0 <= value < 1)
        valid = valid and (value > 0 or key != "layer_norm_eps")
    if not valid:
        numbers = "a number in (0, 1)" if key == "layer_norm_eps" else "a number in [0, 1)"
        numbers = "a number above 1" if key.endswith("_theta") else numbers
        allowed = {bool: "true or false", str: "a string", int: "a positive integer"}.get(kind, numbers)
        raise ConfigError(f"{source}: {key}={value!r}, expected {allowed}.")
    if key == "family" and value not in FAMILIES:
        raise ConfigError(f"{source}: family={value!r} is unknown. Allowed: {', '.join(FAMILIES)}.")
    if kind is int and value > LARGEST:
        raise ConfigError(f"{source}: {key}={value}, expected at most {LARGEST:,}.")
    return value
