"""Families of encoders: how a model of each differs from BERT, under the names of Hugging Face's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from official.io.errors import ConfigError


class Family(NamedTuple):
    """A family of encoders.

    Attributes:
      name: `model_type` of config.json; encoder's names begin with it.
      title: how names of transformers' classes begin.
      has_segments: whether tokens have a vector for their segment. Where they have none, the texts of a pair
        are told apart by the [SEP] between them, and there is no next-sentence task.
      pooler_act: activation of the layer between [CLS] and a classifier.
      keys: {key of BERT's config.json: the family's}.
      ignored: keys of its config.json that change nothing that is computed here.
      renamed: [(part of BERT's names of weights, the family's)], put in one after the other.
    """

    name: str
    title: str
    has_segments: bool = True
    pooler_act: str = "tanh"
    keys: Mapping[str, str] = {}
    ignored: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    def their_name(self, name: str) -> str | None:
        """Returns the family's name of a weight of BERT's, both as Hugging Face writes them; None where the
        family has no such weight."""
        absent = ("cls.seq_relationship.", *(() if self.has_segments else (".token_type_embeddings.",)))
        if self.renamed and any(part in name for part in absent):
            return None
        for part, theirs in self.renamed:
            name = name.replace(part, theirs)
        return name


# Source of keys and names: transformers, models/*/configuration_*.py and modeling_*.py.
FAMILIES = {
    family.name: family
    for family in (
        Family("bert", "Bert"),
        Family(
            "distilbert",
            "DistilBert",
            has_segments=False,
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
            ignored=("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_"),
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
                ("bert.pooler.dense.", "pre_classifier."),
                ("cls.predictions.transform.dense.", "vocab_transform."),
                ("cls.predictions.transform.LayerNorm.", "vocab_layer_norm."),
                ("cls.predictions.decoder.", "vocab_projector."),
                ("cls.predictions.", "vocab_projector."),
            ),
        ),
    )
}


def family_of(values: Mapping[str, Any], source: str) -> Family:
    """Returns the family that a Hugging Face config.json is of. Raises ConfigError for another."""
    name = values.get("model_type", "bert")
    if name not in FAMILIES:
        allowed = ", ".join(map(repr, FAMILIES))
        raise ConfigError(f"{source}: model_type={str(name)[:60]!r} is not supported, only {allowed}.")
    return FAMILIES[name]


def with_plain_keys(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns the values of a config.json under BERT's keys, with `family` for those of another family.

    Raises:
      ConfigError: for a family that is not supported, and for a size that is there twice, with two values.
    """
    family = family_of(values, source)
    if family.name == "bert":
        return dict(values)
    plain = {key: value for key, value in values.items() if key not in family.ignored}
    for ours, theirs in family.keys.items():
        if theirs in plain:
            value = plain.pop(theirs)
            if plain.setdefault(ours, value) != value:
                told = f"{theirs}={value!r} and {ours}={plain[ours]!r} are the same size"
                raise ConfigError(f"{source}: {told}. Remove one of them.")
    if not family.has_segments:
        plain["type_vocab_size"] = 0
    return plain | {"family": family.name, "model_type": "bert"}


def with_their_keys(values: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Returns values of a config.json of BERT's as the family's files have them."""
    absent = () if family.has_segments else ("type_vocab_size", "position_embedding_type", "layer_norm_eps")
    known = {family.keys.get(key, key): value for key, value in values.items() if key not in absent}
    return known | {"model_type": family.name}
