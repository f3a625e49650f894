"""The table of hosts, instances and replicas, beside tables of published logs."""

from official.graphcore.poprun import Topology, draw

# Of the tutorial's log, where two lines of the log stand within the table.
TUTORIAL = """\
 ===========================================================================================
|                                      poprun topology                                      |
|===========================================================================================|
| hosts     |                                   localhost                                   |
|-----------|-------------------------------------------------------------------------------|
| ILDs      |                                       0                                       |
|-----------|-------------------------------------------------------------------------------|
| instances |                                       0                                       |
|-----------|-------------------------------------------------------------------------------|
| replicas  | 0  | 1  | 2  | 3  | 4  | 5  | 6  | 7  | 8  | 9  | 10 | 11 | 12 | 13 | 14 | 15 |
 -------------------------------------------------------------------------------------------"""
GUIDE = """\
 ===========================================
|              poprun topology              |
|===========================================|
| hosts     |           localhost           |
|-----------|-------------------------------|
| ILDs      |               0               |
|-----------|-------------------------------|
| instances |       0       |       1       |
|-----------|-------------------------------|
| replicas  | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
 -------------------------------------------"""
UNEVEN = """\
 ===========================
|      poprun topology      |
|===========================|
| hosts     | gc-poplar-02  |
|-----------|---------------|
| ILDs      |       0       |
|-----------|---------------|
| instances |       0       |
|-----------|---------------|
| replicas  | 0 | 1 | 2 | 3 |
 ---------------------------"""
NARROW = """\
 ===================
|  poprun topology  |
|===================|
| hosts     |  [0]  |
|-----------|-------|
| ILDs      |   0   |
|-----------|-------|
| instances | 0 | 1 |
|-----------|-------|
| replicas  | 0 | 1 |
 -------------------"""


def test_the_tables_of_published_logs():
    assert draw(Topology(("localhost",), 1, 16, 1)) == TUTORIAL
    assert draw(Topology(("localhost",), 2, 8, 1)) == GUIDE
    assert draw(Topology(("gc-poplar-02",), 1, 4, 1)) == UNEVEN
    # A name without room is a number, which is told below.
    assert draw(Topology(("localhost",), 2, 2, 1)) == NARROW + "\n[0] localhost"


def test_a_job_without_ipus_has_no_row_of_link_domains():
    lines = draw(Topology(("a", "b"), 4, 8)).splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| ")]
    names = [row[0].strip() for row in rows]
    assert names == ["topology", "hosts", "instances", "replicas"]
    hosts, instances, replicas = ([cell.strip() for cell in row[1:]] for row in rows[1:])
    assert (hosts, instances) == (["a", "b"], ["0", "1", "2", "3"])
    assert replicas == list("01234567") and len(set(map(len, lines[1:-1]))) == 1
