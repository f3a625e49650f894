"""Initial weights from a checkpoint of any known format: the whole encoder, and its heads."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
from absl import logging

from official.checkpoint import canonical, naming_unreadable, registry, sidecar_files
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.canonical import compare_names
from official.checkpoint.formats import Options
from official.checkpoint.tensors import Tensors
from official.config import BertConfig, ConfigError
from official.config.model import FAMILIES, contradictions
from official.io import model_folder
from official.io.errors import describe_names, shortened

CLASSIFIER = canonical.CLASSIFIER_HEAD  # of a GLUE task, [C, D] and [C]; specific to one task
_TAGS = model_folder.PROBLEM_TYPE_OF["tag"]


class InitReport(NamedTuple):
    """Result of an initialization from a checkpoint.

    Attributes:
      title: display name of the checkpoint's format.
      location: location of the checkpoint.
      read: names of the variables that were read.
      fresh: names of variables that the checkpoint lacks, which keep their initial values.
      dropped: names in the checkpoint that the model does not use.
      unneeded: names that the checkpoint lacks and the model does not need.
      notes: the model's activation, if the checkpoint's is unknown, and its epsilon, if the checkpoint's is
        unknown and it is not the format's default.
    """

    title: str
    location: str
    read: list[str]
    fresh: list[str]
    dropped: list[str]
    unneeded: list[str]
    notes: str

    def describe(self) -> str:
        text = f"Initial weights: {len(self.read)} variables from {self.location} ({self.title})"
        if self.fresh:
            text += f"; started fresh: {', '.join(self.fresh)}"
        if self.unneeded:
            text += f"; neither there nor needed: {', '.join(self.unneeded)}"
        if self.dropped:
            text += f"; not used: {len(self.dropped)} optimizer slots, counters or other heads"
        return text + self.notes


def initialize(
    variables: dict[str, tf.Variable],
    path: str,
    model: BertConfig | None = None,
    class_names: Sequence[Sequence[str]] | None = None,
    problem_type: str = model_folder.ONE_LABEL,
    replaces_other_head: bool = False,
) -> InitReport:
    """Assigns the model's variables from a checkpoint.

    Args:
      variables: {name: variable}, the model's.
      path: prefix, file or folder, of any format of `registry.FORMATS`; for a run's folder the best
        checkpoint.
      model: configuration of the variables' model; attention heads, activation and epsilon are compared with
        the checkpoint's shapes and sidecar configuration. None: they are known to be the same.
      class_names: all names of each class of the model's classifier. The outputs of the checkpoint's
        classifier are reordered by its names. None: the outputs are not named classes.
      problem_type: type of the task's classifier.
      replaces_other_head: whether a classifier with as many, but other labels starts fresh; otherwise it is
        an error.

    Raises:
      ConfigError: if a variable of the encoder is missing, unexpected or of another shape; all such names are
        in its details. A pooler belongs to the heads, since checkpoints for masked-LM and answers have none.
        Also if a head other than a classifier has another shape, a classifier has other classes, the
        checkpoint's model computes another function, a tensor has values other than finite floats, or the
        file is unreadable.
    """
    checkpoint = sidecar_files.open_best(path, "--init_checkpoint")
    with naming_unreadable(f"--init_checkpoint={path}"):
        notes = _notes(model, checkpoint) if model else ""
        config = sidecar_files.sizes_beside(checkpoint.location)
        known = {"family": model.family} if model else {}  # several families have the same names
        options = Options(**sidecar_files.of_family({**known, **config}))
        mapped = checkpoint.format.to_canonical(checkpoint.tensors, options)
        theirs = FAMILIES[mapped.family or options.family]
        if model and theirs.without_shape != model.family_row.without_shape:
            problem = f"has weights of family={theirs.name}, the model is of family={model.family}"
            raise ConfigError(f"init_checkpoint {checkpoint.location} {problem}. Change --bert_config_file.")
        found = {name: tensor for name, tensor in mapped.tensors.items() if not _is_state(name)}
        found = _without_zero_biases(found, variables)
        found = _in_order(found, checkpoint.location, class_names, problem_type, replaces_other_head)
        found = _without_tags(found, checkpoint.location, problem_type)
        pattern = checkpoint.format.encoder_names
        strange = {
            name: checkpoint.tensors[name].shape for name in mapped.unmatched if re.search(pattern, name)
        }
        # Only some heads use the pooler, see `modeling.models`.
        pooled = {*canonical.NEXT_SENTENCE_HEAD, *CLASSIFIER} & variables.keys()
        by_token = not pooled or problem_type == _TAGS
        has_pooler = found.keys() & {*canonical.POOLER}
        unneeded = [name for name in canonical.POOLER if by_token and name in variables and not has_pooler]
        expected = {
            name: tuple(variable.shape) for name, variable in variables.items() if name not in unneeded
        }
        shapes = {name: tensor.shape for name, tensor in found.items()}
        fresh = _check(expected, shapes, strange, checkpoint.location)
        read = sorted(set(expected) - fresh)
        registry.check_types({name: found[name] for name in read}, checkpoint)
        bad = []
        for name in read:
            values = tf.cast(found[name].read(), variables[name].dtype)
            variables[name].assign(values)
            if not tf.reduce_all(tf.math.is_finite(values)):
                bad.append(name)
        if bad:
            problem = f"holds NaN or infinite numbers in {shortened(bad)}. Change --init_checkpoint."
            raise ConfigError(f"init_checkpoint {checkpoint.location} {problem}")
        unused = sorted({*mapped.tensors, *mapped.dropped, *mapped.unmatched} - set(read))
        lists = read, sorted(fresh), unused, sorted(unneeded)
        return InitReport(checkpoint.format.title, checkpoint.location, *lists, notes)


def _in_order(
    found: Tensors,
    location: str,
    class_names: Sequence[Sequence[str]] | None,
    problem_type: str,
    replaces_other_head: bool,
) -> Tensors:
    """Reorders the outputs of a classifier by the label names next to the checkpoint.

    A classifier with another number of classes is unchanged, since it will not be used.

    Raises:
      ConfigError: if it has as many, but other classes.
    """
    head = found.get(CLASSIFIER[0])
    if class_names is None or head is None or head.shape[0] != len(class_names):
        return found
    beside = sidecar_files.labels_beside(location)
    labels, kind = beside["labels"], beside["problem_type"]
    model_folder.check_label_count(labels, head.shape[0], f"the labels next to {location}")
    expected = " ".join(names[-1] for names in class_names)
    order = model_folder.order_of_labels(labels, class_names) if labels else list(range(head.shape[0]))
    problem = ""
    if kind not in (None, problem_type):
        what = "one label of" if problem_type == model_folder.ONE_LABEL else problem_type
        problem = f"a classifier of problem_type={kind}, but the task has {what}: {expected}"
    elif order is None:
        problem = f"the labels {' '.join(labels)}, but the task has: {expected}"
    if (problem or order is None) and replaces_other_head:
        logging.warning("init_checkpoint %s has %s. The classifier starts fresh.", location, problem)
        return {name: tensor for name, tensor in found.items() if name not in CLASSIFIER}
    if problem or order is None:
        advice = "Give a checkpoint without a classifier, or correct its labels."
        raise ConfigError(f"init_checkpoint {location} has {problem}. {advice}")
    if not labels:
        warning = "init_checkpoint %s does not name its classes: the order of the task is assumed, %s"
        logging.warning(warning, location, expected)
    if order == sorted(order):
        return found
    logging.info("The classifier's outputs are put into the order of the task: %s", expected)
    own = {name: found[name] for name in CLASSIFIER if name in found}
    return found | {name: tensors_lib.changed(one, lambda values: values[order]) for name, one in own.items()}


def _without_tags(found: Tensors, location: str, problem_type: str) -> Tensors:
    """Drops a classifier of words, which has no pooler below it, if the task classifies texts: both then
    start fresh, as with a checkpoint without a head."""
    if problem_type == _TAGS or CLASSIFIER[0] not in found or found.keys() & {*canonical.POOLER}:
        return found
    if sidecar_files.labels_beside(location)["problem_type"] != _TAGS:
        return found
    return {name: tensor for name, tensor in found.items() if name not in CLASSIFIER}


def check_model(model: BertConfig, checkpoint: registry.Checkpoint) -> str | None:
    """Compares the settings that shapes do not reveal: heads, activation, epsilon. Reads no tensor.

    Returns:
      The model's activation if the checkpoint's is unknown, otherwise None.

    Raises:
      ConfigError: if the model differs from the checkpoint's in one of these.
    """
    config = sidecar_files.sizes_beside(checkpoint.location)
    config |= {"num_attention_heads": checkpoint.heads} if checkpoint.heads else {}
    if other := contradictions(model, config):
        problem = f"{'; it '.join(other)}. Change --init_checkpoint or --bert_config_file."
        raise ConfigError(f"init_checkpoint {checkpoint.location} {problem}")
    return None if "hidden_act" in config else model.hidden_act


def _notes(model: BertConfig, checkpoint: registry.Checkpoint) -> str:
    """Returns the notes of an InitReport. Raises ConfigError as `check_model`."""
    notes = ""
    if assumed := check_model(model, checkpoint):
        notes = f"; hidden_act={assumed} is the model's: the checkpoint has no configuration that names one"
    usual = sidecar_files.epsilon_without(checkpoint)
    if usual not in (None, BertConfig.layer_norm_eps, model.layer_norm_eps):
        notes += (
            f"; layer_norm_eps={model.layer_norm_eps} is the model's, {checkpoint.format.title}'s is {usual},"
            " and the checkpoint has no configuration that names one"
        )
    return notes


def _check(expected: dict, found: dict, strange: dict, location: str) -> set[str]:
    """Returns the names outside the encoder that the checkpoint lacks, or has for another number of classes;
    raises ConfigError for all other differences."""
    have_generators = all(
        any(name.startswith(canonical.GENERATOR) for name in one) for one in (found, expected)
    )
    scopes = ("bert/", canonical.GENERATOR) if have_generators else ("bert/",)
    is_of_encoder = lambda name: name.startswith(scopes) or name in canonical.FINAL_NORM
    encoder = {name: shape for name, shape in expected.items() if is_of_encoder(name)}
    if not found.keys() & {*canonical.POOLER, *canonical.NEXT_SENTENCE_HEAD, *CLASSIFIER}:
        # Neither a pooler nor a head above it: the pooler starts fresh with the new head.
        encoder = {name: shape for name, shape in encoder.items() if name not in canonical.POOLER}
    there = {name: shape for name, shape in found.items() if is_of_encoder(name)}
    there |= {name: shape for name, shape in strange.items() if name not in encoder}
    problems = compare_names(encoder, there)
    heads = {name: shape for name, shape in expected.items() if name not in encoder}
    shared = {name: found[name] for name in heads if name in found}
    if any(tuple(shared[name]) != heads[name] for name in CLASSIFIER if name in shared):
        shared = {name: shape for name, shape in shared.items() if name not in CLASSIFIER}
    for kind, names in compare_names({name: heads[name] for name in shared}, shared).items():
        problems[kind] = problems.get(kind, []) + names
    if problems:
        advice = f"{describe_names(problems)}. Change --init_checkpoint or --bert_config_file."
        raise ConfigError(f"init_checkpoint {location} does not fit the model. {advice}", problems)
    return set(heads) - set(shared)


def _without_zero_biases(found: Tensors, variables: dict[str, tf.Variable]) -> Tensors:
    """Drops zero biases that the model does not have: without them it computes the same."""
    pattern = f"{canonical.QKV_BIAS}|{canonical.PROJECTION_BIAS}"
    absent = {name for name in found if name not in variables and re.fullmatch(pattern, name)}
    return {name: one for name, one in found.items() if name not in absent or one.read().any()}


def _is_state(name: str) -> bool:
    return name in canonical.COUNTERS or name.rpartition("/")[2] in canonical.SLOTS
