"""Initial weights from a checkpoint of any known format: the encoder strictly, heads where it has them."""

import dataclasses
import re
from collections.abc import Sequence

import tensorflow as tf
from absl import logging

from official.checkpoint import DamagedError, canonical, registry, sidecar_files
from official.checkpoint.canonical import compare_names
from official.checkpoint.formats import NOTHING_GIVEN
from official.checkpoint.tensors import Tensor, Tensors
from official.config import BertConfig, ConfigError
from official.config.model import contradictions
from official.io import model_folder
from official.io.errors import describe_names, shortened

CLASSIFIER = canonical.CLASSIFIER_HEAD  # of a GLUE task, [C, D] and [C]; its classes are those of one task


@dataclasses.dataclass(frozen=True)
class InitReport:
    """Outcome of an initialization from a checkpoint.

    Attributes:
      title: name of the checkpoint's format, for people.
      location: of the checkpoint.
      read: names of the variables that were read.
      fresh: names of those that the checkpoint lacks, which keep their initial values.
      dropped: names that the checkpoint has and the model does not use.
      assumed_activation: the model's, where nothing with the checkpoint says one; else None.
      epsilon_note: a note on the model's epsilon, where it is not the usual one of the format and nothing
        beside the checkpoint says one; else empty.
      unneeded: names that the checkpoint does not have and the model does not need.
    """

    title: str
    location: str
    read: list[str]
    fresh: list[str]
    dropped: list[str]
    assumed_activation: str | None = None
    epsilon_note: str = ""
    unneeded: list[str] = dataclasses.field(default_factory=list)

    def describe(self) -> str:
        text = f"Initial weights: {len(self.read)} variables from {self.location} ({self.title})"
        if self.fresh:
            text += f"; started fresh: {', '.join(self.fresh)}"
        if self.unneeded:
            text += f"; neither there nor needed: {', '.join(self.unneeded)}"
        if self.dropped:
            text += f"; not used: {len(self.dropped)} optimizer slots, counters or other heads"
        if self.assumed_activation:
            text += (
                f"; hidden_act={self.assumed_activation} is the model's own, no configuration beside the"
                " checkpoint says one"
            )
        return text + self.epsilon_note


def initialize(
    variables: dict[str, tf.Variable],
    path: str,
    model: BertConfig | None = None,
    class_names: Sequence[Sequence[str]] | None = None,
) -> InitReport:
    """Assigns the model's variables from a checkpoint.

    Args:
      variables: {name: variable} of the model.
      path: prefix, file or folder, of any format of `registry.FORMATS`.
      model: of the variables; its attention heads, activation and epsilon are compared with what the
        checkpoint's shapes and the configuration beside it say. None: they are known to be the same.
      class_names: all names of each class of the model's classifier. The outputs of the checkpoint's, where
        it names them, are put into their order. None: the outputs are no classes with names.

    Raises:
      ConfigError: where a variable of the encoder is missing, unexpected or of another shape; all such names
        are in its details. A pooler belongs to the heads: checkpoints of masked-LM and of answers have none.
        Also where a head other than a classifier's is there with another shape, a classifier tells other
        classes apart, the checkpoint's model computes something else, a tensor is not of finite
        floating-point numbers, or the file is unreadable.
    """
    checkpoint = registry.open_checkpoint(path, "--init_checkpoint")
    try:
        return _assign(variables, checkpoint, model, class_names)
    except DamagedError as error:
        raise ConfigError(f"--init_checkpoint={path}: unreadable checkpoint ({error}).") from None


def _assign(
    variables: dict[str, tf.Variable],
    checkpoint: registry.Checkpoint,
    model: BertConfig | None,
    class_names: Sequence[Sequence[str]] | None,
) -> InitReport:
    assumed = check_model(model, checkpoint) if model else None
    note = _epsilon_note(model, checkpoint) if model else ""
    mapped = checkpoint.format.to_canonical(checkpoint.tensors, NOTHING_GIVEN)
    found = {name: tensor for name, tensor in mapped.tensors.items() if not _is_state(name)}
    found = _in_order(_without_zero_biases(found, variables), class_names, checkpoint.location)
    strange = {
        name: checkpoint.tensors[name].shape
        for name in mapped.unmatched
        if re.search(checkpoint.format.encoder_names, name)
    }
    unneeded = _unneeded(set(variables), set(found))
    expected = {name: tuple(variable.shape) for name, variable in variables.items() if name not in unneeded}
    fresh = _check(
        expected, {name: tensor.shape for name, tensor in found.items()}, strange, checkpoint.location
    )
    read = sorted(set(expected) - fresh)
    registry.check_types({name: found[name] for name in read}, checkpoint)
    _assign_finite({name: variables[name] for name in read}, found, checkpoint.location)
    unused = {*mapped.tensors, *mapped.dropped, *mapped.unmatched} - set(read)
    return InitReport(
        checkpoint.title,
        checkpoint.location,
        read,
        sorted(fresh),
        sorted(unused),
        assumed,
        note,
        sorted(unneeded),
    )


def _unneeded(expected: set[str], found: set[str]) -> set[str]:
    """Returns the names of the pooler where the checkpoint has none of it and the model does not use it: that
    of answers, see `modeling.fine_tuning.SpanModel`."""
    pooler = set(canonical.POOLER)
    return pooler if expected.issuperset(canonical.SQUAD_HEAD) and not pooler & found else set()


def _in_order(found: Tensors, class_names: Sequence[Sequence[str]] | None, location: str) -> Tensors:
    """Puts the outputs of a classifier into the order of the classes, by the names that lie beside it.

    A classifier of another number of classes stays as it is: it will not be used.

    Raises:
      ConfigError: where it has as many classes, and others.
    """
    head = found.get(CLASSIFIER[0])
    if class_names is None or head is None or head.shape[0] != len(class_names):
        return found
    found_labels = sidecar_files.labels_beside(location)
    labels, kind = found_labels["labels"], found_labels["problem_type"]
    model_folder.check_label_count(labels, head.shape[0], f"the labels beside {location}")
    expected = " ".join(names[-1] for names in class_names)
    if kind not in (None, model_folder.ONE_LABEL):
        raise ConfigError(
            f"init_checkpoint {location} has a classifier of problem_type={kind}, the task one label of:"
            f" {expected}. {_OTHER_CLASSIFIER}"
        )
    if labels is None:
        return found
    order = model_folder.order_of_labels(labels, class_names)
    if order is None:
        raise ConfigError(
            f"init_checkpoint {location} has the labels: {' '.join(labels)}; the task has: {expected}."
            f" {_OTHER_CLASSIFIER}"
        )
    if order == sorted(order):
        return found
    logging.info("The classifier's outputs are put into the order of the task: %s", expected)
    return {**found, **{name: _with_rows(found[name], order) for name in CLASSIFIER if name in found}}


_OTHER_CLASSIFIER = "Give a checkpoint without a classifier, or correct the labels beside it."


def _with_rows(tensor: Tensor, order: list[int]) -> Tensor:
    return Tensor(tensor.shape, tensor.dtype, lambda: tensor.read()[order], tensor.sources)


def check_model(model: BertConfig, checkpoint: registry.Checkpoint) -> str | None:
    """Compares what no tensor's shape tells: heads, activation, epsilon. Reads no tensor.

    Returns:
      The model's activation where nothing says the checkpoint's; else None.

    Raises:
      ConfigError: where the model computes something else than the checkpoint's.
    """
    said = sidecar_files.sizes_beside(checkpoint.location)
    said |= {"num_attention_heads": checkpoint.heads} if checkpoint.heads else {}
    other = contradictions(model, said)
    if other:
        raise ConfigError(
            f"init_checkpoint {checkpoint.location} {'; it '.join(other)}. Change --init_checkpoint or"
            " --bert_config_file."
        )
    return None if "hidden_act" in said else model.hidden_act


def _epsilon_note(model: BertConfig, checkpoint: registry.Checkpoint) -> str:
    """Returns a note for a model whose epsilon is not the usual one of the checkpoint's format, where nothing
    beside the checkpoint says one; else an empty text."""
    usual = sidecar_files.epsilon_without(checkpoint)
    if usual in (None, BertConfig.layer_norm_eps, model.layer_norm_eps):
        return ""
    return (
        f"; layer_norm_eps={model.layer_norm_eps} is the model's own, {checkpoint.title}'s is {usual}, and no"
        " configuration beside the checkpoint says one"
    )


def _assign_finite(variables: dict[str, tf.Variable], found: Tensors, location: str) -> None:
    """Assigns {name: variable}, one after the other. Raises ConfigError naming the tensors that hold NaN or
    infinity."""
    bad = []
    for name, variable in variables.items():
        values = tf.cast(found[name].read(), variable.dtype)
        variable.assign(values)
        if not tf.reduce_all(tf.math.is_finite(values)):
            bad.append(name)
    if bad:
        raise ConfigError(
            f"init_checkpoint {location} holds NaN or infinite numbers in {shortened(sorted(bad))}. Change"
            " --init_checkpoint."
        )


def _check(expected: dict, found: dict, strange: dict, location: str) -> set[str]:
    """Returns the names outside the encoder that the checkpoint lacks, or has for another number of classes;
    raises for all else that does not fit."""
    encoder = {name: shape for name, shape in expected.items() if _is_of_encoder(name)}
    if not found.keys() & {*canonical.POOLER, *canonical.NEXT_SENTENCE_HEAD, *CLASSIFIER}:
        # Neither a pooler nor a head over it: it starts with the head that will be.
        encoder = {name: shape for name, shape in encoder.items() if name not in canonical.POOLER}
    unexpected = {name: shape for name, shape in strange.items() if name not in encoder}
    problems = compare_names(
        encoder, {name: shape for name, shape in found.items() if _is_of_encoder(name)} | unexpected
    )
    heads = {name: shape for name, shape in expected.items() if name not in encoder}
    same_classes = all(
        tuple(found[name]) == tuple(heads[name]) for name in CLASSIFIER if name in heads and name in found
    )
    shared = {
        name: found[name] for name in heads if name in found and (same_classes or name not in CLASSIFIER)
    }
    for kind, names in compare_names({name: heads[name] for name in shared}, shared).items():
        problems[kind] = problems.get(kind, []) + names
    if problems:
        raise ConfigError(
            f"init_checkpoint {location} does not fit the model. {describe_names(problems)}. Change"
            " --init_checkpoint or --bert_config_file.",
            problems,
        )
    return set(heads) - set(shared)


def _without_zero_biases(found: Tensors, variables: dict[str, tf.Variable]) -> Tensors:
    """Leaves out biases of zeros that the model does not have: without them it computes the same."""
    absent = [
        name
        for name in found
        if name not in variables and re.fullmatch(f"{canonical.QKV_BIAS}|{canonical.PROJECTION_BIAS}", name)
    ]
    zeros = {name for name in absent if not found[name].read().any()}
    return {name: tensor for name, tensor in found.items() if name not in zeros}


def _is_of_encoder(name: str) -> bool:
    return name.startswith("bert/") or name in canonical.FINAL_NORM


def _is_state(name: str) -> bool:
    return name in canonical.COUNTERS or name.rpartition("/")[2] in canonical.SLOTS
