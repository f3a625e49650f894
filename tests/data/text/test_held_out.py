"""Which documents are held out: the same ones, whatever is done to the files around them."""

import bz2
import collections
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official.data.pretraining import creation, examples
from official.data.text import documents, preparation, read_counts, samples, sentences
from official.io.errors import ConfigError

SHARE = 0.3
TEXTS = [
    f"Document {number} begins here. It has {number * 7} words, e.g. these.\nAnd a second paragraph, "
    f"number {number}. It ends."
    for number in range(60)
]


def plain(document) -> str:
    return "".join(" ".join(document).split())


def held_out_of(folder, splitting="auto", workers=1) -> set[str]:
    """Returns the documents that `bert data prepare` holds out, without white space."""
    out = folder.parent / f"{folder.name}-{splitting}-{workers}"
    flags = {"min_sentences": 1, "sentence_splitting": splitting, "num_workers": workers}
    preparation.prepare(preparation.Job(str(folder), str(out), SHARE, **flags))
    paths = sorted(map(str, (out / "eval").iterdir()))
    return set(map(plain, documents.read_documents(paths, read_counts.ReadCounts(), "never")))


def write_files(folder, contents: dict[str, bytes]):
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def joined(texts) -> bytes:
    return ("\n\n".join(texts) + "\n").encode()


def test_a_document_stays_on_its_side_whatever_is_done_to_the_files(tmp_path, monkeypatch):
    expected = {plain([text]) for text in TEXTS if samples.split_of(text, SHARE) == "eval"}
    assert 8 < len(expected) < 30
    one = write_files(tmp_path / "one", {"a.txt": joined(TEXTS)})
    assert held_out_of(one) == held_out_of(one, "always") == held_out_of(one, "never") == expected
    cut = {
        "z.txt.gz": gzip.compress(joined(reversed(TEXTS[:20]))),
        "b.txt.bz2": bz2.compress(joined(TEXTS[20:40])),
        "c.txt": joined(TEXTS[40:]).replace(b"\n", b"\r\n"),
    }
    assert held_out_of(write_files(tmp_path / "cut", cut)) == expected
    monkeypatch.setattr(preparation, "_TASK_BYTES", 700)
    assert held_out_of(one, workers=2) == expected
    more = [f"A new document {number}. It is added." for number in range(40)]
    added = held_out_of(write_files(tmp_path / "more", {"0.txt": joined(more), "a.txt": joined(TEXTS)}))
    assert expected < added and added & {plain([text]) for text in TEXTS} == expected


WORDS = ["dogs", "cats", "run", "sleep", "here", "document", ".", ",", "it", "ends"]


def make_job(tmp_path, words, **changes) -> creation.Job:
    """Returns a job that makes records of TEXTS, with a vocabulary of a few words and all digits."""
    folder = tmp_path / f"records{len(list(tmp_path.iterdir()))}"
    vocab = tmp_path / f"vocab{len(words)}.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    text = tmp_path / "text.txt"
    text.write_bytes(joined(TEXTS))
    rules = examples.ExampleRules(32, 3, 1)
    return creation.Job(str(text), str(folder), str(vocab), rules, num_shards=2, **changes)


def test_records_are_made_of_one_side_whatever_the_vocabulary(tmp_path):
    wanted = sum(samples.split_of(text, SHARE) == "eval" for text in TEXTS)
    digits = [prefix + digit for digit in "0123456789" for prefix in ("", "##")]
    for words in (WORDS, WORDS + digits):
        made = {
            side: creation.create_pretraining_data(make_job(tmp_path, words, eval_share=SHARE, side=side))
            for side in samples.SPLITS
        }
        assert made["eval"]["documents"] == wanted == made["train"]["other_side_documents"]
        assert made["train"]["documents"] == 60 - wanted == made["eval"]["other_side_documents"]
    whole = creation.create_pretraining_data(make_job(tmp_path, WORDS + digits))
    assert whole["tokens"] == made["train"]["tokens"] + made["eval"]["tokens"]
    assert whole["other_side_documents"] == 0


@given(st.lists(st.lists(st.text("ab. \u00e9", min_size=1, max_size=5), max_size=3), max_size=6))
def test_blocks_of_lines_are_taken_apart_into_documents(made):
    expected = ["".join(f"{sentence}\n" for sentence in document).encode() for document in made]
    lines = sentences.Lines(b"".join(expected), samples.np.array([len(document) for document in made], int))
    assert samples.document_texts(lines) == expected
    counts: collections.Counter = collections.Counter()
    parts = [list(samples.of_split(iter([lines]), side, 0.5, counts)) for side in samples.SPLITS]
    assert sum(len(part.counts) for (part,) in parts) == len(made)
    assert sum(len(part.text) for (part,) in parts) == len(lines.text)
    assert counts["other_side_documents"] == sum(map(bool, made))


def test_a_side_needs_documents(tmp_path):
    with pytest.raises(ConfigError, match="hold 0 documents with text on --side=eval of --eval_share=1e-09"):
        creation.create_pretraining_data(make_job(tmp_path, WORDS, side="eval", eval_share=1e-9))
