"""Documents -> pairs of segments, and texts: the vectorised rules against the sequential ones, and the
documents on disk.
"""

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official.data.pretraining import examples, rounds
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS, Vocabulary
from official.io.errors import ConfigError
from tests import reference_pretraining


def make_documents(num_documents=40, sentences=30, seed=0) -> examples.TokenizedDocuments:
    """Returns documents whose token number d * 1000 + n says: document d, n-th token."""
    lengths = np.random.default_rng(seed).integers(1, 25, size=(num_documents, sentences))
    numbers = [1000 * document + np.arange(total) for document, total in enumerate(lengths.sum(axis=1))]
    owners = np.repeat(np.arange(num_documents), sentences)
    return examples.from_sentences(np.concatenate(numbers).astype(np.int32), lengths.ravel(), owners)


def as_lists(documents: examples.TokenizedDocuments) -> list[list[list[int]]]:
    sentences = [part.tolist() for part in np.split(documents.tokens, documents.sentence_starts[1:-1])]
    starts = documents.document_starts
    return [sentences[first:end] for first, end in zip(starts, starts[1:])]


def make_plan(documents, seed=1, **rules):
    rules = examples.ExampleRules(**rules)
    chosen = np.tile(np.arange(documents.num_documents), rules.dupe_factor)
    return examples.plan_pairs(documents, chosen, np.zeros_like(chosen), rules, np.random.default_rng(seed))


# ------------------------------------------------------------------------------------------------------------
# Pairs


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
def test_truncation_equals_removing_token_by_token(a, b, most):
    left_a, left_b = a, b
    while left_a + left_b > most:
        left_a, left_b = (left_a - 1, left_b) if left_a > left_b else (left_a, left_b - 1)
    assert examples.kept_lengths(np.array(a), np.array(b), most) == (left_a, left_b)


def test_the_second_segment_follows_the_first_or_comes_from_another_document():
    documents = make_documents()
    plan = make_plan(documents, max_seq_length=64, dupe_factor=5, short_seq_prob=0.2)
    a_start, a_length, b_start, b_length, is_random = plan.T
    assert (a_length >= 1).all() and (b_length >= 1).all() and (a_length + b_length <= 61).all()
    a_document, b_document = documents.tokens[a_start] // 1000, documents.tokens[b_start] // 1000
    assert (documents.tokens[a_start + a_length - 1] // 1000 == a_document).all()
    assert (documents.tokens[b_start + b_length - 1] // 1000 == b_document).all()
    assert ((a_document == b_document) == (is_random == 0)).all()
    follows = (is_random == 0) & (a_length + b_length < 61)  # what was truncated may leave a gap
    assert follows.sum() > 100 and (b_start[follows] == (a_start + a_length)[follows]).all()
    assert len(np.unique(b_document[is_random == 1])) == documents.num_documents


@pytest.mark.parametrize("length, short_seq_prob", [(64, 0.1), (128, 1.0), (512, 0.1)])
def test_pairs_are_distributed_as_those_of_the_sequential_rules(length, short_seq_prob, monkeypatch):
    documents, rng = make_documents(num_documents=60, sentences=40), random.Random(0)
    expected = reference_pretraining.make_pairs(as_lists(documents), length, 40, short_seq_prob, rng)
    reference = np.array([(len(a), len(b), r) for a, b, r in expected])
    of_documents = np.bincount([b[0] // 1000 for _, b, _ in expected])
    for one_by_one in (0, 10**6):
        monkeypatch.setattr(examples, "_FEW_LANES", one_by_one)
        plan = make_plan(documents, max_seq_length=length, dupe_factor=40, short_seq_prob=short_seq_prob)
        _, a_length, _, b_length, is_random = plan.T
        assert abs(len(plan) / len(expected) - 1) < 0.02
        assert abs(is_random.mean() - reference[:, 2].mean()) < 4 * np.sqrt(0.5 / len(plan))
        # Kolmogorov and Smirnov, 1 %; pairs of a document are not independent.
        limit = 1.63 * np.sqrt(2 / len(plan)) + 0.005
        for ours, theirs in ((a_length, reference[:, 0]), (b_length, reference[:, 1])):
            assert largest_gap(ours, theirs) < limit
        assert largest_gap(a_length + b_length, reference[:, 0] + reference[:, 1]) < limit
        ours = np.bincount(documents.tokens[plan[:, examples.B_START]] // 1000)
        # Every document gives its share of second segments.
        assert np.corrcoef(ours, of_documents)[0, 1] > 0.5 or np.ptp(ours) < ours.mean()


def largest_gap(a, b) -> float:
    values = np.arange(max(a.max(), b.max()) + 1)
    shares = [np.searchsorted(np.sort(each), values, "right") / len(each) for each in (a, b)]
    return np.abs(shares[0] - shares[1]).max()


def test_every_token_is_used_and_unused_segments_are_put_back():
    documents = make_documents(num_documents=2, sentences=200)
    plan = make_plan(documents, max_seq_length=512, dupe_factor=1, short_seq_prob=0.0)
    plan = plan[np.argsort(plan[:, examples.A_START])]
    position = 0
    for a_start, a_length, b_start, b_length, is_random in plan:
        assert position <= a_start <= position + 24 + 12 * is_random or a_start // 1000 != position // 1000
        # Nothing but what truncation cuts off is lost.
        position = a_start + a_length if is_random else b_start + b_length


# ------------------------------------------------------------------------------------------------------------
# Texts


LENGTHS = st.lists(
    st.lists(st.integers(1, 40), min_size=1, max_size=9), min_size=1, max_size=6
)  # of sentences


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(8, 40), st.sampled_from([1, 2]))
def test_texts_are_those_of_the_sequential_rules(lengths, max_seq_length, copies):
    """Each rank is cut by itself in its order; every token is in one text of each copy."""
    lengths, owners = np.concatenate(lengths), np.repeat(np.arange(len(lengths)), list(map(len, lengths)))
    documents = examples.from_sentences(10 + np.arange(lengths.sum(), dtype=np.int32), lengths, owners)
    rules = examples.ExampleRules(max_seq_length, objective="mlm")
    chosen = np.tile(np.arange(documents.num_documents), copies)
    ranks = np.repeat(np.arange(copies), documents.num_documents)
    words = Vocabulary(SPECIAL_TOKENS, "")
    laid, rows = examples.plan_examples(documents, chosen, ranks, words, rules, np.random.default_rng(1))
    assert not rows[:, examples.B_START :].any()
    by_place = rows[np.argsort(rows[:, 0])]
    found = [laid.tokens[start : start + length].tolist() for start, length, *_ in by_place]
    separator = words.special_ids.sep
    order, lists = [token for text in found for token in text if token != separator], as_lists(documents)
    assert sorted(order) == sorted(10 + np.tile(np.arange(lengths.sum()), copies))
    firsts = {document[0][0]: document for document in lists}
    told = [firsts[token] for token in order if token in firsts]
    assert found == reference_pretraining.make_texts(told, max_seq_length - 2, separator)
    # The order of the ranks: rows that begin in the first copy stand before the others.
    bound = len(order) // copies + documents.num_documents
    assert (np.diff((rows[:, 0] >= bound).astype(int)) >= 0).all()
    masked = examples.build_examples(examples.Plan(laid, rows), words, rules, np.random.default_rng(1))
    assert masked.positions.shape == (len(rows), 0) and (masked.lengths == rows[:, 1] + 2).all()


# ------------------------------------------------------------------------------------------------------------
# Documents


KEYS = st.sampled_from([0, 1, 7, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
@settings(max_examples=20, deadline=None)
@given(st.lists(KEYS, min_size=3, max_size=30), st.integers(1, 5), st.sampled_from([1, 100, 1 << 20]))
def test_the_pools_of_all_files_hold_every_document_once(
    tmp_path_factory, kind, keys, num_pools, chunk_bytes
):
    folder = tmp_path_factory.mktemp("blocks")
    keys, half, paths = np.array(keys, np.uint64), len(keys) // 2, []
    documents = make_documents(num_documents=len(keys), sentences=4)
    documents = dataclasses.replace(documents, tokens=documents.tokens.astype(kind))
    whole = rounds.Sample(documents, keys, np.arange(len(keys), dtype=np.uint8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "_CHUNK_BYTES", chunk_bytes)
        for part in (range(half), range(half), range(half, len(keys))):
            paths.append(str(folder / f"{len(paths)}"))
            own = np.array(part, int) if len(paths) != 2 else np.array([], int)  # a file without documents
            rounds.write_block(paths[-1], whole.take(own).sorted())
    bounds = [number * 2**64 // num_pools for number in range(num_pools + 1)]
    pools = [rounds.read_range(paths, *bound) for bound in zip(bounds, bounds[1:])]
    wanted = [sum(a <= int(key) < b for key in keys) for a, b in zip(bounds, bounds[1:])]
    assert [pool.documents.num_documents for pool in pools] == wanted
    found, expected = rounds.concatenate(pools), whole.sorted()
    assert as_lists(found.documents) == as_lists(expected.documents)
    assert found.documents.tokens.dtype == kind
    assert np.array_equal(found.keys, np.sort(keys)) and np.array_equal(found.sources, expected.sources)


def test_a_damaged_file_of_documents_is_named(tmp_path):
    path = tmp_path / "0.docs"
    documents = make_documents(num_documents=9, sentences=4)
    sample = rounds.Sample(documents, np.arange(9, dtype=np.uint64), np.zeros(9, np.uint8))
    rounds.write_block(str(path), sample)
    whole = path.read_bytes()
    for damaged in (b"", whole[:20], whole[:40], whole[:-100], b"x" + whole[1:]):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match="0.docs of an unfinished job is damaged .* --overwrite"):
            rounds.read_range([str(path)], 0, 2**64)


def test_pairs_come_in_the_order_of_their_ranks():
    documents, rules = make_documents(), examples.ExampleRules(max_seq_length=64)
    chosen, ranks = np.array([5, 3, 5, 9]), np.array([1, 0, 2, 1])
    plan = examples.plan_pairs(documents, chosen, ranks, rules, np.random.default_rng(1))
    origin = documents.tokens[plan[:, examples.A_START]] // 1000
    changes = np.flatnonzero(np.diff(np.isin(origin, [3]).astype(int)))
    assert len(changes) == 1 and origin[0] == 3 and set(origin) == {3, 5, 9}
    last_9 = np.flatnonzero(origin == 9)[-1]
    assert (origin[:last_9] == 5).any() and (origin[last_9 + 1 :] == 5).all()
    assert not len(examples.plan_pairs(documents, chosen[:0], ranks[:0], rules, np.random.default_rng(1)))
