"""Tokenizers of transformers' classes, trained on lines, and their results for lines.

Reads a specification from standard input, one JSON object: lines (a JSON file of texts), folder, and special
(pad, unk, ...). Each tokenizer gets a folder of its own there, with expected.json beside its files: ids and
offsets of each line, the ids of "ab cd" as `single` and of "ab cd", "ef" as `pair`, and those of the special
tokens as `special`. Writes to standard output: names, versions.
"""

import json
import os
import sys

import training_step

_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_ADDED = ["COVID-19", "e-mail"]


def tokenizers_of(lines: list, folder: str) -> dict:
    """Returns {name: a tokenizer, or None for one whose files are written already}."""
    import tokenizers
    import transformers
    from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

    def at(name: str, settings: dict | None = None) -> str:
        path = os.path.join(folder, name)
        os.makedirs(path, exist_ok=True)
        if settings:
            with open(os.path.join(path, "tokenizer_config.json"), "w", encoding="utf-8") as file:
                json.dump(settings, file)
        return path

    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(lines, vocab_size=2000, special_tokens=_ROBERTA, show_progress=False)
    bpe.save_model(at("roberta_files", {"tokenizer_class": "RobertaTokenizer"}))
    bpe.save_model(at("roberta_spaces", {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}))
    roberta = transformers.RobertaTokenizer.from_pretrained(at("roberta_files"))
    roberta.add_tokens(_ADDED)
    unigram = tokenizers.Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=2000, special_tokens=_ROBERTA, unk_token="<unk>", show_progress=False
    )
    unigram.train_from_iterator(lines, trainer)
    vocab = [tuple(each) for each in json.loads(unigram.to_str())["model"]["vocab"]]
    words = tokenizers.BertWordPieceTokenizer(lowercase=False, strip_accents=False)
    words.train_from_iterator(lines, vocab_size=2000, show_progress=False)
    words.save_model(at("bert_cased", {"tokenizer_class": "BertTokenizer", "do_lower_case": False}))
    accents = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False}
    words.save_model(at("bert_accents", {"tokenizer_class": "BertTokenizer", **accents}))
    bert = transformers.BertTokenizer.from_pretrained(at("bert_cased"), do_lower_case=False)
    bert.add_tokens(_ADDED)
    modern = tokenizers.Tokenizer(models.BPE())
    modern.normalizer, modern.pre_tokenizer = (
        normalizers.NFC(),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    modern.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    )
    modern.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]"])
    modern.add_special_tokens([tokenizers.AddedToken("[MASK]", lstrip=True)])
    modern.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(each, modern.token_to_id(each)) for each in ("[CLS]", "[SEP]")],
    )
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    return {
        "roberta_files": None,
        "roberta_spaces": None,
        "roberta_added": roberta,
        "xlm_roberta": transformers.XLMRobertaTokenizer(vocab=vocab),
        "bert_cased": None,
        "bert_accents": None,
        "bert_added": bert,
        "modernbert": transformers.PreTrainedTokenizerFast(tokenizer_object=modern, **named),
    }


def make(specification: dict) -> dict:
    import transformers

    with open(specification["lines"], encoding="utf-8") as file:
        lines = json.load(file)
    made = tokenizers_of(lines, specification["folder"])
    for name, tokenizer in made.items():
        path = os.path.join(specification["folder"], name)
        if tokenizer is not None:
            tokenizer.save_pretrained(path)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        found = tokenizer(lines, add_special_tokens=False, return_offsets_mapping=True)
        special = (getattr(tokenizer, f"{each}_token_id") for each in specification["special"])
        expected = {
            "ids": found["input_ids"],
            "offsets": found["offset_mapping"],
            "single": tokenizer("ab cd")["input_ids"],
            "pair": tokenizer("ab cd", "ef")["input_ids"],
            "special": list(special),
        }
        with open(os.path.join(path, "expected.json"), "w", encoding="utf-8") as file:
            json.dump(expected, file)
    return {"names": list(made), "versions": {"transformers": transformers.__version__}}


if __name__ == "__main__":
    answers = training_step.take_output()
    training_step.say(answers, **make(json.loads(sys.stdin.readline())))
