"""The files of deploy/ that docs/hardware.md tells of, as far as they can be tried without their hardware."""

import os
import pathlib
import re
import subprocess

import pytest

from tests.conftest import ROOT

RAID = ROOT / "deploy" / "gpu" / "raid0.sh"
IMAGE = ROOT / "deploy" / "docker" / "gpu" / "Dockerfile"


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs raid0.sh among programs that only note how they are called. `holds` is
    what lsblk finds on the devices, `mounted` whether the mount point is in use."""

    def call(*arguments: str, holds: str = "", mounted: bool = False) -> tuple[int, list[str], str]:
        programs = {
            "lsblk": f'echo "{holds}"',
            "mountpoint": f"exit {0 if mounted else 1}",
            **dict.fromkeys(
                ("mdadm", "mkfs.ext4", "mkdir", "mount", "chmod"),
                f'echo "${{0##*/}} $*" >> {tmp_path}/called',
            ),
        }
        for name, text in programs.items():
            path = tmp_path / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/bash\n{text}\n")
            path.chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", str(RAID), *arguments], env=environment, capture_output=True, text=True, check=False
        )
        called = tmp_path / "called"
        return done.returncode, called.read_text().splitlines() if called.exists() else [], done.stderr

    return call


@pytest.fixture
def devices(tmp_path) -> list[str]:
    paths = [tmp_path / f"ssd-{number}" for number in range(8)]
    for path in paths:
        path.touch()
    return list(map(str, paths))


def test_devices_become_one_file_system(run, devices):
    code, called, _ = run("/data", *devices)
    assert code == 0 and called == [
        f"mdadm --create /dev/md0 --run --level=0 --raid-devices=8 {' '.join(devices)}",
        "mkfs.ext4 -F /dev/md0",
        "mkdir -p /data",
        "mount /dev/md0 /data",
        "chmod a+w /data",
    ]


def test_one_device_needs_no_array(run, devices):
    assert run("/data", devices[0])[1][0] == f"mkfs.ext4 -F {devices[0]}"


@pytest.mark.parametrize(
    "arguments,settings,code,said",
    [
        (["--dry-run", "/data"], {}, 0, ""),
        (["/data"], {"mounted": True}, 0, ""),
        (["/data"], {"holds": "ext4 /"}, 2, "is in use or holds something: ext4/"),
        (["/data", "absent"], {}, 2, "there is no absent"),
        ([], {}, 2, "expected MOUNT DEVICE"),
    ],
)
def test_nothing_is_touched_without_need_or_right(run, devices, arguments, settings, code, said):
    given = [*arguments, *(devices if arguments else [])]
    found, called, error = run(*given, **settings)
    assert (found, called) == (code, []) and said in error


def test_the_image_takes_what_is_there():
    text = re.sub(r"\\\n", " ", IMAGE.read_text())
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    assert [word for word, _ in lines] == ["FROM", "ENV", "WORKDIR", "COPY", "RUN"]
    (extras,) = re.findall(r"'\.\[(.*)\]'", text)
    setup = (ROOT / "setup.py").read_text()
    assert all(f'"{extra}": ' in setup for extra in extras.split(","))
    assert all((ROOT / path).exists() for path in re.findall(r"--constraint (\S+)", text))
    assert "python:3.11" in lines[0][1]  # which the constraints are for
    ignored = pathlib.Path(f"{IMAGE}.dockerignore").read_text().split()
    assert not {"official", "tests", "configs", "constraints", "scripts"} & {
        path.strip("/*") for path in ignored
    }
