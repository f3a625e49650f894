"""The profile of a step: how operations are grouped, and the whole way on a small model; never a time."""

import json
import subprocess
import sys

from tensorflow.tsl.profiler.protobuf import xplane_pb2

from official.cli.benchmark import profile as profile_step
from official.reporting import profile as tables
from tests.conftest import ROOT, TINY


def space_of(events):
    """Returns the profiler's file of one thread's events: (name, picoseconds, {stat: text})."""
    space = xplane_pb2.XSpace()
    plane = space.planes.add()
    line, other = plane.lines.add(name="tf_Compute/1"), plane.lines.add(name="python")
    texts = {}

    def number_of(text):
        number = texts.setdefault(text, len(texts) + 1)
        plane.stat_metadata[number].name = text
        return number

    start = 0
    for number, (name, duration, stats) in enumerate(events):
        plane.event_metadata[number].name = name
        for thread in (line, other):
            event = thread.events.add(metadata_id=number, offset_ps=start, duration_ps=duration)
            for key, value in stats.items():
                event.stats.add(metadata_id=number_of(key), ref_value=number_of(value))
        start += duration
    return space


def test_summary_is_of_operations_a_step():
    compiled = {"name": "while/StatefulPartitionedCall", "kernel_type": "StatefulPartitionedCall"}
    space = space_of(
        [
            ("while/MatMul:_MklMatMul", 4_000_000_000, {}),
            ("ExecutorState::ProcessAsync::Start", 2_000_000_000, compiled),
            (
                "ExecutorState::ProcessAsync::Start",
                9_000_000_000,
                {**compiled, "kernel_type": "IteratorGetNext"},
            ),
            ("ExecutorState::Process", 9_000_000_000, {}),
            ("while/Sum:Sum", 1_000_000_000, {}),
            ("while/Sum_1:Sum", 1_000_000_000, {}),
        ]
    )
    assert profile_step.summarize(space, steps=2) == {
        "groups": {tables.INPUT: 4.5, tables.PRODUCTS: 2.0, tables.BLOCKS: 1.0, tables.REST: 1.0},
        "kinds": {"Sum": {"ms": 1.0, "count": 1.0}},
    }


def test_the_whole_way(tmp_path):
    (tmp_path / "bert.json").write_text(json.dumps(TINY))
    arguments = [
        f"--bert_config_file={tmp_path}/bert.json",
        "--shapes=16x4",
        "--steps=2",
        f"--output={tmp_path}/out",
    ]
    done = subprocess.run(
        [sys.executable, "scripts/profile_step.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (case,) = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert set(case["groups"]) >= {
        tables.PRODUCTS,
        tables.ATTENTION,
        tables.BLOCKS,
        tables.UPDATE,
        tables.NORM,
        tables.REST,
    }
    assert (
        min(case["groups"].values()) > 0
        and case["case"] in done.stdout
        and (tmp_path / "out.png").stat().st_size > 1000
    )
