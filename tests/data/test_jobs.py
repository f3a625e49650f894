"""What the jobs of data have in common: the same bytes from any number of processes, from regrouped blocks
and after interruptions; folders that are in use; input files that change while they are read.
"""

import hashlib
import itertools
import json
import os
import pathlib
import shutil
from functools import partial
from multiprocessing import forkserver
from unittest import mock

import pytest

from official.cli import records
from official.cli import text as text_lib
from official.data import compaction
from official.data.packing import creation as packing
from official.data.pretraining import creation, examples, inspection, rounds
from official.data.pretraining import plan as plan_lib
from official.data.records import encoding, shard_files
from official.data.records import files as record_files
from official.data.text import documents, preparation, samples
from official.io import files, jobs, record_paths, writing
from official.io.errors import ConfigError
from tests.data.pretraining.test_creation import WORDS, create, make_text, write
from tests.data.records.test_records import make_examples
from tests.fixtures import slow, write_records
from tests.records import encode, short_examples

each_job = pytest.mark.parametrize("name", ["create", "prepare", slow("pack")])


def start(folder: pathlib.Path, name: str, out, **changes) -> dict:
    """Runs a job on the input in a folder, in one process unless told otherwise, and returns the manifest."""
    changes = {"num_workers": 1, **changes}
    if name == "create":
        return create(folder / "text" / "*", str(folder / "vocab.txt"), out, **changes)
    if name == "prepare":
        return preparation.prepare(preparation.Job(str(folder / "text"), str(out), 0.3, **changes))
    changes = {"num_shards": 3, **changes}
    return packing.pack_records(packing.Job(str(folder / "records"), str(out), **changes))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Returns a function that runs a job on three files, each of which is a task, as `start` does."""
    (tmp_path / "records").mkdir()
    for number in range(3):
        make_text(tmp_path / "text" / f"{number}.txt", 10, seed=number)
        some = make_examples(150, seed=number, shortest=6)
        write_records(tmp_path / "records" / f"{number}.tfrecord", encoding.encode(some, "plain"))
    write(tmp_path / "vocab.txt", "\n".join(WORDS) + "\n")
    monkeypatch.setattr(creation, "_MIN_TASK_BYTES", 5000)
    monkeypatch.setattr(preparation, "_TASK_BYTES", 5000)
    monkeypatch.setattr(packing, "_MIN_PART_BYTES", 1)
    return partial(start, tmp_path)


def contents(folder: pathlib.Path) -> dict[str, str]:
    """Returns the digests of the files that a job has made, but those of the data card; the manifest without
    the time that a plan took."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "samples.json")
    found = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.get("plan", {}).pop("secs", None)
    return {**found, "manifest.json": json.dumps(manifest)}


@pytest.fixture
def written(monkeypatch) -> list[pathlib.Path]:
    """Returns the files that say what is done, as they are written."""
    found, write_json = [], jobs.write_json

    def noted(path, *values, **options):
        found.append(pathlib.Path(path))
        write_json(path, *values, **options)

    monkeypatch.setattr(jobs, "write_json", noted)
    return found


# ------------------------------------------------------------------------------------------------------------
# The same bytes


@pytest.mark.parametrize("name", ["create", slow("prepare"), slow("pack")])
def test_the_number_of_processes_changes_no_byte_but_the_seed_does(run, tmp_path, name):
    forkserver._forkserver._stop()  # else that of the first job, and each process loads what this one needs
    for workers in (1, 2):
        run(name, tmp_path / str(workers), num_workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    if name == "prepare":
        one, other = (samples.read(tmp_path / folder)["documents"] for folder in ("1", "2"))
        assert one == other and len(one) > 10
    else:
        run(name, tmp_path / "seed", random_seed=1)
        one, other = (set(contents(tmp_path / folder).values()) for folder in ("1", "seed"))
        assert len(one & other) == (name == "create")  # the vocabulary


@pytest.mark.slow
@pytest.mark.parametrize("name, module", [("create", rounds), slow("pack", packing)])
def test_regrouping_changes_no_byte(run, tmp_path, monkeypatch, name, module):
    run(name, tmp_path / "plain")
    monkeypatch.setattr(creation, "_MIN_TASK_BYTES", 1000)
    monkeypatch.setattr(plan_lib, "POOL_TOKENS", 1000)
    monkeypatch.setattr(rounds, "_CHUNK_BYTES", 500)
    monkeypatch.setattr(record_files, "_CHECKED_ROWS", 64)
    monkeypatch.setattr(packing, "_BLOCK_SEQUENCES", 1)
    monkeypatch.setattr(packing, "_ENCODED_ROWS", 7)
    merges, merge = [], module.merge
    monkeypatch.setattr(module, "merge", lambda *task: merges.extend(task) or merge(*task))
    for bits, levels in ((8, 0), (8, 1), (2, 2), (1, 4)):
        merges.clear()
        monkeypatch.setattr(compaction, "BITS", bits)
        monkeypatch.setattr(compaction, "_MIN_READ_BYTES", 10**6 if levels else 1)
        run(name, tmp_path / f"{bits}-{levels}")
        # Tasks of another size make other records.
        whole = tmp_path / ("8-0" if name == "create" else "plain")
        assert contents(tmp_path / f"{bits}-{levels}") == contents(whole), (bits, levels)
        found = {each.level for each in merges if isinstance(each, compaction.Grouping)}
        assert found == set(range(1, levels + 1))


# ------------------------------------------------------------------------------------------------------------
# Interruptions


FULL = OSError(28, "No space left on device")
# The function that is not finished, the number of the call, and how it ends.
INTERRUPTIONS = {
    "create": (
        (rounds, "write_block", 2, KeyboardInterrupt()),
        (rounds, "tokenize_text", 3, KeyboardInterrupt()),
        (examples, "build_examples", 3, KeyboardInterrupt()),  # once for the estimate of the disk
        (jobs, "write_json", 7, KeyboardInterrupt()),
        (shard_files, "writing", 3, FULL),
    ),
    "prepare": ((preparation, "_prepare_text", 3, KeyboardInterrupt()), (jobs, "write_json", 3, FULL)),
    "pack": (
        *((packing, task, 3, KeyboardInterrupt()) for task in ("count_part", "spill_part", "merge")),
        (packing, "write_shard", 3, FULL),
    ),
}


@each_job
def test_what_an_interruption_leaves_is_gone_on_with(run, tmp_path, monkeypatch, written, name):
    run(name, tmp_path / "whole")
    monkeypatch.setattr(compaction, "BITS", 2)
    if name == "pack":
        monkeypatch.setattr(compaction, "_MIN_READ_BYTES", 10**6)
    for module, function, call, error in INTERRUPTIONS[name]:
        out = tmp_path / function
        line = "--output_dir=.* cannot be written to: No space left on device.* resumes the job"
        expected, told = (ConfigError, line) if error is FULL else (KeyboardInterrupt, None)
        ends = itertools.chain([mock.DEFAULT] * (call - 1), itertools.repeat(error))
        with monkeypatch.context() as patch, pytest.raises(expected, match=told):
            patch.setattr(module, function, mock.Mock(wraps=getattr(module, function), side_effect=ends))
            run(name, out)
        done = set((out / ".unfinished").rglob("*.json"))
        written.clear()
        run(name, out)
        assert len(done) > 1 and not done & set(written), function
        assert contents(out) == contents(tmp_path / "whole"), function


def leave_unfinished(run, monkeypatch, name: str, out: pathlib.Path) -> None:
    """Runs a job up to its last files."""
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(samples, "publish", lambda *_, **__: 1 / 0)
        patch.setattr(record_paths, "put_vocabulary", lambda *_: 1 / 0)
        run(name, out)


@pytest.mark.slow
def test_only_the_same_job_goes_on_where_another_was_left(run, tmp_path, monkeypatch):
    text, words = tmp_path / "text" / "0.txt", tmp_path / "vocab.txt"
    for number, (name, told, flags, change) in enumerate(
        (
            ("create", "random_seed", {"random_seed": 7}, None),
            ("prepare", "min_sentences", {"min_sentences": 3}, None),
            ("create", r"text \(.*0.txt\)", {}, lambda: make_text(text, 11)),
            ("create", "vocabulary_sha256", {}, lambda: write(words, "\n".join([*WORDS, "new"]))),
            ("pack", "blocks", {}, lambda: monkeypatch.setattr(packing, "BLOCKS_VERSION", 0)),
        )
    ):
        out, whole = tmp_path / f"out{number}", tmp_path / f"whole{number}"
        leave_unfinished(run, monkeypatch, name, out)
        if change:
            change()
        message = f"--output_dir=.* holds an unfinished job with another .*{told}.*--overwrite"
        with pytest.raises(ConfigError, match=message):
            run(name, out, **flags)
        if change:
            run(name, out, overwrite=True, **flags)
            run(name, whole, **flags)
            assert contents(out) == contents(whole), told


@pytest.mark.slow
@each_job
def test_damaged_files_of_an_unfinished_job_are_made_anew(run, tmp_path, monkeypatch, name):
    run(name, tmp_path / "whole")
    garbage = itertools.cycle((b"\xff\0", b"[]", b'{"done": {"totals": 3}}', b"[" * 100_000))
    # Not those of a whole level: the files that it was made of are gone.
    for number, pattern in enumerate(("job.json", "[!jl]*.json")):
        out = tmp_path / str(number)
        leave_unfinished(run, monkeypatch, name, out)
        for path in (out / ".unfinished").rglob(pattern):
            path.write_bytes(next(garbage))
        made = next(out.rglob("part-00000*"))
        made.with_name(made.name.replace("part-00000", "part-00077")).touch()  # of a job that was thrown away
        run(name, out)
        assert contents(out) == contents(tmp_path / "whole"), pattern


# ------------------------------------------------------------------------------------------------------------
# Finished jobs


@pytest.mark.parametrize("name", [slow("create"), "prepare", slow("pack")])
def test_a_finished_job_is_not_done_again_and_replaced_only_when_asked_for(
    run, tmp_path, monkeypatch, written, name
):
    out, other = tmp_path / "out", {"min_sentences": 13} if name == "prepare" else {"num_shards": 2}
    manifest = run(name, out)
    before = contents(out)
    written.clear()
    assert run(name, out) == manifest and not written
    told = "--output_dir=.* holds the files of an earlier run with other flags or input, or not all of them"
    with pytest.raises(ConfigError, match=f"{told}.* --overwrite"):
        run(name, out, **other)
    assert contents(out) == before
    if name == "create":
        with monkeypatch.context() as patch:
            patch.setattr(creation, "_VERSION", 8)
            with pytest.raises(ConfigError, match="another version of this program .version 7 in .* is 8"):
                run(name, out)
    if name != "prepare":
        made = next(out.rglob("part-*"))
        made.write_bytes(made.read_bytes()[:-1])
        with pytest.raises(ConfigError, match=told):
            run(name, out)
    run(name, out, overwrite=True, **other)
    run(name, tmp_path / "fresh", **other)
    assert contents(out) == contents(tmp_path / "fresh") != before


@each_job
def test_files_that_no_job_has_left_are_refused(run, tmp_path, name):
    """Also beside those of a finished job, and with --overwrite."""
    out = tmp_path / "out"
    theirs = out / ("train/part-00000.txt" if name == "prepare" else "part-00000-of-00009.tfrecord")
    theirs.parent.mkdir(parents=True)
    theirs.write_text("somebody's")
    told = f"--output_dir=.* holds {theirs}, which no job of this program has written"
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=told):
            run(name, out, overwrite=overwrite)
    kept = theirs.rename(tmp_path / "kept")
    run(name, out)
    if name != "prepare":  # whose manifest names no files
        kept.rename(theirs)
        with pytest.raises(ConfigError, match=told):
            run(name, out, overwrite=True)
        assert theirs.read_text() == "somebody's" and (out / "manifest.json").exists()


def test_input_that_the_output_would_replace_is_refused(run, tmp_path):
    """With --overwrite it would be removed before it is read."""
    records, text = tmp_path / "records", tmp_path / "prepared"
    (records / "0.tfrecord").rename(records / "part-00000-of-00001.tfrecord")
    run("prepare", text)
    for do, job, folder in (
        (packing.pack_records, packing.Job(str(records), str(records), overwrite=True), records),
        (preparation.prepare, preparation.Job(f"{text}/train", str(text), 0.3, overwrite=True), text),
    ):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(ConfigError, match="part-0.*, which is in --output_dir=.* and would be replaced"):
            do(job)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


# ------------------------------------------------------------------------------------------------------------
# Files that change


def shorten(path):
    os.truncate(path, os.path.getsize(path) - 100)


def append(path):
    with open(path, "ab") as file:
        file.write(b"\n\nOne more document. It has two sentences.\n")


def overwrite(path):
    """Writes other bytes of the same number in their place."""
    with open(path, "r+b") as file:
        file.write(b"the cat sat.")


def replace(path):
    """Puts another file of the same size and time in its place."""
    other = pathlib.Path(path + "~")
    other.write_bytes(pathlib.Path(path).read_bytes().replace(b"the", b"sat"))
    shutil.copystat(path, other)
    os.replace(other, path)


def put_again(path):
    """Puts a copy in its place, as a tool does that has written the same once more."""
    os.replace(shutil.copyfile(path, path + "~"), path)


CHANGES = (shorten, append, overwrite, replace, os.remove)


def refusal_of(job, module, name, path, change, monkeypatch, last="") -> str:
    """Returns how a job ends while which a file is changed; '' without an error.

    Args:
      module, name: of the generator function that reads; the change comes behind its first value.
      last: the call of it that has this first argument; '' for any.
    """
    original, left = getattr(module, name), [change]

    def changing(*arguments, **options):
        for value in original(*arguments, **options):
            if left and last in ("", arguments[0]):
                left.pop()(path)
            yield value

    with monkeypatch.context() as patch:
        patch.setattr(module, name, changing)
        try:
            job()
        except ConfigError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("job", ["create", "prepare", "vocab", "pack", "eval-set", "inspect"])
def test_inputs_that_change_while_they_are_read_are_refused(job, tmp_path, monkeypatch):
    vocab_file = write(tmp_path / "vocab.txt", "\n".join(WORDS) + "\n")
    reads_text, wrong = job in ("create", "prepare", "vocab"), []
    for change in CHANGES if reads_text else (append, put_again):
        folder = tmp_path / change.__name__
        folder.mkdir()
        first, last = (str(folder / f"{name}.x") for name in "ab")
        for number, path in enumerate(map(pathlib.Path, (first, last))):
            if reads_text:
                make_text(path, 30)
            else:
                write_records(path, encode(short_examples(40, seed=number), "plain"))
        given, out = f"{folder}/*.x", folder / "out"
        flags = {"vocab": "--vocab_size=60", "eval-set": "--num_samples=10"}.get(job, "")
        monkeypatch.setattr("sys.argv", [job, f"--input_files={given}", f"--output_file={out}", flags])
        text, checked = (documents.sentences, "split_documents"), (inspection, "read_checked")
        # The first file of records is read already when it is changed: only a comparison with the plan tells.
        run, (module, name), at = {
            "create": (partial(create, given, vocab_file, out), text, ""),
            "prepare": (partial(preparation.prepare, preparation.Job(given, str(out), 0.1)), text, ""),
            "vocab": (text_lib.run_vocab, text, ""),
            "pack": (partial(packing.pack_records, packing.Job(given, str(out))), checked, last),
            "eval-set": (records.run_eval_set, (record_files, "read_rows"), last),
            "inspect": (partial(inspection.summarize, [first, last], None), checked, last),
        }[job]
        found = refusal_of(run, module, name, first, change, monkeypatch, at)
        told = "cannot be read: No such file" if change is os.remove else "was changed while it was read"
        is_published = out.is_file() or (out / jobs.MANIFEST).exists() or list(out.glob("*.tfrecord"))
        if f"a.x {told}" not in found or is_published or not os.path.exists(last):
            wrong.append((change.__name__, found, is_published))
    assert not wrong


def test_a_file_of_a_store_is_another_one_when_it_was_written_again():
    pytest.importorskip("fsspec")
    names = [f"memory://changed/{number}" for number in range(4)]
    for name in names:
        writing.replace_file(name, "text")
    before = files.states(names)
    files.check_unchanged(before)
    writing.replace_file(names[2], "TEXT")
    with pytest.raises(ConfigError, match="changed/2 was changed while it was read"):
        files.check_unchanged(before)
