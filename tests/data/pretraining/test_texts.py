"""The job that makes records of texts without pairs: in every format, of any tokenizer, and what is said of
them."""

import functools
import json

import numpy as np
import pytest
import tokenizers

from official.cli import records
from official.data.packing import creation as packing
from official.data.pretraining import examples, inspection
from official.data.records import files as record_files
from official.data.records import record_formats
from official.data.word_pieces.vocabulary import Vocabulary, load_vocabulary
from official.io.errors import ConfigError
from tests.data.pretraining.test_creation import LONG, WORDS, create, make_text, parsed, write
from tests.refusals import assert_refused

COPIES = 3
RULES = examples.ExampleRules(LONG, dupe_factor=COPIES, objective="mlm")
make = functools.partial(create, rules=RULES, num_shards=1)


def test_texts_in_every_format_have_no_masks_and_hold_every_token(tmp_path, with_and_without_library):
    """Of one document, too. What packs them hands the objective on."""
    vocab = write(tmp_path / "vocab.txt", "\n".join(WORDS) + "\n")
    words = Vocabulary(tuple(WORDS), "")
    pad, _, cls, sep, mask = words.special_ids
    firsts, made = {}, {}
    for kind, documents in (("plain", 10), ("compact", 10), ("plain", 1)):
        out = tmp_path / f"{kind}{documents}"
        text = make_text(tmp_path / "text.txt", documents)
        manifest = made[out.name] = make(text, vocab, out, record_format=kind)
        flags = manifest["flags"]
        assert (flags["objective"], flags["masked_lm_prob"], manifest["masked_tokens"]) == ("mlm", 0.0, 0)
        shard = str(out / "part-00000-of-00001.tfrecord")
        assert record_formats.flags_of(shard)["objective"] == "mlm" and not record_files.store_masks([shard])
        values = parsed(shard, kind, most=0)
        ids, lengths = values["input_ids"], values["input_mask"].sum(axis=1)
        assert not values["segment_ids"].any() and not values["next_sentence_labels"].any()
        assert not values["masked_lm_positions"].size and mask not in ids
        assert ((ids != pad) & ~np.isin(ids, [cls, sep])).sum() == COPIES * manifest["tokens"]
        assert (ids[:, 0] == cls).all() and (ids[np.arange(len(ids)), lengths - 1] == sep).all()
        # One row for each end of a document may be a token short, and one in all less than full.
        assert (lengths < LONG - 1).sum() <= 1 and (lengths == LONG).mean() > 0.9
        firsts.setdefault(kind, values)
        summary = inspection.summarize([shard], words)
        shown = records.describe_records(summary, summary.shares(), words)
        assert summary.pairs == 0 and shown.endswith("no pairs: texts, as of --objective=mlm")
        assert "no masks: bert train draws them (--mask_share)" in shown
    for name, values in firsts["plain"].items():
        assert np.array_equal(values, firsts["compact"][name]), name
    folder = tmp_path / "plain10"
    records.write_card_beside(str(folder), [str(folder / name) for name in made["plain10"]["files"]])
    page = (folder / "report.html").read_text()
    assert "Objective mlm, format plain; no masks: training draws them" in page
    assert "3 times, with other cuts each time" in page and "random next segment" not in page
    packing.pack_records(packing.Job(str(tmp_path / "compact10"), str(tmp_path / "packed"), num_shards=1))
    shards = [str(tmp_path / name / "part-00000-of-00001.tfrecord") for name in ("compact10", "packed")]
    assert record_formats.flags_of(shards[1])["objective"] == "mlm"
    assert not record_files.store_masks(shards[1:])
    before, after = (inspection.summarize([shard], words).tokens for shard in shards)
    assert before == after


def test_rules_of_masks_are_refused_for_texts():
    rules = dict(max_predictions_per_seq=20, masked_lm_prob=0.15, short_seq_prob=0.1)
    rules |= dict(do_whole_word_mask=True, remask=True)
    said = "--{}={} does not go with --objective=mlm".format
    cases = [(name, value, said(name, value)) for name, value in rules.items()]
    assert_refused(lambda name, value: examples.ExampleRules(objective="mlm", **{name: value}), cases)


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


def test_rows_are_those_of_the_tokenizer(roberta, tmp_path):
    """<s> text </s>, and </s> between documents. Pairs are refused."""
    text, words = make_text(tmp_path / "text.txt", 10), load_vocabulary(roberta)
    make(text, roberta, tmp_path / "out")
    values = parsed(tmp_path / "out" / "part-00000-of-00001.tfrecord", "plain", words.size, most=0)
    pad, _, cls, sep, _ = words.special_ids
    lengths = values["input_mask"].sum(axis=1)
    for ids, length in zip(values["input_ids"], lengths):
        assert ids[0] == cls and ids[length - 1] == sep and (ids[length:] == pad).all()
    assert (lengths == LONG).mean() > 0.9
    inside = (values["input_ids"] == sep).sum() - len(lengths)
    assert 0 < inside < 11 * COPIES  # of eleven documents; others stand at the ends of rows
    with pytest.raises(ConfigError, match="gives both the segment 0. Give --objective=mlm"):
        create(text, roberta, tmp_path / "pairs")
