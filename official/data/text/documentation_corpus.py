"""Corpus of English prose from software: the language reference, docstrings and documentation of packages.

scripts/quickstart.sh trains on it without a download: 3,226 installed modules give 64,724 sentences (0.83
million words) to train on and 80 documents to evaluate on, in 21 s on one core.

Sources are parsed, never imported. A document is the prose of one module, of one page of documentation or of
one topic of the language reference, as a list of sentences. Repeated sentences are dropped, before documents
are split into training and evaluation, and so are evaluation sentences that share a run of words with the
training text.
"""

import ast
import hashlib
import importlib.util
import inspect
import itertools
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

_SKIPPED_FOLDERS = set("site-packages dist-packages test tests __pycache__ _api include node_modules".split())
_PAGES = (".md", ".rst", ".txt")
_DOCUMENTATION = {"doc", "docs"}  # folders whose .txt files are pages
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_MIN_SENTENCES = 3  # minimum of a document
_SHARED_WORDS = 8  # consecutive words that an evaluation sentence may not share with the training text
Documents = list[list[str]]


def build_corpus(sources: Iterable[str], eval_share: float) -> tuple[Documents, Documents, dict[str, int]]:
    """Collects, cleans, deduplicates and splits the text of sources.

    Args:
      sources: LANGUAGE_REFERENCE, STANDARD_LIBRARY, names of installed packages, or folders (paths with a
        separator), including their documentation.
      eval_share: share of held-out documents, in (0, 1); chosen by a hash of their text.

    Returns:
      Documents to train on, documents to evaluate on, and counts; the same for the same installed packages.

    Raises:
      ConfigError: for a source that is not installed.
    """
    # Counts of found and dropped documents and sentences.
    found = ("modules", "unparsable_modules", "sentences_found")
    left_out = ("repeated_sentences", "repeated_documents", "short_documents", "shared_with_training")
    counts = dict.fromkeys(found + left_out, 0)
    train, evaluation, documents = Documents(), Documents(), Documents()
    for texts in itertools.chain.from_iterable(_texts_of(source, counts) for source in sources):
        documents.append([sentence for text in texts for sentence in prose_sentences(text)])
    counts["modules"], counts["sentences_found"] = len(documents), sum(map(len, documents))
    for document in _without_repetitions(documents, counts):
        text = "\n".join(" ".join(_words(sentence)) for sentence in document)
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        (evaluation if digest < eval_share * 2**32 else train).append(document)
    seen = set().union(*(_runs(sentence) for document in train for sentence in document))
    kept = [[each for each in document if seen.isdisjoint(_runs(each))] for document in evaluation]
    counts["shared_with_training"] = sum(map(len, evaluation)) - sum(map(len, kept))
    return train, [document for document in kept if len(document) >= _MIN_SENTENCES], counts


# ------------------------------------------------------------------------------------------------------------
# Sources


def _texts_of(source: str, counts: dict[str, int]) -> Iterator[list[str]]:
    """Yields the texts of each document of a source: the docstrings of a module, its classes and functions,
    from top to bottom, or a page."""
    folder = sysconfig.get_paths()["stdlib"]
    if source == LANGUAGE_REFERENCE:
        try:
            from pydoc_data.topics import topics
        except ImportError:
            leave = f"Leave {LANGUAGE_REFERENCE} out of --sources."
            raise ConfigError(f"--sources: this Python has no pydoc_data. {leave}") from None
        yield from ([topics[name]] for name in sorted(topics))
        return
    pages: tuple[str, ...] = ()
    if os.sep in source:
        folder, pages = source, _PAGES
        if not os.path.isdir(folder):
            raise ConfigError(f"--sources: the folder {source} does not exist.")
    elif source != STANDARD_LIBRARY:
        spec = importlib.util.find_spec(source) if source.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            allowed = f"{LANGUAGE_REFERENCE}, {STANDARD_LIBRARY}, installed packages, and folders as ./NAME"
            raise ConfigError(f"--sources: no package {source!r} is installed. Allowed: {allowed}.")
        folder = list(spec.submodule_search_locations)[0]
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
        parts = os.path.relpath(parent, folder).split(os.sep)
        for name in sorted(files):
            path, (stem, ending) = os.path.join(parent, name), os.path.splitext(name)
            if ending == ".py" and not stem.endswith("_test"):
                texts = _docstrings(path)
                if texts is None:
                    counts["unparsable_modules"] += 1
                else:
                    yield texts
            elif ending in pages and (ending != ".txt" or not _DOCUMENTATION.isdisjoint(parts)):
                with open(path, encoding="utf-8", errors="replace") as file:
                    yield [file.read()]


def _docstrings(path: str) -> list[str] | None:
    """Returns the docstrings of a module in order; None if it cannot be parsed."""
    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escape sequences in the sources
            tree = ast.parse(file.read())
        nodes = [node for node in ast.walk(tree) if isinstance(node, _WITH_DOCSTRING)]
        nodes.sort(key=lambda node: getattr(node, "lineno", 0))
        return list(filter(None, map(ast.get_docstring, nodes)))
    except (SyntaxError, ValueError, OSError, RecursionError):
        return None


# ------------------------------------------------------------------------------------------------------------
# Prose

_FENCE = re.compile(r"^\s*```.*?(^\s*```\s*$|\Z)", re.MULTILINE | re.DOTALL)
_RULE = re.compile(r"^\s*[-=*~^#+|_]{3,}[-=*~^#+| ]*$")
# Fields, names: text, bullets, numbers.
_ENTRY = re.compile(r"^\s*(:\w+( [\w.]+)*:|[\w*`]+( ?\([^)]*\))?:|[-*+•]|\(?\d+[.)])\s+(?=\S)")
# Boundaries of paragraphs: blank lines, `Args:`, NumPy's `name : type`, doctests, directives and rules.
_BOUNDARY = re.compile(r"\s*$|\s*[\w ]+:\s*$|\s*[\w*., ]+ : |\s*(>>>|\.\.)|" + _RULE.pattern)
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
    sentences: list[str] = []
    for paragraph in filter(None, _paragraphs(text.split("\n"))):
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
        sentences += filter(is_prose, split_sentences(paragraph))
    return sentences


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Joins lines to paragraphs. Each list item or entry is a paragraph; headings (the line above a rule) and
    code after `::` are left out."""
    paragraph: list[str] = []
    literal_indent = None
    for line in [*lines, ""]:
        indent = len(line) - len(line.lstrip())
        if literal_indent is not None and line.strip():
            if indent > literal_indent:
                continue
            literal_indent = None
        if _BOUNDARY.match(line):
            if len(paragraph) != 1 or not _RULE.match(line):
                yield " ".join(paragraph)
            paragraph = []
            continue
        if _ENTRY.match(line):
            yield " ".join(paragraph)
            paragraph, line = [], _ENTRY.sub("", line)
        if line.rstrip().endswith("::"):
            literal_indent, line = indent, line.rstrip()[:-1]
        paragraph.append(line.strip())


def is_prose(sentence: str) -> bool:
    """Tells whether a sentence begins and ends like one and consists mostly of words."""
    parts = sentence.split()
    if not 5 <= len(parts) <= 80 or not _SENTENCE.match(sentence) or _NOT_PROSE.search(sentence):
        return False
    return sum(1 for part in parts if _WORD.match(part)) >= 0.75 * len(parts)


# ------------------------------------------------------------------------------------------------------------
# Repetitions


def _words(sentence: str) -> tuple[str, ...]:
    """Returns a sentence's plain words in lower case, without names of parameters, numbers and punctuation,
    for comparisons."""
    return tuple(part.strip("\"'().,;:!?“”‘’").lower() for part in sentence.split() if _WORD.match(part))


def _without_repetitions(documents: list[list[str]], counts: dict[str, int]) -> Iterator[list[str]]:
    """Drops repeated documents, then repeated sentences, then documents that are too short."""
    seen_documents, seen_sentences = set(), set()
    for document in documents:
        signature = tuple(map(_words, document))
        if document and signature in seen_documents:
            counts["repeated_documents"] += 1
            continue
        seen_documents.add(signature)
        kept = []
        for sentence, words in zip(document, signature):
            if words not in seen_sentences:
                kept.append(sentence)
                seen_sentences.add(words)
        counts["repeated_sentences"] += len(document) - len(kept)
        if len(kept) >= _MIN_SENTENCES:
            yield kept
        else:
            counts["short_documents"] += 1


def _runs(sentence: str) -> set[int]:
    words = _words(sentence)
    return {hash(words[start : start + _SHARED_WORDS]) for start in range(len(words) - _SHARED_WORDS + 1)}
