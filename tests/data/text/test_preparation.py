"""Cleaning, splitting into sentences and sharing out, and the whole way from a dump of Wikipedia."""

import bz2
import dataclasses
import shutil

import pytest

from official.data.text import documents, preparation
from official.io.errors import ConfigError
from tests import programs
from tests.data.text.mediawiki_dump import make_dump, needs_extractor
from tests.data.text.test_documents import write
from tests.fixtures import ROOT


def test_leftovers_of_markup_are_removed():
    for text, expected in (
        ("Plain text stays (as it is), e.g. 3 < 5.", "Plain text stays (as it is), e.g. 3 < 5."),
        (
            "It (; ) is  a {{cite web|x=1}} word , see <ref name=a>this</ref> formula_12.",
            "It is a word, see this.",
        ),
        ("'''Bold''' and [[link]] ( , )", "Bold and link"),
        ("\u2014 ...", ""),
        ("a (" + " " * 10**6 + "b", "a ( b"),  # whose time would grow with the square
    ):
        assert preparation.clean(text) == expected


def contents(folder, left_out=()):
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in left_out]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_documents_are_shared_out_by_their_text(tmp_path, monkeypatch):
    for number in range(2):
        texts = [f"Document {number} {n} begins here. It goes on.\nA second. It ends." for n in range(200)]
        write(tmp_path / "in" / f"{number}.txt", "\n\n".join([*texts, texts[0], "Short."]))
    job = preparation.Job(str(tmp_path / "in"), str(tmp_path / "out"), eval_share=0.2)
    manifest = preparation.prepare(job)
    made = {}
    for side in preparation.SPLITS:
        paths = sorted(map(str, (tmp_path / "out" / side).iterdir()))
        made[side] = list(documents.read_documents(paths, documents.ReadCounts(), "never"))
        assert manifest[f"{side}_documents"] == len(made[side])
    assert len(made["train"]) + len(made["eval"]) == 402 and 50 < len(made["eval"]) < 110
    assert manifest["short_documents"] == 2
    assert all(len(document) == 4 for side in made.values() for document in side)
    firsts = [{document[0] for document in side} for side in made.values()]
    assert not firsts[0] & firsts[1]  # a copy is on the side of its original
    both = dataclasses.replace(job, input_files=job.output_dir, output_dir=str(tmp_path / "of_both"))
    with pytest.raises(ConfigError, match="out/manifest.json is not text: .* such as .*out/train[.]"):
        preparation.prepare(both)
    monkeypatch.setattr(preparation, "_TASK_BYTES", 5000)
    again = preparation.prepare(dataclasses.replace(job, output_dir=str(tmp_path / "split"), num_workers=2))
    assert again == manifest
    for side in preparation.SPLITS:
        one, several = (contents(tmp_path / folder / side) for folder in ("out", "split"))
        assert b"".join(one.values()) == b"".join(several.values()) and len(several) > len(one) == 1


# ------------------------------------------------------------------------------------------------------------
# From a dump


@pytest.mark.slow
@needs_extractor
def test_a_dump_becomes_records_and_nothing_is_done_twice(tmp_path):
    dump = tmp_path / "enwiki-test-pages-articles.xml.bz2"
    dump.write_bytes(bz2.compress(make_dump(60, filler=20).encode()))
    out, program = tmp_path / "out", ROOT / "scripts" / "create_wikipedia_dataset.sh"
    flags = {"SHAPES": "128:20 512:76", "EVAL_SHARE": "0.3", "DUPE_FACTOR": "2", "NUM_WORKERS": "2"}
    done = programs.call(program, dump, out, **flags)
    assert done.returncode == 0, done.stderr
    sets = {f"{side}_{shape}" for side in ("train", "eval") for shape in ("128_20", "512_76")}
    assert {path.name for path in out.iterdir()} >= {"text", *sets}
    text = "".join(path.read_text() for side in ("train", "eval") for path in (out / "text" / side).iterdir())
    assert text.count("Sentence 7 of 8 says theta & 56.\n") == 1
    assert text.count("After the table it goes on.\nIt ends here.\n") == 42
    before = contents(out, ("report.html", "speed.json"))
    shutil.rmtree(out / "eval_512_76")
    done = programs.call(program, dump, out, **flags)
    assert done.returncode == 0 and done.stdout.count("there already") == 4
    assert contents(out, ("report.html", "speed.json")) == before
