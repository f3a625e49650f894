"""Compares small random encoders of every family with transformers, in a table of families and operations.

  python benchmarks/families.py --make_environments --output=results/families.json

transformers builds a model of each class of each family, without dropout, and computes the expected results.
A cell covers all classes of its family. It is "pass" with the largest difference, relative to the largest
value of the same tensor, or "rejected" with the reason. A gradient that is zero up to rounding, such as that
of the keys' biases, must be so on both sides. FAMILIES lists the families, COLUMNS the operations. Exit code
1: a cell fails.
"""

import argparse
import dataclasses
import functools
import http.client
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import harness
from official.cli import command_line, outputs
from official.io.errors import ConfigError, first_line

HUGGINGFACE = harness.NEW_HUGGINGFACE
TOLERANCE = 1e-5
_NO_GRADIENT = 1e-5  # relative to a model's largest gradient: smaller gradients of a tensor are rounding

# ------------------------------------------------------------------------------------------------------------
# Families

_SIZES = {
    "vocab_size": 71,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 24,
}
_ROBERTA = {**_SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_FINE_TUNED = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
_CLASSES = ("", "ForMaskedLM", *_FINE_TUNED)


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of encoders: its config.json, and the suffixes of transformers' class names."""

    config: dict[str, Any]
    classes: tuple[str, ...] = _CLASSES


FAMILIES = {
    "bert": Family({"model_type": "bert", **_SIZES}, (*_CLASSES, "ForPreTraining")),
    "distilbert": Family(
        {
            "model_type": "distilbert",
            "vocab_size": 71,
            "dim": 24,
            "n_layers": 2,
            "n_heads": 3,
            "hidden_dim": 40,
            "max_position_embeddings": 24,
        }
    ),
    "roberta": Family({"model_type": "roberta", **_ROBERTA}),
    "roberta_padding_is_4": Family({"model_type": "roberta", **_ROBERTA, "pad_token_id": 4}),
    "roberta_two_segments": Family({"model_type": "roberta", **_ROBERTA, "type_vocab_size": 2}),
    "roberta_relu": Family({"model_type": "roberta", **_ROBERTA, "hidden_act": "relu"}),
    "xlm-roberta": Family({"model_type": "xlm-roberta", **_ROBERTA}),
    "camembert": Family({"model_type": "camembert", **_ROBERTA}),
    "electra": Family(
        {"model_type": "electra", **_SIZES, "embedding_size": 16}, (*_CLASSES, "ForPreTraining")
    ),
    "modernbert": Family(
        {
            "model_type": "modernbert",
            **_SIZES,
            "local_attention": 8,
            "global_attn_every_n_layers": 2,
            "pad_token_id": 0,
        }
    ),
    "modernbert_means": Family(
        {
            "model_type": "modernbert",
            **_SIZES,
            "local_attention": 8,
            "classifier_pooling": "mean",
            "pad_token_id": 0,
        }
    ),
    "electra_whole_tables": Family(
        {"model_type": "electra", **_SIZES, "embedding_size": 24, "hidden_act": "relu"},
        (*_CLASSES, "ForPreTraining"),
    ),
}


# ------------------------------------------------------------------------------------------------------------
# Columns


class Difference(Exception):
    """A result differs from that of transformers."""


@dataclasses.dataclass
class Case:
    """A model of a family, built by transformers.

    Attributes:
      config: keys of its config.json.
      ending: suffix of its class name.
      folder: folder of the model.
      ask: function that sends a question to the peer's program.
    """

    config: dict[str, Any]
    ending: str
    folder: str
    ask: Callable[[dict], dict]

    @functools.cached_property
    def expected(self) -> dict[str, np.ndarray]:
        with np.load(os.path.join(self.folder, "expected.npz")) as file:
            return dict(file)

    @functools.cached_property
    def source(self) -> Any:
        from official.inference import source

        words = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        with open(os.path.join(self.folder, "config.json"), encoding="utf-8") as file:
            words.insert(json.load(file)["pad_token_id"], "[PAD]")
        words += [f"word{number}" for number in range(len(words), self.config["vocab_size"])]
        with open(os.path.join(self.folder, "vocab.txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(words) + "\n")
        return source.find(self.folder)

    @functools.cached_property
    def network(self) -> Any:
        """The model with the class's head, in fp32 with plain operations; for ELECTRA's discriminator, whose
        head is only stored, the encoder."""
        from official.checkpoint import canonical
        from official.modeling import models

        is_lm = canonical.OUTPUT_BIAS in self.source.tensors
        kind = {
            "": models.BertEncoder,
            "ForMaskedLM": models.MaskedLMModel,
            "ForPreTraining": models.BertPretrainer if is_lm else models.BertEncoder,
            "ForTokenClassification": models.TagModel,
            "ForQuestionAnswering": models.SpanModel,
        }.get(self.ending, models.SequenceModel)
        of_classes = (models.TagModel, models.SequenceModel)
        network = (
            kind(self.source.bert, self.source.classes) if kind in of_classes else kind(self.source.bert)
        )
        self.source.fill(network)
        return network

    def computed(self, batch: str) -> tuple[np.ndarray, np.ndarray | None, dict[str, np.ndarray]]:
        """Returns (vectors of tokens, logits, gradients by transformers' names) of a batch, `padded` or
        `full`; no logits for a head that is only stored."""
        import tensorflow as tf

        from official.checkpoint import sidecar_files, tensors
        from official.checkpoint.formats import Options, huggingface
        from official.inference.source import name_of

        given = {
            name: self.expected[f"{batch}/{name}"] for name in ("input_ids", "attention_mask", "cotangent")
        }
        ids = given["input_ids"].astype(np.int32)
        segments = (np.arange(ids.shape[1]) >= ids.shape[1] // 2) * np.ones_like(ids)
        features = {"input_ids": ids, "input_mask": given["attention_mask"], "segment_ids": segments}
        features["masked_lm_positions"] = np.arange(ids.shape[1]) * np.ones_like(ids)
        features = {name: tf.constant(values, tf.int32) for name, values in features.items()}
        network = self.network
        with tf.GradientTape() as tape:
            carried = getattr(network, "encoder", network).run(network, features, None)
            logits = self._logits(carried)
            if logits is None:
                return carried["sequence"].numpy(), None, {}
            loss = tf.reduce_sum(tf.reshape(logits, given["cotangent"].shape) * given["cotangent"])
        found = tape.gradient(loss, network.trainable_variables)
        gradients = {
            name_of(variable): tf.convert_to_tensor(gradient).numpy()
            for variable, gradient in zip(network.trainable_variables, found)
            if gradient is not None
        }
        beside = sidecar_files.sizes_beside(self.folder)
        options = Options(**sidecar_files.of_family(beside), problem_type=self.source.problem_type)
        ours = {name: tensors.of_array(values, name) for name, values in gradients.items()}
        theirs = huggingface.FORMAT.from_canonical(ours, options).tensors
        saved = huggingface.as_saved(theirs, self.source.bert.family_row)
        named = {name: tensor.read() for name, tensor in saved.items()}
        return carried["sequence"].numpy(), logits.numpy(), named

    def _logits(self, carried: dict) -> Any:
        import tensorflow as tf

        if self.ending == "":
            return carried["sequence"]
        if self.ending == "ForQuestionAnswering":
            return tf.stack([carried["start_logits"], carried["end_logits"]], axis=-1)
        names = ("masked_lm_logits", "tag_logits", "logits")
        return next((carried[name] for name in names if name in carried), None)


_POOLER = re.compile(r"\.pooler\.|^pre_classifier\.")
_NOT_LOADED = ("missing", "unexpected", "mismatched")


def read(case: Case) -> float:
    """Reads the folder: every tensor must be known, and the model must use all of them."""
    case.network  # noqa: B018
    return 0.0


def write(case: Case) -> float:
    """Converts the folder to this project's format and back: bytes must be equal, and transformers must load
    it without missing or unexpected weights."""
    from safetensors.numpy import load_file

    from official.checkpoint.convert import convert

    name = os.path.basename(case.folder)
    with tempfile.TemporaryDirectory() as folder:
        convert(case.folder, "native", f"{folder}/native")
        convert(f"{folder}/native/{name}", "huggingface", f"{folder}/back")
        ours, theirs = (load_file(f"{each}/model.safetensors") for each in (f"{folder}/back", case.folder))
        if ours.keys() != theirs.keys():
            raise Difference(f"tensors {sorted(ours.keys() ^ theirs.keys())} are on one side only")
        if changed := [each for each in ours if ours[each].tobytes() != theirs[each].tobytes()]:
            raise Difference(f"tensors {changed} have other bytes")
        loaded = case.ask({"do": "load", "class": case.ending, "folder": f"{folder}/back"})
    with open(os.path.join(case.folder, "config.json"), encoding="utf-8") as file:
        architecture = json.load(file)["architectures"][0]
    found = {name: loaded[name] for name in _NOT_LOADED if loaded[name]}
    found |= {
        key: loaded["config"].get(key) for key in case.config if loaded["config"].get(key) != case.config[key]
    }
    if found or loaded["class"] != architecture:
        raise Difference(f"transformers finds {found} in the folder, and loads it as {loaded['class']}")
    return 0.0


def _compare(case: Case, part: Callable[[str, tuple], float]) -> float:
    return max(part(batch, case.computed(batch)) for batch in ("padded", "full"))


def _relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    if ours.shape != theirs.shape:
        raise Difference(f"the shape is {ours.shape}, transformers' {theirs.shape}")
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def hidden_states(case: Case) -> float:
    """Compares the vectors of the last layer, without padding."""

    def compare(batch: str, computed: tuple) -> float:
        mask = case.expected[f"{batch}/attention_mask"][..., None]
        theirs = case.expected[f"{batch}/hidden"].reshape(computed[0].shape)
        return _relative(computed[0] * mask, theirs * mask)

    return _compare(case, compare)


def logits(case: Case) -> float | None:
    """Compares the outputs of the class's head."""

    def compare(batch: str, computed: tuple) -> float:
        theirs, cotangent = (case.expected[f"{batch}/{name}"] for name in ("logits", "cotangent"))
        return _relative(
            np.where(cotangent, computed[1].reshape(theirs.shape), 0), np.where(cotangent, theirs, 0)
        )

    return None if case.computed("full")[1] is None else _compare(case, compare)


def gradients(case: Case) -> float | None:
    """Compares the gradients of all weights by name."""

    def compare(batch: str, computed: tuple) -> float:
        start = f"{batch}/gradient/"
        theirs = {
            name.removeprefix(start): each for name, each in case.expected.items() if name.startswith(start)
        }
        least = _NO_GRADIENT * max(np.abs(each).max() for each in theirs.values())
        both = [
            {name: each for name, each in side.items() if np.abs(each).max() > least}
            for side in (computed[2], theirs)
        ]
        if lone := sorted(both[0].keys() ^ both[1].keys()):
            raise Difference(f"{lone} have gradients on one side only")
        return max(_relative(both[0][name], both[1][name]) for name in both[0])

    return None if case.computed("full")[1] is None else _compare(case, compare)


def pack(case: Case) -> float | None:
    """Compares vectors and logits of packed sequences with those of sequences in separate rows."""
    import tensorflow as tf

    if case.ending == "ForMultipleChoice":  # a row there is a choice
        return None
    ids, mask = (case.expected[f"padded/{name}"].astype(np.int32) for name in ("input_ids", "attention_mask"))
    lengths, length = mask.sum(axis=1), ids.shape[1]
    segments = (np.arange(length) >= length // 2) * np.ones_like(ids)
    apart = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    apart["masked_lm_positions"] = np.arange(length) * np.ones_like(ids)
    is_token, total = mask > 0, int(lengths.sum())
    row = {name: values[is_token][None] for name, values in apart.items()}
    row["position_ids"] = row.pop("masked_lm_positions")
    row["sequence_ids"] = np.repeat(1 + np.arange(len(lengths)), lengths)[None]
    row["cls_positions"] = (np.cumsum(lengths) - lengths)[None]
    row["masked_lm_positions"] = np.arange(total)[None]
    found = []
    for features in (apart, row):
        features = {name: tf.constant(values, tf.int32) for name, values in features.items()}
        encoder = getattr(case.network, "encoder", case.network)
        found.append(encoder.run(case.network, features, None))
    differences = []
    for name in ("sequence", "masked_lm_logits", "tag_logits", "start_logits", "end_logits"):
        if name in found[0]:
            differences.append(_relative(found[1][name].numpy()[0], found[0][name].numpy()[is_token]))
    for name in ("logits", "next_sentence_logits"):
        if name in found[0]:
            differences.append(_relative(found[1][name].numpy()[0], found[0][name].numpy()))
    return max(differences)


# ------------------------------------------------------------------------------------------------------------
# Training

_FEW = {"learning_rate": 1e-3, "warmup_steps": 0, "train_batch_size": 8, "eval_batch_size": 8}


def _trained(case: Case, folder: str, **settings: Any) -> str:
    """Trains a few steps from the case's folder. Returns the run's folder in transformers' format."""
    from official.checkpoint.convert import convert
    from official.config import build_config
    from official.tasks import TASKS
    from official.training.run import run

    case.source  # noqa: B018  # writes the vocabulary
    own = {**_FEW, "init_checkpoint": case.folder, "model_dir": f"{folder}/run", **settings}
    config = build_config([("families", own)])
    result = run(config, TASKS[config.task], [])
    if result.status != "finished":
        raise Difference(f"the run ended as {result.status}: {result.reason}")
    convert(f"{folder}/run", "huggingface", f"{folder}/published")
    return f"{folder}/published"


def _as_published(case: Case, ending: str, folder: str) -> float:
    """Compares outputs of the trained model with those of transformers for the same folder."""
    loaded = case.ask({"do": "expect", "class": ending, "folder": folder, "seed": 2})
    # The folder may keep a pooler that the class lacks and ignores.
    found = {name: [each for each in loaded[name] if not _POOLER.search(each)] for name in _NOT_LOADED}
    if any(found.values()):
        raise Difference(f"transformers finds {found} in the folder of the run")
    own = Case(case.config, ending, folder, case.ask)
    return max(hidden_states(own), logits(own) or 0.0)


def fine_tune(case: Case) -> float | None:
    """Trains a classifier of pairs for a few steps, and compares it with transformers' class."""
    if case.ending != "":
        return None
    with tempfile.TemporaryDirectory() as folder:
        rows = [("word7 word8", "word9", "yes"), ("word10 word11", "word12", "no")] * 8
        with open(f"{folder}/rows.csv", "w", encoding="utf-8") as file:
            file.write("\n".join(["text,other,label", *(",".join(row) for row in rows)]) + "\n")
        data = dict.fromkeys(("train_file", "eval_file"), f"{folder}/rows.csv")
        settings = {"task": "classify", "text_columns": "text,other", "num_train_epochs": 1}
        published = _trained(case, folder, **data, **settings)
        return _as_published(case, "ForSequenceClassification", published)


def pre_train(case: Case) -> float | None:
    """Trains a few steps of the family's objective, and compares with transformers' class; for ELECTRA also
    the losses and gradients of its two classes."""
    if case.ending != "":
        return None
    family = case.source.bert.family_row
    objective = "mlm_nsp" if family.has_next_sentence else "mlm"
    objective = "electra" if family.name == "electra" else objective
    with tempfile.TemporaryDirectory() as folder:
        settings = {"objective": objective, "use_synthetic_data": True, "max_seq_length": 16}
        settings |= {"max_predictions_per_seq": 3, "num_steps_per_epoch": 3, "num_train_epochs": 1}
        settings["vocab_file"] = f"{case.folder}/vocab.txt"
        settings["bert_config_file"] = f"{case.folder}/config.json"
        published = _trained(case, folder, **settings)
        ending = "ForMaskedLM" if objective == "mlm" else "ForPreTraining"
        found = _as_published(case, ending, published)
        if objective != "electra":
            return found
        generator = _as_published(case, "ForMaskedLM", f"{published}/generator")
        return max(found, generator, _of_electra(case, published))


_PADDING_ROW = "electra.embeddings.word_embeddings.weight"  # transformers gives its first row no gradient


def _of_electra(case: Case, folder: str) -> float:
    """Returns the largest difference of losses and gradients of a generator and a discriminator, for the same
    sampled words."""
    import tensorflow as tf

    from official.checkpoint import initialize, sidecar_files, tensors
    from official.checkpoint.formats import Options, huggingface
    from official.inference.source import name_of
    from official.modeling import electra, objectives

    model = electra.ElectraPretrainer(case.source.bert, generator_share=0.25)
    initialize.initialize({name_of(variable): variable for variable in model.variables}, folder)
    generator = np.random.default_rng(3)
    lengths = np.array([[16], [11], [7], [16]])
    mask = np.arange(16) < lengths
    text = np.where(mask, generator.integers(5, case.config["vocab_size"], mask.shape), 0)
    positions = np.array([np.sort(generator.permutation(np.arange(1, count))[:3]) for (count,) in lengths])
    is_masked = np.zeros(mask.shape, bool)
    np.put_along_axis(is_masked, positions, True, axis=1)
    segments = (np.arange(16) >= 5) & mask
    batch = {
        "input_ids": np.where(is_masked, 4, text),
        "input_mask": mask,
        "segment_ids": segments,
        "masked_lm_positions": positions,
        "masked_lm_ids": np.take_along_axis(text, positions, axis=1),
    }
    batch = {name: tf.constant(values, tf.int32) for name, values in batch.items()}
    batch |= {"masked_lm_weights": tf.ones([4, 3]), "example_weights": tf.ones([4])}
    with tf.GradientTape() as tape:
        outputs = model(batch)
        terms = objectives.pretraining_terms(outputs, batch, "pertoken")
        means = {name: terms[name][0] / terms[name][1] for name in ("mlm_loss", "rtd_loss")}
        total = means["mlm_loss"] + 50 * means["rtd_loss"]
    gradients = tape.gradient(total, model.trainable_variables)
    sampled = outputs[2].numpy()
    asked = {"masked_ids": batch["input_ids"], "attention_mask": mask, "token_type_ids": segments}
    asked |= {"labels": np.where(is_masked, text, -100), "sampled_ids": sampled}
    np.savez(f"{folder}/batch.npz", **asked, is_replaced=sampled != text)
    case.ask({"do": "electra", "folder": folder})
    named = {name_of(variable): one for variable, one in zip(model.trainable_variables, gradients)}
    ours = {name: tensors.of_array(tf.convert_to_tensor(one).numpy(), name) for name, one in named.items()}
    options = Options(**sidecar_files.of_family(sidecar_files.sizes_beside(folder)))
    saved = huggingface.FORMAT.from_canonical(ours, options).tensors
    with np.load(f"{folder}/losses.npz") as file:
        theirs = dict(file)
    found = [_relative(means[name].numpy(), theirs[name]) for name in means]
    start = "gradient/"
    known = {name.removeprefix(start): one for name, one in theirs.items() if name.startswith(start)}
    least = _NO_GRADIENT * max(np.abs(one).max() for one in known.values())
    for name, expected in known.items():
        if name.startswith("generator.electra.embeddings."):  # the discriminator's
            continue
        own = saved[name].read().copy()
        if name == _PADDING_ROW:
            own[0] = expected[0]
        if max(np.abs(own).max(), np.abs(expected).max()) > least:
            found.append(_relative(own, expected))
    return max(found)


# ------------------------------------------------------------------------------------------------------------
# Other forms of a model

_TEXTS = ["word7 word8 word9", "word20", "word30 word31 word32 word33 word34 word35"]
_QUESTION = ("word7 word8", "word9 word10 word11 word12 word13")


def _asked(model: Any, ending: str) -> np.ndarray:
    """Returns the numbers in a model's answers."""
    if ending == "ForQuestionAnswering":
        found = model.answers(*_QUESTION)
        return np.array([[each.probability, each.start, each.end] for each in found])
    if ending == "ForMaskedLM":
        return np.array([word.probability for word in model.fill_mask("word7 [MASK] word9")[0]])
    return np.array([list(label.scores.values()) for label in model.classify(_TEXTS)])


def export(case: Case) -> float | None:
    """Compares the answers of a SavedModel with those of the folder."""
    from official import inference
    from official.serving import export as export_lib

    if case.ending not in ("ForSequenceClassification", "ForQuestionAnswering"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        export_lib.export(case.source, f"{folder}/1")
        models = (inference.load(path) for path in (f"{folder}/1", case.folder))
        return _relative(*(_asked(model, case.ending) for model in models))


def onnx(case: Case) -> float | None:
    """Compares the answers of ONNX Runtime with those of TensorFlow."""
    from official import inference

    if case.ending not in ("ForSequenceClassification", "ForQuestionAnswering", "ForMaskedLM"):
        return None
    case.source  # noqa: B018
    models = (inference.load(case.folder, backend=backend) for backend in ("onnxruntime", "tensorflow"))
    return _relative(*(_asked(model, case.ending) for model in models))


def serve(case: Case) -> float | None:
    """Compares the answers of the server with those of a call in Python."""
    import serving
    from official import inference

    if case.ending != "ForQuestionAnswering":
        return None
    case.source  # noqa: B018
    expected = inference.load(case.folder).answer(*_QUESTION)
    settings = {"dtype": "fp32", "backend": "tensorflow", "threads": 1, "environments": ""}
    flags = argparse.Namespace(**settings, max_batch_size=8, batch_delay_ms=0)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving.Server(serving.OURS, flags, case.folder, folder) as server,
    ):
        question, context = _QUESTION
        asked = {"signature_name": "answer", "instances": [{"question": question, "context": context}]}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", serving.OURS.path, json.dumps(asked))
        (found,) = json.loads(connection.getresponse().read())["predictions"]
    if found["text"] != expected.text:
        raise Difference(f"the server answers {found['text']!r}, a call in Python {expected.text!r}")
    return abs(found["score"] - expected.probability) / expected.probability


COLUMNS: dict[str, Callable[[Case], float | None]] = {
    "read": read,
    "write": write,
    "hidden_states": hidden_states,
    "logits": logits,
    "gradients": gradients,
    "fine_tune": fine_tune,
    "pre_train": pre_train,
    "pack": pack,
    "export": export,
    "onnx": onnx,
    "serve": serve,
}


# ------------------------------------------------------------------------------------------------------------
# Table


class Main(harness.EnvironmentFlags, harness.NumbersFlags):
    """Flags of the command.

    Attributes:
      families: Comma-separated names in FAMILIES.
      columns: Comma-separated names in COLUMNS.
      seed: Seed of the random weights.
    """

    families: str = ",".join(FAMILIES)
    columns: str = ",".join(COLUMNS)
    seed: int = 1


def cell(cases: list[Case], column: str) -> dict:
    """Returns {result: pass, fails or rejected, with the reason; largest: difference}."""
    largest = 0.0
    for case in cases:
        name = case.ending or "the encoder"
        try:
            found = COLUMNS[column](case)
        except ConfigError as error:
            return {"result": f"rejected: {name}: {error}"}
        except Difference as error:
            return {"result": f"fails: {name}: {error}"}
        except Exception as error:  # pylint: disable=broad-except  # the other cells still run
            return {"result": f"fails: {name}: {type(error).__name__}: {first_line(error)}"}
        if found is not None and not found <= TOLERANCE:
            return {"result": f"fails: {name}: differs by {found:.1e}", "largest": found}
        largest = max(largest, found or 0.0)
    return {"result": "pass", "largest": largest}


def rows_of(flags: argparse.Namespace, folder: str) -> tuple[list[dict], dict]:
    """Returns a row per family, {name, classes, column: cell}, and the versions of the peer."""
    rows, versions = [], {}
    with harness.program("huggingface", "families_peer.py", HUGGINGFACE, flags, folder) as peer:

        def ask(question: dict) -> dict:
            peer.ask(question)
            return peer.answer()

        for number, name in enumerate(flags.families):
            family, cases = FAMILIES[name], []
            for ending in family.classes:
                place = os.path.join(folder, f"{number}_{ending or 'Model'}")
                asked = {
                    "do": "make",
                    "class": ending,
                    "config": family.config,
                    "seed": flags.seed,
                    "folder": place,
                }
                versions = ask(asked)["versions"]
                cases.append(Case(family.config, ending, place, ask))
            row = {"name": name, "classes": [f"AutoModel{each}" for each in family.classes]}
            rows.append(row | {column: cell(cases, column) for column in flags.columns})
            print(describe(rows[-1:], flags.columns), file=sys.stderr, flush=True)
    return rows, versions


def describe(rows: list[dict], columns: list[str]) -> str:
    """Returns a line per family, and one for each cell that does not pass."""
    shown = [{"name": row["name"], **{each: _short(row[each]) for each in columns}} for row in rows]
    lines = [outputs.table([("family", "name", ""), *((each, each, "") for each in columns)], shown)]
    for row in rows:
        lines += [
            f"{row['name']}, {each}: {row[each]['result']}" for each in columns if _short(row[each]) == "NO"
        ]
    return "\n".join(lines)


def _short(found: dict) -> str:
    return f"{found['largest']:.0e}" if found["result"] == "pass" else "NO"


def main() -> int:
    flags = Main.parse()
    flags.families = command_line.read_list(flags.families, "families", tuple(FAMILIES))
    flags.columns = command_line.read_list(flags.columns, "columns", tuple(COLUMNS))
    harness.prepare([("huggingface", HUGGINGFACE)], flags)
    with tempfile.TemporaryDirectory() as folder:
        rows, versions = rows_of(flags, folder)
    print(describe(rows, flags.columns))
    record = {"tolerance": TOLERANCE, "seed": flags.seed, "requirements": HUGGINGFACE.requirements}
    harness.write_json(flags, {**record, "peer_versions": versions, "cases": rows})
    return int(any(row[each]["result"].startswith("fails") for row in rows for each in flags.columns))


if __name__ == "__main__":
    harness.main(main)
