"""Web pages that may ask the server: those of its own names, and those that it was told of.

A browser lets any page on the web send requests to this machine (forgery), and lets a page whose own name is
made to mean this machine read the answers, too (DNS rebinding). Both are told by headers that no page can
change: Origin, and Host. Programs that are no browser send no Origin, and the name that they were given.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Sequence

from official.io.errors import ConfigError, shortened

_ANY = "*"
_OWN_NAMES = ("localhost", "127.0.0.1", "::1")
_LOOPBACK = re.compile(r"localhost|::1|127(\.\d+){3}")
_NAME_AND_PORT = re.compile(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::(\d{1,5}))?", re.IGNORECASE | re.ASCII)
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}
_LONGEST = 100  # characters of a header or a flag that are told

Origin = tuple[str, str, int]  # scheme, name, port


def is_loopback(host: str) -> bool:
    """Tells whether an address to listen on is reached from this machine alone."""
    return _LOOPBACK.fullmatch(host) is not None


@dataclasses.dataclass(frozen=True)
class Callers:
    """Names of a server, and web pages that may ask it.

    Attributes:
      names: of the server; its own pages are of one of these, with any port.
      are_names_checked: whether the header Host is to be one of them.
      origins: of other pages that may ask; None: all may.
    """

    names: frozenset[str]
    are_names_checked: bool
    origins: frozenset[Origin] | None

    def problem(self, host: str | None, origin: str | None) -> str | None:
        """Returns the fault of the headers Host and Origin of a request; None where there is none."""
        if self.are_names_checked and host is not None and _name_of(host) not in self.names:
            names = shortened(sorted(self.names))
            return f"Host: {host[:_LONGEST]} is no name of this server, expected {names}: --allowed_hosts."
        if self.origins is None or origin is None:
            return None
        found = _origin_of(origin)
        if found is None or (found[1] not in self.names and found not in self.origins):
            return (
                f"Origin: {origin[:_LONGEST]}: pages from there may not ask this server, only its own:"
                " --allowed_origins."
            )
        return None


def callers_of(
    host: str, has_token: bool, allowed_hosts: Sequence[str] = (), allowed_origins: Sequence[str] = ()
) -> Callers:
    """Returns the callers that a server accepts.

    On the loopback address without a token both headers are checked. Elsewhere nobody knows the names of the
    machine, and a foreign page has no token: there both are checked where names are given, and origins where
    these are.

    Args:
      host: that the server listens on.
      has_token: whether requests need a token.
      allowed_hosts: names beside localhost, 127.0.0.1, ::1 and `host`; '*' for all.
      allowed_origins: SCHEME://NAME or SCHEME://NAME:PORT of pages beside the server's own; '*' for all.

    Raises:
      ConfigError: for what is no name, or no origin.
    """
    names = {name: _name_of(name) for name in allowed_hosts if name != _ANY}
    origins = {origin: _origin_of(origin) for origin in allowed_origins if origin != _ANY}
    for name, found in names.items():
        if found is None:
            raise ConfigError(
                f"--allowed_hosts={name[:_LONGEST]}, expected names or addresses with commas between them, or"
                " '*'."
            )
    for origin, page in origins.items():
        if page is None:
            raise ConfigError(
                f"--allowed_origins={origin[:_LONGEST]}, expected SCHEME://NAME or SCHEME://NAME:PORT with"
                " commas between them, or '*'."
            )
    is_private = is_loopback(host) and not has_token
    are_names_checked = (is_private or bool(names)) and _ANY not in allowed_hosts
    are_origins_checked = (is_private or bool(names) or bool(origins)) and _ANY not in allowed_origins
    return Callers(
        frozenset(filter(None, (*_OWN_NAMES, _canonical(host), *names.values()))),
        are_names_checked,
        frozenset(filter(None, origins.values())) if are_origins_checked else None,
    )


def _name_of(authority: str) -> str | None:
    """Returns the name of NAME or NAME:PORT; None for what is none of them."""
    found = _NAME_AND_PORT.fullmatch(authority)
    if found:
        return _canonical(found[1].strip("[]"))
    return _canonical(authority) if authority.count(":") > 1 and _is_address(authority) else None


def _origin_of(text: str) -> Origin | None:
    """Returns scheme, name and port of an origin; None for another text, such as `null`."""
    found = _ORIGIN.fullmatch(text)
    place = found and _NAME_AND_PORT.fullmatch(found[2])
    if not found or not place:
        return None
    scheme = found[1].lower()
    return scheme, _canonical(place[1].strip("[]")), int(place[2] or _PORTS.get(scheme, 0))


def _canonical(name: str) -> str:
    """Returns the one spelling of a name or address."""
    return str(ipaddress.ip_address(name)) if _is_address(name) else name.lower().removesuffix(".")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
