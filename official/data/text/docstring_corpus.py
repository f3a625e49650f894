"""English prose that is on every machine with Python: the language reference and docstrings of packages.

What it earns: scripts/quickstart.sh trains on real text without a download. 3,226 modules give 64,724
sentences (0.83 million words) to train on and 80 documents to evaluate on, in 21 s of one core.

Sources are parsed, never imported. A document is the prose of one module or of one topic of the language
reference, one sentence per element. Sentences that occur twice are dropped everywhere, before documents are
split into training and evaluation, and so are evaluation sentences that share a run of words with the
training text.
"""

import ast
import dataclasses
import hashlib
import importlib.util
import inspect
import os
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator

from official.data.text.sentences import split_sentences
from official.io.errors import ConfigError

STANDARD_LIBRARY = "stdlib"
LANGUAGE_REFERENCE = "topics"

_SKIPPED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "__pycache__",
    "_api",
    "include",
    "node_modules",
}
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_MIN_SENTENCES = 3  # of a document
_MIN_SENTENCE_WORDS, _MAX_SENTENCE_WORDS = 5, 80  # words of a sentence
_MIN_WORD_SHARE = 0.75  # share of a sentence's parts that are plain words
_SHARED_WORDS = (
    8  # words that an evaluation sentence may not have in common, in a row, with the training text
)


@dataclasses.dataclass
class CorpusCounts:
    """Counts of what was found in the sources, and of what was left out."""

    modules: int = 0
    unparsable_modules: int = 0
    sentences_found: int = 0
    repeated_sentences: int = 0
    repeated_documents: int = 0
    short_documents: int = 0
    shared_with_training: int = 0


def build_corpus(
    sources: Iterable[str], eval_share: float, counts: CorpusCounts
) -> tuple[list[list[str]], list[list[str]]]:
    """Collects, cleans, deduplicates and splits the text of sources.

    Args:
      sources: LANGUAGE_REFERENCE, STANDARD_LIBRARY or names of installed packages.
      eval_share: share of the documents that are held out, in (0, 1); chosen by a hash of their text.
      counts: is filled in.

    Returns:
      Documents to train on, and documents to evaluate on; the same lists for the same installed packages.

    Raises:
      ConfigError: for a source that is not installed.
    """
    documents = [document for source in sources for document in _documents_of(source, counts)]
    train: list[list[str]] = []
    evaluation: list[list[str]] = []
    for document in _without_repetitions(documents, counts):
        (evaluation if _is_held_out(document, eval_share) else train).append(document)
    return train, _without_shared_runs(evaluation, train, counts)


# ------------------------------------------------------------------------------------------------------------
# Sources


def _documents_of(source: str, counts: CorpusCounts) -> Iterator[list[str]]:
    """Yields the documents of a source, in the order of its file names."""
    if source == LANGUAGE_REFERENCE:
        texts: Iterable[list[str]] = ([text] for text in _topics())
    else:
        texts = _docstrings_of_modules(_source_folder(source), counts)
    for docstrings in texts:
        counts.modules += 1
        document = [sentence for docstring in docstrings for sentence in prose_sentences(docstring)]
        counts.sentences_found += len(document)
        yield document


def _topics() -> list[str]:
    """Returns the texts of Python's language reference, which `help()` shows."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ConfigError(
            f"--sources: this Python has no pydoc_data. Leave {LANGUAGE_REFERENCE} out of --sources."
        ) from None
    return [topics[name] for name in sorted(topics)]


def _source_folder(source: str) -> str:
    if source == STANDARD_LIBRARY:
        return sysconfig.get_paths()["stdlib"]
    spec = importlib.util.find_spec(source) if source.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"--sources: no package {source!r} is installed. Allowed: {LANGUAGE_REFERENCE},"
            f" {STANDARD_LIBRARY} and installed packages."
        )
    return list(spec.submodule_search_locations)[0]


def _docstrings_of_modules(folder: str, counts: CorpusCounts) -> Iterator[list[str]]:
    """Yields the docstrings of each module, of its classes and of its functions, from top to bottom."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
        for name in sorted(files):
            if not name.endswith(".py") or name.endswith("_test.py"):
                continue
            try:
                with tokenize.open(os.path.join(parent, name)) as file, warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of other people's escape sequences
                    tree = ast.parse(file.read())
                nodes = [node for node in ast.walk(tree) if isinstance(node, _WITH_DOCSTRING)]
                nodes.sort(key=lambda node: getattr(node, "lineno", 0))
                docstrings = list(filter(None, map(ast.get_docstring, nodes)))
            except (SyntaxError, ValueError, OSError, RecursionError):
                counts.unparsable_modules += 1
            else:
                yield docstrings


# ------------------------------------------------------------------------------------------------------------
# Prose

_FENCE = re.compile(r"^\s*```.*?(^\s*```\s*$|\Z)", re.MULTILINE | re.DOTALL)
_RULE = re.compile(r"^\s*[-=*~^#+|_]{3,}[-=*~^#+| ]*$")
_ENTRY = re.compile(
    r"^\s*(:\w+( [\w.]+)*:|[\w*`]+( ?\([^)]*\))?:|[-*+•]|\(?\d+[.)])\s+(?=\S)"
)  # fields, names: text, bullets, numbers
_BOUNDARIES = (  # lines between paragraphs
    re.compile(r"\s*$"),
    re.compile(r"\s*[\w ]+:\s*$"),  # Args:
    re.compile(r"\s*[\w*., ]+ : "),  # of NumPy's tables: name : type
    re.compile(r"\s*(>>>|\.\.)"),  # doctests, directives
    _RULE,
)
_MARKUP = (
    (re.compile(r"\[([^\]\n]+)\]\([^)\n]*\)"), r"\1"),  # [text](address)
    (re.compile(r":[\w:]+:`~?[!.]?([^`<]+?)\s*(<[^`]*>)?`"), r"\1"),  # :class:`text`
    (re.compile(r"``?([^`]+)``?_{0,2}"), r"\1"),
    (re.compile(r"\*\*?(\w[^*\n]*?)\*\*?"), r"\1"),
    (re.compile(r"\s+"), " "),
)
_WORD = re.compile(r"""^["'(“‘]*[A-Za-z]+(['’-][A-Za-z]+)*[.,;:!?)"'”’]*$""")
_SENTENCE = re.compile(r"""^["“(]?[A-Za-z].*[.!?:]["”)]?$""")
_NOT_PROSE = re.compile(r"https?:|>>>|::|\\|[{}<>=|$^~@]|\w\(.*,.*\)")


def prose_sentences(docstring: str) -> list[str]:
    """Returns the sentences of a docstring that are English prose, without mark-up, code, tables and
    headings."""
    text = _FENCE.sub("\n\n", inspect.cleandoc(docstring))
    return [
        sentence
        for paragraph in _paragraphs(text.split("\n"))
        for sentence in split_sentences(paragraph)
        if is_prose(sentence)
    ]


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Joins lines to paragraphs; list items and entries are paragraphs of their own, code after `::` is left
    out."""
    paragraph: list[str] = []
    literal_indent = None
    for line in [*lines, ""]:
        indent = len(line) - len(line.lstrip())
        if literal_indent is not None and line.strip():
            if indent > literal_indent:
                continue
            literal_indent = None
        if any(pattern.match(line) for pattern in _BOUNDARIES):
            yield from _finished(paragraph, heading=bool(_RULE.match(line)))
            paragraph = []
            continue
        if _ENTRY.match(line):
            yield from _finished(paragraph)
            paragraph, line = [], _ENTRY.sub("", line)
        if line.rstrip().endswith("::"):
            literal_indent, line = indent, line.rstrip()[:-1]
        paragraph.append(line.strip())


def _finished(paragraph: list[str], heading: bool = False) -> Iterator[str]:
    """Yields a paragraph without mark-up; the line above a rule is a heading and none."""
    text = " ".join(paragraph)
    if not text or (heading and len(paragraph) == 1):
        return
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    yield text


def is_prose(sentence: str) -> bool:
    """Says whether a sentence starts and ends like one and consists of words for the most part."""
    parts = sentence.split()
    if (
        not _MIN_SENTENCE_WORDS <= len(parts) <= _MAX_SENTENCE_WORDS
        or not _SENTENCE.match(sentence)
        or _NOT_PROSE.search(sentence)
    ):
        return False
    return sum(1 for part in parts if _WORD.match(part)) >= _MIN_WORD_SHARE * len(parts)


# ------------------------------------------------------------------------------------------------------------
# Repetitions


def _words(sentence: str) -> tuple[str, ...]:
    """Returns a sentence's plain words in lower case: names of parameters, numbers and punctuation make no
    difference."""
    return tuple(part.strip("\"'().,;:!?“”‘’").lower() for part in sentence.split() if _WORD.match(part))


def _without_repetitions(documents: list[list[str]], counts: CorpusCounts) -> Iterator[list[str]]:
    """Drops documents that were there before, then sentences that were, then documents that are too short."""
    seen_documents, seen_sentences = set(), set()
    for document in documents:
        signature = tuple(map(_words, document))
        if document and signature in seen_documents:
            counts.repeated_documents += 1
            continue
        seen_documents.add(signature)
        kept = []
        for sentence, words in zip(document, signature):
            if words not in seen_sentences:
                kept.append(sentence)
                seen_sentences.add(words)
        counts.repeated_sentences += len(document) - len(kept)
        if len(kept) >= _MIN_SENTENCES:
            yield kept
        else:
            counts.short_documents += 1


def _is_held_out(document: list[str], share: float) -> bool:
    text = "\n".join(" ".join(_words(sentence)) for sentence in document)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") < share * 2**32


def _runs(sentence: str) -> set[int]:
    words = _words(sentence)
    return {hash(words[start : start + _SHARED_WORDS]) for start in range(len(words) - _SHARED_WORDS + 1)}


def _without_shared_runs(
    evaluation: list[list[str]], train: list[list[str]], counts: CorpusCounts
) -> list[list[str]]:
    """Drops evaluation sentences that have _SHARED_WORDS in a row in common with a training sentence."""
    seen = set().union(*(_runs(sentence) for document in train for sentence in document))
    kept = [
        [sentence for sentence in document if seen.isdisjoint(_runs(sentence))] for document in evaluation
    ]
    counts.shared_with_training = sum(map(len, evaluation)) - sum(map(len, kept))
    return [document for document in kept if len(document) >= _MIN_SENTENCES]
