"""Vectors of texts: losses and scores against NumPy, one gradient however it is computed, runs on tables."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

from official import config as config_lib
from official.data.pipeline import TrainingOrder
from official.data.tables import vectors as vectors_lib
from official.distribution import strategy as strategy_lib
from official.inference import load
from official.io import sentence_folder
from official.modeling import objectives
from official.optimization import replica_step
from official.optimization.replica_step import LaidOut
from official.tasks import TASKS
from official.training import pipelined
from official.training import step as step_lib
from tests.fine_tuning_files import COLOURS
from tests.modeling.models import randomised
from tests.refusals import assert_refused
from tests.run_folders import assert_resumes, run
from tests.tasks.test_fine_tuning import MIRRORED
from tests.tasks.test_own_data import THINGS, write_lines

NUMBERS = ("one", "two", "three", "four", "five")


def rows_of(kind):
    """Returns rows of a table: a passage holds the words of its query in another order; a score is the number
    of words that two texts share."""
    words = list(itertools.product(COLOURS, THINGS, NUMBERS))
    generator, rows = np.random.default_rng(0), []
    for number, (colour, thing, count) in enumerate(words):
        other = words[int(generator.integers(len(words)))]
        if kind == "scores":
            score = len({colour, thing, count} & set(other))
            rows.append(
                {"sentence1": f"{count} {colour} {thing}", "sentence2": " ".join(other), "score": score}
            )
            continue
        row = {"query": f"{colour} {thing} {count}", "positive": f"the {thing} is {colour} . {count}"}
        wrong = f"the {thing} is {COLOURS[number % 3]} . {other[2]}"
        rows.append({**row, "negative": wrong} if kind == "triplets" else row)
    return rows


@pytest.fixture(name="table")
def fixture_table(tmp_path, make):
    """Returns a function that builds a configuration of pairs, triplets or pairs with scores."""

    def table(kind="pairs", **settings):
        of_kind = {
            "pairs": {},
            "triplets": {"text_columns": "query,positive,negative"},
            "scores": {"label_column": "score"},
        }[kind]
        defaults = dict(
            train_file=write_lines(tmp_path / f"{kind}.jsonl", rows_of(kind)),
            num_train_epochs=4,
            eval_share=0.3,
        )
        return make("embed", **{**defaults, **of_kind, **settings})

    return table


# ------------------------------------------------------------------------------------------------------------
# Losses and scores against NumPy, in float64


def numpy_ranking(vectors_BGD, weights, ids, temperature, sizes):
    total = 0.0
    for size in sizes:
        unit = vectors_BGD[..., :size] / np.linalg.norm(vectors_BGD[..., :size], axis=-1, keepdims=True)
        for row, weight in enumerate(weights):
            logits = []
            for other, column in itertools.product(range(len(weights)), range(1, vectors_BGD.shape[1])):
                is_own = (other, column) == (row, 1)
                same_text = ids[other, column] in (ids[row, 0], ids[row, 1])
                same_query = column == 1 and ids[other, 0] == ids[row, 0]
                if is_own or weights[other] and not (same_text or same_query):
                    logits.append(unit[row, 0] @ unit[other, column] / temperature)
            own = unit[row, 0] @ unit[row, 1] / temperature
            total += weight * (np.log(np.sum(np.exp(logits))) - own)
    return total


def numpy_similarity(vectors_BGD, weights, scores, kind, temperature, sizes):
    total = 0.0
    for size in sizes:
        unit = vectors_BGD[..., :size] / np.linalg.norm(vectors_BGD[..., :size], axis=-1, keepdims=True)
        cosines = (unit[:, 0] * unit[:, 1]).sum(axis=-1)
        if kind == "cosine":
            total += (weights * (cosines - scores) ** 2).sum()
            continue
        terms = [
            np.exp((cosines[low] - cosines[high]) / temperature)
            for low, high in itertools.permutations(np.flatnonzero(weights), 2)
            if scores[low] < scores[high]
        ]
        total += np.log(1 + sum(terms)) * weights.sum()
    return total


def test_losses_and_gradients_equal_numpy():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(6, 3, 4))
    weights = np.array([1, 1, 1, 0, 1, 1], np.float64)
    ids = np.arange(18).reshape(6, 3)
    ids[1, 1], ids[2, 2], ids[4, 0], ids[5, 2] = ids[0, 1], ids[0, 1], ids[0, 0], ids[5, 0]
    scores = generator.choice([-0.5, 0.0, 0.5, 1.0], 6)
    batch = {
        "example_weights": tf.constant(weights, tf.float32),
        "text_ids": tf.constant(ids),
        "labels": tf.constant(scores, tf.float32),
    }
    cases = {"ranking": (vectors, lambda x, sizes: numpy_ranking(x, weights, ids, 0.2, sizes))}
    for kind in ("cosent", "cosine"):
        cases[kind] = (
            vectors[:, :2],
            lambda x, sizes, kind=kind: numpy_similarity(x, weights, scores, kind, 0.2, sizes),
        )
    for (name, (given, expected)), sizes in itertools.product(cases.items(), [(4,), (4, 2, 1)]):
        own = tf.constant(given, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(own)
            asked = sizes if len(sizes) > 1 else ()
            if name == "ranking":
                terms = objectives.ranking_terms(own, batch, 0.2, asked)
            else:
                terms = objectives.similarity_terms(own, batch, name, 0.2, asked)
            total, weight = terms["embedding_loss"]
        assert weight == 5 and float(total) == pytest.approx(expected(given, sizes), rel=1e-5), (name, sizes)
        slopes, step = np.zeros(given.shape), 1e-5
        for place in np.ndindex(given.shape):
            moved = np.zeros(given.shape)
            moved[place] = step
            slopes[place] = (expected(given + moved, sizes) - expected(given - moved, sizes)) / (2 * step)
        np.testing.assert_allclose(
            tape.gradient(total, own), slopes, rtol=1e-3, atol=1e-3, err_msg=f"{name} {sizes}"
        )


def test_rankings_equal_those_of_a_full_sort(monkeypatch):
    """Also where many products are equal, and over several blocks."""
    monkeypatch.setattr(vectors_lib, "_QUERIES", 7)
    monkeypatch.setattr(vectors_lib, "_PASSAGES", 9)
    generator = np.random.default_rng(1)
    for values in (generator.normal(size=(60, 8)), generator.integers(-1, 2, (60, 3)).astype(float)):
        queries, passages = np.split(vectors_lib.unit(values), [20])
        order = np.argsort(-(queries @ passages.T), axis=1, kind="stable")
        np.testing.assert_array_equal(vectors_lib.neighbours(queries, passages, 10), order[:, :10])
        assert vectors_lib.neighbours(queries, passages[:3], 10).shape == (20, 3)
        right = np.stack([np.repeat(np.arange(20), 2), generator.integers(0, 40, 40)], axis=1)
        found = []
        for query in range(20):
            wanted = set(right[right[:, 0] == query, 1])
            hits = [place in wanted for place in order[query, :10]]
            gains = 1 / np.log2(np.arange(2, 12))
            found.append(
                [
                    (hits * gains).sum() / gains[: len(wanted)].sum(),
                    hits[0] / len(wanted),
                    sum(hits) / len(wanted),
                    1 / (hits.index(True) + 1) if any(hits) else 0.0,
                ]
            )
        scores = vectors_lib.ranking_scores(queries, passages, right)
        assert tuple(scores) == vectors_lib.RANKING_SCORES
        np.testing.assert_allclose(list(scores.values()), np.mean(found, axis=0))
    by_chance = [generator.permutation(40)[:10] for _ in range(20000)]
    gains = np.mean([((places < 2) / np.log2(np.arange(2, 12))).sum() for places in by_chance])
    expected = gains / (1 + 1 / np.log2(3))
    assert vectors_lib.ndcg_by_chance(np.array([2, 2]), 40) == pytest.approx(expected, rel=0.03)


# ------------------------------------------------------------------------------------------------------------
# One gradient, however it is computed


def gradients_of(config, accumulation=1, model_seed=0):
    """Returns {variable: gradient} and the terms of the first step of a run, with weights of a seed."""
    config = config_lib.replaced(config, num_accumulation_steps=accumulation)
    strategy = strategy_lib.make_strategy(config)
    config = strategy_lib.with_choices_of_devices(config, strategy)
    task = TASKS["embed"](config)
    task.find_data()
    config = config_lib.with_data(config, task.train_samples)
    replicas, batch = strategy.num_replicas_in_sync, config.train_batch_size
    state = pipelined.make_state(config, task, strategy)
    randomised(state.model)
    make = replica_step.make_replica_gradients(config, task, state, accumulation)
    parts = list(task.train_dataset(batch, batch // replicas, TrainingOrder(0)).take(replicas))
    dataset = strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )

    @tf.function(autograph=False)
    def step(rows):
        gradients, factor, sums, norm = strategy.run(make, args=(rows,))
        first = lambda value: strategy.experimental_local_results(value)[0]
        return [first(each) * first(factor) for each in gradients], first(sums)

    gradients, sums = step(dataset)
    names = [variable.name for variable in state.model.trainable_variables]
    return dict(zip(names, map(np.asarray, gradients))), np.asarray(sums)


def assert_same(found, expected, what, rtol=1e-5, atol=1e-6):
    for name, gradient in expected[0].items():
        scale = 1.0 if "key/bias" in name else np.abs(gradient).max()
        np.testing.assert_allclose(
            found[0][name], gradient, atol=max(atol, rtol * scale), rtol=0, err_msg=f"{what}: {name}"
        )
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, err_msg=str(what))


WITHOUT_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def test_gradients_do_not_depend_on_micro_batches_replicas_and_padding(table, make):
    model = {**dataclasses.asdict(table().model), **WITHOUT_DROPOUT}
    for kind, settings in (
        ("triplets", dict(pooling="cls", matryoshka_sizes="8")),
        ("scores", dict(pooling="max")),
        ("pairs", {}),
    ):
        own = dict(settings, model=model, do_eval=False, clip_scope="none", max_seq_length=16)
        whole = gradients_of(table(kind, length_buckets="always", **own))
        assert np.abs(whole[0]["bert/embeddings/word_embeddings:0"]).max() > 1e-3
        assert_same(gradients_of(table(kind, length_buckets="always", **own), 4), whole, (kind, "cached"))
        assert_same(gradients_of(table(kind, **own), 2), whole, (kind, "unpad, cached"))
        two = {**own, **MIRRORED}
        assert_same(gradients_of(table(kind, **two)), whole, (kind, "replicas"))
    assert_same(gradients_of(table(kind, **two), 2), whole, (kind, "replicas, cached"))
    compiled = {**two, "enable_xla": True, "length_buckets": "never"}
    assert_same(gradients_of(table(kind, **compiled)), whole, (kind, "replicas, XLA"), rtol=1e-4)
    assert_same(gradients_of(table(kind, **compiled), 2), whole, (kind, "replicas, XLA, cached"), rtol=1e-4)
