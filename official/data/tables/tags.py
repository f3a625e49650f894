"""Sentences with tagged words: reads CoNLL columns and JSON, finds spans, computes scores, and makes windows
of word pieces.

Schemes: IOB1, IOB2 and IOBES mark the spans of entities by the prefixes B-, I-, E-, S- and the tag O; `words`
is for tags without prefixes, such as parts of speech.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from official.data.rows import ragged
from official.data.tables import files as tables
from official.data.tables.labels import as_text, rates
from official.data.tables.texts import ANSWER, REJECTED
from official.data.text import text_files
from official.data.word_pieces.tokenizer import Tokenizer
from official.data.word_pieces.vocabulary import Vocabulary
from official.data.word_pieces.wordpiece import IDEOGRAPH, is_punctuation
from official.io import files
from official.io.errors import ConfigError, shortened

IOB1, IOB2, IOBES, WORDS = SCHEMES = ("IOB1", "IOB2", "IOBES", "words")
OUTSIDE = "O"
IGNORED = -1  # label of all pieces of a word except the first
_DOCUMENT = "-DOCSTART-"
_COMMENT = re.compile(r"# (id\s|.+ = |newdoc$|newpar$)")  # of a sentence, in MultiCoNER and CoNLL-U
_BRAT = re.compile(rb"T\d+\t\S+ \d+ \d+")
_TAG = re.compile("O|[BIES]-.+")
_NUMBER = re.compile(r"\d+([-.]\d+)?")  # of a word or sentence; CoNLL-U has ranges and fractions, too
_HEADER = re.compile("(word|token|form|text)s?\t(.*_)?([ux]?pos|ner|chunk|tag|label)s?", re.IGNORECASE)
_WRITTEN_LIST = re.compile(r"""\s*\[\s*(["']).*["']\s*\]\s*""", re.DOTALL)
# Other notations of prefixes
_OTHER_FORM = re.compile("[LUM]-.|[bieslum]-.|[BIESLUM][_:/].|.*[-_:/][BIESLUM]$")
_TOKEN_KEYS, _TAG_KEYS = ("tokens", "words"), ("tags", "ner_tags", "labels")
_TEXT_KEYS, _SPAN_KEYS = ("text", "sentence"), ("entities", "spans", "label", "labels")


class Span(NamedTuple):
    """An entity: its type, its first word, and the end, exclusive."""

    type: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence with its words.

    Attributes:
      words: the words.
      tags: one tag per word; None if the file has no tags.
      text: the original text; None if only words were given.
      offsets: (first character, end) of each word in `text`; empty without a text.
    """

    words: list[str]
    tags: list[str] | None = None
    text: str | None = None
    offsets: list[tuple[int, int]] = dataclasses.field(default_factory=list)


# -----------------------------------------------------------------------------------------------------------
# Files


def read_sentences(
    given: str, flag: str, with_tags: bool, columns: tuple[str | None, str | None] = (None, None)
) -> list[Sentence]:
    """Reads the sentences of comma-separated files and globs, CoNLL columns or JSON lines.

    CoNLL: one word per line, with its tag in the last column; spaces or tabs between columns; a blank line
    ends a sentence, and `# id` or `# name = ` begins a comment. JSON: `tokens` and `tags`, or `text` and
    `entities` with `start`, `end` (in characters) and `label`.

    Args:
      given: value of the flag.
      flag: name of the flag, for messages.
      with_tags: whether tags are required; otherwise those of JSON are not read.
      columns: names of the columns of JSON with words or text, and with tags or spans; None: the usual ones.

    Raises:
      ConfigError: for a file that cannot be read, a line with other columns, or no sentence at all.
    """
    found: list[Sentence] = []
    for path in files.find_files(given, flag):
        with text_files.open_text(text_files.Split(path)) as file:
            is_table = tables.kind_of(file.head) is not None
            if _BRAT.match(file.head):
                problem = "has the annotations of brat, whose text is in another file"
                raise ConfigError(f"{path} {problem}. Write rows of JSON, each with text and entities.")
        own = list(_read_table(path, flag, with_tags, columns) if is_table else _read_conll(path, with_tags))
        if not is_table:
            _check_words(own, path)
        found += own
    if not found:
        raise ConfigError(f"--{flag}={given} has no sentence.")
    return found


def _check_words(sentences: Sequence[Sentence], path: str) -> None:
    """Raises ConfigError if the first column has no words: numbers of words or sentences, one name for each
    whole sentence, such as a document's, tags as in MIT's corpora, or a header above the words."""
    tagged = [one for one in sentences if one.tags]
    columns = [one.words for one in tagged]
    words = list(itertools.chain(*columns))
    found = None
    if words and all(map(_NUMBER.fullmatch, words)):
        found = "numbers the words or sentences"
    elif len(words) > len(columns) and all(len(set(column)) == 1 for column in columns):
        found = "is the same in all lines of a sentence"
    elif words and all(map(_TAG.fullmatch, words)):
        found = "has the tags"
    if found:
        raise ConfigError(f"{path}: the first column {found}. Write the words first.")
    for one in tagged[:1]:
        if _HEADER.fullmatch(head := f"{one.words[0]}\t{(one.tags or [''])[0]}"):
            raise ConfigError(f"{path} begins with a header ({head!r}). Remove it: each line is a word.")


@dataclasses.dataclass(frozen=True)
class ConllTable(tables.Table):
    """Sentences of CoNLL columns as rows of a table: `tokens`, and `tags` if the first sentence has them."""

    def _rows(self, part: Any, names: list[str]) -> Iterator[Sequence]:
        for sentence in _read_conll(part.path):
            values = {"tokens": sentence.words, "tags": sentence.tags}
            yield [values[name] for name in names]


def is_conll(given: str) -> bool:
    """Tells whether the names of files are those of CoNLL columns."""
    return re.search(r"\.conll(\.\w+)?$", given.strip().lower()) is not None


def open_conll(given: str, flag: str) -> tables.Table:
    """Opens files of CoNLL columns, with or without tags, as a table. Raises ConfigError for files without a
    sentence."""
    paths = files.find_files(given, flag)
    heads = [list(itertools.islice(_read_conll(path), 100)) for path in paths]
    for path, head in zip(paths, heads):
        _check_words(head, path)
    first = list(itertools.chain.from_iterable(heads))
    if not first:
        raise ConfigError(f"--{flag}={given} has no sentence.")
    columns = ("tokens", *(["tags"] if first[0].tags else []))
    return ConllTable(given, flag, tuple(tables.Part(path, "conll") for path in paths), columns, True)


def _read_conll(path: str, with_tags: bool = False) -> Iterator[Sentence]:
    words: list[str] = []
    tags: list[str] = []
    count = 0
    with text_files.open_text(text_files.Split(path)) as file:
        for number, line in enumerate(itertools.chain(file.text, [b""]), 1):  # the end is a blank line
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ConfigError(f"{path}:{number}: not UTF-8 text (byte {error.start + 1}).") from None
            if _COMMENT.match(text):
                continue
            fields = text.split("\t") if "\t" in text else text.split(" ")
            fields = [field.strip() for field in fields if field.strip()]
            if not fields or fields[0] == _DOCUMENT:
                if words:
                    yield Sentence(words, tags or None)
                words, tags = [], []
                continue
            count = count or len(fields)
            if len(fields) != count or with_tags and count < 2:
                usual = count > 1 or not with_tags
                expected = f"{count}, as the lines before" if usual else "a word and its tag"
                problem = f"{len(fields)} columns ({text[:40]!r}), expected {expected}"
                raise ConfigError(f"{path}:{number}: {problem}.")
            words.append(fields[0])
            if count > 1:
                tags.append(fields[-1])


def _read_table(
    path: str, flag: str, with_tags: bool, columns: tuple[str | None, str | None]
) -> Iterator[Sentence]:
    wanted = [name for name in (columns[0], columns[1] if with_tags else None) if name]
    table = tables.open_table(path, flag, wanted)
    words = columns[0] or _column(table, (*_TOKEN_KEYS, *_TEXT_KEYS), "--text_columns")
    tag_keys = [key for key in (_SPAN_KEYS if words in _TEXT_KEYS else _TAG_KEYS) if key != words]
    tags = (columns[1] or _column(table, tag_keys, "--label_column", only=True)) if with_tags else None
    judged = [ANSWER] if with_tags and ANSWER in table.columns else []
    for batch in table.batches([words, *([tags] if tags else []), *judged]):
        for row, value in enumerate(batch.columns[words]):
            place = f"{path}, row {batch.first + row + 1}"
            if row in batch.problems:
                raise ConfigError(f"{place}: {batch.problems[row]}.")
            if judged and (answer := batch.columns[ANSWER][row]) in REJECTED:
                hint = "Leave out rows of Prodigy that are not accepted: jq -c 'select(.answer==\"accept\")'"
                raise ConfigError(f"{place}: answer is {answer!r}. {hint}.")
            labels = batch.columns[tags][row] if tags else None
            if with_tags and labels is None:  # a missing column does not mean that the text has no entity
                raise ConfigError(f"{place}: it has no {tags}. Give each row its own, [] if it has none.")
            if isinstance(value, str) and with_tags:
                yield with_spans(value, _spans_of(labels, value, place), place)
            elif isinstance(value, str):
                yield sentence_of(value)
            else:
                yield _of_tokens(value, labels, place)


def _column(table: tables.Table, names: Sequence[str], flag: str, only: bool = False) -> str:
    """Returns the first of some names that is a column of the table. Raises ConfigError if there is none, or,
    with `only`, several."""
    found = [name for name in names if name in table.columns]
    if not found:
        raise ConfigError(
            f"{table.given} has none of the columns {', '.join(names)}, but {shortened(list(table.columns))}."
            f" Name it with {flag}."
        )
    if only and len(found) > 1:
        raise ConfigError(f"{table.given} has the columns {' and '.join(found)}. Name one with {flag}.")
    return found[0]


def _of_tokens(value: Any, labels: Any, place: str) -> Sentence:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f"{place}: the words are {str(value)[:60]!r}, expected a list of texts.")
    tags = None
    if labels is not None:
        tags = [as_text(label) or "" for label in labels] if isinstance(labels, list) else [""]
    if tags is not None and (len(tags) != len(value) or not all(tags)):
        found = f"{len(value)} words with the tags {str(labels)[:60]!r}"
        raise ConfigError(f"{place}: {found}, expected a list with one for each word, O outside of entities.")
    return Sentence(value, tags)


def _spans_of(value: Any, text: str, place: str) -> list[tuple[int, int, str]]:
    """Returns (first character, end, type) of spans of a text, given in any of the usual forms."""
    spans = []
    for one in value if isinstance(value, list) else [value] if value else []:
        parts: Sequence[Any] = one if isinstance(one, (list, tuple)) else ()
        if isinstance(one, dict):
            label = next((one[key] for key in ("label", "type", "tag", "entity_group") if key in one), None)
            parts = one.get("start"), one.get("end"), label
        start, end, label = parts if len(parts) == 3 else (-1, -1, "")
        is_whole = isinstance(start, int) and isinstance(end, int) and isinstance(label, str)
        if not is_whole or not label or not 0 <= start < end <= len(text):
            most = f"in characters, at most {len(text)}"
            wrong = f"span {str(one)[:60]}, expected start, end ({most}) and a label"
            raise ConfigError(f"{place}: {wrong}.")
        expected = one.get("text") if isinstance(one, dict) else None
        # Label Studio writes line ends as two characters.
        if isinstance(expected, str) and expected.replace("\\n", " ").split() != text[start:end].split():
            wrong = f"the span {expected[:40]!r} is {text[start:end][:40]!r} from {start} to {end}"
            raise ConfigError(f"{place}: {wrong}. Count characters (code points), not bytes or UTF-16 units.")
        spans.append((start, end, label))
    spans.sort()
    for before, after in zip(spans, spans[1:]):
        if after[0] < before[1]:
            raise ConfigError(f"{place}: the spans {before} and {after} overlap: a word has one tag.")
    return spans


def with_spans(text: str, spans: Sequence[tuple[int, int, str]], place: str) -> Sentence:
    """Returns a text with its words, tagged by IOB2. Words are split at white space, punctuation and
    ideographs, as in BERT's tokenizer. Raises ConfigError for a span that begins or ends within a word."""
    offsets = list(word_offsets(text))
    tags = [OUTSIDE] * len(offsets)
    starts, ends = (
        ({edge: number for number, edge in enumerate(edges)} for edges in zip(*offsets))
        if offsets
        else ({}, {})
    )
    for start, end, label in spans:
        kept = text[start:end]
        start, end = start + len(kept) - len(kept.lstrip()), end - len(kept) + len(kept.rstrip())
        if start not in starts or end not in ends:
            shown = text[max(0, start - 10) : end + 10]
            raise ConfigError(f"{place}: the span {text[start:end][:40]!r} cuts a word in {shown[:60]!r}.")
        for number in range(starts[start], ends[end] + 1):
            tags[number] = f"{'I' if number > starts[start] else 'B'}-{label}"
    words = [text[begin:end] for begin, end in offsets]
    return Sentence(words, tags, text, offsets)


def sentence_of(text: str | list[str]) -> Sentence:
    """Returns a text, split into words, or a list of words, as a sentence without tags. Raises ConfigError
    for another value."""
    if isinstance(text, str):
        if _WRITTEN_LIST.fullmatch(text):  # as pandas writes lists to CSV
            raise ConfigError(f"{text[:60]!r} to tag is a list of words, written as a text. Give JSON lines.")
        return dataclasses.replace(with_spans(text, [], ""), tags=None)
    if not isinstance(text, (list, tuple)) or not all(isinstance(word, str) for word in text):
        raise ConfigError(f"{str(text)[:60]} to tag, expected a text or a list of words.")
    return Sentence(list(text))


def word_offsets(text: str) -> Iterator[tuple[int, int]]:
    """Yields (first character, end) of each word of a text."""
    begin = None
    for place, character in enumerate(text):
        alone = is_punctuation(character) or IDEOGRAPH.match(character) is not None
        if begin is not None and (alone or character.isspace()):
            yield begin, place
            begin = None
        if alone:
            yield place, place + 1
        elif begin is None and not character.isspace():
            begin = place
    if begin is not None:
        yield begin, len(text)


# -----------------------------------------------------------------------------------------------------------
# Schemes and spans


def _parts(tag: str) -> tuple[str, str]:
    """Returns (prefix, type); for O and tags without a prefix, (the tag, "")."""
    prefix, dash, kind = tag.partition("-")
    return (prefix, kind) if dash and prefix in tuple("BIES") else (tag, "")


def find_scheme(sentences: Sequence[Sentence], source: str) -> str:
    """Returns the scheme of the tags.

    Raises:
      ConfigError: for tags of no scheme, or of two; the message names a sentence.
    """
    tags = dict.fromkeys(tag for sentence in sentences for tag in sentence.tags or ())
    prefixes = {_parts(tag)[0] for tag in tags if _parts(tag)[1]}
    odd = [tag for tag in tags if not _parts(tag)[1] and tag != OUTSIDE]
    other = list(filter(_OTHER_FORM.match, odd)) if {OUTSIDE, "o"} & tags.keys() else []
    if odd and not (prefixes or other):
        return WORDS
    if odd:
        raise ConfigError(
            f"{source}: the tag {(other or odd)[0][:40]!r} has none of the prefixes B-, I-, E-, S-. Write all"
            " tags but O with one of them before the type; L- of BILOU is E-, and U- is S-."
        )
    schemes = (IOBES,) if prefixes & {"E", "S"} else (IOB2, IOB1)
    found = {one: breaches(sentences, one) for one in schemes}
    scheme = min(schemes, key=lambda one: found[one][0])  # the one with the fewest breaches
    if problem := found[scheme][1]:
        raise ConfigError(f"{source}, {problem}. Allowed: IOB1, IOB2 or IOBES throughout.")
    return scheme


def breaches(sentences: Sequence[Sentence], scheme: str) -> tuple[int, str]:
    """Returns the number of sentences that break a scheme, and a description of the first one."""
    wrong = [
        (number, problem)
        for number, sentence in enumerate(sentences, 1)
        if (problem := breach(sentence.tags or [], scheme))
    ]
    if not wrong:
        return 0, ""
    number, problem = wrong[0]
    more = f" (and {len(wrong) - 1:,} more)" * (len(wrong) > 1)
    return len(wrong), f"sentence {number}{more}: {problem}, which {scheme} does not have"


def scheme_of(tags: Sequence[str], sentences: Sequence[Sentence] = ()) -> str:
    """Returns the scheme of a model, by the names of its tags; if these fit two schemes, by sentences."""
    prefixes = {_parts(tag)[0] for tag in tags if _parts(tag)[1]}
    if not prefixes:
        return WORDS
    if prefixes & {"E", "S"}:
        return IOBES
    if "B" not in prefixes:
        return IOB1
    breaks_1, breaks_2 = (breaches(sentences, one)[0] for one in (IOB1, IOB2))
    return IOB1 if breaks_2 and not breaks_1 else IOB2


def breach(tags: Sequence[str], scheme: str) -> str | None:
    """Returns a description of the first tags of a sentence that break the scheme; None if there is no
    breach."""
    before = (OUTSIDE, "")
    for tag in [*tags, OUTSIDE]:
        now = _parts(tag)
        goes_on = _goes_on(before, now, scheme)
        if scheme == IOB1:
            wrong = now[0] == "B" and not (before[0] in "BI" and now[1] == before[1])
        elif scheme == IOB2:
            wrong = now[0] == "I" and not goes_on
        else:
            wrong = scheme == IOBES and not goes_on and (now[0] in "IE" or before[0] in "BI")
        if wrong:
            return f"{tag!r} after {'-'.join(filter(None, before))!r}"
        before = now
    return None


def _goes_on(before: tuple[str, str], now: tuple[str, str], scheme: str) -> bool:
    """Tells whether a tag continues the entity of the previous one; both are (prefix, type)."""
    inside = "IE" if scheme == IOBES else "I"
    return before[0] in "BI" and now[0] in inside and now[1] == before[1]


def spans(tags: Sequence[str], scheme: str | None = None) -> list[Span]:
    """Returns the entities of a sentence.

    Args:
      tags: one tag per word.
      scheme: only spans that follow it strictly are entities, as in seqeval's strict mode; None: lenient
        reading as in conlleval, which accepts any prefix, like seqeval's default. With `words`, each tag
        except O is an entity of one word.
    """
    if scheme == WORDS:
        return [Span(tag, place, place + 1) for place, tag in enumerate(tags) if tag != OUTSIDE]
    return _lenient(tags) if scheme is None else _strict(tags, scheme)


def _lenient(tags: Sequence[str]) -> list[Span]:
    """Source of the rules: conlleval.pl of CoNLL-2000. In BILOU, which models of other libraries use, L ends
    an entity as E does, and U is a single word as S is."""
    found, start, before = [], 0, (OUTSIDE, "")
    for place, tag in enumerate([*tags, OUTSIDE]):
        now = (OUTSIDE, "") if tag == OUTSIDE else (tag[:1], tag[1:].split("-", 1)[-1] or "_")
        changed = now[1] != before[1]
        if before[0] != OUTSIDE and (before[0] in "ESLU" or now[0] in "BSUO" or changed):
            found.append(Span(before[1], start, place))
        if now[0] in "BSU" or now[0] != OUTSIDE and (before[0] in "ESLUO" or changed):
            start = place
        before = now
    return found


def _strict(tags: Sequence[str], scheme: str) -> list[Span]:
    parts = [*map(_parts, tags), (OUTSIDE, "")]
    found, place = [], 0
    while place < len(tags):
        prefix, kind = parts[place]
        before = parts[place - 1] if place else (OUTSIDE, "")
        if scheme == IOB1:
            starts = prefix == "I" and (before[0] != "I" or before[1] != kind)
            starts = starts or prefix == "B" and before[0] in "BI" and before[1] == kind
        else:
            starts = prefix == "B" or scheme == IOBES and prefix == "S"
        if not starts:
            place += 1
            continue
        end = place + 1
        while _goes_on(parts[end - 1], parts[end], scheme):
            end += 1
        ended = parts[end - 1][0] in "ES" if scheme == IOBES else True
        if scheme == IOB1 and parts[end - 1][0] == parts[end][0] == "B" and parts[end][1] != kind:
            ended = False
        if ended:
            found.append(Span(kind, place, end))
        place = end
    return found


# -----------------------------------------------------------------------------------------------------------
# Scores


SCORES = ("precision", "recall", "f1", "strict_precision", "strict_recall", "strict_f1", "accuracy")


def scores(
    truths: Sequence[Sequence[str]], calls: Sequence[Sequence[str]], scheme: str
) -> tuple[dict[str, float], list[list]]:
    """Returns the scores of entities, and their table by type.

    Returns:
      precision, recall and f1 as in seqeval's default mode, strict_precision, strict_recall and strict_f1 as
      in its strict mode with the scheme, and the accuracy of words.
    """
    found: dict[str, float] = {}
    lenient = WORDS if scheme == WORDS else None
    rows: list[list] = [["type", "entities", "precision", "recall", "F1"]]
    for prefix, rule in (("", lenient), ("strict_", scheme)):
        counts: dict[str, Counter[str]] = {"there": Counter(), "called": Counter(), "hits": Counter()}
        for truth, call in zip(truths, calls):
            there, called = set(spans(truth, rule)), set(spans(call, rule))
            for name, entities in (("there", there), ("called", called), ("hits", there & called)):
                counts[name].update(entity.type for entity in entities)
        total = rates(*(sum(counts[name].values()) for name in ("hits", "called", "there")))
        found |= {f"{prefix}{name}": value for name, value in zip(("precision", "recall", "f1"), total)}
        if not prefix:
            for kind in sorted({*counts["there"], *counts["called"]}):
                own = [counts[name][kind] for name in ("hits", "called", "there")]
                rows.append([kind, own[2], *rates(*own)])
    words = [(one, other) for truth, call in zip(truths, calls) for one, other in zip(truth, call)]
    found["accuracy"] = sum(one == other for one, other in words) / max(len(words), 1)
    return found, rows


# -----------------------------------------------------------------------------------------------------------
# Windows of word pieces


@dataclasses.dataclass(frozen=True)
class Windows:
    """N windows of T pieces in all, one or more per sentence, each with [CLS] and [SEP].

    Attributes:
      ids_T: int32, ids of all pieces.
      lengths_N: number of tokens in each window.
      words_T: int32, number of the word in its sentence for the first piece of a word; -1 for all others.
      sentences_N: number of each window's sentence.
    """

    ids_T: np.ndarray
    lengths_N: np.ndarray
    words_T: np.ndarray
    sentences_N: np.ndarray

    def _places(self) -> Iterator[tuple[int, int, int]]:
        """Yields (sentence, first piece, end) of each window."""
        ends = np.cumsum(self.lengths_N)
        yield from zip(self.sentences_N.tolist(), (ends - self.lengths_N).tolist(), ends.tolist())

    def labels(self, ids: Sequence[np.ndarray]) -> np.ndarray:
        """Returns int32 [T]: the label of each first piece of a word, IGNORED for the others; `ids` are the
        labels of each sentence's words."""
        found_T = np.full(len(self.ids_T), IGNORED, np.int32)
        for sentence, begin, end in self._places():
            words = self.words_T[begin:end]
            found_T[begin:end][words >= 0] = ids[sentence][words[words >= 0]]
        return found_T

    def joined(self, values_TX: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
        """Returns the values of the words of each sentence, each from the window with the most context: the
        number of pieces on the side of the word with fewer pieces.

        Args:
          values_TX: values of the pieces.
          counts: number of words in each sentence.
        """
        found = [np.zeros((count, *values_TX.shape[1:]), values_TX.dtype) for count in counts]
        best = [np.full(count, -1) for count in counts]
        for sentence, begin, end in self._places():
            places = np.flatnonzero(self.words_T[begin:end] >= 0)
            words = self.words_T[begin:end][places]
            room = np.minimum(places, end - begin - 1 - places)
            better = room > best[sentence][words]
            best[sentence][words[better]] = room[better]
            found[sentence][words[better]] = values_TX[begin:end][places[better]]
        return found


def make_windows(
    sentences: Sequence[Sequence[str]], tokenizer: Tokenizer, vocabulary: Vocabulary, max_seq_length: int
) -> Windows:
    """Returns the windows of sentences, each a list of words.

    A sentence that fits into `max_seq_length` tokens is one window. Otherwise windows overlap by a quarter,
    and begin at a word. A word without pieces, such as a control character, is [UNK]; one that is longer than
    a window loses its end.
    """
    special = vocabulary.special_ids
    pieces_P, counts_W = tokenizer.tokenize_words([word for words in sentences for word in words])
    room, split = max_seq_length - 2, ragged.split(pieces_P.astype(np.int32), counts_W)
    pieces = [part[:room] if len(part) else np.array([special.unk], np.int32) for part in split]
    ids, words, lengths, numbers, first = [], [], [], [], 0
    for number, sentence in enumerate(sentences):
        own = pieces[first : first + len(sentence)]
        first += len(sentence)
        ends = np.cumsum([0, *map(len, own)])
        for begin, end in _cuts(ends, room):
            marks = np.full(ends[end] - ends[begin], -1, np.int32)
            marks[ends[begin:end] - ends[begin]] = np.arange(begin, end)
            ids += [[special.cls], *own[begin:end], [special.sep]]
            words += [[-1], marks, [-1]]
            lengths.append(len(marks) + 2)
            numbers.append(number)
    joined = [np.concatenate([*parts, np.zeros(0, np.int32)]).astype(np.int32) for parts in (ids, words)]
    return Windows(joined[0], np.array(lengths, np.int32), joined[1], np.array(numbers, np.int32))


def _cuts(ends: np.ndarray, room: int) -> Iterator[tuple[int, int]]:
    """Yields (first word, end) of the windows of a sentence; `ends` [words + 1] is the number of pieces
    before each word."""
    begin, count = 0, len(ends) - 1
    while begin < count:
        end = int(np.searchsorted(ends, ends[begin] + room, "right")) - 1
        yield begin, end
        if end >= count:
            return
        begin = max(int(np.searchsorted(ends, ends[end] - room // 4)), begin + 1)


# -----------------------------------------------------------------------------------------------------------
# Entities in text


def entities(sentence: Sentence, tags: Sequence[str], chances: Sequence[float], scheme: str) -> list[dict]:
    """Returns the entities of a sentence for output: {type, text, start, end, probability}.

    Start and end are characters of its text; without a text, of the words joined with spaces. The probability
    is the lowest one of the words.
    """
    text, offsets = sentence.text, sentence.offsets
    if text is None:
        text = " ".join(sentence.words)
        ends = np.cumsum([len(word) + 1 for word in sentence.words])
        offsets = [(int(end) - len(word) - 1, int(end) - 1) for word, end in zip(sentence.words, ends)]
    found = []
    for kind, first, last in spans(tags, WORDS if scheme == WORDS else None):
        start, end = offsets[first][0], offsets[last - 1][1]
        probability = float(min(chances[first:last]))
        found.append(
            {"type": kind, "text": text[start:end], "start": start, "end": end, "probability": probability}
        )
    return found


def entities_json(found: Sequence[dict]) -> str:
    """Returns entities as a cell of a table: JSON, with probabilities of four digits."""
    rounded = [{**one, "probability": round(one["probability"], 4)} for one in found]
    return json.dumps(rounded, ensure_ascii=False)
