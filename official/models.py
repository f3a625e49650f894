"""Models as `tf.keras.Model` with their tokenizers, for your own Keras training code.

    from official.models import from_pretrained

    model = from_pretrained("bert-base-uncased", task="classify", labels=["bad", "good"])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(2e-5), loss, metrics=["accuracy"])
    model.fit(model.tokenizer(texts), classes, batch_size=16, epochs=3)
    model.save_pretrained("published")  # for bert predict, bert serve, transformers

docs/keras.md lists the tasks and the ways to save a model.
"""

import contextlib
import dataclasses
import functools
import inspect
import json
import math
import os
import pathlib
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official.checkpoint import canonical, convert, registry, sidecar_files
from official.checkpoint.tensors import of_array
from official.config import BertConfig
from official.config.model import OF_TRAINING
from official.data.tables.labels import CHOICE, NUMBER, ONE, SEVERAL
from official.data.word_pieces.tokenizer import tokenize_masked, tokenizer_of
from official.data.word_pieces.vocabulary import load_for_text
from official.inference import methods
from official.inference.graph_methods import places_of, pooled
from official.inference.rows import padded
from official.inference.source import SHORTEST, Source, Truncation, find, head_outputs, name_of
from official.io import model_folder, sentence_folder, vocabulary_files
from official.io.errors import ConfigError, suggest
from official.io.sentence_folder import EmbeddingSettings
from official.modeling import stages
from official.modeling.layers import computing_in
from official.modeling.models import (
    BertEncoder,
    ChoiceModel,
    MaskedLMModel,
    SequenceModel,
    SpanModel,
    TagModel,
)
from official.modeling.objectives import unit
from official.tasks.fine_tuning import FULL_DEVIATION

# {task: (method of a loaded model with this head; kind of labels)}. `classify` takes the folder's kind.
TASKS: dict[str, tuple[str, str | None]] = {
    "classify": ("classify", None),
    **{kind: ("classify", kind) for kind in (SEVERAL, NUMBER, CHOICE)},
    "tag": ("tag", "tag"),
    **dict.fromkeys(("squad", "answer"), ("answer", None)),
    "fill_mask": ("fill_mask", None),
    "embed": ("embed", None),
}
# transformers' names of a model's inputs, and this project's.
_INPUTS = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}
_INPUTS |= {name: name for name in ("input_ids", "input_mask", "segment_ids", "position_ids")}
_HEADS = {*canonical.POOLER, *canonical.PRETRAINING_HEADS, *canonical.SQUAD_HEAD, *canonical.CLASSIFIER_HEAD}


@dataclasses.dataclass(frozen=True)
class Spec:
    """Configuration of a model without its weights, from which `load_model` rebuilds it.

    Attributes:
      bert: sizes of the model.
      files: {name: content} of its vocabulary, as next to its weights.
      task: method of a loaded model with the same head; None: hidden states.
      kind: kind of labels, a key of `model_folder.PROBLEM_TYPE_OF`; None for heads without.
      labels: names of the outputs, by default LABEL_0, LABEL_1, ...
      thresholds: minimum probability of each of several labels; empty: one half. Training does not change
        them.
      embedding: settings of `embed`.
      absent: names of weights that neither the folder had nor the task trains. They are not written.
    """

    bert: BertConfig
    files: Mapping[str, str]
    task: str | None = None
    kind: str | None = None
    labels: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()
    embedding: EmbeddingSettings = EmbeddingSettings()  # noqa: RUF009  # immutable
    absent: tuple[str, ...] = ()


@contextlib.contextmanager
def _folder_of(files: Mapping[str, str | bytes]) -> Iterator[str]:
    """Yields a temporary folder with files, {name: content}."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        yield folder


# -----------------------------------------------------------------------------------------------------------
# Tokenizer


class Tokenizer:
    """Turns texts into the inputs of a model. Prepends the default prompt of a sentence-transformers folder.

    Attributes:
      vocabulary: the vocabulary.
      max_length: default of the maximum length in tokens.
      names: names of the inputs that it returns.
    """

    def __init__(self, spec: Spec):
        self._bert, self._positions, self._prompt = spec.bert, spec.bert.positions, spec.embedding.prompt()
        with _folder_of(spec.files) as folder:
            self.vocabulary = load_for_text(folder).cut(spec.bert.vocab_size)
        most = spec.embedding.max_seq_length or self.vocabulary.max_length or self._positions
        self.max_length = min(most, self._positions)
        self.names = ("input_ids", "attention_mask", *["token_type_ids"][: spec.bert.family_row.has_segments])
        self._pieces: Any = tokenizer_of(self.vocabulary)
        if spec.task == "fill_mask":  # [MASK] in its texts is a word to predict
            masked = functools.partial(tokenize_masked, self._pieces, self.vocabulary)
            self._pieces = types.SimpleNamespace(tokenize=masked)
        self._cut = Truncation("tokenizer", "max_length")

    def __call__(
        self,
        texts: Any,
        pairs: Any = None,
        max_length: int | None = None,
        padding: str | bool = "longest",
        truncation: str | bool = True,
    ) -> dict[str, Any]:
        """Returns {input_ids, attention_mask and, in families with segments, token_type_ids: int32 [B, L]}.

        Args:
          texts: B texts, or one. May be a string tensor in a graph, as in
            `dataset.batch(B).map(lambda text, label: (model.tokenizer(text), label))`.
          pairs: B second texts; for multiple choice the candidates [B, G], and the result is [B, G, L].
          max_length: maximum number of tokens. None: from the model's files.
          padding: `longest` or True pads to the longest text, `max_length` to `max_length`.
          truncation: True or `longest_first` truncates longer inputs, for a pair the longer text. False or
            `do_not_truncate` makes them an error.

        Raises:
          ConfigError: for values that are not texts, another number of pairs, a length that the model does
            not support, or pairs for a model without segments.
        """
        length = self.max_length if max_length is None else max_length
        if not SHORTEST <= length <= self._positions:
            allowed = f"the model has {self._positions} positions. Allowed: {SHORTEST} to {self._positions}."
            raise ConfigError(f"max_length={length} is out of range: {allowed}")
        if padding not in (True, "longest", "max_length"):
            raise ConfigError(
                f"padding={padding!r}, expected 'longest' or 'max_length': rows have one length."
            )
        cuts = {True: True, "longest_first": True, False: False, "do_not_truncate": False}.get(truncation)
        if cuts is None:
            allowed = "True, 'longest_first', False or 'do_not_truncate'"
            raise ConfigError(f"truncation={truncation!r}, expected {allowed}.")
        if pairs is not None and (why := self._bert.why_no_pairs(self.vocabulary.marks_pairs)):
            raise ConfigError(f"pairs of texts: the model has {why}")
        columns = [texts] if pairs is None else [texts, pairs]
        options = {"max_length": max_length, "padding": padding, "truncation": truncation}
        if tf.is_tensor(texts) and not tf.executing_eagerly():
            return self._in_graph(columns, options)
        first, *second = map(_strings, columns)
        shape = (second or [first])[0].shape
        if not len(first) or shape[0] != len(first) or first.ndim > 1:
            raise ConfigError(f"{len(first)} texts and pairs of shape {shape}, expected one pair per text.")
        first = np.repeat(first, math.prod(shape[1:]))
        flat = [column.ravel().tolist() for column in (first, *second)]
        flat[0] = [self._prompt + text for text in flat[0]]
        rows, is_cut_N = methods.rows_of(flat, self._pieces, self.vocabulary, length)
        cut = int(is_cut_N.sum())
        if cut and not cuts:
            problem = f"{cut} texts are longer than max_length={length} tokens"
            raise ConfigError(f"{problem}, and truncation={truncation}.")
        self._cut.report(cut, length)
        batch = padded(rows, length if padding == "max_length" else 1)
        return {name: batch[_INPUTS[name]].reshape(*shape, -1) for name in self.names}

    def _in_graph(self, columns: list[tf.Tensor], options: dict[str, Any]) -> dict[str, tf.Tensor]:
        arrays = tf.numpy_function(
            lambda *values: [*self(*values, **options).values()], columns, [tf.int32] * len(self.names)
        )
        for array in arrays:
            array.set_shape([*(columns[-1].shape.as_list() or [1]), None])
        return dict(zip(self.names, arrays))


def _strings(texts: Any) -> np.ndarray:
    """Returns texts as an array of str, [B] or [B, G]. Raises ConfigError for other types."""
    array = np.atleast_1d(np.asarray(texts, object))
    flat = [text.decode() if isinstance(text, bytes) else text for text in array.ravel()]
    if wrong := [text for text in flat if not isinstance(text, str)]:
        raise ConfigError(
            f"{str(wrong[0])[:60]!r} among the texts is a {type(wrong[0]).__name__}, expected str."
        )
    return np.array(flat, object).reshape(array.shape)


# -----------------------------------------------------------------------------------------------------------
# Model


@tf.keras.utils.register_keras_serializable("official")
class PretrainedModel(tf.keras.Model):
    """The `tf.keras.Model` that `from_pretrained` returns.

    Inputs: a dict {input_ids, attention_mask, token_type_ids, position_ids: int32 [B, L]}, for multiple
    choice [B, G, L], also under this project's names `input_mask` and `segment_ids`; or the ids alone.
    Without a mask all positions are tokens, without segments all tokens have segment 0. Position ids are as
    in transformers: in RoBERTa's families they start after `pad_token_id`, and are counted from the ids
    if they are not given.

    Outputs, float32: logits [B, C] for `classify`, [B, G] for multiple choice, [B, L, C] for `tag`,
    [B, L, V] for `fill_mask`, {start_logits, end_logits: [B, L]} for `answer`; vectors [B, D] for `embed`;
    without a task {last_hidden_state [B, L, D], pooler_output [B, D]}, the latter if the folder has a pooler.

    Dropout follows the seed of `tf.keras.utils.set_random_seed`.

    Attributes:
      spec: configuration: everything but the weights.
      tokenizer: turns texts into the inputs.
      network: the model of `official.modeling`, with Google's variable names.
    """

    def __init__(self, spec: Spec, dtype: Any = None):
        super().__init__(name="bert", dtype=dtype)
        self.spec, self.tokenizer = spec, Tokenizer(spec)
        with computing_in(self.dtype_policy.name):
            self.network = _network(spec)
        self._lacks_pooler = not {*canonical.POOLER}.isdisjoint(spec.absent)
        if spec.task in ("embed", "fill_mask") or self._lacks_pooler:
            self.encoder.freeze_pooler()
        self.built = True
        shape = [None] * (3 if spec.kind == CHOICE else 2)
        self._set_save_spec({name: tf.TensorSpec(shape, tf.int32) for name in self.tokenizer.names})

    @property
    def encoder(self) -> BertEncoder:
        """The encoder. Set `trainable = False` on it, its `embeddings`, one of its `blocks` or its `pooler`
        to freeze them."""
        return getattr(self.network, "encoder", self.network)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the outputs of a classifier, or tagger."""
        return self.spec.labels

    def build(self, input_shape: Any = None) -> None:
        """Does nothing: all variables are created with the model."""

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles the model as it was saved. If the process has also imported the package keras, that has
        replaced the names of optimizers, and would give one that does not belong to tf.keras."""
        settings = {name: tf.keras.saving.deserialize_keras_object(each) for name, each in config.items()}
        optimizer, own = settings.get("optimizer"), tf.keras.optimizers
        if optimizer is not None and not isinstance(optimizer, (str, own.Optimizer, own.legacy.Optimizer)):
            settings["optimizer"] = getattr(own, type(optimizer).__name__).from_config(optimizer.get_config())
        self.compile(**settings)
        if isinstance(self.optimizer, own.Optimizer):
            self.optimizer.build(self.trainable_variables)

    def call(self, inputs, training=None):
        return self._compute(inputs, training)

    @tf.autograph.experimental.do_not_convert  # not needed, and it takes seconds
    def _compute(self, inputs: Any, training: bool | None) -> Any:
        features, spec, seed = _features(inputs, self.spec), self.spec, None
        if training:
            seed = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32)
        if spec.kind == CHOICE:
            return self.network(features, seed)
        if spec.task == "fill_mask":
            features["masked_lm_positions"] = tf.shape(features["input_ids"])[1]  # the first L: all
        carried = stages.run(self.network, features, seed)
        if spec.task == "embed":
            sequence_BLD, mask_BL = carried["sequence"], features["input_mask"]
            if spec.embedding.pooling == "cls":  # padding may precede the first token
                firsts_B = tf.argmax(tf.cast(mask_BL > 0, tf.int32), 1)
                sequence_BLD = tf.gather(sequence_BLD, firsts_B[:, None], batch_dims=1)
            vectors_BD = pooled(sequence_BLD, mask_BL, spec.embedding.pooling)
            return unit(vectors_BD) if spec.embedding.normalize else vectors_BD
        if spec.task is not None:
            found = head_outputs(carried, spec.task)
            return found.get("logits", found)
        hidden = {"last_hidden_state": carried["sequence"]}
        return hidden if self._lacks_pooler else {**hidden, "pooler_output": carried["pooled"]}

    def fit(self, *arguments: Any, **named: Any) -> Any:
        """Trains like every Keras model. Raises ConfigError for class weights unless each text has one class
        number as its label: Keras would use the position of the largest number of a row as its class."""
        is_of_classes = self.spec.task in (None, "embed") or self.spec.kind in (ONE, CHOICE)
        if named.get("class_weight") is not None and not is_of_classes:
            problem = f"needs one label per text, unlike task={self.spec.kind or self.spec.task}"
            raise ConfigError(f"class_weight {problem}. Give sample_weight, a weight for each label.")
        return super().fit(*arguments, **named)

    def make_train_function(self, force: bool = False) -> Any:
        """Returns the function of a step of `fit`. Raises ConfigError if XLA would compile it, and for a loss
        or a metric of probabilities."""
        self._check_compiled()
        if self.jit_compile:
            raise ConfigError("jit_compile=True: training already uses compiled operations. Drop it.")
        return super().make_train_function(force)

    def make_test_function(self, force: bool = False) -> Any:
        """Returns the function of a step of `evaluate`. Raises ConfigError for a loss or a metric of
        probabilities."""
        self._check_compiled()
        return super().make_test_function(force)

    def _check_compiled(self) -> None:
        """Raises ConfigError if a loss or a metric treats logits as probabilities, or if the accuracy for one
        label is used for several labels."""
        if self.spec.task in (None, "embed"):
            return
        problem = "it takes probabilities, but the outputs are logits. Give it with from_logits=True"
        for loss in tf.nest.flatten(getattr(self, "loss", None)):
            if loss is not None and _takes_probabilities(tf.keras.losses.get(loss)):
                raise ConfigError(f"loss={_called(loss)}: {problem}.")
        names = () if self.spec.kind == NUMBER else ("_user_metrics", "_user_weighted_metrics")
        for metric in tf.nest.flatten([getattr(self.compiled_metrics, name, None) for name in names]):
            if metric in ("accuracy", "acc") and self.spec.kind == SEVERAL:
                wrong = "Keras compares only the largest output of a text"
                raise ConfigError(f"metrics={metric}: {wrong}. Give metrics.BinaryAccuracy(threshold=0.0).")
            if metric in (None, "accuracy", "acc"):
                continue
            if metric in ("crossentropy", "ce") or _takes_probabilities(tf.keras.metrics.get(metric)):
                raise ConfigError(f"metrics={_called(metric)}: {problem}, or with a threshold of 0.")

    def get_config(self) -> dict[str, Any]:
        frozen = [n for n, layer in enumerate(self.network._flatten_layers()) if not layer.trainable]
        return {"spec": dataclasses.asdict(self.spec), "dtype": self.dtype_policy.name, "frozen": frozen}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "PretrainedModel":
        values = dict(config["spec"])
        values |= {name: tuple(values.get(name, ())) for name in ("labels", "absent", "thresholds")}
        values |= {
            "bert": BertConfig(**values["bert"]),
            "embedding": EmbeddingSettings(**values["embedding"] | {"dense": ()}),
        }
        model = cls(Spec(**values), config["dtype"])
        layers = list(model.network._flatten_layers())
        for number in config["frozen"]:
            layers[number].trainable = False
        return model

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Writes a Hugging Face folder: weights, configuration, vocabulary, labels. An existing folder is
        replaced when the new one is complete.

        Raises:
          ConfigError: for a model without a class in transformers, or if the folder cannot be written.
        """
        spec = self.spec
        weights = {name_of(each): each for each in self.network.variables}
        tensors = {
            name: of_array(each.numpy(), name) for name, each in weights.items() if name not in spec.absent
        }
        files: dict[str, str | bytes] = {
            **spec.files,
            "bert_config.json": json.dumps(dataclasses.asdict(spec.bert)),
        }
        if spec.kind is not None:
            is_named = spec.thresholds or not model_folder.are_numbered_labels(spec.labels)
            named, kind = spec.labels if is_named else None, model_folder.PROBLEM_TYPE_OF[spec.kind]
            files[model_folder.LABELS] = model_folder.labels_json(named, kind, spec.thresholds)
        if spec.task == "embed":
            files |= sentence_folder.contents(spec.embedding, spec.bert.hidden_size)
        with _folder_of(files) as beside:
            location = os.path.join(beside, "model")
            checkpoint = registry.Checkpoint(registry.get_format("native"), location, tensors)
            convert.convert(checkpoint, "huggingface", os.fspath(folder), overwrite=True)


def _network(spec: Spec) -> Any:
    """Returns the model of `official.modeling` with the head, and with the kernels of a training run."""
    options: dict[str, Any] = {"kernels": "auto", "shared": True, "portable": True}
    if spec.task == "classify":
        options |= {"narrow": True, "head_scale": FULL_DEVIATION}
        if spec.kind == CHOICE:
            return ChoiceModel(spec.bert, **options)
        return SequenceModel(spec.bert, len(spec.labels), **options)
    if spec.task == "tag":
        return TagModel(spec.bert, len(spec.labels), head_scale=FULL_DEVIATION, **options)
    kinds = {"answer": SpanModel, "fill_mask": MaskedLMModel}
    return kinds.get(str(spec.task), BertEncoder)(spec.bert, **options)


def _called(given: Any) -> str:
    """Returns the name of a loss or a metric, for messages."""
    return str(getattr(given, "name", getattr(given, "__name__", given)))[:60]


def _takes_probabilities(found: Any) -> bool:
    """Returns whether a Keras loss or metric treats predictions as probabilities: without logits, or with a
    threshold between 0 and 1."""
    settings: Mapping[str, Any] = {}
    if isinstance(found, (tf.keras.losses.Loss, tf.keras.metrics.Metric)):
        settings = found.get_config()
    else:
        with contextlib.suppress(TypeError, ValueError):  # objects without a signature
            settings = {name: each.default for name, each in inspect.signature(found).parameters.items()}
    if "from_logits" in settings:
        return settings["from_logits"] is False
    if str(getattr(found, "__module__", "")).partition(".")[0] not in ("keras", "tf_keras"):
        return False  # a custom one may compute probabilities first
    cuts = settings.get("thresholds", settings.get("threshold", 0.0))
    if cuts is None:  # one half for Precision and Recall, unless they count the largest
        return "thresholds" in settings and settings.get("top_k") is None
    return any(0 < cut < 1 for cut in np.atleast_1d(cuts))


def _features(inputs: Any, spec: Spec) -> dict[str, tf.Tensor]:
    """Returns the features of a batch. Raises ConfigError for unsupported inputs."""
    given = {"input_ids": inputs} if tf.is_tensor(inputs) else inputs
    if not isinstance(given, Mapping) or "input_ids" not in given or given.keys() - _INPUTS.keys():
        what = ", ".join(given) if isinstance(given, Mapping) else type(inputs).__name__
        raise ConfigError(f"the inputs are {what[:120]}, expected a dict of some of {', '.join(_INPUTS)}.")
    if len({_INPUTS[name] for name in given}) < len(given):
        raise ConfigError(f"the inputs {', '.join(given)} have one of them under two names. Drop one.")
    features = {_INPUTS[name]: tf.cast(values, tf.int32) for name, values in given.items()}
    rank = 3 if spec.kind == CHOICE else 2
    if wrong := [name for name, values in features.items() if values.shape.rank not in (None, rank)]:
        shape, expected = features[wrong[0]].shape, "[B, G, L]" if rank == 3 else "[B, L]"
        raise ConfigError(f"the input {wrong[0]} is of shape {shape}, expected {expected}.")
    if "input_mask" in features:  # any number except 0 marks a token
        features["input_mask"] = tf.minimum(features["input_mask"], 1)
    ids = features["input_ids"]
    if offset := spec.bert.position_offset:
        given_ids = features.get("position_ids")
        places = places_of(ids, spec.bert) if given_ids is None else tf.maximum(given_ids - offset, 0)
        features["position_ids"] = places
    return {"input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids), **features}


# -----------------------------------------------------------------------------------------------------------
# Reading


def from_pretrained(
    path: str | os.PathLike, task: str | None = None, labels: int | Sequence[str] | None = None
) -> PretrainedModel:
    """Reads a model.

    Args:
      path: a run's folder, or a checkpoint of any format, as in `official.inference.load`.
      task: one of TASKS, which are the tasks of bert train, its kinds of labels, and the methods of a loaded
        model; None: hidden states.
      labels: for `classify`, `several`, `number` and `tag`: number of outputs, or their names. None: those of
        the folder. A head with as many, or the same names, is kept; otherwise a new one starts fresh, with a
        warning.

    Raises:
      ConfigError: for an unknown task or no checkpoint, and for missing labels, or labels for a task without
        any.
    """
    if task not in (None, *TASKS):
        allowed = f"{suggest(str(task), TASKS)}. Allowed: None, {', '.join(TASKS)}."
        raise ConfigError(f"task={str(task)[:60]!r}{allowed}")
    source = find(os.fspath(path))
    head, kind = TASKS[task] if task else (None, None)
    names: tuple[str, ...] = ()
    order: list[int] | None = None
    if head in ("classify", "tag") and kind != CHOICE:
        kind, names, order = _classes(source, str(head), kind, labels)
    elif labels is not None:
        raise ConfigError(f"labels={str(labels)[:60]}: task={task} has none. Drop them.")
    elif kind == CHOICE and "classify" in source.abilities():
        order = [0] if methods.classes_of(source).kind == CHOICE else None
    embedding = methods.embedding_settings(source) if head == "embed" else EmbeddingSettings()
    if embedding.dense or embedding.lower_case:
        what = "Dense modules" if embedding.dense else "do_lower_case of sentence-transformers"
        raise ConfigError(f"{source.name}: {what} cannot be trained on. official.inference.load computes it.")
    length = embedding.max_seq_length or source.length()
    files = vocabulary_files.companions(source.vocab_file, source.vocabulary.do_lower_case, length)
    missing = [
        name for name in (*canonical.POOLER, *canonical.NEXT_SENTENCE_HEAD) if name not in source.tensors
    ]
    absent = () if head == "classify" else tuple(missing)
    saved = sidecar_files.sizes_beside(source.location)
    bert = dataclasses.replace(source.bert, **{name: saved[name] for name in OF_TRAINING if name in saved})
    texts = {name: content.decode() for name, content in files.items()}
    thresholds = tuple(source.thresholds[place] for place in order or ()) if source.thresholds else ()
    model = PretrainedModel(Spec(bert, texts, head, kind, names, thresholds, embedding, absent))
    _fill(model, source, order)
    return model


def _classes(
    source: Source, head: str, kind: str | None, labels: int | Sequence[str] | None
) -> tuple[str, tuple[str, ...], list[int] | None]:
    """Returns the kind of labels, their names, and the corresponding outputs of the source's head in order;
    None instead of these for a head that starts fresh."""
    own = methods.classes_of(source) if head in source.abilities() else None
    if own is not None and kind not in (None, own.kind):
        own = None
    if labels is None and kind == NUMBER and own is None:
        labels = 1
    if labels is None:
        if own is None:
            raise ConfigError(f"{source.name} has no head of that kind. Give labels=N, or their names.")
        return own.kind, own.labels, list(range(len(own.labels)))
    count = labels if isinstance(labels, int) else len(labels)
    numbered = tuple(f"LABEL_{number}" for number in range(count))
    names = numbered if isinstance(labels, int) else tuple(labels)
    if isinstance(labels, str) or count < 1 or len(set(names)) < count:
        raise ConfigError(f"labels={labels!r}, expected a number from 1 on, or a list of different names.")
    if own is not None and len(own.labels) == count:
        if isinstance(labels, int):
            return own.kind, own.labels, list(range(count))
        same = [(name,) for name in names]
        is_named = not model_folder.are_numbered_labels(own.labels)
        order = model_folder.order_of_labels(own.labels, same) if is_named else list(range(count))
        return own.kind, names, order
    return kind or (NUMBER if count == 1 else ONE), names, None


def _fill(model: PretrainedModel, source: Source, order: list[int] | None) -> None:
    """Assigns the weights of a source. Logs a warning about heads that start fresh.

    Args:
      order: the outputs of the source's classifier; None: it is not used.
    """
    fresh = []
    for variable in model.network.variables:
        name = name_of(variable)
        is_classifier = name in canonical.CLASSIFIER_HEAD
        if name in source.tensors and not (is_classifier and order is None):
            values = source.values(name)
            variable.assign(values[order] if is_classifier else values)
        elif name not in _HEADS:
            raise ConfigError(f"{source.name} has no {name}.")
        elif variable.trainable:
            fresh.append(name)
    if fresh:
        logging.warning("%s: fresh weights, which need training: %s", source.name, ", ".join(fresh))
