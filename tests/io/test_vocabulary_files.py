"""The files of a vocabulary: what is read from tokenizer.json and tokenizer_config.json, what is cased, and
what is refused.
"""

import json
import pathlib

import pytest
import yaml

from official.data.word_pieces.tokenizer import tokenizer_of
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS, load_for_text, load_vocabulary
from official.io import model_folder, vocabulary_files
from official.io.errors import ConfigError
from tests.refusals import assert_refused

UNCASED = (*SPECIAL_TOKENS, "paris", "is", "in", "france", "##s", "[unused1]", ".", "12", "中")
CASED = (*SPECIAL_TOKENS, "Paris", "is", "in", "France", "the", "##s", ".")
NORMALIZER = dict(
    type="BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
)
PROCESSOR = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}


def write_vocab(folder, words=UNCASED, **config) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder / "vocab.txt")


def write_tokenizer(folder, words=UNCASED, normalizer=NORMALIZER, **changes) -> str:
    folder.mkdir(exist_ok=True)
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    model["vocab"] = {word: number for number, word in reversed(list(enumerate(words)))}
    whole = {
        "added_tokens": [{"id": 0, "content": words[0], "special": True}],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        **changes,
        "model": {**model, **changes.get("model", {})},
    }
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    return str(folder / "tokenizer.json")


def kept(source: str, folder: pathlib.Path):
    """Returns the vocabulary of a run's folder, which has what lies beside the one that it was given."""
    folder.mkdir(exist_ok=True)
    for name, content in vocabulary_files.companions(source, None, 512).items():
        (folder / name).write_bytes(content)
    return load_for_text(str(folder))


def test_a_tokenizer_file_is_read_as_the_vocabulary_that_it_holds(tmp_path):
    text = load_vocabulary(write_vocab(tmp_path / "text"))
    path = write_tokenizer(tmp_path / "json")
    for given in (path, str(tmp_path / "json"), f"{tmp_path}/json/"):
        assert load_for_text(given) == text and text.do_lower_case
    file = vocabulary_files.read(path)
    assert file.content == (tmp_path / "text" / "vocab.txt").read_bytes() and file.do_lower_case is True
    write_vocab(tmp_path / "json")  # of both, vocab.txt is read
    assert load_for_text(str(tmp_path / "json")) == text
    write_vocab(tmp_path / "json", CASED)
    with pytest.raises(ConfigError, match="are different vocabularies: id 5 is 'Paris' and 'paris'"):
        load_for_text(str(tmp_path / "json"))
    with pytest.raises(ConfigError, match="none of vocab.txt, tokenizer.json, .* in this folder"):
        load_for_text(str(tmp_path))


def test_a_normalizer_says_whether_text_is_lower_cased(tmp_path):
    lowered = {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}, NORMALIZER]}
    for normalizer, lower_case in (
        (NORMALIZER, True),
        ({**NORMALIZER, "lowercase": False}, False),
        ({**NORMALIZER, "strip_accents": True}, True),
        (lowered, True),
    ):
        words = UNCASED if lower_case else CASED
        path = write_tokenizer(tmp_path / "json", words, normalizer)
        assert load_for_text(path).do_lower_case == lower_case, normalizer


def test_the_normalizer_counts_where_transformers_takes_no_class(tmp_path):
    """Of ModernBERT's: a vocabulary that is neither cased nor uncased tells nothing."""
    words = (*UNCASED, *(f"word{number}" for number in range(200)), "X")
    path = write_tokenizer(tmp_path, words, {**NORMALIZER, "lowercase": False}, post_processor=PROCESSOR)
    for config in ({}, {"do_lower_case": True}):
        config = json.dumps({"tokenizer_class": "BertTokenizer", **config})
        (tmp_path / "tokenizer_config.json").write_text(config)
        for model, lower_case in (("bert", True), ("modernbert", False)):
            (tmp_path / "config.json").write_text(json.dumps({"model_type": model}))
            assert load_for_text(path).do_lower_case == lower_case, (config, model)


def test_a_class_that_adds_no_special_tokens_is_not_berts(tmp_path):
    """Without a post_processor, which a file that lies alone leaves to others."""
    path = write_tokenizer(tmp_path)
    assert load_for_text(path).tokenizer is None
    path, config = write_tokenizer(tmp_path, (*UNCASED, "a")), tmp_path / "tokenizer_config.json"
    config.write_text('{"tokenizer_class": "BertTokenizer"}')
    assert load_for_text(path).tokenizer is None
    config.write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(ConfigError, match="joins two texts as 'a a'"):
        load_for_text(path)


def test_accents_are_stripped_where_the_normalizer_does_it(tmp_path):
    """Lowercase leaves them, and StripAccents those that no NFD before it has taken from their letters."""
    words, cased = (*UNCASED, "e", "é"), {**NORMALIZER, "lowercase": False}
    for more, expected in (
        ([{"type": "Lowercase"}], "é"),
        ([{"type": "Lowercase"}, {"type": "StripAccents"}], "é"),
        ([{"type": "StripAccents"}, {"type": "NFD"}, {"type": "Lowercase"}], None),
        ([{"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}], "e"),
    ):
        normalizer = {"type": "Sequence", "normalizers": [cased, *more]}
        path = write_tokenizer(tmp_path, words, normalizer, post_processor=PROCESSOR)
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
        vocabulary = load_for_text(path)
        ids, _ = tokenizer_of(vocabulary).tokenize(["É"])
        assert [words[number] for number in ids] == [expected or "[UNK]"], more
        assert (vocabulary.tokenizer is None) == (expected == "e")


def test_another_tokenizer_is_one_clear_line(tmp_path):
    """Those that libraries write are among the folders of test_model_folder.py."""
    cases = pathlib.Path(__file__).parent / "data" / "tokenizers.yml"
    for case in yaml.safe_load(cases.read_text()):
        with pytest.raises(ConfigError, match=f"--vocab_file=.*{case['message']}") as error:
            load_for_text(write_tokenizer(tmp_path / "json", **case["change"]))
        assert "\n" not in str(error.value) and len(str(error.value)) < 400, case


def test_tokens_of_another_form_are_refused_in_one_line(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in SPECIAL_TOKENS))

    def read(file, values):
        (tmp_path / "added_tokens.json").write_text("{}")
        (tmp_path / file).write_text(json.dumps(values))
        return load_for_text(str(tmp_path))

    cases = [("added_tokens.json", {"a": 5, "b": "c"}, "a special or added token is not text")]
    for values in (None, {"a": 1}, {"5": "q"}):
        cases.append(("tokenizer_config.json", {"added_tokens_decoder": values}, cases[0][2]))
    cases += [("tokenizer_config.json", {"pad_token": value}, cases[0][2]) for value in (-1, [1])]
    assert_refused(read, cases)


def test_a_line_ends_at_a_line_feed_alone_also_where_the_library_splits_text(tmp_path):
    words = (*UNCASED[:6], "\u2028", "\u3000", "a\u0085b", *UNCASED[6:])
    strange = {"tokenize_chinese_chars": False, "tokenizer_class": "BertTokenizer"}
    for number, config in enumerate(({}, strange)):
        path = write_vocab(tmp_path / str(number), words, **config)
        for end in ("\n", "\r\n"):
            pathlib.Path(path).write_bytes("".join(f"{word}{end}" for word in words).encode())
            found = load_for_text(path)
            assert found.words == words and (found.tokenizer is not None) == bool(config)
    (tmp_path / "1" / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(ConfigError, match="not UTF-8 text .byte 6."):
        load_for_text(str(tmp_path / "1"))


def test_a_file_that_cuts_texts_at_their_beginning_is_refused(tmp_path):
    """tokenizer.json says so after a training with truncation_side=left; tokenizer_config.json is first."""
    truncation = {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    strange = {"tokenize_chinese_chars": False, "tokenizer_class": "BertTokenizer"}
    path = write_tokenizer(tmp_path, truncation={**truncation, "direction": "Right"})
    assert load_for_text(path).max_length is None
    path = write_tokenizer(tmp_path, truncation=truncation)
    for config in ({}, strange):  # BERT's fast path, and the library's
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match="truncation: direction='Left' is not supported, only 'Right'"):
            load_for_text(path)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "truncation_side": "right"}))
        assert (load_for_text(path).tokenizer is not None) == (config == strange)


# ------------------------------------------------------------------------------------------------------------
# Cased and uncased


def test_what_counts_is_the_setting_then_the_vocabulary_then_the_checkpoint(tmp_path):
    words = (*UNCASED, *(f"word{number}" for number in range(200)), "X")  # neither cased nor uncased
    path = write_vocab(tmp_path / "vocab", words)
    write_vocab(tmp_path / "checkpoint", do_lower_case=False)
    write_tokenizer(tmp_path / "other", normalizer={**NORMALIZER, "lowercase": False})
    assert load_for_text(path).do_lower_case
    for checkpoint in ("checkpoint", "checkpoint/model.ckpt-7", "other"):
        assert not load_for_text(path, checkpoint=str(tmp_path / checkpoint)).do_lower_case
    write_vocab(tmp_path / "vocab", load_vocabulary(path).words, do_lower_case=True)
    assert load_for_text(path, checkpoint=str(tmp_path / "checkpoint")).do_lower_case
    assert not load_for_text(path, do_lower_case=False).do_lower_case


def test_a_cased_vocabulary_is_not_lower_cased(tmp_path):
    for given, config, by in (
        (None, {}, "the default"),
        (True, {}, "given"),
        (None, {"do_lower_case": True}, "says tokenizer_config.json"),
    ):
        path = write_vocab(tmp_path / by, CASED, **config)
        with pytest.raises(ConfigError) as error:
            load_for_text(path, given)
        message = f"is cased: 2 of 6 words have capitals, which do_lower_case=true ({by}) never finds. Give"
        assert f"{message} --do_lower_case=false" in str(error.value)
        assert load_vocabulary(path).words == CASED  # to show ids as words, it is good
        assert not load_for_text(path, do_lower_case=False).do_lower_case


def test_an_uncased_vocabulary_that_is_not_lower_cased_is_warned_of(tmp_path, caplog):
    path = write_vocab(tmp_path / "uncased", do_lower_case=False)
    with caplog.at_level("WARNING"):
        assert not load_for_text(path).do_lower_case
    assert "has no word with a capital" in caplog.text and "--do_lower_case=true" in caplog.text
    with pytest.raises(ConfigError, match="expected true or false"):
        load_for_text(write_vocab(tmp_path / "neither", do_lower_case="no"))
    # Special tokens and words without letters say nothing of capitals.
    assert vocabulary_files.count_capitals(UNCASED) == (0, 5) and vocabulary_files.is_cased(CASED)
    assert not any(map(vocabulary_files.is_cased, (UNCASED, ("[UNK]", "12", "中"))))


def test_the_longest_word_is_that_of_the_files_and_kept(tmp_path):
    """As transformers: tokenizer.json has 100 characters; Google's code, which has vocab.txt alone, 200."""
    words = (*UNCASED, "a", "##a")
    path = write_tokenizer(tmp_path / "json", words, model={"max_input_chars_per_word": 100})
    google = write_vocab(tmp_path / "google", words)
    for vocabulary, longest in (
        (load_for_text(path), 100),
        (kept(path, tmp_path / "kept"), 100),
        (load_for_text(google), 200),
    ):
        for count, pieces in ((longest, longest), (longest + 1, 1)):
            assert tokenizer_of(vocabulary).tokenize(["a" * count])[1].tolist() == [pieces], (longest, count)
    assert b"max_input" not in vocabulary_files.companions(google, None, 512)["tokenizer_config.json"]


def test_a_tokenizer_that_gives_a_model_no_segments_is_told_from_others(tmp_path):
    """As `model_input_names` of transformers; what a class does unasked counts for the model beside it."""
    without, usual = ["input_ids", "attention_mask"], ["input_ids", "token_type_ids", "attention_mask"]
    own_rules = {"tokenize_chinese_chars": False}  # the library's tokenizer
    cases = (
        ({}, "bert", True),
        ({"model_input_names": without}, "bert", False),
        ({"model_input_names": without}, None, False),
        ({"model_input_names": "input_ids"}, "bert", False),  # a list of its letters to transformers
        ({"model_input_names": usual, "tokenizer_class": "DistilBertTokenizer"}, "bert", True),
        ({"tokenizer_class": "DistilBertTokenizerFast"}, "bert", False),
        ({"tokenizer_class": "DistilBertTokenizer"}, "distilbert", True),
        ({"tokenizer_class": "DistilBertTokenizer"}, None, True),
        ({"tokenizer_class": "BertTokenizer"}, "electra", True),
        ({"model_input_names": without, **own_rules}, "bert", False),
        ({"model_input_names": usual, **own_rules}, "bert", True),
    )
    for number, (config, model, expected) in enumerate(cases):
        folder = tmp_path / str(number)
        write_vocab(folder, **config)
        if model:
            (folder / "config.json").write_text(json.dumps({"model_type": model}))
        found = load_for_text(str(folder))
        assert found.marks_pairs == expected, config
        assert (found.tokenizer is not None) == (own_rules.items() <= config.items()), config
        assert kept(str(folder), folder / "kept").marks_pairs == expected, config


def test_labels_come_back(tmp_path):
    (tmp_path / "labels.json").write_text(model_folder.labels_json(("no", "yes")))
    found = model_folder.read_labels(str(tmp_path))
    assert (found["labels"], found["kind"]) == (("no", "yes"), "one")
    assert (found["problem_type"], found["thresholds"]) == ("single_label_classification", ())
    keys = model_folder.labels_to_hugging_face(None, "regression", 1)
    found = model_folder.labels_of_hugging_face(keys, "config.json")
    assert found == {"labels": ("LABEL_0",), "problem_type": "regression"}
    assert keys["sentence_transformers"] == {"activation_fn": "torch.nn.modules.linear.Identity"}
    several = {"labels": ["a", "b"], "kind": "several"}
    (tmp_path / "labels.json").write_text(json.dumps({**several, "thresholds": [0.2, 1]}))
    found = model_folder.read_labels(str(tmp_path))
    assert (found["problem_type"], found["thresholds"]) == ("multi_label_classification", (0.2, 1))


def test_labels_that_contradict_themselves_are_refused(tmp_path):
    def read(values):
        (tmp_path / "labels.json").write_text(json.dumps(values))
        return model_folder.read_labels(str(tmp_path))

    names = ["a", "b"]
    cases = [
        (dict(labels=3), "labels=3, expected a list of names"),
        (dict(labels=names, kind="many"), "kind='many', expected one of one, several"),
        (dict(labels=names, kind="one", problem_type="regression"), "kind='one' and problem_type='regr"),
        (dict(labels=names, thresholds=[0.2, 0.3]), "with kind='one', expected only with 'several'"),
        (dict(labels=names, kind="several", thresholds=[20, 30]), "expected probabilities from 0 to 1"),
        (dict(labels=names, treshold=[0.2, 0.3]), r"unknown key 'treshold' \(did you mean thresholds\?\)"),
    ]
    assert_refused(read, cases)
    assert read({"0": "cat", "1": "dog"}) == read(["cat", "dog"]) == {}

    def read_beside(theirs):
        config = {"model_type": "bert", "id2label": dict(enumerate(theirs))}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return read(dict(labels=names))["labels"]

    assert read_beside(names) == read_beside(["LABEL_0", "LABEL_1"]) == ("a", "b")
    with pytest.raises(ConfigError, match="labels.json and config.json next to it .*: a, b and b, a"):
        read_beside(["b", "a"])
