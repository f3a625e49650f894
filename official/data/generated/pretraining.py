"""Pre-training records of made-up text: pairs, masks and lengths as the creation of real ones makes them."""

import numpy as np
import tensorflow as tf

from official.data.frequencies import draw_ids
from official.data.pretraining import corpus, masking, pairs
from official.data.pretraining.examples import Examples
from official.data.records.encoding import plain
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS, Vocabulary

RECORDS = 1024  # are made, and repeated; the published programs make 1,000
_FILES = 32  # as many streams as there may be, for any number of hosts that divides it
_SHORTEST_SENTENCE, _LONGEST_SENTENCE = 2, 40  # tokens
_SENTENCES = 12  # of a document, on average


def write(folder: str, vocabulary: Vocabulary, rules: pairs.ExampleRules, seed: int) -> str:
    """Writes the records and returns the glob of their files.

    Args:
      folder: to write to; of any store that TensorFlow reaches.
      vocabulary: of the tokens, with the special ones.
      rules: lengths and masks.
      seed: the records are a function of it.
    """
    records = plain.encode(make_examples(vocabulary, rules, seed))
    tf.io.gfile.makedirs(folder)
    for number in range(_FILES):
        path = f"{folder}/part-{number:05d}-of-{_FILES:05d}.tfrecord"
        if tf.io.gfile.exists(path):  # a file in memory would be written on
            tf.io.gfile.remove(path)
        with tf.io.TFRecordWriter(path) as writer:
            for record in records[number::_FILES]:
                writer.write(record)
    return f"{folder}/part-*.tfrecord"


def make_examples(vocabulary: Vocabulary, rules: pairs.ExampleRules, seed: int) -> Examples:
    """Returns `RECORDS` examples of random sentences; see `write`."""
    generator = np.random.default_rng(seed)
    documents = _documents(vocabulary, rules.max_seq_length, generator)
    chosen = np.tile(np.arange(documents.num_documents), rules.dupe_factor)
    plan = pairs.plan_pairs(documents, chosen, np.zeros_like(chosen), rules, generator)[:RECORDS]
    return masking.build_examples(plan, documents, vocabulary, rules, generator)


def _documents(
    vocabulary: Vocabulary, length: int, generator: np.random.Generator
) -> corpus.TokenizedDocuments:
    """Returns text for more than `RECORDS` examples of `length` tokens: sentences several of which fit into
    one, and documents of any number of them, so that some examples are short."""
    most = min(_LONGEST_SENTENCE, max(_SHORTEST_SENTENCE, length // 3))
    count = RECORDS * (3 + 2 * length // most)
    lengths = generator.integers(_SHORTEST_SENTENCE, most + 1, count)
    numbers = np.cumsum(generator.random(count) < 1 / _SENTENCES)
    ids = np.setdiff1d(np.arange(vocabulary.size), [vocabulary.id_of(word) for word in SPECIAL_TOKENS])
    tokens = draw_ids(generator, ids, int(lengths.sum()))
    kind = np.uint16 if vocabulary.size <= 1 << 16 else np.int32
    return corpus.from_sentences(tokens.astype(kind), lengths, numbers)
