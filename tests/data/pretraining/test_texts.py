"""The job that makes records of texts without pairs: in every format, of any tokenizer, and what is said of
them."""

import json

import numpy as np
import pytest
import tokenizers

from official.cli import records
from official.data.packing import creation as packing
from official.data.pretraining import creation, examples, inspection
from official.data.records import record_formats
from official.data.word_pieces.vocabulary import Vocabulary, load_vocabulary
from official.io.errors import ConfigError
from tests.data.pretraining.test_creation import LONG, MOST, WORDS, make_job, make_text, parsed, write

RULES = dict(dupe_factor=3, objective="mlm")


def make(text, vocab, folder, kind="plain", **rules) -> dict:
    own = examples.ExampleRules(LONG, MOST, **RULES, remask=kind == "remask", **rules)
    job = make_job(text, vocab, folder, rules=own, record_format=kind, num_shards=1)
    return creation.create_pretraining_data(job)


def test_texts_in_every_format_have_no_pairs_and_hold_every_token(tmp_path):
    """Of one document, too. What packs them hands the objective on."""
    vocab = write(tmp_path / "vocab.txt", "\n".join(WORDS) + "\n")
    words = Vocabulary(tuple(WORDS), "")
    firsts, made = {}, {}
    for kind, documents in (("plain", 10), ("compact", 10), ("remask", 10), ("plain", 1)):
        out = tmp_path / f"{kind}{documents}"
        manifest = made[out.name] = make(make_text(tmp_path / "text.txt", documents), vocab, out, kind)
        flags = manifest["flags"]
        assert (flags["objective"], flags["short_seq_prob"], manifest["random_next"]) == ("mlm", 0.0, 0)
        shard = str(out / "part-00000-of-00001.tfrecord")
        assert record_formats.objective_of(shard) == "mlm"
        values = parsed(shard, kind)
        assert not values["segment_ids"].any() and not values["next_sentence_labels"].any()
        tokens = values["input_mask"].sum() - 2 * len(values["input_mask"])
        assert tokens == 3 * manifest["tokens"]
        firsts.setdefault(kind, values)
        summary = inspection.summarize([shard], words)
        shown = records.describe_records(summary, summary.shares(), words)
        assert summary.pairs == 0 and shown.endswith("no pairs: texts, as of --objective=mlm")
    for name, values in firsts["plain"].items():
        assert np.array_equal(values, firsts["compact"][name]), name
    folder = tmp_path / "plain10"
    records.write_card_beside(str(folder), [str(folder / name) for name in made["plain10"]["files"]])
    page = (folder / "report.html").read_text()
    assert "Objective mlm, format plain" in page and "random next segment" not in page
    assert "3 times, with other masks each time" in page
    packing.pack_records(packing.Job(str(tmp_path / "compact10"), str(tmp_path / "packed"), num_shards=1))
    assert record_formats.objective_of(str(tmp_path / "packed" / "part-00000-of-00001.tfrecord")) == "mlm"


@pytest.fixture
def roberta(tmp_path) -> str:
    """Returns a folder with a byte-level BPE tokenizer, whose pairs are <s> A </s></s> B </s>."""
    folder = tmp_path / "roberta"
    folder.mkdir()
    bpe = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    lines = [" the cat sat word x\u00e9z cats ."] * 9
    bpe.train_from_iterator(lines, vocab_size=300, special_tokens=special, show_progress=False)
    bpe.save_model(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    return str(folder)


def test_whole_words_of_a_tokenizer_without_segments(roberta, tmp_path):
    """Their sentences stand behind each other without a space; pairs are refused."""
    text, words = make_text(tmp_path / "text.txt", 10), load_vocabulary(roberta)
    make(text, roberta, tmp_path / "out", do_whole_word_mask=True)
    values = parsed(tmp_path / "out" / "part-00000-of-00001.tfrecord", "plain", words.size)
    pad, _, cls, sep, mask = words.special_ids
    continues = words.continuations()
    for ids, length, places, labels, weights in zip(
        values["input_ids"],
        values["input_mask"].sum(axis=1),
        values["masked_lm_positions"],
        values["masked_lm_ids"],
        values["masked_lm_weights"],
    ):
        assert ids[0] == cls and ids[length - 1] == sep and (ids[length:] == pad).all()
        chosen, original = places[weights > 0], ids.copy()
        original[chosen] = labels[weights > 0]
        assert mask not in original and (ids[chosen] == mask).sum() <= len(chosen)
        for place in range(2, length - 1):  # a full stop ends a sentence, and goes on with its last word
            before = words.words[original[place - 1]]
            if continues[original[place]] and not before.endswith("."):
                assert (place in chosen) == (place - 1 in chosen)
    with pytest.raises(ConfigError, match="gives both the segment 0. Give --objective=mlm"):
        creation.create_pretraining_data(make_job(text, roberta, tmp_path / "pairs"))
