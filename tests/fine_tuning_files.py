"""Small files of fine-tuning that can be learned, and configurations of runs on them."""

import json
import pathlib

import numpy as np
import pytest

from official import config as config_lib
from tests.fixtures import TINY

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] red blue green one two three four five is the ball who what where . ? box"
    " sky sea sun hat".split()
)
VOCABULARY = "\n".join([*WORDS, *map("word{}".format, range(TINY["vocab_size"] - len(WORDS)))]) + "\n"
COLOURS = ("red", "blue", "green")


@pytest.fixture(name="vocab_file")
def fixture_vocab_file(tmp_path):
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    return str(tmp_path / "vocab.txt")


@pytest.fixture(name="make")
def fixture_make(tmp_path, vocab_file):
    """Returns a function that builds a fine-tuning configuration."""

    def make(task: str, model_dir: str = "run", **settings):
        model = {**TINY, "num_hidden_layers": 1, "max_position_embeddings": 48}
        defaults = dict(task=task, model=model, model_dir=str(tmp_path / model_dir), vocab_file=vocab_file)
        defaults |= dict(max_seq_length=48, train_batch_size=8, eval_batch_size=8, learning_rate=5e-3)
        defaults |= dict(steps_per_loop=5, distribution_strategy="one_device", decay_from="warmup_end")
        defaults |= dict(do_eval=True)
        return config_lib.build_config([("test", {**defaults, **settings})])

    return make


def synthetic_tasks(make, **settings) -> list[config_lib.Config]:
    """Returns configurations of an epoch of made-up rows, one for SQuAD and one for STS-B."""
    shared = dict(use_synthetic_data=True, do_eval=False, vocab_file=None, num_train_epochs=1, **settings)
    return [
        make("squad", model_dir="squad", **shared),
        make("glue", model_dir="glue", glue_task="stsb", **shared),
    ]


def squad_json(count: int, seed: int, impossible: bool = False) -> dict:
    """Questions about colours: "what is the box ?" is answered by the colour before the word."""
    generator = np.random.default_rng(seed)
    things = ["ball", "box", "sky", "sea", "sun", "hat"]
    paragraphs = []
    for number in range(count):
        chosen = generator.permutation(things)[:3]
        colours = generator.choice(COLOURS, 3)
        context = " . ".join(f"the {colour} {thing}" for colour, thing in zip(colours, chosen))
        absent = impossible and number % 3 == 0 and things[0] not in chosen
        thing, colour = (things[0], "") if absent else (chosen[0], str(colours[0]))
        answers = [] if absent else [{"text": colour, "answer_start": context.index(f"{colour} {thing}")}]
        question = {"id": f"q{number}", "question": f"what is the {thing} ?", "answers": answers}
        question |= {"is_impossible": absent} if impossible else {}
        paragraphs.append({"context": context, "qas": [question]})
    return {"version": "v2.0" if impossible else "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}


def squad_settings(folder: pathlib.Path, train: dict, dev: dict) -> dict:
    """Writes SQuAD files, of what `squad_json` returns, and returns the settings of a run on them."""
    for name, data in (("train", train), ("dev", dev)):
        (folder / f"{name}.json").write_text(json.dumps(data))
    paths = dict(train_file="train.json", predict_file="dev.json", cache_dir="cache")
    files = {name: str(folder / path) for name, path in paths.items()}
    return dict(files, max_query_length=8, version_2_with_negative=train["version"] == "v2.0")


@pytest.fixture(name="squad")
def fixture_squad(tmp_path, make):
    """Returns a function that builds a configuration with small SQuAD files."""

    def squad(impossible=False, **settings):
        files = squad_settings(tmp_path, squad_json(64, 1, impossible), squad_json(20, 2, impossible))
        return make("squad", **{**files, "num_train_epochs": 2, **settings})

    return squad


@pytest.fixture(name="glue")
def fixture_glue(tmp_path, make):
    """Returns a function that builds a configuration of an epoch of a task of GLUE, with small files of
    {split: rows}."""
    from tests.data.glue.test_glue_data import find_task, write_split  # late: needs what only tests install

    def glue(name, splits=None, **settings):
        for split, rows in (splits or {}).items():
            write_split(tmp_path / "glue", find_task(name), split, rows=rows)
        own = dict(glue_task=name, data_dir=str(tmp_path / "glue"), num_train_epochs=1)
        return make("glue", **{**own, **settings})

    return glue
