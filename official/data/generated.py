"""Generated data, in the file formats of real data."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile

import numpy as np
import tensorflow as tf
from absl import logging

from official.config import replaced
from official.config.table import Config
from official.data.glue.tasks import MAX_SCORE, GlueTask, find_task
from official.data.pretraining import examples
from official.data.pretraining.examples import ExampleRules, Examples
from official.data.records import encoding
from official.data.synthetic import draw_ids
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS, Vocabulary, load_vocabulary
from official.io.errors import ConfigError

# -----------------------------------------------------------------------------------------------------------
# Words


def make_vocabulary(size: int, vocab_file: str | None) -> Vocabulary:
    """Returns the vocabulary of a file, or a generated one.

    Args:
      size: vocab_size of the model.
      vocab_file: path of the file; None: [PAD], [UNK], [CLS], [SEP], [MASK] and word5, word6, ...

    Raises:
      ConfigError: for a file that cannot be read, and a size without room for a word.
    """
    if vocab_file:
        return load_vocabulary(vocab_file)
    if size <= len(SPECIAL_TOKENS):
        raise ConfigError(
            f"generated_data: vocab_size={size} has no room for words after {', '.join(SPECIAL_TOKENS)}."
            " Change --bert_config_file."
        )
    numbers = range(len(SPECIAL_TOKENS), size)
    return Vocabulary((*SPECIAL_TOKENS, *(f"word{number}" for number in numbers)), sha256="")


class Text:
    """Draws random text from the whole words of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary, generator: np.random.Generator):
        """Args: vocabulary: source of the words; generator: source of all draws."""
        words = [word for word in vocabulary.words if word.isalnum() and word.isascii()]
        whole = [word for word in words if word == word.lower()]
        self._words = np.array(whole or ["word"])
        self._generator = generator

    def words(self, least: int, most: int) -> list[str]:
        """Returns `least` to `most` random words."""
        count = int(self._generator.integers(least, most + 1))
        return self._words[draw_ids(self._generator, np.arange(len(self._words)), count)].tolist()

    def sentence(self, least: int, most: int) -> str:
        """Returns `least` to `most` random words, separated by spaces."""
        return " ".join(self.words(least, most))

    def below(self, limit: int) -> int:
        """Returns a random number from 0 to `limit` - 1."""
        return int(self._generator.integers(limit))


# -----------------------------------------------------------------------------------------------------------
# GLUE


_ROWS = {"train": 1000, "dev": 100, "test": 100}
_SENTENCE = (5, 30)  # words


def write_glue(folder: str, task: GlueTask, text: Text) -> str:
    """Writes train, dev and test set in the layouts of the published files; returns the folder.

    Args:
      folder: a local folder, for --data_dir.
      task: source of the columns and labels.
      text: source of random sentences and labels.
    """
    for split, count in _ROWS.items():
        path = os.path.join(folder, task.splits[split].files[0])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        columns = task.splits[split].columns
        label = () if split == "test" else (task.label_column,)
        names = columns or ("index", *task.text_columns, *label)
        lines = [] if columns else ["\t".join(names)]
        for number in range(count):  # an unused column holds its own name
            values = {name: text.sentence(*_SENTENCE) for name in task.text_columns}
            values["index"] = str(number)
            if task.labels is None:
                values[task.label_column] = str(text.below(int(10 * MAX_SCORE) + 1) / 10)
            else:
                values[task.label_column] = task.labels[text.below(len(task.labels))]
            lines.append("\t".join(values.get(name, name) for name in names))
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return folder


# -----------------------------------------------------------------------------------------------------------
# SQuAD


_CONTEXTS, _QUESTIONS = {"train": 200, "dev": 20}, 5  # contexts of a file, questions of a context
_CONTEXT, _QUESTION, _ANSWER = (30, 300), (5, 12), (1, 4)  # words


def write_squad(path: str, split: str, text: Text, with_negative: bool) -> str:
    """Writes a file and returns its path.

    Args:
      path: local path of the file.
      split: train or dev, which is smaller.
      text: source of random words.
      with_negative: whether a third of the questions has no answer, as in version 2.0.
    """
    paragraphs: list[dict] = []
    for number in range(_CONTEXTS[split]):
        words, questions = text.words(*_CONTEXT), []
        for place in range(_QUESTIONS):
            first = text.below(len(words) - _ANSWER[1])
            end = first + _ANSWER[0] + text.below(_ANSWER[1])
            start = len(" ".join(words[:first])) + (first > 0)
            impossible = with_negative and place % 3 == 0
            question = {
                "id": f"{split}{number}-{place}",
                "question": text.sentence(*_QUESTION),
                "answers": [{"text": " ".join(words[first:end]), "answer_start": start}],
                "is_impossible": impossible,
            }
            questions.append({**question, "answers": []} if impossible else question)
        paragraphs.append({"context": " ".join(words), "qas": questions})
    values = {
        "version": "v2.0" if with_negative else "1.1",
        "data": [{"title": "made up", "paragraphs": paragraphs}],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(values, file)
    return path


# -----------------------------------------------------------------------------------------------------------
# Pre-training


RECORDS = 1024  # examples, repeated; the published programs make 1,000
_FILES = 32  # maximum number of streams, for any number of hosts that divides it
_MIN_SENTENCE, _MAX_SENTENCE = 2, 40  # tokens
_SENTENCES = 12  # average number of sentences in a document


def write_pretraining(folder: str, vocabulary: Vocabulary, rules: examples.ExampleRules, seed: int) -> str:
    """Writes the records and returns the glob of their files.

    Args:
      folder: output folder, in any store that TensorFlow supports.
      vocabulary: vocabulary of the tokens, including the special ones.
      rules: lengths and masks.
      seed: seed of all draws.
    """
    records = encoding.encode(make_examples(vocabulary, rules, seed), "plain")
    tf.io.gfile.makedirs(folder)
    for number in range(_FILES):
        path = f"{folder}/part-{number:05d}-of-{_FILES:05d}.tfrecord"
        if tf.io.gfile.exists(path):  # a file in memory would be appended to
            tf.io.gfile.remove(path)
        with tf.io.TFRecordWriter(path) as writer:
            for record in records[number::_FILES]:
                writer.write(record)
    return f"{folder}/part-*.tfrecord"


def make_examples(vocabulary: Vocabulary, rules: examples.ExampleRules, seed: int) -> Examples:
    """Returns `RECORDS` examples of random text; see `write_pretraining`. An example has room for several
    sentences, and documents have any number of them, so some examples are short."""
    generator = np.random.default_rng(seed)
    most = min(_MAX_SENTENCE, max(_MIN_SENTENCE, rules.max_seq_length // 3))
    count = RECORDS * (3 + 2 * rules.max_seq_length // most)
    lengths = generator.integers(_MIN_SENTENCE, most + 1, count)
    numbers = np.cumsum(generator.random(count) < 1 / _SENTENCES)
    ids = np.setdiff1d(np.arange(vocabulary.size), vocabulary.special_ids)
    tokens = draw_ids(generator, ids, int(lengths.sum()))
    kind = np.uint16 if vocabulary.size <= 1 << 16 else np.int32
    documents = examples.from_sentences(tokens.astype(kind), lengths, numbers)
    chosen = np.tile(np.arange(documents.num_documents), rules.dupe_factor)
    plan = examples.plan_examples(documents, chosen, np.zeros_like(chosen), vocabulary, rules, generator)
    return examples.build_examples(plan.part(0, RECORDS), vocabulary, rules, generator)


# -----------------------------------------------------------------------------------------------------------
# Files


def with_files(config: Config) -> Config:
    """Writes the data of --generated_data to files and returns the configuration with their paths in place of
    those of real data; without the flag, returns it unchanged.

    Files for pre-training are kept in the memory of this process, those for fine-tuning in a temporary
    folder. The data are a function of the seed and of the sizes.
    """
    if not config.generated_data:
        return config
    vocabulary = make_vocabulary(config.model.vocab_size, config.vocab_file)
    logging.info("Data: generated from seed %d, not read from files", config.seed)
    if config.task == "pretrain":
        most = config.max_predictions_per_seq if config.objective == "mlm_nsp" else 0  # texts have no masks
        sizes = (config.max_seq_length, most)
        rules = ExampleRules(*sizes, dupe_factor=1, objective=config.objective)
        parts = (*sizes, vocabulary.size, config.seed, config.objective)
        folder = "ram://generated/" + "-".join(map(str, parts))
        return replaced(config, input_files=write_pretraining(folder, vocabulary, rules, config.seed))
    folder = tempfile.mkdtemp(prefix="generated-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    text = Text(vocabulary, np.random.default_rng(config.seed))
    if not config.vocab_file:
        path = os.path.join(folder, "vocab.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(vocabulary.words) + "\n")
        config = replaced(config, vocab_file=path)
    if config.task == "glue":
        return replaced(config, data_dir=write_glue(folder, find_task(config.glue_task or ""), text))
    made = {
        flag: write_squad(os.path.join(folder, f"{split}.json"), split, text, config.version_2_with_negative)
        for flag, split in (("train_file", "train"), ("predict_file", "dev"))
    }
    return replaced(config, **made)
