"""What far more text would take is computed by the job's own functions, from rows that were measured."""

import argparse
import json
import os
import sys

import pytest

from official.cli.benchmark import data_scale, data_scale_model
from official.data import compaction
from official.data.pretraining import creation, examples, rounds
from official.data.word_pieces import vocabulary
from official.io.errors import ConfigError

LARGE = data_scale_model.Machine(10**16, None, 10**13, None)
WORDS = "the cat sat on a mat".split()


def row(text_bytes: int, ms_per_mb: float, **changes) -> dict:
    """Returns what is measured of a text with 4.5 bytes a token."""
    tokens = round(text_bytes / 4.5)
    secs = ms_per_mb * text_bytes / 1e9
    return {
        "text_bytes": text_bytes,
        "secs": secs + 4,
        "core_secs": 2 * secs,
        "rounds_secs": secs,
        "peak_memory_bytes": 700e6,
        "peak_disk_bytes": 5 * tokens,
        "tokens": tokens,
        "ms_per_mb": ms_per_mb,
    } | changes


ROWS = [row(10**9, 100.0), row(10**10, 110.0)]


def test_levels_pools_and_files_are_those_of_the_job():
    sizes = (10**9, 10**12, 10**13)
    small, large, huge = (data_scale_model.shape_of(size, round(size / 4.5)) for size in sizes)
    assert [len(shape.levels) for shape in (small, large, huge)] == [0, 1, 2]
    assert (large.tasks, huge.plan.num_shards) == (-(-(10**12) // (64 << 20)), 8192)
    assert huge.plan.num_pools % 8192 == 0 and huge.plan.num_pools * (1 << 22) >= huge.tokens
    # Of each level a file is opened once for every range above it, of the last one once for every pool.
    first, second = (above for _, above in huge.levels)
    merged = 256 * huge.blocks + 65536 * first.files
    assert huge.reads == merged + huge.plan.num_pools * second.files
    assert huge.merges == 256 * first.files + 65536 * second.files
    assert huge.reads / huge.tokens == pytest.approx(large.reads / large.tokens, rel=2)  # linear


def test_time_falls_with_processes_and_a_regrouping_takes_what_it_took():
    found = data_scale_model.model(ROWS, 2, 10**13, LARGE)
    # The largest row has one regrouping, 10 ms per MB; 10 TB have one more.
    assert found["secs"] == pytest.approx(120e-9 * 10**13 + 4)
    hours = found["hours_by_processes"]
    assert hours["2"] == pytest.approx(16 * hours["32"], rel=1e-3)
    assert hours["320"] == pytest.approx(hours["32"] / 10, rel=0.01)
    rates = found["storage_bytes_per_sec_by_processes"]
    assert rates["320"] / rates["32"] == pytest.approx(hours["32"] / hours["320"])
    assert found["peak_disk_bytes"] == pytest.approx(5 * 10**13 / 4.5)
    assert 10**6 < found["parent_table_bytes"] < 10**9 and 10**5 < found["manifest_bytes"] < 10**7
    assert found["breaks_first"] == "time"


@pytest.mark.parametrize(
    "limits, broken",
    [
        ({"free_bytes": 10**12}, "disk"),
        ({"free_files": 1000}, "files of the disk"),
        ({"memory_bytes": 10**8}, "memory"),
        ({"open_files": 10}, "open files"),
        ({}, None),
    ],
)
def test_what_lacks_most_breaks_first(limits, broken):
    machine = data_scale_model.Machine(**{**vars(LARGE), **limits})
    rows = [row(10**10, 1.0, peak_open_files=40)]
    found = data_scale_model.model(rows, 2, 10**12, machine)
    assert found["breaks_first"] == broken
    assert (broken or "nothing breaks") in data_scale_model.described(found)


def test_the_shape_is_that_of_a_real_job(tmp_path, monkeypatch):
    monkeypatch.setattr(creation, "_MIN_TASK_BYTES", 5000)
    monkeypatch.setattr(creation.disk_needs, "check", lambda *_: None)
    monkeypatch.setattr("official.data.pretraining.plan.POOL_TOKENS", 500)
    monkeypatch.setattr(compaction, "BITS", 2)
    (tmp_path / "text").write_text("\n\n".join(" ".join(WORDS) for _ in range(2000)) + "\n")
    (tmp_path / "vocab.txt").write_text("\n".join([*vocabulary.SPECIAL_TOKENS, *WORDS]) + "\n")
    opened = []
    listed = compaction.Grouping.paths_below
    monkeypatch.setattr(
        compaction.Grouping, "paths_below", lambda *given: opened.append(listed(*given)) or opened[-1]
    )
    job = creation.Job(
        str(tmp_path / "text"),
        str(tmp_path / "out"),
        str(tmp_path / "vocab.txt"),
        examples.ExampleRules(32, 5, 1),
        num_workers=1,
        record_format="compact",
        sentence_splitting="never",
    )
    manifest = creation.create_pretraining_data(job)
    size = os.path.getsize(tmp_path / "text")
    shape = data_scale_model.shape_of(size, manifest["tokens"], manifest["documents"])
    assert (shape.plan.num_pools, shape.plan.num_shards) == (manifest["pools"], len(manifest["files"]))
    assert shape.merges == len(opened) > 0
    of_pools = shape.plan.num_pools * shape.levels[-1][1].files
    assert shape.reads - of_pools == sum(map(len, opened))
    assert manifest["tokens"] < rounds.BLOCK_TOKENS


def run(monkeypatch, *flags: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bert benchmark data-scale", *flags])
    data_scale.main()


def test_an_earlier_result_is_modelled_anew(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.json").write_text(json.dumps({"num_workers": 2, "measured": ROWS, "modelled": []}))
    run(monkeypatch, f"--measured={tmp_path}/a.json", f"--output={tmp_path}/b")
    made = json.loads((tmp_path / "b.json").read_text())
    assert made["measured"] == ROWS and [each["text_bytes"] for each in made["modelled"]] == [10**12, 10**13]
    assert set(made["assumptions"]) == set(data_scale_model.ASSUMPTIONS)
    assert "10 TB: 2 processes 333.3 h" in capsys.readouterr().out
    assert (tmp_path / "b.png").read_bytes()[:4] == b"\x89PNG"


def test_of_a_short_job_the_median_run_counts(tmp_path, monkeypatch):
    (tmp_path / "vocab.txt").write_text("\n".join([*vocabulary.SPECIAL_TOKENS, *"abcdefgh"]) + "\n")
    taken = iter([(3.0, 10), (1.0, 30), (2.0, 20), (99.0, 1)])

    def run_once(_, path, records):
        secs, memory = next(taken)
        assert os.path.getsize(path) >= 100_000 and not os.path.exists(records)
        return {"secs": secs, "rounds_secs": secs - 0.5, "core_secs": 1.0, "peak_memory_bytes": memory}

    monkeypatch.setattr(data_scale, "_run", run_once)
    monkeypatch.setattr(data_scale, "_LEAST_SECS", 6.0)
    flags = argparse.Namespace(vocab_file=str(tmp_path / "vocab.txt"), num_workers=1)
    row = data_scale.measure(flags, str(tmp_path), [b"a b c. d e f.\n\n" * 100], 100_000)
    assert (row["runs"], row["secs"], row["peak_memory_bytes"]) == (3, 2.0, 30)
    assert row["whole_ms_per_mb"] == pytest.approx(2.0 / row["text_bytes"] * 1e9)
    assert row["ms_per_mb"] == pytest.approx(1.5 / row["text_bytes"] * 1e9)


@pytest.mark.parametrize(
    "flags, figures, problem",
    [
        (["--measured=x.json", "--vocab_file=v"], {}, "--measured measures nothing"),
        ([], {}, "Give --input_files and --vocab_file, or --measured"),
        (["--measured=x.json"], {"num_workers": 2, "measured": []}, "has no row"),
        (["--measured=x.json"], {"num_workers": 2, "measured": [{"text_bytes": 1}]}, 'row 1 has no "secs"'),
        (
            ["--measured=x.json"],
            {"num_workers": 2, "measured": [row(10**9, -1)]},
            "expected a number above 0",
        ),
    ],
)
def test_what_cannot_be_modelled(tmp_path, monkeypatch, flags, figures, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.json").write_text(json.dumps(figures))
    with pytest.raises(ConfigError, match=problem):
        run(monkeypatch, *flags)


def test_no_text_is_refused(tmp_path, monkeypatch):
    """More and more of it would never be enough."""
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(ConfigError, match="empty has no text"):
        run(monkeypatch, f"--input_files={tmp_path}/empty", f"--vocab_file={tmp_path}/empty")
