"""Model folders of other libraries (transformers, sentence-transformers, peft): files, keys and labels.

model_folder.yml lists the known files and keys of such folders, and how each is treated.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from official.io import files
from official.io.errors import ConfigError, shortened, suggest
from official.io.json_files import expect, read_json, written

# -----------------------------------------------------------------------------------------------------------
# Keys


CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
VOCAB_JSON = "vocab.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")  # whole, or the index of parts
SPECIAL_TOKENS_MAP, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
MODULES, SENTENCE_TRANSFORMERS = "modules.json", "config_sentence_transformers.json"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Settings of the module Transformer, in the order in which sentence-transformers looks for them.
SENTENCE_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


class Special(NamedTuple):
    """The special tokens of the rows: their words, or their ids."""

    pad: Any = "[PAD]"
    unk: Any = "[UNK]"
    cls: Any = "[CLS]"
    sep: Any = "[SEP]"
    mask: Any = "[MASK]"


SPECIAL_TOKENS = Special()  # BERT's
_BESIDE = "are not supported (added tokens, which are not split into word pieces)"
_VOCAB_FILE = "Give --vocab_file=vocab.txt."
# Tokenizer classes of newer versions of transformers that read only tokenizer.json.
_GENERIC_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Tokenizer classes that by default, without model_input_names, give a model no segment ids.
_WITHOUT_SEGMENTS = ("DistilBertTokenizer", "DistilBertTokenizerFast", "TokenizersBackend")


class Keys(NamedTuple):
    """The keys of a file, or the files of a folder, by status.

    Attributes:
      applied, irrelevant: names.
      unsupported: {name: {only: supported values, means: meaning of other values}}.
    """

    applied: frozenset[str]
    irrelevant: frozenset[str]
    unsupported: Mapping[str, Mapping[str, Any]]


@functools.lru_cache(maxsize=1)
def tables() -> dict[str, Keys]:
    """Returns model_folder.yml: {file: its keys}, and for "" the globs of the files."""
    import yaml  # late: few commands read such a folder

    with open(os.path.join(os.path.dirname(__file__), "model_folder.yml"), encoding="utf-8") as file:
        found = yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # in C: ten times as fast
    return {
        name: Keys(
            frozenset(table.get("applied", "").split()),
            frozenset(table.get("irrelevant", "").split()),
            table.get("unsupported", {}),
        )
        for name, table in {"": found["files"], **found["keys"]}.items()
    }


def contents(value: Any) -> Any:
    """Returns the text of a token, which may be an object with matching rules; of a list, of each."""
    if isinstance(value, dict):
        return value["content"] if "content" in value else [contents(each) for each in value.values()]
    return [contents(each) for each in value] if isinstance(value, list) else value


def _other_tokens(value: Any) -> list[str]:
    """Returns the tokens of a value that are not in SPECIAL_TOKENS."""
    tokens = contents([value])
    tokens = tokens[0] if isinstance(tokens[0], list) else tokens
    return [str(token) for token in tokens if token not in (None, *SPECIAL_TOKENS)]


def read(path: str, file: str | None = None, kind: Any = dict) -> Any:
    """Reads one of the files, and checks the keys of an object.

    Args:
      path: path of the file.
      file: its name in model_folder.yml; None: the name in the path.
      kind: dict, or list for modules.json.

    Raises:
      ConfigError: if the file is not JSON, or has a key with an unsupported value.
    """
    values = read_json(path, kind=kind, any_number=True)
    if kind is dict:
        check_keys(values, file or os.path.basename(path), path)
    return values


def check_keys(values: Mapping[str, Any], file: str, source: str) -> None:
    """Raises ConfigError for an unsupported value of a key of a file, and warns of unknown keys. `source`
    begins the messages."""
    check_values(values, file, source)
    for key in unknown_keys(values, file):
        warn_of_key(key[:60], source)


def check_values(values: Mapping[str, Any], file: str, source: str) -> None:
    """Raises ConfigError for an unsupported value of a key of a file."""
    for key, row in tables()[file].unsupported.items():
        if key not in values:
            continue
        value, allowed = values[key], row["only"]
        if allowed == "special":
            others = _other_tokens(value)
            is_allowed, shown, only = not others, ", ".join(others), ""
        else:
            is_allowed = value in allowed or contents(value) in allowed
            shown, only = repr(value), f", only {allowed[0]!r}"
        if not is_allowed:
            raise ConfigError(f"{source}: {key}={shown[:90]} is not supported{only} ({row['means']}).")


def unknown_keys(values: Mapping[str, Any], file: str) -> list[str]:
    """Returns the keys that are missing in the table of a file."""
    keys = tables()[file]
    known = keys.applied | keys.irrelevant | keys.unsupported.keys()
    return [key for key in values if key not in known]


@functools.lru_cache(maxsize=None)  # noqa: UP033  # functools.cache is not in Python 3.8
def warn_of_key(key: str, source: str) -> None:
    """Warns once of an unknown key."""
    logging.warning(
        "%s: the key %r is unknown and ignored. Check that it does not change what the model computes.",
        source,
        key,
    )


def check_files(location: str) -> None:
    """Raises ConfigError if a folder has an unsupported file that changes what its model computes."""
    folder = folder_of(location)
    for name in sorted(os.listdir(folder)):
        if row := tables()[""].unsupported.get(name):
            raise ConfigError(
                f"{os.path.join(folder, name)} is not supported ({row['means']}). Remove it, or save the"
                " model as one whole."
            )


def folder_of(location: str) -> str:
    """Returns a folder, or the folder of a file or prefix."""
    return location if files.is_folder(location) else os.path.dirname(location) or "."


# ------------------------------------------------------------------------------------------------------------
# The tokenizer: tokenizer_config.json, tokenizer.json, special_tokens_map.json, added_tokens.json

_NO_LENGTH = 10**6  # a model_max_length from here on, mostly 1e30, means unlimited


def words_of(content: bytes, source: str) -> tuple[str, ...]:
    """Returns the lines of a vocab.txt, stripped as in Google's reader, without a byte order mark. Raises
    ConfigError if it is not UTF-8."""
    try:
        lines = re.sub(r"\n\Z", "", content.decode("utf-8-sig").replace("\r\n", "\n")).split("\n")
    except UnicodeDecodeError as error:
        expected = "Expected one word piece per line."
        raise ConfigError(f"{source}: not UTF-8 text (byte {error.start}). {expected}") from None
    words = tuple(map(str.strip, lines))
    if "" in words:  # white space of Unicode's may be a word
        return tuple(line.strip() or line for line in lines)
    return words


MAX_WORD_CHARACTERS = 200  # of Google's code, for a vocabulary whose files name no other number


class TokenizerSettings(NamedTuple):
    """Settings of the tokenizer of a folder.

    Attributes:
      do_lower_case: whether text loses capitals and accents; None if unknown.
      max_length: tokens that a text is truncated to; None if unknown.
      marks_pairs: whether the second text of a pair has a segment of its own.
      max_word_characters: longer words become [UNK].
    """

    do_lower_case: bool | None = None
    max_length: int | None = None
    marks_pairs: bool = True
    max_word_characters: int = MAX_WORD_CHARACTERS


def tokenizer_settings(
    location: str, source: str | None = None, tokenizer: dict | None = None
) -> TokenizerSettings:
    """Reads the settings of the tokenizer in a folder, or next to a file or prefix.

    As in transformers, tokenizer_config.json and its defaults override a plain normalizer in tokenizer.json,
    unless the tokenizer_class takes everything from tokenizer.json, or that is alone.

    Args:
      location: folder, file or prefix.
      source: begins messages about tokenizer.json; None: its path.
      tokenizer: the content of tokenizer.json (megabytes), if already read. None: it is read here.

    Raises:
      ConfigError: if a file cannot be read, or asks for an unsupported feature.
    """
    folder = folder_of(location)
    config = read_where_there(folder, TOKENIZER_CONFIG)
    read_where_there(folder, SPECIAL_TOKENS_MAP)
    path, values = os.path.join(folder, TOKENIZER_CONFIG), read_where_there(folder, CONFIG, False)
    kind, has_model = config.get("tokenizer_class"), files.is_file(os.path.join(folder, CONFIG))
    if kind is None:
        kind = values.get("tokenizer_class")
        check_values({"tokenizer_class": kind}, TOKENIZER_CONFIG, os.path.join(folder, CONFIG))
    if strange := _other_tokens(list(read_where_there(folder, ADDED_TOKENS, False))):
        raise ConfigError(f"{os.path.join(folder, ADDED_TOKENS)}: {shortened(strange)} {_BESIDE}.")
    lower_case, wrong = config.get("do_lower_case"), None
    if not isinstance(lower_case, (bool, type(None))):
        wrong = f"do_lower_case={str(lower_case)[:40]!r}, expected true or false"
    elif config.get("strip_accents") not in (None, True if lower_case is None else lower_case):
        wrong = f"strip_accents={config['strip_accents']!r} with do_lower_case={lower_case} is not supported:"
        wrong += " BERT's tokenizer does both or neither"
    if wrong:
        raise ConfigError(f"{path}: {wrong}.")
    tokenizer = read_where_there(folder, TOKENIZER) if tokenizer is None else tokenizer
    if tokenizer:
        whole = source or os.path.join(folder, TOKENIZER)
        check_truncation(tokenizer, config, whole)
        is_whole = kind in _GENERIC_TOKENIZERS or not config and not has_model
        is_whole |= values.get("model_type") == "modernbert"  # transformers ignores the class here
        lowers = tokenizer_lower_case(tokenizer, whole, is_whole, lower_case)
        if is_whole or lowers and lower_case is None:
            lower_case = lowers
    model = (tokenizer or {}).get("model")
    key = "max_input_chars_per_word"
    most = (model.get(key) if isinstance(model, dict) else None) or config.get(key) or MAX_WORD_CHARACTERS
    return TokenizerSettings(lower_case, length_told(config, path), gives_segments(config, values), most)


def check_truncation(tokenizer: dict, config: Mapping[str, Any], source: str) -> None:
    """Raises ConfigError if texts would be truncated at their beginning: without truncation_side in
    tokenizer_config.json, the side in tokenizer.json counts. `source` begins the message."""
    told = tokenizer.get("truncation")
    side = told.get("direction") if isinstance(told, dict) and "truncation_side" not in config else None
    if side not in (None, "Right"):
        wrong = f"truncation: direction={str(side)[:40]!r} is not supported, only 'Right'"
        raise ConfigError(f"{source}: {wrong} (texts are truncated at their end here).")


def gives_segments(config: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Tells whether a tokenizer gives its model segment ids, without which all tokens have segment 0. The
    default of a class counts only for the model in the same folder.

    Args:
      config: tokenizer_config.json.
      model: config.json beside it; {} for none.

    Source: transformers 5, `model_input_names` of tokenization_utils_base.py and tokenization_distilbert.py.
    """
    names = config.get("model_input_names")
    if names is not None:
        return isinstance(names, list) and "token_type_ids" in names
    kind = config.get("tokenizer_class") or model.get("tokenizer_class")
    return kind not in _WITHOUT_SEGMENTS or model.get("model_type") in (None, "distilbert")


def length_told(config: Mapping[str, Any], path: str) -> int | None:
    """Returns the maximum number of tokens in a tokenizer_config.json; None if unset. Raises ConfigError for
    an invalid one."""
    length = config.get("model_max_length", config.get("max_len"))
    if length is not None and not (type(length) in (int, float) and length >= 1):
        problem = f"model_max_length={str(length)[:40]}, expected a number of tokens from 1 on"
        raise ConfigError(f"{path}: {problem}.")
    return int(length) if length and length < _NO_LENGTH else None


def with_model_type(values: dict, path: str) -> dict:
    """Returns the content of a config.json; without a model_type, as in 2019, it is set to BERT's if Hugging
    Face weights are next to it. transformers does the same, and its `gelu` is the exact one."""
    folder, name = os.path.split(path)
    is_theirs = name == CONFIG and "hidden_size" in values
    is_theirs = is_theirs and any(files.is_file(os.path.join(folder, each)) for each in WEIGHTS)
    return {"model_type": "bert", **values} if is_theirs else values


def read_where_there(folder: str, name: str, is_checked: bool = True) -> dict:
    """Reads one of the files of a folder, and optionally checks its keys; {} if it is missing."""
    path = os.path.join(folder, name)
    if not files.is_file(path):
        return {}
    return read(path) if is_checked else read_json(path, any_number=True)


def tokenizer_words(tokenizer: dict, source: str) -> tuple[str, ...]:
    """Returns the words of a tokenizer.json in the order of their ids. Raises ConfigError, which begins with
    `source`, if it is not a BERT vocabulary."""
    found = tokenizer.get("model")
    model: dict[str, Any] = found if isinstance(found, dict) else {"type": None}
    check_values(model, f"{TOKENIZER}/model", source)
    if not isinstance(model.get("vocab"), dict):
        raise ConfigError(f"{source}: its model.vocab is not a mapping from words to ids. {_VOCAB_FILE}")
    added = tokenizer.get("added_tokens") or []
    try:
        ids = _ids_of(tokenizer)
        words = sorted(ids, key=ids.__getitem__)
        is_whole = [ids[word] for word in words] == list(range(len(words)))
    except (TypeError, KeyError):
        is_whole = False
    if not is_whole or not all(isinstance(word, str) for word in words):
        raise ConfigError(
            f"{source}: the ids of the vocabulary are not 0, 1, 2, ..., each once. Save the tokenizer again."
        )
    text = "\n".join(words)
    if text.count("\n") >= max(len(words), 1) or text.encode("utf-8", "ignore").decode() != text:
        told = "a word has a line feed or half a surrogate pair, which no vocab.txt holds"
        raise ConfigError(f"{source}: {told}. Save the tokenizer again.")
    strange = [token["content"] for token in added if token["content"] not in SPECIAL_TOKENS]
    if strange:
        raise ConfigError(f"{source}: added_tokens {shortened(strange)} {_BESIDE}.")
    return tuple(words)


def tokenizer_lower_case(
    tokenizer: dict, source: str, is_whole: bool = True, told: bool | None = None
) -> bool:
    """Returns whether the normalizer of a tokenizer.json lower-cases.

    Args:
      tokenizer: the content of the file.
      source: begins the messages.
      is_whole: the file is complete. Else tokenizer_config.json overrides a plain normalizer.
      told: do_lower_case in tokenizer_config.json; None if unset.

    Raises:
      ConfigError: if the normalizer, the pre_tokenizer or the post_processor is not BERT's.
    """
    found = list(steps(tokenizer.get("normalizer")))
    names = [str(step.get("type")) for step in found]
    bert = next((step for step in found if step.get("type") == "BertNormalizer"), {})
    lower_case = "Lowercase" in names or bert.get("lowercase") is True
    accents, lowers = bert.get("strip_accents"), bert.get("lowercase") is True if is_whole else lower_case
    strips = lowers if accents is None else accents is True
    if "StripAccents" in names and is_whole:  # which keeps accents in precomposed letters
        strips |= "NFD" in names[: names.index("StripAccents")]
    elif "StripAccents" in names:
        strips = True
    is_overruled = names == ["BertNormalizer"] and not is_whole
    before = tokenizer.get("pre_tokenizer")
    allowed = {"Sequence", "BertNormalizer", "Lowercase", "StripAccents", *(["NFD"] if strips else [])}
    wrong = None
    if (
        "BertNormalizer" not in names
        or not set(names) <= allowed
        or bert.get("clean_text") is False
        or (not is_overruled and (strips != lower_case or bert.get("handle_chinese_chars") is False))
        or not (isinstance(before, dict) and before.get("type") == "BertPreTokenizer")
    ):
        wrong = (
            "normalizer or pre_tokenizer is not BERT's, which lower-cases and strips accents, or does neither"
        )
    elif not _joins_as_bert(tokenizer, is_whole):
        wrong = "post_processor is not BERT's, which makes [CLS] A [SEP] B [SEP] with segments 0 and 1"
    if wrong:
        raise ConfigError(f"{source}: its {wrong}. {_VOCAB_FILE}")
    if not (is_overruled or is_whole) and told not in (None, lower_case):
        raise ConfigError(
            f"{source}: its normalizer {'lower-cases' if lower_case else 'does not lower-case'}, and"
            f" {TOKENIZER_CONFIG} says do_lower_case={str(told).lower()}. Correct one of them."
        )
    return lower_case


def steps(part: object) -> Iterable[dict]:
    """Yields a normalizer or pre_tokenizer of a tokenizer.json, and the members of a Sequence."""
    if isinstance(part, dict):
        yield part
        parts = part.get("normalizers") or part.get("pretokenizers")
        for step in parts if isinstance(parts, list) else ():
            yield from steps(step)


def _joins_as_bert(tokenizer: dict, is_whole: bool) -> bool:
    """Tells whether the post_processor of a tokenizer.json sets BERT's special tokens and segments, or is
    missing. Its ids count only if the file is complete: a class that rebuilds it takes those of the words."""
    processor, single = tokenizer.get("post_processor"), [("[CLS]", 0), ("A", 0), ("[SEP]", 0)]
    if processor is None:
        return True
    wanted = {"single": single, "pair": [*single, ("B", 1), ("[SEP]", 1)]}
    try:
        if processor["type"] == "BertProcessing":
            ids = {name: [number] for name, number in (processor["cls"], processor["sep"])}
            is_same = [*ids] == ["[CLS]", "[SEP]"]
        else:
            ids = {name: token["ids"] for name, token in processor["special_tokens"].items()}
            found = {
                key: [(part["id"], part["type_id"]) for piece in processor[key] for part in piece.values()]
                for key in wanted
            }
            is_same = processor["type"] == "TemplateProcessing" and found == wanted
        words = _ids_of(tokenizer) if is_whole else {}
        return is_same and all(ids[name] == [words[name]] for name in ("[CLS]", "[SEP]") if words)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # values of other types
        return False


def _ids_of(tokenizer: dict) -> dict[str, int]:
    """Returns {word: id} of a tokenizer.json. Raises TypeError or KeyError for another form."""
    added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}
    return {**added, **tokenizer["model"]["vocab"]}


# ------------------------------------------------------------------------------------------------------------
# CrossEncoders of sentence-transformers; `sentence_folder` reads its other models


def cross_encoder_activation(location: str) -> str | None:
    """Returns the activation of a CrossEncoder's outputs in config_sentence_transformers.json; None if unset,
    or set in config.json. Raises ConfigError for a default prompt, for arguments that change the model or the
    tokenizer, and for modules behind the Transformer, which change its scores."""
    folder = folder_of(location)
    values = read_where_there(folder, SENTENCE_TRANSFORMERS)
    if values.get("model_type") != "CrossEncoder":
        return None
    name, prompts = values.get("default_prompt_name"), values.get("prompts")
    if name is not None and not (isinstance(prompts, dict) and prompts.get(str(name)) == ""):
        raise ConfigError(
            f"{os.path.join(folder, SENTENCE_TRANSFORMERS)}: default_prompt_name={str(name)[:60]!r} is not"
            " supported, only null: prompts are not prepended here."
        )
    path = os.path.join(folder, SENTENCE_SETTINGS[0])
    settings = read_where_there(folder, SENTENCE_SETTINGS[0], False)
    check_values(settings, f"{SENTENCE_SETTINGS[0]}/scores", path)
    check_model_arguments(settings, path)
    path = os.path.join(folder, MODULES)
    modules = read_json(path, kind=list) if files.is_file(path) else []
    if (kinds := [kind_of_module(module) for module in modules]) not in ([], ["Transformer"]):
        told = f"the modules {', '.join(kinds)[:200]} of a CrossEncoder"
        raise ConfigError(f"{path}: {told} are not supported, only one Transformer.")
    return values.get("activation_fn")


def check_model_arguments(values: dict, path: str) -> None:
    """Raises ConfigError for arguments of `from_pretrained`, in a sentence_bert_config.json at `path`, that
    change the model."""
    for key in ("model_args", "model_kwargs"):
        arguments = expect(values, key, (dict, type(None)), path, None) or {}
        check_keys(arguments, f"{SENTENCE_SETTINGS[0]}/model_args", f"{path}: {key}")


def kind_of_module(module: object) -> str:
    """Returns the class of a module in modules.json, with its package unless it is sentence-transformers'."""
    told = module.get("type") if isinstance(module, dict) else module
    return re.sub(r"^sentence_transformers\.(.*\.)?", "", str(told))


# ------------------------------------------------------------------------------------------------------------
# Adapters: adapter_config.json


_PATTERN = r"(.*\.)?({})$"  # around a pattern of names of modules
_PATTERNS = ("alpha_pattern", "rank_pattern")


class Adapter(NamedTuple):
    """A LoRA adapter next to weights.

    Attributes:
      path: of its own weights.
      settings: the values of adapter_config.json.
    """

    path: str
    settings: dict

    def scale(self, module: str, rank: int) -> float:
        """Returns the factor of the product of the two matrices of a module.

        Source: peft, `LoraModel` and `get_pattern_key`: the first of the patterns of alpha that the module's
          name ends in counts, whatever pattern says its rank.

        Raises:
          ConfigError: if the settings say another rank than that of the matrices, or leave the module out.
        """
        told, wrong = self._told("rank_pattern", module, self.settings.get("r")), None
        if told not in (None, rank):
            wrong = f"the rank {rank}, and {ADAPTER_CONFIG} says {str(told)[:40]}"
        elif not self._is_target(module):
            wrong = "matrices, and target_modules, exclude_modules or layers_to_transform leave it out"
        if wrong:
            raise ConfigError(f"{self.path}: {module} has {wrong}. Restore the files of one adapter.")
        alpha = self._told("alpha_pattern", module, self.settings.get("lora_alpha", 8))
        return alpha / (rank**0.5 if self.settings.get("use_rslora") else rank)

    def _is_target(self, module: str) -> bool:
        """Tells whether peft uses the matrices of a module. Source: its `check_target_module_exists`."""
        targets, layers = self.settings.get("target_modules"), self.settings.get("layers_to_transform")
        if targets and not _are_of(targets, module) or _are_of(self.settings.get("exclude_modules"), module):
            return False
        number, layers = re.search(r"\.(\d+)\.", module), [layers] if isinstance(layers, int) else layers
        return not layers or number is not None and int(number[1]) in layers

    def _told(self, key: str, module: str, usual: Any) -> Any:
        """Returns the value of the first of several patterns that a module's name ends in."""
        values = (self.settings.get(key) or {}).items()
        return next((value for each, value in values if re.match(_PATTERN.format(each), module)), usual)


def _are_of(told: Any, module: str) -> bool:
    """Tells whether a pattern, or one of several ends, is of a module's name."""
    try:
        if isinstance(told, str):
            return told == "all-linear" or re.fullmatch(told, module) is not None
        return any(f".{module}".endswith(f".{end}") for end in told or ())
    except (TypeError, re.error, OverflowError, RecursionError):
        return False


def adapter_of(location: str) -> Adapter | None:
    """Returns the adapter next to weights; None without one.

    Raises:
      ConfigError: if it cannot be merged into them.
    """
    folder = folder_of(location)
    path, weights = os.path.join(folder, ADAPTER_CONFIG), os.path.join(folder, ADAPTER_WEIGHTS)
    if not os.path.exists(path):
        if os.path.exists(weights):
            raise ConfigError(f"{weights}: the adapter's {ADAPTER_CONFIG} is missing. Put it there.")
        return None
    settings = read_json(path, any_number=True)
    if settings.get("peft_type") != "LORA":  # other types have other keys
        raise ConfigError(
            f"{path}: an adapter of peft_type={str(settings.get('peft_type'))[:40]} is not supported, only"
            " LORA. Merge it in peft (merge_and_unload), or remove it."
        )
    base = str(settings.get("base_model_name_or_path") or folder)
    if os.path.isdir(base) and os.path.realpath(base) != os.path.realpath(folder):
        raise ConfigError(
            f"{path} names the base model {base}, but the folder has other weights. Put the adapter into the"
            " folder of its base model."
        )
    check_keys(settings, ADAPTER_CONFIG, path)
    expect(settings, "lora_alpha", float, path, 8)
    expect(settings, "layers_to_transform", (list, int, type(None)), path, None)
    tables = {key: expect(settings, key, (dict, type(None)), path, None) or {} for key in _PATTERNS}
    for key, module in ((name, module) for name, table in tables.items() for module in table):
        expect(tables[key], module, float, f"{path}: {key}")
        try:
            re.compile(_PATTERN.format(module))
        except (re.error, OverflowError, RecursionError) as error:
            told = f"{module[:60]!r} is no pattern of names of modules ({error})"
            raise ConfigError(f"{path}: {key}: {told}. Correct it.") from None
    if not os.path.exists(weights):
        raise ConfigError(f"{path}: {ADAPTER_WEIGHTS} is missing in its folder.")
    return Adapter(weights, settings)


# -----------------------------------------------------------------------------------------------------------
# Labels


LABELS = "labels.json"
_OF_LABELS = {"labels", "kind", "problem_type", "thresholds", "scale"}
REGRESSION, ONE_LABEL, SEVERAL_LABELS = (
    "regression",
    "single_label_classification",
    "multi_label_classification",
)


# The kinds of labels, and Hugging Face's problem_type of a classifier for them; for choice and tags, the
# names of its pipelines.
PROBLEM_TYPE_OF = {
    "one": ONE_LABEL,
    "several": SEVERAL_LABELS,
    "number": REGRESSION,
    "choice": "multiple_choice",
    "tag": "token_classification",
}
KIND_OF = {name: kind for kind, name in PROBLEM_TYPE_OF.items()}
# {end of the name of a class of transformers, of any family: its problem_type}
PROBLEM_TYPE_OF_CLASS = {
    "ForTokenClassification": PROBLEM_TYPE_OF["tag"],
    "ForMultipleChoice": PROBLEM_TYPE_OF["choice"],
}


def labels_json(
    labels: tuple[str, ...] | None,
    problem_type: str | None = None,
    thresholds: Sequence[float] = (),
    scale: Sequence[float] = (),
) -> str:
    """Returns the content of labels.json.

    Args:
      labels: names in the order of the classes; None for a score instead of classes.
      problem_type: a value of PROBLEM_TYPE_OF; None: derived from the labels.
      thresholds: for multi-label models: the minimum probability of each label.
      scale: for regression: mean and deviation by which the output is standardised; empty: it is not.
    """
    said = problem_type or (REGRESSION if labels is None else ONE_LABEL)
    values: dict[str, Any] = {"labels": labels, "kind": KIND_OF[said], "problem_type": said}
    values.update({name: each for name, each in (("thresholds", thresholds), ("scale", scale)) if each})
    return written(values)


def read_labels(folder: str) -> dict:
    """Returns {labels: (names) or None, problem_type, kind, thresholds, scale} of a folder with labels.json;
    empty without the file, or if another program wrote it. `kind` and `problem_type` have the same meaning,
    so one of them is enough.

    Raises:
      ConfigError: if the file is invalid, its keys contradict each other, or Hugging Face's config.json next
        to it has other labels.
    """
    path = os.path.join(folder, LABELS)
    if not os.path.isfile(path):
        return {}
    values = read_json(path, kind=(dict, list), any_number=True)
    if not isinstance(values, dict) or not values.keys() & _OF_LABELS:
        logging.warning("%s is ignored: another program wrote it, without the keys labels and kind.", path)
        return {}
    for key in values.keys() - _OF_LABELS:
        if meant := suggest(key, _OF_LABELS):
            raise ConfigError(f"{path}: unknown key {key[:60]!r}{meant}.")
        warn_of_key(key[:60], path)
    labels = values.get("labels")
    if not (labels is None or isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        problem = f"labels={repr(labels)[:60]}, expected a list of names or null"
        raise ConfigError(f"{path}: {problem}. Restore or remove the file.")
    labels = None if labels is None else tuple(labels)
    if labels and (theirs := labels_of_config(folder)["labels"]) not in (None, labels):
        shown = " and ".join(", ".join(names)[:80] for names in (labels, theirs))
        told = f"next to it have different labels: {shown}. Correct one of them."
        raise ConfigError(f"{path} and {CONFIG} {told}")
    numbers = {}
    for key, count, unset in (("thresholds", len(labels or ()), ()), ("scale", 2, (0.0, 1.0))):
        numbers[key] = tuple(expect(values, key, list, path, []) or unset)
        is_right = len(numbers[key]) in (count, len(unset))
        if not is_right or not all(isinstance(each, (int, float)) for each in numbers[key]):
            raise ConfigError(
                f"{path}: {key}={str(values[key])[:60]}, expected {count} numbers. Restore the file."
            )
    said, kind = _problem_type(values, path), values.get("kind")
    if kind is not None:
        if str(kind) not in PROBLEM_TYPE_OF:
            expected = f"expected one of {', '.join(PROBLEM_TYPE_OF)}"
            raise ConfigError(f"{path}: kind={str(kind)[:40]!r}, {expected}.")
        if said not in (None, PROBLEM_TYPE_OF[kind]):
            conflict = f"kind={kind!r} and problem_type={said!r} contradict each other"
            raise ConfigError(f"{path}: {conflict}. Correct one of them.")
        said = PROBLEM_TYPE_OF[kind]
    for key, none, wanted in (("thresholds", (), SEVERAL_LABELS), ("scale", (0.0, 1.0), REGRESSION)):
        if numbers[key] != none and said != wanted:
            kind = KIND_OF.get(str(said), "one")
            conflict = f"{key} with kind={kind!r}, expected only with {KIND_OF[wanted]!r}"
            raise ConfigError(f"{path}: {conflict}. Correct one of them.")
    if not all(0 <= each <= 1 for each in numbers["thresholds"]):
        received = str(list(numbers["thresholds"]))[:60]
        raise ConfigError(f"{path}: thresholds={received}, expected probabilities from 0 to 1.")
    return {"labels": labels, "problem_type": said, "kind": KIND_OF.get(str(said), "one"), **numbers}


def _problem_type(values: dict, source: str) -> str | None:
    kind = values.get("problem_type")
    if kind not in (None, *KIND_OF):
        allowed = ", ".join(KIND_OF)
        raise ConfigError(f"{source}: problem_type={repr(kind)[:60]} is not supported, only {allowed}.")
    return kind


def check_label_count(labels: Sequence[str] | None, outputs: int, source: str) -> None:
    """Raises ConfigError if the number of names differs from the classifier's outputs."""
    if labels is not None and len(labels) != outputs:
        shown = ", ".join(labels)[:120]
        raise ConfigError(f"{source}: {len(labels)} labels ({shown}), the classifier has {outputs} outputs.")


def labels_to_hugging_face(labels: tuple[str, ...] | None, problem_type: str | None, count: int) -> dict:
    """Returns keys of config.json for the labels. transformers takes the number of classes from the names, so
    unknown names get placeholders."""
    names = labels or ()
    if not len(set(names)) == len(names) == count:
        names = tuple(f"LABEL_{number}" for number in range(count))
    by_id = {str(number): name for number, name in enumerate(names)}
    found: dict[str, Any] = {
        "id2label": by_id,
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if problem_type == REGRESSION and count == 1:  # a CrossEncoder's default is the sigmoid
        found["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    theirs = problem_type in (REGRESSION, ONE_LABEL, SEVERAL_LABELS)
    return {**found, "problem_type": problem_type} if theirs else found


def labels_of_config(location: str) -> dict:
    """Returns {labels: names or None, problem_type} that the config.json of a folder, or beside a file,
    gives. Names that are made up, LABEL_0, count for none. Raises ConfigError as `labels_of_hugging_face`."""
    folder = folder_of(location)
    values, path = read_where_there(folder, CONFIG, False), os.path.join(folder, CONFIG)
    found = labels_of_hugging_face(values, path, cross_encoder_activation(folder))
    return {**found, "labels": None} if are_numbered_labels(found["labels"] or ()) else found


def labels_of_folder(location: str) -> dict:
    """Returns the labels of a folder, or beside a file, as `read_labels` does; without labels.json, those of
    config.json; empty where that names none, either."""
    if found := read_labels(folder_of(location)):
        return found
    said = labels_of_config(location)
    kind = KIND_OF.get(str(said["problem_type"]), "one")
    if kind in ("number", "choice"):
        said["labels"] = None
    elif not said["labels"]:
        return {}
    return {**said, "kind": kind, "thresholds": (), "scale": (0.0, 1.0)}


def labels_of_hugging_face(values: dict, source: str, activation: str | None = None) -> dict:
    """Returns {labels: names or None, problem_type} of a config.json.

    id2label takes precedence; label2id, its inverse, is used if that is missing. The class of the model tells
    whether it classifies texts, words or choices.

    Args:
      values: content of config.json.
      source: beginning of the messages.
      activation: of the outputs, as a CrossEncoder of sentence-transformers names it; None: as in `values`.

    Raises:
      ConfigError: if the names are not of classes 0, 1, 2, ..., or contradict each other.
    """
    tables = [_names_of(values.get(key), key, source) for key in ("id2label", "label2id")]
    named = [names for names in tables if names and not are_numbered_labels(names)]
    labels, number = next(iter([*named, *filter(None, reversed(tables))]), None), values.get("num_labels")
    shown, wrong = [", ".join(names)[:90] for names in [*named, labels or ()]], None
    kind, is_one = _problem_type(values, source), (len(labels) if labels else number) == 1
    if len(set(named)) > 1:
        wrong = f"id2label and label2id contradict each other: {shown[0]} and {shown[1]}"
    elif labels and number not in (None, len(labels)):
        wrong = f"num_labels={str(number)[:40]}, but {len(labels)} labels: {shown[-1]}"
    elif kind == ONE_LABEL and is_one:  # which transformers 4 gives a sigmoid, and 5 refuses
        wrong = f"problem_type={kind} with only one label"
    if wrong:
        raise ConfigError(f"{source}: {wrong}. Correct one of them.")
    sentences = values.get("sentence_transformers")
    activation = activation or (sentences.get("activation_fn") if isinstance(sentences, dict) else None)
    activation = activation or values.get("sbert_ce_default_activation_function")
    classes = values.get("architectures") or [""]
    first = str(classes[0] if isinstance(classes, list) else classes)
    kind = next((own for end, own in PROBLEM_TYPE_OF_CLASS.items() if first.endswith(end)), kind)
    if kind is None and (activation or is_one):
        kinds, name = _ACTIVATIONS[is_one], str(activation or "Sigmoid").rpartition(".")[2]
        if name not in kinds:
            wrong = f"activation_fn={str(activation)[:60]} is not supported, only {', '.join(kinds)}"
            raise ConfigError(f"{source}: {wrong}.")
        kind = kinds[name]
    return {"labels": labels, "problem_type": kind}


# {whether there is one output: {activation: meaning}}: a score, or a probability; transformers and
# sentence-transformers have different defaults. None: several outputs, one label by softmax.
_ACTIVATIONS: dict[bool, dict[str, str | None]] = {
    True: {"Identity": REGRESSION, "Sigmoid": SEVERAL_LABELS},
    False: {"Identity": None, "Softmax": None, "Sigmoid": SEVERAL_LABELS},
}


def _names_of(names: object, key: str, source: str) -> tuple[str, ...] | None:
    """Returns the names of the classes in their order; None for none."""
    if not names:
        return None
    pairs = list(names.items()) if isinstance(names, dict) else []
    numbered = {str(number): str(name) for number, name in pairs}
    if key == "label2id":
        numbered = {str(number): str(name) for name, number in pairs}
    order = [str(number) for number in range(len(pairs))]
    received = f"{source}: {key}={repr(names)[:90]}"
    if not pairs or set(numbered) != set(order):
        raise ConfigError(f"{received}, expected names of classes 0, 1, 2, ..., each number once.")
    if len(set(numbered.values())) < len(order):
        raise ConfigError(f"{received} has a name twice, expected a different name for each class.")
    return tuple(map(numbered.__getitem__, order))


def are_numbered_labels(labels: Sequence[str]) -> bool:
    """Tells whether names are transformers' placeholders: LABEL_0, LABEL_1."""
    return all(label == f"LABEL_{number}" for number, label in enumerate(labels))


def order_of_labels(labels: Sequence[str], wanted: Sequence[Sequence[str]]) -> list[int] | None:
    """Returns, for each wanted class, the number of the label that is one of its names; None where they do
    not match one to one. Case, hyphens, underscores and blanks do not count, but for the sign of a number,
    and where labels differ by them alone: A, A-.

    Args:
      labels: of a model, in their order.
      wanted: the names of each class.
    """
    ways: tuple[Callable[[str], str], ...] = (str, _plain)
    for form in ways:
        forms = [form(label) for label in labels]
        found = [[forms.index(name) for name in map(form, names) if name in forms] for names in wanted]
        order = [numbers[0] for numbers in found if numbers]
        if sorted(order) == list(range(len(labels))) and len(order) == len(wanted):
            return order
    return None


def _plain(label: str) -> str:
    return re.sub(r"(?!^-[\d.])[\s_-]", "", label.strip()).casefold()
