"""Model of the time, memory and disk that creating records takes for far larger texts than were measured.

The numbers of tasks, pools, files and regroupings are those that the job's own functions choose for a text of
this size; time, tokens and disk per byte of text are those of the largest measured text.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
import resource
import shutil
import tracemalloc
from collections.abc import Callable, Sequence

from official.data import compaction
from official.data.compaction import Grouping
from official.data.pretraining import creation, examples, rounds
from official.data.pretraining import plan as plan_lib
from official.data.pretraining.plan import Job
from official.data.text import read_counts, text_files
from official.io.errors import counted

PROCESSES = (32, 320)
_INPUT_BYTES = 10**9  # of a file of text
_ID_BYTES = 2  # of a token in the work folder, in a vocabulary of up to 65,536 words
_LONGEST_SECS = 7 * 24 * 3600.0  # for which somebody waits
_SAMPLED = 1000  # entries of a table that are made to see how large one is
ASSUMPTIONS = {
    "text": f"plain files of {_INPUT_BYTES:,} bytes each; one copy; compact records",
    "tokens, time and disk": "a byte of text as of the largest measured one",
    "time": "falls with the processes: none waits for storage, a peer or the parent",
    "time of a regrouping": "a byte of text: the largest measured text with one less the largest without",
    "documents on disk": f"{_ID_BYTES} bytes a token",
    "time limit": f"{_LONGEST_SECS / 3600:.0f} hours with the processes measured",
}


@dataclasses.dataclass(frozen=True)
class Machine:
    """Resources of the machine that runs the command; None: not known."""

    free_bytes: int
    free_files: int | None  # names that its file system has left
    memory_bytes: int
    open_files: int | None  # of a process


def this_machine(folder: str) -> Machine:
    """Returns the resources of this machine, with the disk of a folder or of its nearest existing parent."""
    while not os.path.exists(folder):
        folder = os.path.dirname(os.path.abspath(folder))
    most_open = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return Machine(
        shutil.disk_usage(folder).free,
        os.statvfs(folder).f_favail or None,
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        None if most_open == resource.RLIM_INFINITY else most_open,
    )


@dataclasses.dataclass(frozen=True)
class Shape:
    """Layout of a text in a job: its tasks, files and regroupings."""

    text_bytes: int
    tokens: int
    tasks: int  # of the first round
    blocks: int  # files of documents that these write
    plan: plan_lib.Layout
    levels: tuple[tuple[Grouping, Grouping], ...]  # (level, the one above) of each regrouping

    @property
    def document_bytes(self) -> int:
        return _ID_BYTES * self.tokens

    @property
    def merges(self) -> int:
        """Tasks of all regroupings."""
        return sum(above.ranges * above.files for _, above in self.levels)

    @property
    def reads(self) -> int:
        """Number of times that files of documents are opened: by merges, and once for each pool."""
        below = sum(above.ranges * below.files for below, above in self.levels)
        files = self.levels[-1][1].files if self.levels else self.blocks
        return below + self.plan.num_pools * files

    @property
    def work_files(self) -> int:
        """Largest number of files in the work folder."""
        counts = self.tasks + self.plan.num_shards
        of_levels = [self.blocks, *(2 * above.ranges * above.files for _, above in self.levels)]
        return counts + max(map(sum, zip([0, *of_levels], of_levels)))


def shape_of(text_bytes: int, tokens: int, documents: int | None = None) -> Shape:
    """Returns the layout of a text, from the job's own functions.

    Args:
      text_bytes: size of the plain text, in files of 1 GB.
      tokens: number of its tokens.
      documents: number of its documents; None: so many that pools and shards do not depend on them.
    """
    tasks = math.ceil(text_bytes / creation.task_bytes_of(text_bytes))
    blocks = tasks * math.ceil(tokens / tasks / rounds.BLOCK_TOKENS)
    job = Job("", "", "", examples.ExampleRules(dupe_factor=1), record_format="compact")
    text = collections.Counter(kept_documents=documents or tokens, tokens=tokens)
    plan = plan_lib.plan_layout(job, text, [1.0])
    levels = compaction.levels(Grouping("", 0, blocks, ""), _ID_BYTES * tokens, plan.num_pools)
    return Shape(text_bytes, tokens, tasks, blocks, plan, tuple(levels))


def model(rows: Sequence[dict], num_workers: int, text_bytes: int, machine: Machine) -> dict:
    """Returns the modelled cost of a text: time, memory, disk, files, and the limit of the machine that
    breaks first.

    Args:
      rows: measurements by ascending size, made with `num_workers` processes.
      num_workers: processes of the measurements.
      text_bytes: size of the modelled text.
      machine: the machine whose limits are checked.
    """
    row = rows[-1]
    scale = text_bytes / row["text_bytes"]
    shape = shape_of(text_bytes, round(row["tokens"] * scale))
    more_levels = len(shape.levels) - len(_shape_of_row(row).levels)
    rounds_secs = row["rounds_secs"] * scale + more_levels * _level_secs(rows) * text_bytes
    start_secs = max(row["secs"] - row["rounds_secs"], 0.0)
    secs = {
        count: start_secs + rounds_secs * num_workers / count for count in sorted({num_workers, *PROCESSES})
    }
    disk = row["peak_disk_bytes"] * scale
    if shape.levels:
        disk = max(disk, 2 * shape.document_bytes)
    records = max(row["peak_disk_bytes"] * scale - shape.document_bytes, 0.0)
    moved = text_bytes + records + 2 * shape.document_bytes * (1 + len(shape.levels))
    found = {
        "text_bytes": text_bytes,
        "secs": secs[num_workers],
        "core_secs": row["core_secs"] * scale,
        "hours_by_processes": {str(count): own / 3600 for count, own in secs.items()},
        "storage_bytes_per_sec_by_processes": {str(count): moved / own for count, own in secs.items()},
        "peak_memory_bytes": row["peak_memory_bytes"],
        "parent_table_bytes": _table_bytes(shape),
        "peak_disk_bytes": disk,
        "work_folder_files": shape.work_files,
        "tasks": shape.tasks,
        "merges": shape.merges,
        "blocks": shape.blocks,
        "pools": shape.plan.num_pools,
        "files": shape.plan.num_shards,
        "bytes_of_a_file": records / shape.plan.num_shards,
        "regroupings": len(shape.levels),
        "reads_per_copy": shape.reads,
        "open_files_of_a_process": row.get("peak_open_files"),
        "manifest_bytes": _manifest_bytes(shape),
    }
    limits = _limits(found, num_workers, machine)
    broken = {name: need / limit for name, (need, limit) in limits.items() if need > limit}
    found["limits"] = {name: {"needed": need, "there": limit} for name, (need, limit) in limits.items()}
    return {**found, "breaks_first": max(broken, key=broken.__getitem__, default=None)}


def _shape_of_row(row: dict) -> Shape:
    return shape_of(row["text_bytes"], row["tokens"], row.get("documents"))


def _level_secs(rows: Sequence[dict]) -> float:
    """Returns the seconds of a regrouping per byte of text; 0 where the rows don't have both a text with one
    and one without."""
    by_levels = {len(_shape_of_row(row).levels): row for row in rows}
    if not {0, 1} <= by_levels.keys():
        return 0.0
    return max(0.0, by_levels[1]["ms_per_mb"] - by_levels[0]["ms_per_mb"]) / 1e9


def _limits(found: dict, num_workers: int, machine: Machine) -> dict[str, tuple[float, float]]:
    """Returns {resource: (needed, available)}, without resources of unknown limits."""
    limits: dict[str, tuple[float | None, float | None]] = {
        "disk": (found["peak_disk_bytes"], machine.free_bytes),
        "files of the disk": (found["work_folder_files"] + found["files"], machine.free_files),
        "memory": (
            found["parent_table_bytes"] + (num_workers + 1) * found["peak_memory_bytes"],
            machine.memory_bytes,
        ),
        "open files": (found["open_files_of_a_process"], machine.open_files),
        "time": (found["secs"], _LONGEST_SECS),
    }
    return {name: (need, limit) for name, (need, limit) in limits.items() if need and limit}


# ------------------------------------------------------------------------------------------------------------
# Tables of the parent, and the manifest


def _table_bytes(shape: Shape) -> int:
    """Returns the bytes of the parent's tables that grow with the text (tasks, merges, shards, files), each
    extrapolated from the size of some entries."""
    length = examples.ExampleRules().max_seq_length
    number = lambda place: 10**6 + place  # a small number would not be made, but shared
    tables: list[tuple[int, Callable[[int], object]]] = [
        (shape.tasks, lambda place: (0, [text_files.Split(f"text-{place:09d}", place, number(place))])),
        (
            max((above.ranges * above.files for _, above in shape.levels), default=0),
            lambda place: (number(place), place),
        ),
        (
            shape.plan.num_shards,
            lambda place: {"bytes": place, "lengths": [number(place + n) for n in range(length + 1)]},
        ),
        (_input_files(shape), lambda place: (f"text-{place:09d}", read_counts.FileCounts(number(place)))),
    ]
    return sum(round(count * _bytes_of(make)) for count, make in tables)


def _bytes_of(make: Callable[[int], object]) -> float:
    """Returns the average bytes of a table's entry."""
    tracemalloc.start()
    try:
        table = [make(place) for place in range(_SAMPLED)]
        return tracemalloc.get_traced_memory()[0] / len(table)
    finally:
        tracemalloc.stop()


def _input_files(shape: Shape) -> int:
    return -(-shape.text_bytes // _INPUT_BYTES)


def _manifest_bytes(shape: Shape) -> int:
    """Returns the bytes of the parts of `manifest.json` that grow with the text: the lists of files and
    inputs."""
    inputs = {
        f"text-{number:09d}": read_counts.FileCounts(_INPUT_BYTES) for number in range(_input_files(shape))
    }
    some = dict.fromkeys(shape.plan.files, shape.tokens // shape.plan.num_shards)
    manifest = {"files": some, "file_bytes": some, "inputs": read_counts.listed(inputs)}
    return len(json.dumps(manifest, indent=2))


# ------------------------------------------------------------------------------------------------------------
# For people


def described(row: dict) -> str:
    """Returns lines about a modelled text."""
    rates = row["storage_bytes_per_sec_by_processes"]
    hours = ", ".join(
        f"{count} processes {value:,.1f} h ({rates[count] / 1e9:,.2f} GB/s)"
        for count, value in row["hours_by_processes"].items()
    )
    broken = row["breaks_first"]
    why = "nothing breaks on this machine"
    if broken:
        limit = row["limits"][broken]
        needed, there = (f"{limit[name]:,.0f}" for name in ("needed", "there"))
        why = f"{broken} breaks first on this machine: {needed} needed, {there} there"
    return (
        f"{row['text_bytes'] / 1e12:g} TB: {hours}\n"
        f"  disk {row['peak_disk_bytes'] / 1e12:,.2f} TB, {row['work_folder_files']:,} names in the work"
        f" folder, {counted(row['blocks'], 'block')}, {counted(row['pools'], 'pool')},"
        f" {counted(row['files'], 'file')} of {row['bytes_of_a_file'] / 1e6:,.0f} MB\n"
        f"  {counted(row['regroupings'], 'regrouping')} of {counted(row['merges'], 'task')},"
        f" {row['reads_per_copy']:,} reads; memory {row['peak_memory_bytes'] / 1e6:,.0f} MB a process and"
        f" {row['parent_table_bytes'] / 1e6:,.0f} MB of tables in the parent; manifest"
        f" {row['manifest_bytes'] / 1e6:,.1f} MB\n"
        f"  {why}"
    )
