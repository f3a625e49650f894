"""Vectors of texts: losses and scores against NumPy, one gradient however it is computed, runs on tables."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from official import config as config_lib
from official.checkpoint.convert import convert
from official.config.model import FAMILIES
from official.data.pipeline import TrainingOrder
from official.data.tables import vectors as vectors_lib
from official.distribution import strategy as strategy_lib
from official.inference import load
from official.io import sentence_folder
from official.io.errors import ConfigError
from official.modeling import objectives
from official.optimization import replica_step
from official.planning import plan as plan_lib
from official.tasks import TASKS
from official.training import pipelined
from tests.fine_tuning_files import COLOURS, WORDS
from tests.fixtures import TINY, slow
from tests.refusals import assert_refused
from tests.run_folders import assert_resumes, run
from tests.tasks.test_fine_tuning import MIRRORED, found_task
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
        of_kind = {"pairs": {}, "triplets": dict(text_columns="query,positive,negative")}
        of_kind["scores"] = dict(label_column="score")
        path = write_lines(tmp_path / f"{kind}.jsonl", rows_of(kind))
        defaults = dict(train_file=path, num_train_epochs=4)
        if settings.get("do_eval", True):
            defaults["eval_share"] = 0.3
        return make("embed", **{**defaults, **of_kind[kind], **settings})

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
    batch = dict(example_weights=tf.constant(weights, tf.float32), text_ids=tf.constant(ids))
    batch["labels"] = tf.constant(scores, tf.float32)
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
    monkeypatch.setattr(vectors_lib, "BLOCK_ROWS", 9)
    generator = np.random.default_rng(1)
    for values in (generator.normal(size=(60, 8)), generator.integers(-1, 2, (60, 3)).astype(float)):
        queries, passages = np.split(vectors_lib.normalized(values), [20])
        order = np.argsort(-(queries @ passages.T), axis=1, kind="stable")
        blocks = vectors_lib.in_blocks(passages)
        np.testing.assert_array_equal(vectors_lib.neighbours(queries, blocks, 10)[0], order[:, :10])
        assert vectors_lib.neighbours(queries, [passages[:3]], 10)[1].shape == (20, 3)
        right = np.stack([np.repeat(np.arange(20), 2), generator.integers(0, 40, 40)], axis=1)
        found = []
        for query in range(20):
            wanted = set(right[right[:, 0] == query, 1])
            hits = [place in wanted for place in order[query, :10]]
            gains = 1 / np.log2(np.arange(2, 12))
            first = 1 / (hits.index(True) + 1) if any(hits) else 0.0
            gain, count = (hits * gains).sum() / gains[: len(wanted)].sum(), len(wanted)
            found.append([gain, hits[0] / count, sum(hits) / count, first])
        scores = vectors_lib.ranking_scores(queries, passages, right)
        assert tuple(scores) == vectors_lib.RANKING_SCORES
        np.testing.assert_allclose(list(scores.values()), np.mean(found, axis=0))
    by_chance = [generator.permutation(40)[:10] for _ in range(20000)]
    gains = np.mean([((places < 2) / np.log2(np.arange(2, 12))).sum() for places in by_chance])
    expected = gains / (1 + 1 / np.log2(3))
    assert vectors_lib.ndcg_by_chance(np.array([2, 2]), 40) == pytest.approx(expected, rel=0.03)


# ------------------------------------------------------------------------------------------------------------
# One gradient, however it is computed


def first_step(config, accumulation=1):
    """Returns the configuration, task and state of a run with weights that are always the same, and the rows
    of its first step, of each replica."""
    config = config_lib.replaced(config, num_accumulation_steps=accumulation)
    strategy = strategy_lib.make_strategy(config)
    config = strategy_lib.with_choices_of_devices(config, strategy)
    task = TASKS["embed"](config)
    task.find_data()
    config = config_lib.with_data(config, task.train_samples)
    state = pipelined.make_state(config, task, strategy)
    for number, variable in enumerate(state.model.trainable_variables):
        noise = np.random.default_rng(number).normal(0, 0.1, variable.shape)
        variable.assign(noise + ("gamma" in variable.name))
    replicas, batch = strategy.num_replicas_in_sync, config.train_batch_size
    parts = list(task.train_dataset(batch, batch // replicas, TrainingOrder(0)).take(replicas))
    return config, task, state, strategy, parts


def gradients_of(config, accumulation=1):
    """Returns {variable: gradient} and the terms of the first step of a run."""
    config, task, state, strategy, parts = first_step(config, accumulation)
    make = replica_step.make_replica_gradients(config, task, state, accumulation)
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )

    def step(rows):
        gradients, factor, sums, norm = strategy.run(make, args=(rows,))
        first = lambda value: strategy.experimental_local_results(value)[0]  # noqa: E731
        return [first(each) * first(factor) for each in gradients], first(sums)

    alone = accumulation == 1 and len(parts) == 1  # is computed sooner than traced
    gradients, sums = (step if alone else tf.function(step, autograph=False))(rows)
    names = [variable.name for variable in state.model.trainable_variables]
    return dict(zip(names, map(np.asarray, gradients))), np.asarray(sums)


def assert_same(found, expected, what, rtol=1e-5, atol=1e-6):
    for name, gradient in expected[0].items():
        scale = 1.0 if "key/bias" in name else np.abs(gradient).max()
        np.testing.assert_allclose(
            found[0][name], gradient, atol=max(atol, rtol * scale), rtol=0, err_msg=f"{what}: {name}"
        )
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, err_msg=str(what))


KINDS = [("scores", dict(pooling="max"), False), slow("scores", dict(pooling="max"), True)]
KINDS += [slow("pairs", {}, True), slow("triplets", dict(pooling="cls", matryoshka_sizes="8"), True)]


@pytest.mark.parametrize("kind,settings,with_replicas", KINDS)
def test_gradients_do_not_depend_on_micro_batches_replicas_and_padding(table, kind, settings, with_replicas):
    own = dict(settings, do_eval=False, clip_scope="none", max_seq_length=16)
    whole = gradients_of(table(kind, length_buckets="never", **own))
    assert np.abs(whole[0]["bert/embeddings/word_embeddings:0"]).max() > 1e-3
    assert_same(gradients_of(table(kind, **own), 4), whole, (kind, "unpad, cached"))
    if not with_replicas:
        return
    assert_same(gradients_of(table(kind, length_buckets="never", **own), 2), whole, (kind, "cached"))
    two = {**own, **MIRRORED}
    assert_same(gradients_of(table(kind, **two)), whole, (kind, "replicas"))
    if kind == "pairs":
        assert_same(gradients_of(table(kind, **two), 2), whole, (kind, "replicas, cached"))
        compiled = {**two, "enable_xla": True, "length_buckets": "never"}
        for accumulation in (1, 2):
            assert_same(gradients_of(table(kind, **compiled), accumulation), whole, (kind, "XLA"), rtol=1e-4)


@pytest.mark.slow
def test_cached_gradients_drop_the_same_numbers_twice(table):
    model = {**dataclasses.asdict(table().model), "hidden_dropout_prob": 0.2}
    own = dict(model=model, do_eval=False, clip_scope="none", max_seq_length=16, kernels="plain")
    found = gradients_of(table(**own), 2)
    config, task, state, _, (batch,) = first_step(table(**own), 2)
    variables = state.model.trainable_variables
    seeds = replica_step.dropout_seeds(config, state, 2, replica_step.LaidOut(1, 2))
    with tf.GradientTape() as tape:
        halves = [{name: tf.split(value, 2)[half] for name, value in batch.items()} for half in (0, 1)]
        vectors = [state.model(half, dropout_seed=seed) for half, seed in zip(halves, seeds)]
        terms = task.terms(tf.concat(vectors, axis=0), batch)
        loss = terms["embedding_loss"][0] / terms["embedding_loss"][1]
    gradients = [tf.convert_to_tensor(each).numpy() for each in tape.gradient(loss, variables)]
    expected = dict(zip((variable.name for variable in variables), gradients))
    sums = replica_step.stack_terms(terms, task.metrics).numpy()
    assert_same(found, (expected, sums), "dropout")
    undropped = task.terms(state.model(batch), batch)["embedding_loss"][0]
    assert abs(float(undropped) - float(terms["embedding_loss"][0])) > 1e-3


@pytest.mark.slow
def test_every_family_and_precision_makes_vectors(table):
    """Of every family without padding the vectors of padded rows; in low precision nearly so."""
    for name, family in FAMILIES.items():
        sizes = dict(family=name, block_type=family.block_type, type_vocab_size=max(1, family.segments))
        model = {**TINY, "num_hidden_layers": 1, "max_position_embeddings": 48, **sizes}
        own = dict(model=model, do_eval=False, max_seq_length=16, pooling="mean")
        _, _, state, _, (batch,) = first_step(table(**own))
        state.model.encoder.unpad = False
        padded = state.model(batch).numpy()
        state.model.encoder.unpad = True
        np.testing.assert_allclose(state.model(batch), padded, atol=1e-5, err_msg=name)
        assert padded.shape == (8, 2, 32) and np.abs(padded).max() > 0.1, name
    for dtype in ("bf16", "fp16"):
        result = run(table(dtype=dtype, model_dir=dtype, stop_steps=2))
        assert np.isfinite(result.scores["ndcg_at_10"]), dtype


# ------------------------------------------------------------------------------------------------------------
# From files to scores


@pytest.mark.slow
def test_every_kind_of_table_is_learned(table, tmp_path):
    for kind, score in {"pairs": "ndcg_at_10", "triplets": "ndcg_at_10", "scores": "spearman"}.items():
        result = run(table(kind, model_dir=kind, matryoshka_sizes="8", query_prompt="what "))
        assert result.status == "finished" and result.target_metric == score
        assert result.scores[score] > result.baseline_score + 0.3, (kind, result.scores)
        written = json.loads((tmp_path / kind / "result.json").read_text())
        assert written[score] == result.scores[score] and ("recall_at_1" in written) == (kind != "scores")
        sizes = written["tables"]["Scores by size of the vectors"]
        assert [row[0] for row in sizes] == ["size", 32, 8] and sizes[1][1] == result.scores[score]

    # The folder gives the vectors that were scored, here and as a folder for others.
    convert(str(tmp_path / "scores"), "huggingface", str(tmp_path / "published"))
    task = found_task(table("scores", model_dir="scores", query_prompt="what "))
    rows = [rows_of("scores")[number - 1] for number in task._read["eval"].numbers]
    for folder in ("scores", "published"):
        model = load(str(tmp_path / folder))
        first = model.embed([row["sentence1"] for row in rows], prompt_name="query")
        second = model.embed([row["sentence2"] for row in rows])
        cosines = (vectors_lib.normalized(first) * vectors_lib.normalized(second)).sum(axis=1)
        found = stats.spearmanr(cosines, [row["score"] for row in rows]).statistic
        assert found == pytest.approx(result.scores["spearman"], abs=3e-3), folder


@pytest.mark.slow
def test_a_run_resumes_to_the_same_bits(table):
    settings = dict(num_train_epochs=2, num_steps_per_epoch=8, num_accumulation_steps=2, deterministic=True)
    assert_resumes(table, 8, 16, **settings)


def test_queries_stay_on_one_side_and_a_corpus_is_searched(table, tmp_path):
    rows = rows_of("pairs")
    twice = [*rows, *({**row, "positive": f"{row['positive']} ?"} for row in rows)]
    corpus = [{"positive": text} for text in ("the sun", "the sun", rows[0]["positive"], "the sea is red")]
    files = dict(train_file=write_lines(tmp_path / "twice.jsonl", twice))
    files |= dict(corpus_file=write_lines(tmp_path / "corpus.jsonl", corpus))
    task = found_task(table(**files))
    held_out, read = task._held_out, task._read
    sides = [{twice[number - 1]["query"] for number in read[split].numbers} for split in ("train", "eval")]
    assert not sides[0] & sides[1] and len(sides[1]) == held_out.queries == len(read["eval"]) / 2
    in_corpus = rows[0]["query"] in sides[1]
    assert len(held_out.texts) == 3 * held_out.queries + 3 - in_corpus
    vectors = np.random.default_rng(0).normal(size=(len(held_out.texts), 32)).astype(np.float32)
    vectors[held_out.queries :][held_out.pairs[:, 1]] = vectors[held_out.pairs[:, 0]]
    scores = task.score({"vectors": vectors})
    assert scores["ndcg_at_10"] == pytest.approx(1) and scores["recall_at_1"] == pytest.approx(0.5)
    vectors[held_out.queries :] = np.roll(vectors[held_out.queries :], 1, axis=0)
    (group,) = task.examples({"vectors": vectors})
    assert group["items"][0]["facts"][0][0].startswith("right, cosine")


def test_rows_that_contradict_each_other_are_told(table, tmp_path, caplog):
    rows = rows_of("triplets")
    told = ("column 'score' is not read", "negatives are positives of the same query in other rows")
    others = [{**rows[0], "positive": rows[1]["positive"], "negative": rows[0]["positive"], "score": 0}]
    for more, is_told in (([], False), (others, True)):
        path = write_lines(tmp_path / "own.jsonl", [*more, *rows])
        found_task(table("triplets", train_file=path))
        assert [text in caplog.text for text in told] == [is_told] * 2
    same = write_lines(tmp_path / "same.jsonl", [{**row, "score": 1} for row in rows_of("scores")])
    with pytest.raises(ConfigError, match="has only the label 1 in the column 'score'"):
        found_task(table("scores", train_file=same))


def test_queries_that_find_themselves_are_told(table, tmp_path, caplog):
    queries = [{"positive": row["query"]} for row in rows_of("pairs")]
    for corpus, is_told in ((None, False), (write_lines(tmp_path / "corpus.jsonl", queries), True)):
        caplog.clear()
        found_task(table(corpus_file=corpus))
        assert ("queries are passages, too" in caplog.text) == is_told


def test_prompts_and_pooling_are_those_of_the_folder(table, tmp_path):
    folder = tmp_path / "folder"
    own = dict(model_dir="folder", pooling="cls", passage_prompt="one ")
    run(table(**own, stop_steps=2, do_eval=False, query_prompt="two "))
    settings = sentence_folder.read_settings(str(folder))
    assert (settings.pooling, settings.max_seq_length) == ("cls", 48)
    assert settings.prompts == {"query": "two ", "document": "one "}
    task = found_task(table(init_checkpoint=str(folder), model_dir="other", passage_prompt="ball "))
    words = [WORDS[number] for number in task._rows["train"].ids[:8] if number < len(WORDS)]
    assert words[:2] == ["[CLS]", "two"] and words[5:8] == ["[SEP]", "[CLS]", "ball"]
    assert sentence_folder.read_settings(str(folder)).pooling == task._settings.pooling
    assert_refused(run, [(table(**own, query_prompt="red "), "query_prompt")])


@pytest.mark.slow
def test_plans(table):
    """Of a batch in parts the vectors are computed twice: a third more than forward and backward pass."""
    settings = [dict(num_accumulation_steps=count, num_steps_per_epoch=8) for count in (1, 2)]
    flops = [plan_lib.make_plan(table(**each), TASKS["embed"])["flops_per_step"] for each in settings]
    assert flops[1] / flops[0] == pytest.approx(4 / 3, rel=0.02)


def test_what_is_refused(table):
    cases = [
        ("pairs", dict(text_columns="query"), "names 1 column. Allowed with --task=embed: a query"),
        ("scores", dict(text_columns="a,b,c"), "names 3 columns. Allowed with --task=embed: two texts"),
        ("pairs", dict(pack=True), "--pack is not for --task=embed"),
        ("pairs", dict(loss_normalization="local"), "--loss_normalization=local is not for"),
        ("pairs", dict(scale_loss=True), "--scale_loss is not for"),
        ("pairs", dict(matryoshka_sizes="8,64"), "comma-separated numbers from 1 to hidden_size=32"),
        ("scores", dict(score_loss="cosine"), "cosines are from -1 to 1. Divide the scores"),
        ("pairs", dict(score_loss="cosine"), "score_loss=cosine needs --label_column"),
        ("scores", dict(score_loss="cosine", temperature=0.1), "--temperature=0.1 is not for --score_loss"),
        ("scores", dict(corpus_file="x"), "corpus_file excludes label_column"),
        ("pairs", dict(do_predict=True), "do_predict=True needs --task="),
        ("pairs", dict(early_stopping_metric="accuracy"), "is not a score of this task. Allowed: ndcg"),
        ("pairs", dict(eval_share=0.0), "Raise --eval_share"),
    ]
    assert_refused(lambda kind, settings: found_task(table(kind, **settings)), cases)
