"""Tokenizers of every kind except BERT's own: converts the files of a folder into one tokenizer.json.

The library `tokenizers` runs what is read here: byte-level BPE, Unigram, and WordPiece with rules or added
tokens that BERT's fast path does not have. Folders are read as transformers 5 reads them, where the class
that tokenizer_config.json names builds some parts itself, whatever tokenizer.json says of them.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official.io import files, model_folder
from official.io.errors import ConfigError, shortened
from official.io.json_files import parse_json
from official.io.model_folder import (
    ADDED_TOKENS,
    CONFIG,
    SPECIAL_TOKENS_MAP,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCAB_JSON,
    Special,
    contents,
    read_where_there,
)

MERGES = "merges.txt"
_LIBRARY_KEYS = f"{TOKENIZER_CONFIG}/library"
_MAX_WORDS = 10**7  # a list has a place for each id


ROBERTA = Special("<pad>", "<unk>", "<s>", "</s>", "<mask>")


@dataclasses.dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer that the library `tokenizers` runs.

    Attributes:
      content: a tokenizer.json, added tokens in it, without truncation and padding.
      words: in the order of their ids; an unused id gets a placeholder that no text contains.
      special: the special tokens.
      separators: number of separator tokens between two texts, 1 or 2.
      has_segments: whether the second text has segment id 1.
      max_length: maximum number of tokens in tokenizer_config.json; None if unset.
      is_exact: whether a Unigram has the exact scores of `content`: a class of transformers builds it.
    """

    content: str
    words: tuple[str, ...]
    special: Special
    separators: int
    has_segments: bool
    max_length: int | None
    is_exact: bool

    def load(self) -> Any:
        """Returns the tokenizer, a `tokenizers.Tokenizer`."""
        import tokenizers  # late: few commands read such a folder

        made = tokenizers.Tokenizer.from_str(self.content)
        if self.is_exact:
            _set_scores(made, json.loads(self.content)["model"])
        return made

    def sidecar_config(self, max_length: int | None) -> str:
        """Returns the tokenizer_config.json of a folder that keeps the tokenizer as `content`."""
        values = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **({"model_max_length": max_length} if max_length else {}),
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", *["token_type_ids"] * self.has_segments, "attention_mask"],
            **{f"{name}_token": word for name, word in self.special._asdict().items()},
        }
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def read(path: str, source: str, content: bytes) -> TokenizerFile:
    """Reads a tokenizer.json, a vocab.json with its merges.txt, or a SentencePiece model, and the tokenizer
    files next to it.

    Args:
      path: path of the file.
      source: beginning of the messages.
      content: content of the file.

    Raises:
      ConfigError: if a file cannot be read, contradicts another one, or needs an unknown class of
        transformers.
    """
    folder = os.path.dirname(path) or "."
    config = read_where_there(folder, TOKENIZER_CONFIG, False)
    config_path = os.path.join(folder, TOKENIZER_CONFIG)
    model_folder.check_keys(config, _LIBRARY_KEYS, config_path)
    _class_of(folder, config, False)
    tokenizer = _content(path, source, content)
    model_folder.check_truncation(tokenizer, config, source)
    kind = _class_of(folder, config, _is_wordpiece(tokenizer))
    if kind is None and tokenizer.keys() == {"model"}:
        raise ConfigError(
            f"{source}: the class of its tokenizer is unknown. Put a {TOKENIZER_CONFIG} with"
            f" tokenizer_class ({', '.join(_CLASSES)}) next to it, or give a {TOKENIZER}."
        )
    length = model_folder.length_told(config, config_path)
    special, added = _tokens_of(folder, config, tokenizer, kind)
    try:
        if kind is not None:
            tokenizer = _CLASSES[kind](tokenizer, special, config, source)
        model_folder.check_values(tokenizer["model"], f"{TOKENIZER}/library", source)
        made = _finished(tokenizer, special, added, length, source, kind is not None)
    except ConfigError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        told = f"a value is missing or of another type ({type(error).__name__}: {str(error)[:80]})"
        raise ConfigError(f"{source}: {told}. Save the tokenizer again.") from None
    gives_segments = model_folder.gives_segments(config, read_where_there(folder, CONFIG, False))
    return dataclasses.replace(made, has_segments=made.has_segments and gives_segments)


def has_own_rules(path: str, tokenizer: dict | None) -> bool:
    """Tells whether a WordPiece vocabulary has added tokens, or splits text by other rules than BERT's.

    Args:
      path: path of its vocab.txt or tokenizer.json.
      tokenizer: content of the tokenizer.json there; None without one.

    Raises:
      ConfigError: if tokenizer_config.json cannot be read.
    """
    folder = os.path.dirname(path) or "."
    config = read_where_there(folder, TOKENIZER_CONFIG, False)
    try:
        kind = _class_of(folder, config, True)
    except ConfigError:
        return False  # the readers of BERT's own vocabularies refuse it
    if tokenizer and not _is_well_formed(tokenizer):
        return False  # likewise
    if kind is None and tokenizer:
        model = read_where_there(folder, CONFIG, False)
        is_said = config.get("tokenizer_class") or model.get("tokenizer_class") or "model_type" in model
        if is_said and tokenizer.get("post_processor") is None:  # no [CLS] and [SEP]
            return True
        try:
            model_folder.tokenizer_lower_case(tokenizer, path)
        except ConfigError:
            return True
    special, added = _tokens_of(folder, config, tokenizer or {"model": {}}, kind)
    lower = config.get("do_lower_case", True)
    return (
        bool({*special, *added} - {*model_folder.SPECIAL_TOKENS})
        or config.get("strip_accents") not in (None, lower)
        or config.get("tokenize_chinese_chars") is False
    )


def _content(path: str, source: str, content: bytes) -> dict:
    """Returns the content of a tokenizer.json: of the file itself, of the one next to a vocab.txt, or a new
    one with only a `model`."""
    name, beside = os.path.basename(path), os.path.join(os.path.dirname(path), TOKENIZER)
    if name.endswith(".model"):
        return {"model": _sentencepiece_model(content, source)}
    if name == VOCAB_JSON:
        return {"model": _merges_model(path, source, content)}
    if name.endswith(".json") or files.is_file(beside):
        source = source if name.endswith(".json") else beside
        content = content if name.endswith(".json") else files.read_bytes(beside, beside)
        tokenizer = parse_json(content, source, any_number=True)
        model_folder.check_keys(tokenizer, TOKENIZER, source)
        if not _is_well_formed(tokenizer):
            raise ConfigError(
                f"{source}: it lacks ids of its words or of its added_tokens. Save the tokenizer again."
            )
        return tokenizer
    words = model_folder.words_of(content, source)
    return {"model": {"type": "WordPiece", "vocab": {word: number for number, word in enumerate(words)}}}


def _is_well_formed(tokenizer: dict) -> bool:
    """Tells whether a tokenizer.json has valid words and added tokens."""
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens") or []
    vocab = model.get("vocab") if isinstance(model, dict) else None
    is_pairs = isinstance(vocab, list) and all(isinstance(each, list) and len(each) == 2 for each in vocab)
    are_tokens = isinstance(added, list) and all(isinstance(each, dict) for each in added)
    return (
        (is_pairs or isinstance(vocab, dict))
        and are_tokens
        and all({"id", "content"} <= {*each} for each in added)
    )


def _is_wordpiece(tokenizer: dict) -> bool:
    model = tokenizer.get("model")
    return isinstance(model, dict) and model.get("type") in (None, "WordPiece")


def _class_of(folder: str, config: Mapping[str, Any], is_wordpiece: bool) -> str | None:
    """Returns the class that builds the tokenizer, a key of _CLASSES; None if tokenizer.json alone defines
    it. By default, a WordPiece vocabulary gets BERT's class, with any model. Raises ConfigError for an
    unknown class."""
    model = read_where_there(folder, CONFIG, False)
    own, of_model = config.get("tokenizer_class") or model.get("tokenizer_class"), model.get("model_type")
    if of_model == "modernbert":  # transformers ignores tokenizer_class here
        return None
    usual = _CLASS_OF_MODEL.get(str(of_model), "TokenizersBackend")
    usual = "BertTokenizer" if is_wordpiece and usual in _CLASSES else usual
    name = re.sub("Fast$", "", str(own)) if own else usual
    if name in ("PreTrainedTokenizer", "TokenizersBackend"):
        return None
    if name not in _CLASSES:
        allowed = ", ".join([*_CLASSES, "PreTrainedTokenizerFast"])
        where = CONFIG if own and not config.get("tokenizer_class") else TOKENIZER_CONFIG
        where = os.path.join(folder, where)
        raise ConfigError(f"{where}: tokenizer_class={name[:60]} is not supported, only {allowed}.")
    return name


# ------------------------------------------------------------------------------------------------------------
# Special and added tokens

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _token(value: Any, is_special: bool = True) -> dict:
    """Returns a token in the form of `added_tokens` of a tokenizer.json, without its id."""
    values = value if isinstance(value, dict) else {"content": value, "special": is_special}
    found = {flag: values.get(flag, False) for flag in _FLAGS}
    found["normalized"] = values.get("normalized", not found["special"])
    return {"content": str(values.get("content")), **found}


def _tokens_of(
    folder: str, config: dict, tokenizer: dict, kind: str | None
) -> tuple[Special, dict[str, dict]]:
    """Returns the special tokens, and {text: token} of all added tokens, which are matched before text is
    split. Their order is that of the new ids for tokens that the vocabulary lacks. Raises ConfigError for
    tokens in another form than that of transformers."""
    try:
        special, added = _read_tokens(folder, config, tokenizer, kind)
        if all(isinstance(word, str) for word in (*special, *added)):
            return special, added
    except ConfigError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    names = ", ".join((TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS))
    raise ConfigError(f"{folder}: {names}: a special or added token is not text. Save the tokenizer again.")


def _read_tokens(
    folder: str, config: dict, tokenizer: dict, kind: str | None
) -> tuple[Special, dict[str, dict]]:
    said, added = dict(config), {}
    if "added_tokens_decoder" in config:
        tokens = sorted(config["added_tokens_decoder"].items(), key=lambda item: int(item[0]))
        added = {token["content"]: _token(token) for _, token in tokens}
    else:  # as older versions kept them
        mapped = read_where_there(folder, SPECIAL_TOKENS_MAP, False)
        said.update(mapped)  # not |=, which Python 3.8 does not have
        beside = read_where_there(folder, ADDED_TOKENS, False)
        named = {contents(said[f"{name}_token"]) for name in _NAMES if said.get(f"{name}_token")}
        extra = config.get("extra_special_tokens") or config.get("additional_special_tokens")
        for values in (extra, mapped.get("extra_special_tokens")):
            named.update(contents(values) if isinstance(values, list) else ())
        by_id = {number: _token(text, text in named) for text, number in beside.items()}
        by_id.update({token["id"]: _token(token) for token in tokenizer.get("added_tokens") or ()})
        added = {token["content"]: token for _, token in sorted(by_id.items())}
    usual = [ROBERTA] if kind in _WITH_ROBERTAS_TOKENS else [model_folder.SPECIAL_TOKENS, ROBERTA]
    vocab = tokenizer["model"].get("vocab") or ()
    known = {*added, *(vocab if isinstance(vocab, dict) else (word for word, _ in vocab))}
    words = []
    for field, *candidates in zip(Special._fields, *usual):
        told = contents(said.get(f"{field}_token"))
        there = [word for word in candidates if word in known]
        words.append(told or next(iter(there), candidates[0]))
    for name, word in (("bos", words[2]), ("eos", words[3])):  # what the classes of Unigram put around texts
        if kind in _UNIGRAMS and (told := contents(said.get(f"{name}_token"))) not in (None, word):
            wrong = f"{name}_token={str(told)[:40]!r} is not supported, only {word!r}"
            raise ConfigError(f"{folder}: {wrong}, which {kind} must have around a text.")
    for name in _NAMES:
        value = said.get(f"{name}_token")
        if value is not None and contents(value) not in added:
            added[contents(value)] = _token({"special": True, **value} if isinstance(value, dict) else value)
    more = said.get("extra_special_tokens") or said.get("additional_special_tokens") or ()
    more = [*(more.values() if isinstance(more, dict) else more)]
    if not any(isinstance(said.get(f"{name}_special_tokens"), list) for name in ("additional", "extra")):
        more += tokenizer["model"].get("added") or ()
    for value in more:
        added.setdefault(contents(value), _token(value))
    for word in words:
        added.setdefault(word, _token(word))
    if kind == "CamembertTokenizer" and not isinstance(said.get("mask_token"), dict):
        added[words[-1]]["lstrip"] |= "added_tokens_decoder" not in config
    return Special(*words), added


_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


# ------------------------------------------------------------------------------------------------------------
# Classes of transformers, and the parts that they build around a vocabulary
#
# Source: transformers 5, tokenization_roberta.py, tokenization_xlm_roberta.py, tokenization_camembert.py.


def _bpe(tokenizer: dict, special: Special, config: dict, source: str) -> dict:
    """Returns the byte-level BPE of RoBERTa."""
    model = tokenizer["model"]
    _check_parts(tokenizer, source, {"BPE"}, normalizers=set(), pre_tokenizers={"ByteLevel"})
    space, trim = config.get("add_prefix_space") or False, config.get("trim_offsets", True)
    ids = model["vocab"]
    return {
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": space,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": [special.sep, ids.get(special.sep, 0)],
            "cls": [special.cls, ids.get(special.cls, 0)],
            "trim_offsets": trim,
            "add_prefix_space": space,
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "vocab": ids,
            "merges": model["merges"],
        },
    }


def _unigram(
    tokenizer: dict, special: Special, config: dict, source: str, first: tuple[str, ...], dropped: int
) -> dict:
    """Returns the Unigram of a SentencePiece model.

    Args:
      tokenizer: content of the file.
      special: the special tokens, which the class sets itself.
      config: content of tokenizer_config.json.
      source: beginning of the messages.
      first: pieces in front of the model's; <mask> is appended as the last one.
      dropped: pieces of the model that `first` replaces.
    """
    parts = {"WhitespaceSplit", "Metaspace"}
    _check_parts(tokenizer, source, {"Unigram"}, {"Precompiled", "Replace", "Strip", "Nmt", "NFKC"}, parts)
    model, charsmap = tokenizer["model"], tokenizer["model"].get("precompiled_charsmap")
    vocab = [tuple(item) for item in model["vocab"]]
    if "pieces" in model:  # of a SentencePiece model
        scores = [-100.0 if word.endswith("NOTUSED") and word.startswith("<unk>") else 0.0 for word in first]
        vocab = [*zip(first, scores), *vocab[dropped:], ("<mask>", 0.0)]
    for step in model_folder.steps(tokenizer.get("normalizer")):
        charsmap = step.get("precompiled_charsmap") or charsmap
    space = config.get("add_prefix_space", True)
    metaspace = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "never" if space is False else "always",
        "split": True,
    }
    ids = {word: number for number, (word, _) in enumerate(vocab)}
    return {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap} if charsmap else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "decoder": metaspace,
        "post_processor": _template("<s>", "</s>", ids, separators=2, segment=0),
        "model": {
            "type": "Unigram",
            "unk_id": ids.get("<unk>", 0),
            "vocab": vocab,
            "byte_fallback": False,
        },
    }


_WORDPIECE = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}


def _wordpiece(tokenizer: dict, special: Special, config: dict, source: str) -> dict:
    """Returns BERT's WordPiece, with the normalizer set by tokenizer_config.json."""
    _check_parts(tokenizer, source, {"WordPiece"}, {"BertNormalizer"}, {"BertPreTokenizer"})
    ids = tokenizer["model"]["vocab"]
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True) is not False,
            "strip_accents": config.get("strip_accents"),
            "lowercase": config.get("do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "post_processor": _template(special.cls, special.sep, ids, separators=1, segment=1),
        "model": {**_WORDPIECE, "unk_token": special.unk, "vocab": ids},
    }


_CLASSES: dict[str, Callable[..., dict]] = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), _wordpiece),
    "RobertaTokenizer": _bpe,
    "XLMRobertaTokenizer": functools.partial(_unigram, first=("<s>", "<pad>", "</s>", "<unk>"), dropped=3),
    "CamembertTokenizer": functools.partial(
        _unigram, first=("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), dropped=1
    ),
}
_UNIGRAMS = ("XLMRobertaTokenizer", "CamembertTokenizer")
_WITH_ROBERTAS_TOKENS = ("RobertaTokenizer", *_UNIGRAMS)
_CLASS_OF_MODEL = {
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    **dict.fromkeys(("bert", "distilbert", "electra"), "BertTokenizer"),
}


def _template(cls: str, sep: str, ids: Mapping[str, int], separators: int, segment: int) -> dict:
    """Returns the post_processor that joins texts as CLS A SEP and CLS A SEP B SEP, with so many SEP between
    two and a segment for the second."""

    def piece(kind: str, name: str, segment: int = 0) -> dict:
        return {kind: {"id": name, "type_id": segment}}

    end = piece("SpecialToken", sep)
    single = [piece("SpecialToken", cls), piece("Sequence", "A"), end]
    second = [piece("Sequence", "B", segment), piece("SpecialToken", sep, segment)]
    tokens = {token: {"id": token, "ids": [ids.get(token, 0)], "tokens": [token]} for token in (cls, sep)}
    pair = [*single, *[end] * (separators - 1), *second]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def _check_parts(
    tokenizer: dict, source: str, models: set[str], normalizers: set[str], pre_tokenizers: set[str]
) -> None:
    """Raises ConfigError if a tokenizer.json has parts that the class would replace."""
    parts = ("normalizer", normalizers), ("pre_tokenizer", pre_tokenizers), ("model", models)
    for name, allowed in parts:
        for step in model_folder.steps(tokenizer.get(name)):
            if (kind := step.get("type")) not in (None, "Sequence", *allowed):
                raise ConfigError(
                    f"{source}: its {name} {str(kind)[:60]} is not the one of its tokenizer_class:"
                    f" {', '.join(sorted(allowed)) or 'none'}. Set tokenizer_class=PreTrainedTokenizerFast in"
                    f" {TOKENIZER_CONFIG} to use the one of {TOKENIZER}."
                )


# ------------------------------------------------------------------------------------------------------------
# Vocabularies without rules: vocab.json with merges.txt, SentencePiece models


def _merges_model(path: str, source: str, content: bytes) -> dict:
    merges = os.path.join(os.path.dirname(path), MERGES)
    if not files.is_file(merges):
        raise ConfigError(f"{source}: {merges} is missing next to it.")
    lines = files.read_text(merges, merges).split("\n")
    lines = lines[1:] if lines[0].startswith("#version") else lines
    vocab = parse_json(content, source, any_number=True)
    return {"type": "BPE", "vocab": vocab, "merges": [line for line in lines if line.strip()]}


_UNIGRAM = 1
_CONTROL, _USER_DEFINED = 3, 4


def _sentencepiece_model(content: bytes, source: str) -> dict:
    """Returns the pieces and the normalizer of a SentencePiece model, and those that are matched before text
    is split: control and user-defined ones.

    Source of the numbers of the fields: https://github.com/google/sentencepiece, sentencepiece_model.proto.
    """
    pieces, added, kind, charsmap = [], [], _UNIGRAM, ""
    try:
        for number, value in _fields(content):
            if number == 1:  # pieces
                piece = dict(_fields(value))
                score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
                pieces.append((piece[1].decode(), score))
                if (of_piece := piece.get(3)) in (_CONTROL, _USER_DEFINED):
                    is_special = of_piece == _CONTROL
                    added.append({"content": pieces[-1][0], "special": is_special, "normalized": False})
            elif number == 2:  # trainer_spec
                kind = dict(_fields(value)).get(3, _UNIGRAM)
            elif number == 3:  # normalizer_spec
                charsmap = base64.b64encode(dict(_fields(value)).get(2, b"")).decode()
    except (IndexError, ValueError, KeyError, struct.error, AttributeError, TypeError):
        pieces = []
    if not pieces:
        raise ConfigError(f"{source}: not a SentencePiece model. Give the file from the model's folder.")
    if kind != _UNIGRAM:
        raise ConfigError(
            f"{source}: a SentencePiece model of model_type={kind}, only 1 (Unigram) is supported."
        )
    found = {"type": "Unigram", "vocab": pieces, "pieces": len(pieces), "added": added}
    return {**found, "precompiled_charsmap": charsmap} if charsmap else found


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields (number, value) of the fields of a protocol buffer: integers, or bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = _varint(message, place)
            yield number, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError(wire)
        size = {1: 8, 5: 4}.get(wire)
        if size is None:
            size, place = _varint(message, place)
        if place + size > len(message):
            raise ValueError(size)
        yield number, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError(place)


# ------------------------------------------------------------------------------------------------------------
# The tokenizer as a whole


def _finished(
    tokenizer: dict,
    special: Special,
    added: dict[str, dict],
    max_length: int | None,
    source: str,
    is_built: bool,
) -> TokenizerFile:
    """Returns the tokenizer with its added tokens. How it joins two texts is found by encoding a pair.
    `is_built` tells whether a class has built its parts."""
    import tokenizers  # late: few commands read such a folder

    there = [{"id": token["id"], **_token(token)} for token in tokenizer.get("added_tokens") or ()]
    whole = {"version": "1.0", "normalizer": None, "pre_tokenizer": None, "decoder": None, **tokenizer}
    whole.update(truncation=None, padding=None, added_tokens=there)
    if _is_wordpiece(whole):
        whole["model"] = {**_WORDPIECE, **whole["model"]}
    try:
        made = tokenizers.Tokenizer.from_str(json.dumps(whole))
        made.encode("a", "a")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the library raises plain ones, and its panics are no Exception
        raise ConfigError(f"{source}: {str(error)[:120]}. Save the tokenizer again.") from None
    same = {token["content"]: _token(token) for token in there}
    new = [token for text, token in added.items() if same.get(text) != token]
    made.add_tokens([tokenizers.AddedToken(token.pop("content"), **token) for token in map(dict, new)])
    ids = made.get_vocab(with_added_tokens=True)
    missing = [word for word in special if word not in ids]
    if missing:
        raise ConfigError(f"{source}: the special tokens {shortened(missing)} are not in the vocabulary.")
    if (last := max(ids.values())) >= _MAX_WORDS:
        raise ConfigError(f"{source}: the id {last:,} is out of range. Allowed: less than {_MAX_WORDS:,}.")
    first, *_, end = made.encode("a", "a").ids
    if is_built and [first, end] != [ids[special.cls], ids[special.sep]]:  # such as tokens that were added
        joined = json.loads(made.to_str())
        _set_ids(joined["post_processor"], ids)
        made = tokenizers.Tokenizer.from_str(json.dumps(joined))
    if is_unigram := whole["model"].get("type") == "Unigram":
        _set_scores(made, whole["model"])
    words = [f"<no word {number}>" for number in range(last + 1)]
    for word, number in ids.items():
        words[number] = word
    separators, has_segments = _template_of(made, special, source)
    is_exact = is_built and is_unigram
    return TokenizerFile(made.to_str(), tuple(words), special, separators, has_segments, max_length, is_exact)


def _set_scores(made: Any, model: dict) -> None:
    """Gives a Unigram the exact scores of its model in JSON.

    The library reads every tenth of them from JSON with another last bit, which decides between splits of
    equal score, such as those of "aaa" into "a" and "aa".
    """
    import tokenizers

    pieces = [(piece, float(score)) for piece, score in model["vocab"]]
    fallback = model.get("byte_fallback", False)
    made.model = tokenizers.models.Unigram(pieces, unk_id=model.get("unk_id"), byte_fallback=fallback)


def _set_ids(processor: dict, ids: Mapping[str, int]) -> None:
    """Sets the ids of the special tokens in a post_processor that a class has built."""
    for name, token in processor.get("special_tokens", {}).items():
        token["ids"] = [ids[name]]
    for part in (processor[key] for key in ("cls", "sep") if key in processor):
        part[1] = ids[part[0]]


def _template_of(made: Any, special: Special, source: str) -> tuple[int, bool]:
    """Returns how many separators stand between two texts, and whether the second has segment id 1. Raises
    ConfigError where texts are not joined as [CLS] A [SEP] and [CLS] A [SEP] B [SEP], by their ids."""
    cls, sep = map(made.token_to_id, (special.cls, special.sep))
    text = made.encode("a", add_special_tokens=False).ids
    single, pair = made.encode("a"), made.encode("a", "a")
    for separators in (1, 2):
        first = [cls, *text, *[sep] * separators]
        if single.ids == [cls, *text, sep] and pair.ids == [*first, *text, sep]:
            segments = set(pair.type_ids[: len(first)]), set(pair.type_ids[len(first) :])
            if segments in (({0}, {0}), ({0}, {1})):
                return separators, segments[1] == {1}
    shown = f"{' '.join(pair.tokens)[:120]!r} with the ids {str(pair.ids)[:60]}"
    raise ConfigError(
        f"{source}: its post_processor joins two texts as {shown}, expected {special.cls} A {special.sep} B"
        f" {special.sep}, with one or two {special.sep} between them, and the ids of the vocabulary."
    )
