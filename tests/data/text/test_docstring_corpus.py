"""The quickstart's corpus: prose from docstrings."""

from official.data.text import docstring_corpus

DOCSTRING = """Adds `x` to the *other* operand of this operation.

    See :class:`~package.Adder` and [the guide](http://example.org/guide) for the
    details of what it does. For example::

        this is code and it is dropped.

    >>> add(1, 2)
    3

    ```python
    This line of code is dropped as well.
    ```

    Parameters
    ----------
    a : int, optional
        The number of times that the operand is added.

    Args:
      axis: An optional dimension along which the sum is taken. Defaults to -1.
      name: A name.

    * A bullet is a paragraph of its own.
    * x = [1, 2, 3] and y = {4: 5} are not any prose.
"""


def test_prose_is_taken_from_a_docstring_without_code_and_mark_up():
    assert docstring_corpus.prose_sentences(DOCSTRING) == [
        "Adds x to the other operand of this operation.",
        "See package.Adder and the guide for the details of what it does.",
        "The number of times that the operand is added.",
        "An optional dimension along which the sum is taken.",
        "A bullet is a paragraph of its own.",
    ]


def make_package(folder, name, modules: dict[str, list[str]]):
    (folder / name).mkdir()
    for module, sentences in modules.items():
        (folder / name / f"{module}.py").write_text(
            f'"""{" ".join(sentences)}"""\nraise SystemExit("imported")\n'
        )


def test_repetitions_are_dropped_before_the_split_and_text_of_the_training_set_from_the_evaluation_set(
    tmp_path, monkeypatch
):
    numbers = "one two three four five six seven eight nine ten eleven twelve".split()
    fresh = {
        f"m{n:03d}": [
            f"The {numbers[n % 12]} {part} {numbers[n // 12]} words here." for part in ("many", "some", "few")
        ]
        for n in range(144)
    }
    copies = {f"n{n:03d}": sentences for n, sentences in enumerate(fresh.values())}
    again = {
        f"o{n:03d}": [*sentences, f"Only this one about {numbers[n % 12]} is new in here."]
        for n, sentences in enumerate(fresh.values())
    }
    make_package(
        tmp_path, "made_for_the_test", {"__init__": [], **fresh, **copies, **again, "broken": ['"""(']}
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    train, evaluation, counts = made = docstring_corpus.build_corpus(["made_for_the_test"], 0.2)
    assert [counts[f"{name}s"] for name in ("repeated_document", "unparsable_module", "short_document")] == [
        144,
        1,
        145,
    ]
    sentences = [sentence for document in train + evaluation for sentence in document]
    assert len(sentences) == len(set(sentences)) and 5 < len(evaluation) < 60
    assert len(train) + len(evaluation) == 144
    assert made == docstring_corpus.build_corpus(["made_for_the_test"], 0.2)


def test_evaluation_sentences_that_share_a_run_of_words_with_the_training_text_are_dropped(
    tmp_path, monkeypatch
):
    shared = "and so the very same words come again in many of the texts"
    names = "one two three four five six seven eight nine ten eleven twelve".split()
    modules = {"__init__": []} | {
        name: [f"This text is {name} {part}." for part in ("alone", "here", "now")]
        + [f"Here {name} says {shared}."]
        for name in names
    }
    make_package(tmp_path, "made_to_share", modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    train, evaluation, counts = docstring_corpus.build_corpus(["made_to_share"], 0.3)
    assert train and evaluation and counts["shared_with_training"] == len(evaluation)
    assert all(len(document) == 4 for document in train) and all(
        len(document) == 3 for document in evaluation
    )
