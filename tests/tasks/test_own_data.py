"""People's own data: every kind of label is learned from a table, and predicted for another."""

import csv
import dataclasses
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from official import config as config_lib
from official.checkpoint import model_card
from official.checkpoint.convert import convert
from official.cli import ask
from official.data.tables import tags as tags_lib
from official.data.tables.files import open_table
from official.inference import load
from official.inference.predict_file import predict_file
from official.io.errors import ConfigError
from official.optimization import optimizers
from official.tasks import TASKS
from official.training.loop import RunLoop
from tests.fine_tuning_files import COLOURS
from tests.fixtures import slow
from tests.refusals import assert_refused
from tests.run_folders import assert_resumes, run, state_of
from tests.tasks.test_fine_tuning import found_task
from tests.tasks.test_layouts import assert_same_as_plain

THINGS = ("ball", "box", "sky", "sea", "sun", "hat")
TRAINED = []  # the folder of one run, for all tests


def sentences(count, seed):
    """Returns (colour, text) pairs: the colour is named in the text."""
    generator = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        colour, words = generator.choice(COLOURS), list(generator.choice(THINGS, generator.integers(1, 6)))
        words.insert(int(generator.integers(0, len(words) + 1)), colour)
        pairs.append((str(colour), " ".join(words)))
    return pairs


def write_table(path, head, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])
    return str(path)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(name="table")
def fixture_table(tmp_path, make):
    """Returns a function that builds a configuration of a kind of label, on a table that can be learned."""

    def table(kind="one", count=160, **settings):
        label = {
            "one": lambda text, colour: colour,
            "several": lambda text, colour: [word for word in ("ball", colour) if word in text.split()],
            "number": lambda text, colour: 100.0 * COLOURS.index(colour),
            "choice": lambda text, colour: colour,
        }[kind]
        choices = dict(zip("abc", COLOURS)) if kind == "choice" else {}
        rows = [
            {"text": text, **choices, "label": label(text, colour)} for colour, text in sentences(count, 1)
        ]
        defaults = dict(train_file=write_lines(tmp_path / f"{kind}.jsonl", rows), label_kind=kind)
        defaults |= dict(num_train_epochs=6, text_columns="text,a,b,c" if choices else None)
        return make("classify", **{**defaults, **settings})

    return table


@pytest.fixture(name="tags")
def fixture_tags(tmp_path, make):
    """Returns a function that builds a configuration of tagged words: colours, and what follows them."""

    def tags(count=160, words=12, **settings):
        generator = np.random.default_rng(2)
        lines = []
        for _ in range(count):
            chosen = generator.choice([*THINGS, *COLOURS], generator.integers(1, words))
            is_colour = np.isin(chosen, COLOURS)
            for place, word in enumerate(chosen):
                tag = "B-C" if is_colour[place] else "I-C" if place and is_colour[place - 1] else "O"
                lines.append(f"{word}\t{tag}")
            lines.append("")
        path = tmp_path / "train.conll"
        path.write_text("\n".join(lines) + "\n")
        return make("tag", **{"train_file": str(path), "num_train_epochs": 12, **settings})

    return tags


# ------------------------------------------------------------------------------------------------------------
# From files to scores


SCORES = {"one": "accuracy", "several": "micro_f1", "number": "spearman", "choice": "accuracy"}


@pytest.mark.parametrize("kind", ["one", slow("several"), slow("number"), slow("choice")])
def test_every_kind_of_label_is_learned(table, tmp_path, kind):
    result = run(table(kind, model_dir=kind, steps_per_loop=54, steps_between_eval=54))
    assert result.status == "finished" and result.scores[SCORES[kind]] > 0.7, result.scores
    kept = json.loads((tmp_path / kind / "labels.json").read_text())
    written = json.loads((tmp_path / kind / "result.json").read_text())
    assert kept["kind"] == kind
    if kind == "one":
        assert {"Confusion matrix", "Scores by label", "Lengths of the texts"} <= set(written["tables"])
        assert written["majority_prediction"] in COLOURS
        TRAINED.append(str(tmp_path / "one"))
    if kind == "several":
        assert kept["labels"] == ["ball", "blue", "green", "red"] and len(kept["thresholds"]) == 4
    if kind == "number":
        assert written["root_mean_squared_error"] < 40  # of a deviation of 80
    if kind == "choice":
        assert 'pipeline_tag: "multiple-choice"' in str(model_card.of_run(str(tmp_path / "choice")))


def test_results_of_other_programs_have_no_model_card(tmp_path):
    for told in ('{"config": "base"}', '{"config": {"task": ["tag"]}, "evaluations": []}'):
        (tmp_path / "result.json").write_text(told)
        assert model_card.of_run(str(tmp_path)) is None


def test_thresholds_are_those_of_the_training_alone(table, tmp_path):
    """Its predictions have them, and an evaluation chooses none on the rows that it scores."""
    train_file = table("several").train_file
    task = found_task(table("several", do_predict=True, predict_file=train_file))
    truths, names = task._truths() > 0, task.labels.names
    logits = np.where(truths, -1.0, -3.0)
    assert task.score({"logits": logits})["micro_f1"] == 1.0
    all_the_same = np.full((len(task._rows["test"]), len(names)), -1.0)
    (path,) = task.write_predictions({"logits": all_the_same}, str(tmp_path))
    with open(path, newline="") as file:
        found = {row["labels"] for row in csv.DictReader(file)}
    assert found == {json.dumps([name for name, there in zip(names, truths.any(axis=0)) if there])}

    known = tmp_path / "known"
    known.mkdir()
    evaluated = table("several", model_dir="known", do_train=False, eval_file=train_file)
    said = {"labels": names, "problem_type": task.problem_type, "thresholds": [0.5, 0.9, 0.2, 0.2]}
    (known / "labels.json").write_text(json.dumps(said))
    task = found_task(evaluated)
    logits = np.where(task._truths() > 0, 1.0, -3.0)  # 0.73
    recalls = [row[3] for row in task.tables({"logits": logits})["Scores by label"][1:]]
    assert recalls == [1.0, 0.0, 1.0, 1.0] and task.score({"logits": logits})["accuracy"] < 1.0

    (known / "labels.json").unlink()  # a model of transformers is scored by its own names
    said = {"model_type": "bert", "problem_type": task.problem_type, "id2label": dict(enumerate(names[::-1]))}
    (known / "config.json").write_text(json.dumps(said))
    labels = found_task(evaluated).labels
    assert (labels.names, labels.thresholds) == (names[::-1], ())


def test_duplicates_are_on_one_side_and_added_rows_move_none(table, tmp_path):
    def sides(rows):
        read = found_task(table(train_file=write_lines(tmp_path / "own.jsonl", rows)))._read
        return {split: {rows[number - 1]["text"] for number in read[split].numbers} for split in read}

    rows = [{"text": text, "label": colour} for colour, text in sentences(300, 3)]
    first = sides(rows)
    assert not first["train"] & first["eval"] and 0.03 < len(first["eval"]) / len(first["train"]) < 0.3
    more = sides([{"text": "red sky " * 3, "label": "red"}, *rows, *rows])
    assert first["eval"] <= more["eval"] and first["train"] <= more["train"]


def test_rows_that_are_trained_on_and_scored_are_told(table, tags, tmp_path, caplog):
    rows = [{"text": text, "label": colour} for colour, text in sentences(40, 3)]
    path = write_lines(tmp_path / "eval.jsonl", [*rows[:2], {"text": "red sea " * 4, "label": "red"}])
    train_file = write_lines(tmp_path / "own.jsonl", rows)
    found_task(table(train_file=train_file, eval_file=path))
    assert "2 of 3 rows are in --train_file, too" in caplog.text
    caplog.clear()
    found_task(table(train_file=train_file))
    assert "--train_file, too" not in caplog.text
    found_task(tags(count=8, eval_file=tags(count=8).train_file))
    assert "8 of 8 sentences are in --train_file, too" in caplog.text


def test_tags_are_learned_and_long_sentences_are_whole(tags, tmp_path, monkeypatch):
    path = tmp_path / "new.conll"
    path.write_text("red\nball\nsky\n\n" + "sea\n" * 60 + "blue\nbox\n")
    result = run(tags(do_predict=True, predict_file=str(path), steps_per_loop=40, steps_between_eval=120))
    assert result.scores["f1"] > 0.75 and result.scores["strict_f1"] > 0.75
    assert [row[0] for row in result.tables["Scores by type"]] == ["type", "C"]
    predicted = tmp_path / "run" / "predictions.conll"
    read = tags_lib.read_sentences(str(predicted), "train_file", True)
    sentences_of = [one.split() for one in path.read_text().split("\n\n")]
    assert [one.words for one in read] == sentences_of
    short, long = (one.tags for one in read)
    assert short[:2] == ["B-C", "I-C"] and long[-2] == "B-C" and set(long[:60]) == {"O"}

    # The same from a file to a file, whatever the format of the input; a row without words is a sentence.
    model, output = load(str(tmp_path / "run")), tmp_path / "out.conll"
    tokens = write_lines(tmp_path / "new.jsonl", [{"tokens": words} for words in [*sentences_of, []]])
    texts = write_table(tmp_path / "new.csv", ["tokens"], [[" ".join(words)] for words in sentences_of])
    asked = ["bert", f"--checkpoint={tmp_path}/run", f"--output_file={output}", "--overwrite"]

    def predict(given, columns="tokens"):
        monkeypatch.setattr("sys.argv", [*asked, f"--input_file={given}", f"--text_columns={columns}"])
        ask.run_predict()

    for given, more in ((path, ""), (tokens, "\n"), (texts, "")):
        predict(given)
        monkeypatch.setattr(ask, "load", lambda flags: model)  # once is enough
        assert output.read_text() == predicted.read_text() + more, given
    wrong = [(path, "words", "CoNLL files have only tokens")]
    wrong += [(texts, "tokens,more", "2 columns (tokens,more), the model can tag of 1")]
    assert_refused(predict, wrong)
    tagged, columns = tags_lib.open_conll(str(output), "input_file"), tmp_path / "out.jsonl"
    predict_file(model.columns_of, tagged, ["tokens"], str(columns), {}, with_words=True)
    first = json.loads(columns.read_text().splitlines()[0])
    assert (first["tokens"], first["tags"]) == (read[0].words, read[0].tags)
    assert [one["text"] for one in json.loads(first["entities"])] == ["red ball"]


def test_tags_without_prefixes_and_another_scheme_are_told(tags, tmp_path, caplog):
    for names, is_told in ((("0", "3"), True), (("O", "PER"), True), (("NOUN", "VERB"), False)):
        rows = [{"tokens": ["red", f"ball{number}"], "ner_tags": names} for number in range(40)]
        path = write_lines(tmp_path / "train.jsonl", rows)
        caplog.clear()
        found_task(tags(train_file=path))
        assert ("is an entity of one word" in caplog.text) == is_told, names
    (tmp_path / "eval.conll").write_text("red B-C\n\nball O\nred I-C\n")
    found_task(tags(count=8, eval_file=str(tmp_path / "eval.conll")))
    assert "--eval_file, sentence 2: 'I-C' after 'O', which IOB2 does not have" in caplog.text


@pytest.mark.slow
def test_a_run_resumes_to_the_same_bits(table):
    assert_resumes(table, 20, 40, num_train_epochs=2, num_steps_per_epoch=20, deterministic=True)


# ------------------------------------------------------------------------------------------------------------
# One loss, however it is computed


def test_new_heads_begin_with_the_whole_deviation(table, tags):
    """Google's initializer gives 0.88 of it; transformers' gives the whole."""
    tf.random.set_seed(1)
    for make in (table, tags):
        model = {**dataclasses.asdict(make().model), "hidden_size": 512}
        config = make(count=40, do_eval=False, model=model)
        first = found_task(config).build_model().head.output_weights.numpy()
        assert first.std() == pytest.approx(config.model.initializer_range, rel=0.06), config.task


@pytest.mark.parametrize("name", [slow("classify"), "tag"])  # the former: see also test_teacher.py
def test_losses_and_gradients_do_not_depend_on_packing_and_padding(table, tags, name):
    make_config = table if name == "classify" else tags
    assert_same_as_plain(make_config, TASKS[name], [dict(pack=True), dict(unpad=True)], ("key/bias",))


# ------------------------------------------------------------------------------------------------------------
# Options of training


@pytest.mark.parametrize("kernels", ["plain", "fused", "native"])
def test_layers_have_their_share_of_the_rate(table, kernels):
    model = {**table().model.__dict__, "num_hidden_layers": 2}
    config = table(num_steps_per_epoch=9, layer_decay=0.5, kernels=kernels, model=model)
    task = TASKS["classify"](config)
    state = optimizers.make_state(config, task.build_model, tf.distribute.get_strategy())
    before = {variable.name: variable.numpy() for variable in state.model.trainable_variables}
    gradients = [tf.ones_like(variable) for variable in state.model.trainable_variables]
    rate = float(state.optimizer._learning_rate(state.optimizer.iterations))
    state.optimizer.update(gradients, state.model.trainable_variables, tf.constant(1.0))
    assert int(state.optimizer.iterations) == 1
    shares = {"embeddings/": 0.5**3, "layer_0/": 0.25, "layer_1/": 0.5, "pooler/": 1.0, "output_bias": 1.0}
    for variable in state.model.trainable_variables:
        share = next((share for part, share in shares.items() if part in variable.name), None)
        if share and variable.name.endswith(("bias:0", "beta:0")):  # not decayed: the step is the rate
            moved = np.abs(before[variable.name] - variable.numpy()).max()
            assert moved == pytest.approx(rate * share, rel=1e-3) and rate > 0, variable.name


def test_frozen_layers_stay(table, tmp_path):
    every = dict(steps_per_loop=1, checkpoint_every_steps=1, keep_checkpoints=3)
    run(table(freeze_layers=1, stop_steps=3, do_eval=False, **every))
    first, last = (state_of(tmp_path / "run", step) for step in (1, 3))
    names = ("bert/embeddings/word_embeddings", "bert/encoder/layer_0/output/dense/kernel", "output_weights")
    moved = {name.partition("/layer_0")[0]: not np.array_equal(first[name], last[name]) for name in names}
    assert moved == {"bert/embeddings/word_embeddings": False, "bert/encoder": False, "output_weights": True}


def test_no_better_evaluations_stop_a_run(table, tmp_path, monkeypatch):
    scores = iter([0.5, 0.7, 0.6, 0.7, 0.9])
    monkeypatch.setattr(RunLoop, "evaluate", lambda self: {"accuracy": next(scores), "loss": 1.0})
    result = run(table(early_stopping_patience=2, steps_between_eval=5))
    assert (result.status, result.step) == ("finished", 20) and "no better accuracy in 2" in result.reason
    with pytest.raises(ConfigError, match="did you mean accuracy"):
        TASKS["classify"](table(early_stopping_metric="acuracy"))


# ------------------------------------------------------------------------------------------------------------
# The folder of the weights, and of the result


@pytest.fixture(name="fine_tuned")
def fixture_fine_tuned(table, tmp_path):
    """Returns the folder of a run."""
    if not TRAINED:
        run(table(num_train_epochs=3))
        TRAINED.append(str(tmp_path / "run"))
    return TRAINED[0]


def test_a_folder_of_weights_is_enough(table, fine_tuned, tmp_path):
    convert(fine_tuned, "huggingface", str(tmp_path / "hf"))
    common = dict(task="classify", train_file=table().train_file, model_dir=str(tmp_path / "new"))

    def build(**settings):
        return config_lib.build_config([("test", {**common, **settings})])

    for folder in (fine_tuned, str(tmp_path / "hf")):
        config = build(init_checkpoint=folder)
        assert (config.model.hidden_size, config.max_seq_length) == (table().model.hidden_size, 48)
        assert config.vocab_file == os.path.join(folder, "vocab.txt") and config.do_eval
    other = tmp_path / "other.txt"
    other.write_text((tmp_path / "vocab.txt").read_text().replace("hat", "cap"))
    of_run = dict(init_checkpoint=fine_tuned)
    cases = [
        (dict(of_run, vocab_file=str(other)), "other words"),
        (dict(of_run, do_lower_case=False), "do_lower_case"),
        (dict(of_run, max_seq_length=64), "max_position_embeddings"),
        ({}, "Give the folder of an encoder"),
    ]
    assert_refused(lambda settings: build(**settings), cases)
    first = min(int(path.stem.partition("-")[2]) for path in pathlib.Path(fine_tuned).glob("ckpt-*.index"))
    shutil.copytree(fine_tuned, tmp_path / "copy")
    result = tmp_path / "copy" / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "best_step": first}))
    report = convert(str(tmp_path / "copy"), "huggingface", str(tmp_path / "best"))
    assert report["source"]["path"] == str(tmp_path / "copy" / f"ckpt-{first}")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "pipeline_tag" in card and "| accuracy |" in card and "`red`" in card
    assert json.loads((tmp_path / "hf" / "labels.json").read_text())["kind"] == "one"


def test_predictions_of_a_file_are_those_of_the_model(fine_tuned, tmp_path, monkeypatch):
    rows = [[str(number), text, "old"] for number, (_, text) in enumerate(sentences(60, 9))]
    rows[7][1] = " "
    path = write_table(tmp_path / "new.csv", ["id", "text", "label"], rows)
    model, table = load(fine_tuned), open_table(path, "input_file", ["text"])
    for ending in (".csv", ".tsv", ".jsonl", ".parquet"):
        output = str(tmp_path / f"out{ending}")
        assert predict_file(model.columns_of, table, ["text"], output, {}) == 60
        columns = open_table(output, "x")
        (batch,) = columns.batches()
        expected = model.classify([row[1] for row in rows if row[1].strip()])
        labels = [label for label in batch.columns["predicted_label"] if label]
        assert batch.columns["label"] == ["old"] * 60 and labels == [each.label for each in expected], ending
        with pytest.raises(ConfigError, match="exists. Give another one"):
            predict_file(model.columns_of, table, ["text"], output, {})
    files = [f"--input_file={path}", f"--output_file={tmp_path}/out.conll"]
    monkeypatch.setattr("sys.argv", ["bert", f"--checkpoint={fine_tuned}", *files])
    with pytest.raises(ConfigError, match=r"\.conll is for tags, and the model can classify"):
        ask.run_predict()


@pytest.mark.parametrize("ending, is_changed", [(".csv", False), (".jsonl", True)])
def test_a_prediction_that_is_cut_goes_on_to_the_same_file(tmp_path, monkeypatch, ending, is_changed):
    """Rows that were changed meanwhile are predicted anew, also where the digest of the file, which sees its
    first 64 KiB, is the same."""
    monkeypatch.setattr("official.inference.predict_file.PART_ROWS", 16)
    if is_changed:
        monkeypatch.setattr("official.io.files.digest", lambda paths: {})
    rows, calls = sentences(60, 5), []
    output, parts = tmp_path / f"out{ending}", tmp_path / f"out{ending}.parts"

    def predict(texts):
        calls.append(texts)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {"length": [len(text) for (text,) in texts]}

    def predicted(path):
        table = open_table(write_table(tmp_path / "new.csv", ["label", "text"], rows), "input_file", ["text"])
        predict_file(predict, table, ["text"], str(path), {})
        return path.read_bytes()

    with pytest.raises(KeyboardInterrupt):
        predicted(output)
    assert not output.exists()
    if is_changed:
        rows[20] = ("red", "another text")
        (parts / "mine.txt").write_text("somebody's")
    found = predicted(output)
    assert len(calls) == 3 + (3 if is_changed else 2)  # of four parts two are left; the second one is changed
    assert (
        parts.exists() == is_changed and [path.name for path in parts.glob("*")] == ["mine.txt"] * is_changed
    )
    assert found == predicted(tmp_path / f"whole{ending}")


# ------------------------------------------------------------------------------------------------------------
# Bad input


def test_bad_tables_are_named(table, tags, tmp_path):
    good = [{"text": text, "label": colour} for colour, text in sentences(40, 1)]
    other = write_lines(tmp_path / "other.jsonl", [{"text": "x", "label": "reed"}] * 3)

    def find(rows, settings):
        found_task(table(train_file=write_lines(tmp_path / "bad.jsonl", rows or good), **settings))

    cases = [
        ([], dict(label_column="lable"), "did you mean label"),
        ([{**row, "label": "red"} for row in good], {}, "only the label 'red'"),
        ([{**row, "label": [0, 1]} for row in good], dict(label_kind="several"), "the label '0' and '1'"),
        ([{**row, "label": -1} for row in good], dict(label_kind="number"), "only the label -1"),
        ([{**row, "label": []} for row in good], dict(label_kind="several"), "no label"),
        ([{**row, "label": None} for row in good], {}, "cannot be used"),
        ([{**row, "label": number} for number, row in enumerate(good * 40)], {}, "label_kind=number"),
        ([], dict(text_columns="text,label,x"), "one, or two for pairs"),
        ([], dict(text_columns="text,label"), "--label_column=label is one of --text_columns"),
        ([], dict(label_kind="number", class_weights="balanced"), "not for --label_kind=number"),
        ([], dict(label_kind="number", label_smoothing=0.1), "--label_smoothing=0.1 is not for numbers"),
        ([], dict(eval_file=other), "is not in the training set"),
    ]
    assert_refused(find, cases)


def test_rows_that_cannot_be_used_are_counted(table, tmp_path, caplog):
    good = [{"text": text, "label": colour} for colour, text in sentences(40, 1)]
    rows = [{"text": "", "label": "red"}, *good, {"text": "x"}, {"label": "red"}]
    rows += [{"text": "x", "label": "red", "answer": "reject"}]  # of Prodigy
    rows += [{"text": text, "label": "red", "weight": 2} for text in ("nan", "\\N")]
    caplog.set_level("INFO", logger="absl")
    digest = found_task(table(train_file=write_lines(tmp_path / "some.jsonl", rows))).data_digest()
    told = ["row 1: has no text", "row 42: has no label", "row 43: has no text"]
    told += ["row 44: answer is 'reject', of Prodigy"]
    assert digest["train"]["problems"] == told
    assert digest["train"]["left_out"] == 4 and "1 row with the text 'nan'" in caplog.text
    assert "1 row with the text '\\\\N', which many files have for a missing one" in caplog.text
    assert "label from 'label'; not read: weight\n" in caplog.text
