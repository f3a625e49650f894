"""What the cases copy from: a tiny model, text, records, questions, rows, runs, all formats."""

import contextlib
import json
import os
import random
import shutil
import string
import sys
from unittest import mock

from fuzzing import definitions, made_files, processes

_SIZES = dict(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=32,
)
_LETTERS = string.ascii_lowercase
_WORDS = (
    "one",
    "two",
    "three",
    "was",
    "first",
    "here",
    "there",
    "who",
    "where",
    "is",
    "the",
    "sea",
    "##s",
    "old",
    "and",
    "stone",
)


def write_files(folder: str) -> None:
    """Writes what needs no model."""
    rng = random.Random(1)
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *_LETTERS,
        *(f"##{letter}" for letter in _LETTERS if letter != "s"),
        *_WORDS,
        ".",
        "?",
    ]
    _write(folder, "vocab.txt", "".join(f"{word}\n" for word in words))
    _write(
        folder,
        "bert.json",
        json.dumps({"vocab_size": len(words), **_SIZES, "hidden_act": "gelu", "hidden_dropout_prob": 0.1}),
    )
    _write(
        folder,
        "text/plain.txt",
        "\n\n".join("\n".join(_sentence(rng) for _ in range(4)) for _ in range(5)) + "\n",
    )
    _write(
        folder,
        "text/wiki.json",
        "".join(
            json.dumps({"title": f"t{number}", "text": "\n".join(_sentence(rng) for _ in range(4))}) + "\n"
            for number in range(4)
        ),
    )
    _write_questions(folder, rng)
    _write(
        folder,
        "run.flags",
        "".join(
            f"{flag}\n"
            for flag in (*definitions.PRETRAINING, "--model_dir=new", "--distribution_strategy=one_device")
        ),
    )


def _write_questions(folder: str, rng: random.Random) -> None:
    """Writes what fine-tuned models read, and what is scored of them."""
    _write(folder, "context.txt", " ".join(_sentence(rng) for _ in range(4)) + "\n")
    for part, articles in (("train", 3), ("dev", 2)):
        _write(folder, f"squad/{part}.json", json.dumps(_squad(rng, part, articles)))
    _write(
        folder,
        "predictions.json",
        json.dumps({f"dev-{number}": rng.choice(("one", "the sea", "")) for number in range(4)}),
    )
    _write(folder, "na.json", json.dumps({f"dev-{number}": rng.random() for number in range(4)}))
    for split, count in (("train", 12), ("dev", 6), ("test", 5)):
        _write(folder, f"glue/RTE/{split}.tsv", _rows(rng, split, count))
    _write(
        folder,
        "submission/RTE.tsv",
        "index\tprediction\n" + "".join(f"{number}\t{rng.choice(_LABELS)}\n" for number in range(5)),
    )


_LABELS = ("entailment", "not_entailment")


def _write(folder: str, name: str, text: str) -> None:
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _sentence(rng: random.Random) -> str:
    return (
        " ".join(rng.choice(_WORDS).removeprefix("##") for _ in range(rng.randrange(4, 9))).capitalize() + "."
    )


def _squad(rng: random.Random, part: str, articles: int) -> dict:
    found = []
    for article in range(articles):
        context = " ".join(_sentence(rng) for _ in range(3))
        questions = []
        for number in (2 * article, 2 * article + 1):
            answer = rng.choice(context.split())
            text = f"Who was {rng.choice(_WORDS)}?"
            questions.append(made_files.Question(f"{part}-{number}", text, answer, context.index(answer)))
        found.append((f"t{article}", context, questions))
    return made_files.squad(found)


def _rows(rng: random.Random, split: str, count: int) -> str:
    labels = () if split == "test" else ("label",)
    rows = [
        (str(number), _sentence(rng), _sentence(rng), *[rng.choice(_LABELS)] * len(labels))
        for number in range(count)
    ]
    return made_files.table(("index", "sentence1", "sentence2", *labels), rows)


def make(folder: str, server: "processes.Server", wanted: set[str]) -> None:
    """Writes the files, and makes the other parts of `wanted` by the project's own commands.

    Raises:
      RuntimeError: where a command fails on what is not damaged.
    """
    os.makedirs(folder)
    write_files(folder)
    if any(part.startswith("formats/") for part in wanted):
        wanted = wanted | {"runs/pretrain"}
    if wanted & {"runs/pretrain", "runs/again"}:
        wanted = wanted | {"records"}
    if wanted & {"runs/packed", "packed"}:
        wanted = wanted | {"records"}
    creation = "scripts/create_pretraining_data.py"
    rounds = [
        {
            "records": (creation, (*definitions.CREATION, "--output_dir=records")),
            "runs/squad": ("train.py", (*definitions.SQUAD, "--model_dir=runs/squad", "--cache_dir=cache")),
            "runs/rte": ("train.py", (*definitions.GLUE, "--model_dir=runs/rte")),
        },
        {
            "runs/pretrain": ("train.py", (*definitions.PRETRAINING, "--model_dir=runs/pretrain")),
            "runs/packed": ("train.py", (*definitions.ON_THE_FLY, "--model_dir=runs/packed")),
            "packed": (
                "scripts/pack_pretraining_data.py",
                (*definitions.PACKING, "--output_dir=packed"),
            ),
            "runs/again": ("train.py", (*definitions.PRETRAINING, "--model_dir=runs/again", "--seed=2")),
        },
        {
            f"formats/{name}": (
                "checkpoints_tools/convert_ckpt.py",
                (action, "runs/pretrain", f"--output_dir=formats/{name}"),
            )
            for name, action in definitions.ACTIONS.items()
        },
    ]
    if "cache" in wanted:
        wanted = wanted | {"runs/squad"}
    for these in rounds:
        _run_all(server, {name: command for name, command in these.items() if name in wanted}, folder)
    if "unfinished" in wanted:
        _interrupt_creation(folder)


def _run_all(server: "processes.Server", these: dict[str, tuple], folder: str) -> None:
    cases = {}
    for number, (name, (script, arguments)) in enumerate(these.items()):
        case = os.path.join(
            folder, ".made", str(number)
        )  # its terminal and output; the command itself works in the folder
        os.makedirs(case)
        cases[number] = name, case
        server.submit(number, script, arguments, folder, output=case)
    for _ in range(len(cases)):
        number, code, _ = server.next_answer()
        name, case = cases[number]
        if code != 0:
            raise RuntimeError(
                f"{name} ended with {code}:\n{processes.text_of(os.path.join(case, 'stderr'))[-2000:]}"
            )
    shutil.rmtree(os.path.join(folder, ".made"), ignore_errors=True)


def _interrupt_creation(folder: str) -> None:
    """Leaves what a creation leaves that is interrupted before it ends."""
    from official.cli import text as text_lib
    from official.data.pretraining import creation

    here = os.getcwd()
    os.chdir(folder)
    try:
        with (
            mock.patch.object(
                sys, "argv", ["create_pretraining_data.py", *definitions.CREATION, "--output_dir=unfinished"]
            ),
            mock.patch.object(creation, "_manifest", side_effect=KeyboardInterrupt),
            contextlib.suppress(KeyboardInterrupt),
        ):
            text_lib.run_create()
    finally:
        os.chdir(here)
