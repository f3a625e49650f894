"""Encoders of other families: their folders are read as what they are, compute what they say, come back byte
by byte, and are refused where a format or a task has no place for them."""

import dataclasses
import itertools
import json
from collections.abc import Callable

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

from official import inference
from official.checkpoint.convert import convert
from official.checkpoint.formats import Options
from official.checkpoint.initialize import initialize
from official.config import build_config
from official.config.model import bert_config_from_dict
from official.inference import verification
from official.io import model_folder, vocabulary_files
from official.io.errors import ConfigError
from official.models import from_pretrained
from official.tasks import TASKS
from tests.checkpoint.tensors import assert_same
from tests.checkpoint.test_format_huggingface import config_in
from tests.fixtures import slow
from tests.numpy_bert import NumpyBert, gelu_erf
from tests.refusals import assert_refused
from tests.run_folders import run

VOCABULARY = """[PAD] [unused0] [unused1] [unused2] [unused3] [UNK] [CLS] [SEP] [MASK]
    a bad calm good is loud sea storm the .""".split()
WORDS, HIDDEN, NARROW, INNER, LAYERS, HEADS, POSITIONS = len(VOCABULARY), 16, 12, 24, 2, 4, 32
PAIR = ("the sea is calm", "a calm sea")
CLASSIFIER, CLASSES = "ForSequenceClassification", {"id2label": {0: "a", 1: "b", 2: "c"}}

# transformers' names of a layer -> Google's.
GOOGLES = """attention/self/query attention/self/key attention/self/value attention/output/dense
    attention/output/LayerNorm intermediate/dense output/dense output/LayerNorm""".split()
DISTILBERTS = """attention.q_lin attention.k_lin attention.v_lin attention.out_lin
    sa_layer_norm ffn.lin1 ffn.lin2 output_layer_norm""".split()
BERT_LAYER = {name.replace("/", "."): name for name in GOOGLES}
DISTILBERT_LAYER = dict(zip(DISTILBERTS, GOOGLES))
OF_ALL = dict(initializer_range=0.02, max_position_embeddings=POSITIONS, vocab_size=WORDS)
BERT_CONFIG = dict(OF_ALL, hidden_act="gelu", hidden_size=HIDDEN, intermediate_size=INNER)
BERT_CONFIG |= dict(layer_norm_eps=1e-12, num_attention_heads=HEADS, num_hidden_layers=LAYERS)
BERT_CONFIG |= dict(attention_probs_dropout_prob=0.1, hidden_dropout_prob=0.1)
DISTILBERT_CONFIG = dict(OF_ALL, model_type="distilbert", activation="gelu", dim=HIDDEN, hidden_dim=INNER)
DISTILBERT_CONFIG |= dict(n_heads=HEADS, n_layers=LAYERS, pad_token_id=0, attention_dropout=0.1, dropout=0.1)
IGNORED = dict(qa_dropout=0.1, seq_classif_dropout=0.2, sinusoidal_pos_embds=False, tie_weights_=True)


@dataclasses.dataclass(frozen=True)
class Family:
    """What transformers' code says of a family; names of weights are those of its files."""

    title: str
    config: dict
    base: str
    layers: str = "encoder.layer"
    layer: dict = dataclasses.field(default_factory=lambda: BERT_LAYER)
    segments: int = 0  # rows of the table
    first: int = 0  # row of the position table that the first token takes
    width: int = HIDDEN  # of the tables
    pooler: str = "classifier.dense"
    classifier: str = "classifier.out_proj"
    act: Callable = np.tanh  # between them
    masked_lm: tuple = ()  # dense layer, LayerNorm, bias, and copy of the table of words


def of_roberta(model_type: str, title: str) -> Family:
    config = {**BERT_CONFIG, "model_type": model_type, "type_vocab_size": 1, "pad_token_id": 1}
    names = "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.weight"
    return Family(title, config, "roberta", segments=1, first=2, masked_lm=names)


ELECTRAS = "generator_predictions.dense", "generator_predictions.LayerNorm"
FAMILIES = {
    "distilbert": Family(
        "DistilBert",
        {**DISTILBERT_CONFIG, **IGNORED},
        "distilbert",
        "transformer.layer",
        DISTILBERT_LAYER,
        pooler="pre_classifier",
        classifier="classifier",
        act=lambda x: np.maximum(0, x),
        masked_lm=("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector.weight"),
    ),
    "roberta": of_roberta("roberta", "Roberta"),
    "xlm-roberta": of_roberta("xlm-roberta", "XLMRoberta"),
    "camembert": of_roberta("camembert", "Camembert"),
    "electra": Family(
        "Electra",
        {**BERT_CONFIG, "model_type": "electra", "type_vocab_size": 2, "embedding_size": NARROW},
        "electra",
        segments=2,
        width=NARROW,
        act=gelu_erf,
        masked_lm=(*ELECTRAS, "generator_lm_head.bias", "generator_lm_head.weight"),
    ),
}


# XLM-RoBERTa is RoBERTa under another name, as CamemBERT is.
EACH = pytest.mark.parametrize("name", ["distilbert", slow("roberta"), "camembert", "electra"])


class Oracle(NumpyBert):
    """The encoder of a family."""

    def embed(self, ids, segments):
        x = super().embed(ids, segments)
        projects = "bert/embeddings_project/kernel" in self.weights
        return self.dense(x, "bert/embeddings_project") if projects else x


class Weights:
    """Random weights of an encoder and a head.

    Attributes:
      theirs: {transformers' name: values}.
      oracle: of the encoder. Its segments are zeros where the family has none, and the same row for all where
        it has one; its positions begin with that of the first token.
    """

    def __init__(self, name: str, head: dict[str, tuple[int, ...]]):
        self._generator, self.theirs, ours = np.random.default_rng(3), {}, {}
        family = FAMILIES[name]
        rows = {"word": WORDS, "position": POSITIONS, "token_type": family.segments}
        for table, count in rows.items():
            theirs = f"{family.base}.embeddings.{table}_embeddings.weight"
            values = self._draw(theirs, (count, family.width)) if count else np.zeros((1, family.width))
            ours[f"bert/embeddings/{table}_embeddings"] = values
        types, places = (f"bert/embeddings/{table}_embeddings" for table in ("token_type", "position"))
        ours[types], ours[places] = np.resize(ours[types], (2, family.width)), ours[places][family.first :]
        layers = {"embeddings.LayerNorm": ("embeddings/LayerNorm", (family.width,))}
        if family.width != HIDDEN:
            layers["embeddings_project"] = "embeddings_project", (HIDDEN, family.width)
        for number, (part, google) in itertools.product(range(LAYERS), family.layer.items()):
            outputs = INNER if google == "intermediate/dense" else HIDDEN
            inputs = INNER if google == "output/dense" else HIDDEN
            shape = (HIDDEN,) if google.endswith("LayerNorm") else (outputs, inputs)
            layers[f"{family.layers}.{number}.{part}"] = f"encoder/layer_{number}/{google}", shape
        for theirs, (google, shape) in layers.items():
            weight, bias = ("kernel", "bias") if len(shape) == 2 else ("gamma", "beta")
            ours[f"bert/{google}/{weight}"] = self._draw(f"{family.base}.{theirs}.weight", shape).T
            ours[f"bert/{google}/{bias}"] = self._draw(f"{family.base}.{theirs}.bias", shape[:1])
        for each, shape in head.items():
            self._draw(each, shape)
        pooler = {"bert/pooler/dense/kernel": np.zeros((HIDDEN, HIDDEN)), "bert/pooler/dense/bias": 0}
        self.oracle = Oracle(ours | pooler, LAYERS, HEADS, gelu_erf)

    def _draw(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        mean = float(name.lower().endswith("norm.weight"))
        self.theirs[name] = self._generator.normal(mean, 0.3, shape).astype(np.float32)
        return self.theirs[name]


def classifier_of(family: Family) -> dict[str, tuple[int, ...]]:
    return {
        f"{family.pooler}.weight": (HIDDEN, HIDDEN),
        f"{family.pooler}.bias": (HIDDEN,),
        f"{family.classifier}.weight": (3, HIDDEN),
        f"{family.classifier}.bias": (3,),
    }


def write_folder(
    folder, name: str, weights: dict[str, np.ndarray], ending: str, layers: int = LAYERS, **config
) -> str:
    folder.mkdir()
    family, count = FAMILIES[name], "n_layers" if name == "distilbert" else "num_hidden_layers"
    if layers == 1:
        weights = {each: values for each, values in weights.items() if f"{family.layers}.1." not in each}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    values = {**family.config, "architectures": [family.title + ending], count: layers, **config}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    return str(folder)


def classifier(name: str, tmp_path, layers: int = LAYERS) -> tuple[str, Weights]:
    """Returns a folder with a classifier, and its weights, of two layers in any case."""
    weights = Weights(name, classifier_of(FAMILIES[name]))
    folder = write_folder(tmp_path / "theirs", name, weights.theirs, CLASSIFIER, layers, **CLASSES)
    return folder, weights


def probabilities(family: Family, weights: Weights, ids: list[int], segments: list[int]) -> np.ndarray:
    """Returns what a class ...ForSequenceClassification computes, by transformers' modeling_*.py."""
    ids_BL = np.array([ids])
    sequence, _ = weights.oracle.encode(ids_BL, np.ones(ids_BL.shape), np.array([segments]))
    theirs = weights.theirs
    first = theirs[f"{family.pooler}.weight"] @ sequence[0, 0] + theirs[f"{family.pooler}.bias"]
    logits = theirs[f"{family.classifier}.weight"] @ family.act(first) + theirs[f"{family.classifier}.bias"]
    return np.exp(logits) / np.exp(logits).sum()


@EACH
def test_a_family_computes_what_its_folder_says(name, tmp_path):
    """One text, and a pair, whose segments count in ELECTRA alone; the folder comes back as it was."""
    family, (folder, weights) = FAMILIES[name], classifier(name, tmp_path)
    model = inference.load(folder)
    ids = {word: number for number, word in enumerate(VOCABULARY)}
    first, second = ([ids[word] for word in text.split()] for text in PAIR)
    cls, sep = ids["[CLS]"], ids["[SEP]"]
    one, two = [cls, *first, sep], [*second, sep]
    for texts, tokens, segments in (
        (PAIR[:1], one, [0] * len(one)),
        (PAIR, one + two, [0] * len(one) + [1] * len(two)),
    ):
        expected = probabilities(family, weights, tokens, segments)
        np.testing.assert_allclose(list(model.classify(*texts).scores.values()), expected, atol=1e-6)

    verified = convert(folder, "native", str(tmp_path / "ours"), verify=verification.verify)["verification"]
    assert verified["passed"] and verified["settings"]["family"] == [name, name]
    convert(str(tmp_path / "ours" / "theirs"), "huggingface", str(tmp_path / "back"))
    assert_same(load_file(tmp_path / "back" / "model.safetensors"), weights.theirs)
    config = config_in(tmp_path / "back")
    kept = {key: value for key, value in family.config.items() if key not in IGNORED}
    assert {key: config.get(key) for key in kept} == kept
    assert config["architectures"] == [f"{family.title}ForSequenceClassification"]
    assert name != "distilbert" or not config.keys() & {"hidden_size", "type_vocab_size", "hidden_act"}
    tokenizer = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
    inputs = None if family.segments > 1 else ["input_ids", "attention_mask"]
    assert tokenizer.get("model_input_names") == inputs, "transformers gives segments to classes without"


def test_positions_are_counted_from_the_id_of_padding(tmp_path):
    """Another id moves them; a text has as many tokens as there are rows behind its row."""
    weights = Weights("roberta", classifier_of(FAMILIES["roberta"])).theirs
    places, found = "roberta.embeddings.position_embeddings.weight", {}
    for number in (1, 4):
        moved = weights | {places: np.roll(weights[places], number - 1, axis=0)}
        settings = {"pad_token_id": number, **CLASSES, "layers": 1}
        folder = write_folder(tmp_path / str(number), "roberta", moved, CLASSIFIER, **settings)
        found[number] = inference.load(folder).classify(*PAIR).scores
        with pytest.raises(ConfigError, match=f"the model has {POSITIONS - number - 1} positions"):
            inference.load(folder, max_seq_length=POSITIONS - number)
    assert found[1] == found[4]


def test_weights_alone_are_not_those_of_another_family(tmp_path):
    """No shape tells that their positions begin elsewhere, and nothing beside them; their names do."""
    path = str(tmp_path / "weights.safetensors")
    save_file(Weights("roberta", {}).theirs, path, {"format": "pt"})
    cases = [
        (BERT_CONFIG, "has weights of family=roberta, the model is of family=bert"),
        (FAMILIES["xlm-roberta"].config, "does not fit the model"),  # which has no variable here
    ]
    assert_refused(lambda config: initialize({}, path, bert_config_from_dict(config, "config.json")), cases)


def test_padding_may_stand_before_the_text(tmp_path):
    """Positions are counted from the ids, as transformers does, and not from the start of the row."""
    folder, _ = classifier("roberta", tmp_path)
    model = from_pretrained(folder)
    batch, before = model.tokenizer(PAIR[0]), [(0, 0), (3, 0)]
    moved = {name: np.pad(one, before, constant_values=name == "input_ids") for name, one in batch.items()}
    there, found = (model(each)["last_hidden_state"].numpy() for each in (batch, moved))
    np.testing.assert_allclose(found[:, 3:], there, atol=1e-5)


def test_a_word_of_texts_that_has_the_id_of_padding_is_refused(tmp_path):
    """transformers counts no position for it."""
    folder, _ = classifier("roberta", tmp_path)
    vocabulary = tmp_path / "theirs" / "vocab.txt"
    words = vocabulary.read_text(encoding="utf-8").split("\n")
    unknown = words.index("[UNK]")
    words[1], words[unknown] = words[unknown], words[1]
    vocabulary.write_text("\n".join(words), encoding="utf-8")
    told, ours = r"pad_token_id=1 is the word '\[UNK\]', and padding is '\[PAD\]'", str(tmp_path / "ours")
    for call in (lambda: inference.load(folder), lambda: convert(folder, "native", ours)):
        with pytest.raises(ConfigError, match=told):
            call()
    special = model_folder.Special("</s>", sep="</s>")  # as tokenizer.pad_token = tokenizer.eos_token says
    with pytest.raises(ConfigError, match="pad_token_id=1 is the word '</s>', and padding is '</s>'"):
        vocabulary_files.check_padding(("<s>", "</s>"), special, 1, "vocab_file")


def test_distilberts_epsilon_is_that_of_its_code(tmp_path):
    """What a file says of it, transformers does not read; another one has no place in its folders."""
    values = {**FAMILIES["distilbert"].config, "layer_norm_eps": 1e-5}
    assert bert_config_from_dict(values, "config.json").layer_norm_eps == 1e-12
    folder, _ = classifier("distilbert", tmp_path)
    with pytest.raises(ConfigError, match="layer_norm_eps=1e-05: DistilBert of transformers has 1e-12"):
        convert(folder, "huggingface", str(tmp_path / "out"), Options(layer_norm_eps=1e-5))


def test_the_dropout_of_heads_is_kept_for_others(tmp_path):
    folder, _ = classifier("roberta", tmp_path)
    values = json.dumps(config_in(folder) | {"classifier_dropout": 0.3})
    (tmp_path / "theirs" / "config.json").write_text(values)
    convert(folder, "huggingface", str(tmp_path / "back"))
    assert config_in(tmp_path / "back")["classifier_dropout"] == 0.3


def test_electras_discriminator_is_kept(tmp_path):
    dense = "discriminator_predictions.dense"
    head = {f"{dense}.weight": (HIDDEN, HIDDEN), f"{dense}.bias": (HIDDEN,)}
    head |= {f"{dense}_prediction.weight": (1, HIDDEN), f"{dense}_prediction.bias": (1,)}
    weights = Weights("electra", head).theirs
    folder = write_folder(tmp_path / "theirs", "electra", weights, "ForPreTraining")
    convert(folder, "native", str(tmp_path / "ours"))
    convert(str(tmp_path / "ours" / "theirs"), "huggingface", str(tmp_path / "back"))
    assert_same(load_file(tmp_path / "back" / "model.safetensors"), weights)
    assert config_in(tmp_path / "back")["architectures"] == ["ElectraForPreTraining"]


def test_a_pooler_beside_the_layer_of_the_classifier_is_not_read(tmp_path):
    """Older files of RoBERTa's classifiers have one that their class does not run."""
    folder, weights = classifier("roberta", tmp_path, layers=1)
    shapes = {"weight": (HIDDEN, HIDDEN), "bias": HIDDEN}
    pooler = {f"roberta.pooler.dense.{kind}": np.ones(shape, np.float32) for kind, shape in shapes.items()}
    both = write_folder(tmp_path / "both", "roberta", weights.theirs | pooler, CLASSIFIER, 1, **CLASSES)
    found = [inference.load(each).classify(*PAIR).scores for each in (folder, both)]
    assert found[0] == found[1]
    report = convert(both, "native", str(tmp_path / "ours"))
    assert report["dropped"].keys() == pooler.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend,names", [("onnxruntime", ("distilbert", "electra")), ("openvino", ("roberta",))]
)
def test_a_family_computes_the_same_in_an_onnx_file(backend, names, tmp_path, monkeypatch):
    """Where segments do not count, its graph has no input for them."""
    pytest.importorskip(backend)
    pytest.importorskip("tf2onnx")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in names:
        (tmp_path / name).mkdir()
        folder, _ = classifier(name, tmp_path / name, layers=1)
        ours, other = (inference.load(folder, backend=each) for each in ("tensorflow", backend))
        one, two = (list(model.classify(*PAIR).scores.values()) for model in (ours, other))
        np.testing.assert_allclose(one, two, atol=1e-5, err_msg=name)


@EACH
def test_a_family_fills_masks_with_its_own_words(name, tmp_path):
    """The output matrix is the table of words, of which files may hold a copy; another one is refused."""
    family = FAMILIES[name]
    transform, norm, bias, copy = family.masked_lm
    head = {f"{transform}.weight": (family.width, HIDDEN), f"{transform}.bias": (family.width,)}
    head |= {f"{norm}.weight": (family.width,), f"{norm}.bias": (family.width,), bias: (WORDS,)}
    weights = Weights(name, head).theirs
    words = f"{family.base}.embeddings.word_embeddings.weight"
    copied = weights | {copy: weights[words]}
    found = [
        inference.load(write_folder(tmp_path / each, name, values, "ForMaskedLM", 1)).fill_mask("a [MASK] .")
        for each, values in (("tied", weights), ("copied", copied))
    ]
    assert found[0] == found[1]
    other = weights | {copy: weights[words] + 1}
    with pytest.raises(ConfigError, match=f"{copy} differs from {words}"):
        inference.load(write_folder(tmp_path / "other", name, other, "ForMaskedLM"))


@pytest.mark.parametrize("name", ["distilbert", slow("electra"), slow("roberta")])
def test_a_family_is_fine_tuned_and_written_as_one(name, tmp_path):
    title = FAMILIES[name].title
    base = write_folder(tmp_path / "base", name, Weights(name, {}).theirs, "Model", layers=1)
    rows = "good sea,calm,yes\nbad storm,loud,no\n" * 12
    (tmp_path / "rows.csv").write_text("text,other,label\n" + rows)
    settings = dict.fromkeys(("train_file", "eval_file"), str(tmp_path / "rows.csv"))
    settings |= dict(task="classify", text_columns="text,other", num_train_epochs=1, learning_rate=0.01)
    settings |= dict(init_checkpoint=base, model_dir=str(tmp_path / "run"))
    run(build_config([("test", settings)]))
    own = dict(bert_config_file=f"{base}/config.json", model_dir=str(tmp_path / "other"))
    own |= dict(max_seq_length=16, max_predictions_per_seq=3)
    with pytest.raises(ConfigError, match=f"{title} has no next-sentence task"):
        build_config([("test", dict(task="pretrain", use_synthetic_data=True, **own))])
    convert(str(tmp_path / "run"), "huggingface", str(tmp_path / "published"))
    models = [inference.load(str(tmp_path / each)) for each in ("run", "published")]
    one, other = (model.classify("good sea", "calm") for model in models)
    assert one.label == other.label
    np.testing.assert_allclose(list(one.scores.values()), list(other.scores.values()), atol=1e-6)
    assert config_in(tmp_path / "published")["architectures"] == [f"{title}ForSequenceClassification"]
    written = load_file(tmp_path / "published" / "model.safetensors").keys()
    assert written >= classifier_of(FAMILIES[name]).keys() and not any("pooler" in each for each in written)


@pytest.mark.parametrize("name", ["roberta", slow("electra"), slow("distilbert")])
def test_a_family_is_pre_trained_with_masked_words_and_written_as_one(name, tmp_path):
    base = write_folder(tmp_path / "base", name, Weights(name, {}).theirs, "Model", layers=1)
    settings = dict(objective="mlm", use_synthetic_data=True, do_eval=True, num_eval_samples=8)
    settings |= dict(init_checkpoint=base, bert_config_file=f"{base}/config.json")
    settings |= dict(vocab_file=f"{base}/vocab.txt", model_dir=str(tmp_path / "run"))
    settings |= dict(max_seq_length=16, max_predictions_per_seq=3, train_batch_size=8, eval_batch_size=8)
    result = run(build_config([("test", dict(settings, num_steps_per_epoch=4, num_train_epochs=1))]))
    assert result.status == "finished" and 0 <= result.eval_accuracy <= 1
    convert(str(tmp_path / "run"), "huggingface", str(tmp_path / "published"))
    assert config_in(tmp_path / "published")["architectures"] == [f"{FAMILIES[name].title}ForMaskedLM"]
    models = [inference.load(str(tmp_path / each)) for each in ("run", "published")]
    one, other = (model.fill_mask("a [MASK] .")[0] for model in models)
    assert [word.word for word in one] == [word.word for word in other]


def test_pairs_are_refused_where_nothing_tells_their_texts_apart(tmp_path):
    """By fine-tuning as by inference: RoBERTa's tokenizer marks no second text, and two segments count."""
    bpe = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator([" the cat sat"] * 9, 300, special_tokens=special, show_progress=False)
    bpe.save_model(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    (tmp_path / "rows.csv").write_text("text,other,label\n" + "the cat,sat,yes\nthe,cat,no\n" * 8)
    settings = dict.fromkeys(("train_file", "eval_file"), str(tmp_path / "rows.csv"))
    settings |= dict(task="classify", vocab_file=str(tmp_path), model_dir=str(tmp_path / "run"))
    sizes = dict(FAMILIES["roberta"].config, vocab_size=bpe.get_vocab_size(), type_vocab_size=2)
    settings |= dict(max_seq_length=16, model=dataclasses.asdict(bert_config_from_dict(sizes, "config.json")))
    one, pair = (
        TASKS["classify"](build_config([("test", dict(settings, text_columns=columns))]))
        for columns in ("text", "text,other")
    )
    one.find_data()
    with pytest.raises(ConfigError, match="a tokenizer that gives both texts of a pair segment 0"):
        pair.find_data()


def test_what_a_family_cannot_do_is_refused_by_name(tmp_path):
    folder, _ = classifier("distilbert", tmp_path)
    with pytest.raises(ConfigError, match="for which Google TF1 has no names. Allowed: H"):
        convert(folder, "google", str(tmp_path / "google"))
    config, roberta, electra = (FAMILIES[name].config for name in ("distilbert", "roberta", "electra"))
    allowed = "'bert', 'distilbert', 'roberta', 'xlm-roberta', 'camembert', 'electra', 'modernbert'"
    plain, words = {"vocab_size": 9}, "max_position_embeddings"
    bare, modern = ({**plain, "model_type": name} for name in ("distilbert", "modernbert"))
    twice = "{} (by default) and {} are the same size".format
    cases = [
        ({**config, "hidden_size": 8}, f"dim={HIDDEN} and hidden_size=8 are the same size"),
        ({**bare, "hidden_act": "relu"}, twice("activation='gelu'", "hidden_act='relu'")),
        ({**modern, "layer_norm_eps": 1e-12}, twice("norm_eps=1e-05", "layer_norm_eps=1e-12")),
        ({**config, "model_type": "gpt2"}, f"model_type='gpt2' is not supported, only {allowed}"),
        ({**plain, "type_vocab_size": 0}, "type_vocab_size=0, expected a positive integer."),
        ({**roberta, "pad_token_id": "1"}, "pad_token_id='1', expected an integer from 0 on"),
        ({**roberta, words: 2}, f"{words}=2, and the first token takes row 2"),
        ({**plain, "position_offset": 2}, "position_offset=2, which models of family=bert do not have"),
        ({**plain, "embedding_size": 8}, "another size than hidden_size=768 needs family=electra"),
        ({**electra, "summary_activation": "tanh"}, "='tanh' is not supported, only 'gelu'"),
    ]
    assert_refused(lambda values: bert_config_from_dict(values, "config.json"), cases)
