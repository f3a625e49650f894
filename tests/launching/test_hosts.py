"""Who is in a job: names, ranges, ports."""

import socket

from official.launching import job
from official.launching.job import Host


def test_hosts_are_read_with_ranges_and_ports():
    rack = [Host(f"n{number}.rack", None) for number in ("08", "09", "10")]
    for text, expected in {
        "a:4000,b:5000": [Host("a", 4000), Host("b", 5000)],
        "a": [Host("a", None)],
        " a:1 , b:2 ,": [Host("a", 1), Host("b", 2)],
        "localhost:4000,localhost:4002": [Host("localhost", 4000), Host("localhost", 4002)],
        "n[0-2,4]:7": [Host(f"n{number}", 7) for number in (0, 1, 2, 4)],
        "n[08-10].rack,10.0.0.1:9": [*rack, Host("10.0.0.1", 9)],
    }.items():
        assert job.read_hosts(text) == expected


def test_ranks_count_a_host_s_instances_first(monkeypatch):
    monkeypatch.setattr(job, "is_local", lambda name: name == "here")
    workers = job.make_workers(job.read_hosts("here:4000,there:5000", 2), 2)
    addresses = ["here:4000", "here:4001", "there:5000", "there:5001"]
    assert [worker.address for worker in workers] == addresses
    assert [worker.rank for worker in workers] == [0, 1, 2, 3]
    assert [worker.is_local for worker in workers] == [True, True, False, False]
    assert workers[3].name == "rank 3 (there:5001)"


def test_ports_that_are_left_out_are_free_ones_of_this_machine():
    workers = job.make_workers([Host("localhost", None)], 5)
    assert len({worker.port for worker in workers}) == 5 and all(worker.is_local for worker in workers)
    with socket.socket() as listener:
        listener.bind(("", workers[0].port))


def test_names_of_this_machine_are_known():
    for name in ("localhost", "127.0.0.1"):
        assert job.is_local(name)
    for name in ("192.0.2.1", "no-such-host.invalid"):
        assert not job.is_local(name)
