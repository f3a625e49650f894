"""Hugging Face's encoders: PyTorch's names and orientation: a linear layer's weight is [out, in].

BERT's names are defined here; those of other families are derived from them by `official.config.model`.

Reading accepts the encoder with the prefix `bert.` (models with heads) and without it (BertModel), and the
LayerNorm names `gamma` and `beta` of files once converted from TensorFlow. The output matrix of the masked-LM
head is the word embedding table: `cls.predictions.decoder` holds copies of it and of `cls.predictions.bias`.
On reading they are compared and dropped; they are not written, since transformers does not write them either
and ties them when it loads. A model in which they differ (untied) is refused.
"""

from __future__ import annotations

import dataclasses
import os
import re

import numpy as np

from official.checkpoint import canonical, mapping
from official.checkpoint.containers import Progress, hf_folder
from official.checkpoint.formats import Format, Option, Options
from official.checkpoint.mapping import Mapped, Transposed
from official.checkpoint.tensors import Tensor, Tensors
from official.config.model import FAMILIES, Family
from official.io.errors import ConfigError

_PREFIX_HELP = (
    "names begin with bert. or another family's name (unset: if there is a head, as in transformers)."
)
HF_PREFIX = Option("hf_prefix", None, _PREFIX_HELP, for_target=True)

_OTHER_NAMES = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    # Google also stores the matrices of these heads as [out, in].
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}


def _their_name(name: str) -> str:
    """Returns Hugging Face's name of a weight: a/layer_3/b/kernel is a.layer.3.b.weight, transposed."""
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    layer, _, part = name.replace("layer_", "layer.").replace("/", ".").rpartition(".")
    if part == "kernel":
        return Transposed(f"{layer}.weight")
    names = {"gamma": "weight", "beta": "bias", "bias": "bias"}
    return f"{layer}.{names.get(part, f'{part}.weight')}"


_WEIGHTS = {  # by kind of block
    "bert": (*canonical.WEIGHTS, *canonical.ELECTRA),
    "modernbert": (*canonical.MODERNBERT, *canonical.MODERNBERT_HEADS),
}
# {canonical name: its name in a BERT file}
_PLAIN = {name: _their_name(name) for names in _WEIGHTS.values() for name in names}


def _table_of(family: Family, head: str = "") -> mapping.Table:
    """Returns {canonical name: name in files of a family's class, or None}."""
    names: dict[str, str | None] = {}
    for name in _WEIGHTS[family.block_type]:
        plain = _PLAIN[name]
        theirs = family.their_name(plain, head)
        names[name] = None if theirs is None else type(plain)(theirs)
    slots = mapping.with_slots(names, dict.fromkeys(canonical.SLOTS))
    return {**slots, **dict.fromkeys(canonical.COUNTERS)}


# {family: {end of a class's name: its table}}; "" is for all classes without a separate table.
TABLES = {
    name: {head: _table_of(family, head) for head in ("", *family.heads)} for name, family in FAMILIES.items()
}
TABLE = TABLES["bert"][""]
# {copy: (original, reason to leave the copy out)}
_WORDS = "bert.embeddings.word_embeddings.weight"
_TIED = {
    "cls.predictions.decoder.weight": (_WORDS, "a copy of the word embeddings, tied"),
    "cls.predictions.decoder.bias": ("cls.predictions.bias", "a copy of cls.predictions.bias, tied"),
}


def _tied_of(family: Family) -> dict[str, tuple[str, str]]:
    names = ((family.their_name(copy), family.their_name(of), why) for copy, (of, why) in _TIED.items())
    return {copy: (original, why) for copy, original, why in names if copy and original and original != copy}


def _family_of(tensors: Tensors, likely: str) -> Family:
    """Returns the family of a model by its tensor names: of several with these names, `likely` if it is one
    of them, otherwise the first."""
    for family in (FAMILIES[likely], *FAMILIES.values()):
        first = str(family.their_name("bert.encoder.layer.0.attention.output.dense.weight"))
        if {first, first.removeprefix(family.scope)} & tensors.keys():
            return family
    return FAMILIES["bert"]


def _head_of(tensors: Tensors, family: Family) -> str:
    """Returns the end of the name of the class that has separate names which occur among these; "" for
    none."""
    plain = {*TABLES[family.name][""].values()}
    for head, table in TABLES[family.name].items():
        if ({*table.values()} - plain) & tensors.keys():
            return head
    return ""


def to_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to the canonical names; of two names for the same weight, the second is unmatched. Reads
    copies of tied weights.

    Raises:
      ConfigError: if the masked-LM head's output matrix or bias is not a copy, or the generator's embeddings
        are not.
      DamagedError: if a copy cannot be read.
    """
    tensors, generator = canonical.in_scope(tensors, hf_folder.GENERATOR)
    family = _family_of(tensors, options.family)
    table, usual = (TABLES[family.name][head] for head in (_head_of(tensors, family), ""))
    spelling = mapping.Spelling(tensors, lambda name: _common_name(name, tensors, family))
    tied = _tied_of(family)
    for copy, (original, _) in tied.items():
        one, other = spelling.tensors.get(copy), spelling.tensors.get(original)
        if one is None or other is None or one is other:
            continue
        if not _are_equal(one, other):
            raise ConfigError(
                f"{copy} differs from {original}: the model's output matrix is not tied to its word"
                " embeddings, which no other format can hold. Save a model with tie_word_embeddings=true."
            )
    dropped = {
        rf"{re.escape(family.scope)}embeddings\.position_ids": "0, 1, 2, ...: no weight",
        **{re.escape(name): reason for name, (_, reason) in tied.items()},
    }
    for elsewhere, here in ((usual.get(name), table.get(name)) for name in canonical.POOLER):
        if elsewhere and elsewhere != here:  # older files of text classifiers have both
            dropped[re.escape(elsewhere)] = f"unused: {here} takes its place in this class"
    mapped = mapping.to_canonical(table, spelling.tensors, dropped)
    spelling.restore(mapped)
    mapped.family = family.name
    if not generator:
        return mapped
    of_generator = to_canonical(generator, options)
    for name, tensor in of_generator.tensors.items():
        (theirs,) = tensor.sources
        if name not in canonical.EMBEDDINGS:
            mapped.tensors[canonical.GENERATOR + name] = tensor
        elif name in mapped.tensors and _are_equal(tensor, mapped.tensors[name]):
            mapped.dropped[theirs] = "a copy of the discriminator's, tied"
        else:
            raise ConfigError(
                f"{theirs} differs from {_their_name(name)}: the generator has separate embeddings, which no"
                " other format can hold. Remove its folder to read only the discriminator."
            )
    mapped.dropped |= {hf_folder.GENERATOR + name: reason for name, reason in of_generator.dropped.items()}
    mapped.unmatched += [hf_folder.GENERATOR + name for name in of_generator.unmatched]
    return mapped


def _are_equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and np.array_equal(one.read(), other.read())


def from_canonical(tensors: Tensors, options: Options) -> Mapped:
    """Maps tensors to Hugging Face's names of their family, with its prefix if there is a head, as
    BertForPreTraining saves them, or according to `hf_prefix`. A generator's, in its subfolder, have the
    prefix `generator.` here."""
    own, generator = canonical.apart(tensors)
    family = FAMILIES[options.family]
    names = {_PLAIN[name] for name in own if name in _PLAIN}
    architecture = hf_folder.architecture_of(names, options.problem_type).removeprefix("Bert")
    tables, prefix = TABLES[family.name], family.scope
    table = tables.get(architecture, tables[""])
    mapped = mapping.from_canonical(table, own, "optimizer slot: the format has weights only")
    counters = mapped.dropped.keys() & set(canonical.COUNTERS)
    mapped.dropped |= dict.fromkeys(counters, "a counter of this project's trainer")
    absent = mapped.dropped.keys() & {*canonical.WEIGHTS}
    mapped.dropped |= dict.fromkeys(absent, f"{family.title}{architecture} has no such weight")
    has_head, asked = any(not name.startswith(prefix) for name in mapped.tensors), options.get(HF_PREFIX)
    if not (has_head if asked is None else asked):
        mapped.tensors = {name.removeprefix(prefix): tensor for name, tensor in mapped.tensors.items()}
    if not generator:
        return mapped
    of_generator = from_canonical(generator, options)
    for name, tensor in of_generator.tensors.items():
        mapped.tensors[hf_folder.GENERATOR + name] = tensor
    for name, reason in of_generator.dropped.items():
        if canonical.GENERATOR + name in tensors:
            mapped.dropped[canonical.GENERATOR + name] = reason
    mapped.unmatched += [canonical.GENERATOR + name for name in of_generator.unmatched]
    return mapped


def _common_name(name: str, tensors: Tensors, family: Family) -> str:
    """Returns the name as current models with heads save it."""
    name = re.sub(r"\.LayerNorm\.gamma$", ".LayerNorm.weight", name)
    name = re.sub(r"\.LayerNorm\.beta$", ".LayerNorm.bias", name)
    bias = family.their_name("cls.predictions.bias")
    if name == family.their_name("cls.predictions.decoder.bias") and bias and bias not in tensors:
        return bias  # only one of the two tied ones was saved
    below = ("embeddings.", "embeddings_project.", "encoder.", "pooler.", "transformer.", "layers.")
    return family.scope + name if name.startswith((*below, "final_norm.")) else name


def write(tensors: Tensors, folder: str, options: Options, progress: Progress) -> None:
    """Writes a folder that transformers loads: weights, config.json and, if `options.vocab_file` is set, the
    vocabulary.

    Args:
      tensors: {Hugging Face's name: lazy tensor}, read one after the other.
      folder: created if missing.
      options: num_attention_heads, hidden_act, vocab_file, do_lower_case, labels, problem_type.
      progress: called with the bytes written since the last call.

    Raises:
      ConfigError: if the number of heads or the vocabulary contradicts the tensors.
    """
    tensors, generator = canonical.in_scope(tensors, hf_folder.GENERATOR)
    family = FAMILIES[options.family]
    table = TABLES[family.name][_head_of(tensors, family)]
    plain = {theirs: _PLAIN[name] for name, theirs in table.items() if theirs}
    common = {_common_name(name, tensors, family): tensor for name, tensor in tensors.items()}
    of_bert = mapping.from_canonical(plain, common, "").tensors
    files = hf_folder.files_beside(of_bert, options)
    hf_folder.write(as_saved(tensors, family), folder, progress, files)
    if generator:
        heads = hf_folder.generator_heads(tensors, generator, options)
        own_options = dataclasses.replace(options, num_attention_heads=heads, model_card=None)
        write(generator, os.path.join(folder, hf_folder.GENERATOR_FOLDER), own_options, progress)


def as_saved(tensors: Tensors, family: Family) -> Tensors:
    """Renames tensors to the names in the family's files: some call the output layer for answers a
    classifier, see `hf_folder.read`."""
    return {re.sub(r"^qa_outputs\.", f"{family.answers}.", name): tensor for name, tensor in tensors.items()}


FORMAT = Format(
    name="huggingface",
    title="Hugging Face",
    container="hf_folder",
    to_canonical=to_canonical,
    from_canonical=from_canonical,
    aliases=("hf",),
    precedence=13,
    options=(HF_PREFIX,),
    families=tuple(FAMILIES),
    usual_activation="gelu_erf",  # transformers' default without config.json
    brings_sidecar_files=True,
    writer=write,
)
