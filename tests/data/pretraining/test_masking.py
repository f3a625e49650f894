"""Pairs of segments -> masked examples: the layout, and which tokens are chosen and what becomes of them."""

import random

import numpy as np
import pytest

from official.data.pretraining import examples as examples_lib
from official.data.records import schema
from official.data.word_pieces import vocabulary
from tests import reference_pretraining
from tests.data.pretraining.test_pairs import make_documents

SIZE = 30522


@pytest.fixture(scope="module")
def words():
    numbers = range(SIZE - len(vocabulary.SPECIAL_TOKENS))
    pieces = (f"##{number}" if number % 3 == 0 else f"{number}" for number in numbers)
    return vocabulary.Vocabulary((*vocabulary.SPECIAL_TOKENS, *pieces), "")


@pytest.fixture
def make(words):
    """Returns a function: rules -> (examples, their tokens before masking, which of them begin sentences)."""

    def build(dtype=np.uint16, **changes):
        lengths = make_documents()
        tokens = np.random.default_rng(0).integers(5, SIZE, len(lengths.tokens)).astype(dtype)
        documents = examples_lib.TokenizedDocuments(tokens, lengths.sentence_starts, lengths.document_starts)
        sizes = {"max_seq_length": 64, "max_predictions_per_seq": 8, "dupe_factor": 5}
        rules = examples_lib.ExampleRules(**{**sizes, **changes})
        chosen = np.tile(np.arange(documents.num_documents), rules.dupe_factor)
        ranks, rng = 0 * chosen, np.random.default_rng(1)
        plan = examples_lib.plan_examples(documents, chosen, ranks, words, rules, rng)
        examples = examples_lib.build_examples(plan, words, rules, np.random.default_rng(1))
        plan = plan.rows
        original = examples.input_ids.copy()
        row, slot = np.nonzero(examples.features()["masked_lm_weights"])
        original[row, examples.positions[row, slot]] = examples.labels[row, slot]
        for ids, (a_start, a_length, b_start, b_length, _) in zip(original, plan):
            assert np.array_equal(ids[1 : 1 + a_length], tokens[a_start : a_start + a_length])
            second = ids[2 + a_length : 2 + a_length + b_length]
            assert np.array_equal(second, tokens[b_start : b_start + b_length])
        starts = np.zeros((len(plan), 64), bool)  # of sentences
        for row, (a_start, a_length, b_start, b_length, _) in zip(starts, plan):
            for column, start, length in ((1, a_start, a_length), (2 + a_length, b_start, b_length)):
                own = documents.sentence_starts - start
                row[column + own[(own >= 0) & (own < length)]] = True
        return examples, original, starts

    return build


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_the_layout_of_an_example(make, words, dtype):
    examples, original, _ = make(dtype)
    pad, cls, sep = map(words.ids.__getitem__, ("[PAD]", "[CLS]", "[SEP]"))
    features = examples.features()
    rows = zip(original, features["input_mask"], features["segment_ids"], examples.lengths)
    for ids, mask, segments, length in rows:
        places = np.flatnonzero(ids == sep)
        assert ids[0] == cls and len(places) == 2 and places[-1] == length - 1
        assert mask[:length].all() and not mask[length:].any() and (ids[length:] == pad).all()
        assert segments[: places[0] + 1].sum() == 0 and segments.sum() == length - places[0] - 1
    assert examples.input_ids.dtype == dtype and examples.is_random.any()
    lengths = {name: feature.length for name, feature in schema.pretraining_schema(64, 8).items()}
    assert {name: values.shape[1] for name, values in features.items()} == lengths


def test_masks_follow_the_rules(make, words):
    examples, original, _ = make()
    used = examples.features()["masked_lm_weights"] > 0
    wanted = [min(8, max(1, round(int(length) * 0.15))) for length in examples.lengths]
    assert np.array_equal(used.sum(axis=1), wanted)
    assert (np.diff(used.astype(int), axis=1) <= 0).all()  # the unused slots come last
    steps = np.diff(np.where(used, examples.positions, 10**6), axis=1)
    assert (steps[used[:, 1:]] > 0).all()  # ascending, hence each once
    assert not examples.positions[~used].any() and not examples.labels[~used].any()
    labels = examples.labels[used]
    assert not np.isin(labels, [words.ids[token] for token in vocabulary.SPECIAL_TOKENS]).any()
    shown = np.take_along_axis(examples.input_ids, examples.positions, axis=1)[used]
    masked, kept = shown == words.special_ids.mask, shown == labels
    assert abs(masked.mean() - 0.8) < 0.015 and abs(kept.mean() - 0.1) < 0.012, used.sum()
    # Random words are drawn from the whole vocabulary.
    is_other = ~masked & ~kept
    assert len(np.unique(shown[is_other])) > 0.95 * is_other.sum()
    assert (examples.input_ids != original).sum() == (~kept).sum()


def test_masks_are_distributed_as_those_of_the_sequential_rules(make, words):
    examples, original, _ = make(dupe_factor=20)
    rng, special = random.Random(0), {words.ids[word] for word in vocabulary.SPECIAL_TOKENS}
    counts = np.zeros((2, 64))
    for row, length in zip(original, examples.lengths):
        _, positions, _ = reference_pretraining.mask(row[:length].tolist(), special, 4, SIZE, 0.15, 8, rng)
        counts[0, positions] += 1
    np.add.at(counts[1], examples.positions[examples.features()["masked_lm_weights"] > 0], 1)
    assert counts[0].sum() == counts[1].sum() > 20_000
    assert (np.abs(counts[0] - counts[1]) <= 5 * np.sqrt(counts.sum(axis=0)) + 1).all()


def test_rows_of_few_tokens_and_many_masks(words):
    documents = make_documents(2, 4)
    rows = np.array([[0, 1, 5, 1, 0], [0, 3, 30, 20, 1], [1, 10, 40, 2, 0]], np.int32)
    plan = examples_lib.Plan(documents, rows)
    for prob, predictions in ((0.15, [1, 4, 2]), (1.0, [2, 20, 12])):
        rules = examples_lib.ExampleRules(max_seq_length=32, max_predictions_per_seq=20, masked_lm_prob=prob)
        examples = examples_lib.build_examples(plan, words, rules, np.random.default_rng(0))
        assert examples.predictions.tolist() == predictions


def test_whole_words_are_masked_or_not(make, words):
    """A word ends with its sentence: of BPE, the first piece of the next one has no space before it."""
    examples, original, starts = make(do_whole_word_mask=True)
    continuation = words.continuations()[original] & ~starts
    chosen = np.zeros(original.shape, bool)
    row, slot = np.nonzero(examples.features()["masked_lm_weights"])
    chosen[row, examples.positions[row, slot]] = True
    inside = continuation[:, 1:] & ~np.isin(original[:, :-1], [words.special_ids.cls, words.special_ids.sep])
    assert np.array_equal(chosen[:, 1:][inside], chosen[:, :-1][inside])
    wanted = np.clip(np.rint(examples.lengths * 0.15), 1, 8)
    assert (chosen.sum(axis=1) <= wanted).all() and (chosen.sum(axis=1) == wanted).mean() > 0.9
