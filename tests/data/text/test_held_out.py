"""Which documents are held out: the same ones, whatever is done to the files around them."""

import bz2
import collections
import gzip

from hypothesis import given
from hypothesis import strategies as st

from official.data.text import documents, preparation, read_counts, samples, sentences
from official.data.word_pieces.vocabulary import SPECIAL_TOKENS
from tests.data.pretraining.test_creation import create
from tests.data.text.test_documents import write

SHARE = 0.3
TEXTS = [
    f"Document {number} begins here. It has {number * 7} words, e.g. these.\nAnd a second paragraph, "
    f"number {number}. It ends."
    for number in range(60)
]


def plain(document) -> str:
    return "".join(" ".join(document).split())


def held_out_of(folder, splitting="auto") -> set[str]:
    """Returns the documents that `bert data prepare` holds out, without white space."""
    out = folder.parent / f"{folder.name}-{splitting}"
    flags = {"min_sentences": 1, "sentence_splitting": splitting, "num_workers": 1}
    preparation.prepare(preparation.Job(str(folder), str(out), SHARE, **flags))
    paths = sorted(map(str, (out / "eval").iterdir()))
    return set(map(plain, documents.read_documents(paths, read_counts.ReadCounts(), "never")))


def write_files(folder, contents: dict[str, bytes]):
    for name, content in contents.items():
        write(folder / name, content)
    return folder


def joined(texts) -> bytes:
    return ("\n\n".join(texts) + "\n").encode()


def test_a_document_stays_on_its_side_whatever_is_done_to_the_files(tmp_path):
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
    more = [f"A new document {number}. It is added." for number in range(40)]
    added = held_out_of(write_files(tmp_path / "more", {"0.txt": joined(more), "a.txt": joined(TEXTS)}))
    assert expected < added and added & {plain([text]) for text in TEXTS} == expected


WORDS = ["dogs", "cats", "run", "sleep", "here", "document", ".", ",", "it", "ends"]


def test_records_are_made_of_one_side_whatever_the_vocabulary(tmp_path):
    wanted = sum(samples.split_of(text, SHARE) == "eval" for text in TEXTS)
    digits = [prefix + digit for digit in "0123456789" for prefix in ("", "##")]
    text = write(tmp_path / "text.txt", joined(TEXTS))
    for words in (WORDS, WORDS + digits):
        folder = tmp_path / f"{len(words)}"
        vocab = write(folder / "vocab.txt", "\n".join([*SPECIAL_TOKENS, *words]) + "\n")
        made = {
            side: create(text, vocab, folder / side, eval_share=SHARE, side=side) for side in samples.SPLITS
        }
        assert made["eval"]["documents"] == wanted == made["train"]["other_side_documents"]
        assert made["train"]["documents"] == 60 - wanted == made["eval"]["other_side_documents"]
    whole = create(text, vocab, folder / "whole")
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
