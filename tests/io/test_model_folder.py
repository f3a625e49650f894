"""Model folders of transformers, peft and sentence-transformers: each of their files and keys is applied,
changes nothing, or is refused by name.

data/foreign_folders.json holds the JSON files of a folder of every kind that these libraries write: the
versions stand beside each. Vocabularies are cut.
"""

import fnmatch
import functools
import json
import os
import pathlib

import yaml

from official.checkpoint.containers import hf_folder
from official.config import bert_config_from_dict
from official.io import model_folder, sentence_folder, vocabulary_files
from official.io.errors import ConfigError
from tests.refusals import assert_refused

DATA = pathlib.Path(__file__).parent / "data"
FACTS = json.loads((DATA / "foreign_folders.json").read_text())
REFUSED = json.loads((DATA / "refused_folders.json").read_text())
LABELS = yaml.safe_load((DATA / "labels.yml").read_text())
WORDS = (*model_folder.SPECIAL_TOKENS, *(f"word{number}" for number in range(95)))


def content_of(entry):
    """Returns the JSON of a file: stored whole, or as what differs from another one."""
    if entry is None or isinstance(entry, list):
        return entry
    like = FACTS["bases"][entry["like"]] if "like" in entry else {}
    kept = {key: value for key, value in like.items() if key not in entry.get("without", ())}
    return {**kept, **entry.get("set", {})}


def make(folder: pathlib.Path, files: dict) -> str:
    """Writes a folder, with a vocabulary of WORDS wherever it has one."""
    for name, entry in files.items():
        content, path = content_of(entry), folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            continue
        if name.endswith("vocab.txt"):
            tokenizer = content_of(files.get(name.replace("vocab.txt", "tokenizer.json"))) or {"words": 64}
            path.write_text("".join(f"{word}\n" for word in WORDS[: tokenizer["words"]]))
        elif content is not None:
            if os.path.basename(name) == "tokenizer.json":
                fill(content, WORDS[: content.pop("words", 0)])
            path.write_text(json.dumps(content))
        elif not name.endswith(".json"):
            path.write_bytes(b"")
    return str(folder)


def fill(tokenizer: dict, words: list[str]) -> None:
    """Puts words into a tokenizer.json: those given, or made-up ones around those that are added."""
    kind, model = tokenizer["model"].get("type"), tokenizer["model"]
    if not words:
        added = {token["id"]: token["content"] for token in tokenizer.get("added_tokens") or ()}
        words = [added.get(number, chr(0x4E00 + number)) for number in range(max(added, default=0) + 2)]
    if kind == "Unigram":
        model["vocab"] = [[word, -1.0] for word in words]
        return
    model["vocab"] = {word: number for number, word in enumerate(words)}
    if kind == "BPE":
        model.setdefault("merges", [])


def read_all(folder: str) -> None:
    """Reads all that a folder says, as whoever loads it does."""
    if os.path.exists(os.path.join(folder, "config.json")):
        hf_folder.locate(folder)
        sizes = hf_folder.sizes(folder)
        bert_config_from_dict({"vocab_size": 64, **sizes}, os.path.join(folder, "config.json"))
    model_folder.check_files(folder)
    model_folder.labels_of_config(folder)
    vocabulary = vocabulary_files.find(folder)
    file = vocabulary_files.read(vocabulary) if vocabulary else None
    if file is None or file.tokenizer is None:
        model_folder.tokenizer_settings(folder)
    embedding = sentence_folder.read_settings(folder, file is None or file.do_lower_case is not False)
    if embedding is not None:
        embedding.prompt()
    model_folder.adapter_of(folder)


def outcome(folder: str) -> str:
    """Returns why a folder is refused; '' where it is read."""
    try:
        read_all(folder)
    except ConfigError as error:
        return str(error).replace(folder + "/", "")
    return ""


def test_each_folder_is_read_or_refused_by_name(tmp_path, caplog):
    """The kinds of refused_folders.json are refused, with one of its messages; all others are read, without a
    word on keys that are not known."""
    wrong, refused = [], set()
    for number, row in enumerate(FACTS["folders"]):
        caplog.clear()
        name, expected = f"{row['kind']} ({row['library']})", REFUSED.get(row["kind"], [""])
        found = outcome(make(tmp_path / str(number), row["files"]))
        if not any(part in found if part else found == "" for part in expected) or "\n" in found:
            wrong.append(f"{name}: {found or 'read'}, expected {' or '.join(expected) or 'to be read'}")
        if found == "" and "is unknown and ignored" in caplog.text and row["kind"] != "bert_unknown_kwargs":
            wrong.append(f"{name}: {caplog.text}")
        refused |= {row["kind"]} if found else set()
    assert wrong == [] and refused == set(REFUSED)


def test_each_file_is_in_the_table_and_no_key_has_two_statuses():
    tables = model_folder.tables()
    patterns = set().union(*tables[""])
    names = {name for row in FACTS["folders"] if row["kind"] not in REFUSED for name in row["files"]}
    strange = {name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    assert strange == set()
    assert all(file in patterns or "/" in file or not file for file in tables)
    for file, keys in tables.items():
        assert sum(map(len, keys)) == len(set().union(*keys)), file


def test_an_adapter_whose_scales_cannot_be_read_is_refused(tmp_path):
    def read(values):
        told = {"peft_type": "LORA", "base_model_name_or_path": "somebody/bert", **values}
        (tmp_path / "adapter_config.json").write_text(json.dumps(told))
        return model_folder.adapter_of(str(tmp_path))

    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    assert read({"alpha_pattern": {"layer.[01].query": 4}}).scale("a.layer.1.query", 2) == 2
    cases = [
        ({"alpha_pattern": {"layer.(": 4}}, r"'layer.\(' is no pattern of names of modules"),
        ({"alpha_pattern": {"(?i)query": 4}}, "is no pattern of names of modules"),
        ({"alpha_pattern": {"query": "4"}}, '"query" is a text, expected a number'),
        ({"alpha_pattern": [4]}, '"alpha_pattern" is a list'),
        ({"rank_pattern": {"query": "4"}}, '"query" is a text, expected a number'),
        ({"lora_alpha": None}, '"lora_alpha" is null, expected a number'),
    ]
    assert_refused(read, cases)


# ------------------------------------------------------------------------------------------------------------
# Labels


def labels_of(folder: pathlib.Path, config: dict) -> dict:
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    return model_folder.labels_of_config(str(folder))


def test_labels_are_those_that_transformers_takes_or_refused_in_one_clear_line(tmp_path):
    for case in LABELS["read"]:
        labels = case["labels"] and tuple(case["labels"])
        expected = {"labels": labels, "problem_type": case["problem_type"]}
        assert labels_of(tmp_path, case["config"]) == expected, case
    refused = [(case["config"], f"config.json: .*{case['message']}") for case in LABELS["refused"]]
    assert_refused(functools.partial(labels_of, tmp_path), refused)


def test_labels_are_matched_by_their_words():
    wanted = [("not_entailment", "0"), ("entailment", "1")]
    assert model_folder.order_of_labels(["Not entailment", "ENTAILMENT"], wanted) == [0, 1]
    assert model_folder.order_of_labels(["entailment", "not-entailment"], wanted) == [1, 0]
    assert model_folder.order_of_labels(["1", "0"], wanted) == [1, 0]
    for other in (["entailment", "neutral"], ["entailment"], ["0", "1", "entailment"], ["0", "0"]):
        assert model_folder.order_of_labels(other, wanted) is None, other
    for labels in (["-1", "0", "1"], ["A", "A-", "a"]):  # which differ by what does not count in words
        reverse = [(label,) for label in labels[::-1]]
        assert model_folder.order_of_labels(labels, reverse) == [2, 1, 0]
    assert model_folder.order_of_labels(["0", "1"], [("0",), ("-1",)]) is None
