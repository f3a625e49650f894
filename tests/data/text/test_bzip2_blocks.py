"""One bzip2 file in many splits: the documents of the file, whatever the bounds; damage is found."""

import bz2
import functools
import io
import os
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official.data.text import text_files
from official.data.text.documents import ReadCounts, read_splits
from official.data.text.text_files import Split, plan_tasks
from official.io import files
from official.io.errors import ConfigError
from tests.data.text.test_documents import plan_splits, read, write


def words(count: int, seed: int) -> str:
    draw = random.Random(seed)
    return "".join(f"{draw.choice('abcdefgh')}{draw.randrange(10**6)} " for _ in range(count))


def text_of(seed: int, documents: int = 160) -> bytes:
    draw = random.Random(seed)
    return "\n\n".join(
        "\n".join(f"{words(draw.randrange(1, 400), draw.random())}end." for _ in range(draw.randrange(1, 6)))
        for _ in range(documents)
    ).encode()


def read_parts(path, bounds, splitting="never"):
    """Returns the documents of splits with these bounds, and the sum of what was counted."""
    found, counts = [], ReadCounts()
    for start, end in zip(bounds, [*bounds[1:], None]):
        found += read_splits([Split(path, start, end)], splitting, counts)
    return found, counts


@pytest.fixture(scope="module")
def packed_files(tmp_path_factory):
    """Returns paths and the plain one: one stream of many blocks, several streams, zeros behind it, and
    other ends of lines."""
    folder, text = tmp_path_factory.mktemp("bz2"), text_of(1)
    cuts = [0, 100_003, 100_004, 350_000, len(text)]
    streams = [bz2.compress(text[start:end], 1) for start, end in zip(cuts, cuts[1:])]
    packed = {
        "one": bz2.compress(text, 1),
        "several": b"".join([bz2.compress(b""), *streams, bz2.compress(b"")]),
        "filled": bz2.compress(text, 1) + bytes(600_000),
        "crlf": bz2.compress(text.replace(b"\n", b"\r\n"), 1),
        "returns": bz2.compress(text.replace(b"\n", b"\r"), 1),
    }
    return [write(folder / name, data) for name, data in packed.items()], write(folder / "plain", text)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 4), st.lists(st.floats(0, 1), max_size=8))
def test_splits_with_any_bounds_hold_the_documents_and_counts_of_the_file(packed_files, number, shares):
    paths, plain = packed_files
    path, size = paths[number], os.path.getsize(paths[number])
    bounds = sorted({0, *(int(share * size) for share in shares)} - {size})
    whole, counts = whole_of(path)
    assert (whole, counts.documents) == (whole_of(plain)[0], 160)
    found, summed = read_parts(path, bounds)
    assert found == whole and summed == counts and summed.by_file == counts.by_file
    assert counts.bytes == size


@functools.cache
def whole_of(path):
    return read(path, splitting="never")


def places_of(path) -> list[int]:
    """Returns the bytes in which the blocks of a file begin."""
    with open(path, "rb") as file:
        return [place for place, _ in text_files.read_bzip2_blocks(file, 0)]


def test_each_block_can_be_a_split(packed_files):
    path = packed_files[0][0]
    places = places_of(path)
    assert len(places) > 5 and places[0] == 4
    found, counts = read_parts(path, [0, *places[1:]])
    assert (found, counts) == whole_of(path)
    assert all(len(split) == 1 for split in plan_tasks({path: files.sizes([path])[0]}, 1000))
    shifts = {
        mark.bit % 8 for each in packed_files[0] for mark in text_files.find_marks(open(each, "rb").read())
    }
    assert shifts == set(range(8))
    assert len(plan_splits([path], 100_000)) == -(-os.path.getsize(path) * 4 // 100_000)


def test_a_line_that_starts_with_a_block_and_a_document_of_many_blocks(tmp_path):
    lines = [
        b"A first line.\n" + b"x" * (99_980 - 15) + b"\n",
        b"\n" + words(60_000, 2).encode() + b"\n\nLast.",
    ]
    packed = b"".join(bz2.compress(part, 1) for part in lines)  # streams end blocks where they are wanted
    path = write(tmp_path / "a", packed)
    whole = read(path, splitting="never")
    assert len(whole[0]) == 3
    places = places_of(path)
    for place in places[1:]:
        assert read_parts(path, [0, place]) == whole
    assert read_parts(path, list(range(0, len(packed), 4999))) == whole


@pytest.mark.parametrize("kind", ["block", "end"])
def test_marks_inside_of_blocks_are_none(packed_files, kind, monkeypatch):
    """False marks are told by decompressing: here blocks have three."""
    path = packed_files[0][0]
    places = [8 * place for place in places_of(path)]
    find, false = text_files.find_marks, [places[2] + 40_001, places[2] + 40_100, places[4] + 80_000]
    originals = open(path, "rb").read()

    def with_false_ones(data):
        start = originals.find(bytes(data)) * 8 if data else 0
        more = [text_files._Mark(bit - start, kind == "end") for bit in false]
        return sorted(find(data) + [mark for mark in more if 0 <= mark.bit <= 8 * len(data) - 48])

    monkeypatch.setattr(text_files, "find_marks", with_false_ones)
    assert read_parts(path, [0, places[1] // 8, places[4] // 8]) == whole_of(path)


def test_damage_is_found_whatever_the_splits(packed_files, tmp_path):
    original, several = (open(path, "rb").read() for path in packed_files[0][:2])
    draw, places = random.Random(5), places_of(packed_files[0][0])
    damaged = [data[:-cut] for data in (original, several) for cut in (1, 11, 5000, 60_000)]
    damaged += [original + b"garbage", several + b"garbage"]
    spots = [*(draw.randrange(4, len(original) - 10) for _ in range(4)), places[2] + 2, places[3] + 8]
    damaged += [original[:spot] + bytes([original[spot] ^ 0x10]) + original[spot + 1 :] for spot in spots]
    for number, data in enumerate(damaged):
        path = write(tmp_path / "a.bz2", data)
        for bounds in ([0], [0, 40_000, len(data) - 2], [0, *places[1:4]]):
            with pytest.raises(ConfigError, match="a.bz2 is a truncated or damaged compressed file: "):
                read_parts(path, bounds)
                pytest.fail(f"damage {number} is read with {bounds}")


def test_zeros_in_place_of_a_rest_are_damage_and_are_not_kept(packed_files, monkeypatch):
    monkeypatch.setattr(text_files, "_MAX_BLOCK_BYTES", 1 << 20)
    original = open(packed_files[0][0], "rb").read()
    file = io.BytesIO(original[: len(original) // 2] + bytes(8_000_000))
    tracemalloc.start()
    with pytest.raises(text_files.DamagedError, match="cannot be decompressed"):
        list(text_files.read_bzip2_blocks(file, 0))
    assert list(text_files.read_bzip2_blocks(file, len(original))) == []
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()
