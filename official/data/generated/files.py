"""Files of made-up data in place of those that a run reads."""

from __future__ import annotations

import atexit
import functools
import os
import tempfile

import numpy as np
from absl import logging

from official.config import Config, replaced
from official.data.generated import glue, pretraining, squad
from official.data.generated.words import Text, make_vocabulary
from official.data.glue.tasks import find_task
from official.data.pretraining.pairs import ExampleRules
from official.data.word_pieces.vocabulary import Vocabulary


def with_files(config: Config) -> Config:
    """Returns the configuration with --generated_data written to files, and their names in place of those of
    real data; without the flag as it is.

    Files of pre-training are in the memory of this process, those of fine-tuning in a folder that lasts as
    long as it. The data are a function of the seed and of the sizes.
    """
    if not config.generated_data:
        return config
    vocabulary = make_vocabulary(config.model.vocab_size, config.vocab_file)
    config = (_pretraining if config.task == "pretrain" else _fine_tuning)(config, vocabulary)
    logging.info("Generated data from seed %d in place of files", config.seed)
    return config


def _pretraining(config: Config, vocabulary: Vocabulary) -> Config:
    rules = ExampleRules(config.max_seq_length, config.max_predictions_per_seq, dupe_factor=1)
    sizes = (rules.max_seq_length, rules.max_predictions_per_seq, vocabulary.size, config.seed)
    folder = "ram://generated/" + "-".join(map(str, sizes))
    return replaced(config, input_files=pretraining.write(folder, vocabulary, rules, config.seed))


def _fine_tuning(config: Config, vocabulary: Vocabulary) -> Config:
    folder, text = _folder(), Text(vocabulary, np.random.default_rng(config.seed))
    if not config.vocab_file:
        path = os.path.join(folder, "vocab.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(vocabulary.words) + "\n")
        config = replaced(config, vocab_file=path)
    if config.task == "glue":
        task = find_task(config.glue_task or "")
        return replaced(config, data_dir=glue.write(folder, task, text))
    made = {
        flag: squad.write(os.path.join(folder, f"{split}.json"), split, text, config.version_2_with_negative)
        for flag, split in (("train_file", "train"), ("predict_file", "dev"))
    }
    return replaced(config, **made)


@functools.lru_cache(maxsize=None)  # noqa: UP033  # functools.cache is not in Python 3.8
def _cleaned_up() -> tempfile.TemporaryDirectory:
    folder = tempfile.TemporaryDirectory(prefix="generated-")
    atexit.register(folder.cleanup)
    return folder


def _folder() -> str:
    """Returns a new folder, removed when the process ends."""
    return tempfile.mkdtemp(dir=_cleaned_up().name)
