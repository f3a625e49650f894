"""What both sides of a meeting need."""

import socket

import pytest

from official.config.cluster import Cluster
from official.distribution import rendezvous
from official.io.errors import ConfigError


@pytest.fixture
def names(monkeypatch):
    """Returns {host name: its addresses}, which the test fills; nobody listens at any of them."""
    known = {}

    def find(host, port, *_, **__):
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        kinds = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(kinds[":" in each], socket.SOCK_STREAM, 6, "", (each, port or 0)) for each in known[host]]

    def connect(address, timeout):
        find(*address)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(socket, "create_connection", connect)
    return known


def test_a_host_of_ipv6_addresses_only_is_bad_input_at_once(names):
    names["node6"] = ["fd00::6", "fd00::7"]
    with pytest.raises(ConfigError, match=r"Host node6 .* IPv6 addresses only, such as fd00::6; expected"):
        rendezvous.meet(Cluster(("node6:25000", "node7:25000"), 1), 30)


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["fd00::6", "127.0.0.1"]])
def test_a_host_that_has_another_address_too_may_still_come(names, addresses):
    names["node"] = addresses
    with pytest.raises(ConnectionError, match="^Connection refused$"):
        rendezvous.call("node:25000")


def test_a_host_without_an_address_may_still_get_one(names):
    with pytest.raises(ConnectionError, match="no such host is known"):
        rendezvous.call("node:25000")
