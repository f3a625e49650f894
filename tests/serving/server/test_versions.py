"""Versions: which are found, when a newer one takes its place, and what happens to those that cannot."""

import asyncio
import io
import json
import os
import shutil
from collections.abc import Coroutine

import pytest

from official.io.errors import ConfigError
from official.serving.server import versions
from official.serving.server.monitoring import Log
from official.serving.server.versions import Location, Served, Versions
from tests.serving.server.servers import StandIn, stand_in


def add(folder, version: int, content: str = "weights") -> str:
    (folder / str(version)).mkdir(exist_ok=True)
    (folder / str(version) / "saved_model.pb").write_text(content)
    return str(folder / str(version))


@pytest.fixture(name="log")
def fixture_log():
    return Log(io.StringIO())


def events(log: Log, scenario: Coroutine) -> list[str]:
    """Returns what is logged of a scenario."""
    asyncio.run(scenario)
    log.close()
    return [json.loads(line)["event"] for line in log._stream.getvalue().splitlines()]


async def started(folder, log: Log) -> Versions:
    found = Versions(str(folder), load, log)
    await found.start()
    return found


async def look(found: Versions, times: int) -> None:
    """Looks for newer versions so many times."""
    for _ in range(times):
        await found.refresh(lambda served: False)


def load(version: int, path: str) -> Served:
    content = open(os.path.join(path, "saved_model.pb")).read()
    if "damaged" in content:
        raise ConfigError(f"{path}: damaged.")
    return Served(version, StandIn(), ["embed"]) if content == "embed" else stand_in(version)


def test_versions_are_found_by_their_numbers(tmp_path):
    for version in (2, 10, 9):
        add(tmp_path, version)
    for name in ("007", "-3", "1a", "٣", "ckpt"):
        (tmp_path / name).mkdir()
    (tmp_path / "11").write_text("a file")
    for version, target in ((12, "12"), (13, "14"), (14, "13"), (15, "gone"), (16, "."), (17, "..")):
        (tmp_path / str(version)).symlink_to(target)
    found = versions.find_versions(str(tmp_path))
    assert found == [Location(number, str(tmp_path / str(number))) for number in (10, 9, 2)]
    (tmp_path / "18").symlink_to("9")
    assert versions.find_versions(str(tmp_path))[0] == Location(18, str(tmp_path / "18"))
    assert versions.find_versions(str(tmp_path / "9")) == [Location(9, str(tmp_path / "9"))]
    assert versions.find_versions(str(tmp_path / "nothing")) == [Location(1, str(tmp_path / "nothing"))]


def test_a_newer_version_takes_its_place_when_it_is_whole(tmp_path, log):
    async def scenario():
        add(tmp_path, 1)
        found = await started(tmp_path, log)
        in_use = [True, True, False]
        add(tmp_path, 3, "half")
        await found.refresh(lambda served: in_use.pop(0))
        add(tmp_path, 3, "the whole of it")
        await found.refresh(lambda served: in_use.pop(0))
        assert found.served.version == 1  # its files have changed since the last look
        await found.refresh(lambda served: in_use.pop(0))
        assert found.served.version == 3 and in_use == []
        assert {version: state.state for version, state in found.states.items()} == {1: "END", 3: "AVAILABLE"}
        add(tmp_path, 2)
        await look(found, 3)
        assert found.served.version == 3
        add(tmp_path, 4, "embed")
        await look(found, 2)
        assert found.served.methods == ("embed",)

    assert events(log, scenario()) == ["serving", "serving", "serving", "other methods are served"]


def test_one_that_cannot_be_loaded_is_named_once_and_tried_again_when_it_changes(tmp_path, log):
    async def scenario():
        add(tmp_path, 1)
        found = await started(tmp_path, log)
        add(tmp_path, 2, "damaged")
        await look(found, 5)
        assert found.served.version == 1
        assert found.states[2].state == "END" and "damaged" in found.states[2].error
        assert found.states[1].state == "AVAILABLE"
        add(tmp_path, 2, "mended")
        await look(found, 2)
        assert found.served.version == 2

    assert events(log, scenario()) == ["serving", "version not loaded", "serving"]


def test_at_the_start_an_older_one_serves_where_the_newest_cannot(tmp_path, log):
    async def scenario():
        add(tmp_path, 1), add(tmp_path, 2, "damaged")
        assert (await started(tmp_path, log)).served.version == 1
        add(tmp_path, 1, "damaged too")
        with pytest.raises(ConfigError, match=f"{tmp_path}/2: damaged"):
            await started(tmp_path, log)

    assert "version not loaded" in events(log, scenario())


def test_where_the_served_one_is_removed_the_next_one_takes_its_place(tmp_path, log):
    async def scenario():
        add(tmp_path, 1), add(tmp_path, 2)
        found = await started(tmp_path, log)
        add(tmp_path, 2, "other weights")
        for version in (2, 1, 1):
            await look(found, 3)
            assert found.served.version == version
            shutil.rmtree(tmp_path / str(version), ignore_errors=True)
        assert {number: state.state for number, state in found.states.items()} == {2: "END", 1: "AVAILABLE"}

    assert events(log, scenario()) == ["serving", "files have changed: what was loaded is served", "serving"]
