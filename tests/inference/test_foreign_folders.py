"""Folders of transformers, sentence-transformers and peft, loaded: what lies beside the weights changes what
they say.
"""

import io
import json
import pathlib
import sys

import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from official import config as config_lib
from official import inference
from official.checkpoint import canonical, registry
from official.checkpoint.convert import convert
from official.checkpoint.formats import Options, huggingface
from official.cli import ask as classify_command
from official.data.word_pieces.tokenizer import tokenizer_of
from official.inference import source
from official.inference.methods import classes_of
from official.inference.rows import join
from official.io import model_folder, sentence_folder
from official.io.errors import ConfigError
from official.models import from_pretrained
from official.serving import export
from tests.checkpoint.tensors import random_tensors, shapes_of
from tests.refusals import assert_refused

WORDS = (*model_folder.SPECIAL_TOKENS, *"the a dog cat is good bad runs .".split())
HIDDEN, POSITIONS = 48, 16
CONFIG = dict(model_type="bert", architectures=["BertForSequenceClassification"], hidden_size=HIDDEN)
CONFIG |= dict(vocab_size=len(WORDS), num_hidden_layers=2, num_attention_heads=12, intermediate_size=32)
CONFIG |= dict(max_position_embeddings=POSITIONS)
HEADS = {"classifier": canonical.CLASSIFIER_HEAD, "qa_outputs": canonical.SQUAD_HEAD}


def weights(outputs: int = 3, segments: int = 2, head: str | None = "classifier") -> dict[str, np.ndarray]:
    """Returns random weights by the names of transformers."""
    sizes = canonical.Sizes(len(WORDS), HIDDEN, 32, POSITIONS, segments, outputs)
    shapes = shapes_of((*canonical.ENCODER, *HEADS.get(head, ())), sizes)
    mapped = huggingface.from_canonical(random_tensors(shapes, scale=0.3), Options.of(hf_prefix=True))
    return {name: np.ascontiguousarray(tensor.read()) for name, tensor in mapped.tensors.items()}


def lines(words) -> str:
    return "".join(f"{word}\n" for word in words)


def write(folder, arrays=None, tokenizer=(), **config) -> str:
    """Writes a folder; a value of None leaves a key of config.json out."""
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(weights() if arrays is None else arrays, folder / "model.safetensors")
    values = {key: value for key, value in {**CONFIG, **config}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "vocab.txt").write_text(lines(WORDS))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, **dict(tokenizer)}))
    return str(folder)


def write_pooling(folder: str, **settings) -> None:
    """Writes the files of sentence-transformers into a folder."""
    embedding = inference.EmbeddingSettings(**settings)
    for name, content in sentence_folder.contents(embedding, HIDDEN).items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


def logits_of(model: inference.Model, length: int = 5) -> np.ndarray:
    ids = np.array([2, *range(5, 3 + length), 3], np.int32)
    return model.outputs("classify", join([ids]))["logits"][0]


# ------------------------------------------------------------------------------------------------------------
# Labels


SEVERAL = {"0": "insult", "1": "threat", "2": "spam"}


def test_each_label_of_several_has_a_probability_of_its_own(tmp_path):
    said = dict(problem_type="multi_label_classification", id2label=SEVERAL)
    path = write(tmp_path / "m", tokenizer={"model_max_length": 8}, **said)
    model = inference.load(path)
    (logits_C,) = model.outputs("classify", model._method("classify").rows_of([["the dog is bad"]]))["logits"]
    expected = dict(zip(SEVERAL.values(), (1 / (1 + np.exp(-logits_C.astype(np.float64)))).tolist()))
    found = model.classify("the dog is bad")
    assert found.scores == pytest.approx(expected, abs=1e-6)
    assert found == (max(expected, key=expected.__getitem__), max(found.scores.values()))
    shown = classify_command.shown_label(found, classes_of(model.source).kind)
    assert all(f"{name} {value:.2f}" in shown for name, value in expected.items())

    convert(path, "google", str(tmp_path / "google"))
    assert inference.load(str(tmp_path / "google" / "m")).source.length() == 8
    convert(str(tmp_path / "google" / "m"), "huggingface", str(tmp_path / "again"))
    values = json.loads((tmp_path / "again" / "config.json").read_text())
    assert said.items() <= values.items()


@pytest.mark.slow
def test_an_export_keeps_labels_and_length(tmp_path):
    path = write(tmp_path / "m", problem_type="multi_label_classification", id2label=SEVERAL)
    export.export(source.find(path, max_seq_length=6), str(tmp_path / "saved"))  # compares all outputs
    back = inference.load(str(tmp_path / "saved"))
    assert back.source.problem_type == "multi_label_classification" and back.source.length() == 6
    expected = inference.load(path).classify("the dog is bad").scores
    assert back.classify("the dog is bad").scores == pytest.approx(expected, abs=1e-6)


def test_each_line_has_an_answer_and_a_line_that_has_none_is_named(tmp_path, monkeypatch, capsys):
    path = write(tmp_path / "m", id2label={"0": "bad", "1": "fair", "2": "good"})
    scores = inference.load(path).classify("the dog").scores
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    text = b"the dog\n\nthe\tdog\tcat\ncaf\xe9\n  the dog \r\n"
    answers = {
        "": "{0[0]}  {0[1]:.2f}".format(*ranked),
        "--all_probabilities": "  ".join(f"{name} {score:.4f}" for name, score in ranked),
    }
    for flag, answer in answers.items():
        monkeypatch.setattr(sys, "argv", ["bert classify", f"--checkpoint={path}", *filter(None, [flag])])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), "utf-8"))
        code = classify_command.run_classify()
        out, err = capsys.readouterr()
        assert out.split("\n") == [answer, "", "", "", answer, ""], flag
        told = ["bert classify: line 3: 3", "bert classify: line 4: n"]
        assert code == 2 and [line[:24] for line in err.splitlines()] == told, err


def test_several_texts_have_a_list_of_labels(tmp_path):
    model = inference.load(write(tmp_path / "m"))
    texts = ["the dog", "a cat is good", "the dog"]
    one = [model.classify(text) for text in texts]
    pairs = [model.classify(text, "a dog") for text in texts]
    for found, expected in (
        (model.classify(texts), one),
        (model.classify(tuple(texts)), one),
        (model.classify(texts, ["a dog"] * 3), pairs),
        (model.classify([(text, "a dog") for text in texts]), pairs),
    ):
        (labels, scores), (labels_one, scores_one) = zip(*found), zip(*expected)
        assert labels == labels_one and scores == pytest.approx(scores_one, abs=1e-6)
    assert model.classify([]) == []
    for wrong in ((texts, "a dog"), ("a dog", texts), (texts, texts[:2]), ([1],), ([["a", "b", "c"]],)):
        with pytest.raises(ConfigError, match="to classify"):
            model.classify(*wrong)


def test_texts_to_calibrate_with_are_those_of_the_task(tmp_path):
    folder = write(tmp_path / "m")
    for name, content, message in (
        ("rows.tsv", "a dog\tgood\nthe cat\n", "has rows of 1 and 2 texts"),
        ("rows.txt", "a\tdog\tgood\n", "3 texts to classify, expected a text or two"),
        ("rows.csv", "text,label\na dog,good\n", "is a table. Expected one text a line"),
    ):
        (tmp_path / name).write_text(content)
        model = inference.load(folder, dtype="int8", calibration_file=str(tmp_path / name))
        with pytest.raises(ConfigError, match=message):
            model.classify("a dog")


def test_a_regression_shows_each_of_its_outputs(tmp_path, monkeypatch):
    names = {"0": "x", "1": "y", "2": "z"}
    model = inference.load(write(tmp_path / "m", problem_type="regression", id2label=names))
    (logits_C,) = model.outputs("classify", model._method("classify").rows_of([["the dog"]]))["logits"]
    found = model.classify("the dog")
    assert found.label is None
    assert found.scores == pytest.approx(dict(zip("xyz", logits_C.tolist())), abs=1e-6)
    shown = "  ".join(f"{name} {value:.2f}" for name, value in found.scores.items())
    assert classify_command.shown_label(found, classes_of(model.source).kind) == shown
    columns = model.columns_of([["the dog"]])
    assert columns == {f"score_{name}": [pytest.approx(value)] for name, value in found.scores.items()}
    files = [f"--checkpoint={tmp_path}/m", "--input_file=none.csv", f"--output_file={tmp_path}/out.csv"]
    monkeypatch.setattr(sys, "argv", ["bert predict", *files, "--all_probabilities"])
    with pytest.raises(ConfigError, match="is for classifiers, and the model gives numbers"):
        classify_command.run_predict()


def test_labels_of_another_number_of_outputs_are_refused(tmp_path):
    for labels in ({"0": "yes", "1": "no"}, {"0": "LABEL_0", "1": "LABEL_1"}):
        with pytest.raises(ConfigError, match="2 labels .*, the classifier has 3 outputs"):
            inference.load(write(tmp_path / "m", id2label=labels))
    with pytest.raises(ConfigError, match="num_labels=2, the classifier has 3 outputs"):
        inference.load(write(tmp_path / "m", id2label=None, num_labels=2))


def test_the_vocabulary_of_a_folder_may_have_fewer_words_than_the_table_rows(tmp_path, caplog):
    """Those of some published models have hundreds or thousands fewer."""
    arrays, name = weights(), "bert.embeddings.word_embeddings.weight"
    expected = inference.load(write(tmp_path / "m", arrays)).classify("the dog is bad").scores
    rows = np.concatenate([arrays[name], np.ones([200, HIDDEN], np.float32)])
    path = write(tmp_path / "padded", {**arrays, name: rows}, vocab_size=len(rows))
    assert inference.load(path).classify("the dog is bad").scores == pytest.approx(expected, abs=1e-6)
    assert "the other rows stand for no word" in caplog.text
    (tmp_path / "a.csv").write_text("text,label\nthe dog,a\nthe cat,b\n")
    own = dict(task="classify", train_file=str(tmp_path / "a.csv"), model_dir=str(tmp_path / "run"))
    assert config_lib.build_config([("test", {**own, "init_checkpoint": path})]).model.vocab_size == len(rows)
    other = tmp_path / "vocab.txt"  # is of no model that is known
    other.write_text(lines(WORDS))
    with pytest.raises(ConfigError, match="has 14 words, the model's vocab_size is 214. Change --vocab_file"):
        inference.load(path, str(other))


def test_a_model_that_chooses_takes_rows_of_choices(tmp_path):
    placeholders = {"0": "LABEL_0", "1": "LABEL_1"}  # of the class, not of its one output
    said = dict(architectures=["BertForMultipleChoice"], id2label=placeholders)
    path = write(tmp_path / "swag", weights(1), **said)
    model = inference.load(path)
    found = model.predict([["the cat", "sleeps", "reads", "eats"], ["a", "b", "b", "b"]])
    assert {label.label for label in found} <= {"1", "2", "3"} and list(found[1].scores) == ["1", "2", "3"]
    assert found[1].score == pytest.approx(1 / 3)
    rows = [["the cat", "sleeps", "reads", "eats"], ["the cat", "eats", "sleeps", "reads"]]
    numbers = [int(label.label) for label in model.predict(rows)]
    assert model.columns_of(rows)["label"] == list(map(str, numbers))
    assert model.columns_of(rows, True, "xyz")["label"] == ["xyz"[number - 1] for number in numbers]
    for rows, message in (
        ("the cat", "1 text to classify, expected a text and two or more to choose from"),
        ([["a", "b", "c"], ["a", "b", "c", "d"]], "rows with 3 and 4 texts"),
    ):
        with pytest.raises(ConfigError, match=message):
            model.classify(rows)
    written = export.export(model.source, str(tmp_path / "out"))  # compares what it computes
    assert written.signatures == ("tensors",)
    again = inference.load(str(tmp_path / "out")).predict([["the cat", "sleeps", "reads", "eats"]])
    assert list(again[0].scores.values()) == pytest.approx(list(found[0].scores.values()), abs=1e-6)


# ------------------------------------------------------------------------------------------------------------
# Heads, adapters


def test_heads_that_a_config_leaves_out_are_twelve_and_without_one_they_are_asked_for(tmp_path):
    said, silent = (
        write(tmp_path / name, num_attention_heads=heads) for name, heads in (("a", 12), ("b", None))
    )
    np.testing.assert_array_equal(logits_of(inference.load(said)), logits_of(inference.load(silent)))
    (tmp_path / "b" / "config.json").unlink()
    with pytest.raises(ConfigError, match="the number of attention heads is unknown"):
        inference.load(silent)


def adapter(folder, tensors: dict[str, np.ndarray], **settings) -> None:
    names = {f"base_model.model.{name}": array for name, array in tensors.items()}
    safetensors.numpy.save_file(names, folder / "adapter_model.safetensors")
    values = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "base_model_name_or_path": "somebody/bert"}
    (folder / "adapter_config.json").write_text(json.dumps({**values, **settings}))


def test_an_adapter_beside_the_weights_is_merged(tmp_path):
    """As with the same matrices merged by hand. Source of the scales: peft."""
    generator = np.random.default_rng(2)
    value, dense = "bert.encoder.layer.1.attention.self.value", "bert.encoder.layer.0.output.dense"
    shapes = {f"{value}.lora_A": (2, HIDDEN), f"{value}.lora_B": (HIDDEN, 2)}
    shapes |= {f"{dense}.lora_A": (4, 32), f"{dense}.lora_B": (HIDDEN, 4)}
    pairs = {f"{name}.weight": np.float32(generator.normal(0, 0.5, each)) for name, each in shapes.items()}
    ones, ones_3 = np.ones(HIDDEN, np.float32), np.ones((3, HIDDEN), np.float32)
    whole = {"classifier.weight": ones_3, f"{value}.base_layer.bias": ones}
    for settings, scales in (
        ({}, (6 / 2, 6 / 4)),
        ({"use_rslora": True}, (6 / 2**0.5, 6 / 4**0.5)),
        ({"alpha_pattern": {"self.value": 5}, "rank_pattern": {r"0\.output\.dense": 4}}, (5 / 2, 6 / 4)),
        ({"alpha_pattern": {"self.value": 5}, "rank_pattern": {"value": 2, "dense": 4}}, (5 / 2, 6 / 4)),
    ):
        base = weights()
        path = write(tmp_path / "with", base)
        adapter(tmp_path / "with", {**pairs, **whole}, **{"rank_pattern": {"dense": 4}, **settings})
        for name, scale in zip((value, dense), scales):
            product = pairs[f"{name}.lora_B.weight"] @ pairs[f"{name}.lora_A.weight"]
            base[f"{name}.weight"] = base[f"{name}.weight"] + np.float32(scale) * product
        base |= {"classifier.weight": ones_3, f"{value}.bias": ones}
        merged, by_hand = map(inference.load, (path, write(tmp_path / "by_hand", base)))
        for name, tensor in by_hand.source.tensors.items():
            np.testing.assert_allclose(merged.source.tensors[name].read(), tensor.read(), atol=1e-6)
    expected = logits_of(by_hand)
    np.testing.assert_allclose(logits_of(merged), expected, atol=1e-5)
    plain = logits_of(inference.load(write(tmp_path / "plain")))
    assert np.abs(plain - expected).max() > 0.1


def test_an_adapter_that_cannot_be_merged_is_refused(tmp_path):
    matrices = {"bert.encoder.layer.0.output.dense.lora_A.weight": np.ones((2, 32), np.float32)}
    matrices["bert.encoder.layer.0.output.dense.lora_B.weight"] = np.ones((HIDDEN, 2), np.float32)
    odd = {"bert.encoder.layer.7.output.dense.lora_A.weight": np.ones((2, 32), np.float32)}
    path, foreign = write(tmp_path / "m"), {"base_model_name_or_path": write(tmp_path / "other")}

    def load_adapted(tensors: dict[str, np.ndarray], settings: dict) -> inference.Model:
        adapter(tmp_path / "m", tensors, **settings)
        return inference.load(path)

    cases = (
        (matrices, {"peft_type": "IA3"}, "peft_type=IA3 is not supported"),
        (matrices, {"lora_alpha": None}, '"lora_alpha" is null, expected a number'),
        (matrices, {"alpha_pattern": {"dense": "5"}}, 'alpha_pattern: "dense" is a text, expected a number'),
        (matrices, foreign, "names the base model .*other, but the folder has other weights"),
        ({**matrices, **odd}, {}, "layer.7.output.dense.lora_A.weight match no weights of this folder"),
        (matrices, {"r": 8}, "output.dense has the rank 2, and adapter_config.json says 8"),
        (matrices, {"rank_pattern": {"dense": 4}}, "has the rank 2, and adapter_config.json says 4"),
        (matrices, {"target_modules": ["query"]}, "has matrices, and target_modules, .* leave it out"),
        (matrices, {"target_modules": "dense", "layers_to_transform": 0}, "leave it out"),
        (matrices, {"exclude_modules": ["output.dense"]}, "leave it out"),
        (matrices, {"target_modules": ["dense"], "layers_to_transform": [1]}, "leave it out"),
    )
    assert_refused(load_adapted, cases)
    base = weights()  # saved after merge_and_unload, where the adapter was
    merged = write(tmp_path / "merged", base)
    head = {name: base[name] for name in ("classifier.weight", "classifier.bias")}
    adapter(tmp_path / "merged", {**matrices, **head})
    with pytest.raises(ConfigError, match="the adapter's classifier.bias.* is already merged"):
        inference.load(merged)
    (tmp_path / "m" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="the adapter's base model somebody/bert is missing"):
        inference.load(path)


# ------------------------------------------------------------------------------------------------------------
# Lengths, segments, modules


def warnings_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if "longer than" in record.getMessage()]


def test_texts_are_cut_at_the_length_of_the_model_and_that_is_said_once(tmp_path, caplog):
    long = "dog " * 40
    plain = write(tmp_path / "plain", tokenizer={"model_max_length": 10**30}, max_length=10**40)
    short = write(tmp_path / "short", tokenizer={"model_max_length": 8})
    expected = inference.load(plain)
    for path, given, length in ((plain, None, POSITIONS), (short, None, 8), (short, 12, 12), (plain, 5, 5)):
        model, whole = inference.load(path, max_seq_length=given), "dog " * (length - 2)
        caplog.clear()
        for _ in range(2):
            assert model.classify(long).scores == expected.classify(whole).scores
            np.testing.assert_allclose(model.embed(long), expected.embed(whole), atol=1e-6)
        assert len(warnings_of(caplog)) == 2, "once for labels, once for vectors"
        assert all(f"max_seq_length={length} tokens" in text for text in warnings_of(caplog))
    caplog.clear()
    inference.load(short).classify("dog " * 6)
    assert warnings_of(caplog) == []
    for given in (2, POSITIONS + 1):
        with pytest.raises(ConfigError, match=f"--max_seq_length={given} is out of range.*Allowed: 3 to 16"):
            inference.load(plain, max_seq_length=given)


def test_special_tokens_in_texts_are_words_and_that_is_said_once(tmp_path, caplog):
    """By the tokenizer, which training has, too."""
    tokenizer_of.cache_clear()  # what it has told
    folder = write(tmp_path / "m")
    model, keras = inference.load(folder), from_pretrained(folder)
    asks = model.classify, model.embed, keras.tokenizer
    for ask, text in zip(asks, ("the dog [SEP] a cat", "[CLS] the dog", "a [PAD]")):
        caplog.clear()
        for each in ("the dog", text, text):
            ask(each)
        told = f"{text.split('[')[1][:3]}] in a text is split like other words"
        assert caplog.text.count(told) == 1


def test_words_that_the_table_has_no_row_for_are_unknown_and_that_is_said(tmp_path, caplog):
    """Of both tokenizers: added tokens take the library's. A table is cut to a round number of words, and a
    token is added without a row for it."""
    unknown = inference.load(write(tmp_path / "plain")).classify(["the dog is qqq"])
    for name, added in (("cut", None), ("added", {"qqq": len(WORDS), "sss": len(WORDS) + 1})):
        folder = write(tmp_path / name)
        if added:
            (tmp_path / name / "added_tokens.json").write_text(json.dumps(added))
        else:
            (tmp_path / name / "vocab.txt").write_text(lines([*WORDS, "qqq", "sss"]))
        model = inference.load(folder)
        assert f"{len(WORDS) + 2} words, the model's embedding table {len(WORDS)} rows" in caplog.text, name
        assert "from 'qqq' on" in caplog.text, name
        caplog.clear()
        (found,), (expected,) = model.classify(["the dog is qqq"]), unknown
        assert found.label == expected.label and found.score == pytest.approx(expected.score, rel=1e-6), name
    words = (*(word for word in WORDS if word != "[MASK]"), "[MASK]")
    (tmp_path / "cut" / "vocab.txt").write_text(lines(["one", "two", *words]))
    with pytest.raises(ConfigError, match=r"\[MASK\] is beyond its end"):
        inference.load(folder.replace("added", "cut"))


def test_a_config_of_a_model_is_no_run(tmp_path):
    """Its other keys are nobody's: transformers asks the tokenizer's own file whether text is lower-cased."""
    model = inference.load(write(tmp_path / "m", do_lower_case=False, task="squad"))
    assert model.source.vocabulary.do_lower_case and model.source.run is None


def test_a_model_of_one_segment_type_takes_no_pairs(tmp_path):
    model = inference.load(write(tmp_path / "m", weights(segments=1), type_vocab_size=1))
    assert model.classify("the dog").scores
    with pytest.raises(ConfigError, match="type_vocab_size=1: it takes one text"):
        model.classify("the dog", "the cat")
    answers = write(tmp_path / "q", weights(2, 1, "qa_outputs"), architectures=None, type_vocab_size=1)
    with pytest.raises(ConfigError, match="type_vocab_size=1"):
        inference.load(answers).answer("is the dog good", "the dog is good")


def test_a_tokenizer_without_segments_beside_a_model_of_two_takes_no_pairs(tmp_path):
    """By the names of its inputs, by its class, or by its template; in Keras, too."""
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    plain = inference.load(write(tmp_path / "plain")).classify("the dog").scores
    ids = {word: number for number, word in enumerate(WORDS)}
    whole = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    whole.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", [(word, ids[word]) for word in ("[CLS]", "[SEP]")]
    )
    for name, tokenizer in (
        ("names", names),
        ("class", {"tokenizer_class": "DistilBertTokenizer"}),
        ("template", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    ):
        path = write(tmp_path / name, tokenizer=tokenizer)
        if name == "template":
            (tmp_path / name / "vocab.txt").unlink()
            whole.save(str(tmp_path / name / "tokenizer.json"))
        model, keras = inference.load(path), from_pretrained(path, "classify")
        assert model.classify("the dog").scores == plain, name
        for ask in (model.classify, keras.tokenizer):
            with pytest.raises(ConfigError, match="gives both texts of a pair segment 0"):
                ask("the dog", "the cat")


def test_the_pooling_of_older_and_newer_folders_is_found(tmp_path):
    """sentence-transformers before 1.0 has its Transformer in a folder of its own, from 5.4 on a mode by
    name."""
    write(tmp_path / "m", weights(head=None), architectures=["BertModel"])
    plain = inference.load(str(tmp_path / "m"))
    expected = plain.embed("the dog runs", inference.EmbeddingSettings("cls", True))
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(("Transformer", "Pooling", "Normalize"))
    ]
    for number, content in enumerate(({"pooling_mode_cls_token": True}, {"pooling_mode": "cls"})):
        folder = tmp_path / str(number)
        write(folder / "0_Transformer", weights(head=None), architectures=["BertModel"])
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(content))
        for path in (folder, folder / "0_Transformer"):
            np.testing.assert_allclose(inference.load(str(path)).embed("the dog runs"), expected, atol=1e-6)
    write(folder, weights(head=None), architectures=["BertModel"])  # not read by sentence-transformers
    with pytest.raises(ConfigError, match="has weights, and so has .*0_Transformer, which modules.json"):
        inference.load(str(folder))


def test_a_tokenizer_of_other_rules_is_refused_where_text_is_read(tmp_path):
    told = "tokenizer_class='BertJapaneseTokenizer' is not supported"
    path = write(tmp_path / "m", tokenizer={"tokenizer_class": "BertJapaneseTokenizer"})
    for vocab_file in (None, write(tmp_path / "other")):
        with pytest.raises(ConfigError, match=told):
            inference.load(path, vocab_file=vocab_file)
    assert registry.open_checkpoint(path, "PATH").tensors  # weights can still be converted
