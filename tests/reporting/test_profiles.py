"""The tables of a profile: times of operations within operations, and memory by who took it."""

import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from official.reporting import profile as tables
from official.reporting import report
from official.reporting.profile import read_trace

CALL, ROOT, COMPUTE = 2, 3, "tf_Compute/1"


def space_of(*threads):
    """Returns the profiler's file of threads: (name, events), an event (name, start, duration, notes)."""
    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/host:CPU")
    numbers: dict[str, int] = {}

    def number_of(text, table):
        number = numbers.setdefault(text, len(numbers) + 1)
        table[number].name = text
        return number

    for name, events in threads:
        line = plane.lines.add(name=name)
        for title, start, duration, notes in events:
            event = line.events.add(offset_ps=start, duration_ps=duration)
            event.metadata_id = number_of(title, plane.event_metadata)
            for key, value in notes.items():
                stat = event.stats.add(metadata_id=number_of(key, plane.stat_metadata))
                number = value if isinstance(value, int) else number_of(value, plane.stat_metadata)
                setattr(stat, "int64_value" if isinstance(value, int) else "ref_value", number)
    return space


def taken(start, address, size, in_use, freed=False):
    name = "MemoryDeallocation" if freed else "MemoryAllocation"
    notes = dict(allocator_name="cpu", addr=address, allocation_bytes=size, bytes_allocated=in_use)
    return name, start, 0, notes


def started(node, start, duration):
    notes = dict(name=node, kernel_type="PartitionedCall", step_id=ROOT)
    return "ExecutorState::ProcessAsync::Start", start, duration, notes


STARTS = [("EagerExecute", 0, 9, dict(eager_op="train_loop_1")), ("FunctionRun", 1, 1, dict(id=ROOT))]
FROM_PYTHON = ("python", STARTS)


@pytest.fixture
def step():
    """A layer forward, whose function runs elsewhere, and backward, compiled; 100 bytes were there before."""
    forward = [
        started("while/body/_1/while/bert/layer_1_1/PartitionedCall", 10, 5),
        ("FunctionRun", 11, 2, dict(id=CALL)),
        ("ExecutorState::Process", 20, 30, dict(id=CALL)),
        ("MatMul:_MklMatMul", 21, 20, {}),
        taken(22, 7, 50, 150),
        taken(23, 8, 30, 180),
    ]
    backward = [
        started("while/body/_1/while/PartitionedCall_1", 60, 20),
        taken(61, 9, 40, 220),
        taken(62, 8, 30, 190, freed=True),
    ]
    update = [
        ("ExecutorState::Process", 90, 9, dict(id=ROOT)),
        ("while/body/_1/while/AdamW/Sub:Sub", 91, 4, {}),
        taken(92, 7, 50, 140, freed=True),
        taken(96, 3, 20, 120, freed=True),  # of before
    ]
    return read_trace(space_of(FROM_PYTHON, (COMPUTE, [*forward, *backward, *update])))


def places_of(trace):
    return tables.Places(trace, ["layer_1"], {"while/PartitionedCall_1": "layer_1"})


def test_times_by_kind_and_part(step):
    rows = tables.add_up(step, places_of(step), steps=2)
    names = ("part", "pass", "name", "kind")
    assert {tuple(row[name] for name in names): row["ms_per_step"] * 1e9 for row in rows} == {
        ("layer_{}", "forward", "MatMul", tables.PRODUCTS): 10,
        ("layer_{}", "forward", "PartitionedCall", tables.BLOCKS): 2.5,
        ("layer_{}", "backward", "while/PartitionedCall_1", tables.BLOCKS): 10,
        ("optimizer", "", "while/AdamW/Sub", tables.UPDATE): 2,
    }


def test_what_ran_within_an_operation_is_not_counted_twice():
    events = [started("while/PartitionedCall_1", 0, 100), ("MatMul:MatMul", 10, 60, {})]
    trace = read_trace(space_of(FROM_PYTHON, (COMPUTE, events)))
    rows = tables.grouped(tables.add_up(trace, places_of(trace), 1), "kind")
    found = {row["kind"]: round(row["ms_per_step"] * 1e9) for row in rows}
    assert found == {tables.PRODUCTS: 60, tables.BLOCKS: 40}


def test_kinds():
    trace = read_trace(space_of(FROM_PYTHON))
    for node, kind, expected in (
        ("while/MatMul_3", "_MklNativeFusedMatMul", tables.PRODUCTS),
        ("while/MatMul", "_MklBatchMatMulV2", tables.ATTENTION),
        ("while/body/AdamW/AdamW/update_3/StatefulPartitionedCall", "StatefulPartitionedCall", tables.UPDATE),
        ("x", "ResourceApplyAdam", tables.UPDATE),
        ("Lamb/L2Loss", "L2Loss", tables.UPDATE),
        ("global_norm/L2Loss_3", "L2Loss", tables.NORM),
        ("while/Softmax", "_MklSoftmax", tables.REST),
        ("while/Cast_1", "Cast", tables.CASTS),
        ("while/IteratorGetNext", "IteratorGetNext", tables.INPUT),
        ("while/CollectiveReduceV2", "CollectiveReduceV2", tables.EXCHANGE),
    ):
        assert tables.kind_of(places_of(trace).of(node, ROOT), kind) == expected, (node, kind)


def test_a_gpu_is_told_by_its_kernels():
    space = space_of(FROM_PYTHON, (COMPUTE, [("layer_1/MatMul:MatMul", 0, 9, {})]))
    gpu = space.planes.add(name="/device:GPU:0")
    gpu.event_metadata[1].name, gpu.event_metadata[2].name = "ampere_sgemm_128x64", "MemcpyD2D"
    gpu.stat_metadata[1].name, gpu.stat_metadata[2].name = "tf_op", "while/layer_1/MatMul:MatMul"
    stream = gpu.lines.add(name="Stream #13")
    kernel = stream.events.add(metadata_id=1, duration_ps=5_000_000_000)
    kernel.stats.add(metadata_id=1, ref_value=2)
    stream.events.add(metadata_id=2, duration_ps=1_000_000_000)
    trace = read_trace(space)
    rows = tables.add_up(trace, places_of(trace), steps=1)
    assert {(row["kind"], row["part"]): row["ms_per_step"] for row in rows} == {
        (tables.PRODUCTS, "layer_{}"): 5.0,
        (tables.EXCHANGE, tables.OTHER): 1.0,
    }


def test_memory_by_who_took_it(step):
    (found,) = tables.memories(step, places_of(step), ["layer_1"])
    assert (found["peak_bytes"], found["resident_bytes"]) == (220, 100)
    assert found["running_at_peak"] == {"part": "layer_1", "pass": "backward"}
    assert [tuple(part.values()) for part in found["parts"]] == [
        ("layer_1", "forward", 80, 80, 180),
        ("layer_1", "backward", 40, 40, 220),
    ]


def test_a_report_goes_without_tables_that_are_damaged(tmp_path):
    (tmp_path / "profile.json").write_text("{")
    (tmp_path / "profile_memory.json").write_text('{"allocators": []}')
    assert report.profile_tables(str(tmp_path)) == {}
