"""Cleaning, splitting into sentences and sharing out, and the whole way from a dump of Wikipedia."""

import bz2
import dataclasses
import importlib.util
import os
import subprocess

import pytest

from official.data.text import documents, preparation
from official.io.errors import ConfigError
from tests.conftest import ROOT


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Plain text stays (as it is), e.g. 3 < 5.", "Plain text stays (as it is), e.g. 3 < 5."),
        (
            "Anarchism (; ) is  a {{cite web|x=1}} word , see <ref name=a>this</ref> formula_12.",
            "Anarchism is a word, see this.",
        ),
        ("'''Bold''' and [[link]] ( , )", "Bold and link"),
        ("\u2014 ...", ""),
        ("", ""),
    ],
)
def test_leftovers_of_markup_are_removed(text, expected):
    assert preparation.clean(text) == expected


def write_text(folder, count=200):
    folder.mkdir()
    for number in range(2):
        texts = [
            f"Document {number} {n} begins here. It goes on.\nAnd has a second paragraph."
            for n in range(count)
        ]
        (folder / f"wiki_{number:02d}").write_text(
            "".join(
                f'<doc id="{n}" url="" title="Title {n}">\nTitle {n}\n\n{text}\n</doc>\n'
                for n, text in enumerate([*texts, texts[0], "Short."])
            )
        )
    return folder


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def contents_of_data(folder):
    """Returns `contents` without what holds times."""
    found = contents(folder)
    return {path: data for path, data in found.items() if not path.endswith(("report.html", "speed.json"))}


def test_documents_are_shared_out_by_their_text(tmp_path, monkeypatch):
    text = write_text(tmp_path / "in")
    job = preparation.Job(str(text), str(tmp_path / "out"), eval_share=0.2)
    manifest = preparation.prepare(job)
    made = {
        side: list(
            documents.read_documents(
                sorted(map(str, (tmp_path / "out" / side).iterdir())), documents.ReadCounts(), "never"
            )
        )
        for side in preparation.SPLITS
    }
    assert manifest["train_documents"] == len(made["train"]) and manifest["eval_documents"] == len(
        made["eval"]
    )
    assert (
        len(made["train"]) + len(made["eval"]) == 402
        and 50 < len(made["eval"]) < 110
        and manifest["short_documents"] == 2
    )
    assert all(len(document) == 3 for side in made.values() for document in side)
    assert not {document[0] for document in made["train"]} & {
        document[0] for document in made["eval"]
    }  # a copy is on the side of its original
    monkeypatch.setattr(preparation, "_TASK_BYTES", 5000)
    again = preparation.prepare(
        preparation.Job(str(text), str(tmp_path / "split"), eval_share=0.2, num_workers=2)
    )
    assert again == manifest
    for side in preparation.SPLITS:
        joined = [
            b"".join(data for name, data in contents(tmp_path / folder).items() if name.startswith(side))
            for folder in ("out", "split")
        ]
        assert joined[0] == joined[1]


def test_an_interrupted_job_goes_on(tmp_path, monkeypatch):
    text, write_json, calls = write_text(tmp_path / "in"), preparation.jobs.write_json, []

    def fail(path, values, **options):
        calls.append(path)
        if len(calls) == 3:  # job.json, the first split, the second
            raise OSError(28, "No space left on device")
        write_json(path, values, **options)

    monkeypatch.setattr(preparation.jobs, "write_json", fail)
    monkeypatch.setattr(preparation, "_TASK_BYTES", os.path.getsize(text / "wiki_00"))  # a task for each file
    job = preparation.Job(str(text), str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="--output_dir=.*No space left.*goes on"):
        preparation.prepare(job)
    preparation.prepare(job)
    found = [os.path.basename(path) for path in calls[3:]]
    assert found == ["text-00001.json", "samples.json", "manifest.json"]
    preparation.prepare(preparation.Job(str(text), str(tmp_path / "whole")))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    written = len(calls)
    assert (
        preparation.is_finished(job)
        and preparation.prepare(job)["train_documents"] > 300
        and len(calls) == written
    )
    with pytest.raises(ConfigError, match="holds the files of an earlier run with other flags"):
        preparation.prepare(dataclasses.replace(job, min_sentences=3))


def test_what_is_made_again_leaves_no_part_of_before(tmp_path, monkeypatch):
    text = write_text(tmp_path / "in")
    job = preparation.Job(str(text), str(tmp_path / "out"))
    monkeypatch.setattr(preparation, "_TASK_BYTES", 5000)
    preparation.prepare(job)
    assert len(list((tmp_path / "out").glob("train/part-*.txt"))) > 2
    monkeypatch.undo()
    preparation.prepare(dataclasses.replace(job, overwrite=True))
    assert [path.name for path in (tmp_path / "out").glob("*/*")] == ["part-00000.txt"] * 2


@pytest.mark.parametrize(
    "changes, message",
    [({"eval_share": 0.0}, "--eval_share=0.0"), ({"min_sentences": 0}, "--min_sentences=0")],
)
def test_values_out_of_range(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        preparation.prepare(preparation.Job(str(tmp_path), str(tmp_path / "out"), **changes))


# ------------------------------------------------------------------------------------------------------------
# From a dump

PAGE = """  <page>
    <title>{title}</title>
    <ns>0</ns>
    <id>{number}</id>
    <revision>
      <id>{number}</id>
      <text xml:space="preserve">{text}</text>
    </revision>
  </page>
"""


def write_dump(path) -> str:
    words = "alpha beta gamma delta epsilon zeta eta theta".split()
    pages = []
    for number in range(1, 41):
        sentences = [
            f"'''Article {number}''' is about {words[number % 8]} and [[{words[n % 8]}]] in year {1900 + n}."
            for n in range(30)
        ]
        pages.append(
            PAGE.format(
                title=f"Article {number}",
                number=number,
                text=" ".join(sentences) + "\n\n== Section ==\nIt has a section. And an end.",
            )
        )
    head = (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="en">\n '
        " <siteinfo>\n    "
        '<base>https://en.wikipedia.org/wiki/Main_Page</base>\n    <namespaces>\n      <namespace key="0"'
        ' case="first-letter" />\n'
        '      <namespace key="10" case="first-letter">Template</namespace>\n    </namespaces>\n '
        " </siteinfo>\n"
    )
    path.write_bytes(bz2.compress((head + "".join(pages) + "</mediawiki>\n").encode()))
    return str(path)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("wikiextractor") is None,
    reason="wikiextractor is not installed (pip install '.[wikipedia]')",
)
def test_a_dump_becomes_records_and_nothing_is_done_twice(tmp_path):
    dump = write_dump(tmp_path / "enwiki-test-pages-articles.xml.bz2")
    command = [str(ROOT / "scripts" / "create_wikipedia_dataset.sh"), dump, str(tmp_path / "out")]
    environment = os.environ | {
        "SHAPES": "128:20 512:76",
        "EVAL_SHARE": "0.3",
        "DUPE_FACTOR": "2",
        "NUM_WORKERS": "2",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} >= {
        "text",
        "train_128_20",
        "eval_128_20",
        "train_512_76",
        "eval_512_76",
    }
    text = "".join(path.read_text() for side in ("train", "eval") for path in (out / "text" / side).iterdir())
    assert (
        text.count("Article 7 is about theta and beta in year 1901.\n") == 1
        and text.count("It has a section.\nAnd an end.\n") == 40
    )
    before = contents_of_data(out)
    (out / "eval_512_76" / "manifest.json").unlink()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert again.stdout.count("there already") == 4 and contents_of_data(out) == before


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "expected a dump and an output folder"),
        (["/nowhere.bz2", "{}"], "DUMP=/nowhere.bz2 is not a file"),
    ],
)
def test_a_wrong_command_line_of_the_shell_script(tmp_path, arguments, message):
    command = [
        str(ROOT / "scripts" / "create_wikipedia_dataset.sh"),
        *(argument.format(tmp_path) for argument in arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and message in done.stderr
