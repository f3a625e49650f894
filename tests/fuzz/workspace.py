"""Files that cases copy: a tiny model, text, records, questions, rows, runs, checkpoints of all formats."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import string
import sys
from collections.abc import Callable, Iterable
from unittest import mock

from tests.fuzz import processes
from tests.fuzz.commands import PARTS, WORDS

_SIZES = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
_SIZES |= dict(max_position_embeddings=32, hidden_act="gelu", hidden_dropout_prob=0.1)
_WORDS = "one two three was first here there who where is the sea s old and stone".split()
_LABELS = ("entailment", "not_entailment")


def make(folder: pathlib.Path, wanted: set[str], run_all: Callable[..., Iterable]) -> None:
    """Writes the files, and makes the other parts of `wanted` by the project's own commands.

    Args:
      folder: where, new.
      wanted: parts.
      run_all: as `map`, runs `make_part` of several parts at a time.
    """
    write_files(folder)
    wanted = wanted | ({"runs/squad"} if "cache" in wanted else set())
    needs = {part: set(row.get("needs", "").split()) for part, row in PARTS.items()}
    for part in reversed(PARTS):
        wanted = wanted | (needs[part] if part in wanted else set())
    made: set[str] = set()
    while ready := [part for part in PARTS if part in wanted - made and needs[part] <= made]:
        for error in run_all(make_part, [folder] * len(ready), ready):
            if error:
                raise RuntimeError(error)
        made.update(ready)
    if "unfinished" in wanted:
        processes.in_child(lambda: _interrupt_creation(folder))


def make_part(folder: pathlib.Path, part: str) -> str:
    """Makes a part. Returns why that failed, or ""."""
    script, *arguments = PARTS[part]["run"].split()
    ended = processes.run(script, tuple(arguments), folder)
    return "" if ended.code == 0 else f"{part} ended with {ended.code}:\n{ended.errors[-2000:]}"


def copy(base: pathlib.Path, part: str, folder: pathlib.Path) -> None:
    """Copies a part of the workspace."""
    (folder / part).parent.mkdir(parents=True, exist_ok=True)
    (shutil.copytree if (base / part).is_dir() else shutil.copyfile)(base / part, folder / part)


def write_files(folder: pathlib.Path) -> None:
    """Writes what needs no model."""
    rng, letters = random.Random(1), string.ascii_lowercase
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*specials, *letters, *(f"##{letter}" for letter in letters), *_WORDS, ".", "?"]
    words = list(dict.fromkeys(words))
    pretraining = WORDS["pretraining"].split()
    documents = [[_sentence(rng) for _ in range(4)] for _ in range(9)]
    wiki = [{"title": f"t{number}", "text": "\n".join(lines)} for number, lines in enumerate(documents[5:])]
    names = [f"dev-{number}" for number in range(4)]
    texts = {
        "vocab.txt": words,
        "bert.json": [json.dumps({"vocab_size": len(words), **_SIZES})],
        "text/plain.txt": ["\n\n".join("\n".join(lines) for lines in documents[:5])],
        "text/wiki.json": [json.dumps(document) for document in wiki],
        "run.flags": [*pretraining, "--model_dir=new", "--distribution_strategy=one_device"],
        "context.txt": [" ".join(_sentence(rng) for _ in range(4))],
        "squad/train.json": [json.dumps(_squad(rng, "train", 3))],
        "squad/dev.json": [json.dumps(_squad(rng, "dev", 2))],
        "predictions.json": [json.dumps({name: rng.choice(("one", "the sea", "")) for name in names})],
        "na.json": [json.dumps({name: rng.random() for name in names})],
        "glue/RTE/train.tsv": _rows(rng, 12, is_labelled=True),
        "glue/RTE/dev.tsv": _rows(rng, 6, is_labelled=True),
        "glue/RTE/test.tsv": _rows(rng, 5, is_labelled=False),
        "submission/RTE.tsv": ["index\tprediction", *(f"{row}\t{rng.choice(_LABELS)}" for row in range(5))],
    }
    for name, lines in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randrange(4, 9))).capitalize() + "."


def _squad(rng: random.Random, split: str, articles: int) -> dict:
    """Returns SQuAD's JSON: two questions about the one context of each article."""
    found = []
    for article in range(articles):
        context = " ".join(_sentence(rng) for _ in range(3))
        questions = []
        for number in (2 * article, 2 * article + 1):
            answer = rng.choice(context.split())
            found_at = {"text": answer, "answer_start": context.index(answer)}
            question = {"id": f"{split}-{number}", "question": f"Who was {rng.choice(_WORDS)}?"}
            questions.append({**question, "is_impossible": False, "answers": [found_at]})
        found.append({"title": f"t{article}", "paragraphs": [{"context": context, "qas": questions}]})
    return {"version": "1.1", "data": found}


def _rows(rng: random.Random, count: int, is_labelled: bool) -> list[str]:
    """Returns the lines of a table of GLUE's."""
    lines = ["index\tsentence1\tsentence2" + "\tlabel" * is_labelled]
    for number in range(count):
        cells = [str(number), _sentence(rng), _sentence(rng), *[rng.choice(_LABELS)] * is_labelled]
        lines.append("\t".join(cells))
    return lines


def _interrupt_creation(folder: pathlib.Path) -> None:
    """Leaves the files of a creation that is interrupted before it ends."""
    from official.cli import text as text_lib
    from official.data.pretraining import creation

    os.chdir(folder)
    arguments = ["create_pretraining_data.py", *WORDS["creation"].split(), "--output_dir=unfinished"]
    with (
        mock.patch.object(sys, "argv", arguments),
        mock.patch.object(creation, "_manifest", side_effect=KeyboardInterrupt),
        contextlib.suppress(KeyboardInterrupt),
    ):
        text_lib.run_create()
