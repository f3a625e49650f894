"""Prose of docstrings and of pages: the corpora of the quickstart and of the speedrun."""

import pathlib

from official.data.text import documentation_corpus


def test_prose_is_taken_from_a_docstring_without_code_and_mark_up():
    docstring = pathlib.Path(__file__).with_name("docstring.txt").read_text()
    assert documentation_corpus.prose_sentences(docstring) == [
        "Adds x to the other operand of this operation.",
        "See package.Adder and the guide for the details of what it does.",
        "The number of times that the operand is added.",
        "An optional dimension along which the sum is taken.",
        "A bullet is a paragraph of its own.",
    ]


def test_repetitions_and_text_of_the_training_set_are_dropped(tmp_path, monkeypatch):
    """Copies before the split; from the evaluation set what shares a run of words with training text."""
    numbers = "one two three four five six seven eight nine ten eleven twelve".split()
    shared = "and so the very same words come again in many of the texts"
    modules = {"__init__": [], "broken": ['"""(']}
    for n in range(144):
        name = f"{numbers[n % 12]} {numbers[n // 12]}"
        sentences = [f"The {name} {part} words are here." for part in ("many", "some", "few")]
        modules[f"a{n:03d}"] = modules[f"b{n:03d}"] = [*sentences, f"Here {name} says {shared}."]
        modules[f"c{n:03d}"] = [*sentences, f"Only this one about {numbers[n % 12]} is new in here."]
    folder = tmp_path / "made_for_the_test"
    folder.mkdir()
    for module, sentences in modules.items():
        text = f'"""{" ".join(sentences)}"""\nraise SystemExit("imported")\n'
        (folder / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    train, evaluation, counts = made = documentation_corpus.build_corpus(["made_for_the_test"], 0.2)
    names = ("repeated_documents", "unparsable_modules", "short_documents")
    assert [counts[name] for name in names] == [144, 1, 145]
    assert len(train) + len(evaluation) == 144 and 5 < len(evaluation) < 60
    sentences = [sentence for document in train + evaluation for sentence in document]
    assert len(sentences) == len(set(sentences))
    assert counts["shared_with_training"] == len(evaluation)
    assert {len(document) for document in train} == {4} and {len(document) for document in evaluation} == {3}
    assert made == documentation_corpus.build_corpus(["made_for_the_test"], 0.2)


def test_pages_of_a_folder_are_documents_and_text_files_only_in_documentation(tmp_path):
    """`.txt` files elsewhere are lists, licenses and data."""
    sentences = [
        f"This page says {word} of what the reader wants to know." for word in ("one", "two", "three")
    ]
    heading = "Some heading\n============\n\n"
    pages = {
        "docs/a.rst": heading,
        "b.md": "# A heading\n\n```\nThis is code of the page, no prose at all.\n```\n\n",
    }
    pages |= {"docs/c.txt": "", "names.txt": "", "docs/d.html": "", "tests/e.md": ""}
    for name, start in pages.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(
            start + "\n\n".join(f"{each[:-1]} in {pathlib.Path(name).stem}." for each in sentences)
        )
    train, evaluation, counts = documentation_corpus.build_corpus([f"{tmp_path}/"], 0.01)
    found = {document[0].split()[-1] for document in train + evaluation}
    assert found == {"a.", "b.", "c."} and counts["modules"] == 3
    assert all(len(document) == 3 for document in train + evaluation)
