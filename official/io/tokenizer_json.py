"""Hugging Face's tokenizer.json, where it says what BERT's tokenizer does."""

from __future__ import annotations

from collections.abc import Iterable

from official.io.errors import ConfigError

# Of normalizers that BERT's rules are made of.
_STEPS = {"Sequence", "BertNormalizer", "Lowercase", "StripAccents", "NFD", "NFC"}


def words_of(tokenizer: dict, source: str) -> tuple[str, ...]:
    """Returns the words by their ids. Raises ConfigError, which begins with `source`, where they are not a
    vocabulary of BERT's."""
    found = tokenizer.get("model")
    model = found if isinstance(found, dict) else {}
    kind = model.get("type", "WordPiece") if isinstance(found, dict) else None
    if kind != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise ConfigError(
            f"{source}: a tokenizer of type {str(kind)[:40]} is not read, only WordPiece, as BERT's. Give"
            " --vocab_file=vocab.txt."
        )
    if model.get("continuing_subword_prefix", "##") != "##" or model.get("unk_token", "[UNK]") != "[UNK]":
        raise ConfigError(
            f"{source}: continuing_subword_prefix and unk_token must be '##' and '[UNK]', as BERT's. Give"
            " --vocab_file=vocab.txt."
        )
    added = tokenizer.get("added_tokens") or []
    try:
        ids = {**{token["content"]: token["id"] for token in added}, **model["vocab"]}
        words = sorted(ids, key=ids.__getitem__)
        is_whole = [ids[word] for word in words] == list(range(len(words)))
    except (TypeError, KeyError):
        is_whole = False
    if not is_whole or not all(isinstance(word, str) for word in words):
        raise ConfigError(
            f"{source}: the ids of the vocabulary are not 0, 1, 2, ..., each once. Save the tokenizer again."
        )
    return tuple(words)


def lower_case_of(tokenizer: dict, source: str) -> bool:
    """Returns whether the normalizer lower-cases. Raises ConfigError where it does something that BERT's does
    not."""
    steps = list(_steps(tokenizer.get("normalizer")))
    kinds = {str(step.get("type")) for step in steps}
    bert = next((step for step in steps if step.get("type") == "BertNormalizer"), {})
    lower_case = "Lowercase" in kinds or bert.get("lowercase") is True
    accents = bert.get("strip_accents")
    strips = "StripAccents" in kinds or (lower_case and bool(bert) if accents is None else accents is True)
    before = tokenizer.get("pre_tokenizer") or {"type": "BertPreTokenizer"}
    splits_like_bert = isinstance(before, dict) and before.get("type") == "BertPreTokenizer"
    if (
        not kinds <= _STEPS
        or strips != lower_case
        or not splits_like_bert
        or bert.get("handle_chinese_chars") is False
    ):
        raise ConfigError(
            f"{source}: its normalizer or pre_tokenizer is not BERT's, which lower-cases and strips accents,"
            " or does neither. Give --vocab_file=vocab.txt."
        )
    return lower_case


def _steps(normalizer: object) -> Iterable[dict]:
    if isinstance(normalizer, dict):
        yield normalizer
        parts = normalizer.get("normalizers")
        for step in parts if isinstance(parts, list) else ():
            yield from _steps(step)
